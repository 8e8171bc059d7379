"""Texts for a terminal. The output of models and tools is escaped, so that it cannot control the terminal."""

import json
import sys
from typing import Any

from callboard.questions import printable


class CommandError(Exception):
    """Error of a command, which is shown to the user as one line and ends the process with `exit_code`."""

    exit_code = 2


def escape_name(text: str) -> str:
    """Return a name as printable text in one line; escape newlines and tabs, and all that `printable()` escapes."""
    # Security: names come from models and databases. A newline in a name could forge a line about another call.
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def quote(name: object) -> str:
    """Return a name or a path as printable text in quotes."""
    return f"'{escape_name(str(name))}'"


_SPACES = 16
"""Number of characters that are read for each character of a line: successive spaces become one."""


def one_line(text: str, length: int) -> str:
    """Return a text as one printable line of at most `length` characters; the end of a longer text is cut off."""
    # Cut before each character is looked at, which takes a second for a megabyte; spaces may then still be removed.
    beginning = text[: _SPACES * (length + 1)]
    short_text = printable(" ".join(beginning.split()))
    is_whole = len(beginning) == len(text) and len(short_text) <= length
    return short_text if is_whole else f"{short_text[: max(0, length - 1)]}…"


def as_json(value: Any, *, indent: int | None = None) -> str:
    """Return any value as a JSON text; values that JSON does not have are converted with `str`."""
    from pydantic_core import to_jsonable_python

    plain = to_jsonable_python(value, serialize_unknown=True, inf_nan_mode="strings", bytes_mode="base64")
    try:
        return json.dumps(plain, ensure_ascii=False, indent=indent, allow_nan=False)
    except ValueError:  # `inf_nan_mode` changes the texts that pydantic writes, and not the values that it returns
        finite = json.loads(json.dumps(plain), parse_constant=str)
        return json.dumps(finite, ensure_ascii=False, indent=indent)


def print_json(value: Any) -> None:
    """Print any value on stdout as JSON, with escapes in place of characters that its encoding does not have."""
    text = as_json(value, indent=2)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(json.loads(text), indent=2)
    print(text)


def as_text(value: object) -> str:
    """Return any value as a printable text: a string as it is, any other value as JSON."""
    return printable(value if isinstance(value, str) else as_json(value, indent=2))


def error_text(error: BaseException) -> str:
    """Return the type and the message of an error as printable text, as in the last line of a traceback."""
    return printable(f"{type(error).__name__}: {error}")


def count(number: int, name: str) -> str:
    """Return a text of a number and a noun, such as "2 calls"; the noun is in the plural if needed."""
    return f"{number} {name}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Return a duration in seconds as a text with its unit, such as "1.50 s"; below one second in milliseconds."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 100 else f"{seconds:,.0f} s"
