"""`CircuitBreaker`: middleware that stops calling a failing tool or model for a while."""

import math
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import anyio
from langchain_core.messages import ToolCall, ToolMessage
from langchain_core.tools import BaseTool

from callboard._calls._call import note
from callboard._langchain._errors import is_control_flow
from callboard._langchain._outputs import CallNext, Output
from callboard._langgraph._vocabulary import ToolCallRequest, ToolInvocationError, context_of
from callboard._loops._current import common_time
from callboard._records._policies import CallPolicy, LimitKey, check_count, check_seconds, key_function
from callboard._util._suggestions import suggests_options
from callboard.exceptions import CallCancelledError, CallRejectedError, CircuitOpenError
from callboard.middleware._retry import FailureRules, When
from callboard.tools._middleware import Middleware, Order, running_call

T = TypeVar("T")

# State machine


_CLOCK_TOLERANCE = 1e-6
"""Tolerance for comparing times, in seconds; two readings of a clock may differ by less."""

State = Literal["closed", "open", "half-open"]

MAX_OUTCOMES = 1000
"""Maximum number of outcomes that one circuit remembers, even if its window has more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitRules:
    """Limits that decide when a circuit opens and closes; see the arguments of `CircuitBreaker`."""

    ratio: float
    minimum: int
    window: float
    open_for: float
    probes: int

    def __post_init__(self) -> None:
        if isinstance(self.ratio, bool) or not isinstance(self.ratio, (int, float)):
            raise TypeError(f"CircuitBreaker(ratio=...) is a number, got {self.ratio!r}")
        if not 0 < self.ratio <= 1:
            raise ValueError(f"CircuitBreaker(ratio=...) must be above 0 and at most 1, got {self.ratio!r}")
        for name in ("minimum", "probes"):
            check_count(f"CircuitBreaker({name}=...)", getattr(self, name), least=1)
        for name in ("window", "open_for"):
            seconds = getattr(self, name)
            check_seconds(f"CircuitBreaker({name}=...)", seconds, zero=False)
            if seconds is None or math.isinf(seconds):
                raise ValueError(f"CircuitBreaker({name}=...) is a number of seconds, got {seconds!r}")


class Ticket(NamedTuple):
    """Record of an admitted call: whether it is a trial call, and how often its circuit had changed state before."""

    state_changes: int
    is_probe: bool = False


class _Outcome(NamedTuple):
    """Outcome of one call, and the time of its end."""

    time: float
    has_failed: bool


@dataclass(slots=True, eq=False)
class Circuit:
    """State machine of one circuit: closed, open or half-open. It decides at once and never waits.

    Callers hold their own lock.

    Invariant: an outcome counts only if the state has not changed since the call was admitted. Each ticket
    therefore carries the number of changes at admission. A slow call from before the circuit opened cannot close
    it.
    """

    rules: CircuitRules
    state_changes: int = 0
    """Number of times that the circuit has changed its state."""
    _outcomes: deque[_Outcome] = field(default_factory=deque[_Outcome])
    _failure_count: int = 0
    _open_until: float | None = None
    """Time from which the tool may be tried again; `None` while the circuit is closed."""
    _running_calls: int = 0
    _running_probes: int = 0
    """Number of running trial calls that were admitted in the current state."""

    def state(self, now: float) -> State:
        if self._open_until is None:
            return "closed"
        return "open" if self.seconds_to_wait(now) > 0 else "half-open"

    def seconds_to_wait(self, now: float) -> float:
        """Return the seconds until the circuit may admit a call; 0.0 if it may admit one now."""
        seconds = -math.inf if self._open_until is None else self._open_until - now
        return seconds if seconds > _CLOCK_TOLERANCE else 0.0

    def admit(self, now: float) -> Ticket | None:
        """Admit a call and return its ticket, or refuse the call and return `None`."""
        is_probe = self._open_until is not None
        if is_probe:
            if self.seconds_to_wait(now) > 0 or self._running_probes >= self.rules.probes:
                return None
            self._running_probes += 1
        self._running_calls += 1
        return Ticket(self.state_changes, is_probe)

    def record_outcome(self, ticket: Ticket, now: float, *, has_failed: bool | None) -> State | None:
        """Count the outcome of a call; return the circuit's new state if it has changed, else `None`."""
        self._running_calls -= 1
        if ticket.state_changes != self.state_changes:
            return None
        # The place of a trial call is freed even if its outcome counts neither way, such as after a cancellation.
        self._running_probes -= ticket.is_probe
        if has_failed is None:
            return None
        new_open_until = now + self.rules.open_for
        if self._open_until is not None:
            return self._change_state(new_open_until if has_failed else None)
        outcomes, rules = self._outcomes, self.rules
        max_outcomes = max(MAX_OUTCOMES, rules.minimum)
        while outcomes and (outcomes[0].time <= now - rules.window or len(outcomes) >= max_outcomes):
            self._failure_count -= outcomes.popleft().has_failed
        outcomes.append(_Outcome(now, has_failed))
        self._failure_count += has_failed
        should_open = len(outcomes) >= rules.minimum and self._failure_count >= rules.ratio * len(outcomes)
        return self._change_state(new_open_until) if should_open else None

    def is_idle(self, now: float) -> bool:
        """Return whether the circuit can be dropped: no call is running, and no outcome or state is still valid."""
        valid_until = self._open_until
        if valid_until is None and self._outcomes:
            valid_until = self._outcomes[-1].time
        return not self._running_calls and (valid_until is None or valid_until + self.rules.window <= now)

    def _change_state(self, open_until: float | None) -> State:
        """Open the circuit until the time `until`, or close it if `until` is `None`; return its new state."""
        self._open_until = open_until
        self.state_changes += 1
        self._failure_count = 0
        self._running_probes = 0
        self._outcomes.clear()
        return "closed" if open_until is None else "open"


