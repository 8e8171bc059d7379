"""Reader of recordings; `docs/reference/recording.md` describes the format."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from callboard.telemetry._fields import Event, text
from callboard.telemetry._recording._part_builder import PartBuilder
from callboard.telemetry._recording._timeline import Part, Recording

FORMAT = "callboard/recording/1"
_FAMILY = "callboard/recording/"


def read_recording(path: str | Path) -> Recording:
    """Read a recording, line by line. The recording of a killed process is read up to its last whole line.

    Args:
        path: file to read.

    Raises:
        ValueError: if the file is not a recording, has a format that this version does not know, or is damaged.
        OSError: if the file cannot be read.
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
    """Yield numbered events. Skip half a line at the end of a part, left by a killed process; else raise ValueError."""
    # A killed process leaves half a line at the end of the file. A recorder that appends ends this line and writes its
    # header next. So a damaged line is an error unless the file ends, or a header follows: judge it on the next line.
    damaged = 0
    for number, line in enumerate(lines, 1):
        event = _parsed(line)
        cut_off = not line.endswith(b"\n")
        if number == 1 and event is None and not (cut_off and line.startswith(b"{")):
            raise _at(path, number, "not a recording: the line is not a JSON object")
        if number == 1 and event is not None:  # a header alone is a recording, even without its line end
            yield number, event
            continue
        if cut_off:  # only the last line can lack its end: a killed process left it
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
