"""Values of a database: the part of a long value that is kept, and the text for a model."""

import re
from dataclasses import dataclass

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


@dataclass(frozen=True, slots=True)
class Cut:
    """Beginning of a value that is longer than allowed."""

    begin: str | bytes
    length: int
    """Characters of a text, bytes of any other value."""


def kept(value: object, most: int) -> object:
    """Return a value for the program: unchanged, or a text with the first `most` characters or bytes of a long one."""
    if isinstance(value, memoryview):
        value = bytes(value)
    if isinstance(value, (str, bytes)) and len(value) > most:
        value = Cut(value[:most], len(value))
    elif not isinstance(value, (str, bytes, Cut)) and hasattr(value, "__len__") and len(text := str(value)) > most:
        value = Cut(text[:most], len(text))
    if not isinstance(value, Cut):
        return value
    unit = "characters" if isinstance(value.begin, str) else "bytes"
    begin = value.begin if isinstance(value.begin, str) else _hex(value.begin)
    return f"{begin}... [cut; {value.length:,} {unit}]"


def shown(value: object) -> str:
    """Return a value as one line; no value can break out of its line or column."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return _hex(value)
    return _CONTROL.sub(_escaped, str(value)).replace("|", "\\|")


def _hex(value: bytes) -> str:
    return f"x'{value.hex()}'"


def _escaped(found: re.Match[str]) -> str:
    return _ESCAPES.get(found[0], f"\\x{ord(found[0]):02x}")
