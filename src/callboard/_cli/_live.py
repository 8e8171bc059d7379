"""What goes on in a run, at a glance: a picture no taller than the terminal, or a line."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.text import Text

from callboard._cli._actor_counts import ActorRow
from callboard._cli._call_counts import CallCounts, OpenCall, ToolCounts
from callboard._cli._grid import Column, grid
from callboard._cli._shown_text import named, one_line, seconds
from callboard.telemetry import FAILURES

_HEAD = 3
_HEADING = 1
_BLANK = 1
_SLOWEST = 10
"""How many of the slowest calls are shown."""
_ACTORS_SHOWN = 5
_ROOM_FOR_ACTORS = 16
"""Lines of a picture in which actors are shown."""
_ON_A_LINE = 12
"""How many tools a line tells of."""


def draws(console: Console) -> bool:
    """Whether a picture can take the place of the one before."""
    return console.is_terminal and not console.is_dumb_terminal


@dataclass(frozen=True, slots=True)
class _Tool:
    """The row of one tool, with its name and how long its calls wait."""

    name: str
    row: ToolCounts
    wait: float


@dataclass(frozen=True, slots=True)
class _ShownCall:
    """A call among the slowest, at the moment of the picture."""

    call: OpenCall
    now: float


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

_CALLS: tuple[Column[_ShownCall], ...] = (
    Column("age", 7, 5, lambda one: seconds(one.now - one.call.began)),
    Column("is", 7, 4, lambda one: one.call.place, justify="left"),
    Column("since", 7, 3, lambda one: seconds(one.now - one.call.since)),
    Column("attempt", 7, 2, lambda one: str(one.call.attempt or "")),
    Column("last note", 12, 1, lambda one: one.call.note, justify="left"),
)


def quantile(row: ToolCounts, share: float) -> str:
    """A quantile of the durations, to be read by people; nothing if there is none."""
    value = row.durations.quantile(share)
    return "" if value is None else seconds(value)


def picture(counts: CallCounts, now: float, width: int, height: int) -> RenderableType:
    """The numbers of the whole, of each tool, and the slowest calls.

    Args:
        counts: the calls.
        now: the time on the loop's clock.
        width: of the terminal.
        height: of the terminal; one line of it stays free.
    """
    return Group(*_sections(counts, now, width, height - 1))


def _sections(counts: CallCounts, now: float, width: int, height: int) -> Iterator[RenderableType]:
    waits = counts.longest_waits(now)
    for text in _head(counts.total(), counts, now, max(waits.values(), default=0.0))[:height]:
        yield Text(text, no_wrap=True, overflow="ellipsis")
    actors = list(counts.actors.rows().items())[:_ACTORS_SHOWN]
    of_actors = _HEADING + len(actors) if actors and height >= _ROOM_FOR_ACTORS else 0
    tools, calls = _shares(height - _HEAD - _HEADING - of_actors, len(waits), min(counts.most_open, _SLOWEST))
    if tools > 0:
        yield grid("tool", lambda tool: tool.name, _TOOLS, _tools(counts, waits, tools), width=width)
    if of_actors:
        yield grid("actor", lambda one: one[0], _ACTORS, actors, width=width)
    if calls > 0:
        open_now = [_ShownCall(call, now) for call in counts.slowest(calls)]
        yield Text()
        yield grid("slowest now", lambda one: one.call.text, _CALLS, open_now, width=width)
        # Lines of calls that have ended stay, empty: what stands above would jump.
        yield from [Text()] * (calls - len(open_now))


def _shares(room: int, tools: int, calls: int) -> tuple[int, int]:
    """How many lines there are for tools, and how many for calls; either may have half, and what the other leaves."""
    for_calls = room - _BLANK - _HEADING
    of_tools = min(tools, max(room // 2, for_calls - calls))
    of_calls = min(calls, for_calls - of_tools)
    return (of_tools, of_calls) if of_calls > 0 else (min(tools, room), 0)


def _tools(counts: CallCounts, waits: Mapping[str, float], number: int) -> list[_Tool]:
    """So many lines; those for which there is none are added up in the last."""
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
    """The numbers of the table on one line."""
    waits = counts.longest_waits(now)
    parts = _head(counts.total(), counts, now, max(waits.values(), default=0.0))
    parts += [_tool_line(tool) for tool in _tools(counts, waits, _ON_A_LINE)]
    parts += [_actor_line(name, row) for name, row in counts.actors.rows().items()]
    parts += [
        f"slowest: {one_line(call.text, 60)} {call.place} for {seconds(now - call.since)}" for call in counts.slowest(1)
    ]
    return "; ".join(parts)


def _tool_line(tool: _Tool) -> str:
    cells = ((column.heading, column.cell(tool)) for column in _TOOLS)
    return f"{one_line(named(tool.name), 30)}: {', '.join(f'{heading} {text}' for heading, text in cells if text)}"


def _actor_line(name: str, row: ActorRow) -> str:
    cells = ((column.heading, column.cell((name, row))) for column in _ACTORS)
    return f"{one_line(named(name), 30)}: {', '.join(f'{heading} {text}' for heading, text in cells if text)}"
