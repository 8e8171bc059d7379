"""Work on large values in worker threads, so that it does not block the event loop."""

from collections.abc import Callable, Collection
from typing import TypeVar

from langchain_core.messages import BaseMessage, ToolMessage
from langgraph.types import Command

from callboard._calls._thread_pool import Threads

T = TypeVar("T")

_LONG = 10_000
"""Maximum characters that middleware processes in the event loop. More take milliseconds; a thread costs 0.1 ms."""
_EACH = 100
"""Cost of one value, in characters that take the same time."""
_MANY = 1_000
"""Maximum number of values that are copied in the event loop. More take milliseconds."""
_PLAIN = frozenset((int, float, bool, type(None)))


async def run_if_long(threads: Threads, value: object, fn: Callable[[], T]) -> T:
    """Run `fn`, which reads every character of `value`, in a thread if the value is long, else directly."""
    return await threads.run(fn) if is_long(value) else fn()


def is_long(value: object) -> bool:
    """Return whether the texts in a message, a command, a mapping or a list are many or large."""
    return left_of(_LONG, value) <= 0


def has_many(value: object) -> bool:
    """Return whether a message, a command, a mapping or a list has so many values that a copy of all takes long."""
    return left_of(_MANY, value, each=1, character=0) <= 0


def left_of(most: int, value: object, *, each: int = _EACH, character: int = 1) -> int:
    """Return the rest of a budget of characters after the cost of a value; 0 or less if the value is too large.

    Each part of the value costs `each`, and each character costs `character`. Messages, commands and the usual
    containers are counted with their content. Counting stops when the budget is used up.
    """
    left = most - each
    # An explicit stack: a recursive walk would overflow for deeply nested values.
    values = [value]
    while values and left > 0:
        one = values.pop()
        if isinstance(one, (str, bytes)):
            left -= len(one) * character
            continue
        if isinstance(one, dict):
            parts: Collection[object] = (*one, *one.values()) if len(one) * each < left else one
        elif isinstance(one, (list, tuple, set, frozenset)):
            parts = one
        elif isinstance(one, BaseMessage):
            parts = (one.content, one.artifact if isinstance(one, ToolMessage) else None)
        elif isinstance(one, Command):
            parts = (one.update,)
        else:
            continue
        left -= len(parts) * each
        if left > 0:
            for part in parts:
                if isinstance(part, str):
                    left -= len(part) * character
                elif part.__class__ not in _PLAIN:
                    values.append(part)
    return left
