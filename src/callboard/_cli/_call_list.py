"""The calls of a run, as whoever watches it follows them."""

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
"""How many calls are shown one by one; of more than that, there are only numbers."""


class _Reply:
    """The calls of one reply, and their labels at each width that was asked for."""

    def __init__(self, calls: Sequence[ToolCall]) -> None:
        self._calls = [(call["name"], shown_arguments(call["args"])) for call in calls]
        self._labels: dict[int, Sequence[str]] = {}

    def label(self, place: int, width: int) -> str:
        """Return the label of one of the calls."""
        if width not in self._labels:
            self._labels = {width: call_labels(self._calls, width)}
        return self._labels[width][place]


class Calls:
    """What is known of the calls; `note` is the observer.

    Args:
        tools: the names of those that there are.
    """

    def __init__(self, tools: Iterable[str]) -> None:
        self.counts = CallCounts(tools)
        self._asked: dict[str | None, tuple[_Reply, int]] = {}
        self._took: dict[str | None, float] = {}

    def asked_for(self, calls: Sequence[ToolCall]) -> None:
        """Learn the calls of one reply, by which their results are told; not every graph has events."""
        reply = _Reply(calls)
        self._asked.update((call["id"], (reply, place)) for place, call in enumerate(calls))

    def note(self, event: CallEvent) -> None:
        """Take in what happened to a call."""
        call = self.counts.open.get(event.number)
        if call is not None:
            self._took[event.call_id] = event.time - call.began
        self.counts(event)

    def took(self, call_id: str | None) -> str:
        """How long a call has taken so far, its waits included; nothing if no event has told."""
        return "" if call_id not in self._took else seconds(self._took[call_id])

    def text(self, call_id: str | None, tool: str, width: int) -> str:
        """Return the call as far as it is known, in a form that tells the calls of its reply apart."""
        if call_id not in self._asked:
            return call_labels([(tool, None)], width)[0]
        reply, place = self._asked[call_id]
        return reply.label(place, width)

    def table(self, now: float, width: int) -> RenderableType:
        """The calls that have not ended.

        Args:
            now: the time on the loop's clock.
            width: of the terminal.
        """
        calls = self.counts.slowest(_ROWS + 1)
        if len(calls) > _ROWS:
            return progress_table(self.counts, width)
        return Group(*open_calls(calls, now, width))
