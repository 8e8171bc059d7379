"""Whoever authenticates requests: what becomes of a request that is not, and that one does not wait for another."""

from collections.abc import AsyncGenerator
from typing import Any

import httpx2
from mcp.client.auth import OAuthClientProvider

_REFUSED = (401, 403)


def auth_of_requests(auth: httpx2.Auth | None) -> httpx2.Auth | None:
    """What a client is given for its requests."""
    return _SideBySide(auth) if isinstance(auth, OAuthClientProvider) else auth


class _SideBySide(httpx2.Auth):
    """An OAuth client of the SDK, which by itself has one request at a time.

    It is locked until an answer begins, and where that is JSON it begins when the call has ended. While it has a token
    that it takes for valid, requests show it and pass by; what is refused, and what has none, goes to the client.
    """

    def __init__(self, oauth: OAuthClientProvider) -> None:
        self._oauth = oauth

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        context = self._oauth.context
        if context.is_token_valid() and (tokens := context.current_tokens) is not None:
            request.headers["authorization"] = f"Bearer {tokens.access_token}"
            response = yield request
            if response.status_code not in _REFUSED:
                return
        flow: Any = self._oauth.async_auth_flow(request)
        try:
            outgoing = await anext(flow)
            while True:
                outgoing = await flow.asend((yield outgoing))
        except StopAsyncIteration:
            return
        finally:
            await flow.aclose()
