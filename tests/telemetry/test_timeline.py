"""`read_recording`: a recording is read even if it is incomplete."""

from operator import attrgetter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.telemetry import Note, ReadMessage, RecordedAttempt, Wait, read_recording

from ._recordings import HEADER, busy, call, closing_event, in_order, lines, run, write

WHOLE = lines(busy(12, batch=5))


def test_a_call_is_read_with_its_waits_and_attempts(tmp_path: Path) -> None:
    events = [
        {"event": "begun", "t": 0.1, "call": 7, "batch": 2, "tool": "fetch", "id": "c7", "run": 1, "resumes": "00-a"},
        {"event": "queued", "t": 0.2, "call": 7},
        {"event": "started", "t": 0.5, "call": 7, "attempt": 1, "waited": 0.3},
        {"event": "attempt_ended", "t": 1, "call": 7, "attempt": 1, "error": "ConnectError"},
        {"event": "noted", "t": 1, "call": 7, "what": "retry", "facts": {"pause": 0.5}},
        {"event": "queued", "t": 1.5, "call": 7},
        {"event": "gave_up", "t": 2, "call": 7, "waited": 0.5, "error": "DeadlineExceededError"},
        {"event": "ended", "t": 2, "call": 7, "outcome": "deadline", "error": "DeadlineExceededError", "waited": 0.8},
    ]
    (part,) = read_recording(write(tmp_path / "one.jsonl", [HEADER, *events])).parts
    (recorded_call,) = part.calls

    identity_of = attrgetter("number", "batch", "tool", "id", "run", "resumes")
    assert identity_of(recorded_call) == (7, 2, "fetch", "c7", 1, "00-a")
    assert (recorded_call.start, recorded_call.end, recorded_call.waited) == (0.1, 2, 0.8)
    assert (recorded_call.outcome, recorded_call.error) == ("deadline", "DeadlineExceededError")
    assert recorded_call.waits == (Wait(start=0.2, end=0.5), Wait(start=1.5, end=2, error="DeadlineExceededError"))
    assert recorded_call.attempts == (RecordedAttempt(number=1, start=0.5, end=1, error="ConnectError"),)
    assert recorded_call.notes == (Note(time=1, kind="retry", facts={"pause": 0.5}),)
    assert recorded_call.failed


def test_a_run_is_read_with_its_model_requests(tmp_path: Path) -> None:
    (part,) = read_recording(write(tmp_path / "one.jsonl", [HEADER, *run(1, 0.25, 4)])).parts
    (recorded_run,) = part.runs
    (request,) = recorded_run.requests
    fields_of = attrgetter("agent", "thread", "run_id", "start", "end", "outcome")
    assert fields_of(recorded_run) == ("trip", "oslo", "r1", 0.25, 4, "ok")
    assert (request.start, request.end, request.model, request.calls) == (0.25, 0.75, "gpt", 2)
    assert (request.input_tokens, request.output_tokens) == (1200, 34)


def test_a_run_is_read_with_the_messages_that_it_has_read(tmp_path: Path) -> None:
    begun, *request = run(1, 0.25)
    word = {"event": "message_read", "t": 1, "run": 1, "point": "turn", "message": {"role": "human", "content": "hi"}}
    result = {"event": "message_read", "t": 2, "run": 1, "point": "end", "background": "bg-c1"}
    (part,) = read_recording(write(tmp_path / "one.jsonl", [HEADER, begun, word, *request, result])).parts
    (recorded_run,) = part.runs
    assert recorded_run.messages == (
        ReadMessage(time=1, point="turn", requests=0, message={"role": "human", "content": "hi"}),
        ReadMessage(time=2, point="end", requests=1, background="bg-c1"),
    )
    assert [read.where for read in recorded_run.messages] == ["before a turn", "where the run would end"]


