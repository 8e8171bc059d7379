"""Output of one call: a message, a command, or a list of them, and the entries that they write to the state."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

from langchain_core.messages import BaseMessage, ToolMessage
from langgraph.types import Command

from callboard._langgraph._vocabulary import ToolCallRequest

Item = ToolMessage | Command[Any]
Output = Item | list[Item]
"""Output of one call: a message, a command, or a list of them."""

CallNext = Callable[[ToolCallRequest], Awaitable[Output]]
"""Function that makes one more attempt at a call, within all inner middleware."""


def is_output(value: object) -> bool:
    """Return whether a value is a valid output of a call: a ToolMessage, a Command, or a list of them.

    Args:
        value: result of a tool or of a middleware.
    """
    return all(isinstance(item, (ToolMessage, Command)) for item in items_in(value))


def items_in(output: object) -> list[object]:
    """Return the items of an output as a list. An output that is not a list is its only item."""
    # An empty list becomes an item, which is not valid.
    return output if isinstance(output, list) and output else [output]


def entries_in(output: Output) -> Iterator[object]:
    """Yield the entries of an output: its messages in any form, and the values that its commands write to the state.

    Args:
        output: output of a call.
    """
    if isinstance(output, list):
        for item in output:
            yield from entries_in(item)
        return
    if not isinstance(output, Command):
        yield output
        return
    update: Any = output.update
    if isinstance(update, dict):
        for value in update.values():
            yield from _values(value)
    elif isinstance(update, (list, tuple)):
        for entry in update:
            yield from _values(entry[1]) if _is_pair(entry) else (entry,)


def with_entries(output: Output, change: Callable[[Any], Any]) -> Output:
    """Return a copy of an output, with each entry replaced by `change(entry)`.

    The original is not changed: it may be in a cache.

    Args:
        output: output of a call.
        change: function of an entry that returns its replacement, or the entry itself.
    """
    if isinstance(output, list):
        return [cast("Item", with_entries(item, change)) for item in output]
    if not isinstance(output, Command):
        return cast("Item", change(output))
    update: Any = output.update
    if isinstance(update, dict):
        return replace(output, update={key: _change_entries(value, change) for key, value in update.items()})
    if isinstance(update, (list, tuple)):
        entries = [
            (entry[0], _change_entries(entry[1], change)) if _is_pair(entry) else change(entry) for entry in update
        ]
        return replace(output, update=entries)
    return output


def _is_pair(entry: Any) -> bool:
    """Return whether an entry of a command's update list is a pair of a state key and a value."""
    return isinstance(entry, tuple) and len(entry) == 2


def _values(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _change_entries(value: object, change: Callable[[Any], Any]) -> Any:
    if not isinstance(value, list):
        return change(value)
    changed_entries = [change(entry) for entry in value]
    # A subclass of list keeps its class if no entry in it has changed.
    return value if all(new is old for new, old in zip(changed_entries, value, strict=True)) else changed_entries


def facts_of(message: BaseMessage) -> Mapping[str, Any]:
    """Return the facts that callboard has added to a message; empty if there are none."""
    value: object = message.additional_kwargs.get("callboard")
    return value if isinstance(value, Mapping) else {}


def with_facts(message: ToolMessage, **facts: object) -> dict[str, Any]:
    """Return a message's additional data with facts about its call added: `{"callboard": {...}}`."""
    return {**message.additional_kwargs, "callboard": {**facts_of(message), **facts}}
