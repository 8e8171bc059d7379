"""Command `callboard trace`: shows a recording, or converts it to an HTML page."""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import nsmallest
from itertools import groupby, pairwise
from math import ceil, floor
from pathlib import Path
from textwrap import TextWrapper

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from callboard._cli._call_counts import actor_rows, tool_rows
from callboard._cli._command_options import TraceOptions
from callboard._cli._grid import Arguments, argument_texts, call_labels, middle
from callboard._cli._groups import (
    RunOfCalls,
    about_part,
    about_run,
    end_of,
    error_beside,
    notes_in_short,
    runs_of,
    statement,
)
from callboard._cli._page import page
from callboard._cli._shown_text import CommandError, count, duration, escape_name, one_line, quote
from callboard._cli._storage import find_recording
from callboard._cli._view import RECORDED_ACTORS, RECORDED_TOOLS, open_console, rows_table, text_width
from callboard.questions import printable
from callboard.telemetry import Part, RecordedAttempt, RecordedCall, Recording, Wait, read_recording

# Waterfall chart of a recording, on a terminal or as plain lines: a bar for each call.

_NARROW = 64
"""Smallest width of the terminal, in cells, at which the label and the bar of a call are in the same line."""
_SHORTEST_NAME = 16
_SHORTEST_BAR = 10
_BESIDE_BAR = 30
"""Width, in terminal cells, of the parts of a line beside label and bar: indent, outcome, duration, attempts."""
_LONGEST_ARGUMENTS = 1000
_MOMENT = 1e-9

STYLES = {"ok": "green", "interrupted": "yellow", "cancelled": "magenta", "open": "cyan"}
_FAILED = "red"


_GLYPHS = {"waiting": "░", "running": "█", "between": "─"}
ASCII = {"waiting": ".", "running": "#", "between": "-"}
"""Characters of a bar on a terminal without Unicode, by the state of the call."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Time scale of a bar: maps times in seconds to columns of the bar."""

    start: float
    length: float
    width: int

    def columns(self, start: float, end: float) -> range:
        """Return the columns of the bar for the time between `start` and `end`; at least one column."""
        if self.length < _MOMENT:
            return range(1)
        first = min(self.width - 1, max(0, floor((start - self.start) / self.length * self.width)))
        last = min(self.width, ceil((end - self.start) / self.length * self.width))
        return range(first, max(first + 1, last))


def bar(call: RecordedCall, end: float, scale: Scale, glyphs: Mapping[str, str]) -> str:
    """Return the bar of a call as text: waits in queues, attempts and gaps between them, one character per column."""
    cells = [" "] * scale.width
    # Later entries overwrite earlier ones: a running attempt hides a wait of a parallel attempt.
    spans = [(call.start, end, glyphs["between"])]
    spans += [(*span, glyphs["waiting"]) for span in _spans(call.waits, end)]
    spans += [(*span, glyphs["running"]) for span in _spans(call.attempts, end)]
    for start, stop, glyph in spans:
        for column in scale.columns(start, stop):
            cells[column] = glyph
    return "".join(cells)


