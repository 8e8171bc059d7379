"""Counts of calls, computed from observer events and from recordings."""

import pytest

from callboard._cli._call_counts import CallCounts, percentile
from tests.telemetry._events import counts_of, event


def test_waits_are_measured() -> None:
    """The longest wait may belong to a call that still waits."""
    counts = counts_of(
        event("begun", 1, 1.0),
        event("begun", 2, 1.0),
        event("queued", 1, 1.0),
        event("queued", 2, 1.0),
        event("started", 1, 3.0, attempt=1, queue_wait=2.0),
    )
    row = counts.rows["fetch"]
    assert +row.states == {"waiting": 1, "running": 1}
    assert (counts.queue, counts.longest_queue) == (1, 2)
    assert counts.rows_at(9.0)["fetch"].longest_wait == 8.0

    counts(event("attempt_ended", 1, 4.5, attempt=1))
    counts(event("ended", 1, 4.5, attempt=1, queue_wait=2.0))
    counts(event("gave_up", 2, 5.0, queue_wait=4.0))
    assert +row.states == {"between": 1, "ok": 1}
    assert (row.longest_wait, row.waited, row.durations) == (4.0, 2.0, [3.5])


def test_a_fallback_counts_for_the_tool_that_was_asked_for() -> None:
    counts = counts_of(
        event("begun"),
        event("started", attempt=1),
        event("attempt_ended", attempt=1),
        event("queued", tool="mirror"),
    )
    assert (+counts.rows["fetch"].states, list(counts.rows)) == ({"waiting": 1}, ["fetch"])
    counts(event("started", tool="mirror", attempt=2, queue_wait=0.5))
    assert +counts.rows["fetch"].states == {"running": 1}


def test_what_a_call_left_behind_is_no_call() -> None:
    """A body may outlive its call, and must not be counted as a running call."""
    counts = counts_of(event("begun"), event("started", attempt=1), event("ended", time=2.0))
    counts(event("attempt_ended", time=3.0, attempt=1))
    counts(event("noted", time=3.0, note="abandoned"))

    assert +counts.rows["fetch"].states == {"ok": 1}


def test_the_slowest_calls_are_those_that_began_first() -> None:
    counts = counts_of(
        event("begun", 1, 0.0, call={"name": "fetch", "args": {"url": "a"}, "id": "same"}),
        event("begun", 2, 1.0),
        event("begun", 3, 2.0),
        event("started", 1, 2.0, attempt=1),
        event("attempt_ended", 1, 3.0, attempt=1),
        event("noted", 1, 3.0, note="retry"),
        event("started", 1, 4.0, attempt=2),
        event("queued", 2, 5.0),
        event("ended", 3, 6.0),
    )

    first, second = counts.slowest(5)
    assert (first.arguments, first.place, first.began, first.since) == ({"url": "'a'"}, "running", 0.0, 4.0)
    assert (first.attempt, first.note) == (2, "retry")
    assert (second.arguments, second.place, second.since, second.attempt) == (None, "waiting", 5.0, 0)
    assert counts.slowest(1) == (first,)


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ({"message": "page 3", "facts": {"done": 3, "total": 7}}, "3/7 page 3"),
        ({"facts": {"done": 0.5}}, "0.5"),
        ({"message": "nearly", "facts": {"total": 7}}, "nearly"),
        ({"message": ""}, "progress"),
    ],
)
def test_the_last_progress_of_a_call_is_shown(told: dict[str, object], shown: str) -> None:
    """The numbers come before the text, because there is little room."""
    counts = counts_of(event("begun"), event("started", attempt=1), event("noted", note="progress", **told))
    [call] = counts.slowest(1)
    assert call.note == shown


def test_the_clock_starts_with_the_first_call() -> None:
    counts = CallCounts([])
    assert (counts.run_time(7.0), counts.rate(7.0)) == (0.0, 0.0)

    for one in (event("begun", 1, 10.0), event("begun", 2, 10.0), event("ended", 1, 11.0), event("ended", 2, 11.5)):
        counts(one)
    assert (counts.run_time(12.0), counts.rate(12.0)) == (2.0, 1.0)
    assert counts.rate(16.1) == pytest.approx(0.2)
    assert counts.rate(20.0) == 0.0


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([], 50) is None
    assert [percentile([3, 1, 4, 2], percent) for percent in (0, 25, 50, 95, 100)] == [1, 1, 2, 4, 4]
