"""Columns of an answer of PostgreSQL: which values may be long, and how the server cuts those."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from callboard_actors.sql._values import Cut

_SHORT = {16, 20, 21, 23, 26, 700, 701, 1082, 1083, 1114, 1184, 1186, 1266, 2950}
"""Types of values of one size: booleans, numbers, dates and times, UUIDs. All others come as text."""
_NUMERIC = 1700
BYTES = 17
"""The type of raw bytes."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Args:
        name: as it is called in the answer.
        type: PostgreSQL's number of it.
    """

    name: str
    type: int

    @property
    def is_cut(self) -> bool:
        """Whether its value comes with its length."""
        return self.type not in _SHORT and self.type != _NUMERIC

    def cut(self, name: str, most: int) -> str:
        """An expression for it: its value, or no more than so many characters or bytes of it and its length."""
        if not self.is_cut:
            return name
        if self.type == BYTES:
            return f"substr({name}, 1, {most}), octet_length({name})"
        return f"left({name}::text, {most}), length({name}::text)"


def whole_values(columns: Sequence[Column], rows: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Rows with a `Cut` where a value was longer than what came of it."""
    for row in rows:
        parts = iter(row)
        yield tuple(_value(next(parts), next(parts)) if column.is_cut else next(parts) for column in columns)


def _value(begin: Any, length: int | None) -> object:
    if begin is None or length is None or len(begin) >= length:
        return begin
    return Cut(begin, length)
