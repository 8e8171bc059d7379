"""Limit for work that is no tool call, such as the requests of a client."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from callboard._calls._limits import NoPlaceError
from callboard._calls._shared_limits import count_start, limiter_of
from callboard._loops._current import current_loop
from callboard._records._policies import Limit, ToolCallLike, _check_type
from callboard.exceptions import CallRejectedError


class LimitGuard:
    """Permits at a limit, for code that acquires them explicitly; may be used from any event loop.

    Args:
        limit: the limit; with `shared`, it holds for all processes.
        name: name of the limited work, equal in all processes that share the limit; also used in errors.

    Raises:
        ValueError: if the shared store does not support the limit.
    """

    def __init__(self, limit: Limit, name: str) -> None:
        _check_type("LimitGuard(limit=...)", limit, Limit, "Limit(concurrency=8)")
        self._limiter = limiter_of(limit, name, f"the queue of {name}")

    @asynccontextmanager
    async def place(self, call: ToolCallLike) -> AsyncGenerator[None]:
        """Hold a permit during the block; wait for it in FIFO order.

        Args:
            call: description of the work in the form of a tool call, for the limit's key and tenant functions.

        Raises:
            CallRejectedError: if the queue is full.
        """
        loop = current_loop()
        while True:
            gate = self._limiter.gate(call, loop)
            try:
                if not gate.try_enter(loop):
                    await gate.enter(loop)
            except NoPlaceError as full:
                raise CallRejectedError(call["name"], call.get("id"), str(full)) from None
            try:
                if await count_start([gate], loop):
                    yield
                    return
                # The shared permit was lost before the block began: acquire another one.
            finally:
                gate.leave()
