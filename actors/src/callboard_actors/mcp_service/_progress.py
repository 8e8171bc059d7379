"""Progress notifications of a call for its client."""

import math
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, Protocol

import anyio

_STEP: Final = 1e-6
"""Smallest step of a progress number, as a fraction of the total."""


class Report(NamedTuple):
    """Progress of a call, as sent to the client."""

    progress: float
    total: float | None
    message: str | None


class TellsProgress(Protocol):
    """Session of a request; it sends progress only if the client asked for it."""

    async def report_progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Send the progress of the request to the client."""
        ...


class Rising:
    """Source of reports with strictly rising numbers, as the protocol requires. Tools may report no numbers."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._total: float | None = None

    def report(self, message: object, done: object = None, total: object = None) -> Report:
        """Return the next report; its number is higher than the last one."""
        # If `done` is missing or did not rise, the number rises by one, or by a millionth of the last known total.
        if isinstance(total, (int, float)):
            self._total = float(total)
        self._last = self._next(done)
        return Report(self._last, self._total, message if isinstance(message, str) and message else None)

    def _next(self, done: object) -> float:
        if isinstance(done, (int, float)) and done >= 0 and (self._last is None or done > self._last):
            return float(done)
        if self._last is None:
            return 0.0
        step = 1.0 if self._total is None else _STEP * max(self._total, 1.0)
        return max(self._last + step, math.nextafter(self._last, math.inf))  # a small step may vanish by rounding


@asynccontextmanager
async def telling(session: TellsProgress) -> AsyncGenerator[Callable[[object], None]]:
    """Send progress during the block; yield a function that takes stream chunks, and ignores other chunks."""
    # `waiting` holds at most one report, the newest: a call never waits for a slow client.
    rising = Rising()
    waiting: list[Report] = []
    due = anyio.Event()
    is_over = False

    def take(chunk: object) -> None:
        if isinstance(chunk, dict) and chunk.get("type") == "progress":
            waiting[:] = [rising.report(chunk.get("message"), chunk.get("done"), chunk.get("total"))]
            due.set()

    async def tell() -> None:
        nonlocal due
        while not is_over:
            await due.wait()
            due = anyio.Event()
            while waiting:
                await session.report_progress(*waiting.pop())

    async with anyio.create_task_group() as group:
        group.start_soon(tell)
        yield take
        is_over = True
        due.set()
