"""Views of the counts of calls: the list of open calls, the live view, progress, and a table of results."""

import os
import sys
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from textwrap import wrap
from typing import Any, get_args

import anyio
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from callboard._cli._call_counts import ActorRow, CallCounts, OpenCall, ToolCounts
from callboard._cli._grid import Column, call_labels, grid, names_by
from callboard._cli._shown_text import named, one_line, seconds
from callboard.telemetry import FAILURES, Outcome

# List of open calls: label, age, state, time in this state, and latest note.

_ONE_LINE = 72
"""Width of the narrowest terminal with one line per call, in cells."""
_LABEL = 24
_INDENT = "  "


@dataclass(frozen=True, slots=True)
class _ShownCall:
    """Open call at the time of the picture."""

    call: OpenCall
    now: float


_OPEN_CALLS: tuple[Column[_ShownCall], ...] = (
    Column("age", 7, 4, lambda one: seconds(one.now - one.call.began)),
    Column("is", 7, 3, lambda one: one.call.place, justify="left"),
    Column("since", 7, 1, lambda one: seconds(one.now - one.call.since)),
    Column("last note", 18, 2, lambda one: _state_of_call(one.call), justify="left", grows=True),
)


def lines_of_a_call(width: int) -> int:
    """Return the number of lines per call on a terminal of that width."""
    return 1 if width >= _ONE_LINE else 2


def open_calls(calls: Sequence[OpenCall], now: float, width: int, *, heading: str = "") -> Iterator[RenderableType]:
    """Yield renderables of the calls: one line per call, or two on a narrow terminal."""
    if lines_of_a_call(width) == 1:
        shown = [_ShownCall(call, now) for call in calls]
        yield grid(heading, _call_labels, _OPEN_CALLS, shown, width=width, least=_LABEL)
        return
    if heading:
        yield Text(heading, style="bold")
    shown = [_ShownCall(call, now) for call in calls]
    for label, one in zip(_call_labels(shown, width), shown, strict=True):
        told = ", ".join(filter(None, (seconds(now - one.call.began), one.call.place, _state_of_call(one.call))))
        yield Text(label, no_wrap=True)
        yield Text(_INDENT + one_line(told, width - len(_INDENT)), no_wrap=True, style="dim")


def _call_labels(items: Sequence[_ShownCall], width: int) -> Sequence[str]:
    return call_labels([(one.call.tool, one.call.arguments) for one in items], width)


def _state_of_call(call: OpenCall) -> str:
    attempt = f"attempt {call.attempt}" if call.attempt > 1 else ""
    return ", ".join(filter(None, (attempt, call.note)))


# Live view of a run: a picture that fits the terminal, or one line of text.

_HEADING = 1
_BLANK = 1
_SLOWEST = 10
"""Limit of shown calls, slowest first."""
_ACTORS_SHOWN = 5
_ROOM_FOR_ACTORS = 16
"""Height of the smallest picture that shows actors, in lines."""
_ON_A_LINE = 12
"""Limit of tools in the one-line view."""


def supports_pictures(console: Console) -> bool:
    """Return whether the console can replace a picture by the next one."""
    return console.is_terminal and not console.is_dumb_terminal


@dataclass(frozen=True, slots=True)
class _Tool:
    """Row of one tool: its name, its counts and the longest wait of its calls."""

    name: str
    row: ToolCounts
    wait: float


_LIVE_TOOLS: tuple[Column[_Tool], ...] = (
    Column("running", 7, 7, lambda tool: str(tool.row.running)),
    Column("waiting", 7, 6, lambda tool: str(tool.row.waiting)),
    Column("done", 6, 5, lambda tool: str(tool.row.ok)),
    Column("failed", 6, 4, lambda tool: str(tool.row.failed)),
    Column("p50", 7, 2, lambda tool: quantile(tool.row, 0.5)),
    Column("p95", 7, 3, lambda tool: quantile(tool.row, 0.95)),
    Column("longest wait", 12, 1, lambda tool: seconds(tool.wait)),
)

_LIVE_ACTORS: tuple[Column[tuple[str, ActorRow]], ...] = (
    Column("running", 7, 7, lambda one: str(one[1].running)),
    Column("waiting", 7, 6, lambda one: str(one[1].waiting)),
    Column("done", 6, 5, lambda one: str(one[1].ended)),
    Column("alive", 6, 4, lambda one: str(one[1].alive)),
    Column("restarts", 8, 3, lambda one: str(one[1].restarts)),
    Column("evicted", 7, 2, lambda one: str(one[1].evictions)),
    Column("longest wait", 12, 1, lambda one: seconds(one[1].longest_wait)),
)


def quantile(row: ToolCounts, share: float) -> str:
    """Return a quantile of the durations as text; empty without durations."""
    value = row.durations.quantile(share)
    return "" if value is None else seconds(value)


def picture(counts: CallCounts, now: float, width: int, height: int) -> RenderableType:
    """Return totals, a table of tools and the slowest calls, one line lower than the terminal.

    `now` is a time on the clock of the event loop.
    """
    return Group(*_sections(counts, now, width, height - 1))


