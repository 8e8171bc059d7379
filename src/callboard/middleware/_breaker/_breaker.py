"""`CircuitBreaker`: middleware that stops calling a failing tool for a while."""

from collections.abc import Callable, Hashable
from functools import partial

import anyio
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool

from callboard._calls._call import note
from callboard._langgraph._vocabulary import ToolCallRequest, ToolInvocationError, context_of
from callboard._records._documents import SharedDocuments
from callboard._records._policies import LimitKey, key_function
from callboard.exceptions import CallCancelledError, CallRejectedError, CircuitOpenError
from callboard.middleware._asking import check_store
from callboard.middleware._breaker._circuit import Admission, LocalCircuits, Rules, SharedCircuits, State
from callboard.middleware._retry import When, check_on_message, check_when, matches
from callboard.tools._errors import is_control_flow
from callboard.tools._middleware import Middleware, Order, RunningCall, running_call
from callboard.tools._results import CallNext, Output

_NOT_OUTCOMES = (CallRejectedError, CircuitOpenError, CallCancelledError, ToolInvocationError)
"""Errors that do not count as failures of the tool, because its body did not run, or did not run to its end."""


class CircuitBreaker(Middleware):
    """Middleware that stops calling a tool that keeps failing, and tries it again after a while.

    Closed, the circuit admits every call and counts outcomes. It opens when at least the share `ratio` of the calls
    within the last `window` seconds failed. While it is open, for `open_for` seconds, calls end at once with
    `CircuitOpenError`; the model reads "unavailable, try again after 12 s". Then it is half-open: up to `probes`
    calls at a time may try the tool. A success closes the circuit, a failure opens it again. See M. Nygard,
    "Release It!", chapter "Stability Patterns".

    Failures are errors that match `on`, timeouts and spent budgets among them, and messages that match `on_message`.
    Cancellations, interrupts, invalid arguments, rejections by a limit, other error messages and other errors count
    neither as failure nor as success. A `Retry` further inside has one outcome, however many attempts it makes.

    Observers receive the events `breaker_opened`, `breaker_half_open`, `breaker_closed`, `breaker_refused` and, if
    `key` fails, `breaker_no_key`.

    Args:
        ratio: the share of failed calls that opens the circuit, above 0 and at most 1.
        minimum: number of calls in the window before the circuit may open. Of more than 1,000 calls
            (or `minimum`, if larger) only the latest count.
        window: seconds during which an outcome counts.
        open_for: seconds until a call may try the tool again.
        probes: maximum number of simultaneous trial calls while half-open.
        on: errors that count as failures: exception types, or a predicate of the error.
        on_message: predicate of a message that counts as a failure; by default no message does.
        key: a function of the tool call (a mapping with `name`, `args`, `id`), such as `lambda call:
            call["args"]["host"]`, or of the call and a `CallContext`. Calls with equal keys share a circuit. Without
            the function, and where it fails, the key is the tool's name.
        shared: a store such as `callboard_actors.redis.RedisDocuments(url)`. A circuit that opens in one process is
            then open in all that use the store, until the same time. Each process counts and tries the tool by itself.
        name: name of the breaker in the store. Breakers with the same name and numbers share circuits; by default all.

    Raises:
        ValueError: if a number is out of range.
        TypeError: if an option has the wrong type.
    """

    order = Order(
        "breaker",
        not_inside={"retry": "each attempt counts as a failure, and attempts are spent on an open circuit"},
    )

    def __init__(
        self,
        ratio: float = 0.5,
        *,
        minimum: int = 10,
        window: float = 60.0,
        open_for: float = 30.0,
        probes: int = 1,
        on: When = Exception,
        on_message: Callable[[ToolMessage], bool] | None = None,
        key: LimitKey | None = None,
        shared: SharedDocuments | None = None,
        name: str | None = None,
    ) -> None:
        check_when("CircuitBreaker(on=...)", on)
        check_on_message("CircuitBreaker(on_message=...)", on_message)
        check_store("CircuitBreaker", shared, name=name)
        self._rules = Rules(ratio=ratio, minimum=minimum, window=window, open_for=open_for, probes=probes)
        self._on = on
        self._on_message = on_message
        self._key = None if key is None else key_function("CircuitBreaker(key=...)", key)
        self._circuits = LocalCircuits(self._rules) if shared is None else SharedCircuits(self._rules, shared, name)

    def offers(self, tool: BaseTool) -> bool:
        """Return whether a tool should be offered to a model now; `False` while the tool's circuit is open.

        With a `key` function the result is always `True`, because calls with other keys may be admitted. Call it in
        a running event loop.
        """
        return self._key is not None or self.state(tool.name) != "open"

    def state(self, key: Hashable) -> State:
        """Return the current state of the circuit of a key, which is the tool's name by default.

        Call it in a running event loop.
        """
        return self._circuits.state(key)

    def reset(self, key: Hashable = None) -> None:
        """Close the circuit of a key, or all circuits, and forget their outcomes. Calls that run now will not count."""
        self._circuits.reset(key)

    async def awrap_tool_call(self, request: ToolCallRequest, call_next: CallNext) -> Output:
        """Admit the call and count its outcome, or refuse it.

        Raises:
            CircuitOpenError: if the circuit is open, or half-open with all trial calls in use.
            StorageError: if the store of a shared circuit cannot be used.
        """
        admission = await self._enter(request)
        body = _BodyRun(running_call())
        failed: bool | None = None
        try:
            output = await call_next(request)
            failed = self._has_failed(output)
            return output
        except Exception as error:
            failed = self._is_failure(error)
            raise
        except anyio.get_cancelled_exc_class():
            # A spent budget arrives as a cancellation, too. Only that one is a failure of the tool.
            failed = body.took_the_budget() or None
            raise
        finally:
            # `leave()` never waits: this block also runs in a cancelled task. Without it, a half-open circuit would
            # count this call as a running probe for ever.
            self._tell(self._circuits.leave(admission, failed), request, self._rules.open_for)

    async def _enter(self, request: ToolCallRequest) -> Admission:
        call = request.tool_call
        admission = await self._circuits.enter(self._key_of(request), request)
        self._tell(admission.news, request, admission.wait)
        if admission.ticket is None:
            note("breaker_refused", tool=call["name"], retry_after=admission.wait)
            raise CircuitOpenError(call["name"], call.get("id"), admission.wait, partly=self._key is not None)
        return admission

    def _tell(self, news: State | None, request: ToolCallRequest, wait: float) -> None:
        tool = request.tool_call["name"]
        if news == "open":
            note("breaker_opened", tool=tool, retry_after=wait)
        elif news == "half-open":
            note("breaker_half_open", tool=tool)
        elif news == "closed":
            note("breaker_closed", tool=tool)

    def _key_of(self, request: ToolCallRequest) -> Hashable:
        call = request.tool_call
        if self._key is None:
            return str(call["name"])
        try:
            return self._circuits.checked(self._key.of(call, partial(context_of, request)))
        except Exception as error:
            # Nothing has validated the arguments yet, so the key function may fail on them. The tool will report that.
            note("breaker_no_key", tool=call["name"], error=type(error).__name__)
            return str(call["name"])

    def _has_failed(self, output: Output) -> bool | None:
        """Return whether the output of a call counts as a failure; `None` if it is neither a failure nor a success."""
        if not isinstance(output, ToolMessage):
            return False
        if self._on_message is not None and self._on_message(output):
            return True
        # May be about invalid arguments, or a refusal by other middleware: neither says anything about the tool.
        return None if output.status == "error" else False

    def _is_failure(self, error: Exception) -> bool | None:
        if is_control_flow(error) or isinstance(error, _NOT_OUTCOMES):
            return None
        # `or None`: an error that `on` does not name is no success either, so it must not close a half-open circuit.
        return matches(self._on, error) or None


class _BodyRun:
    """Distinction between a spent budget and a cancellation of a call; both reach middleware as a cancellation."""

    __slots__ = ("_before", "_call")

    def __init__(self, call: RunningCall | None) -> None:
        self._call = call
        self._before = 0 if call is None else call.attempts

    def took_the_budget(self) -> bool:
        """Return whether the call's own time budget ran out after a body had started within this middleware."""
        call = self._call
        return call is not None and call.attempts > self._before and call.budget_is_spent()
