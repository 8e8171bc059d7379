"""`Retry`: middleware that runs a failed call, or sends a failed model request, again after a pause."""

import math
import random
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

import anyio
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool

from callboard._calls._call import note, waiting
from callboard._langchain._errors import is_control_flow
from callboard._langchain._outputs import CallNext, Output
from callboard._langgraph._vocabulary import ToolCallRequest
from callboard._loops._deadline import remaining
from callboard._records._policies import CallPolicy, check_count, check_factor, check_seconds, check_type
from callboard._util._callers import check_plain_function, is_plain_function, warn_user
from callboard._util._suggestions import suggests_options
from callboard._web._retry_after import retry_after
from callboard.exceptions import (
    ActorGoneError,
    CallRejectedError,
    CircuitOpenError,
    EngineError,
    IdleMiddlewareWarning,
    PoisonousCallError,
)
from callboard.tools._middleware import Middleware, Order, running_call

R = TypeVar("R")
T = TypeVar("T")

When = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool]
"""Option for the errors that a middleware handles: an exception type, a tuple of types, or a predicate of the error."""

ASKS_TOO_LATE = "the question comes after a body has run, and the answer runs that body again"
"""Error text for an approval inside of a middleware that may run a second body, such as `Retry` or `Fallback`."""
_NOT_RUN_ERRORS = (CallRejectedError, CircuitOpenError, ActorGoneError)
"""Errors of calls whose body did not run. Such a call may be retried, whatever its tool does."""
_MAX_SERVER_PAUSE = 86_400.0
"""Maximum pause in seconds that a server may ask for; a longer pause is a mistake, or meant to block the caller."""
_FINAL_ERRORS = (PoisonousCallError,)
"""Errors that are never retried, because the call would be refused again each time."""


