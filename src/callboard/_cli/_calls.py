"""The calls of a run, as whoever watches it follows them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from langchain_core.messages import ToolCall
from rich.console import RenderableType
from rich.table import Table

from callboard import CallEvent
from callboard._cli._board import Board
from callboard._cli._text import call_text, seconds
from callboard._cli._view import progress_table

_ROWS = 12
"""How many calls are shown one by one; of more than that, there are only numbers."""


@dataclass(slots=True)
class OpenCall:
    """A call that has not ended."""

    tool: str
    since: float
    """When its wait or its attempt began, in seconds on the loop's clock."""
    running: bool = False
    attempt: int = 0
    note: str = ""
    """What a link decided last."""


class Calls:
    """What is known of the calls; `note` is the observer.

    Args:
        tools: the names of those that there are.
    """

    def __init__(self, tools: Iterable[str]) -> None:
        self.board = Board(tools)
        self.open: dict[str | None, OpenCall] = {}
        self._arguments: dict[str | None, object] = {}
        self._began: dict[str | None, float] = {}
        self._took: dict[str | None, float] = {}

    def asked_for(self, calls: Iterable[ToolCall]) -> None:
        """Learn the arguments of calls; events do not have them."""
        self._arguments.update((call["id"], call["args"]) for call in calls)

    def note(self, event: CallEvent) -> None:
        """Take in what happened to a call."""
        self.board.note(event)
        if event.phase == "ended":
            self.open.pop(event.call_id, None)
            return
        call = self.open.setdefault(event.call_id, OpenCall(event.tool, event.time))
        self._began.setdefault(event.call_id, event.time)
        if event.phase == "noted":
            call.note = event.what
            return
        self._took[event.call_id] = event.time - self._began[event.call_id]
        call.running = event.phase == "started"
        call.since = event.time
        call.attempt = event.attempt

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
        if len(self.open) > _ROWS:
            return progress_table(self.board)
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        for call_id, call in self.open.items():
            table.add_row(*self._cells(call_id, call, now, width))
        return table

    def _cells(self, call_id: str | None, call: OpenCall, now: float, width: int) -> Sequence[str]:
        return (
            "running" if call.running else "waiting",
            self.text(call_id, call.tool, max(20, width - 50)),
            seconds(now - call.since),
            f"attempt {call.attempt}" if call.attempt > 1 else "",
            call.note,
        )
