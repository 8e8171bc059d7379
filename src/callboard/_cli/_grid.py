"""A table of names and numbers that fits the width there is: columns go before names do."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from rich.table import Table

from callboard._cli._shown_text import named, one_line

T = TypeVar("T")

_GAP = 2
_NAME = 8
"""The characters that a name keeps on the narrowest terminal."""


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """A column beside the names, always of the same width, so that nothing moves when numbers grow."""

    heading: str
    width: int
    worth: int
    """Of the columns for which there is no room, those that are worth the least go first."""
    cell: Callable[[T], str]
    justify: Literal["left", "right"] = "right"


def grid(
    heading: str, name: Callable[[T], str], columns: Sequence[Column[T]], items: Iterable[T], *, width: int
) -> Table:
    """A line for each item, none of them wider than `width`.

    Args:
        heading: over the names.
        name: of an item; made printable, and cut.
        columns: in the order in which they are shown.
        items: what there is to show.
        width: in cells.
    """
    shown = _fitting(columns, width)
    room = max(1, width - sum(column.width + _GAP for column in shown))
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False)
    rows = [(one_line(named(name(item)), room), item) for item in items]
    longest = max((len(text) for text, _ in rows), default=0)
    table.add_column(heading, width=min(room, max(longest, len(heading), _NAME)), no_wrap=True)
    for column in shown:
        table.add_column(column.heading, width=column.width, justify=column.justify, no_wrap=True)
    for text, item in rows:
        table.add_row(text, *(one_line(column.cell(item), column.width) for column in shown))
    return table


def _fitting(columns: Sequence[Column[T]], width: int) -> list[Column[T]]:
    shown = list(columns)
    while shown and _NAME + sum(column.width + _GAP for column in shown) > width:
        shown.remove(min(shown, key=lambda column: column.worth))
    return shown
