"""Reader of recordings: builds runs, calls and asks of actors from the lines of a file.

Any field of a line may be missing or damaged, so each is checked. `docs/reference/recording.md` describes the format.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

from callboard._records._events import ActorPhase, CallPhase
from callboard.telemetry._recording._timeline import (
    ActorChange,
    Closing,
    ModelRequest,
    Note,
    Part,
    RecordedAsk,
    RecordedAttempt,
    RecordedCall,
    RecordedRun,
    Recording,
    Wait,
)
from callboard.telemetry._tracker import CallTracker, TrackedCall

# Fields


Event = Mapping[str, Any]

_FOREVER = 1e12
"""Limit of a plausible time, in seconds. Larger values and NaN count as damage."""


def text(event: Event, name: str) -> str | None:
    """Return a field as text, or `None` if it is missing."""
    value = event.get(name)
    return None if value is None else str(value)


def whole(event: Event, name: str, default: int | None = None) -> int:
    """Return a field as an integer; raise ValueError if it is not one, or is missing without a default."""
    value = event.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name!r} is {value!r}, and should be a whole number")
    return value


def real(event: Event, name: str, default: float | None = 0.0) -> float:
    """Return a field as seconds; raise ValueError if it is no plausible number, or is missing without a default."""
    # `not ... <` and not `>=`: a comparison with NaN is false.
    value = event.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _FOREVER:
        raise ValueError(f"{name!r} is {value!r}, and should be a number of seconds")
    return float(value)


# Asks and life cycles of actors


_LIVES = {f"actor_{phase}": phase for phase in get_args(ActorPhase)}


class RecordedActors:
    """Builder of the asks and the life-cycle changes of actors in one part."""

    def __init__(self) -> None:
        self.asks: dict[int, RecordedAsk] = {}
        """Asks by number, in the order in which they began."""
        self.lives: list[ActorChange] = []

    def take(self, name: str, event: Mapping[str, Any], now: float) -> None:
        """Add an event at time `now`; raise ValueError for a damaged field. Unknown events and asks are ignored."""
        if (what := _LIVES.get(name)) is not None:
            actor, error, key = text(event, "actor") or "", text(event, "error"), text(event, "key")
            self.lives.append(ActorChange(time=now, actor=actor, what=what, error=error, key=key))
        elif name == "ask_begun":
            self._begun(event, now)
        elif (ask := self.asks.get(whole(event, "ask"))) is None:
            return
        elif name == "ask_taken":
            self.asks[ask.number] = replace(ask, taken=now)
        elif name == "ask_ended":
            self.asks[ask.number] = self._ended(ask, event, now)

    def _begun(self, event: Mapping[str, Any], now: float) -> None:
        number = whole(event, "ask")
        self.asks[number] = RecordedAsk(
            number=number,
            actor=text(event, "actor") or "",
            handler=text(event, "handler") or "",
            start=now,
            call=None if event.get("call") is None else whole(event, "call"),
            ahead=whole(event, "ahead", 0),
            key=text(event, "key"),
        )

    def _ended(self, ask: RecordedAsk, event: Mapping[str, Any], now: float) -> RecordedAsk:
        outcome, error = text(event, "outcome"), text(event, "error")
        taken = ask.taken
        if taken is None and (waited := real(event, "waited")) and outcome == "ok":
            taken = min(now, ask.start + waited)  # the line "ask_taken" was lost: infer its time
        return replace(ask, end=now, taken=taken, outcome=outcome, error=error)


# Parts


@dataclass(frozen=True, slots=True)
class _Line:
    """Line about a call, in the form that `CallTracker` reads."""

    phase: CallPhase
    number: int
    tool: str
    time: float
    attempt: int
    fields: Event


class _Call(TrackedCall):
    """Tracked call with its finished waits, finished attempts and notes."""

    __slots__ = ("known", "notes", "over", "waits")

    def __init__(self, begun: _Line, known: RecordedCall) -> None:
        super().__init__(begun)
        self.known = known
        self.waits: list[Wait] = []
        self.over: list[RecordedAttempt] = []
        """Finished attempts."""
        self.notes: list[Note] = []

    def built(self, asks: Sequence[RecordedAsk]) -> RecordedCall:
        waits = [*self.waits, *(Wait(start=since) for _, since in self.waiting)]
        attempts = self.over + [RecordedAttempt(number=number, start=since) for number, since in self.running.items()]
        return replace(
            self.known,
            waited=self.known.waited or sum(wait.end - wait.start for wait in waits if wait.end is not None),
            waits=tuple(sorted(waits, key=lambda wait: wait.start)),
            attempts=tuple(sorted(attempts, key=lambda attempt: (attempt.start, attempt.number))),
            notes=tuple(self.notes),
            asks=tuple(asks),
        )


class _Calls(CallTracker[_Call, _Line]):
    """Tracker that also keeps finished calls."""

    def __init__(self) -> None:
        super().__init__()
        self.all: dict[int, _Call] = {}
        """Calls by number, in the order in which they began."""

    def __call__(self, event: _Line) -> None:
        if event.phase == "noted" and event.number not in self.open and (call := self.all.get(event.number)):
            self.noted(call, event)  # may follow the end: an abandoned thread, for example
        else:
            super().__call__(event)

    def begun(self, event: _Line) -> _Call:
        fields = event.fields
        known = RecordedCall(
            number=event.number,
            batch=whole(fields, "batch", 0),
            tool=event.tool,
            id=text(fields, "id"),
            start=event.time,
            run=None if fields.get("run") is None else whole(fields, "run"),
            resumes=text(fields, "resumes"),
            args=fields.get("args"),
        )
        call = self.all[event.number] = _Call(event, known)
        return call

    def gave_up(self, call: _Call, event: _Line, since: float) -> None:
        call.waits.append(Wait(start=since, end=event.time, error=text(event.fields, "error")))

    def started(self, call: _Call, event: _Line, waited_since: float | None) -> None:
        if waited_since is not None:
            self.gave_up(call, event, waited_since)

    def attempt_ended(self, call: _Call, event: _Line, since: float) -> None:
        error = text(event.fields, "error")
        call.over.append(RecordedAttempt(number=event.attempt, start=since, end=event.time, error=error))

    def noted(self, call: _Call, event: _Line) -> None:
        facts = event.fields.get("facts")
        what = text(event.fields, "what") or ""
        found = facts if isinstance(facts, dict) else {}
        call.notes.append(Note(time=event.time, what=what, facts=found, message=text(event.fields, "message")))

    def ended(self, call: _Call, event: _Line) -> None:
        call.known = replace(
            call.known,
            end=event.time,
            outcome=text(event.fields, "outcome"),
            error=text(event.fields, "error"),
            waited=real(event.fields, "waited"),
            result=event.fields.get("result"),
        )


@dataclass(slots=True)
class _OpenRun:
    """Run under construction with its model requests so far."""

    known: RecordedRun
    requests: list[ModelRequest] = field(default_factory=list[ModelRequest])

    def built(self) -> RecordedRun:
        return replace(self.known, requests=tuple(self.requests))


class PartBuilder:
    """Builder of a `Part`: give it the header, then each event with `take()`, and call `built()` at the end."""

    def __init__(self, header: Event) -> None:
        self._header = header
        self._calls = _Calls()
        self._runs: dict[int, _OpenRun] = {}
        self._actors = RecordedActors()
        self._end = 0.0
        self._lost = 0
        self._closing: Closing | None = None

    def take(self, event: Event) -> None:
        """Add an event; raise ValueError for a damaged field. Events of unknown names, calls or runs are ignored."""
        # Ignoring them is needed: a later version may add events, and a full buffer may have dropped a beginning.
        name = event.get("event")
        if on_part := _OF_PARTS.get(str(name)):
            on_part(self, event)
        elif (phase := _PHASES.get(str(name))) and (call := self._calls.all.get(whole(event, "call"))):
            self._on_call(phase, call, event)
        elif (on_run := _OF_RUNS.get(str(name))) and (run := self._runs.get(whole(event, "run"))):
            on_run(run, event, self._now(event))
        elif str(name).startswith(_OF_ACTORS):
            self._actors.take(str(name), event, self._now(event))

    def built(self) -> Part:
        """Return the part made of all events so far."""
        header, closing = self._header, self._closing
        asks: defaultdict[int | None, list[RecordedAsk]] = defaultdict(list)
        for ask in self._actors.asks.values():
            asks[ask.call].append(ask)
        return Part(
            started=_moment(text(header, "started")),
            end=self._end,
            runs=tuple(run.built() for run in self._runs.values()),
            calls=tuple(call.built(asks[number]) for number, call in self._calls.all.items()),
            asks=tuple(self._actors.asks.values()),
            lives=tuple(self._actors.lives),
            callboard=text(header, "callboard") or "",
            python=text(header, "python") or "",
            pid=whole(header, "pid", 0),
            captures=header.get("captures") is True,
            lost=max(self._lost, closing.lost if closing else 0),
            closing=closing,
        )

    def _now(self, event: Event) -> float:
        now = real(event, "t", None)
        self._end = max(self._end, now)
        return now

    def _call_begun(self, event: Event) -> None:
        number, tool = whole(event, "call"), text(event, "tool") or ""
        self._calls(_Line("begun", number, tool, self._now(event), 0, event))

    def _on_call(self, phase: CallPhase, call: _Call, event: Event) -> None:
        now = self._now(event)
        if phase in ("started", "gave_up") and not call.waiting and (waited := real(event, "waited")):
            since = max(call.began, now - waited)  # the line "queued" was lost: infer its time
            self._calls(_Line("queued", call.number, call.tool, since, 0, event))
        attempt = 0
        if phase == "started":
            attempt = whole(event, "attempt", call.attempt + 1)
        elif phase == "attempt_ended":
            attempt = whole(event, "attempt", 0) or next(iter(call.running), 0)
        self._calls(_Line(phase, call.number, call.tool, now, attempt, event))

    def _run_begun(self, event: Event) -> None:
        number = whole(event, "run")
        begun = RecordedRun(
            number=number,
            start=self._now(event),
            agent=text(event, "agent") or "",
            thread=text(event, "thread"),
            run_id=text(event, "run_id"),
            namespace=text(event, "namespace") or "",
            resumes=text(event, "resumes"),
        )
        self._runs[number] = _OpenRun(begun)

    def _events_lost(self, event: Event) -> None:
        self._lost += whole(event, "events", 0)

    def _closed(self, event: Event) -> None:
        self._closing = Closing(
            events=whole(event, "events", 0),
            lost=whole(event, "lost", 0),
            bytes=whole(event, "bytes", 0),
            overhead=real(event, "overhead"),
            per_event=real(event, "per_event"),
        )


def _model_asked(run: _OpenRun, event: Event, now: float) -> None:
    run.requests.append(ModelRequest(start=now, model=text(event, "model")))


def _model_answered(run: _OpenRun, event: Event, now: float) -> None:
    if run.requests and run.requests[-1].end is None:
        run.requests[-1] = replace(
            run.requests[-1],
            end=now,
            error=text(event, "error"),
            calls=whole(event, "calls", 0),
            input_tokens=_tokens(event, "input_tokens"),
            output_tokens=_tokens(event, "output_tokens"),
        )


def _run_ended(run: _OpenRun, event: Event, now: float) -> None:
    run.known = replace(
        run.known,
        end=now,
        outcome=text(event, "outcome"),
        error=text(event, "error"),
        questions=whole(event, "questions", 0),
    )


_OF_PARTS: Mapping[str, Callable[[PartBuilder, Event], None]] = {
    "begun": PartBuilder._call_begun,
    "run_begun": PartBuilder._run_begun,
    "lost": PartBuilder._events_lost,
    "closed": PartBuilder._closed,
}
_OF_ACTORS = ("ask_", "actor_")
_PHASES: Mapping[str, CallPhase] = {phase: phase for phase in get_args(CallPhase)}
_OF_RUNS: Mapping[str, Callable[[_OpenRun, Event, float], None]] = {
    "model_asked": _model_asked,
    "model_answered": _model_answered,
    "run_ended": _run_ended,
}


def _tokens(event: Event, name: str) -> int | None:
    return None if event.get(name) is None else whole(event, name)


def _moment(written: str | None) -> datetime | None:
    try:
        found = None if written is None else datetime.fromisoformat(written)
    except ValueError:
        return None
    return found.replace(tzinfo=UTC) if found and found.tzinfo is None else found


# Files


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
