"""Tables of names and numbers, and labels of calls, that fit a given width."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.table import Table

from callboard._cli._shown_text import escape_name, one_line

# Short labels of calls that distinguish the rows of one table.

Arguments = Mapping[str, str]
"""Arguments of a call: a mapping from the name of each parameter to its value as printable text."""

_CUT = "…"
_LONGEST_VALUE = 500


def middle(text: str, width: int) -> str:
    """Cut out the middle of a text that is wider than `width` terminal cells; return a narrower text unchanged."""
    if cell_len(text) <= width:
        return text
    if width < 1:
        return ""
    tail = (width - 1) // 2
    return set_cell_size(text, width - 1 - tail) + _CUT + set_cell_size(text[::-1], tail)[::-1]


def argument_texts(args: object) -> Arguments | None:
    """Return a call's arguments as short texts in Python notation, by parameter name; `None` if they are unknown."""
    if not isinstance(args, Mapping):
        return None
    return {escape_name(str(name)): _value_text(value) for name, value in args.items()}


def _value_text(value: object) -> str:
    """Return a value in Python notation, without its middle if it is long."""
    text = repr(value)
    # Cut before each character is looked at: a model may send megabytes. Views need only the beginning and the end.
    if len(text) > 2 * _LONGEST_VALUE:
        text = text[:_LONGEST_VALUE] + _CUT + text[-_LONGEST_VALUE:]
    return middle(one_line(text, len(text)), _LONGEST_VALUE)


def call_label(tool: str, args: object, width: int) -> str:
    """Return a label of one call with its tool and arguments, at most `width` terminal cells wide."""
    return call_labels([(tool, argument_texts(args))], width)[0]


def call_labels(calls: Sequence[tuple[str, Arguments | None]], width: int) -> list[str]:
    """Return a label for each pair of tool and arguments in `calls`, at most `width` terminal cells wide."""
    # If whole calls do not fit, the labels of a tool show only the arguments in which its calls differ.
    by_tool: defaultdict[str, list[int]] = defaultdict(list)
    for index, (tool, _) in enumerate(calls):
        by_tool[tool].append(index)
    labels = [""] * len(calls)
    for tool, indexes in by_tool.items():
        labels_of_tool = _labels_of_one_tool(escape_name(tool), [calls[index][1] for index in indexes], width)
        for index, label in zip(indexes, labels_of_tool, strict=True):
            labels[index] = label
    return labels


def _labels_of_one_tool(tool: str, calls: Sequence[Arguments | None], width: int) -> list[str]:
    arguments = [args for args in calls if args is not None]
    full_labels = [_format_call(tool, args) for args in calls]
    if max(map(cell_len, full_labels)) <= width:
        return full_labels
    names = list(dict.fromkeys(name for args in arguments for name in args))
    differing = [name for name in names if len({args.get(name) for args in arguments}) > 1] or names
    omitted = len(differing) < len(names)
    short = {name: _without_common([args[name] for args in arguments if name in args], width) for name in differing}
    labels: list[str] = []
    for args in calls:
        differing_args = args and {name: values[args[name]] for name, values in short.items() if name in args}
        labels.append(_shorten_label(tool, differing_args, width, omitted=omitted))
    return labels


def _without_common(values: Sequence[str], width: int) -> Mapping[str, str]:
    """Return a mapping from each value to a short form, which omits the common beginning and end of all values."""
    if len(set(values)) == 1 or max(map(cell_len, values)) <= width // 3:
        return {value: value for value in values}
    start = max(0, _common_length(values) - 1)
    end = max(0, _common_length([value[start:][::-1] for value in values]) - 1)
    before, after = _CUT if start > 1 else "", _CUT if end > 1 else ""
    start, end = start if before else 0, end if after else 0
    return {value: before + value[start : len(value) - end] + after for value in values}


def _common_length(texts: Sequence[str]) -> int:
    """Return the length of the longest common beginning of all texts, in characters."""
    first, last = min(texts), max(texts)  # a prefix of both is a prefix of every text between them
    return next((length for length, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))


def _format_call(tool: str, args: Arguments | None, ending: str = "") -> str:
    if args is None:
        return tool
    inner = [*(f"{name}={value}" for name, value in args.items()), *([ending] if ending else [])]
    return f"{tool}({', '.join(inner)})"


def _shorten_label(tool: str, args: Arguments | None, width: int, *, omitted: bool) -> str:
    if args is None:
        return middle(tool, width)
    for ending in (_CUT, "") if omitted else ("",):
        if cell_len(label := _format_call(tool, args, ending)) <= width:
            return label
    # Name and arguments get half of the width each, plus the cells that the other does not need.
    inner = _format_call("", args)
    name = middle(tool, max(width // 2, width - cell_len(inner)))
    return name + middle(inner, width - cell_len(name))


# Table of names and numbers: it drops columns before it shortens names too much.

T = TypeVar("T")

_GAP = 2
_NAME = 8
"""Smallest width of the column with the names, in terminal cells."""


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """Column of a table, after the column of names. The width is fixed, so that new values do not move the table."""

    heading: str
    width: int
    worth: int
    """Priority of the column. If the table is too wide, columns with the lowest priority are dropped first."""
    cell: Callable[[T], str]
    justify: Literal["left", "right"] = "right"
    grows: bool = False
    """`True` if the column gets the width that the names do not need. At most one column of a table may have `True`."""


def grid(
    heading: str,
    names: Callable[[int], Sequence[str]],
    columns: Sequence[Column[T]],
    rows: Sequence[T],
    *,
    width: int,
    least: int = _NAME,
    ends_in_total: bool = False,
) -> Table:
    """Return a table with a line for each row, at most `width` terminal cells wide."""
    # `names` shortens the row names to a width in cells. Columns are dropped until the names have `least` cells.
    longest_name = max(map(cell_len, names(width)), default=0)
    name_width = min(width, max(_NAME, min(least, longest_name)))
    visible_columns = list(columns)
    while visible_columns and name_width + sum(column.width + _GAP for column in visible_columns) > width:
        visible_columns.remove(min(visible_columns, key=lambda column: column.worth))
    names_width = max(1, width - sum(column.width + _GAP for column in visible_columns))
    texts = names(names_width)
    name_column_width = min(names_width, max(max(map(cell_len, texts), default=0), len(heading), _NAME))
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, show_header=bool(heading))
    table.add_column(heading, width=name_column_width, no_wrap=True)
    widths = [column.width + (names_width - name_column_width if column.grows else 0) for column in visible_columns]
    for column, cell_width in zip(visible_columns, widths, strict=True):
        table.add_column(column.heading, width=cell_width, justify=column.justify, no_wrap=True)
    for number, (text, row) in enumerate(zip(texts, rows, strict=True), start=1):
        is_total = ends_in_total and number == len(rows)
        if is_total:
            table.add_section()
        cells = [
            one_line(column.cell(row), cell_width) for column, cell_width in zip(visible_columns, widths, strict=True)
        ]
        table.add_row(text, *cells, style="bold" if is_total else "")
    return table
