"""`callboard trace`: a recording, looked at."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from callboard._cli._groups import only
from callboard._cli._page import page
from callboard._cli._perfetto import perfetto
from callboard._cli._recording_files import find_recording
from callboard._cli._run_command import open_console
from callboard._cli._shown_text import CommandError, count, named, one_line, printable
from callboard._cli._waterfall import Waterfall
from callboard.telemetry import Recording, read_recording

LIMIT = 40
"""How many calls are shown one by one, unless more are asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What `callboard trace` was told."""

    recording: str
    db: str | None = None
    records: Path | None = None
    html: Path | None = None
    perfetto: Path | None = None
    tool: str | None = None
    failed: bool = False
    everything: bool = False
    slowest: int | None = None


def trace(wanted: Wanted) -> None:
    """Show a recording, or write it as a page or for Perfetto.

    Raises:
        CommandError: if there is no such recording, or nothing in it that was asked for.
    """
    path = find_recording(wanted.recording, db=wanted.db, records=wanted.records)
    recording = _narrowed(_read(path), wanted)
    if wanted.html:
        _write(wanted.html, page, recording)
    if wanted.perfetto:
        _write(wanted.perfetto, perfetto, recording)
    if not wanted.html and not wanted.perfetto:
        _print(recording, wanted)


def _read(path: Path) -> Recording:
    try:
        return read_recording(path)
    except (ValueError, OSError) as error:
        raise CommandError(printable(str(error))) from error


def _narrowed(recording: Recording, wanted: Wanted) -> Recording:
    tools = sorted({call.tool for call in recording.calls()})
    if wanted.tool is not None and wanted.tool not in tools:
        there = one_line(", ".join(map(named, tools)), 400) or "none at all"
        raise CommandError(f"no call of a tool '{named(wanted.tool)}' is in the recording; it has {there}")
    if wanted.tool is None and not wanted.failed:
        return recording
    return only(recording, lambda call: wanted.tool in (None, call.tool) and (call.failed or not wanted.failed))


def _write(target: Path, view: Callable[[Recording], str], recording: Recording) -> None:
    if target.exists() and target.samefile(recording.path):
        raise CommandError(f"'{printable(str(target))}' is the recording itself")
    try:
        target.write_text(view(recording), encoding="utf-8")
    except OSError as error:
        raise CommandError(printable(str(error))) from error
    print(f"{printable(str(target))}: {count(sum(1 for _ in recording.calls()), 'call')}")


def _print(recording: Recording, wanted: Wanted) -> None:
    console = open_console()
    if not any(part.calls or part.runs for part in recording.parts):
        console.print("no failed calls" if wanted.failed else "nothing is recorded here yet")
    waterfall = Waterfall(console, recording)
    if wanted.slowest:
        waterfall.print_slowest(wanted.slowest)
    else:
        waterfall.print(None if wanted.everything else LIMIT)
    waterfall.print_summary()