def _sections(counts: CallCounts, now: float, width: int, height: int) -> Iterator[RenderableType]:
    waits = counts.longest_waits(now)
    told = _head(counts.total(), counts, now, max(waits.values(), default=0.0))
    head = [text for one in told for text in wrap(one, width)][:height]
    yield from (Text(text, no_wrap=True, overflow="ellipsis") for text in head)
    actors = list(counts.actors.rows().items())[:_ACTORS_SHOWN]
    of_actors = _HEADING + len(actors) if actors and height >= _ROOM_FOR_ACTORS else 0
    each = lines_of_a_call(width)
    room = height - len(head) - _HEADING - of_actors
    tools, calls = _shares(room, len(waits), each * min(counts.most_open, _SLOWEST))
    if tools > 0:
        yield grid("tool", names_by(lambda tool: tool.name), _LIVE_TOOLS, _tools(counts, waits, tools), width=width)
    if of_actors:
        yield grid("actor", names_by(lambda one: one[0]), _LIVE_ACTORS, actors, width=width)
    if calls >= each:
        open_now = counts.slowest(calls // each)
        yield Text()
        yield from open_calls(open_now, now, width, heading="slowest now")
        # Blank lines in place of calls that have ended: a picture of changing height would jump.
        yield from [Text()] * (calls - each * len(open_now))


def _shares(room: int, tools: int, calls: int) -> tuple[int, int]:
    """Divide `room` lines between tools and calls that want so many; each gets half, and lines left by the other."""
    for_calls = room - _BLANK - _HEADING
    of_tools = min(tools, max(room // 2, for_calls - calls))
    of_calls = min(calls, for_calls - of_tools)
    return (of_tools, of_calls) if of_calls > 0 else (min(tools, room), 0)


def _tools(counts: CallCounts, waits: Mapping[str, float], number: int) -> list[_Tool]:
    """Return at most `number` rows; the last row adds up all tools without a row of their own."""
    known = [_Tool(name, counts.rows[name], wait) for name, wait in waits.items()]
    if len(known) <= number:
        return known
    shown, left = known[: number - 1], known[number - 1 :]
    rest = _Tool(f"{len(left)} more", ToolCounts(), max(tool.wait for tool in left))
    for tool in left:
        rest.row.add(tool.row)
    return [*shown, rest]


def _head(total: ToolCounts, counts: CallCounts, now: float, longest_wait: float) -> list[str]:
    queue = f"at most {counts.longest_queue}, longest {seconds(longest_wait)}"
    return [
        f"{seconds(counts.elapsed(now))}: {total.ended} of {total.asked} calls ended, {counts.rate(now):.1f} a second",
        f"{total.running} running, {total.waiting} waiting ({queue})",
        _endings(total),
    ]


def _endings(row: ToolCounts) -> str:
    kinds = ", ".join(f"{getattr(row, kind)} {kind}" for kind in FAILURES if getattr(row, kind))
    failed = f"{row.failed} failed ({kinds})" if kinds else "0 failed"
    asked = f", {row.interrupted} asked a person" if row.interrupted else ""
    return f"{row.ok} done, {failed}{asked}"


def line(counts: CallCounts, now: float) -> str:
    """Return the numbers of the live view as one line."""
    waits = counts.longest_waits(now)
    parts = _head(counts.total(), counts, now, max(waits.values(), default=0.0))
    parts += [_tool_line(tool) for tool in _tools(counts, waits, _ON_A_LINE)]
    parts += [_actor_line(name, row) for name, row in counts.actors.rows().items()]
    slowest = counts.slowest(1)
    labels = call_labels([(call.tool, call.arguments) for call in slowest], 60)
    parts += [
        f"slowest: {label} {call.place} for {seconds(now - call.since)}"
        for label, call in zip(labels, slowest, strict=True)
    ]
    return "; ".join(parts)


def _tool_line(tool: _Tool) -> str:
    cells = ((column.heading, column.cell(tool)) for column in _LIVE_TOOLS)
    return f"{one_line(named(tool.name), 30)}: {', '.join(f'{heading} {text}' for heading, text in cells if text)}"


def _actor_line(name: str, row: ActorRow) -> str:
    cells = ((column.heading, column.cell((name, row))) for column in _LIVE_ACTORS)
    return f"{one_line(named(name), 30)}: {', '.join(f'{heading} {text}' for heading, text in cells if text)}"


# Views of the demo: progress while calls run, and a table of results.

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


KeepUp = Callable[[], Coroutine[Any, Any, None]]
"""Async function that shows the latest counts repeatedly, until cancelled."""


async def redraw(live: Live, picture: Callable[[float], RenderableType]) -> None:
    """Redraw a picture eight times a second; `picture` returns it for a time of the event loop."""
    while True:
        live.update(picture(anyio.current_time()), refresh=True)
        await anyio.sleep(REFRESH)


async def print_lines(counts: CallCounts, console: Console, line: Callable[[CallCounts, float], str]) -> None:
    """Print one line per second after the first call, for output to a file or a pipe."""
    while True:
        if counts.most_open:
            console.print(line(counts, anyio.current_time()))
            await anyio.sleep(LINE_EVERY)
        else:
            await anyio.sleep(REFRESH)


@contextmanager
def open_view(counts: CallCounts, console: Console, *, live: bool = False) -> Generator[KeepUp]:
    """Yield a view that suits the console: a picture on a terminal, else lines; `live` shows all details."""
    if not supports_pictures(console):
        yield partial(print_lines, counts, console, line if live else progress_line)
        return

    def current(now: float) -> RenderableType:
        return picture(counts, now, *console.size) if live else progress_table(counts, console.width)

    # Without rich's refresh thread: the event loop draws, so that no row is read while it is half updated.
    with Live(console=console, auto_refresh=False, transient=True) as drawing:
        yield partial(redraw, drawing, current)


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
