"""Values that cannot be stored, sent or shown."""

import json
import math
from typing import Any

LEVELS = 10_000
_WORST_TEXT = '\x1b[3<!--&amp;\u202e\\"'


def nest(levels: int) -> Any:
    """Return a text within this many lists."""
    value: Any = "deep"
    for _ in range(levels):
        value = [value]
    return value


VALUES: dict[str, Any] = {
    "surrogate": "half \ud83d",
    "NaN": math.nan,
    "65 bits": 2**64,
    "object": object(),
    "16 MB": _WORST_TEXT * 1_000_000,
    "levels": nest(LEVELS),
    "1 MB": _WORST_TEXT * 62_000,
}
COLUMNS = [*VALUES][:-1]
"""Names of the values in the table."""
LONG = ("1 MB", "levels")
"""Names of the values that may not hold the event loop."""


def as_json(name: str) -> str:
    """Return the JSON text of a value, as a hostile peer writes it; an object is what Python writes in its place."""
    if name == "levels":
        return "[" * LEVELS + '"deep"' + "]" * LEVELS
    return json.dumps(VALUES[name], default=repr)


def as_msgpack(name: str) -> bytes:
    """Return the MessagePack bytes of a value, as a damaged or hostile database holds them."""
    if name.endswith("MB"):
        text = VALUES[name].encode()
        return b"\xdb" + len(text).to_bytes(4) + text
    return {
        "surrogate": b"\xa3\xed\xa0\xbd",
        "NaN": b"\xcb\x7f\xf8" + b"\0" * 6,
        "65 bits": b"\xc7\x09\x40\x01" + b"\0" * 8,  # an extension type that nobody has defined
        "object": b"\xc7\x0c\x00\x93\xa2os\xa6system\x80",  # LangGraph's extension for a call of a constructor
        "levels": b"\x91" * LEVELS + b"\xc0",
    }[name]
