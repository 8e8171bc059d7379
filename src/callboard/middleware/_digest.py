"""What an approval is good for: one tool, and arguments that mean the same."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from langchain_core.tools import BaseTool
from pydantic_core import to_jsonable_python


def digest_of(tool: BaseTool, args: Mapping[str, Any]) -> str:
    """SHA-256, in hex, over the JSON of tool and arguments: keys sorted, no spaces, ASCII.

    What is JSON counts as it is, and a tuple as a list. What is not counts as an object with one key, `%` and
    its type, and the value as pydantic has it in JSON; bytes as hex, a set sorted. A key that is no text is one
    of `%`, its type, a colon and its JSON. A key that begins with `%` gets another one.

    Raises:
        ValueError: for an argument of which there is no JSON: whether it has changed, nobody could say.
    """
    canonical = _text({"args": _plain(args), "name": tool.name, "runs": runs_in(tool)})
    return hashlib.sha256(canonical.encode()).hexdigest()


def runs_in(tool: BaseTool) -> str:
    """What a tool consists of, by the names of its class and its function; the same in any process.

    Two tools may have one name, and a middleware may put the one in the other's place.
    """
    found = getattr(tool, "coroutine", None) or getattr(tool, "func", None)
    return " ".join(_place(one) for one in (type(tool), found) if one is not None)


def _place(one: object) -> str:
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
    return {f"%{_place(type(value))}": to_jsonable_python(value)}


def _key(key: object) -> str:
    if isinstance(key, str):
        return f"%{key}" if key.startswith("%") else key
    return f"%{type(key).__name__}:{_text(_plain(key))}"
