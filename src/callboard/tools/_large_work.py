"""Work on large values, which takes worker threads so that the event loop goes on."""

from collections.abc import Callable, Collection
from typing import TypeVar

from langchain_core.messages import BaseMessage, ToolMessage
from langgraph.types import Command

from callboard._calls._thread_pool import Threads

T = TypeVar("T")

_LONG = 10_000
"""Characters that a middleware looks at in the event loop; more take milliseconds, and a thread a tenth of one."""
_EACH = 100
"""Characters that take as long as a value by itself."""
_MANY = 1_000
"""Values that are copied in the event loop; more take milliseconds."""
_PLAIN = frozenset((int, float, bool, type(None)))


async def run_if_long(threads: Threads, value: object, fn: Callable[[], T]) -> T:
    """Run `fn`, which looks at every character of `value`: in a thread if there are many, else at once."""
    return await threads.run(fn) if is_long(value) else fn()


def is_long(value: object) -> bool:
    """Whether the texts in a message, a command, a mapping or a list are many or large."""
    return left_of(_LONG, value) <= 0


def has_many(value: object) -> bool:
    """Whether there are so many values in a message, a command, a mapping or a list that to copy all takes long."""
    return left_of(_MANY, value, each=1, character=0) <= 0


def left_of(most: int, value: object, *, each: int = _EACH, character: int = 1) -> int:
    """What is left of so many characters when those in a value are taken; not above 0 if it has as many.

    Args:
        most: how many; no more is looked at.
        value: any; a message, a command and the usual containers are looked into.
        each: what each part of it takes by itself.
        character: what each character takes besides.
    """
    left = most - each
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
