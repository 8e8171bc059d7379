"""Reader of recordings: makes runs, tool calls and asks (actor calls) from the lines of a file.

Any field of a line may be missing or damaged, so each is checked. `docs/reference/recording.md` describes the format.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from callboard._records._events import ActorPhase, AskPhase, CallPhase
from callboard._records._policies import check_path
from callboard.telemetry._recording._timeline import (
    FORMAT,
    ActorChange,
    Closing,
    ModelRequest,
    Note,
    Part,
    ReadMessage,
    RecordedAsk,
    RecordedAttempt,
    RecordedCall,
    RecordedRun,
    Recording,
    Wait,
)
from callboard.telemetry._tracker import CallTracker, TrackedCall

# Lines


Event = Mapping[str, Any]

_FOREVER = 1e12
"""Maximum plausible time, in seconds. Larger values and NaN count as damage."""

Text = Annotated[str | None, BeforeValidator(lambda value: None if value is None else str(value))]
Name = Annotated[str, BeforeValidator(lambda value: "" if value is None else str(value))]
Texts = Annotated[tuple[str, ...], BeforeValidator(lambda value: tuple(map(str, value)) if value else ())]
Seconds = Annotated[float, Field(gt=-_FOREVER, lt=_FOREVER, allow_inf_nan=False)]


class _Line(BaseModel):
    """Line of a recording. Unknown fields are ignored, because a later version may add some."""

    model_config = ConfigDict(strict=True)

    event: str


class _Timed(_Line):
    """Line with a time, and fields that lines about calls, runs, asks and actors share."""

    time: Seconds = Field(alias="t")
    actor: Name = ""
    key: Text = None
    resumes: Text = None
    waited: Seconds = 0.0
    outcome: Text = None
    error: Text = None


class _HeaderLine(_Line):
    started: Text = None
    callboard: Name = ""
    python: Name = ""
    pid: int = 0
    captures: Any = False


class _CallLine(_Timed):
    """Line about a call, with the attributes that a `CallTracker` reads from an event."""

    phase: CallPhase = Field(alias="event")
    number: int = Field(alias="call")
    attempt: int = 0
    tool: Name = ""
    batch: int = 0
    id: Text = None
    run: int | None = None
    args: Any = None
    result: Any = None
    cancelled_by: Text = None
    reason: Text = None
    note: Name = Field("", alias="what")
    facts: Any = None
    message: Text = None


class _RunLine(_Timed):
    run: int
    agent: Name = ""
    thread: Text = None
    run_id: Text = None
    namespace: Name = ""
    questions: int = 0
    question_ids: Texts = ()
    model: Text = None
    calls: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None
    input: Any = None
    command: Any = None
    reply: Any = None
    response: Any = None
    point: Name = ""
    background: Text = None
    message: Any = None


class _AskLine(_Timed):
    ask: int
    handler: Name = ""
    call: int | None = None
    ahead: int = 0


class _CountLine(_Line):
    """Line that counts events: lost events or, in a closing line, all events of one recorder."""

    events: int = 0
    lost: int = 0
    bytes: int = 0
    overhead: Seconds = 0.0
    per_event: Seconds = 0.0


_LINES: Mapping[str, type[_Timed | _CountLine]] = {
    **dict.fromkeys(get_args(CallPhase), _CallLine),
    **dict.fromkeys(("run_begun", "message_read", "model_asked", "model_answered", "run_ended"), _RunLine),
    **{f"ask_{phase}": _AskLine for phase in get_args(AskPhase)},
    **{f"actor_{phase}": _Timed for phase in get_args(ActorPhase)},
    "lost": _CountLine,
    "closed": _CountLine,
}


def _damage(error: ValidationError) -> str:
    """Return an error text about the first damaged field of a line."""
    details = error.errors(include_url=False)[0]
    name = details["loc"][0]
    value = None if details["type"] == "missing" else details["input"]
    kind = "number of seconds" if name in ("t", "waited", "overhead", "per_event") else "whole number"
    return f"{name!r} is {value!r}, and should be a {kind}"


# Parts


class _Call(TrackedCall):
    """Tracked call with its finished waits in queues, finished attempts, and notes (decisions or progress reports)."""

    __slots__ = ("ended_attempts", "notes", "record", "waits")

    def __init__(self, first_event: _CallLine) -> None:
        super().__init__(first_event)
        fields = _fields(first_event, "number", "batch", "tool", "id", "run", "resumes", "args")
        self.record = RecordedCall(start=first_event.time, **fields)
        self.waits: list[Wait] = []
        self.ended_attempts: list[RecordedAttempt] = []
        """Attempts of the call that have ended."""
        self.notes: list[Note] = []

    def build(self, asks: Sequence[RecordedAsk]) -> RecordedCall:
        waits = [*self.waits, *(Wait(start=since) for _, since in self.waiting)]
        attempts = self.ended_attempts + [
            RecordedAttempt(number=number, start=since) for number, since in self.running.items()
        ]
        return replace(
            self.record,
            waited=self.record.waited or sum(wait.end - wait.start for wait in waits if wait.end is not None),
            waits=tuple(sorted(waits, key=lambda wait: wait.start)),
            attempts=tuple(sorted(attempts, key=lambda attempt: (attempt.start, attempt.number))),
            notes=tuple(self.notes),
            asks=tuple(asks),
        )


class _Calls(CallTracker[_Call, _CallLine]):
    """Tracker of calls that also keeps the finished calls."""

    def __init__(self) -> None:
        super().__init__()
        self.all: dict[int, _Call] = {}
        """Calls by number, in the order in which they began."""

    def __call__(self, event: _CallLine) -> None:
        call = self.all.get(event.number)
        if event.phase == "noted" and call is not None and event.number not in self.open:
            self.on_note(call, event)  # may follow the end: an abandoned thread, for example
        else:
            super().__call__(event)

    def on_begin(self, event: _CallLine) -> _Call:
        call = self.all[event.number] = _Call(event)
        return call

    def on_give_up(self, call: _Call, event: _CallLine, since: float) -> None:
        call.waits.append(Wait(start=since, end=event.time, error=event.error))

    def on_start(self, call: _Call, event: _CallLine, waited_since: float | None) -> None:
        if waited_since is not None:
            self.on_give_up(call, event, waited_since)

    def on_attempt_end(self, call: _Call, event: _CallLine, since: float) -> None:
        call.ended_attempts.append(
            RecordedAttempt(number=event.attempt, start=since, end=event.time, error=event.error)
        )

    def on_note(self, call: _Call, event: _CallLine) -> None:
        facts = event.facts if isinstance(event.facts, dict) else {}
        call.notes.append(Note(time=event.time, kind=event.note, facts=facts, message=event.message))

    def on_end(self, call: _Call, event: _CallLine) -> None:
        fields = _fields(event, "outcome", "error", "waited", "result", "cancelled_by", "reason")
        call.record = replace(call.record, end=event.time, **fields)


class _Run:
    """Run of an agent with its requests and messages so far, in lists: copies for each would take quadratic time."""

    __slots__ = ("messages", "record", "requests")

    def __init__(self, first_line: _RunLine) -> None:
        fields = _fields(first_line, "agent", "thread", "run_id", "namespace", "resumes", "input", "command")
        self.record = RecordedRun(number=first_line.run, start=first_line.time, **fields)
        self.requests: list[ModelRequest] = []
        self.messages: list[ReadMessage] = []

    def take(self, entry: _RunLine) -> None:
        """Add a line that follows the beginning of the run."""
        if entry.event == "run_ended":
            fields = _fields(entry, "outcome", "error", "questions", "question_ids")
            self.record = replace(self.record, end=entry.time, **fields)
        elif entry.event == "message_read":
            fields = _fields(entry, "point", "background", "message")
            self.messages.append(ReadMessage(time=entry.time, requests=len(self.requests), **fields))
        elif entry.event == "model_asked":
            self.requests.append(ModelRequest(start=entry.time, model=entry.model))
        elif self.requests and self.requests[-1].end is None:
            fields = _fields(entry, "error", "calls", "input_tokens", "output_tokens", "reply", "response")
            self.requests[-1] = replace(self.requests[-1], end=entry.time, **fields)

    def build(self) -> RecordedRun:
        return replace(self.record, requests=tuple(self.requests), messages=tuple(self.messages))


class PartBuilder:
    """Builder of a `Part` of a recording from its header line: `take()` adds an event, `build()` returns the part."""

    def __init__(self, header: Event) -> None:
        self._header = _HeaderLine.model_validate(header)
        self._calls = _Calls()
        self._runs: dict[int, _Run] = {}
        self._asks: dict[int, RecordedAsk] = {}
        self._lives: list[ActorChange] = []
        self._end = 0.0
        self._lost = 0
        self._closing: Closing | None = None

    def take(self, event: Event) -> None:
        """Add an event; ignore events of an unknown kind or call. Raise ValidationError for a damaged field."""
        # Ignoring them is needed: a later version may add events, and a full buffer may have dropped a beginning.
        line_class = _LINES.get(str(event.get("event")))
        if line_class is None:
            return
        entry = line_class.model_validate(event)
        if isinstance(entry, _Timed):
            self._end = max(self._end, entry.time)
        match entry:
            case _CallLine():
                self._calls(entry)
            case _RunLine(event="run_begun"):
                self._runs[entry.run] = _Run(entry)
            case _RunLine():
                if (run := self._runs.get(entry.run)) is not None:
                    run.take(entry)
            case _AskLine():
                self._take_ask(entry)
            case _Timed():
                phase = entry.event.removeprefix("actor_")
                self._lives.append(ActorChange(time=entry.time, phase=phase, **_fields(entry, "actor", "error", "key")))
            case _CountLine(event="closed"):
                self._closing = Closing(**entry.model_dump(exclude={"event"}))
            case _CountLine():
                self._lost += entry.events

    def build(self) -> Part:
        """Return all events added so far as a `Part`: the section of a recording file that one recorder has written."""
        header, closing = self._header, self._closing
        asks: defaultdict[int | None, list[RecordedAsk]] = defaultdict(list)
        for ask in self._asks.values():
            asks[ask.call].append(ask)
        return Part(
            started=_parse_time(header.started),
            end=self._end,
            runs=tuple(run.build() for run in self._runs.values()),
            calls=tuple(call.build(asks[number]) for number, call in self._calls.all.items()),
            asks=tuple(self._asks.values()),
            lives=tuple(self._lives),
            **_fields(header, "callboard", "python", "pid"),
            captures=header.captures is True,
            lost=max(self._lost, closing.lost if closing else 0),
            closing=closing,
        )

    def _take_ask(self, entry: _AskLine) -> None:
        if entry.event == "ask_begun":
            fields = _fields(entry, "actor", "handler", "call", "ahead", "key")
            self._asks[entry.ask] = RecordedAsk(number=entry.ask, start=entry.time, **fields)
        elif (ask := self._asks.get(entry.ask)) is None:
            return
        elif entry.event == "ask_taken":
            self._asks[entry.ask] = replace(ask, handler_start=entry.time)
        else:
            self._asks[entry.ask] = replace(ask, end=entry.time, **_fields(entry, "outcome", "error"))


def _fields(entry: _Line, *names: str) -> dict[str, Any]:
    """Return the fields of a line that `names` lists, as keyword arguments for a record with fields of these names."""
    return {name: getattr(entry, name) for name in names}


def _parse_time(text: str | None) -> datetime | None:
    try:
        time = None if text is None else datetime.fromisoformat(text)
    except ValueError:
        return None
    return time.replace(tzinfo=UTC) if time and time.tzinfo is None else time


# Files


_FAMILY = "callboard/recording/"


def read_recording(path: str | Path) -> Recording:
    """Read a recording, line by line. The recording of a killed process is read up to its last whole line.

    Args:
        path: file to read.

    Raises:
        ValueError: if the file is not a recording, has a format that this version does not know, or is damaged.
        OSError: if the file cannot be read.
        TypeError: if `path` is no path.
    """
    check_path("read_recording(path=...)", path, "run.jsonl")
    path = Path(path)
    with path.open("rb") as file:
        return Recording(path=path, parts=tuple(_parts(path, file)))


def _parts(path: Path, lines: Iterable[bytes]) -> Iterator[Part]:
    builder: PartBuilder | None = None
    for number, event in _events(path, lines):
        try:
            if builder is None or _is_header(event):
                name = str(event.get("format") or "")
                if not _is_header(event) or not name.startswith(_FAMILY):
                    raise ValueError("not a recording: it does not begin with a header")
                if name != FORMAT:
                    raise ValueError(f"the format is {name!r}; this version of callboard reads {FORMAT!r}")
                if builder is not None:
                    yield builder.build()
                builder = PartBuilder(event)
            else:
                builder.take(event)
        except ValidationError as error:
            raise _error_at(path, number, _damage(error)) from None
        except ValueError as error:
            raise _error_at(path, number, str(error)) from None
    if builder is not None:
        yield builder.build()


def _events(path: Path, lines: Iterable[bytes]) -> Iterator[tuple[int, Event]]:
    """Yield each event with the number of its line; raise ValueError for a damaged line."""
    # A killed process leaves half a line at the end of the file. A recorder that appends ends this line and writes its
    # header next. So a damaged line is an error unless the file ends, or a header follows: judge it on the next line.
    damaged_line = 0
    for number, data in enumerate(lines, 1):
        event: Event | None = None
        with suppress(ValueError, RecursionError):
            value: object = json.loads(data)
            event = value if isinstance(value, dict) else None
        cut_off = not data.endswith(b"\n")
        if number == 1 and event is None and not (cut_off and data.startswith(b"{")):
            raise _error_at(path, number, "not a recording: the line is not a JSON object")
        if number == 1 and event is not None:  # a header alone is a recording, even without its line end
            yield number, event
            continue
        if cut_off:  # only the last line can lack its end: a killed process left it
            return
        if damaged_line and not (event and _is_header(event)):
            raise _error_at(path, damaged_line, "damaged: the line is not a JSON object")
        damaged_line = 0 if event else number
        if event:
            yield number, event


def _is_header(event: Event) -> bool:
    return event.get("event") == "header"


def _error_at(path: Path, number: int, problem: str) -> ValueError:
    return ValueError(f"{path}, line {number}: {problem}")
