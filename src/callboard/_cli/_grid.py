"""Table of names and numbers that fits a given width: it drops columns before it shortens names too much."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table

from callboard._cli._labels import middle
from callboard._cli._shown_text import named, one_line

T = TypeVar("T")

_GAP = 2
_NAME = 8
"""Cells that a name keeps on the narrowest terminal."""


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """Column beside the names. Its width is fixed, so that nothing moves when numbers grow."""

    heading: str
    width: int
    worth: int
    """Priority of the column. If the width is too small, columns of the lowest worth are dropped first."""
    cell: Callable[[T], str | RenderableType]
    justify: Literal["left", "right"] = "right"
    grows: bool = False
    """`True` if the column takes the width that names leave; at most one column may."""


Names = Callable[[Sequence[T], int], Sequence[str]]
"""Function from items and a width in cells to the names of the items, none wider."""


def names_by(name: Callable[[T], str]) -> Names[T]:
    """Return a function that names items, and cuts the middle of a name that is too wide."""
    # The middle, because long names usually differ at their ends.
    return lambda items, width: [middle(named(name(item)), width) for item in items]


def grid(
    heading: str,
    names: Names[T],
    columns: Sequence[Column[T]],
    items: Iterable[T],
    *,
    width: int,
    least: int = _NAME,
    last: T | None = None,
) -> Table:
    """Return a table with a line for each item, none wider than `width` cells.

    Args:
        heading: heading of the names; empty for a table without headings.
        names: function that names the items.
        columns: columns in the order of display.
        items: items to show.
        width: width of the table in cells.
        least: cells that names keep; columns are dropped to keep them.
        last: item to show below a rule.
    """
    listed = [*items] if last is None else [*items, last]
    wanted = max((cell_len(name) for name in names(listed, width)), default=0)
    shown = _fitting(columns, width, min(width, max(_NAME, min(least, wanted))))
    room = max(1, width - sum(column.width + _GAP for column in shown))
    texts = names(listed, room)
    taken = min(room, max(max(map(cell_len, texts), default=0), len(heading), _NAME))
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, show_header=bool(heading))
    table.add_column(heading, width=taken, no_wrap=True)
    widths = [column.width + (room - taken if column.grows else 0) for column in shown]
    for column, cells in zip(shown, widths, strict=True):
        table.add_column(column.heading, width=cells, justify=column.justify, no_wrap=True)
    for text, item in zip(texts, listed, strict=True):
        if item is last:
            table.add_section()
        row = (_cut(column.cell(item), cells) for column, cells in zip(shown, widths, strict=True))
        table.add_row(text, *row, style="bold" if item is last else "")
    return table


def _cut(cell: str | RenderableType, width: int) -> RenderableType:
    return one_line(cell, width) if isinstance(cell, str) else cell


def _fitting(columns: Sequence[Column[T]], width: int, name: int) -> list[Column[T]]:
    shown = list(columns)
    while shown and name + sum(column.width + _GAP for column in shown) > width:
        shown.remove(min(shown, key=lambda column: column.worth))
    return shown
