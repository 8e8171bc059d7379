"""Calls of a run, as `callboard run` displays them."""

from collections.abc import Iterable, Sequence

from langchain_core.messages import ToolCall
from rich.console import Group, RenderableType

from callboard import CallEvent
from callboard._cli._call_counts import CallCounts
from callboard._cli._labels import call_labels, shown_arguments
from callboard._cli._open_calls import open_calls
from callboard._cli._shown_text import seconds
from callboard._cli._view import progress_table

_ROWS = 12
"""Limit of open calls with a row each; above it, a table shows numbers per tool."""


class _Reply:
    """Calls of one reply with their labels, cached for the latest width."""

    def __init__(self, calls: Sequence[ToolCall]) -> None:
        self._calls = [(call["name"], shown_arguments(call["args"])) for call in calls]
        self._labels: dict[int, Sequence[str]] = {}

    def label(self, place: int, width: int) -> str:
        """Return the label of the call at a position, for a width in cells."""
        if width not in self._labels:
            self._labels = {width: call_labels(self._calls, width)}
        return self._labels[width][place]


class Calls:
    """Known facts about the calls of a run: arguments, durations and counts. `note` is the observer."""

    def __init__(self, tools: Iterable[str]) -> None:
        self.counts = CallCounts(tools)
        self._asked: dict[str | None, tuple[_Reply, int]] = {}
        self._took: dict[str | None, float] = {}

    def asked_for(self, calls: Sequence[ToolCall]) -> None:
        """Store the calls of one reply. A graph of LangGraph sends no events, so only its messages name its calls."""
        reply = _Reply(calls)
        self._asked.update((call["id"], (reply, place)) for place, call in enumerate(calls))

    def note(self, event: CallEvent) -> None:
        """Update the counts and the duration of a call with an event."""
        call = self.counts.open.get(event.number)
        if call is not None:
            self._took[event.call_id] = event.time - call.began
        self.counts(event)

    def took(self, call_id: str | None) -> str:
        """Return the duration of a call so far as text, waits included; empty without events of the call."""
        return "" if call_id not in self._took else seconds(self._took[call_id])

    def text(self, call_id: str | None, tool: str, width: int) -> str:
        """Return a label of a call that differs from the labels of the other calls of its reply."""
        if call_id not in self._asked:
            return call_labels([(tool, None)], width)[0]
        reply, place = self._asked[call_id]
        return reply.label(place, width)

    def table(self, now: float, width: int) -> RenderableType:
        """Return a table of the open calls; `now` is a time of the event loop, `width` is in cells."""
        calls = self.counts.slowest(_ROWS + 1)
        if len(calls) > _ROWS:
            return progress_table(self.counts, width)
        return Group(*open_calls(calls, now, width))