class Waterfall:
    """Printer of a recording as a chart over time, with one line and one bar for each call."""

    def __init__(self, console: Console, recording: Recording) -> None:
        self._console = console
        self._recording = recording
        self._glyphs = _GLYPHS if console.encoding.startswith("utf") else ASCII
        self._width = text_width(console)
        self._narrow = self._width < _NARROW
        if self._narrow:
            self._name, self._bar = self._width - 14, max(_SHORTEST_BAR, self._width - 20)
            return
        self._name = _longest_label(recording, max(_SHORTEST_NAME, self._width // 3))
        self._bar = max(_SHORTEST_BAR, self._width - self._name - _BESIDE_BAR - 2)

    def print(self, limit: int | None) -> None:
        """Print calls by run and batch, in the order of their starts."""
        # With a `limit`, failed calls are selected first, then the calls that worked longest.
        all_calls = [(call, part) for part in self._recording.parts for call in part.calls]
        shown_calls = all_calls
        if limit is not None:
            shown_calls = nsmallest(limit, all_calls, key=lambda pair: (not pair[0].failed, -_work_time(*pair)))
        shown_ids = {id(call) for call, _ in shown_calls}
        for part in self._recording.parts:
            self._line(about_part(part), "bold")
            for run in runs_of(part):
                self._run(run, part, shown_ids)
        self._print_rest(len(all_calls) - len(shown_calls))

    def print_slowest(self, limit: int) -> None:
        """Print the `limit` calls that worked longest, longest first; the bars begin at the first attempts.

        All bars start in the same column and have the same scale.
        """
        all_calls = [(call, part) for part in self._recording.parts for call in part.calls]
        slowest_calls = nsmallest(limit, all_calls, key=lambda pair: -_work_time(*pair))
        starts = [call.attempts[0].start if call.attempts else call.start for call, _ in slowest_calls]
        longest = max((end_of(*pair) - start for pair, start in zip(slowest_calls, starts, strict=True)), default=0.0)
        labels = self._labels(slowest_calls)
        lines = [
            self._call(label, call, part, Scale(start, longest, self._bar), without_wait=True)
            for label, (call, part), start in zip(labels, slowest_calls, starts, strict=True)
        ]
        self._print_lines(lines)
        self._print_rest(len(all_calls) - len(slowest_calls))

    def print_summary(self) -> None:
        """Print a row for each tool and actor, then the number of lost events and the time spent on recording."""
        if tools := tool_rows(self._recording.calls()):
            self._console.print()
            self._console.print(rows_table("tool", RECORDED_TOOLS, tools, self._width))
        if actors := actor_rows(self._recording.parts):
            self._console.print()
            self._console.print(rows_table("actor", RECORDED_ACTORS, actors, self._width))
        self._console.print()
        for part in self._recording.parts:
            self._line(f"recording: {statement(part)}", "dim" if part.closing and not part.lost else "yellow")

    def _run(self, run: RunOfCalls, part: Part, shown_ids: Collection[int]) -> None:
        batches = {number: [call for call in calls if id(call) in shown_ids] for number, calls in run.batches.items()}
        if batches and not any(batches.values()):
            return
        took = "" if run.run is None or run.run.end is None else duration(run.run.end - run.run.start)
        self._line("  ".join(filter(None, (run.title, took, *about_run(run)))), "bold cyan")
        for number, calls in batches.items():
            if calls:
                self._batch(number, run.batches[number], calls, part)

    def _batch(self, number: int, batch: Sequence[RecordedCall], calls: Sequence[RecordedCall], part: Part) -> None:
        start = min(call.start for call in batch)
        length = max(end_of(call, part) for call in batch) - start
        size = count(len(batch), "call")
        self._line(f"  batch {number}  {size}  {duration(length)}  from {duration(start)} on", "cyan")
        scale = Scale(start, length, self._bar)
        labels = self._labels([(call, part) for call in calls])
        self._print_lines([self._call(label, call, part, scale) for label, call in zip(labels, calls, strict=True)])

    def _labels(self, calls: Sequence[tuple[RecordedCall, Part]]) -> list[str]:
        return call_labels([(call.tool, _arguments(call, part)) for call, part in calls], self._name)

    def _print_lines(self, lines: Sequence[Text]) -> None:
        if self._console.is_terminal:
            self._console.print(Text("\n").join(lines), soft_wrap=True)
        else:  # many times faster than styled output, which matters for a file with all calls
            self._console.out("\n".join(text.plain for text in lines), highlight=False)

    def _call(self, label: str, call: RecordedCall, part: Part, scale: Scale, *, without_wait: bool = False) -> Text:
        outcome = call.outcome or "open"
        style = STYLES.get(outcome, _FAILED)
        bar_text = Text.assemble((f"{middle(escape_name(outcome), 11):<11} ", style))
        for glyph, cells in groupby(bar(call, end_of(call, part), scale, self._glyphs)):
            styles = {self._glyphs["waiting"]: "yellow", self._glyphs["between"]: "dim"}
            bar_text.append("".join(cells), styles.get(glyph, style))
        queue_wait = _queue_wait(call, part) if without_wait else 0.0
        duration_text = f" {duration(end_of(call, part) - call.start - queue_wait):>8}"
        attempts = f" x{len(call.attempts)}" if len(call.attempts) > 1 else ""
        row = Text("  " if self._narrow else "    ")
        row.append(set_cell_size(label, self._name + 2))
        if self._narrow:
            row.append(duration_text)
            row.append_text(Text("\n    ").append_text(bar_text).append(attempts, "bold"))
        else:
            row.append_text(bar_text).append(duration_text).append(f"{attempts:<3}", "bold")
        self._add_details(row, label, call, part, f"waited {duration(queue_wait)}" if queue_wait else "")
        row.rstrip()
        return row

    def _add_details(self, row: Text, label: str, call: RecordedCall, part: Part, wait: str) -> None:
        """Add the wait, error, middleware decisions, progress, id and arguments of a call to its printed line."""
        # If the terminal is too narrow for them, they are in lines below it.
        details = [
            wait,
            escape_name(error_beside(call.outcome, call.error)),
            one_line(notes_in_short(call), _LONGEST_ARGUMENTS),
            escape_name(call.id or ""),
        ]
        details_text, arguments_text = "  ".join(filter(None, details)), ""
        args = _arguments(call, part)
        full_label = call_labels([(call.tool, args)], _LONGEST_ARGUMENTS)[0]
        if args and full_label != label:  # the label does not show all arguments
            arguments_text = full_label.removeprefix(escape_name(call.tool))
        full_text = "  ".join(filter(None, (details_text, arguments_text)))
        free_width = self._width - cell_len(row.plain.rsplit("\n", 1)[-1]) - 1
        if not self._console.is_terminal or cell_len(full_text) <= free_width:
            row.append(f" {full_text}", "dim")
            return
        row.rstrip()
        indent = "    " if self._narrow else "      "
        wrapper = TextWrapper(self._width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
        rows_below = wrapper.wrap(full_text)
        if arguments_text and len(rows_below) > 1:
            rows_below = [*wrapper.wrap(details_text), indent + middle(arguments_text, self._width - len(indent))]
        row.append("".join(f"\n{text}" for text in rows_below), "dim")

    def _print_rest(self, hidden: int) -> None:
        if hidden:
            self._line(f"    and {hidden:,} more; --all", "dim")

    def _line(self, text: str, style: str) -> None:
        self._console.print(Text(text, style), soft_wrap=not self._console.is_terminal)


def _longest_label(recording: Recording, max_width: int) -> int:
    """Return the width, in terminal cells, of the widest label of a recording's calls; at most `max_width`."""
    longest = 4
    for part in recording.parts:
        for call in part.calls:
            longest = max(longest, cell_len(call_labels([(call.tool, _arguments(call, part))], max_width)[0]))
            if longest == max_width:
                return max_width
    return longest


def _arguments(call: RecordedCall, part: Part) -> Arguments | None:
    """Return the arguments of a call as texts; `None` unless the recording says that it contains arguments."""
    return argument_texts(call.args) if part.captures else None


def _work_time(call: RecordedCall, part: Part) -> float:
    """Return the duration of a call without its waits in queues."""
    # The last calls of a long queue would otherwise hide the calls whose tool is slow.
    return end_of(call, part) - call.start - _queue_wait(call, part)


def _queue_wait(call: RecordedCall, part: Part) -> float:
    """Return the seconds in which a call waited in a queue and none of its attempts ran."""
    end = end_of(call, part)
    waits, attempts = _spans(call.waits, end), _spans(call.attempts, end)
    if not waits:
        return 0.0
    moments = sorted({moment for span in (*waits, *attempts) for moment in span})
    return sum(
        until - since
        for since, until in pairwise(moments)
        if any(start <= since and until <= stop for start, stop in waits)
        and not any(start <= since and until <= stop for start, stop in attempts)
    )


def _spans(parts: Iterable[Wait | RecordedAttempt], end: float) -> list[tuple[float, float]]:
    """Return the start and end of each wait or attempt; `end` is the end of those that are open."""
    return [(part.start, end if part.end is None else part.end) for part in parts]


# The command.

LIMIT = 40
"""Default number of calls that are printed one by one."""


def show_recording(options: TraceOptions) -> int:
    """Print a recording, or write it as an HTML page; return the exit code."""
    path = find_recording(options.recording, db=options.db, records=options.records)
    try:
        recording = _filter_recording(read_recording(path), options)
    except (ValueError, OSError) as error:
        raise CommandError(printable(str(error))) from error
    if options.html:
        _write(options.html, recording)
    else:
        _print(recording, options)
    return 0


def _filter_recording(recording: Recording, options: TraceOptions) -> Recording:
    """Return a recording with only the calls that the options select, and the runs that made these calls."""
    tools = sorted({call.tool for call in recording.calls()})
    if options.tool is not None and options.tool not in tools:
        tool_names = one_line(", ".join(map(escape_name, tools)), 400) or "none at all"
        raise CommandError(f"no call of a tool {quote(options.tool)} is in the recording; it has {tool_names}")
    if options.tool is None and not options.failed:
        return recording
    parts: list[Part] = []
    for part in recording.parts:
        of_tool = part.calls if options.tool is None else [call for call in part.calls if call.tool == options.tool]
        calls = tuple(call for call in of_tool if call.failed or not options.failed)
        run_numbers = {call.run for call in calls}
        runs = tuple(run for run in part.runs if run.number in run_numbers)
        parts.append(replace(part, calls=calls, runs=runs))
    return replace(recording, parts=tuple(parts))


def _write(target: Path, recording: Recording) -> None:
    if target.exists() and target.samefile(recording.path):
        raise CommandError(f"{quote(target)} is the recording itself")
    try:
        with open(target, "w", encoding="utf-8", opener=partial(os.open, mode=0o600)) as file:
            file.write(page(recording))
    except OSError as error:
        raise CommandError(printable(str(error))) from error
    print(f"{printable(str(target))}: {count(sum(1 for _ in recording.calls()), 'call')}")


def _print(recording: Recording, options: TraceOptions) -> None:
    console = open_console()
    if not any(part.calls or part.runs for part in recording.parts):
        console.print("no failed calls" if options.failed else "nothing is recorded here yet")
    waterfall = Waterfall(console, recording)
    if options.slowest:
        waterfall.print_slowest(options.slowest)
    else:
        waterfall.print(None if options.everything else LIMIT)
    waterfall.print_summary()
