"""Text for a terminal: what a model or a tool wrote is shown, and cannot act."""

import json
import unicodedata
from collections.abc import Mapping
from typing import Any

from pydantic_core import to_jsonable_python

_JOINERS = "\u200c\u200d"
"""Within words of some scripts, and within emoji."""


class CommandError(Exception):
    """A command cannot do what it was told; says why, in one line."""

    exit_code = 2


def printable(text: str) -> str:
    """The text with control and direction characters escaped, but for newlines and tabs.

    An escape sequence could move the cursor and paint over what a person is about to approve; an override of
    the direction could show it backwards.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(char) if _acts(char) else char for char in text)


def named(text: str) -> str:
    """A name on the one line that it is shown on: line breaks and tabs are escaped too, as `repr` does.

    Names come from models and from databases; one with a line break in it could forge the line of another.
    """
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def _acts(char: str) -> bool:
    return char not in "\n\t" and char not in _JOINERS and unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def _escaped(char: str) -> str:
    return json.dumps(char)[1:-1]  # within JSON it stays what it was


def one_line(text: str, length: int) -> str:
    """The text on one line, its end cut off if it is longer than `length` characters."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= length else f"{line[: max(0, length - 1)]}…"


def call_text(name: str, args: object, length: int) -> str:
    """A call as Python would write it, on one line, cut off after `length` characters."""
    if not isinstance(args, Mapping):
        return one_line(named(name), length)
    inner = ", ".join(f"{named(str(key))}={value!r}" for key, value in args.items())
    return one_line(f"{named(name)}({inner})", length)


def as_json(value: Any, *, indent: int | None = None) -> str:
    """JSON of anything: what has no JSON of its own is told by its `str`."""
    plain = to_jsonable_python(value, serialize_unknown=True, inf_nan_mode="strings", bytes_mode="base64")
    return json.dumps(plain, ensure_ascii=False, indent=indent)


def as_text(value: object) -> str:
    """A text as it is and anything else as JSON, safe to be shown."""
    return printable(value if isinstance(value, str) else as_json(value, indent=2))


def error_text(error: BaseException) -> str:
    """The type and the text of an error, as at the end of a traceback."""
    return printable(f"{type(error).__name__}: {error}")


def count(number: int, name: str) -> str:
    """A number and a noun, which is plural where the number says so."""
    return f"{number} {name}{'' if number == 1 else 's'}"


def seconds(value: float) -> str:
    """A duration with its unit, with two decimals if it is short."""
    return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"
