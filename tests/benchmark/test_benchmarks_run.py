"""Smoke tests of the benchmarks. The measured values are not checked, because the machine may be busy."""

from math import isfinite

import pytest

from . import BENCHMARKS

pytestmark = pytest.mark.exhaustive


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_of_next_to_nothing_has_every_number(name: str) -> None:
    table = BENCHMARKS[name].run("tiny")

    assert table.rows
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert all(isfinite(budget.measured) for budget in table.budgets)
    assert str(table).startswith("## ")
