"""`Retry`: run a call again when it failed, after a pause."""

import inspect
import math
import random
import warnings
from collections.abc import Awaitable, Callable, Collection, Mapping

import anyio
from langchain_core.messages import ToolMessage

from callboard._callers import level_of_user
from callboard._calls._call import SupervisedCall, note, waiting
from callboard._loops._deadline import current_timed, remaining
from callboard._types import CallPolicy, _check_type, check_count, check_seconds
from callboard._web._retry_after import retry_after
from callboard.exceptions import (
    ActorGoneError,
    CallRejectedError,
    CircuitOpenError,
    EngineError,
    IdleMiddlewareWarning,
    PoisonousCallError,
)
from callboard.tools._call_output import Output
from callboard.tools._errors import is_control_flow
from callboard.tools._vocabulary import ToolCallRequest

When = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool]
"""Which errors a middleware acts upon."""

_NEVER_RAN = (CallRejectedError, CircuitOpenError, ActorGoneError)
"""Errors of calls whose body did not run; such a call may be made again, whatever the tool does."""
_LONGEST_ASKED = 86_400.0
"""Seconds that a server may ask to wait; more is a mistake, or meant to keep the caller for ever."""
_FINAL = (PoisonousCallError,)
"""Errors of calls that are refused each time."""


class Retry:
    """Runs a call again when it failed, with exponential backoff and full jitter.

    The pause before attempt n + 1 is a random share of `initial * factor ** (n - 1)` seconds, at most
    `maximum`; see "Exponential Backoff And Jitter", AWS Architecture Blog, 2015. What a server says in
    `Retry-After` is a lower bound; of more than a day, the error stands. No place is held
    meanwhile, and no attempt is made that the call's budget has no time for: then the last error stands.

    Only calls of tools whose policy says `idempotent=True` are run again, and calls whose body never ran. For any
    other tool it does nothing, and says so once with an `IdleMiddlewareWarning`. A call that is refused because it
    ended its actor too often is not made again.
    Observers are told of every pause: `retry`, with the attempt that failed, the pause in seconds, and the
    name of the error.

    Args:
        attempts: how many in all, at least 1.
        initial: seconds, the longest first pause.
        factor: by which the longest pause grows each time, at least 1.
        maximum: seconds, the longest pause of all.
        on: which errors: exception types, or a function that says so.
        on_message: says of a message that it stands for a failure worth another attempt; by default none is.
        any_tool: run the calls of every tool again, whatever its policy says.
        rng: where the jitter comes from; seeded, it is the same each time.

    Raises:
        ValueError: for a number out of range.
        TypeError: for an option of the wrong kind.
    """

    def __init__(
        self,
        attempts: int = 3,
        *,
        initial: float = 0.5,
        factor: float = 2.0,
        maximum: float = 30.0,
        on: When = Exception,
        on_message: Callable[[ToolMessage], bool] | None = None,
        any_tool: bool = False,
        rng: random.Random | None = None,
    ) -> None:
        check_count("Retry(attempts=...)", attempts, least=1)
        if isinstance(factor, bool) or not isinstance(factor, (int, float)):
            raise TypeError(f"Retry(factor=...) is a number, got {factor!r}")
        if factor < 1:
            raise ValueError(f"Retry(factor=...) must be 1 or more, got {factor!r}")
        check_seconds("Retry(initial=...)", initial)
        check_seconds("Retry(maximum=...)", maximum)
        check_when("Retry(on=...)", on)
        check_on_message("Retry(on_message=...)", on_message)
        _check_type("Retry(rng=...)", rng, random.Random, "random.Random(7)")
        self._attempts = attempts
        self._initial = initial
        self._factor = factor
        self._maximum = maximum
        self._on = on
        self._on_message = on_message
        self._any_tool = any_tool
        self._rng = rng or random.Random()  # noqa: S311 (jitter is no secret)
        self._told: set[str] = set()
        """Tools of which was said that nothing is done for them."""

    def check_policies(self, policies: Mapping[str, CallPolicy]) -> None:
        """Warn if none of a node's tools may be run again."""
        spared = self._any_tool or self._attempts == 1 or _only_of_calls_that_never_ran(self._on)
        if (
            not spared
            and not policies.keys() <= self._told
            and not any(policy.idempotent for policy in policies.values())
        ):
            self._tell_idle(policies)

    async def awrap_tool_call(
        self, request: ToolCallRequest, call_next: Callable[[ToolCallRequest], Awaitable[Output]]
    ) -> Output:
        """Run the call until it succeeds, attempts or time run out, or its failure is final."""
        for attempt in range(1, self._attempts):
            try:
                output = await call_next(request)
            except Exception as error:
                pause = self._pause(attempt, retry_after(error))
                if not self._is_worth_another(error, request) or pause >= _left():
                    raise
                note("retry", attempt=attempt, pause=pause, error=type(error).__name__)
            else:
                pause = self._pause(attempt, 0.0)
                if not self._is_failure(output, request) or pause >= _left():
                    return output
                note("retry", attempt=attempt, pause=pause, error="error message")
            with waiting():
                await anyio.sleep(pause)
        return await call_next(request)

    def _pause(self, attempt: int, at_least: float) -> float:
        if at_least > _LONGEST_ASKED:
            return math.inf  # longer than whatever is left, so that the error stands
        longest = min(self._maximum, self._initial * self._factor ** (attempt - 1))
        return max(at_least, self._rng.uniform(0.0, longest))

    def _is_worth_another(self, error: Exception, request: ToolCallRequest) -> bool:
        if is_control_flow(error) or isinstance(error, _FINAL) or not matches(self._on, error):
            return False
        if isinstance(error, EngineError) and error.ended == "unavailable":
            return True
        return isinstance(error, _NEVER_RAN) or self._may_run_twice(request)

    def _is_failure(self, output: Output, request: ToolCallRequest) -> bool:
        if self._on_message is None or not isinstance(output, ToolMessage):
            return False
        return self._on_message(output) and self._may_run_twice(request)

    def _may_run_twice(self, request: ToolCallRequest) -> bool:
        call = current_timed.get()
        if self._any_tool or (isinstance(call, SupervisedCall) and call.policy.idempotent):
            return True
        if (name := request.tool_call["name"]) not in self._told:
            self._tell_idle([name])
        return False

    def _tell_idle(self, tools: Collection[str]) -> None:
        self._told.update(tools)
        names = ", ".join(map(repr, sorted(tools)))
        warnings.warn(
            f"Retry does not run {names} again after a failure: only a tool that does no harm when it runs twice is "
            "run again. Say so with policies={'...': CallPolicy(idempotent=True)}, or of all tools with "
            "Retry(any_tool=True)",
            IdleMiddlewareWarning,
            stacklevel=level_of_user(),
        )


