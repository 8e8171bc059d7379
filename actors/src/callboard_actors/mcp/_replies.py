"""Whether an answer over HTTP is one to the request that it comes with; who waits for one would wait for ever."""

import json
from typing import Any, cast

from mcp.shared.dispatcher import coerce_request_id

_LOOKED_AT = 64 * 2**10
"""Bytes of an answer that is read for this; to read a large one twice would take its time twice."""
_SHOWN = 200


def stray(request: bytes, answer: bytes) -> str | None:
    """What came in place of an answer; `None` if it is one, or is for others to judge.

    Args:
        request: the message that was sent.
        answer: what came with a status that says that it is one.
    """
    if len(answer) > _LOOKED_AT:
        return None
    sent, came = _parsed(request), _parsed(answer)
    if "method" not in sent or "id" not in sent or not came:
        return None
    if "method" in came:
        return f"a message of its own, {came['method']!r:.{_SHOWN}}"
    if "result" not in came and "error" not in came:
        return None  # no message at all, which the SDK says
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
    """Whether both are one id; the SDK takes "7" for 7, as servers have written it."""
    is_id = isinstance(number, (int, str)) and not isinstance(number, bool)
    return is_id and coerce_request_id(cast("Any", number)) == coerce_request_id(cast("Any", sent))
