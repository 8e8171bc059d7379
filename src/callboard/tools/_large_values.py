"""Processing of large values, such as conversion to text for the model, without blocking the event loop.

The work runs in worker threads. A result that is no message content becomes JSON, or else its `str`. Writing a large
one takes tens of milliseconds. In one go it would block the event loop from its thread, too, because it holds the
interpreter lock. So the text is written part by part; it equals the text of `json.dumps` or `str`.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar
from langchain_core.messages import BaseMessage, ToolMessage
from langchain_core.tools.base import _is_message_content_block, _stringify
from langgraph.types import Command

from callboard._calls._thread_pool import WorkerThreads

# Work in worker threads


T = TypeVar("T")

_LONG = 10_000
"""Maximum characters that middleware processes in the event loop. More would take milliseconds; a thread costs 0.1
ms."""
_EACH = 100
"""Cost of one value, given as the number of characters that take the same time."""
_MANY = 1_000
"""Maximum number of values that are copied in the event loop. More would take milliseconds."""
MANY_CALLS = 1_000
"""Maximum number of calls of a reply that are read in the event loop. More would take several milliseconds."""
_PLAIN = frozenset((int, float, bool, type(None)))

_worker = RunVar[CapacityLimiter]("callboard_worker_for_large_values")


async def run_in_worker(fn: Callable[[], T]) -> T:
    """Run `fn`, which only computes, in a worker thread with the caller's context variables; return its result.

    A cancelled caller returns at once, and its thread ends with the result, which nobody reads.
    """
    try:
        limiter = _worker.get()
    except LookupError:
        # One thread for each event loop: several would share the interpreter lock, and let the loop wait for each.
        limiter = CapacityLimiter(1)
        _worker.set(limiter)
    return await to_thread.run_sync(fn, abandon_on_cancel=True, limiter=limiter)


async def run_if_long(threads: WorkerThreads, value: object, fn: Callable[[], T]) -> T:
    """Return the result of `fn`, which reads all of `value`; `fn` runs in a thread if the value is long.

    Args:
        threads: threads for long values.
        value: the value, in which all texts are counted.
        fn: function without arguments.
    """
    return await threads.run(fn) if is_long(value) else fn()


def is_long(value: object) -> bool:
    """Return whether a message, a command, a mapping or a list has too much text to process it in the event loop."""
    return left_of(_LONG, value) <= 0


def has_many(value: object) -> bool:
    """Return whether a message, command, mapping or list has too many values to copy it in the event loop."""
    return left_of(_MANY, value, each=1, character=0) <= 0


def left_of(most: int, value: object, *, each: int = _EACH, character: int = 1) -> int:
    """Return the limit `most` minus the size of a value; 0 or less means that the value is too large."""
    left = most - each
    # An explicit stack: a recursive walk would overflow for deeply nested values.
    values = [value]
    # Stops early: the size above the limit does not matter.
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


# Text of a result


_PART = 200_000
"""Maximum characters that are converted in the event loop, in one or two milliseconds; a value counts as `_EACH`."""


def takes_long(value: object) -> bool:
    """Return whether the conversion of a value to text would block the event loop for too long."""
    return left_of(_PART, value) <= 0


def write_in_pieces(value: object) -> str:
    """Return a value as JSON text, or else as `str(value)`; other threads can run meanwhile.

    Python code writes the containers: `json.dumps` and `repr` hold the interpreter lock to their end.
    """
    try:
        try:
            return "".join(_ENCODER.iterencode(value))
        except RuntimeError:
            raise
        except Exception:  # it has no JSON form; its own code may raise any error to say so
            return "".join(_parts_of_repr(value, frozenset())) if type(value) in _BRACKETS else str(value)
    except RuntimeError:  # other code has changed a container meanwhile, or it is nested too deeply for Python code
        return _stringify(value)


def as_content(value: object) -> str | list[Any] | None:
    """Return a copy of a value if it is valid message content for LangChain; `None` for any other value."""
    if isinstance(value, str):
        return value
    if not isinstance(value, (list, tuple)) or not all(map(_is_message_content_block, value)):
        return None
    return [{**block} if isinstance(block, dict) else block for block in value]


def to_text(content: list[Any]) -> str | list[Any]:
    """Return a message's content, as text if a model may not be able to read it."""
    # Content blocks by LangGraph's rule in `msg_content_output`.
    are_blocks = all(isinstance(part, dict) and _is_message_content_block(part) for part in content)
    return content if are_blocks else write_in_pieces(content)


_ENCODER = json.JSONEncoder(ensure_ascii=False)
_BRACKETS: Mapping[type, tuple[str, str]] = {dict: ("{", "}"), list: ("[", "]"), tuple: ("(", ")")}


def _parts_of_repr(value: Any, enclosing: frozenset[int]) -> Iterator[str]:
    """Yield the parts of a value's `repr`; `enclosing` has the ids of the containers around it."""
    if type(value) not in _BRACKETS:
        yield repr(value)
        return
    before, after = _BRACKETS[type(value)]
    if id(value) in enclosing:
        yield f"{before}...{after}"
        return
    inside = enclosing | {id(value)}
    yield before
    for number, part in enumerate(value.items() if isinstance(value, dict) else value):
        yield ", " if number else ""
        if isinstance(value, dict):
            yield f"{part[0]!r}: "
        yield from _parts_of_repr(part[1] if isinstance(value, dict) else part, inside)
    yield f",{after}" if isinstance(value, tuple) and len(value) == 1 else after
