"""Callers: which requests come from one client, as far as the transport and its authentication can tell.

A client chooses its name, its arguments and its idempotency keys by itself, so none of these tells clients apart.
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

from callboard_actors.mcp._signs import IDEMPOTENCY_KEY

Context = ServerRequestContext[Any, Any]

_ONE_CLIENT: Final = "the client of this process"
"""Session of every request that does not come by HTTP: stdin and stdout belong to one client."""


class SharedToken(AccessToken):
    """Token that several clients show: it lets a client in, and does not say which one it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Client that has made one request.

    Args:
        principal: the authenticated client, as JSON; `None` if the request does not say by whom it was made.
        session: the session of the protocol; `None` if the request has none, as over HTTP since 2026-07-28.
        connection: address and port that the request came from; empty if it did not come by a network.
        key: idempotency key that the client has chosen; `None` if there is none.
    """

    principal: str | None = None
    session: str | None = _ONE_CLIENT
    connection: tuple[str, str] = ("", "")
    key: str | None = None

    @property
    def thread_id(self) -> str | None:
        """The thread of the client's calls; `None` if nothing tells the client from others.

        A digest, because a thread is named in logs and traces, and the id of a session lets its holder in.
        """
        if self.principal is None and self.session is None:
            return None
        return _digest("thread", self.principal, self.session)

    @property
    def is_remote(self) -> bool:
        """Whether other clients may reach the same service."""
        return self.session != _ONE_CLIENT

    @property
    def call_name(self) -> str | None:
        """Name of the call, the same whenever the client makes it again, in any session; `None` without a key."""
        return None if self.key is None else _digest("call", self.principal, self.key)

    @property
    def owner(self) -> tuple[str, str]:
        """The client as far as it is known, for bounds: the principal, or else the connection of the request."""
        return self.connection if self.principal is None else ("principal", self.principal)

    def own_name(self, name: str) -> str:
        """Return the name under which something is kept that the client calls by this name.

        Authenticated clients have a name space each. Others share one.
        """
        return name if self.principal is None else _digest("name", self.principal, name)


def caller_of(context: Context) -> Caller:
    """Return the client that has made a request."""
    request: object = context.request
    key = _key_in(context)
    if not isinstance(request, Request):
        return Caller(key=key)
    is_modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
    # The SDK has refused an id of a session that it does not have. Since 2026-07-28 it does not look at the header.
    session = None if is_modern else request.headers.get(MCP_SESSION_ID_HEADER)
    peer = request.client
    connection = ("", "") if peer is None else (peer.host, str(peer.port))
    return Caller(principal=_principal_of(request), session=session, connection=connection, key=key)


def _principal_of(request: Request) -> str | None:
    """Return the authenticated client, by the SDK's middleware or any other that sets `scope["user"]`."""
    user: object = request.scope.get("user")
    if isinstance(user, AuthenticatedUser):
        token = user.access_token
        return None if isinstance(token, SharedToken) else json.dumps(principal_components(token))
    if not getattr(user, "is_authenticated", False):
        return None
    try:
        identity: object = cast("Any", user).identity
    except (AttributeError, NotImplementedError):  # Starlette's SimpleUser has a display name only
        identity = getattr(user, "display_name", None)
    return json.dumps([type(user).__qualname__, str(identity)]) if identity else None


def _key_in(context: Context) -> str | None:
    """Return the key by which the client knows the call again, if it gives one."""
    given: object = (context.meta or {}).get(IDEMPOTENCY_KEY)
    return given if isinstance(given, str) and given else None


def _digest(*parts: str | None) -> str:
    # The text may have lone surrogates, which UTF-8 has not: JSON escapes them.
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
