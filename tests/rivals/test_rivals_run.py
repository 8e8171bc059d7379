"""Measurements beside other frameworks run, with a few calls and the frameworks that are installed here."""

from pathlib import Path

import pytest

from tests.benchmark._measure import Table

from . import _measures
from .__main__ import _BEGIN, _END, _PAGE

pytestmark = [pytest.mark.real_clock, pytest.mark.exhaustive, pytest.mark.hangs_after(300)]


def test_each_framework_that_is_there_is_measured() -> None:
    measurements = _measures.measure_all(_measures.TINY)
    assert all(isinstance(table, Table) and table.rows for table in measurements.tables)
    [runs] = [table for table in measurements.tables if table.title == "A run with one reply of many calls"]
    assert {"written by hand", "callboard", "callboard, trio"} <= {row[0] for row in runs.rows}


def test_the_page_has_a_place_for_the_tables() -> None:
    text = Path(_PAGE).read_text()
    assert text.count(_BEGIN) == text.count(_END) == 1
    assert text.index(_BEGIN) < text.index(_END)
