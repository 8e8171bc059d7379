"""Quantiles and rates of a large number of calls."""

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard._cli._call_counts import Durations, Lately

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
