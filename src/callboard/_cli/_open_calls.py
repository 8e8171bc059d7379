"""List of open calls: label, age, state, time in this state, and latest note."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.text import Text

from callboard._cli._call_counts import OpenCall
from callboard._cli._grid import Column, grid
from callboard._cli._labels import call_labels
from callboard._cli._shown_text import one_line, seconds

_ONE_LINE = 72
"""Width of the narrowest terminal with one line per call, in cells."""
_NAME = 24
_INDENT = "  "


@dataclass(frozen=True, slots=True)
class _ShownCall:
    """Open call at the time of the picture."""

    call: OpenCall
    now: float


_COLUMNS: tuple[Column[_ShownCall], ...] = (
    Column("age", 7, 4, lambda one: seconds(one.now - one.call.began)),
    Column("is", 7, 3, lambda one: one.call.place, justify="left"),
    Column("since", 7, 1, lambda one: seconds(one.now - one.call.since)),
    Column("last note", 18, 2, lambda one: _said(one.call), justify="left", grows=True),
)


def lines_of_a_call(width: int) -> int:
    """Return the number of lines per call on a terminal of that width."""
    return 1 if width >= _ONE_LINE else 2


def open_calls(calls: Sequence[OpenCall], now: float, width: int, *, heading: str = "") -> Iterator[RenderableType]:
    """Yield renderables of the calls: one line per call, or two on a narrow terminal.

    Args:
        calls: calls in the order of display.
        now: time on the clock of the event loop.
        width: width of the terminal in cells.
        heading: heading of the list; empty for a list without headings.
    """
    if lines_of_a_call(width) == 1:
        shown = [_ShownCall(call, now) for call in calls]
        yield grid(heading, _labels, _COLUMNS, shown, width=width, least=_NAME)
        return
    if heading:
        yield Text(heading, style="bold")
    shown = [_ShownCall(call, now) for call in calls]
    for label, one in zip(_labels(shown, width), shown, strict=True):
        told = ", ".join(filter(None, (seconds(now - one.call.began), one.call.place, _said(one.call))))
        yield Text(label, no_wrap=True)
        yield Text(_INDENT + one_line(told, width - len(_INDENT)), no_wrap=True, style="dim")


def _labels(items: Sequence[_ShownCall], width: int) -> Sequence[str]:
    return call_labels([(one.call.tool, one.call.arguments) for one in items], width)


def _said(call: OpenCall) -> str:
    attempt = f"attempt {call.attempt}" if call.attempt > 1 else ""
    return ", ".join(filter(None, (attempt, call.note)))
