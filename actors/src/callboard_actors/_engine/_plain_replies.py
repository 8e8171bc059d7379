"""Encoding of a confined worker's replies as JSON; an exception becomes its type, its text and its traceback."""

import json
import traceback
from typing import Any

from pydantic_core import to_json

from callboard_actors._engine._frames import Kind

MAX_TEXT = 16 * 1024
"""Largest length of each text in a reply with an exception, in characters."""
_MAX_PIECE = 1024
"""Largest length of each entry of a traceback, and of the error text at its end, in characters."""

_IMPORT_REMEDY = (
    "; a confined worker loads the standard library and site-packages: name another module in preload=[...], or its "
    "folder in Confine(modules=[...])"
)


def encode_result(value: Any) -> tuple[Kind, bytes]:
    """Encode the result of a call as a reply in JSON; if this fails, return a LOST reply with an error text."""
    try:
        return Kind.VALUE, to_json(value)
    except Exception as error:
        reason = f"it returned an object of type {type(value).__qualname__}"
        return Kind.LOST, f"{reason}, which is no JSON: {_text_of(error)}".encode(errors="replace")


def encode_error(error: Exception) -> tuple[Kind, bytes]:
    """Encode the exception of a call as a reply in JSON: its type, its text and its traceback."""
    # An import error that the confinement may have caused.
    files = (frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__))
    is_refused_import = isinstance(error, PermissionError) and any(
        file.startswith("<frozen importlib") for file in files
    )
    remedy = _IMPORT_REMEDY if is_refused_import or isinstance(error, ModuleNotFoundError) else ""
    description = {
        "module": type(error).__module__,
        "type": type(error).__qualname__,
        "text": (_text_of(error) + remedy)[:MAX_TEXT],
        "traceback": "".join(piece[:_MAX_PIECE] for piece in traceback.format_exception(error))[-MAX_TEXT:],
    }
    return Kind.RAISED, json.dumps(description).encode()


def _text_of(error: Exception) -> str:
    try:
        # `str` of a KeyError is the `repr` of its key; the pool makes a KeyError of this text, which would quote it
        # twice.
        text = error.args[0] if isinstance(error, KeyError) and error.args else error
        return str(text)[:MAX_TEXT]
    except Exception:  # user-defined `__str__`; the type is reported separately
        return ""