def test_a_part_says_what_the_recorder_said_of_itself(tmp_path: Path) -> None:
    """Lost events are counted, also if the part has no end line."""
    lost = {"event": "lost", "t": 1, "events": 5}
    path = write(tmp_path / "one.jsonl", [HEADER, closing_event(3, 2.0), {**HEADER, "pid": 2}, lost])
    first, second = read_recording(path).parts
    assert first.closing is not None
    assert (first.closing.events, first.closing.per_event, first.lost, first.pid) == (3, 4e-6, 0, 4711)
    assert (second.closing, second.lost, second.pid) == (None, 5, 2)
    assert first.started is not None
    assert first.started.isoformat() == HEADER["started"]


def test_what_never_ended_is_open(tmp_path: Path) -> None:
    """A killed process leaves calls, attempts, waits and requests without an end."""
    events = in_order([*run(1)[:2], *call(1, 0)[:2], *call(2, 0, wait=1)[:2]])
    (part,) = read_recording(write(tmp_path / "one.jsonl", [HEADER, *events])).parts
    assert [recorded_call.outcome for recorded_call in part.calls] == [None, None]
    assert part.calls[0].attempts[0].end is None
    assert part.calls[1].waits[0].end is None
    assert part.runs[0].requests[0].end is None


def test_unknown_events_and_fields_are_passed_over(tmp_path: Path) -> None:
    """Unknown lines, and events of calls without a beginning, are skipped."""
    later = {"event": "teleported", "t": 1, "where": "Mars"}
    orphan = {"event": "ended", "t": 1, "call": 99, "outcome": "ok"}
    coloured_events = [{**event, "colour": "red"} for event in call(1, 0)]
    (part,) = read_recording(write(tmp_path / "one.jsonl", [HEADER, later, orphan, *coloured_events])).parts
    assert [recorded_call.outcome for recorded_call in part.calls] == ["ok"]


@given(st.integers(0, len(WHOLE)))
def test_a_recording_that_was_cut_off_anywhere_is_readable(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    """A process may be killed at any byte of the file."""
    path = tmp_path_factory.mktemp("cut") / "cut.jsonl"
    path.write_bytes(WHOLE[:cut])
    started = sum(event.startswith(b'{"event": "begun"') for event in WHOLE[:cut].split(b"\n")[:-1])
    assert len(list(read_recording(path).calls())) == started


@given(st.integers(0, len(WHOLE)), st.integers(0, len(WHOLE)))
def test_a_recording_may_go_on_after_a_cut(tmp_path_factory: pytest.TempPathFactory, cut: int, second_cut: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "cut.jsonl"
    path.write_bytes(WHOLE + WHOLE[:cut] + b"\n" + WHOLE[:second_cut])
    assert len(read_recording(path).parts) in (1, 2, 3)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"hello\nworld\n", "line 1: not a recording"),
        (b"\x00\xffSQLite", "line 1: not a recording"),
        (b"[1, 2]\n", "line 1: not a recording"),
        (b'{"a": 1}', "line 1: not a recording"),
        (lines(call(1, 0)), "line 1: not a recording"),
        (lines([{**HEADER, "format": "callboard/recording/2"}]), "line 1: the format is 'callboard/recording/2'"),
        (lines([HEADER, {**HEADER, "format": "callboard/recording/9"}]), "line 2: the format is"),
        (lines([HEADER]) + b"{oops\n" + lines(call(1, 0)), "line 2: damaged"),
        (lines([HEADER, {"event": "begun", "t": "soon", "call": 1}]), "line 2: 't' is 'soon'"),
        (lines([HEADER, {"event": "begun", "t": float("nan"), "call": 1}]), "line 2: 't' is nan"),
        (lines([HEADER, {"event": "begun", "t": 10**400, "call": 1}]), "line 2: 't' is 1000"),
        (lines([HEADER, {"event": "begun", "t": 1}]), "line 2: 'call' is None"),
    ],
)
def test_what_is_no_recording_is_named_with_its_line(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"odd\.jsonl, ") as caught:
        read_recording(path)
    assert complaint in str(caught.value)


def test_an_empty_file_is_a_recording_of_nothing(tmp_path: Path) -> None:
    """A process may be killed before its first line."""
    (tmp_path / "empty.jsonl").touch()
    assert read_recording(tmp_path / "empty.jsonl").parts == ()
