"""A recording on a terminal, or as plain lines: a bar for each call."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from math import ceil, floor

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from callboard._cli._groups import BatchOfCalls, RunOfCalls, about_part, about_run, end_of, notes_in_short, runs_of
from callboard._cli._groups import statement as said_of_itself
from callboard._cli._shown_text import count, named, one_line
from callboard._cli._tally import ActorTally, Tally, actor_tallies, tallies
from callboard.telemetry import Part, RecordedCall, Recording

_PLAIN_WIDTH = 120
_LONGEST_NAME = 24
_WHOLE = 1000
_SHORTEST_BAR = 10
_MOMENT = 1e-9

STYLES = {"ok": "green", "interrupted": "yellow", "cancelled": "magenta", "open": "cyan"}
_FAILED = "red"


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters that bars are made of."""

    waiting: str = "░"
    running: str = "█"
    between: str = "─"


ASCII = Glyphs(waiting=".", running="#", between="-")


@dataclass(frozen=True, slots=True)
class Scale:
    """The scale of a waterfall: which character of a line stands for which time."""

    start: float
    length: float
    width: int

    def columns(self, start: float, end: float) -> range:
        """The columns from one time to another, at least one."""
        if self.length < _MOMENT:
            return range(1)
        first = min(self.width - 1, max(0, floor((start - self.start) / self.length * self.width)))
        last = min(self.width, ceil((end - self.start) / self.length * self.width))
        return range(first, max(first + 1, last))


def bar(call: RecordedCall, end: float, scale: Scale, glyphs: Glyphs) -> str:
    """A call as characters: its queues, its attempts, and what is between them."""
    cells = [" "] * scale.width
    painted = [(call.start, end, glyphs.between)]
    painted += [(wait.start, end if wait.end is None else wait.end, glyphs.waiting) for wait in call.waits]
    painted += [(one.start, end if one.end is None else one.end, glyphs.running) for one in call.attempts]
    for start, stop, glyph in painted:
        for column in scale.columns(start, stop):
            cells[column] = glyph
    return "".join(cells)


