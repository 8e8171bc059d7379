"""Processing of large values, such as conversion to text for the model, without blocking the event loop.

The work runs in worker threads. A result that is no message content becomes JSON, or else its `str`. Writing a large
one takes tens of milliseconds. In one go it would block the event loop from its thread, too, because it holds the
interpreter lock. So the text is written in pieces; it equals the text of `json.dumps` or `str`.
"""

import json
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple, TypeVar

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

_worker = RunVar[WorkerThreads]("callboard_worker_for_large_values")


async def run_in_worker(fn: Callable[[], T]) -> T:
    """Run `fn`, which only computes, in a worker thread with the caller's context variables; return its result.

    A cancelled caller does not wait for its thread, which ends with the result that nobody reads, before the next `fn`.
    """
    try:
        threads = _worker.get()
    except LookupError:
        # One thread for each event loop: several would share the interpreter lock, and let the loop wait for each.
        threads = WorkerThreads("large values", 1)
        _worker.set(threads)
    return await threads.run(fn)


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
    return remaining_size(_LONG, value) <= 0


def has_many(value: object) -> bool:
    """Return whether a message, command, mapping or list has too many values to copy it in the event loop."""
    return remaining_size(_MANY, value, each=1, character=0) <= 0


def remaining_size(limit: int, value: object, *, each: int = _EACH, character: int = 1) -> int:
    """Return `limit` minus the size of a value; 0 or less means that the value is too large."""
    remaining = limit - each
    # An explicit stack: a recursive walk would overflow for deeply nested values.
    values = [value]
    # Stops early: the size above the limit does not matter.
    while values and remaining > 0:
        item = values.pop()
        parts: Collection[object]
        match item:
            case str() | bytes():
                remaining -= len(item) * character
                continue
            case dict():
                parts = (*item, *item.values()) if len(item) * each < remaining else item
            case list() | tuple() | set() | frozenset():
                parts = item
            case BaseMessage():
                parts = (item.content, item.artifact if isinstance(item, ToolMessage) else None)
            case Command():
                parts = (item.update,)
            case _:
                continue
        remaining -= len(parts) * each
        if remaining <= 0:
            break
        for part in parts:
            if isinstance(part, str):
                remaining -= len(part) * character
            elif part.__class__ not in _PLAIN:
                values.append(part)
    return remaining


# Text of a result


_PART = 200_000
"""Size of one piece, in characters; each value adds `_EACH` characters. A piece takes one or two milliseconds."""
_PORTION = 100
"""Number of values of a container whose cost is computed together."""


def takes_long(value: object) -> bool:
    """Return whether the conversion of a value to text would block the event loop for too long."""
    return remaining_size(_PART, value) <= 0


def write_in_pieces(value: object) -> str:
    """Return a value as JSON text, or else as `str(value)`; other threads can run after each piece."""
    try:
        try:
            return _to_text(value, _JSON)
        except _ChangedError:
            raise
        except Exception:  # it has no JSON form; its own code may raise any error to say so
            if type(value) is not bytes and type(value) not in _STR.brackets:
                return str(value)  # `repr` is used only for values within a container
            return _to_text(value, _STR)
    except _ChangedError:
        return _stringify(value)


def content_of(value: object) -> str | list[Any]:
    """Return the message content for a value: a copy of one that LangChain accepts, or the text of any other value."""
    if isinstance(value, str):
        return value
    if not isinstance(value, (list, tuple)) or not all(map(_is_message_content_block, value)):
        return write_in_pieces(value)
    return [{**block} if isinstance(block, dict) else block for block in value]


def to_text(content: list[Any]) -> str | list[Any]:
    """Return a message's content, as text if a model may not be able to read it."""
    # Content blocks by LangGraph's rule in `msg_content_output`.
    are_blocks = all(isinstance(part, dict) and _is_message_content_block(part) for part in content)
    return content if are_blocks else write_in_pieces(content)


class _ChangedError(Exception):
    """Raised if the size of a container changed while the container was converted to text."""


