"""A service as an ASGI application: streamable HTTP, in both eras of MCP."""

import hmac
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import anyio
from anyio.abc import TaskStatus
from mcp.server.auth.middleware.bearer_auth import BearerAuthBackend, RequireAuthMiddleware
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from callboard import Drained
from callboard_actors.mcp_service._callers import SharedToken
from callboard_actors.mcp_service._service import PATIENCE, Service
from callboard_actors.mcp_service._token import Token

_TO_ANSWER: Final = 5.0
"""Seconds that clients have to take their answers, once calls have ended."""


class McpApp(Starlette):
    """An ASGI application that serves tools by MCP; made by `mcp_app`.

    It has to be running: as an application of its own it is, in another one by `lifespan`.
    """

    def __init__(self, service: Service, *, path: str, allowed_hosts: Sequence[str], token: Token | None) -> None:
        self._endpoint = _Endpoint(service, _security(allowed_hosts))
        self._service = service
        endpoint: ASGIApp = self._endpoint
        middleware: list[Middleware] = []
        if token is not None:
            endpoint = RequireAuthMiddleware(endpoint, [])
            middleware = [Middleware(AuthenticationMiddleware, backend=BearerAuthBackend(_Tokens(token)))]
        super().__init__(
            routes=[Route(path, endpoint=endpoint)],
            middleware=middleware,
            lifespan=self.lifespan,
        )

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncGenerator[None]:
        """A block in which the application serves; for the lifespan of one that it is mounted in."""
        async with self._service.opened(), anyio.create_task_group() as group:
            await group.start(self._endpoint.serve)
            try:
                yield
            finally:
                self._endpoint.close()

    @property
    def tool_names(self) -> list[str]:
        """The tools that are served."""
        return self._service.tool_names

    async def drain(self, timeout: float = PATIENCE) -> Drained:
        """Begin no calls, let those that run finish, and end the sessions of clients once they have their answers.

        Args:
            timeout: seconds for calls to finish; those that have not are ended.
        """
        report = await self._service.drain(timeout)
        with anyio.move_on_after(_TO_ANSWER):
            await self._endpoint.all_answered()
        self._endpoint.close()
        return report


class _Endpoint:
    """Where clients send their requests, while it serves."""

    def __init__(self, service: Service, security: TransportSecuritySettings) -> None:
        self._service = service
        self._security = security
        self._sessions: StreamableHTTPSessionManager | None = None
        self._closing = anyio.Event()
        self._was_open = False
        self._requests = 0
        self._none_left = anyio.Event()

    async def serve(self, *, task_status: TaskStatus[None]) -> None:
        """Keep the sessions of clients, until it is closed."""
        # A manager serves once, and an application may be started again.
        sessions = StreamableHTTPSessionManager(self._service.server(), security_settings=self._security)
        self._closing = anyio.Event()
        async with sessions.run():
            self._sessions = sessions
            self._was_open = True
            task_status.started()
            await self._closing.wait()

    def close(self) -> None:
        """End the sessions, and begin none."""
        self._sessions = None
        self._closing.set()

    async def all_answered(self) -> None:
        """Wait until no client waits for an answer."""
        while self._requests:
            self._none_left = anyio.Event()
            await self._none_left.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._sessions is None:
            if not self._was_open:
                raise RuntimeError(
                    "this application of mcp_app() does not run: mounted in another one, it needs that one's lifespan, "
                    "as in Starlette(..., lifespan=app.lifespan)"
                )
            await PlainTextResponse("The server is shutting down.", status_code=503)(scope, receive, send)
        elif scope["method"] != "POST":  # a stream of news, which ends with its session
            await self._sessions.handle_request(scope, receive, send)
        else:
            self._requests += 1
            try:
                await self._sessions.handle_request(scope, receive, send)
            finally:
                self._requests -= 1
                if not self._requests:
                    self._none_left.set()


class _Tokens:
    """Verifier of the tokens that the server was given; what the SDK asks for each request."""

    def __init__(self, token: Token) -> None:
        self._shared = token.encode() if isinstance(token, str) else None
        self._of_clients = {} if isinstance(token, str) else {name: one.encode() for name, one in token.items()}

    async def verify_token(self, token: str) -> AccessToken | None:
        shown = token.encode()
        if self._shared is not None and hmac.compare_digest(shown, self._shared):
            return SharedToken(token=token, client_id="client", scopes=[])
        # All of them, so that the time does not say which one was nearly right.
        names = [name for name, one in self._of_clients.items() if hmac.compare_digest(shown, one)]
        return AccessToken(token=token, client_id=names[0], scopes=[]) if names else None


def _security(allowed_hosts: Sequence[str]) -> TransportSecuritySettings:
    """Let nobody in who asks for another host: a page in a browser here, by a name that was bound to this address."""
    return TransportSecuritySettings(
        allowed_hosts=[name for host in allowed_hosts for name in (host, f"{host}:*")],
        allowed_origins=[
            name
            for host in allowed_hosts
            for scheme in ("http", "https")
            for name in (f"{scheme}://{host}", f"{scheme}://{host}:*")
        ],
    )
