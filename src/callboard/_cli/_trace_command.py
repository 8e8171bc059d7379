"""Command `callboard trace`: show a recording, or convert it."""

from collections.abc import Callable
from pathlib import Path

from callboard._cli._command_options import TraceOptions
from callboard._cli._groups import only
from callboard._cli._page import page
from callboard._cli._perfetto import perfetto
from callboard._cli._recording_files import find_recording
from callboard._cli._run_command import open_console
from callboard._cli._shown_text import CommandError, count, named, one_line, printable
from callboard._cli._waterfall import Waterfall
from callboard.telemetry import Recording, read_recording

LIMIT = 40
"""Default limit of calls that are shown one by one."""


def show_recording(options: TraceOptions) -> int:
    """Show a recording, or write it as a page or for Perfetto; return the exit code."""
    path = find_recording(options.recording, db=options.db, records=options.records)
    recording = _narrowed(_read(path), options)
    if options.html:
        _write(options.html, page, recording)
    if options.perfetto:
        _write(options.perfetto, perfetto, recording)
    if not options.html and not options.perfetto:
        _print(recording, options)
    return 0


def _read(path: Path) -> Recording:
    try:
        return read_recording(path)
    except (ValueError, OSError) as error:
        raise CommandError(printable(str(error))) from error


def _narrowed(recording: Recording, options: TraceOptions) -> Recording:
    tools = sorted({call.tool for call in recording.calls()})
    if options.tool is not None and options.tool not in tools:
        there = one_line(", ".join(map(named, tools)), 400) or "none at all"
        raise CommandError(f"no call of a tool '{named(options.tool)}' is in the recording; it has {there}")
    if options.tool is None and not options.failed:
        return recording
    return only(recording, lambda call: options.tool in (None, call.tool) and (call.failed or not options.failed))


def _write(target: Path, view: Callable[[Recording], str], recording: Recording) -> None:
    if target.exists() and target.samefile(recording.path):
        raise CommandError(f"'{printable(str(target))}' is the recording itself")
    try:
        target.write_text(view(recording), encoding="utf-8")
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
