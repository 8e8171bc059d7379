"""Notices for the model about lost state of a restarted actor: once per conversation, with the next result."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

from langchain_core.messages import ToolMessage
from langchain_core.tools.base import _stringify
from langgraph.types import Command

from callboard.actors._actor import keeps_snapshots
from callboard.actors._cell import Cell

_KEPT = 4096
"""Maximum number of remembered pairs of conversation and actor; the least recently used pair is forgotten first."""


_TOLD = -1
"""Marker in place of a state number: the model was told of the loss, so the next state is no news."""


class LostState:
    """State number of each actor that each conversation has seen last."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[Hashable, str, Hashable], int] = OrderedDict()

    def of(self, conversation: Hashable, cell: Cell) -> str:
        """Return the notice about an actor's restart; empty if the conversation knows its state or has seen none."""
        seen = self._seen.get((conversation, cell.kind.__name__, cell.key))
        if seen is None or seen == _TOLD or cell.state_since <= seen:
            if seen != cell.state_since:
                self.has_seen(conversation, cell)
            return ""
        what = "what it held since it was saved last" if keeps_snapshots(cell.kind) else "what it held"
        return f"{cell.name} was restarted, and {what} is lost."

    def has_seen(self, conversation: Hashable, cell: Cell) -> None:
        """Record that a conversation knows the present state."""
        self._note(conversation, cell, cell.state_since)

    def is_told(self, conversation: Hashable, cell: Cell) -> None:
        """Record that a conversation knows of the loss of the present state, whatever state follows."""
        self._note(conversation, cell, _TOLD)

    def _note(self, conversation: Hashable, cell: Cell, state: int) -> None:
        key = (conversation, cell.kind.__name__, cell.key)
        self._seen[key] = state
        self._seen.move_to_end(key)
        if len(self._seen) > _KEPT:
            self._seen.popitem(last=False)


def with_notice(result: Any, notice: str) -> Any:
    """Return a result with the notice added for the model; `None` if the notice does not fit into it."""
    if isinstance(result, Command) or (isinstance(result, (list, tuple)) and any(map(_is_no_content, result))):
        return None
    if isinstance(result, ToolMessage):
        return result.model_copy(update={"content": with_notice(result.content, notice)})
    if isinstance(result, list) and all(isinstance(one, (str, dict)) for one in result):
        return [*result, {"type": "text", "text": notice}]
    text = result if isinstance(result, str) else _stringify(result)
    return f"{text}\n\n({notice})"


def _is_no_content(one: object) -> bool:
    """Return whether a value goes to the graph by itself, and is no content for the model."""
    return isinstance(one, (Command, ToolMessage))
