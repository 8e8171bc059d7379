"""One text for all values that mean the same: what digests of arguments are made of."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def digest(value: Any) -> str:
    """SHA-256, in hex, over the canonical JSON of a value: keys sorted, no spaces, ASCII.

    What is JSON counts as it is, and a tuple as a list. What is not counts as an object with one key, `%` and
    its type, and the value as pydantic has it in JSON; bytes as hex, a set sorted. A key that is no text is one
    of `%`, its type, a colon and its JSON. A key that begins with `%` gets another one.

    Raises:
        ValueError: for a value of which there is no JSON: whether it has changed, nobody could say.
    """
    return hashlib.sha256(_text(_plain(value)).encode()).hexdigest()


def place_of(one: object) -> str:
    """Where a class or a function stands, or the class of any other object."""
    named = one if hasattr(one, "__qualname__") else type(one)
    return f"{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', '')}"


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        return {_key(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return {"%set": sorted(map(_plain, value), key=_text)}
    if isinstance(value, (bytes, bytearray)):
        return {"%bytes": value.hex()}
    from pydantic_core import to_jsonable_python

    return {f"%{place_of(type(value))}": to_jsonable_python(value)}


def _key(key: object) -> str:
    if isinstance(key, str):
        return f"%{key}" if key.startswith("%") else key
    return f"%{type(key).__name__}:{_text(_plain(key))}"
