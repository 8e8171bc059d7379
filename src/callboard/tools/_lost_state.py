"""What a model is told of an actor that was restarted: once in each conversation, with the next result."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

from langchain_core.messages import ToolMessage
from langchain_core.tools.base import _stringify
from langgraph.types import Command

from callboard.actors._actor import keeps_snapshots
from callboard.actors._cell import Cell

_KEPT = 4096
"""Conversations and actors that are remembered; the one that was asked least recently is forgotten first."""


_TOLD = -1
"""In place of a state: the next one, whichever that is, is no news."""


class LostState:
    """Which state of an actor each conversation has seen last."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[Hashable, str, Hashable], int] = OrderedDict()

    def of(self, conversation: Hashable, cell: Cell) -> str:
        """What to tell of the actor now; empty if its state is the one that was seen, or none was, which is noted."""
        seen = self._seen.get((conversation, cell.kind.__name__, cell.key))
        if seen is None or seen == _TOLD or cell.state_since <= seen:
            if seen != cell.state_since:
                self.has_seen(conversation, cell)
            return ""
        what = "what it held since it was saved last" if keeps_snapshots(cell.kind) else "what it held"
        return f"{cell.name} was restarted, and {what} is lost."

    def has_seen(self, conversation: Hashable, cell: Cell) -> None:
        """Note that a conversation knows of the present state."""
        self._note(conversation, cell, cell.state_since)

    def is_told(self, conversation: Hashable, cell: Cell) -> None:
        """Note that a conversation knows that the present state is lost, whatever comes after it."""
        self._note(conversation, cell, _TOLD)

    def _note(self, conversation: Hashable, cell: Cell, state: int) -> None:
        key = (conversation, cell.kind.__name__, cell.key)
        self._seen[key] = state
        self._seen.move_to_end(key)
        if len(self._seen) > _KEPT:
            self._seen.popitem(last=False)


def with_notice(result: Any, notice: str) -> Any:
    """A result that a model can read, with a notice; `None` if there is no place for it."""
    if isinstance(result, Command) or (isinstance(result, (list, tuple)) and any(map(_is_no_content, result))):
        return None
    if isinstance(result, ToolMessage):
        return result.model_copy(update={"content": with_notice(result.content, notice)})
    if isinstance(result, list) and all(isinstance(one, (str, dict)) for one in result):
        return [*result, {"type": "text", "text": notice}]
    text = result if isinstance(result, str) else _stringify(result)
    return f"{text}\n\n({notice})"


def _is_no_content(one: object) -> bool:
    """Whether it goes its own way to the graph, and is no part of what a model reads."""
    return isinstance(one, (Command, ToolMessage))
