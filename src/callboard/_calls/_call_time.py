"""Time limits of a call: a budget for the whole call, and a timeout for the middleware around its attempts."""

import math
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from time import monotonic
from typing import TypeVar

from callboard._calls._context import Surroundings
from callboard._loops._deadline import DEFAULT_GRACE, INSTANT, Timed, TimeLimit
from callboard._loops._protocol import Scope
from callboard._records._policies import CallPolicy, ToolCallLike
from callboard.exceptions import CallTimeoutError, DeadlineExceededError

R = TypeVar("R")


class CallTime(Timed):
    """Tool call with its time limits; base class of `SupervisedCall`."""

    __slots__ = ("_around", "_away", "_middleware_scope", "attempts", "call", "policy")

    def __init__(self, call: ToolCallLike, policy: CallPolicy, around: Surroundings) -> None:
        super().__init__(around.loop, _end(policy, around), DEFAULT_GRACE if policy.grace is None else policy.grace)
        self.call = call
        self.policy = policy
        self.attempts = 0
        """Number of attempts whose bodies have begun."""
        self._around = around
        self._middleware_scope: Scope | None = None
        self._away = 0  # number of open `outside_timeout` blocks: a middleware may run several attempts at once

    @property
    def name(self) -> str:
        return str(self.call["name"])

    @property
    def id(self) -> str | None:
        return self.call.get("id")

    async def within_budget(self, run: Callable[[], Awaitable[R]], *, at_least: float = 0.0) -> R:
        """Run the call, queue wait and backoff included, and raise `DeadlineExceededError` when its budget is spent.

        A call whose budget ran out in the queue still gets `at_least` seconds.
        """
        budget = self.policy.budget
        if budget is None:
            return await run()
        deadline = max(self._around.now + budget, self.loop.now() + at_least)
        with (limit := TimeLimit(self.loop.scope(deadline, self.grace))):
            return await run()
        # Reached only if the scope ended the block.
        raise DeadlineExceededError(self.name, self.id, budget, started=self.attempts > 0) from limit.cause

    def budget_is_spent(self) -> bool:
        """Return whether the budget is spent; for code inside, which sees the end of the budget as a cancellation."""
        budget = self.policy.budget
        # The deadline may fire a fraction of a microsecond early: clocks differ in the last digits.
        return budget is not None and self.loop.now() >= self._around.now + budget - INSTANT

    async def within_timeout(self, middleware: Callable[[], Awaitable[R]], *, at_least: float = 0.0) -> R:
        """Run the middleware around a call; raise `CallTimeoutError` if it runs longer than the timeout by itself.

        Attempts and deliberate waits do not count. The first timeout is at least `at_least` seconds.
        """
        timeout = self.policy.timeout
        if timeout is None or self.policy.budget is not None:  # a budget bounds the middleware already
            return await middleware()
        began, timeout = monotonic(), max(timeout, at_least)
        scope = self._middleware_scope = self.loop.scope(math.inf, self.grace)
        try:
            with (limit := TimeLimit(scope)):
                self._move_deadline(self.loop.now() + timeout)
                return await middleware()
        finally:
            self._move_deadline(math.inf)  # also restores `until`, which `remaining()` reads
            self._middleware_scope = None
        held = self.loop.pulse.held_since(began)
        raise CallTimeoutError(self.name, self.id, timeout, held=held, by_middleware=True) from limit.cause

    @contextmanager
    def outside_timeout(self) -> Generator[None]:
        """Suspend the timeout of the middleware during the block, and restart it afterwards."""
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
    """Return the deadline of a call; its budget includes the time in the queue."""
    return around.until if policy.budget is None else min(around.until, around.now + policy.budget)
