"""Check that an HTTP response answers its request. If it does not, the SDK would wait for an answer for ever."""

import json
from typing import Any, cast

from mcp.shared.dispatcher import coerce_request_id

_LOOKED_AT = 64 * 2**10
"""Maximum bytes of a checked response: it is parsed here and again in the SDK."""
_SHOWN = 200


def stray(request: bytes, answer: bytes) -> str | None:
    """Describe a response that does not answer the request; `None` if it does, or the SDK will report the error."""
    if len(answer) > _LOOKED_AT:
        return None
    sent, came = _parsed(request), _parsed(answer)
    if "method" not in sent or "id" not in sent or not came:
        return None
    if "method" in came:
        return f"a message of its own, {came['method']!r:.{_SHOWN}}"
    if "result" not in came and "error" not in came:
        return None  # no JSON-RPC message, which the SDK reports itself
    number = came.get("id")
    if _same(number, sent["id"]):
        return None
    if number is None and "error" in came:
        return f"an error without an id, {json.dumps(came['error'])[:_SHOWN]}"
    return f"an answer to another request, with id {number!r:.{_SHOWN}} in place of {sent['id']!r}"


def _parsed(message: bytes) -> dict[str, Any]:
    try:
        found = json.loads(message)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _same(number: object, sent: object) -> bool:
    """Return whether two ids are equal. The SDK accepts "7" for 7, because some servers write it so."""
    is_id = isinstance(number, (int, str)) and not isinstance(number, bool)
    return is_id and coerce_request_id(cast("Any", number)) == coerce_request_id(cast("Any", sent))