@suggests_options(
    max_retries="write attempts=, which counts the first attempt as well",
    retries="write attempts=, which counts the first attempt as well",
    backoff_factor="write factor=",
    initial_delay="write initial=",
    max_delay="write maximum=",
    retry_on="write on=",
)
class Retry(Middleware):
    """Middleware that runs a failed call again, with exponential backoff and full jitter.

    The pause before attempt n + 1 is random, between 0 and `initial * factor ** (n - 1)` seconds, at most `maximum`;
    see "Exponential Backoff And Jitter", AWS Architecture Blog, 2015. A server's `Retry-After` is added; if it is
    more than a day, the error is raised. If the pause would not fit in the call's budget, the last error is raised
    at once. Only calls of tools whose policy says `idempotent=True` are retried, and calls whose body never ran;
    otherwise `Retry` warns once with an `IdleMiddlewareWarning`.

    Args:
        attempts: maximum number of attempts, at least 1.
        initial: upper bound of the first pause, in seconds.
        factor: growth of that upper bound per attempt, at least 1.
        maximum: upper bound of the random part of a pause, in seconds.
        on: errors that are retried: exception types, or a predicate of the error.
        on_message: predicate of a message that is retried like an error; by default no message is.
        any_tool: whether to retry calls of every tool, whatever its policy says.
        rng: source of the jitter; seed it for reproducible pauses.

    Raises:
        ValueError: if a number is out of range.
        TypeError: if an option has the wrong type.
    """

    order = Order("retry", not_around={"retry": "their attempts multiply", "approval": ASKS_TOO_LATE})

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
        check_factor("Retry(factor=...)", factor)
        check_seconds("Retry(initial=...)", initial)
        check_seconds("Retry(maximum=...)", maximum)
        self._failure_rules = FailureRules("Retry", on, on_message)
        # A text such as "no" must not count as true: calls of tools that are not idempotent would run again.
        check_type("Retry(any_tool=...)", any_tool, bool, "True")
        check_type("Retry(rng=...)", rng, random.Random, "random.Random(7)")
        self._max_attempts = attempts
        self._first_pause_limit = initial
        self._pause_growth = factor
        self._max_pause = maximum
        self._any_tool = any_tool
        self._rng = rng or random.Random()  # noqa: S311 (jitter is no secret)
        self._warned_tools: set[str] = set()
        """Names of tools about which a warning was given already."""

    def check_policies(self, policies: Mapping[str, CallPolicy]) -> None:
        """Warn if `Retry` has no effect, because no tool of a node may be retried."""
        on = self._failure_rules.on
        error_types = on if isinstance(on, tuple) else (on,)
        # Errors of calls that never ran need no policy. A predicate counts as such, because it may match others.
        needs_policy = any(
            isinstance(error_type, type) and not issubclass(error_type, _NOT_RUN_ERRORS) for error_type in error_types
        )
        if (
            needs_policy
            and not self._any_tool
            and self._max_attempts > 1
            and not policies.keys() <= self._warned_tools
            and not any(policy.idempotent for policy in policies.values())
        ):
            self._warn_not_retried(policies)

    def effect_on(self, tool: BaseTool, policy: CallPolicy) -> str:
        """Return in a few words what this middleware does with the calls of a tool."""
        if not (self._any_tool or policy.idempotent):
            return "runs a call again only if its body never ran: its policy does not say idempotent=True"
        return f"makes up to {self._max_attempts} attempts"

    async def awrap_tool_call(self, request: ToolCallRequest, call_next: CallNext) -> Output:
        """Run a call until it succeeds, fails with an error that rules out a retry, or has no attempt or time left."""
        for attempt in range(1, self._max_attempts):
            try:
                output = await call_next(request)
            except Exception as error:
                pause = self._choose_pause(attempt, retry_after(error))
                # A pause as long as the rest of the budget would replace the useful error by a timeout.
                if not self._should_retry(error, request) or pause >= _remaining_budget():
                    raise
                note("retry", attempt=attempt, pause=pause, error=type(error).__name__)
            else:
                pause = self._choose_pause(attempt, server_pause=0.0)
                if (
                    not (self._failure_rules.is_failed_output(output) and self._may_run_twice(request))
                    or pause >= _remaining_budget()
                ):
                    return output
                note("retry", attempt=attempt, pause=pause, error="error message")
            with waiting():
                # The pause does not count towards the call's timeout, only towards its budget.
                await anyio.sleep(pause)
        return await call_next(request)

    async def awrap_model_call(self, request: R, call_next: Callable[[R], Awaitable[T]]) -> T:
        """Send a request until it succeeds, fails with an error that rules out a retry, or has no attempt or time left.

        Every failed request is sent again if `on` matches its error: asking a model twice does no harm.
        """
        for attempt in range(1, self._max_attempts):
            try:
                return await call_next(request)
            except Exception as error:
                pause = self._choose_pause(attempt, retry_after(error))
                if is_control_flow(error) or not self._failure_rules.is_failure(error) or pause >= remaining():
                    raise
                note("retry", attempt=attempt, pause=pause, error=type(error).__name__)
            await anyio.sleep(pause)
        return await call_next(request)

    def _choose_pause(self, attempt: int, server_pause: float) -> float:
        if server_pause > _MAX_SERVER_PAUSE:
            return math.inf  # longer than any rest of a budget, so that the error is raised
        try:
            max_random_pause = min(self._max_pause, self._first_pause_limit * self._pause_growth ** (attempt - 1))
        except OverflowError:  # larger than any float, and so than `maximum`
            max_random_pause = self._max_pause if self._first_pause_limit else 0.0
        # Added, because a server tells many callers the same time: they would come back together.
        return server_pause + self._rng.uniform(0.0, max_random_pause)

    def _should_retry(self, error: Exception, request: ToolCallRequest) -> bool:
        if is_control_flow(error) or isinstance(error, _FINAL_ERRORS) or not self._failure_rules.is_failure(error):
            return False
        if isinstance(error, EngineError) and error.ended == "unavailable":
            # The engine never took the call, so the body cannot have begun.
            return True
        return isinstance(error, _NOT_RUN_ERRORS) or self._may_run_twice(request)

    def _may_run_twice(self, request: ToolCallRequest) -> bool:
        call = running_call()
        if self._any_tool or (call is not None and call.policy.idempotent):
            return True
        if (name := request.tool_call["name"]) not in self._warned_tools:
            self._warn_not_retried([name])
        return False

    def _warn_not_retried(self, tools: Collection[str]) -> None:
        self._warned_tools.update(tools)
        names = ", ".join(map(repr, sorted(tools)))
        warn_user(
            f"Retry does not run {names} again after a failure: only a tool that does no harm when it runs twice is "
            "run again. Say so with policies={'...': CallPolicy(idempotent=True)}, or of all tools with "
            "Retry(any_tool=True)",
            IdleMiddlewareWarning,
        )


@dataclass(frozen=True, slots=True)
class FailureRules:
    """Options `on` and `on_message` of a middleware: the errors and the messages that it treats as failures.

    Raises `TypeError` for an option of the wrong type, such as an async predicate.
    """

    middleware_name: str
    on: When
    on_message: Callable[[ToolMessage], bool] | None

    def __post_init__(self) -> None:
        error_types = self.on if isinstance(self.on, tuple) else (self.on,)
        has_types = all(
            isinstance(error_type, type) and issubclass(error_type, Exception) for error_type in error_types
        )
        if not has_types and (isinstance(self.on, (type, tuple)) or not is_plain_function(self.on)):
            expected = "an exception type, a tuple of them or a plain function of an error"
            raise TypeError(f"{self.middleware_name}(on=...) takes {expected}, got {self.on!r}")
        if self.on_message is not None:
            check_plain_function(f"{self.middleware_name}(on_message=...)", self.on_message, "a ToolMessage")

    def is_failure(self, error: Exception) -> bool:
        """Return whether an error is a failure according to the option `on`."""
        return isinstance(error, self.on) if isinstance(self.on, (type, tuple)) else self.on(error)

    def is_failed_output(self, output: object) -> bool:
        """Return whether the output of a call is a message that is a failure according to the option `on_message`."""
        return self.on_message is not None and isinstance(output, ToolMessage) and self.on_message(output)


def _remaining_budget() -> float:
    """Return the seconds left in the time budget of the call; pauses between attempts count towards the budget."""
    # While a call waits, only its budget is running, and not the timeout of an attempt.
    with waiting():
        return remaining()