class Waterfall:
    """Prints a recording as bars over time, a line for each call.

    Args:
        console: where.
        recording: what.
    """

    def __init__(self, console: Console, recording: Recording) -> None:
        self._console = console
        self._recording = recording
        self._glyphs = Glyphs() if console.encoding.startswith("utf") else ASCII
        width = console.width if console.is_terminal else _PLAIN_WIDTH
        names = [cell_len(one_line(named(call.tool), _LONGEST_NAME)) for call in recording.calls()]
        self._name = max(names, default=4)
        left = max(0, width - self._name - 33)
        self._bar = max(_SHORTEST_BAR, left * 3 // 5)
        self._notes = max(0, left - self._bar) if console.is_terminal else _WHOLE

    def print(self, limit: int | None) -> None:
        """Print runs, batches, and the calls that failed or took longest, in the order of their beginning.

        Args:
            limit: how many calls; `None` for all.
        """
        everything = [(call, part) for part in self._recording.parts for call in part.calls]
        shown = everything if limit is None else nsmallest(limit, everything, key=_least_telling)
        wanted = {id(call) for call, _ in shown}
        for part in self._recording.parts:
            self._line(about_part(part), "bold")
            for run in runs_of(part):
                self._run(run, part, wanted)
        self._more(len(everything) - len(shown))

    def print_slowest(self, limit: int) -> None:
        """Print the calls that took longest, the slowest first, all from the same line."""
        everything = [(call, part) for part in self._recording.parts for call in part.calls]
        shown = nsmallest(limit, everything, key=lambda pair: -_took(*pair))
        longest = _took(*shown[0]) if shown else 0.0
        self._print_lines([self._call(call, part, Scale(call.start, longest, self._bar)) for call, part in shown])
        self._more(len(everything) - len(shown))

    def print_summary(self) -> None:
        """Print a row for each tool, and what the recording says of itself."""
        rows = tallies(self._recording.calls())
        if rows:
            self._console.print()
            self._console.print(_summary(rows))
        if actors := actor_tallies(self._recording.parts):
            self._console.print()
            self._console.print(_summary_of_actors(actors))
        self._console.print()
        for part in self._recording.parts:
            self._line(f"recording: {said_of_itself(part)}", "dim" if part.closing and not part.lost else "yellow")

    def _run(self, run: RunOfCalls, part: Part, wanted: Collection[int]) -> None:
        batches = [(batch, [call for call in batch.calls if id(call) in wanted]) for batch in run.batches]
        batches = [(batch, calls) for batch, calls in batches if calls]
        if run.batches and not batches:
            return
        took = "" if run.run is None or run.run.end is None else _time(run.run.end - run.run.start)
        self._line("  ".join(filter(None, (run.title, took, *about_run(run)))), "bold cyan")
        for batch, calls in batches:
            self._batch(batch, calls, part)

    def _batch(self, batch: BatchOfCalls, calls: Sequence[RecordedCall], part: Part) -> None:
        start = min(call.start for call in batch.calls)
        length = max(end_of(call, part) for call in batch.calls) - start
        told = f"  batch {batch.number}  {count(len(batch.calls), 'call')}  {_time(length)}  from {_time(start)} on"
        self._line(told, "cyan")
        scale = Scale(start, length, self._bar)
        self._print_lines([self._call(call, part, scale) for call in calls])

    def _print_lines(self, lines: Sequence[Text]) -> None:
        if self._console.is_terminal:
            self._console.print(Text("\n").join(lines), soft_wrap=True)
        else:  # many times faster, which is felt where a file takes them all
            self._console.out("\n".join(line.plain for line in lines), highlight=False)

    def _call(self, call: RecordedCall, part: Part, scale: Scale) -> Text:
        outcome = call.outcome or "open"
        style = STYLES.get(outcome, _FAILED)
        line = Text("    ")
        line.append(set_cell_size(one_line(named(call.tool), _LONGEST_NAME), self._name + 2))
        line.append(f"{one_line(outcome, 11):<11} ", style)
        for piece in _pieces(bar(call, end_of(call, part), scale, self._glyphs)):
            line.append(piece, {self._glyphs.waiting: "yellow", self._glyphs.between: "dim"}.get(piece[0], style))
        line.append(f" {_time(_took(call, part)):>8}")
        line.append(f" x{len(call.attempts)}" if len(call.attempts) > 1 else "   ", "bold")
        if told := "  ".join(filter(None, (call.error or "", notes_in_short(call)))):
            line.append(f" {one_line(told, self._notes)}", "dim")
        line.rstrip()
        return line

    def _more(self, hidden: int) -> None:
        if hidden:
            self._line(f"    and {hidden:,} more; --all", "dim")

    def _line(self, text: str, style: str) -> None:
        self._console.print(Text(text, style), soft_wrap=True)


def _least_telling(pair: tuple[RecordedCall, Part]) -> tuple[bool, float]:
    return (not pair[0].failed, -_took(*pair))


def _took(call: RecordedCall, part: Part) -> float:
    return end_of(call, part) - call.start


def _pieces(text: str) -> Iterator[str]:
    """The text, cut where its character changes."""
    start = 0
    for place in range(1, len(text) + 1):
        if place == len(text) or text[place] != text[start]:
            yield text[start:place]
            start = place


def _summary(rows: Sequence[Tally]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("tool")
    headings = ("calls", "failed", "open", "p50", "p95", "max", "queue wait", "longest wait")
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        durations = ["" if value is None else _time(value) for value in (row.p50, row.p95, row.longest)]
        numbers = [f"{number:,}" for number in (row.calls, row.failed, row.open)]
        cells = (*numbers, *durations, _time(row.waited), _time(row.longest_wait))
        table.add_row(one_line(named(row.tool), _LONGEST_NAME), *cells, style="" if row.failed == 0 else "bold")
    return table


def _summary_of_actors(rows: Sequence[ActorTally]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("actor")
    for heading in ("asks", "failed", "open", "p50", "p95", "longest wait", "starts", "restarts", "evictions"):
        table.add_column(heading, justify="right")
    for row in rows:
        durations = ["" if value is None else _time(value) for value in (row.p50, row.p95, row.longest_wait)]
        counts = [f"{number:,}" for number in (row.asks, row.failed, row.open)]
        lives = [f"{number:,}" for number in (row.starts, row.restarts, row.evictions)]
        style = "bold" if row.failed or row.restarts else ""
        table.add_row(one_line(named(row.actor), _LONGEST_NAME), *counts, *durations, *lives, style=style)
    return table


def _time(value: float) -> str:
    """A duration, to be read by people; short ones in milliseconds."""
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    return f"{value:.2f} s" if value < 100 else f"{value:,.0f} s"
