"""A pool whose seats bound the time of cells from outside, because a cell can switch off every bound within."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from callboard.engines import Body, EngineError, Seat
from callboard_actors.process import Processes

_TO_ANSWER = 10.0
"""Seconds beyond the timeout and the grace of a cell after which its process is ended from here."""


class BoundedPool(Processes):
    """A pool for interpreters.

    Args:
        most: seconds that a cell may take, its grace included.
        options: as `Processes` has them.
    """

    def __init__(self, most: float, **options: Any) -> None:
        super().__init__(**options)
        self._most = most

    @asynccontextmanager
    async def seat(self, title: str, /) -> AsyncGenerator[Any]:
        """Have a worker for oneself while the block runs; see `Processes.seat`."""
        async with super().seat(title) as seat:
            yield _BoundedSeat(seat, self._most + _TO_ANSWER)


class _BoundedSeat:
    """A seat that ends cells which do not answer."""

    def __init__(self, seat: Seat, most: float) -> None:
        self._seat = seat
        self._most = most

    async def until_ended(self) -> str:
        """Wait until the worker has ended; says how, in words."""
        return await self._seat.until_ended()

    async def run_body(self, body: Body, /) -> Any:
        """Run a body there.

        Raises:
            EngineError: a cell did not answer in time; whoever has the seat leaves it then, which ends the worker.
        """
        if "run_python" not in body.args[1:2]:
            return await self._seat.run_body(body)  # such as the wait for the actor's end
        with anyio.move_on_after(self._most):
            return await self._seat.run_body(body)
        reason = f"its interpreter did not answer within {self._most:g} s, and was ended"
        raise EngineError(body.title, body.call_id, reason, ended="unknown", recurs=True)
