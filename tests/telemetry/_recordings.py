"""Writer of synthetic recordings in the format of `docs/reference/recording.md`."""

import heapq
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

HEADER = {
    "event": "header",
    "format": "callboard/recording/1",
    "started": "2026-03-01T12:00:00+00:00",
    "callboard": "0.1.0",
    "python": "3.11.7",
    "pid": 4711,
    "captures": False,
}
TOOLS = ("fetch", "query", "archive", "send_mail")
ENDINGS = ("ok",) * 14 + ("error", "timeout", "deadline", "rejected", "cancelled", "interrupted")

Event = dict[str, Any]


def lines(events: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


def write(path: Path, events: Iterable[Mapping[str, Any]]) -> Path:
    path.write_bytes(lines(events))
    return path


def call(number: int, start: float, *, wait: float = 0.0, took: float = 1.0, **fields: Any) -> list[Event]:
    began, ended = start + wait, start + wait + took
    outcome = fields.get("outcome", "ok")
    error = {"error": fields["error"]} if "error" in fields else {}
    begun = {"tool": "fetch", "id": f"c{number}", "batch": 1, "run": 1, **fields}
    begun = {key: value for key, value in begun.items() if key not in ("outcome", "error", "result")}
    result = {"result": fields["result"]} if "result" in fields else {}
    return [
        {"event": "begun", "t": start, "call": number, **begun},
        *([{"event": "queued", "t": start, "call": number}] if wait else []),
        {"event": "started", "t": began, "call": number, "attempt": 1, "waited": wait},
        {"event": "attempt_ended", "t": ended, "call": number, "attempt": 1, **error},
        {"event": "ended", "t": ended, "call": number, "outcome": outcome, "waited": wait, "attempts": 1}
        | error
        | result,
    ]


def run(number: int = 1, start: float = 0.0, end: float | None = None, **fields: Any) -> list[Event]:
    """Return the events of a run with one model request."""
    begun = {"run": number, "agent": "trip", "thread": "oslo", "run_id": f"r{number}", **fields}
    request = {"event": "model_asked", "t": start, "run": number, "model": "gpt"}
    answered = {"event": "model_answered", "t": start + 0.5, "run": number, "calls": 2}
    return [
        {"event": "run_begun", "t": start, **begun},
        request,
        {**answered, "input_tokens": 1200, "output_tokens": 34},
        *([] if end is None else [{"event": "run_ended", "t": end, "run": number, "outcome": "ok"}]),
    ]


def closing_event(events: int, end: float) -> Event:
    return {"event": "closed", "t": end, "events": events, "lost": 0, "bytes": 9000, "overhead": 0.002} | {
        "per_event": 4e-6
    }


def in_order(events: Iterable[Event]) -> list[Event]:
    return sorted(events, key=lambda event: event["t"])


def busy(count: int, *, seed: int = 0, places: int = 8, batch: int = 50, **header: Any) -> list[Event]:
    """Return a recording of an agent whose calls come in batches, queue, retry and fail."""
    rng = random.Random(seed)
    events, now, number = list[Event](), 0.0, 0
    for turn, first in enumerate(range(0, count, batch), 1):
        events += run(turn, now)
        end = now = now + 0.5
        free = [now] * places
        for _ in range(min(batch, count - first)):
            number += 1
            start = now + rng.random() * 0.01
            begin_time = max(start, heapq.heappop(free))
            call_events, end_of_call = _busy_call(rng, number, turn, start, begin_time)
            heapq.heappush(free, end_of_call)
            events, end = events + call_events, max(end, end_of_call)
        events.append({"event": "run_ended", "t": end + 0.1, "run": turn, "outcome": "ok"})
        now = end + 0.2
    return [{**HEADER, **header}, *in_order(events), closing_event(len(events), now)]


def _busy_call(
    rng: random.Random, number: int, turn: int, start: float, begin_time: float
) -> tuple[Sequence[Event], float]:
    outcome, of = rng.choice(ENDINGS), {"call": number}
    tool = rng.choice(TOOLS)
    events = [{"event": "begun", "t": start, **of, "batch": turn, "tool": tool, "id": f"call_{number}", "run": turn}]
    events.append({"event": "queued", "t": start, **of})
    if outcome == "rejected":
        gave_up = {"event": "gave_up", "t": start, **of, "waited": 0, "error": "QueueFullError"}
        ended = {"event": "ended", "t": start, **of, "outcome": outcome, "error": "QueueFullError", "waited": 0}
        return [*events, gave_up, ended], begin_time
    now, attempts, waited = begin_time, rng.choice((1, 1, 1, 1, 2, 3)), begin_time - start
    for attempt in range(1, attempts + 1):
        last = attempt == attempts
        error = {} if last and outcome == "ok" else {"error": "CallTimeoutError" if last else "ConnectError"}
        events.append({"event": "started", "t": now, **of, "attempt": attempt, "waited": waited})
        now += rng.lognormvariate(-2, 0.8)
        events.append({"event": "attempt_ended", "t": now, **of, "attempt": attempt, **error})
        if not last:
            facts = {"attempt": attempt, "pause": 0.05, "error": "ConnectError"}
            events.append({"event": "noted", "t": now, **of, "what": "retry", "facts": facts})
            now, waited = now + 0.05, 0.0
    error = {} if outcome == "ok" else {"error": "CallTimeoutError"}
    ended = {"event": "ended", "t": now, **of, "outcome": outcome, "waited": begin_time - start, "attempts": attempts}
    return [*events, ended | error], now