# Circuits by key

MIN_CIRCUITS = 64
"""Minimum number of circuits in a process before unused circuits are removed."""


class Admission(NamedTuple):
    """Decision of a circuit to admit or refuse one call."""

    circuit: Circuit
    ticket: Ticket | None
    """Ticket of the call; `None` if the call is refused."""
    seconds_to_wait: float
    """Seconds until the circuit may admit another call, as far as known."""
    new_state: State | None
    """New state of the circuit that observers have not been told yet, or `None`."""


class Circuits:
    """Circuits by key, used from any thread and event loop."""

    def __init__(self, rules: CircuitRules) -> None:
        self._rules = rules
        self._circuits: dict[Hashable, Circuit] = {}
        # Guards the dict and every circuit in it: calls of several event loops and threads share them.
        self._lock = threading.Lock()
        self._prune_above_count = MIN_CIRCUITS

    def request_admission(self, key: Hashable) -> Admission:
        """Admit or refuse a call by the circuit of its key, and return the decision."""
        now = common_time()
        with self._lock:
            circuit = self._circuits.get(key)
            if circuit is None:
                # Keys may come from the model, so their number is unlimited. Doubling the threshold keeps the average
                # cost per new circuit constant. A circuit with running calls is never dropped: its outcomes would be
                # lost.
                if len(self._circuits) >= self._prune_above_count:
                    self._circuits = {
                        key: circuit for key, circuit in self._circuits.items() if not circuit.is_idle(now)
                    }
                    self._prune_above_count = max(MIN_CIRCUITS, 2 * len(self._circuits))
                circuit = self._circuits[key] = Circuit(self._rules)
            seconds_to_wait, state = circuit.seconds_to_wait(now), circuit.state(now)
            ticket = circuit.admit(now)
        new_state: State | None = "half-open" if ticket is not None and state == "half-open" else None
        return Admission(circuit, ticket, seconds_to_wait, new_state)

    def end_call(self, admission: Admission, has_failed: bool | None) -> State | None:
        """Count the outcome of an admitted call, and return the new state of its circuit if it changed, else `None`."""
        # A circuit that was reset meanwhile is no longer in the dict.
        assert admission.ticket is not None
        with self._lock:
            return admission.circuit.record_outcome(admission.ticket, common_time(), has_failed=has_failed)

    def state(self, key: Hashable) -> State:
        """Return the current state of the circuit of a key; needs a running event loop for its clock."""
        with self._lock:
            circuit = self._circuits.get(key)
            return "closed" if circuit is None else circuit.state(common_time())

    def reset(self, key: Hashable) -> None:
        """Forget the circuit of a key, or all circuits for `None`. Outcomes of calls that run now will not count."""
        with self._lock:
            if key is None:
                self._circuits.clear()
            else:
                self._circuits.pop(key, None)


# Middleware

_NOT_OUTCOMES = (CallRejectedError, CircuitOpenError, CallCancelledError, ToolInvocationError)
"""Errors that do not count as failures of the tool, because its body did not run, or did not run to its end."""


