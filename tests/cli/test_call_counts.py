"""Counts of calls, computed from observer events."""

from math import ceil
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard._cli._call_counts import CallCounts, Durations, Lately
from tests.telemetry._events import ENDS, REFUSED, Script, counts_of, event, played, scripts


@given(scripts(), st.randoms(use_true_random=False))
def test_in_whatever_order_things_happen_the_counts_add_up(calls: list[Script], random: Random) -> None:
    """At the end no call runs or waits, and each has its own outcome. No count is ever lost in between."""
    counts = CallCounts(["fetch"])
    begun = 0
    for one in played(calls, random):
        counts(one)
        begun += one.phase == "begun"
        total = counts.total()
        assert (total.asked, len(counts.open)) == (begun, total.between + total.waiting + total.running)
        assert counts.queue == total.waiting <= counts.longest_queue
        assert min(total.between, total.waiting, total.running) >= 0

    total = counts.total()
    assert (total.running, total.waiting, total.between, counts.queue, counts.open) == (0, 0, 0, 0, {})
    for ending in ENDS:
        assert getattr(total, ending) == sum(call.end == ending for call in calls)
    assert total.asked == total.ended == len(total.durations) == len(calls)
    for tool, row in counts.rows.items():
        assert row.ended == sum(call.tool == tool for call in calls)


def test_waits_and_work_are_measured() -> None:
    """The longest wait may belong to a call that still waits."""
    counts = counts_of(
        event("begun", 1, 1.0),
        event("begun", 2, 1.0),
        event("queued", 1, 1.0),
        event("queued", 2, 1.0),
        event("started", 1, 3.0, attempt=1, queue_wait=2.0),
    )
    row = counts.rows["fetch"]
    assert (row.asked, row.waiting, row.running, row.ended) == (2, 1, 1, 0)
    assert (counts.queue, counts.longest_queue) == (1, 2)
    assert counts.longest_waits(9.0) == {"fetch": 8.0}

    counts(event("attempt_ended", 1, 4.5, attempt=1))
    counts(event("ended", 1, 4.5, attempt=1, queue_wait=2.0))
    counts(event("gave_up", 2, 5.0, queue_wait=4.0))
    assert (row.asked, row.waiting, row.running, row.ok) == (2, 0, 0, 1)
    assert (row.longest_wait, row.work) == (4.0, 1.5)
    assert row.durations.quantile(0.5) == pytest.approx(3.5, rel=0.02)


def test_calls_are_told_apart_by_their_number() -> None:
    """Models repeat ids, or leave them out, so calls are identified by their number."""
    counts = counts_of(event("begun", 1), event("begun", 2), event("started", 2, attempt=1), event("ended", 1))

    assert (counts.total().running, counts.total().ok, list(counts.open)) == (1, 1, [2])


def test_a_call_that_a_model_made_up_is_an_error() -> None:
    counts = counts_of(event("begun", tool="invented"), event("ended", tool="invented", **REFUSED))

    assert counts.rows["invented"].error == 1
    assert list(counts.rows) == ["fetch", "invented"]


def test_a_fallback_counts_for_the_tool_that_was_asked_for() -> None:
    counts = counts_of(
        event("begun"),
        event("started", attempt=1),
        event("attempt_ended", attempt=1),
        event("queued", tool="mirror"),
    )
    assert (counts.rows["fetch"].waiting, list(counts.rows)) == (1, ["fetch"])
    counts(event("started", tool="mirror", attempt=2, queue_wait=0.5))
    assert (counts.rows["fetch"].running, counts.rows["fetch"].waiting) == (1, 0)


def test_what_a_call_left_behind_is_no_call() -> None:
    """A body may outlive its call, and must not be counted as a running call."""
    counts = counts_of(event("begun"), event("started", attempt=1), event("ended", time=2.0))
    counts(event("attempt_ended", time=3.0, attempt=1))
    counts(event("noted", time=3.0, what="abandoned"))

    assert (counts.total().running, counts.total().ok, counts.total().work) == (0, 1, 2.0)


def test_the_slowest_calls_are_those_that_began_first() -> None:
    counts = counts_of(
        event("begun", 1, 0.0, call={"name": "fetch", "args": {"url": "a"}, "id": "same"}),
        event("begun", 2, 1.0),
        event("begun", 3, 2.0),
        event("started", 1, 2.0, attempt=1),
        event("attempt_ended", 1, 3.0, attempt=1),
        event("noted", 1, 3.0, what="retry"),
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
    counts = counts_of(event("begun"), event("started", attempt=1), event("noted", what="progress", **told))
    [call] = counts.slowest(1)
    assert call.note == shown


def test_the_clock_starts_with_the_first_call() -> None:
    counts = CallCounts([])
    assert (counts.elapsed(7.0), counts.rate(7.0)) == (0.0, 0.0)

    for one in (event("begun", 1, 10.0), event("begun", 2, 10.0), event("ended", 1, 11.0), event("ended", 2, 11.5)):
        counts(one)
    assert (counts.elapsed(12.0), counts.rate(12.0)) == (2.0, 1.0)
    assert counts.rate(20.0) == 0.0


# Durations and rates of a large number of calls


SECONDS = st.floats(0.001, 100_000.0)


def durations(values: list[float]) -> Durations:
    made = Durations()
    for value in values:
        made.add(value)
    return made


@given(st.lists(SECONDS, min_size=1), st.floats(0.0, 1.0))
def test_a_quantile_is_less_than_two_percent_off(values: list[float], share: float) -> None:
    exact = sorted(values)[max(1, ceil(share * len(values))) - 1]

    assert durations(values).quantile(share) == pytest.approx(exact, rel=0.02)


@given(st.lists(SECONDS), st.lists(SECONDS))
def test_two_tools_together_are_all_their_calls(one: list[float], other: list[float]) -> None:
    """The histograms of two tools can be added without losing calls."""
    together = durations(one)
    together.merge(durations(other))

    assert len(together) == len(one) + len(other)
    assert together.quantile(0.95) == durations(one + other).quantile(0.95)


def test_very_many_durations_take_little_memory() -> None:
    made = durations([1.003**number * 1e-6 for number in range(12_000)])

    assert len(made) == 12_000
    assert len(made._counts) < 610


def test_what_is_too_short_counts_as_nothing() -> None:
    assert durations([0.0, -1.0, 1e-9]).quantile(1.0) == 0.0
    assert durations([]).quantile(0.5) is None


def test_only_what_ended_lately_makes_the_rate() -> None:
    lately = Lately()
    for tenth in range(100):
        lately.add(tenth / 10)

    assert lately.rate(10.0, 0.0) == pytest.approx(10.0, rel=0.06)
    assert lately.rate(100.0, 0.0) == 0.0
    lately.add(200.0)
    lately.add(199.0)  # from another thread, slightly late
    assert lately.rate(200.0, 199.0) == 2.0
