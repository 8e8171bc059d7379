"""Spans, metrics, logs, recordings and the live view follow calls in one way, with the same words for outcomes."""

import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from contextvars import copy_context
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import callboard.telemetry._names as names
from callboard import CallEvent, observe
from callboard._calls._observers import current_observers
from callboard._cli._call_counts import CallCounts, total
from callboard.telemetry import CallTracker, Logs, RecordingWriter, TrackedCall, read_recording

from ._events import Script, event, play_calls, scripts
from ._measured import Seen as Measured
from ._traces import Traces

SAID = {end: f"call {end}" for end in ("rejected", "cancelled", "interrupted")}
SAID |= {"ok": "call finished", "error": "call failed"}
SAID |= {"timeout": "call timed out", "deadline": "call ran out of budget"}


class Seen:
    """Outputs of all five readers for some events."""

    def __init__(self, events: Sequence[CallEvent], file: Path) -> None:
        self.traces, self.counts = Traces(), CallCounts([])
        self._measured = Measured()
        self.lines: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: self.lines.append(record.getMessage())  # type: ignore[method-assign]
        logger = logging.getLogger("callboard.calls")
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        with ExitStack() as stack:
            stack.callback(logger.removeHandler, handler)
            stack.callback(logger.setLevel, logging.NOTSET)
            for reader in (self.traces, self._measured.metrics, Logs()):
                stack.enter_context(reader.on())
            stack.enter_context(RecordingWriter(file))
            stack.enter_context(observe(self.counts))
            copy_context().run(tell, events)  # spans that end out of order leave theirs behind
        self.recorded = list(read_recording(file).calls())

    def total(self, name: str) -> Any:
        metric = self._measured.all().get(name)
        return 0 if metric is None else sum(point.value for point in metric.data.data_points)


def tell(events: Sequence[CallEvent]) -> None:
    for call_event in events:
        for observer in current_observers().calls:
            observer(call_event)


@settings(max_examples=settings().max_examples // 2)
@given(scripts(), st.randoms(use_true_random=False))
def test_in_whatever_order_things_happen_all_readers_tell_the_same(
    tmp_path_factory: pytest.TempPathFactory, calls: list[Script], random: Random
) -> None:
    events = list(play_calls(calls, random))
    outputs = Seen(events, tmp_path_factory.mktemp("told") / "calls.jsonl")

    ends = Counter(call.end for call in calls)
    spans = [span.attributes or {} for span in outputs.traces.all("execute_tool")]
    attempts = sum(call_event.phase == "started" for call_event in events)
    assert Counter(span[names.OUTCOME] for span in spans) == ends
    assert Counter(call.outcome for call in outputs.recorded) == ends
    assert +total(outputs.counts.rows.values()).states == ends
    line_counts = Counter(line for line in outputs.lines if line in SAID.values())
    assert line_counts == Counter({SAID[end]: count for end, count in ends.items()})
    assert len(outputs.traces.all("attempt")) == attempts
    assert sum(len(call.attempts) for call in outputs.recorded) == attempts
    assert all(attempt.end is not None for call in outputs.recorded for attempt in call.attempts)
    for name in (names.IN_FLIGHT, names.QUEUE_LENGTH):
        assert outputs.total(name) == 0
    assert outputs.total(names.TIMEOUTS) == ends["timeout"] + ends["deadline"]
    assert outputs.total(names.REJECTIONS) == ends["rejected"]


class Following(CallTracker[TrackedCall, CallEvent]):
    """Check that each beginning is reported once, before its end."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting, self.running = Counter[int](), set[tuple[int, int]]()
        self.over: list[int] = []

    def on_begin(self, event: CallEvent) -> TrackedCall:
        return TrackedCall(event)

    def on_queue(self, call: TrackedCall, event: CallEvent) -> None:
        self.waiting[call.number] += 1
        assert (call.place == "waiting") is (not call.running)

    def on_give_up(self, call: TrackedCall, event: CallEvent, since: float) -> None:
        self.waiting[call.number] -= 1
        assert call.began <= since <= event.time

    def on_start(self, call: TrackedCall, event: CallEvent, waited_since: float | None) -> None:
        if waited_since is not None:
            self.on_give_up(call, event, waited_since)
        self.running.add((call.number, event.attempt))
        assert (call.place, call.attempt) == ("running", event.attempt)

    def on_attempt_end(self, call: TrackedCall, event: CallEvent, since: float) -> None:
        self.running.remove((call.number, event.attempt))
        assert call.began <= since <= event.time

    def on_end(self, call: TrackedCall, event: CallEvent) -> None:
        self.over.append(call.number)
        self.waiting[call.number] -= len(call.waiting)
        assert call.ended
        assert call.number not in self.open


@given(scripts(), st.randoms(use_true_random=False))
def test_what_has_begun_is_told_to_end_once(calls: list[Script], random: Random) -> None:
    """Attempts that outlive their call get an end, too, so that resources opened for an attempt can be closed."""
    following = Following()
    for call_event in play_calls(calls, random):
        following(call_event)
    assert (following.open, following.running, +following.waiting, -following.waiting) == ({}, set(), {}, {})
    assert sorted(following.over) == [call.number for call in calls]


def test_a_call_is_where_it_is_since_it_came_there() -> None:
    following = Following()
    places = []
    for call_event in (
        event("begun", time=0.0),
        event("queued", time=1.0),
        event("queued", time=2.0, tool="mirror"),
        event("gave_up", time=3.0, tool="mirror"),
        event("started", time=4.0, attempt=1),
        event("queued", time=5.0),
        event("started", time=6.0, attempt=2),
        event("attempt_ended", time=7.0, attempt=1),
        event("attempt_ended", time=8.0, attempt=2),
    ):
        following(call_event)
        (call,) = following.open.values()
        places.append((call.place, call.since))

    waiting, running = ("waiting", 1.0), ("running", 4.0)
    assert places == [("between", 0.0), *[waiting] * 3, *[running] * 4, ("between", 8.0)]


def test_events_of_calls_that_nobody_saw_begin_are_passed_over() -> None:
    """An observer may start in the middle of calls, and then knows nothing of them."""
    following = Following()
    for phase in ("queued", "started", "attempt_ended", "gave_up", "noted", "ended"):
        following(event(phase, attempt=1))
    assert (following.open, following.over) == ({}, [])
