"""Live view of a run: a picture that fits the terminal, or one line of text."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from textwrap import wrap

from rich.console import Console, Group, RenderableType
from rich.text import Text

from callboard._cli._call_counts import ActorRow, CallCounts, ToolCounts
from callboard._cli._grid import Column, grid, names_by
from callboard._cli._labels import call_labels
from callboard._cli._open_calls import lines_of_a_call, open_calls
from callboard._cli._shown_text import named, one_line, seconds
from callboard.telemetry import FAILURES

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


_TOOLS: tuple[Column[_Tool], ...] = (
    Column("running", 7, 7, lambda tool: str(tool.row.running)),
    Column("waiting", 7, 6, lambda tool: str(tool.row.waiting)),
    Column("done", 6, 5, lambda tool: str(tool.row.ok)),
    Column("failed", 6, 4, lambda tool: str(tool.row.failed)),
    Column("p50", 7, 2, lambda tool: quantile(tool.row, 0.5)),
    Column("p95", 7, 3, lambda tool: quantile(tool.row, 0.95)),
    Column("longest wait", 12, 1, lambda tool: seconds(tool.wait)),
)

_ACTORS: tuple[Column[tuple[str, ActorRow]], ...] = (
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
        yield grid("tool", names_by(lambda tool: tool.name), _TOOLS, _tools(counts, waits, tools), width=width)
    if of_actors:
        yield grid("actor", names_by(lambda one: one[0]), _ACTORS, actors, width=width)
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
    cells = ((column.heading, column.cell(tool)) for column in _TOOLS)
    return f"{one_line(named(tool.name), 30)}: {', '.join(f'{heading} {text}' for heading, text in cells if text)}"


def _actor_line(name: str, row: ActorRow) -> str:
    cells = ((column.heading, column.cell((name, row))) for column in _ACTORS)
    return f"{one_line(named(name), 30)}: {', '.join(f'{heading} {text}' for heading, text in cells if text)}"
