"""Work on large values, which takes worker threads so that the event loop goes on."""

from collections.abc import Callable
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
    return _is_more(value, _LONG, each=_EACH, character=1)


def has_many(value: object) -> bool:
    """Whether there are so many values in a message, a command, a mapping or a list that to copy all takes long."""
    return _is_more(value, _MANY, each=1, character=0)


def _is_more(value: object, left: int, *, each: int, character: int) -> bool:
    """Whether what is in a value is as much as is left: so much for each part, and for each of their characters."""
    values = [value]
    while values and left > 0:
        one = values.pop()
        left -= each
        if isinstance(one, str):
            left -= len(one) * character
        elif isinstance(one, dict):
            values += [*one, *one.values()]
        elif isinstance(one, (list, tuple)):
            values += one
        elif one.__class__ in _PLAIN:
            continue
        elif isinstance(one, BaseMessage):
            values += [one.content, one.artifact if isinstance(one, ToolMessage) else None]
        elif isinstance(one, Command):
            values.append(one.update)
    return left <= 0
