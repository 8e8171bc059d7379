"""Values that JSON in UTF-8 cannot carry: MCP's connection ends if one reaches the transport."""

import json

from pydantic_core import PydanticSerializationError, to_jsonable_python


def reason_unsendable(value: object) -> str | None:
    """Return a clause why a value cannot be sent as JSON; `None` if it can be sent."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False, default=to_jsonable_python).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start : error.start + 1]
        return f"it has half of a surrogate pair ({half!r}), which is no character"
    except PydanticSerializationError as error:
        return f"it has a value without a form in JSON ({error})"
    except ValueError as error:
        return f"it has a number or a cycle that JSON does not have ({error})"
    except RecursionError:
        return "it is nested too deeply"
    return None


def as_sendable(text: str) -> str:
    """Return a text with `?` in place of each half of a surrogate pair."""
    return text.encode(errors="replace").decode()
