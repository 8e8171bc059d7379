"""Tables of calls: open calls, counts of each tool and actor, and the live view of a run."""

import os
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from textwrap import wrap
from typing import Any, NamedTuple, TypeVar, get_args

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from callboard._cli._call_counts import ActorRow, CallCounts, OpenCall, ToolRow, percentile, total
from callboard._cli._grid import Column, call_labels, grid, middle
from callboard._cli._shown_text import duration, escape_name, one_line
from callboard.telemetry import FAILURES, Outcome

# Columns about tools and actors: live, in the result of the demo, and of a recording.

T = TypeVar("T")

_WHOLE_NAME = 16
"""Smallest width of a name, in terminal cells; columns are dropped before a name gets narrower."""
_SHORT_NAME = 8
"""Smallest width of a name in the live view, in terminal cells. In the live view, numbers matter more than names."""


def _number(heading: str, worth: int, number: Callable[[T], int]) -> Column[T]:
    return Column(heading, max(6, len(heading)), worth, lambda row: f"{number(row):,}")


def _time(heading: str, worth: int, seconds: Callable[[T], float | None]) -> Column[T]:
    def cell(row: T) -> str:
        value = seconds(row)
        return "" if value is None else duration(value)

    return Column(heading, max(7, len(heading)), worth, cell)


def _state(name: str, worth: int, heading: str = "") -> Column[ToolRow]:
    return _number(heading or name, worth, lambda row: row.states[name])


_RETRIES: Column[ToolRow] = _number("retries", 7, lambda row: row.retries)
_LONGEST_WAIT: Column[ToolRow] = _time("longest wait", 2, lambda row: row.longest_wait)
_FAILED: Column[ToolRow] = _number("failed", 8, lambda row: row.failed)
_CALLS: Column[ToolRow] = _number("calls", 12, lambda row: row.calls)
_P50: Column[ToolRow] = _time("p50", 4, lambda row: percentile(row.durations, 50))
_P95: Column[ToolRow] = _time("p95", 5, lambda row: percentile(row.durations, 95))

RECORDED_TOOLS: tuple[Column[ToolRow], ...] = (
    _CALLS,
    _FAILED,
    _number("open", 6, lambda row: row.open),
    _P50,
    _P95,
    _time("max", 3, lambda row: percentile(row.durations, 100)),
    _time("total wait", 1, lambda row: row.waited),
    _LONGEST_WAIT,
)
_LIVE_TOOLS = (
    _state("running", 11),
    _state("waiting", 10),
    _state("ok", 9, "done"),
    _FAILED,
    _RETRIES,
    _P50,
    _P95,
    _LONGEST_WAIT,
)

_ACTOR_WAIT: Column[ActorRow] = _time("longest wait", 1, lambda row: row.longest_wait)
_RESTARTS: Column[ActorRow] = _number("restarts", 7, lambda row: row.changes["restarted"])
_EVICTIONS: Column[ActorRow] = _number("evictions", 6, lambda row: row.changes["evicted"])

RECORDED_ACTORS: tuple[Column[ActorRow], ...] = (
    _number("asks", 9, lambda row: row.asks),
    _number("failed", 8, lambda row: row.failed),
    _number("open", 4, lambda row: row.waiting + row.running),
    _time("p50", 3, lambda row: percentile(row.durations, 50)),
    _time("p95", 5, lambda row: percentile(row.durations, 95)),
    _ACTOR_WAIT,
    _number("starts", 2, lambda row: row.changes["started"]),
    _RESTARTS,
    _EVICTIONS,
)
_LIVE_ACTORS: tuple[Column[ActorRow], ...] = (
    _number("running", 11, lambda row: row.running),
    _number("waiting", 10, lambda row: row.waiting),
    _number("done", 9, lambda row: len(row.durations)),
    _number("alive", 8, lambda row: row.alive),
    _RESTARTS,
    _EVICTIONS,
    _ACTOR_WAIT,
)


