"""Progress of a call, told to the client that asked for it."""

import math
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, Protocol

import anyio

_STEP: Final = 1e-6
"""Part of the total by which a number rises that has to rise, though no more is done."""


class Report(NamedTuple):
    """How far a call is, as a client is told it."""

    progress: float
    total: float | None
    message: str | None


class TellsProgress(Protocol):
    """The session of a request: it tells its client, if that has asked for it."""

    async def report_progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Tell the client how far its request is."""
        ...


class Rising:
    """Makes reports of what tools say: the protocol wants numbers that rise, and tools may say none."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._total: float | None = None

    def report(self, message: object, done: object = None, total: object = None) -> Report:
        """Return what the client is told next, with a number that is higher than the last one.

        Args:
            message: a text, or nothing.
            done: how much is done; if that is no more than before, or unknown, the number rises by one, or by a
                millionth of the total.
            total: how much there is to do; what was said last holds.
        """
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
        return max(self._last + step, math.nextafter(self._last, math.inf))  # a step may be too small for a large one


@asynccontextmanager
async def telling(session: TellsProgress) -> AsyncGenerator[Callable[[object], None]]:
    """A block in which progress is told; gives what takes the chunks of a stream, of which some are progress.

    What a slow client has not taken is replaced by what comes later: a call never waits for it.
    """
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
