"""`Rows`: result of a statement within the limits."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

from callboard_actors.sql._values import kept, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """Limits of a statement's result."""

    rows: int
    bytes: int
    """Bytes of the text of all rows."""
    value: int
    """Characters or bytes of one value."""


@dataclass(frozen=True, slots=True)
class Rows(Sequence[Mapping[str, Any]]):
    """Rows as mappings from column to value; `str()` gives the text for a model."""

    columns: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]
    """Rows as tuples, for results with duplicate column names."""
    more: bool = False
    """True if there are rows beyond the limits."""
    changed: int | None = None
    """Number of rows inserted, updated or deleted, if the database reports it."""
    note: str = ""
    """Additional sentence for a model."""

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
        """Plain data of the rows, for the message of a tool."""
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
    """Collect rows up to the limits; at most one row beyond them is fetched."""
    taken: list[tuple[Any, ...]] = []
    left = caps.bytes
    for row in rows:
        values = tuple(kept(value, caps.value) for value in row)
        left -= sum(len(shown(value).encode(errors="replace")) + 3 for value in values)
        if len(taken) == caps.rows or left < 0:
            return Rows(tuple(columns), tuple(taken), more=True)
        taken.append(values)
    return Rows(tuple(columns), tuple(taken))
