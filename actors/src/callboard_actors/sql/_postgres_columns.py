"""Columns of a PostgreSQL answer: values that may be long are cut by the server."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from callboard_actors.sql._values import Cut

_SHORT = {16, 20, 21, 23, 26, 700, 701, 1082, 1083, 1114, 1184, 1186, 1266, 2950}
"""Types with values of one size: booleans, numbers, dates and times, UUIDs. All others arrive as text."""
_NUMERIC = 1700
BYTES = 17
"""Type number of raw bytes."""


@dataclass(frozen=True, slots=True)
class Column:
    """Column of an answer.

    Args:
        name: in the answer.
        type: PostgreSQL's number of its type.
    """

    name: str
    type: int

    @property
    def is_cut(self) -> bool:
        """True if the value is sent with its length, and may be cut."""
        return self.type not in _SHORT and self.type != _NUMERIC

    def cut(self, name: str, most: int) -> str:
        """Return an SQL expression for the value, or for its beginning and its length."""
        if not self.is_cut:
            return name
        if self.type == BYTES:
            return f"substr({name}, 1, {most}), octet_length({name})"
        return f"left({name}::text, {most}), length({name}::text)"


def whole_values(columns: Sequence[Column], rows: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Yield rows with a `Cut` for each value that was longer than the part that was sent."""
    for row in rows:
        parts = iter(row)
        yield tuple(_value(next(parts), next(parts)) if column.is_cut else next(parts) for column in columns)


def _value(begin: Any, length: int | None) -> object:
    if begin is None or length is None or len(begin) >= length:
        return begin
    return Cut(begin, length)
