"""One part of a recording, built up from its events."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from callboard.telemetry._timeline import (
    Closing,
    ModelRequest,
    Note,
    Part,
    RecordedAttempt,
    RecordedCall,
    RecordedRun,
    Wait,
)

Event = Mapping[str, Any]

_FOREVER = 1e12
"""Seconds; a time beyond is damage, as is one that is not a number."""


@dataclass(slots=True)
class _Call:
    known: RecordedCall
    waits: list[Wait] = field(default_factory=list[Wait])
    attempts: list[RecordedAttempt] = field(default_factory=list[RecordedAttempt])
    notes: list[Note] = field(default_factory=list[Note])

    def built(self) -> RecordedCall:
        return replace(
            self.known,
            waited=self.known.waited or sum(wait.end - wait.start for wait in self.waits if wait.end is not None),
            waits=tuple(self.waits),
            attempts=tuple(self.attempts),
            notes=tuple(self.notes),
        )

    def leave_queue(self, event: Event, now: float) -> None:
        waited = real(event, "waited")
        if self.waits and self.waits[-1].end is None:
            self.waits[-1] = replace(self.waits[-1], end=now, error=text(event, "error"))
        elif waited:
            self.waits.append(Wait(start=max(self.known.start, now - waited), end=now, error=text(event, "error")))


@dataclass(slots=True)
class _Run:
    known: RecordedRun
    requests: list[ModelRequest] = field(default_factory=list[ModelRequest])

    def built(self) -> RecordedRun:
        return replace(self.known, requests=tuple(self.requests))


class PartBuilder:
    """Takes in the events of one part.

    Args:
        header: the first of them.
    """

    def __init__(self, header: Event) -> None:
        self._header = header
        self._calls: dict[int, _Call] = {}
        self._runs: dict[int, _Run] = {}
        self._end = 0.0
        self._lost = 0
        self._closing: Closing | None = None

    def take(self, event: Event) -> None:
        """Take in an event; those that are not known, or whose beginning was lost, are passed over.

        Raises:
            ValueError: if a field is not what it should be.
        """
        name = event.get("event")
        if on_part := _OF_PARTS.get(str(name)):
            on_part(self, event)
        elif (on_call := _OF_CALLS.get(str(name))) and (call := self._calls.get(whole(event, "call"))):
            on_call(call, event, self._now(event))
        elif (on_run := _OF_RUNS.get(str(name))) and (run := self._runs.get(whole(event, "run"))):
            on_run(run, event, self._now(event))

    def built(self) -> Part:
        """What is known by now."""
        header, closing = self._header, self._closing
        return Part(
            started=_moment(text(header, "started")),
            end=self._end,
            runs=tuple(run.built() for run in self._runs.values()),
            calls=tuple(call.built() for call in self._calls.values()),
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
        number = whole(event, "call")
        begun = RecordedCall(
            number=number,
            batch=whole(event, "batch", 0),
            tool=text(event, "tool") or "",
            id=text(event, "id"),
            start=self._now(event),
            run=None if event.get("run") is None else whole(event, "run"),
            resumes=text(event, "resumes"),
            args=event.get("args"),
        )
        self._calls[number] = _Call(begun)

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
        self._runs[number] = _Run(begun)

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


def _queued(call: _Call, _: Event, now: float) -> None:
    call.waits.append(Wait(start=now))


def _gave_up(call: _Call, event: Event, now: float) -> None:
    call.leave_queue(event, now)


def _started(call: _Call, event: Event, now: float) -> None:
    call.leave_queue(event, now)
    call.attempts.append(RecordedAttempt(number=whole(event, "attempt", len(call.attempts) + 1), start=now))


def _attempt_ended(call: _Call, event: Event, now: float) -> None:
    number = whole(event, "attempt", 0)
    for place, attempt in enumerate(call.attempts):
        if attempt.end is None and number in (attempt.number, 0):
            call.attempts[place] = replace(attempt, end=now, error=text(event, "error"))
            return


def _noted(call: _Call, event: Event, now: float) -> None:
    facts = event.get("facts")
    call.notes.append(Note(time=now, what=text(event, "what") or "", facts=facts if isinstance(facts, dict) else {}))


def _ended(call: _Call, event: Event, now: float) -> None:
    call.known = replace(
        call.known,
        end=now,
        outcome=text(event, "outcome"),
        error=text(event, "error"),
        waited=real(event, "waited"),
        result=event.get("result"),
    )


def _model_asked(run: _Run, event: Event, now: float) -> None:
    run.requests.append(ModelRequest(start=now, model=text(event, "model")))


def _model_answered(run: _Run, event: Event, now: float) -> None:
    if run.requests and run.requests[-1].end is None:
        run.requests[-1] = replace(
            run.requests[-1],
            end=now,
            error=text(event, "error"),
            calls=whole(event, "calls", 0),
            input_tokens=_tokens(event, "input_tokens"),
            output_tokens=_tokens(event, "output_tokens"),
        )


def _run_ended(run: _Run, event: Event, now: float) -> None:
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
_OF_CALLS: Mapping[str, Callable[[_Call, Event, float], None]] = {
    "queued": _queued,
    "gave_up": _gave_up,
    "started": _started,
    "attempt_ended": _attempt_ended,
    "noted": _noted,
    "ended": _ended,
}
_OF_RUNS: Mapping[str, Callable[[_Run, Event, float], None]] = {
    "model_asked": _model_asked,
    "model_answered": _model_answered,
    "run_ended": _run_ended,
}


def text(event: Event, name: str) -> str | None:
    """A field that is text, or nothing."""
    value = event.get(name)
    return None if value is None else str(value)


def whole(event: Event, name: str, default: int | None = None) -> int:
    """A field that is a whole number.

    Raises:
        ValueError: if it is none, or missing and there is no default.
    """
    value = event.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name!r} is {value!r}, and should be a whole number")
    return value


def real(event: Event, name: str, default: float | None = 0.0) -> float:
    """A field that is a number of seconds.

    Raises:
        ValueError: as above, or if there are no such seconds.
    """
    value = event.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _FOREVER:
        raise ValueError(f"{name!r} is {value!r}, and should be a number of seconds")
    return float(value)


def _tokens(event: Event, name: str) -> int | None:
    return None if event.get(name) is None else whole(event, name)


def _moment(written: str | None) -> datetime | None:
    try:
        found = None if written is None else datetime.fromisoformat(written)
    except ValueError:
        return None
    return found.replace(tzinfo=UTC) if found and found.tzinfo is None else found
