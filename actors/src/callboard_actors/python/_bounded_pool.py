"""Worker pool that limits the time of cells from outside, because a cell can disable every limit inside its process."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from callboard.extend import Body, EngineError, Seat
from callboard_actors.process import Processes

_TO_ANSWER = 10.0
"""Seconds beyond a cell's timeout and grace after which its process is ended from outside."""


class BoundedPool(Processes):
    """Worker pool for interpreters.

    Args:
        most: seconds for a cell, with its grace.
        options: of `Processes`.
    """

    def __init__(self, most: float, **options: Any) -> None:
        super().__init__(**options)
        self._most = most

    @asynccontextmanager
    async def seat(self, title: str, /) -> AsyncGenerator[Any]:
        """Reserve a worker while the block runs; see `Processes.seat`."""
        async with super().seat(title) as seat:
            yield _BoundedSeat(seat, self._most + _TO_ANSWER)


class _BoundedSeat:
    """Reserved worker that gives up cells that do not answer."""

    def __init__(self, seat: Seat, most: float) -> None:
        self._seat = seat
        self._most = most

    async def until_ended(self) -> str:
        """Wait until the worker has ended; return how, as text."""
        return await self._seat.until_ended()

    async def run_body(self, body: Body, /) -> Any:
        """Run a body in the worker; raise EngineError if a cell does not answer in time."""
        if "run_python" not in body.args[1:2]:
            return await self._seat.run_body(body)  # not a cell: for example the wait for the actor's end
        with anyio.move_on_after(self._most):
            return await self._seat.run_body(body)
        # The caller leaves the seat because of this error, and that ends the worker.
        reason = f"its interpreter did not answer within {self._most:g} s, and was ended"
        raise EngineError(body.title, body.call_id, reason, ended="unknown", recurs=True)
