"""Messages that middleware reads and changes: those of a state, and the message of a call in its output."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain_core.messages import ToolCall, ToolMessage

from callboard._langchain._outputs import Output, with_entries


def messages_in(state: Any, key: str) -> Sequence[Any]:
    """Return the messages of a state, which is a list of them, a mapping or an object; empty if it has none."""
    if isinstance(state, list):
        return state
    return (state.get(key) if isinstance(state, Mapping) else getattr(state, key, None)) or ()


def replace_call_message(output: Output, call: ToolCall, change: Callable[[ToolMessage], ToolMessage]) -> Output:
    """Return a copy of an output in which `change` has replaced the message of a call; other entries stay."""
    # A `Command` may repeat messages of other calls.
    return with_entries(
        output,
        lambda entry: change(entry) if isinstance(entry, ToolMessage) and entry.tool_call_id == call["id"] else entry,
    )


def append_line(content: str | list[Any], line: str) -> str | list[Any]:
    """Return the content of a message with a line after it, behind a blank line or as a block of its own."""
    if isinstance(content, str):
        return f"{content}\n\n{line}" if content else line
    return [*content, {"type": "text", "text": line}]
