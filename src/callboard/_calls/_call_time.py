"""How much time a call has: a budget for all of it, and a timeout for the middleware around its attempts."""

import math
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from time import monotonic
from typing import TypeVar

from callboard._calls._context import Surroundings
from callboard._loops._deadline import DEFAULT_GRACE, INSTANT, Timed, TimeLimit
from callboard._loops._protocol import Scope
from callboard._types import CallPolicy, ToolCallLike
from callboard.exceptions import CallTimeoutError, DeadlineExceededError

R = TypeVar("R")


class CallTime(Timed):
    """A call, as far as its time is concerned.

    Args:
        call: the tool call.
        policy: its timeout, budget and grace.
        around: where it runs.
    """

    __slots__ = ("_around", "_away", "_middleware_scope", "attempts", "call", "policy")

    def __init__(self, call: ToolCallLike, policy: CallPolicy, around: Surroundings) -> None:
        super().__init__(around.loop, _end(policy, around), DEFAULT_GRACE if policy.grace is None else policy.grace)
        self.call = call
        self.policy = policy
        self.attempts = 0
        """How many were begun."""
        self._around = around
        self._middleware_scope: Scope | None = None
        self._away = 0

    @property
    def name(self) -> str:
        return str(self.call["name"])

    @property
    def id(self) -> str | None:
        return self.call.get("id")

    async def within_budget(self, run: Callable[[], Awaitable[R]], *, at_least: float = 0.0) -> R:
        """Run what belongs to the call, queue wait and backoff included, until its budget is spent.

        Args:
            run: what belongs to it.
            at_least: seconds that it has even so.

        Raises:
            DeadlineExceededError: if it was.
        """
        budget = self.policy.budget
        if budget is None:
            return await run()
        deadline = max(self._around.now + budget, self.loop.now() + at_least)
        with (limit := TimeLimit(self.loop.scope(deadline, self.grace))):
            return await run()
        raise DeadlineExceededError(self.name, self.id, budget, started=self.attempts > 0) from limit.cause

    def budget_is_spent(self) -> bool:
        """Whether all of the call's own time is over; for who sees that as a cancellation."""
        budget = self.policy.budget
        return budget is not None and self.loop.now() >= self._around.now + budget - INSTANT

    async def within_timeout(self, middleware: Callable[[], Awaitable[R]], *, at_least: float = 0.0) -> R:
        """Run the middleware around a call; at no time may it go on by itself for longer than the timeout.

        Attempts and what is waited for on purpose do not count. Where there is a budget, that bounds the middleware.

        Args:
            middleware: what is around the attempts.
            at_least: seconds that they have even so.

        Raises:
            CallTimeoutError: if they did.
        """
        timeout = self.policy.timeout
        if timeout is None or self.policy.budget is not None:
            return await middleware()
        began, timeout = monotonic(), max(timeout, at_least)
        scope = self._middleware_scope = self.loop.scope(math.inf, self.grace)
        try:
            with (limit := TimeLimit(scope)):
                self._move_deadline(self.loop.now() + timeout)
                return await middleware()
        finally:
            self._move_deadline(math.inf)
            self._middleware_scope = None
        held = self.loop.pulse.held_since(began)
        raise CallTimeoutError(self.name, self.id, timeout, held=held, by_middleware=True) from limit.cause

    @contextmanager
    def outside_timeout(self) -> Generator[None]:
        """Let the middleware wait for as long as it takes, while the block runs."""
        self._away += 1
        self._move_deadline(math.inf)
        try:
            yield
        finally:
            self._away -= 1
            if not self._away and self.policy.timeout is not None:
                self._move_deadline(self.loop.now() + self.policy.timeout)

    def _move_deadline(self, deadline: float) -> None:
        if self._middleware_scope is not None:
            self._middleware_scope.move(deadline)
            self.until = min(_end(self.policy, self._around), deadline)


def _end(policy: CallPolicy, around: Surroundings) -> float:
    """When a call ends in any case; its budget runs from its place in the queue on."""
    return around.until if policy.budget is None else min(around.until, around.now + policy.budget)
