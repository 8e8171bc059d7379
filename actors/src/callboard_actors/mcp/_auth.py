"""Authentication of requests without serialising them."""

from collections.abc import AsyncGenerator
from typing import Any

import httpx2
from mcp.client.auth import OAuthClientProvider

_REFUSED = (401, 403)


def auth_of_requests(auth: httpx2.Auth | None) -> httpx2.Auth | None:
    """Return the authentication to use for a client's requests."""
    return _SideBySide(auth) if isinstance(auth, OAuthClientProvider) else auth


class _SideBySide(httpx2.Auth):
    """OAuth client of the SDK, for several requests at a time.

    The SDK's client holds a lock until a response begins. A JSON response begins only when the call has ended, so
    calls would run one after the other. With a valid token, requests therefore bypass the SDK's client; it handles
    requests without a token, and refused ones.
    """

    def __init__(self, oauth: OAuthClientProvider) -> None:
        self._oauth = oauth

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        context = self._oauth.context
        if context.is_token_valid() and (tokens := context.current_tokens) is not None:
            request.headers["authorization"] = f"Bearer {tokens.access_token}"
            response = yield request
            if response.status_code not in _REFUSED:
                # The token worked, so the SDK's client and its lock are not needed.
                return
        flow: Any = self._oauth.async_auth_flow(request)
        try:
            outgoing = await anext(flow)
            while True:
                outgoing = await flow.asend((yield outgoing))
        except StopAsyncIteration:
            return
        finally:
            # Releases the lock of the SDK's client, even if this request is cancelled.
            await flow.aclose()
