"""Idempotency keys of requests, by which a server recognises a repetition."""

from dataclasses import replace
from hashlib import sha256

from callboard import idempotency_key
from callboard_actors.http._request import IDEMPOTENT, KEY_HEADER, Request


def with_key(request: Request) -> Request:
    """Return the request with an Idempotency-Key, if it needs one, has none, and is made within a call.

    The key is the same each time that the call makes this request, also after a crash. Another request has another key.
    """
    if request.method in IDEMPOTENT or request.has_key:
        return request
    try:
        call = idempotency_key()
    except (RuntimeError, ValueError):  # outside of a call, or in a call for which no key can be made
        return request
    parts = (call, request.method, request.url)
    digest = sha256(b"\0".join([*(part.encode() for part in parts), request.content or b""])).hexdigest()
    return replace(request, headers={**request.headers, KEY_HEADER: digest})