def rows_table(
    heading: str,
    columns: Sequence[Column[T]],
    rows: Iterable[tuple[str, T]],
    width: int,
    *,
    least: int = _WHOLE_NAME,
    ends_in_total: bool = False,
) -> Table:
    """Return a table of named rows, with one line for each row, at most `width` terminal cells wide."""
    # The middle of a name that is too wide is cut, because names differ at the end.
    named_values = list(rows)

    def names(max_width: int) -> list[str]:
        return [middle(escape_name(name), max_width) for name, _ in named_values]

    values = [row for _, row in named_values]
    return grid(heading, names, columns, values, width=width, least=least, ends_in_total=ends_in_total)


def live_table(rows: Iterable[tuple[str, ToolRow]], width: int) -> Table:
    """Return a table with the numbers of running, waiting, finished and failed calls of each tool."""
    named_rows = list(rows)
    columns = _columns_for(_LIVE_TOOLS, (row for _, row in named_rows))
    return rows_table("tool", columns, named_rows, width, least=_SHORT_NAME)


def _columns_for(columns: Iterable[Column[ToolRow]], rows: Iterable[ToolRow]) -> list[Column[ToolRow]]:
    """Return the columns without that of the retries, unless a tool has retries."""
    has_retries = any(row.retries for row in rows)
    return [column for column in columns if has_retries or column is not _RETRIES]


_ALWAYS_SHOWN: tuple[Outcome, ...] = ("ok", "timeout", "rejected", "error")
"""Outcomes that have a column in the table of results even if no call has the outcome."""


_RESULT_ROWS = 40
"""Largest number of tools with a row each in the table of results: a model may ask for tools of any name."""


def result_table(counts: CallCounts, width: int) -> Table:
    """Return a table with the outcomes and durations of the calls of each tool, and of all tools."""
    all_tools = total(counts.rows.values())
    outcomes = [name for name in get_args(Outcome) if name in _ALWAYS_SHOWN or all_tools.states[name]]
    worths = {name: 9 if name == "ok" else 7 if name in _ALWAYS_SHOWN else 6 for name in outcomes}
    states = [_state(name, worths[name]) for name in outcomes]
    columns = _columns_for((_CALLS, *states, _RETRIES, _P50, _P95, _LONGEST_WAIT), [all_tools])
    rows = [*_at_most(_RESULT_ROWS, counts.rows), ("all", all_tools)]
    return rows_table("tool", columns, rows, width, ends_in_total=True)


# List of open calls: label, age, state, time in this state, and latest note.

_ONE_LINE = 72
"""Smallest width of a terminal, in cells, on which an open call is shown in one line."""
_LABEL = 24
_INDENT = "  "


def lines_of_a_call(width: int) -> int:
    """Return the number of lines in which an open call is shown on a terminal with `width` cells: 1 or 2."""
    return 1 if width >= _ONE_LINE else 2


class EqualCalls(NamedTuple):
    """Several open calls that look the same: the oldest of them, and their number."""

    oldest: OpenCall
    number: int


def equal_calls(calls: Iterable[OpenCall]) -> list[EqualCalls]:
    """Return the calls in groups: those with the same tool, arguments, state and note share a row."""
    groups: dict[Hashable, EqualCalls] = {}
    for call in calls:
        arguments = None if call.arguments is None else tuple(call.arguments.items())
        look = (call.tool, arguments, call.place, _state_of_call(call))
        group = groups.get(look, EqualCalls(call, 0))
        groups[look] = group._replace(number=group.number + 1)
    return list(groups.values())


