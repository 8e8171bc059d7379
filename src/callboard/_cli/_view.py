"""Display of the demo: progress while calls run, and a table of results."""

import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Protocol, get_args

import anyio
from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from callboard._cli._call_counts import CallCounts, ToolCounts
from callboard._cli._grid import Column, grid, names_by
from callboard._cli._live import line as live_line
from callboard._cli._live import picture as live_picture
from callboard._cli._live import quantile, supports_pictures
from callboard.telemetry import Outcome

REFRESH = 1 / 8
"""Seconds between two pictures on a terminal."""
LINE_EVERY = 1.0
"""Seconds between two lines without a terminal."""

_BAR = 20
_WHOLE_NAME = 16
"""Cells that the name of a tool keeps before columns are dropped."""

_Row = tuple[str, ToolCounts]

_ALWAYS_SHOWN: tuple[Outcome, ...] = ("ok", "timeout", "rejected", "error")
"""Outcomes that have a column even if no call has this outcome."""


class QuietlyClosedConsole(Console):
    """Console for a pipe that may close early, as in `callboard demo | head`. The run continues without output."""

    def on_broken_pipe(self) -> None:
        """Discard further output. rich would raise SystemExit in the middle of the run."""
        self.quiet = True
        # The descriptor too: the interpreter flushes stdout at exit, and would fail on the closed pipe.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


class View(Protocol):
    """Display of the counts while calls run."""

    async def keep_up(self) -> None:
        """Show the latest counts repeatedly, until cancelled."""


class LiveView:
    """Picture on a terminal, redrawn in place; `picture` returns it for a time of the event loop."""

    def __init__(self, live: Live, picture: Callable[[float], RenderableType]) -> None:
        self._live = live
        self._picture = picture

    async def keep_up(self) -> None:
        """Redraw the picture eight times a second, until cancelled."""
        while True:
            self._live.update(self._picture(anyio.current_time()), refresh=True)
            await anyio.sleep(REFRESH)


class PlainView:
    """Line per second, for output to a file or a pipe; `line` returns it for a time of the event loop."""

    def __init__(self, counts: CallCounts, console: Console, line: Callable[[CallCounts, float], str]) -> None:
        self._counts = counts
        self._console = console
        self._line = line

    async def keep_up(self) -> None:
        """Print one line per second after the first call, until cancelled."""
        while True:
            if self._counts.most_open:
                self._console.print(self._line(self._counts, anyio.current_time()))
                await anyio.sleep(LINE_EVERY)
            else:
                await anyio.sleep(REFRESH)


@contextmanager
def open_view(counts: CallCounts, console: Console, *, live: bool = False) -> Generator[View]:
    """Yield a view that suits the console: a picture on a terminal, else lines; `live` shows all details."""
    if not supports_pictures(console):
        yield PlainView(counts, console, live_line if live else progress_line)
        return

    def picture(now: float) -> RenderableType:
        return live_picture(counts, now, *console.size) if live else progress_table(counts, console.width)

    # Without rich's refresh thread: the event loop draws, so that no row is read while it is half updated.
    with Live(console=console, auto_refresh=False, transient=True) as drawing:
        yield LiveView(drawing, picture)


def progress_line(counts: CallCounts, now: float) -> str:
    """Return one line with the numbers of ended, running and waiting calls."""
    total = counts.total()
    return (
        f"{counts.elapsed(now):4.1f} s: {total.ended} of {total.asked} ended, "
        f"{total.running} running, {total.waiting} waiting"
    )


def progress_table(counts: CallCounts, width: int) -> Table:
    """Return a table of the ended, failed, running and waiting calls of each tool, `width` cells wide."""
    return grid("tool", names_by(_name), _PROGRESS, counts.rows.items(), width=width, least=_WHOLE_NAME)


def result_table(counts: CallCounts, width: int) -> Table:
    """Return a table of the outcomes and durations of each tool's calls, `width` cells wide."""
    total = counts.total()
    endings = [name for name in get_args(Outcome) if name in _ALWAYS_SHOWN or getattr(total, name)]
    columns = (_CALLS, *map(_ending, endings), *_DURATIONS)
    all_tools = ("all", total)
    return grid("tool", names_by(_name), columns, counts.rows.items(), width=width, least=_WHOLE_NAME, last=all_tools)


def _ending(name: str) -> Column[_Row]:
    worth = 7 if name == "ok" else 5 if name in _ALWAYS_SHOWN else 4
    return Column(name, max(5, len(name)), worth, lambda row: str(getattr(row[1], name)))


def _name(row: _Row) -> str:
    return row[0]


def _seconds(value: float) -> str:
    return f"{value:.2f} s"


def _progress_bar(row: _Row) -> ProgressBar:
    return ProgressBar(total=max(row[1].asked, 1), completed=row[1].ended, width=_BAR)


_PROGRESS: tuple[Column[_Row], ...] = (
    Column("", _BAR, 2, _progress_bar),
    Column("ended", 9, 6, lambda row: f"{row[1].ended}/{row[1].asked}"),
    Column("failed", 6, 5, lambda row: str(row[1].failed)),
    Column("running", 7, 4, lambda row: str(row[1].running)),
    Column("waiting", 7, 3, lambda row: str(row[1].waiting)),
    Column("longest wait", 12, 1, lambda row: _seconds(row[1].longest_wait)),
)

_CALLS: Column[_Row] = Column("calls", 5, 8, lambda row: str(row[1].asked))

_DURATIONS: tuple[Column[_Row], ...] = (
    Column("p50", 7, 2, lambda row: quantile(row[1], 0.5)),
    Column("p95", 7, 3, lambda row: quantile(row[1], 0.95)),
    Column("longest wait", 12, 1, lambda row: _seconds(row[1].longest_wait)),
)
