"""Canonical JSON of values, for digests of arguments: equal values have equal text."""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

_LONG = 10_000
"""Maximum characters of a text that is part of the JSON itself."""
_SLICE = 200_000
"""Number of characters that are hashed at once: about a millisecond."""
_CONTAINERS = (Mapping, list, tuple, set, frozenset)


def digest(value: Any) -> str:
    """Return the SHA-256, in hex, of the canonical JSON of a value: keys sorted, no spaces, ASCII.

    JSON values stand for themselves, and a tuple is a list. Any other value becomes an object with one key: `%` and its
    type. The value of that key is pydantic's JSON of it; bytes are hex, a set is a sorted list. A key that is no text
    becomes `%`, its type, a colon and its JSON. A text key that begins with `%` gets another `%`. Of a text with more
    than 10,000 characters, the SHA-256 of its UTF-8 is taken.

    Args:
        value: to be hashed, such as the arguments of a call.

    Raises:
        ValueError: if the value has no JSON form, so that a change of it could not be detected.
    """
    return hashlib.sha256(_text(_plain(value)).encode()).hexdigest()


def short_digest(value: object, limit: int) -> str | None:
    """Return the digest of a value, in a time that its size does not change; `None` for a value without one.

    Such a value has more than `limit` characters and values, has a number that is not finite, or has no JSON form.
    """
    if not _is_short(value, limit):
        return None
    try:
        return digest(value)
    except (ValueError, RecursionError):
        return None


def _is_short(value: object, limit: int) -> bool:
    size, values = 0, [value]
    # An explicit stack, because a value may be nested deeply or contain itself.
    while values and size <= limit:
        item = values.pop()
        if isinstance(item, float) and not math.isfinite(item):
            return False
        size += 1 + _length(item)
        if isinstance(item, _CONTAINERS) and size <= limit:
            values.extend((*item, *item.values()) if isinstance(item, Mapping) else item)
    return size <= limit


def _length(item: object) -> int:
    """Return the number of characters, digits or items of a value."""
    if isinstance(item, int):
        return item.bit_length() // 3
    return len(item) if isinstance(item, (str, bytes, bytearray, *_CONTAINERS)) else 0


def place_of(value: object) -> str:
    """Return the dotted name of a class or function; for any other object, the dotted name of its class."""
    named_object = value if hasattr(value, "__qualname__") else type(value)
    return f"{getattr(named_object, '__module__', '')}.{getattr(named_object, '__qualname__', '')}"


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= _LONG else {"%text": _digest_of_text(value)}
    if value is None or isinstance(value, (int, float)):
        return value
    if isinstance(value, Mapping):
        # Digests are stored, such as in journal keys of actors: a change of any form here would orphan stored data.
        return {_key(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return {"%set": sorted(map(_plain, value), key=_text)}
    if isinstance(value, (bytes, bytearray)):
        return {"%bytes": value.hex()}
    from pydantic_core import to_jsonable_python

    return {f"%{place_of(type(value))}": to_jsonable_python(value)}


def _digest_of_text(text: str) -> str:
    # In slices, because JSON of a text of megabytes holds the interpreter lock for tens of milliseconds.
    text_hash = hashlib.sha256()
    for start in range(0, len(text), _SLICE):
        text_hash.update(text[start : start + _SLICE].encode(errors="surrogatepass"))
    return text_hash.hexdigest()


def _key(key: object) -> str:
    if isinstance(key, str):
        if len(key) > _LONG:
            return f"%text:{_digest_of_text(key)}"
        return f"%{key}" if key.startswith("%") else key  # escaped: the model's own "%set" must not equal a set
    return f"%{type(key).__name__}:{_text(_plain(key))}"
