"""Results of SQL statements: rows within limits, conversion of single values to text, and errors for a model."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

from langchain_core.tools import ToolException

# Errors, with suggestions.


class SqlError(ToolException):
    """Raised for a statement that the database refused or did not finish; the text says what can be done about it.

    As the error of a tool it becomes a message for the model. It never contains a password.
    """


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error sentence, with up to three names similar to an unknown name; "" if none is similar."""
    plain = name.rpartition(".")[2].strip('"').casefold()
    by_folded = {one.casefold(): one for one in known}
    near = difflib.get_close_matches(plain, by_folded, n=3)
    return f"; did you mean {' or '.join(by_folded[one] for one in near)}?" if near else ""


def pointed(statement: str, position: int) -> str:
    """Return the line of a statement that has an error, and a second line with a mark below the error's position."""
    before = statement[: position - 1]
    start = before.rfind("\n") + 1
    line = statement[start:].partition("\n")[0]
    column = len(before) - start
    cut = max(0, column - 60)
    return f"\n{line[cut : cut + 120]}\n{' ' * (column - cut)}^"


# Values: the part of a long value that is kept, and the text for a model.

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


@dataclass(frozen=True, slots=True)
class Cut:
    """Beginning and full length of a value that is longer than allowed."""

    begin: str | bytes
    length: int
    """Length of the whole value: characters of a text, bytes of any other value."""


def kept(value: object, most: int) -> object:
    """Return a value of a query result; cut it if it is longer than `most`, and add a note with its full length."""
    if isinstance(value, memoryview):
        value = bytes(value)
    if isinstance(value, (str, bytes)) and len(value) > most:
        value = Cut(value[:most], len(value))
    elif not isinstance(value, (str, bytes, Cut)) and hasattr(value, "__len__") and len(text := str(value)) > most:
        value = Cut(text[:most], len(text))
    if not isinstance(value, Cut):
        return value
    unit = "characters" if isinstance(value.begin, str) else "bytes"
    begin = value.begin if isinstance(value.begin, str) else _hex(value.begin)
    return f"{begin}... [cut; {value.length:,} {unit}]"


def shown(value: object) -> str:
    """Return a value as text for a model; characters that would end the value's line or column are escaped."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return _hex(value)
    text = _CONTROL.sub(lambda found: _ESCAPES.get(found[0], f"\\x{ord(found[0]):02x}"), str(value))
    return text.replace("|", "\\|")


def _hex(value: bytes) -> str:
    return f"x'{value.hex()}'"


# Rows.


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """Limits of a statement's result: number of rows, bytes of text, and size of a single value."""

    rows: int
    bytes: int
    """Maximum bytes of the text of all rows."""
    value: int
    """Maximum characters or bytes of one value."""


@dataclass(frozen=True, slots=True)
class Rows(Sequence[Mapping[str, Any]]):
    """Result of a statement: a sequence of rows, each a mapping from column to value.

    `str()` gives the text for a model.
    """

    columns: tuple[str, ...]
    """Names of the columns."""
    values: tuple[tuple[Any, ...], ...]
    """Rows as tuples; needed for results with duplicate column names."""
    more: bool = False
    """True if there are rows beyond the limits."""
    changed: int | None = None
    """Number of rows inserted, updated or deleted, if the database reports it."""
    note: str = ""
    """Additional sentence about the result for a model; "" without one."""

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Mapping[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> Mapping[str, Any] | Sequence[Mapping[str, Any]]:
        if isinstance(index, slice):
            return [self._mapping(values) for values in self.values[index]]
        return self._mapping(self.values[index])

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return map(self._mapping, self.values)

    def _mapping(self, values: tuple[Any, ...]) -> Mapping[str, Any]:
        return dict(zip(self.columns, values, strict=True))

    @property
    def artifact(self) -> Mapping[str, Any]:
        """Result as plain data, for the artifact of the tool's message."""
        return {"columns": [*self.columns], "rows": [[*row] for row in self.values], "more": self.more}

    def __str__(self) -> str:
        lines = [] if self.changed is None else [f"{_count(self.changed)} changed."]
        if self.columns:
            lines.append(" | ".join(shown(name) for name in self.columns))
            lines += [" | ".join(shown(value) for value in row) for row in self.values]
            lines.append(self._counted())
        return "\n".join([*lines, *([self.note] if self.note else [])]) or "Done."

    def _counted(self) -> str:
        if not self.more:
            return f"({_count(len(self))})"
        if not self.values:
            return "(The first row alone is larger than an answer may be; ask for fewer columns.)"
        return f"(The first {_count(len(self))}; there are more. Ask for fewer, or for count(*).)"


def _count(number: int) -> str:
    return f"{number:,} row" if number == 1 else f"{number:,} rows"


def gather(columns: Sequence[str], rows: Iterable[Sequence[Any]], caps: Caps) -> Rows:
    """Return the rows of a result up to the limits; fetch at most one row more, to know whether there are more."""
    taken: list[tuple[Any, ...]] = []
    left = caps.bytes
    for row in rows:
        values = tuple(kept(value, caps.value) for value in row)
        left -= sum(len(shown(value).encode(errors="replace")) + 3 for value in values)
        if len(taken) == caps.rows or left < 0:
            return Rows(tuple(columns), tuple(taken), more=True)
        taken.append(values)
    return Rows(tuple(columns), tuple(taken))
