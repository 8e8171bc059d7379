"""SDK server with its own OAuth authorization server; prints the port.

`python -m tests.mcp._protected [lifetime]`: the first tokens are declared to live for so many seconds; with -1
they arrive expired. Every client is registered and granted everything, until the tool `close` is called; the
registration of another client opens the office again.
"""

import socket
import sys
from collections import defaultdict
from typing import Any
from uuid import uuid4

import anyio
import uvicorn
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    RefreshToken,
    TokenError,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl

_AN_HOUR = 3600
LIFETIME = int(sys.argv[1]) if len(sys.argv) > 1 else _AN_HOUR


class Office:
    """Authorization server. The first word of each token names the grant by which it was issued."""

    def __init__(self) -> None:
        self._clients: dict[str, OAuthClientInformationFull] = {}
        self._codes: dict[str, AuthorizationCode] = {}
        self._refreshing: dict[str, RefreshToken] = {}
        self._valid: dict[str, AccessToken] = {}
        self._is_closed = False

    def revoke(self) -> None:
        self._valid.clear()

    def close(self) -> None:
        """Revoke all tokens and issue no more."""
        self.revoke()
        self._is_closed = True

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self._clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self._is_closed = False
        self._clients[str(client_info.client_id)] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        redirect = str(params.redirect_uri)
        if self._is_closed:
            return construct_redirect_uri(redirect, error="access_denied", state=params.state)
        code = AuthorizationCode(
            code=uuid4().hex,
            scopes=params.scopes or [],
            expires_at=2**40,
            client_id=str(client.client_id),
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        self._codes[code.code] = code
        return construct_redirect_uri(redirect, code=code.code, state=params.state)

    async def load_authorization_code(self, client: object, authorization_code: str) -> AuthorizationCode | None:
        return self._codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self._codes[authorization_code.code]
        return self._tokens("code", str(client.client_id), authorization_code.resource, LIFETIME)

    async def load_refresh_token(self, client: object, refresh_token: str) -> RefreshToken | None:
        return self._refreshing.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        if self._is_closed:
            raise TokenError("invalid_grant", "the office is closed")
        del self._refreshing[refresh_token.token]
        self.revoke()
        return self._tokens("refresh", str(client.client_id), refresh_token.resource, _AN_HOUR)

    def _tokens(self, grant: str, client: str, resource: str | None, lifetime: int) -> OAuthToken:
        access, refresh = f"{grant}-{uuid4().hex}", uuid4().hex
        self._valid[access] = AccessToken(token=access, client_id=client, scopes=[], resource=resource)
        self._refreshing[refresh] = RefreshToken(token=refresh, client_id=client, scopes=[], resource=resource)
        return OAuthToken(access_token=access, refresh_token=refresh, expires_in=lifetime)

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self._valid.get(token)

    async def revoke_token(self, token: object) -> None:
        self.revoke()


def server(port: int) -> MCPServer[Any]:
    office, url = Office(), f"http://127.0.0.1:{port}"
    auth = AuthSettings(
        issuer_url=AnyHttpUrl(url),
        resource_server_url=AnyHttpUrl(f"{url}/mcp"),
        validate_token_resource=True,
        client_registration_options=ClientRegistrationOptions(enabled=True),
    )
    mcp_server: MCPServer[Any] = MCPServer("protected", auth=auth, auth_server_provider=office)
    arrivals: defaultdict[str, list[None]] = defaultdict(list)
    meetings: defaultdict[str, anyio.Event] = defaultdict(anyio.Event)

    @mcp_server.tool()
    async def grant() -> str:
        """Tell what the caller has shown a token for."""
        token = get_access_token()
        return "nothing" if token is None else token.token.partition("-")[0]

    @mcp_server.tool()
    async def meet(place: str) -> str:
        """Wait for another one who calls this with the same place."""
        arrivals[place].append(None)
        if len(arrivals[place]) > 1:
            meetings[place].set()
        await meetings[place].wait()
        return "met"

    @mcp_server.tool()
    async def revoke() -> str:
        """Have all tokens be of no use."""
        office.revoke()
        return "revoked"

    @mcp_server.tool()
    async def close() -> str:
        """The same, and give none any more."""
        office.close()
        return "closed"

    return mcp_server


if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    print(port, flush=True)
    app = server(port).streamable_http_app(json_response=True)
    uvicorn.Server(uvicorn.Config(app, log_level="critical")).run(sockets=[listener])