@suggests_options()
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

    Raises:
        ValueError: if a number is out of range.
        TypeError: if an option has the wrong type.
    """

    order = Order(
        "breaker",
        not_around={"approval": "what a person answers in place of the tool counts as proof that the tool works"},
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
    ) -> None:
        self._failure_rules = FailureRules("CircuitBreaker", on, on_message)
        self._rules = CircuitRules(ratio=ratio, minimum=minimum, window=window, open_for=open_for, probes=probes)
        self._key = None if key is None else key_function("CircuitBreaker(key=...)", key)
        self._circuits = Circuits(self._rules)

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

    def effect_on(self, tool: BaseTool, policy: CallPolicy) -> str:
        """Return in a few words what this middleware does with the calls of a tool."""
        rules = self._rules
        return (
            f"refuses calls for {rules.open_for:g} s after {rules.ratio:.0%} of at least {rules.minimum} calls failed "
            f"within {rules.window:g} s"
        )

    async def awrap_tool_call(self, request: ToolCallRequest, call_next: CallNext) -> Output:
        """Admit the call and count its outcome, or refuse it.

        Raises:
            CircuitOpenError: if the circuit is open, or half-open with all trial calls in use.
        """
        call = request.tool_call
        key: Hashable = str(call["name"])
        if self._key is not None:
            try:
                key = self._key.of(call, partial(context_of, request))
            except Exception as error:
                # Nothing has validated the arguments yet, so the function may fail on them. The tool will report that.
                note("breaker_no_key", tool=call["name"], error=type(error).__name__)
        return await self._count_outcome(request, key, partial(call_next, request))

    async def awrap_model_call(self, request: Any, call_next: Callable[[Any], Awaitable[T]]) -> T:
        """Admit a model request of `create_agent` and count its outcome, or refuse it; each model has a circuit.

        Raises the errors of `awrap_tool_call`.
        """
        name = model_name_of(request.model)
        call = ToolCallRequest(ToolCall(name=name, args={}, id=None), None, request.state, request.runtime)
        return await self._count_outcome(call, name, partial(call_next, request))

    async def _count_outcome(self, request: ToolCallRequest, key: Hashable, run_call: Callable[[], Awaitable[T]]) -> T:
        tool_call = request.tool_call
        admission = self._circuits.request_admission(key)
        self._report_state(admission.new_state, request, admission.seconds_to_wait)
        if admission.ticket is None:
            note("breaker_refused", tool=tool_call["name"], retry_after=admission.seconds_to_wait)
            is_for_some_keys = self._key is not None
            raise CircuitOpenError(
                tool_call["name"], tool_call.get("id"), admission.seconds_to_wait, partly=is_for_some_keys
            )
        call = running_call()
        attempts_before = 0 if call is None else call.attempts
        has_failed: bool | None = None  # neither a failure nor a success
        try:
            output = await run_call()
            # An error message may be about invalid arguments, or a refusal by other middleware: neither a failure nor a
            # success, because it says nothing about the tool.
            if self._failure_rules.is_failed_output(output):
                has_failed = True
            elif not (isinstance(output, ToolMessage) and output.status == "error"):
                has_failed = False
            return output
        except Exception as error:
            if not (is_control_flow(error) or isinstance(error, _NOT_OUTCOMES)):
                # `or None`: an error that `on` does not name is no success either, so it must not close a half-open
                # circuit.
                has_failed = self._failure_rules.is_failure(error) or None
            raise
        except anyio.get_cancelled_exc_class():
            # A spent budget arrives as a cancellation, too. It is a failure of the tool if a body had started in here.
            has_failed = (call is not None and call.attempts > attempts_before and call.budget_is_spent()) or None
            raise
        finally:
            # `end_call()` never waits: this block also runs in a cancelled task. Without it, a half-open circuit would
            # count this call as a running probe for ever.
            self._report_state(self._circuits.end_call(admission, has_failed), request, self._rules.open_for)

    def _report_state(self, new_state: State | None, request: ToolCallRequest, seconds_to_wait: float) -> None:
        tool = request.tool_call["name"]
        if new_state == "open":
            note("breaker_opened", tool=tool, retry_after=seconds_to_wait)
        elif new_state == "half-open":
            note("breaker_half_open", tool=tool)
        elif new_state == "closed":
            note("breaker_closed", tool=tool)


def model_name_of(model: Any) -> str:
    """Return the name of a chat model at its provider, or the name of its class."""
    names = (getattr(model, attribute, None) for attribute in ("model_name", "model"))
    return next((name for name in names if isinstance(name, str)), type(model).__name__)