def open_calls(groups: Sequence[EqualCalls], now: float, width: int, *, heading: str = "") -> Iterator[RenderableType]:
    """Yield rich renderables of groups of open calls: one line for each, or two lines on a narrow terminal."""
    labels = partial(call_labels, [(group.oldest.tool, group.oldest.arguments) for group in groups])
    if lines_of_a_call(width) == 1:
        columns: list[Column[EqualCalls]] = [
            Column("age", 7, 4, lambda group: duration(now - group.oldest.began)),
            Column("is", 7, 3, lambda group: group.oldest.place, justify="left"),
            Column("since", 7, 1, lambda group: duration(now - group.oldest.since)),
            Column("last note", 18, 2, lambda group: _state_of_call(group.oldest), justify="left", grows=True),
        ]
        if any(group.number > 1 for group in groups):
            columns.insert(0, Column("", 6, 5, _number_of_calls, justify="left"))
        yield grid(heading, labels, columns, groups, width=width, least=_LABEL)
        return
    if heading:
        yield Text(heading, style="bold")
    for label, group in zip(labels(width), groups, strict=True):
        call = group.oldest
        facts = (_number_of_calls(group), duration(now - call.began), call.place, _state_of_call(call))
        yield Text(label, no_wrap=True)
        yield Text(_INDENT + one_line(", ".join(filter(None, facts)), width - len(_INDENT)), no_wrap=True, style="dim")


def _number_of_calls(group: EqualCalls) -> str:
    return f"x {group.number:,}" if group.number > 1 else ""


def _state_of_call(call: OpenCall) -> str:
    attempt = f"attempt {call.attempt}" if call.attempt > 1 else ""
    background = "background" if call.is_in_background else ""
    return ", ".join(filter(None, (attempt, background, call.note)))


# Live view of a run: a picture that fits the terminal, or one line of text.

_HEADING = 1
_BLANK = 1
_SLOWEST = 10
"""Largest number of open calls in the live view, slowest first."""
_COMPARED = 200
"""Largest number of open calls that are compared to find equal ones."""
_ACTORS_SHOWN = 5
_ROOM_FOR_ACTORS = 16
"""Smallest height, in lines, at which the live view shows actors."""
_SHORTEST_LABEL = 12


def picture(counts: CallCounts, now: float, width: int, height: int) -> RenderableType:
    """Return the live view of a run: totals, tables of tools and actors, and the slowest calls."""
    return Group(*_sections(counts, now, width, height - 1))  # one line of the terminal stays free


