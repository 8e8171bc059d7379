"""What the demo shows: the calls while they run, a table when they have ended."""

import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Protocol, get_args

import anyio
from rich import box
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from callboard._cli._board import Board, Ending, Row

_REFRESH = 1 / 8
_LINE_EVERY = 1.0


class QuietlyClosedConsole(Console):
    """A console whose reader may go away, as in `callboard demo | head`; the run goes on to its orderly end."""

    def on_broken_pipe(self) -> None:
        """Write to nowhere from now on, where rich would raise SystemExit in the middle of the run."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


class View(Protocol):
    """Shows a board while its calls run."""

    async def keep_up(self) -> None:
        """Show the latest numbers again and again, until cancelled."""


class LiveView:
    """A table that is drawn anew on a terminal."""

    def __init__(self, board: Board, live: Live) -> None:
        self._board = board
        self._live = live

    async def keep_up(self) -> None:
        """Draw it eight times a second."""
        while True:
            self._live.update(progress_table(self._board), refresh=True)
            await anyio.sleep(_REFRESH)


class PlainView:
    """A line a second, where output goes to a file or a pipe."""

    def __init__(self, board: Board, console: Console) -> None:
        self._board = board
        self._console = console

    async def keep_up(self) -> None:
        """Print a line a second, once there are calls."""
        since = anyio.current_time()
        while True:
            total = self._board.total()
            if total.asked:
                self._console.print(
                    f"{anyio.current_time() - since:4.1f} s: {total.ended} of {total.asked} ended, "
                    f"{total.running} running, {total.waiting} waiting"
                )
                await anyio.sleep(_LINE_EVERY)
            else:
                since = anyio.current_time()
                await anyio.sleep(_REFRESH)


@contextmanager
def open_view(board: Board, console: Console) -> Generator[View]:
    """The view that fits where the console writes to."""
    if not console.is_terminal:
        yield PlainView(board, console)
        return
    # No refreshing thread of rich's: the event loop draws, so that nobody reads a row that is half written.
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield LiveView(board, live)


def progress_table(board: Board) -> Table:
    """How far the calls of each tool are."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("tool")
    table.add_column("", width=20)
    for name in ("ended", "failed", "running", "waiting", "longest wait"):
        table.add_column(name, justify="right")
    for tool, row in board.rows.items():
        table.add_row(
            tool,
            ProgressBar(total=max(row.asked, 1), completed=row.ended, width=20),
            f"{row.ended}/{row.asked}",
            str(row.failed),
            str(row.running),
            str(row.waiting),
            _seconds(row.longest_wait),
        )
    return table


def result_table(board: Board) -> Table:
    """How the calls of each tool ended."""
    total = board.total()
    endings = [name for name in get_args(Ending) if name not in ("interrupted", "cancelled") or getattr(total, name)]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("tool")
    for heading in ("calls", *endings, "longest wait"):
        table.add_column(heading, justify="right")
    for tool, row in board.rows.items():
        table.add_row(tool, *_cells(row, endings))
    table.add_section()
    table.add_row("all", *_cells(total, endings), style="bold")
    return table


def _cells(row: Row, endings: Sequence[str]) -> list[str]:
    return [str(row.asked), *(str(getattr(row, ending)) for ending in endings), _seconds(row.longest_wait)]


def _seconds(value: float) -> str:
    return f"{value:.2f} s"
