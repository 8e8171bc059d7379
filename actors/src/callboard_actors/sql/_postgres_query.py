"""Statement with named parameters, in the forms that psycopg and PostgreSQL read, and columns of its answer."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from callboard_actors.sql._rows import Caps, Cut, SqlError
from callboard_actors.sql._work import Parameters

# Columns; values that may be long are cut by the server.

_SHORT = {16, 20, 21, 23, 26, 700, 701, 1082, 1083, 1114, 1184, 1186, 1266, 2950}
"""Types with values of one size: booleans, numbers, dates and times, UUIDs. All others arrive as text."""
_NUMERIC = 1700
BYTES = 17
"""Type number of raw bytes."""


@dataclass(frozen=True, slots=True)
class Column:
    """Column of an answer. `type` is PostgreSQL's number of its type."""

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


# Statements.

DECLARE = "DECLARE callboard NO SCROLL CURSOR FOR "
"""Text before a query, which makes it the query of a cursor."""
_NAMED = re.compile(r"(?<![:\w]):(\w+)")
"""Possible parameter; `x::int` has none, and `:id::int` has one."""
_SENT = re.compile(r"%\((\w+)\)s|%%")


@dataclass(frozen=True, slots=True)
class Query:
    """Statement with its parameters."""

    text: str
    """Text for psycopg, with `%(name)s`."""
    parameters: Parameters
    only_reads: bool
    is_wrapped: bool = False
    """True inside of another statement, which makes PostgreSQL's error positions useless for the author."""

    @property
    def read(self) -> str:
        """SQL with numbered parameters (`$1`, `$2`) in place of named ones."""
        numbers: dict[str, int] = {}

        def numbered(found: re.Match[str]) -> str:
            return f"${numbers.setdefault(found[1], len(numbers) + 1)}" if found[1] else "%"

        return _SENT.sub(numbered, self.text)

    def within(self, columns: Sequence[Column], caps: Caps) -> "Query":
        """Return a query for the same rows with long values cut by PostgreSQL.

        The statement was parsed alone before. So the text in the parentheses cannot close them or open others.
        """
        names = ", ".join(f"c{number}" for number in range(len(columns)))
        items = ", ".join(column.cut(f"c{number}", caps.value) for number, column in enumerate(columns))
        inner = self.text.rstrip().rstrip(";")
        text = f"SELECT {items} FROM (\n{inner}\n) AS answer ({names}) LIMIT {caps.rows + 1}"  # noqa: S608 (see above)
        return replace(self, text=text, is_wrapped=True)


def query_of(statement: str, parameters: Parameters, *, only_reads: bool) -> Query:
    """Return the query for a statement with `:name` for parameters; raise SqlError if the statement is empty."""
    if not statement.strip() or "\0" in statement:
        raise SqlError("The statement is empty, or there is a NUL character in it.")
    used: dict[str, object] = {}

    def placed(found: re.Match[str]) -> str:
        name = found[1]
        # A name without a value is text, such as a time in a literal.
        if name not in parameters:
            return found[0]
        used[name] = parameters[name]
        return f"%({name})s"

    return Query(_NAMED.sub(placed, statement.replace("%", "%%")), used, only_reads)