def _sections(counts: CallCounts, now: float, width: int, height: int) -> Iterator[RenderableType]:
    rows = counts.rows_at(now)
    head = [text for sentence in _head(counts, rows, now) for text in wrap(sentence, width)][:height]
    for index, text in enumerate(head):
        yield Text(text, style="" if index else "bold", no_wrap=True, overflow="ellipsis")
    actors = list(counts.actors.rows().items())[:_ACTORS_SHOWN]
    of_actors = _HEADING + len(actors) if actors and height >= _ROOM_FOR_ACTORS else 0
    each = lines_of_a_call(width)
    free_lines = height - len(head) - _HEADING - of_actors
    tools, calls = _shares(free_lines, len(rows), each * min(counts.most_open, _SLOWEST))
    if tools > 0:
        yield live_table(_at_most(tools, rows), width)
    if of_actors:
        yield rows_table("actor", _LIVE_ACTORS, actors, width, least=_SHORT_NAME)
    if calls >= each:
        open_now = equal_calls(counts.slowest(_COMPARED))[: calls // each]
        yield Text()
        yield from open_calls(open_now, now, width, heading="slowest now")
        # Blank lines in place of calls that have ended: a picture of changing height would jump.
        yield from [Text()] * (calls - each * len(open_now))


def _shares(line_count: int, tools: int, calls: int) -> tuple[int, int]:
    """Divide `line_count` lines between the table of tools and the open calls; return the number for each of them."""
    # `tools` and `calls` are the lines that they need. Each gets half of the lines, and lines that the other does not
    # need.
    for_calls = line_count - _BLANK - _HEADING
    of_tools = min(tools, max(line_count // 2, for_calls - calls))
    of_calls = min(calls, for_calls - of_tools)
    return (of_tools, of_calls) if of_calls > 0 else (min(tools, line_count), 0)


def _at_most(number: int, rows: Mapping[str, ToolRow]) -> Sequence[tuple[str, ToolRow]]:
    """Return at most `number` pairs of tool name and row. The last row is the sum of all further tools, if any."""
    named_rows = list(rows.items())
    if len(named_rows) <= number:
        return named_rows
    first_rows, further_rows = named_rows[: number - 1], named_rows[number - 1 :]
    return [*first_rows, (f"{len(further_rows)} more", total(row for _, row in further_rows))]


def _head(counts: CallCounts, rows: Mapping[str, ToolRow], now: float) -> list[str]:
    row = total(rows.values())
    queue = f"at most {counts.longest_queue}, longest {duration(row.longest_wait)}"
    kinds = ", ".join(f"{row.states[kind]} {kind}" for kind in FAILURES if row.states[kind])
    failed = f"{row.failed} failed ({kinds})" if kinds else "0 failed"
    questions = f", {row.states['interrupted']} asked a person" if row.states["interrupted"] else ""
    since, rate = duration(counts.run_time(now)), counts.rate(now)
    return [
        f"{since}: {row.calls - row.open} of {row.calls} calls ended, {rate:.1f} a second",
        f"{row.states['running']} running, {row.states['waiting']} waiting ({queue})",
        f"{row.states['ok']} done, {failed}{questions}",
    ]


def final_picture(counts: CallCounts, now: float, width: int) -> RenderableType:
    """Return the view of a run after its end: the totals, and the outcomes of each tool."""
    head = [text for sentence in _head(counts, counts.rows_at(now), now) for text in wrap(sentence, width)]
    return Group(*(Text(text, no_wrap=True) for text in head), result_table(counts, width))


def line(counts: CallCounts, now: float, width: int) -> str:
    """Return the live view of a run as one line of text, at most `width` terminal cells wide."""
    row = total(counts.rows_at(now).values())
    numbers = {"running": row.states["running"], "waiting": row.states["waiting"], "failed": row.failed}
    numbers["retry" if row.retries == 1 else "retries"] = row.retries
    parts = [f"{row.calls - row.open} of {row.calls} ended"]
    parts += [f"{number} {name}" for name, number in numbers.items() if number]
    text = f"{duration(counts.run_time(now))}: {', '.join(parts)}"
    actors = sorted(counts.actors.rows().items(), key=lambda item: item[1].waiting)
    for name, actor_row in actors[-1:]:
        if actor_row.waiting:
            text += f"; {one_line(escape_name(name), 20)}: {actor_row.waiting} waiting"
    for call in counts.slowest(1):
        ending = f" {duration(now - call.since)}"
        free_width = width - cell_len(text) - len("; ") - len(ending)
        if free_width >= _SHORTEST_LABEL:
            [label] = call_labels([(call.tool, call.arguments)], free_width)
            text += f"; {label}{ending}"
    return one_line(text, width)


# Consoles.

_PLAIN_WIDTH = 160
"""Width of tables, in terminal cells, if the output is not a terminal."""
_WHOLE_LINE = 1000


def open_console(*, stderr: bool = False) -> Console:
    """Return a console for stdout or stderr that prints markup as plain text. The stream may have any encoding."""
    stream: Any = sys.stderr if stderr else sys.stdout
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")
    console = QuietlyClosedConsole(highlight=False, markup=False, emoji=False, stderr=stderr)
    if not console.is_terminal:  # a file or a pipe gets whole lines
        console.soft_wrap = True
        console.width = _WHOLE_LINE
    return console


def text_width(console: Console) -> int:
    """Return the maximum width of tables and texts on a console, in terminal cells."""
    return console.width if console.is_terminal else _PLAIN_WIDTH


def supports_pictures(console: Console) -> bool:
    """Return whether a console can redraw a live view in place."""
    return console.is_terminal and not console.is_dumb_terminal


class QuietlyClosedConsole(Console):
    """Console for a pipe that may close early, as in `callboard demo | head`; the command goes on without output."""

    def on_broken_pipe(self) -> None:
        """Discard all further output. The method of the base class would raise SystemExit in the middle of the run."""
        self.quiet = True
        # The descriptor too: the interpreter flushes stdout at exit, and would fail on the closed pipe.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
