"""MCP over streamable HTTP, for protocol versions before and since 2026-07-28: ASGI application, and server process."""

import hmac
import logging
import socket
import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import anyio
import sniffio
import uvicorn
from anyio.abc import TaskStatus
from mcp.server.auth.middleware.bearer_auth import BearerAuthBackend, RequireAuthMiddleware
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import RequestBodyLimitMiddleware, TransportSecuritySettings
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from callboard import Drained, drain_on_signal
from callboard_actors.mcp_service._callers import SharedToken
from callboard_actors.mcp_service._service import PATIENCE, Service
from callboard_actors.mcp_service._token import Token

# The application.

PATH: Final = "/mcp"
"""Default URL path of the MCP endpoint."""
_TO_ANSWER: Final = 5.0
"""Maximum seconds for clients to receive their answers after a drain."""


_MOST_BODY: Final = 256 * 2**10
"""Maximum bytes of a request.

The event loop is held while the SDK parses them: about 10 ms for nested lists, and 100 ms more if their number starts
a full garbage collection of a program that has not called `gc.freeze()`.
"""
_MOST_OPENING: Final = 64 * 2**10
"""Maximum bytes of the request that opens a session. A session keeps it for its whole life."""
_MOST_SESSIONS: Final = 1000
"""Maximum number of sessions at the same time. One that nobody uses ends after 30 minutes."""


class McpApp(Starlette):
    """ASGI application that serves tools by MCP; made by `mcp_app`.

    Its lifespan must run. An ASGI server runs it for a top-level application. If you mount the application in
    another one, pass `lifespan` to the outer one.
    """

    def __init__(self, service: Service, *, path: str, allowed_hosts: Sequence[str], token: Token | None) -> None:
        self._endpoint = _Endpoint(service, allowed_hosts)
        self._service = service
        endpoint: ASGIApp = self._endpoint
        middleware: list[Middleware] = []
        if token is not None:
            endpoint = RequireAuthMiddleware(endpoint, [])
            middleware = [Middleware(AuthenticationMiddleware, backend=BearerAuthBackend(_TokenVerifier(token)))]
        super().__init__(routes=[Route(path, endpoint=endpoint)], middleware=middleware, lifespan=self.lifespan)

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncGenerator[None]:
        """Open the served object, and accept requests, during the `async with` block.

        For a mounted application, pass this method as the lifespan of the outer one.
        """
        async with self._service.open(), anyio.create_task_group() as group:
            await group.start(self._endpoint.serve)
            try:
                yield
            finally:
                self._endpoint.close()

    @property
    def tool_names(self) -> list[str]:
        """Names of the served tools."""
        return self._service.tool_names

    async def drain(self, timeout: float = PATIENCE) -> Drained:
        """Refuse new calls, wait for running calls, and then end all client sessions; return the report of the drain.

        Args:
            timeout: seconds for calls to finish; later ones are ended.
        """
        report = await self._service.drain(timeout)
        with anyio.move_on_after(_TO_ANSWER):
            await self._endpoint.until_answered()
        self._endpoint.close()
        return report


