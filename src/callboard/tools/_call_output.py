"""Output of a call, and iteration over the messages in it."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any, cast

from langchain_core.messages import ToolMessage
from langgraph.types import Command

from callboard.tools._vocabulary import ToolCallRequest

Item = ToolMessage | Command[Any]
Output = Item | list[Item]
CallNext = Callable[[ToolCallRequest], Awaitable[Output]]
"""Function that makes one more attempt at a call, within all middleware further inside."""


def is_output(value: object) -> bool:
    """Return whether a value is a valid output of a call."""
    return all(isinstance(item, (ToolMessage, Command)) for item in items_in(value))


def items_in(output: object) -> list[object]:
    """Return the parts of an output. An empty list counts as one part, which is no valid part of an output."""
    return output if isinstance(output, list) and output else [output]


def entries_in(output: Output) -> Iterator[object]:
    """Yield the entries of an output: its messages, and the values that its commands write to the state.

    Entries may be messages in any form that LangChain reads, or any other value.
    """
    if isinstance(output, list):
        for item in output:
            yield from entries_in(item)
    elif isinstance(output, Command):
        update: Any = output.update
        if isinstance(update, dict):
            for value in cast("dict[str, object]", update).values():
                yield from _values(value)
        elif isinstance(update, (list, tuple)):
            for entry in cast("list[Any]", update):
                yield from _values(entry[1]) if _is_pair(entry) else (entry,)
    else:
        yield output


def with_entries(output: Output, change: Callable[[Any], Any]) -> Output:
    """Return a copy of an output in which each entry, as `entries_in` yields it, is replaced by `change`.

    The output itself stays unchanged, because its producer may keep it, as a cache does.
    """
    if isinstance(output, list):
        return [cast("Item", with_entries(item, change)) for item in output]
    if not isinstance(output, Command):
        return cast("Item", change(output))
    update: Any = output.update
    if isinstance(update, dict):
        return replace(output, update={key: _changed(value, change) for key, value in update.items()})
    if isinstance(update, (list, tuple)):
        entries = [(one[0], _changed(one[1], change)) if _is_pair(one) else change(one) for one in update]
        return replace(output, update=entries)
    return output


def _is_pair(entry: Any) -> bool:
    """Return whether an entry of an update that is a list is a pair of key and value."""
    return isinstance(entry, tuple) and len(entry) == 2


def _values(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else [value]


def _changed(value: object, change: Callable[[Any], Any]) -> Any:
    if not isinstance(value, list):
        return change(value)
    before = cast("list[object]", value)
    after = [change(one) for one in before]
    # A subclass of list keeps its class if no entry in it has changed.
    return value if all(new is old for new, old in zip(after, before, strict=True)) else after
