"""Description of the part of a value that a database cannot store, such as an object or an integer beyond 64 bits."""

from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.types import Command, Interrupt

from callboard.tools._bounds import LARGEST_INTEGER, SMALLEST_INTEGER, bits_of

CanStore = Callable[[object], bool]
"""Function that returns whether a serializer accepts a value."""

_MAX_DEPTH = 20
"""Maximum number of levels that are searched; a deeper part is described by the value that contains it."""


def describe_unstorable(value: object, can_store: CanStore) -> str:
    """Return a text about the innermost part of a value that cannot be stored: its place, and what it is."""
    path = ""
    for _ in range(_MAX_DEPTH):
        parts, text_of = _parts(value)
        if not parts or can_store(parts):
            break  # the value itself cannot be stored, or a key of it
        # Halves, and not part by part: a serializer is fast for many values, and slow to call for each.
        start = 0
        while len(parts) > 1:
            half = parts[: len(parts) // 2]
            if can_store(half):
                start += len(half)
                half = parts[len(half) :]
            parts = half
        [value] = parts
        path += text_of(start)
    kind = type(value)
    if isinstance(value, int) and not SMALLEST_INTEGER <= value <= LARGEST_INTEGER:
        description = f"an integer of {bits_of(value)} bits, and 64 are the most"
    elif isinstance(value, str):
        description = "a text with a lone surrogate, which has no bytes in UTF-8"
    elif kind.__module__ == "builtins":
        description = f"a value of the type {kind.__qualname__}"
    else:
        description = f"a value of the type {kind.__module__}.{kind.__qualname__}"
    return f"{path.lstrip('.')} is {description}" if path else f"it is {description}"


def _parts(value: Any) -> tuple[list[object], Callable[[int], str]]:
    """Return the parts of a value, and a function from the position of a part to the text that leads to it."""
    # There may be millions of parts, and one text is needed.
    if isinstance(value, dict):
        keys = list(value)
        return list(value.values()), lambda position: f"[{keys[position]!r}]"[:80]
    if isinstance(value, (list, tuple)):
        return list(value), lambda position: f"[{position}]"
    names: Sequence[str] = ()
    if isinstance(value, BaseMessage):
        names = [*type(value).model_fields, *(value.model_extra or ())]
    elif isinstance(value, Interrupt):
        names = ["value"]
    elif isinstance(value, Command):
        names = ["update", "goto", "resume", "graph"]
    return [getattr(value, name) for name in names], lambda position: f".{names[position]}"