class _Endpoint:
    """ASGI endpoint for MCP requests; it answers them only during the lifespan of the application."""

    def __init__(self, service: Service, allowed_hosts: Sequence[str]) -> None:
        self._service = service
        # Against DNS rebinding by web pages.
        origins = [f"{scheme}://{host}" for host in allowed_hosts for scheme in ("http", "https")]
        self._security = TransportSecuritySettings(
            allowed_hosts=[name for host in allowed_hosts for name in (host, f"{host}:*")],
            allowed_origins=[name for origin in origins for name in (origin, f"{origin}:*")],
        )
        self._sessions: StreamableHTTPSessionManager | None = None
        self._closing = anyio.Event()
        self._was_open = False
        self._requests = 0  # POST requests without a complete answer
        self._no_requests = anyio.Event()

    async def serve(self, *, task_status: TaskStatus[None]) -> None:
        """Answer requests, by the SDK's session manager, until `close()` is called."""
        # A new manager each time: a manager runs only once, but an application may be started again.
        sessions = StreamableHTTPSessionManager(
            self._service.server(),
            security_settings=self._security,
            max_request_body_size=_MOST_BODY,
            max_sessions=_MOST_SESSIONS,
        )
        self._closing = anyio.Event()
        async with sessions.run():
            self._sessions = sessions
            self._was_open = True
            task_status.started()
            await self._closing.wait()

    def close(self) -> None:
        """End all sessions, and refuse new requests."""
        self._sessions = None
        self._closing.set()

    async def until_answered(self) -> None:
        """Wait until every POST request has been answered."""
        while self._requests:
            self._no_requests = anyio.Event()
            await self._no_requests.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._sessions is None:
            if not self._was_open:
                raise RuntimeError(
                    "this application of mcp_app() does not run: mounted in another one, it needs that one's lifespan, "
                    "as in Starlette(..., lifespan=app.lifespan)"
                )
            await PlainTextResponse("The server is shutting down.", status_code=503)(scope, receive, send)
        elif scope["method"] != "POST":  # a stream of notifications ends only with its session: a drain must not wait
            await self._sessions.handle_request(scope, receive, send)
        else:
            answer: ASGIApp = self._sessions.handle_request
            headers = Headers(scope=scope)
            version = headers.get(MCP_PROTOCOL_VERSION_HEADER)
            # It can only be the first request of a session, and the session keeps its body.
            if MCP_SESSION_ID_HEADER not in headers and (version is None or version in HANDSHAKE_PROTOCOL_VERSIONS):
                answer = RequestBodyLimitMiddleware(answer, _MOST_OPENING)
            self._requests += 1
            try:
                await answer(scope, receive, send)
            finally:
                self._requests -= 1
                if not self._requests:
                    self._no_requests.set()


class _TokenVerifier:
    """Verifier of bearer tokens, which the SDK calls for each request."""

    def __init__(self, token: Token) -> None:
        self._shared = token.encode() if isinstance(token, str) else None
        self._of_clients = {} if isinstance(token, str) else {name: secret.encode() for name, secret in token.items()}

    async def verify_token(self, token: str) -> AccessToken | None:
        presented = token.encode()
        if self._shared is not None and hmac.compare_digest(presented, self._shared):
            return SharedToken(token=token, client_id="client", scopes=[])
        # Compares with every token in constant time, so that timing does not reveal a nearly correct token.
        names = [name for name, secret in self._of_clients.items() if hmac.compare_digest(presented, secret)]
        return AccessToken(token=token, client_id=names[0], scopes=[]) if names else None


# The server process, with uvicorn.

_log = logging.getLogger("callboard")


def url_host(host: str) -> str:
    """Return a host as it is written in a URL."""
    return f"[{host}]" if ":" in host else host


async def serve_http(app: McpApp, host: str, port: int, drain: float) -> Drained:
    """Serve the application by uvicorn until SIGTERM or SIGINT, and return the report of the drain.

    Raise RuntimeError if the event loop is not asyncio.
    """
    if sniffio.current_async_library() != "asyncio":
        raise RuntimeError(
            "serve_mcp(transport='http') runs uvicorn, which needs asyncio; on trio, give mcp_app(...) to a server "
            "that runs there, such as hypercorn"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as listener:
        server = _Server(uvicorn.Config(app, lifespan="off", log_config=None, access_log=False))
        # The server is drained after the calls.
        async with app.lifespan(), drain_on_signal(app, server, timeout=drain) as shutdown:
            address, bound_port = listener.getsockname()[:2]
            url = f"http://{url_host(address)}:{bound_port}{PATH}"
            print(f"{len(app.tool_names)} served at {url}", file=sys.stderr, flush=True)  # noqa: T201 (output of a command)
            await server.serve(sockets=[listener])
            server.has_ended.set()
    return shutdown.report


class _Server(uvicorn.Server):
    """Uvicorn server without signal handlers: `drain_on_signal` handles signals, and first drains the calls."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.has_ended = anyio.Event()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def drain(self, timeout: float = PATIENCE) -> Drained:
        """Stop the server. Connections that still have requests after `timeout` seconds are closed."""
        # The returned report is empty: it counts no calls.
        self.should_exit = True
        with anyio.move_on_after(timeout):
            await self.has_ended.wait()
        self.force_exit = True
        await self.has_ended.wait()
        return Drained()