class _Form(NamedTuple):
    """Format in which values are converted to text: JSON or Python's `repr`."""

    write_whole: Callable[[object], str]
    slices: Callable[[Any], Iterator[str]]
    """Function that yields the text of a long string in slices."""
    brackets: Mapping[type, tuple[str, str]]
    """Brackets by the type of container. Only these exact types are written in pieces, because subclasses may have
    code of their own."""
    is_python: bool
    """`True` for Python's format, which differs for recursive containers and for tuples with one element."""


def _to_text(value: object, form: _Form) -> str:
    parts: list[str] = []
    _write(value, form, parts, set())
    return "".join(parts)


def _write(value: Any, form: _Form, parts: list[str], outer_ids: set[int]) -> None:
    """Append the text of a value to `parts` in pieces; `outer_ids` holds the ids of the containers around the value."""
    value_type = type(value)
    if (value_type is str or value_type is bytes) and value:
        parts.extend(form.slices(value))
        return
    if value_type not in form.brackets or not value:
        parts.append(form.write_whole(value))
        return
    before, after = form.brackets[value_type]
    if id(value) in outer_ids:
        if not form.is_python:
            raise ValueError("Circular reference detected")
        parts.append(f"{before}...{after}")
        return
    outer_ids.add(id(value))
    parts.append(before)
    _write_parts(value, form, parts, outer_ids)
    is_lone = form.is_python and value_type is tuple and len(value) == 1
    parts[-1] = f",{after}" if is_lone else after  # replaces the last comma
    outer_ids.remove(id(value))


def _write_parts(value: Any, form: _Form, parts: list[str], outer_ids: set[int]) -> None:
    """Append the texts of a container's values to `parts`: small values together, each large value in pieces."""
    values, container_type = (value.items(), dict) if isinstance(value, dict) else (value, list)
    for portion in _portions_of(values):
        # A lone value is not weighed: of lists within each other, each would be weighed once for each level around it.
        portion_weight = _weight(container_type(portion)) if len(portion) > 1 else _PART
        for items, weight in (
            [(portion, portion_weight)]
            if portion_weight < _PART
            else (([item], _weight(container_type([item])) if len(portion) > 1 else _PART) for item in portion)
        ):
            if weight < _PART:
                parts.append(form.write_whole(container_type(items))[1:-1])
            elif container_type is dict:
                parts.append(form.write_whole({items[0][0]: 0})[1:-2])
                _write(items[0][1], form, parts, outer_ids)
            else:
                _write(items[0], form, parts, outer_ids)
            parts.append(", ")


def _weight(value: object) -> int:
    return _PART - remaining_size(_PART, value)


def _portions_of(values: Iterable[Any]) -> Iterator[list[Any]]:
    iterator = iter(values)
    try:
        while portion := [*islice(iterator, _PORTION)]:
            yield portion
    except RuntimeError as error:
        raise _ChangedError from error


_json = json.JSONEncoder(ensure_ascii=False).encode


def _slices_of_json(text: str) -> Iterator[str]:
    yield '"'
    yield from (_json(part)[1:-1] for part in _slices(text))
    yield '"'


def _slices_of_str(text: Any) -> Iterator[str]:
    """Yield `repr(text)` in slices."""
    prefix: str
    single: Any
    double: Any
    prefix, single, double = ("", "'", '"') if isinstance(text, str) else ("b", b"'", b'"')
    quote, quotes, end = ('"', single, -2) if single in text and double not in text else ("'", single + double, -4)
    yield prefix + quote
    # With extra quotes before its `repr`, each slice chooses the same kind of quote.
    yield from (repr(part + quotes)[len(prefix) + 1 : end] for part in _slices(text))
    yield quote


def _slices(text: Any) -> Iterator[Any]:
    return (text[start : start + _PART] for start in range(0, len(text), _PART))


_JSON = _Form(
    _json,
    _slices_of_json,
    {
        **dict.fromkeys((dict, OrderedDict, defaultdict, Counter), ("{", "}")),
        **dict.fromkeys((list, tuple), ("[", "]")),
    },
    is_python=False,
)
_STR = _Form(
    repr,
    _slices_of_str,
    {dict: ("{", "}"), list: ("[", "]"), tuple: ("(", ")"), set: ("{", "}"), frozenset: ("frozenset({", "})")},
    is_python=True,
)
