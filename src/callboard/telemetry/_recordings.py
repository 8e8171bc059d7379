"""From the lines of a recording to its records; see `docs/reference/recording.md`."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from callboard.telemetry._fields import Event, text
from callboard.telemetry._part_builder import PartBuilder
from callboard.telemetry._timeline import Part, Recording

FORMAT = "callboard/recording/1"
_FAMILY = "callboard/recording/"


def read_recording(path: str | Path) -> Recording:
    """Read a recording, one line at a time, also one whose process was killed.

    Args:
        path: of the file.

    Raises:
        ValueError: if it is not a recording, is of a format that this version does not know, or is damaged.
        OSError: if it cannot be read.
    """
    path = Path(path)
    with path.open("rb") as file:
        return Recording(path=path, parts=tuple(_parts(path, file)))


def _parts(path: Path, lines: Iterable[bytes]) -> Iterator[Part]:
    building: PartBuilder | None = None
    for number, event in _events(path, lines):
        try:
            if building is None or _begins_part(event):
                _check_header(event)
                if building is not None:
                    yield building.built()
                building = PartBuilder(event)
            else:
                building.take(event)
        except ValueError as error:
            raise _at(path, number, str(error)) from None
    if building is not None:
        yield building.built()


def _events(path: Path, lines: Iterable[bytes]) -> Iterator[tuple[int, Event]]:
    """Whole lines; of those that are no JSON, only what a killed process leaves is passed over."""
    damaged = 0
    for number, line in enumerate(lines, 1):
        event = _parsed(line)
        cut_off = not line.endswith(b"\n")
        if number == 1 and event is None and not (cut_off and line.startswith(b"{")):
            raise _at(path, number, "not a recording: the line is not a JSON object")
        if number == 1 and event is not None:
            yield number, event
            continue
        if cut_off:
            return
        if damaged and not (event and _begins_part(event)):
            raise _at(path, damaged, "damaged: the line is not a JSON object")
        damaged = 0 if event else number
        if event:
            yield number, event


def _parsed(line: bytes) -> Event | None:
    try:
        found: object = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _begins_part(event: Event) -> bool:
    return event.get("event") == "header"


def _check_header(event: Event) -> None:
    name = text(event, "format") or ""
    if not _begins_part(event) or not name.startswith(_FAMILY):
        raise ValueError("not a recording: it does not begin with a header")
    if name != FORMAT:
        raise ValueError(f"the format is {name!r}; this version of callboard reads {FORMAT!r}")


def _at(path: Path, line: int, what: str) -> ValueError:
    return ValueError(f"{path}, line {line}: {what}")
