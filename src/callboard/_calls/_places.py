"""A limit for work that is no tool call, such as the requests of a client: its places are taken by hand."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from callboard._calls._limits import NoPlaceError
from callboard._calls._shared_limits import count_start, limiter_of
from callboard._loops._current import current_loop
from callboard._types import Limit, ToolCallLike, _check_type
from callboard.exceptions import CallRejectedError


class Places:
    """The places at a limit, for who takes them by himself; from any event loop.

    Args:
        limit: how many there are, and for what.
        name: of what is limited, in all processes alike; errors have it, too.

    Raises:
        ValueError: if the limit cannot be kept where it is to be.
    """

    def __init__(self, limit: Limit, name: str) -> None:
        _check_type("Places(limit=...)", limit, Limit, "Limit(concurrency=8)")
        self._limiter = limiter_of(limit, name, f"the queue of {name}")

    @asynccontextmanager
    async def place(self, call: ToolCallLike) -> AsyncGenerator[None]:
        """Have a place for the block; wait for it after all who came before.

        Args:
            call: what it is for, in the form of a tool call; the limit's key and tenant are asked of it.

        Raises:
            CallRejectedError: the queue is full.
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
            finally:
                gate.leave()
