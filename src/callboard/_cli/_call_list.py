"""The calls of a run, as whoever watches it follows them."""

from collections.abc import Iterable, Sequence

from langchain_core.messages import ToolCall
from rich.console import RenderableType
from rich.table import Table

from callboard import CallEvent
from callboard._cli._call_counts import CallCounts, OpenCall
from callboard._cli._shown_text import call_text, one_line, seconds
from callboard._cli._view import progress_table

_ROWS = 12
"""How many calls are shown one by one; of more than that, there are only numbers."""


class Calls:
    """What is known of the calls; `note` is the observer.

    Args:
        tools: the names of those that there are.
    """

    def __init__(self, tools: Iterable[str]) -> None:
        self.counts = CallCounts(tools)
        self._arguments: dict[str | None, object] = {}
        self._took: dict[str | None, float] = {}

    def asked_for(self, calls: Iterable[ToolCall]) -> None:
        """Learn the arguments of calls, by which their results are told; not every graph has events."""
        self._arguments.update((call["id"], call["args"]) for call in calls)

    def note(self, event: CallEvent) -> None:
        """Take in what happened to a call."""
        call = self.counts.open.get(event.number)
        if call is not None:
            self._took[event.call_id] = event.time - call.began
        self.counts(event)

    def took(self, call_id: str | None) -> str:
        """How long a call has taken so far, its waits included; nothing if no event has told."""
        return "" if call_id not in self._took else seconds(self._took[call_id])

    def text(self, call_id: str | None, tool: str, length: int) -> str:
        """The call as it was written, as far as that is known."""
        return call_text(tool, self._arguments.get(call_id), length)

    def table(self, now: float, width: int) -> RenderableType:
        """The calls that have not ended.

        Args:
            now: the time on the loop's clock.
            width: of the terminal.
        """
        calls = self.counts.slowest(_ROWS + 1)
        if len(calls) > _ROWS:
            return progress_table(self.counts)
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        for call in calls:
            table.add_row(*_cells(call, now, width))
        return table


def _cells(call: OpenCall, now: float, width: int) -> Sequence[str]:
    return (
        "running" if call.place == "running" else "waiting",
        one_line(call.text, max(20, width - 50)),
        seconds(now - call.since),
        f"attempt {call.attempt}" if call.attempt > 1 else "",
        one_line(call.note, 20),
    )
