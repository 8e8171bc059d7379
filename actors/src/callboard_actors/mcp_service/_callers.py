"""Identification of clients by the transport and its authentication.

A client chooses its name, its arguments and its idempotency keys freely, so none of these identifies it.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Final, cast

from mcp.server import ServerRequestContext
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken, principal_components
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.requests import Request

from callboard_actors.mcp._connection import IDEMPOTENCY_KEY

Context = ServerRequestContext[Any, Any]

_ONE_CLIENT: Final = "the client of this process"
"""Session id that stands for all requests over stdio: stdin and stdout belong to one client."""


class SharedToken(AccessToken):
    """Access token that several clients share: it authorizes a client, but does not identify it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Client that sent a request, as far as it can be identified.

    Args:
        principal: identity of the authenticated client, as JSON; `None` without an identity.
        session: session id of the protocol; `None` without one, as over HTTP since 2026-07-28.
        key: idempotency key that the client has chosen; `None` without one.
    """

    principal: str | None = None
    session: str | None = _ONE_CLIENT
    key: str | None = None

    @property
    def thread_id(self) -> str | None:
        """Thread id for the calls of the client; `None` if the client cannot be told apart from other clients."""
        # A digest, because thread ids appear in logs and traces, and a session id is a credential.
        if self.principal is None and self.session is None:
            return None
        return _digest("thread", self.principal, self.session)

    @property
    def is_remote(self) -> bool:
        """`True` if other clients may reach the same service, as over every transport except stdio."""
        return self.session != _ONE_CLIENT

    @property
    def call_name(self) -> str | None:
        """Name of the call: a digest of its idempotency key; `None` if the client has sent no key."""
        # It is equal for each retry of the client in any session.
        return None if self.key is None else _digest("call", self.principal, self.key)

    def own_name(self, name: str) -> str:
        """Return the server's internal form of a `name` (such as a thread id) that the client has chosen."""
        # Each authenticated client has a name space of its own.
        return name if self.principal is None else _digest("name", self.principal, name)


def caller_of(context: Context) -> Caller:
    """Return the client that sent a request."""
    request: object = context.request
    value: object = (context.meta or {}).get(IDEMPOTENCY_KEY)
    key = value if isinstance(value, str) and value else None
    if not isinstance(request, Request):
        return Caller(key=key)
    is_modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
    # The SDK has refused unknown session ids already. Since 2026-07-28 it ignores the header, so it proves nothing.
    session = None if is_modern else request.headers.get(MCP_SESSION_ID_HEADER)
    # The user is set by the SDK's middleware, or by any middleware that sets `scope["user"]`.
    user: object = request.scope.get("user")
    principal: str | None = None
    if isinstance(user, AuthenticatedUser):
        if not isinstance(user.access_token, SharedToken):
            principal = json.dumps(principal_components(user.access_token))
    elif getattr(user, "is_authenticated", False):
        try:
            identity: object = cast("Any", user).identity
        except (AttributeError, NotImplementedError):  # Starlette's SimpleUser has only a display name
            identity = getattr(user, "display_name", None)
        principal = json.dumps([type(user).__qualname__, str(identity)]) if identity else None
    return Caller(principal=principal, session=session, key=key)


def _digest(*parts: str | None) -> str:
    # JSON, because it escapes lone surrogates, which UTF-8 cannot encode, and because it separates the parts.
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
