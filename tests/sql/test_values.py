"""The text that a model reads of rows: one line per row, within the caps."""

import datetime as dt
import decimal
import uuid

from hypothesis import given
from hypothesis import strategies as st

from callboard_actors.sql._postgres import query_of
from callboard_actors.sql._rows import Caps, gather, kept, pointed, shown

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.decimals(),
    st.dates(),
    st.datetimes(),
    st.timedeltas(),
    st.uuids(),
    st.lists(st.integers()),
)


@given(st.lists(st.tuples(VALUES, VALUES)))
def test_every_row_is_one_line(rows: list[tuple[object, object]]) -> None:
    """A value with line breaks could imitate further rows or the count below them."""
    found = gather(["a", "b"], rows, Caps(rows=1000, bytes=1_000_000, value=1000))
    lines = str(found).split("\n")

    assert len(lines) == len(rows) + 2
    assert all(line.replace("\\|", "").count("|") == 1 for line in lines[:-1])


@given(st.lists(st.tuples(VALUES)), st.integers(1, 20), st.integers(0, 500))
def test_an_answer_is_a_beginning_and_says_whether_it_is_all(rows: list[tuple[object]], most: int, size: int) -> None:
    """The answer stays within the caps of rows and of bytes."""
    found = gather(["a"], rows, Caps(rows=most, bytes=size, value=50))

    assert len(found) <= most
    assert found.more == (len(found) < len(rows))
    assert sum(len(shown(row[0]).encode(errors="replace")) for row in found.values) <= size
    assert [repr(row) for row in found.values] == [repr((kept(row[0], 50),)) for row in rows[: len(found)]]


@given(VALUES, st.integers(1, 50))
def test_a_value_that_was_cut_says_how_long_it_was(value: object, most: int) -> None:
    """A value below the cap is not changed."""
    found = kept(value, most)

    if found is not value:
        assert isinstance(found, str) and found.endswith(("characters]", "bytes]"))


def test_values_are_written_as_sql_has_them() -> None:
    """A model can write the values back into a statement."""
    values = [None, True, b"\x00\xff", decimal.Decimal("1.50"), dt.date(2026, 1, 2), uuid.UUID(int=1), "a\nb|c\x00"]

    assert [shown(value) for value in values] == [
        "NULL",
        "true",
        "x'00ff'",
        "1.50",
        "2026-01-02",
        "00000000-0000-0000-0000-000000000001",
        "a\\nb\\|c\\x00",
    ]


@given(st.text(alphabet=st.sampled_from(list("ab:%'\\ ()s\n12"))))
def test_a_statement_without_parameters_reaches_the_server_as_it_was_written(statement: str) -> None:
    """Text that looks like a placeholder is not changed."""
    if statement.strip():
        assert query_of(statement, {}, only_reads=True).read == statement


def test_parameters_are_numbered_as_the_server_reads_them() -> None:
    """Error positions of the server count the numbered placeholders."""
    query = query_of("SELECT :b, :a::int, :b, ':c', 5 % 2, a::int", {"a": 1, "b": 2, "d": 3}, only_reads=True)

    assert query.read == "SELECT $1, $2::int, $1, ':c', 5 % 2, a::int"
    assert query.parameters == {"a": 1, "b": 2}


@given(st.text(alphabet="ab\n"), st.integers(1, 20))
def test_a_mark_stands_below_the_character(statement: str, position: int) -> None:
    """The mark is below the right character in every line of the statement."""
    if position > len(statement) or statement[position - 1] == "\n":
        return
    _, line, mark = pointed(statement, position).split("\n")

    assert line[mark.index("^")] == statement[position - 1]