def _only_of_calls_that_never_ran(on: When) -> bool:
    """Whether nothing else is acted upon; of a function one cannot know, and it may."""
    kinds = on if isinstance(on, tuple) else (on,)
    return all(not isinstance(kind, type) or issubclass(kind, _NEVER_RAN) for kind in kinds)


def check_when(name: str, on: object) -> None:
    """Raise unless `on` says which errors a middleware acts upon."""
    kinds = on if isinstance(on, tuple) else (on,)
    if all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
        return
    if isinstance(on, (type, tuple)) or not callable(on) or inspect.iscoroutinefunction(on):
        raise TypeError(f"{name} takes an exception type, a tuple of them or a plain function of an error, got {on!r}")


def check_on_message(name: str, on_message: object) -> None:
    """Raise unless `on_message` may say which messages a middleware acts upon."""
    if on_message is not None and (not callable(on_message) or inspect.iscoroutinefunction(on_message)):
        raise TypeError(f"{name} takes a plain function of a ToolMessage, got {on_message!r}")


def matches(on: When, error: Exception) -> bool:
    """Whether a middleware acts upon an error."""
    if isinstance(on, (type, tuple)):
        return isinstance(error, on)
    return on(error)


def _left() -> float:
    """Seconds that the call has, also for pauses."""
    with waiting():
        return remaining()
