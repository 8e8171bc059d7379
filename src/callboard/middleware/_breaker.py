"""`CircuitBreaker`: leave a tool alone that keeps failing, for a while."""

from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Any

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool

from callboard._calls._call import SupervisedCall, current_call, note
from callboard._documents import SharedDocuments
from callboard._loops._current import current_loop
from callboard._types import LimitKey, key_function
from callboard.exceptions import CallCancelledError, CallRejectedError, CircuitOpenError
from callboard.middleware._asking import check_store
from callboard.middleware._circuit import Rules, State
from callboard.middleware._circuits import Admission, Circuits, LocalCircuits
from callboard.middleware._fleet_circuits import FleetCircuits
from callboard.middleware._retry import When, check_on_message, check_when, matches
from callboard.tools._call_context import context_of
from callboard.tools._call_output import Output
from callboard.tools._errors import is_control_flow
from callboard.tools._vocabulary import ToolCallRequest, ToolInvocationError

_NOT_OUTCOMES = (CallRejectedError, CircuitOpenError, CallCancelledError, ToolInvocationError)
"""Errors that say nothing about the tool: its body did not run, or did not run to an end."""


class CircuitBreaker:
    """Stops calling a tool that keeps failing, and tries it again after a while.

    Closed, it lets every call pass and counts. When a share of `ratio` of the calls within the last `window`
    seconds has failed, it opens: for `open_for` seconds calls end at once, with `CircuitOpenError`, which the
    model reads as "unavailable, try again after 12 s". Then it is half-open: `probes` calls at a time may try
    the tool; a success closes the circuit, a failure opens it again. See M. Nygard, "Release It!", chapter
    "Stability Patterns".

    An error that `on` names is a failure, timeouts and spent budgets included, and so is a message that
    `on_message` names. Cancellations, interrupts, invalid arguments, rejections for want of a place, other
    error messages and other errors are neither failures nor successes. Inside of it, a `Retry` has one
    outcome, however many attempts it made.

    Observers are told of `breaker_opened`, `breaker_half_open`, `breaker_closed`, `breaker_refused` and, if
    `key` fails, `breaker_no_key`.

    Args:
        ratio: the share of failed calls that opens the circuit, above 0 and at most 1.
        minimum: how many calls the window must have before the circuit may open. Of more than 1,000 calls
            (or `minimum`, if that is more) the latest count.
        window: seconds, how far back calls count.
        open_for: seconds until a call may try the tool again.
        probes: how many calls at a time may try.
        on: which errors are failures: exception types, or a function that says so.
        on_message: says of a message that it stands for a failure; by default none does.
        key: a function of the tool call (a mapping with `name`, `args`, `id`), such as `lambda call:
            call["args"]["host"]`, or of that and a `CallContext`; calls with equal keys share a circuit. Without
            it, and where it fails, the key is the tool's name.
        shared: a store such as `callboard_actors.redis.RedisDocuments(url)`: then all processes with it share their
            circuits, and only the clock of its server counts. Who opened or closed one is told to the observers of
            each process with its next call.
        name: of the breaker, where `shared`: those of one name and the same numbers share circuits; by default all.

    Raises:
        ValueError: for a number out of range.
        TypeError: for an option of the wrong kind.
    """

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
        self._circuits: Circuits = (
            LocalCircuits(self._rules) if shared is None else FleetCircuits(shared, self._rules, name)
        )

    def offers(self, tool: BaseTool) -> bool:
        """Whether a model should be told of a tool now; not while its circuit is open.

        With a `key` function this is always so, because there may be calls that pass. To be asked in a running
        event loop.
        """
        return self._key is not None or self.state(tool.name) != "open"

    def state(self, key: Hashable) -> State:
        """How the circuit of a key (a tool's name, unless there is a function) is now; in a running event loop."""
        return self._circuits.state(key)

    def reset(self, key: Hashable = None) -> None:
        """Close the circuit of a key, or all of them, and forget what was counted. Calls under way do not count."""
        self._circuits.reset(key)

    async def awrap_tool_call(
        self, request: ToolCallRequest, call_next: Callable[[ToolCallRequest], Awaitable[Output]]
    ) -> Output:
        """Let the call pass and take note of how it ends, or refuse it.

        Raises:
            CircuitOpenError: if the circuit is open, or half-open and others are trying the tool.
            StorageError: if the circuit is kept where it cannot be.
        """
        loop = current_loop()
        admission = await self._enter(request)
        body = _BodyRun(current_call())
        failed: bool | None = None
        try:
            output = await call_next(request)
            failed = self._has_failed(output)
            return output
        except Exception as error:
            failed = self._is_failure(error)
            raise
        except loop.cancelled_class:
            failed = body.took_the_budget() or None
            raise
        finally:
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
            # The arguments may be anything: nothing has validated them. If they are wrong, the call will say so.
            note("breaker_no_key", tool=call["name"], error=type(error).__name__)
            return str(call["name"])

    def _has_failed(self, output: Output) -> bool | None:
        """Whether a call failed although it has an output; `None` if one cannot say."""
        if not isinstance(output, ToolMessage):
            return False
        if self._on_message is not None and self._on_message(output):
            return True
        # Invalid arguments, perhaps, or the refusal of another middleware.
        return None if output.status == "error" else False

    def _is_failure(self, error: Exception) -> bool | None:
        if is_control_flow(error) or isinstance(error, _NOT_OUTCOMES):
            return None
        return matches(self._on, error) or None


class _BodyRun:
    """Tells a spent budget, which a middleware sees as a cancellation, from a cancellation."""

    __slots__ = ("_before", "_call")

    def __init__(self, call: SupervisedCall[Any] | None) -> None:
        self._call = call
        self._before = 0 if call is None else call.attempts

    def took_the_budget(self) -> bool:
        """Whether the call ran out of its own time after a body had started."""
        call = self._call
        return call is not None and call.attempts > self._before and call.budget_is_spent()
