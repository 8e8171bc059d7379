"""Conversion of a recording to the trace event format of Chrome, which ui.perfetto.dev can show.

Each run is a process of the trace. Its calls are in lanes, so that overlapping calls are in different lanes; each lane
is a thread of the trace.
"""

import heapq
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from callboard._cli._groups import RunOfCalls, about_run, end_of, facts_in_short, runs_of
from callboard._cli._shown_text import as_json, escape_name
from callboard.questions import printable
from callboard.telemetry import ModelRequest, Part, RecordedAsk, RecordedCall, Recording

T = TypeVar("T")


def lanes(items: Iterable[T], span: Callable[[T], tuple[float, float]]) -> list[tuple[int, T]]:
    """Assign items to as few lanes (rows of a chart) as possible, so that items in the same lane never overlap."""
    # Returns pairs of lane (from 0) and item, by start time. `span` returns the start and the end of an item.
    # Every lane is either busy or free, so `len(busy)` is the next new lane exactly when no lane is free.
    placed: list[tuple[int, T]] = []
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    for item in sorted(items, key=span):
        start, end = span(item)
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (end, lane))
        placed.append((lane, item))
    return placed


Event = dict[str, Any]

_MODEL_LANE = 1
_FIRST_LANE = 2


def perfetto(recording: Recording) -> str:
    """Return a recording as JSON in Chrome's trace event format, which Perfetto and Chrome can open."""
    events: list[Event] = []
    process = 0
    first = next((part.started for part in recording.parts if part.started), None)
    for part in recording.parts:
        offset = (part.started - first).total_seconds() if part.started and first else 0.0
        for run in runs_of(part):
            process += 1
            events += _Process(process, part, offset, several=len(recording.parts) > 1).events(run)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, allow_nan=False)


@dataclass(frozen=True, slots=True)
class _Process:
    """Encoder that writes one agent run of a recording as one process of Chrome's trace format."""

    number: int
    part: Part
    offset: float
    """Seconds to add to all times of this part of the recording."""
    several: bool
    """`True` if the recording has several parts."""

    def events(self, run: RunOfCalls) -> Iterator[Event]:
        """Yield the trace events of a run; the name of each lane comes before the events in it."""
        pid = f" (pid {self.part.pid})" if self.several else ""
        yield self._name("process_name", f"{run.title}{pid}", 0)
        yield self._meta("process_labels", {"labels": ", ".join(about_run(run))}, 0)
        yield self._meta("process_sort_index", {"sort_index": self.number}, 0)
        if run.run and run.run.requests:
            yield self._name("thread_name", "model", _MODEL_LANE)
            for request in run.run.requests:
                yield self._request(request)
        calls = [call for batch in run.batches.values() for call in batch]
        named_lanes: set[int] = set()
        for lane, call in lanes(calls, lambda call: (call.start, end_of(call, self.part))):
            if lane not in named_lanes:
                named_lanes.add(lane)
                yield self._name("thread_name", f"calls {lane + 1}", lane + _FIRST_LANE)
            yield from self._call(call, lane + _FIRST_LANE)

    def _call(self, call: RecordedCall, lane: int) -> Iterator[Event]:
        end = end_of(call, self.part)
        yield self._slice(escape_name(call.tool), "call", (call.start, end), lane, self._about(call))
        inner = [(wait.start, wait.end, "queue wait", "queue", wait.error) for wait in call.waits]
        inner += [
            (attempt.start, attempt.end, f"attempt {attempt.number}", "attempt", attempt.error)
            for attempt in call.attempts
        ]
        inner.sort(key=lambda span: span[0])
        starts = [*(span[0] for span in inner[1:]), end]
        for (start, stop, name, category, error), following in zip(inner, starts, strict=True):
            # Slices of a thread may nest, but must not overlap partly: each ends before the next one begins.
            stop_at = min(end, following, end if stop is None else stop)
            facts = {"error": printable(error)} if error else {}
            yield self._slice(name, category, (min(end, max(call.start, start)), stop_at), lane, facts)
        for ask in call.asks:
            yield self._event(
                "i", f"asks {escape_name(ask.actor)}", ask.start, lane, cat="ask", s="t", args=_about(ask)
            )
        for note in call.notes:
            facts = facts_in_short(note)
            yield self._event("i", escape_name(note.what), note.time, lane, cat="note", s="t", args=facts)

    def _about(self, call: RecordedCall) -> dict[str, object]:
        about: dict[str, object] = {
            "outcome": call.outcome or "open",
            "batch": call.batch,
            "waited_ms": round(call.waited * 1000, 3),
            "attempts": len(call.attempts),
        }
        texts = {"id": call.id, "error": call.error, "resumes": call.resumes}
        about |= {name: printable(text) for name, text in texts.items() if text}
        if self.part.captures:
            about |= {name: printable(as_json(value)) for name, value in (("args", call.args), ("result", call.result))}
        return about

    def _request(self, request: ModelRequest) -> Event:
        end = self.part.end if request.end is None else request.end
        facts = {"error": request.error, "input_tokens": request.input_tokens, "output_tokens": request.output_tokens}
        about = {name: printable(str(value)) for name, value in facts.items() if value is not None}
        return self._slice(escape_name(request.model or "model"), "model", (request.start, end), _MODEL_LANE, about)

    def _slice(self, name: str, category: str, span: tuple[float, float], lane: int, args: dict[str, Any]) -> Event:
        start, end = map(self._microseconds, span)
        return self._event("X", name, span[0], lane, cat=category, dur=max(0, end - start), args=args)

    def _event(self, phase: str, name: str, time: float, lane: int, **fields: object) -> Event:
        position = {"ts": self._microseconds(time), "pid": self.number, "tid": lane}
        return {"ph": phase, "name": name, **position, **fields}

    def _name(self, kind: str, name: str, lane: int) -> Event:
        return self._meta(kind, {"name": name}, lane)

    def _meta(self, kind: str, args: dict[str, Any], lane: int) -> Event:
        return {"ph": "M", "name": kind, "pid": self.number, "tid": lane, "args": args}

    def _microseconds(self, time: float) -> int:
        return round((time + self.offset) * 1_000_000)


def _about(ask: RecordedAsk) -> dict[str, object]:
    about: dict[str, object] = {
        "handler": escape_name(ask.handler),
        "ahead": ask.ahead,
        "outcome": escape_name(ask.outcome or "open"),
    }
    if ask.taken is not None:
        about["waited_ms"] = round((ask.taken - ask.start) * 1000, 3)
    return about if ask.error is None else {**about, "error": printable(ask.error)}
