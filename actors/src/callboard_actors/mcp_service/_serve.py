"""`serve_mcp` and `mcp_app`: the doors for programs; `callboard mcp` goes through the first one."""

import logging
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

import sniffio

from callboard import Drained
from callboard_actors._extras import needs
from callboard_actors.mcp_service._token import Token, check_token

if TYPE_CHECKING:
    from callboard_actors.mcp_service._app import McpApp
    from callboard_actors.mcp_service._service import Served, Service
    from callboard_actors.mcp_service._stdio import Wire

Transport = Literal["stdio", "http"]
"""By which way clients come: the one that has started this process, or any by HTTP."""

HOST: Final = "127.0.0.1"
PORT: Final = 8000
"""Where to listen, where nobody says otherwise."""

_PATH: Final = "/mcp"
_LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
"""The names of this machine for itself."""
_ANYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104 - compared with, not listened at
_log = logging.getLogger("callboard")


async def serve_mcp(
    served: "Served",
    *,
    transport: Transport = "stdio",
    name: str | None = None,
    description: str | None = None,
    host: str = HOST,
    port: int = PORT,
    allowed_hosts: Sequence[str] = (),
    token: Token | None = None,
    drain: float = 30.0,
) -> Drained:
    """Serve tools by MCP, until the client leaves or the process is told to end; returns what became of what ran.

    Args:
        served: a `ToolNode`, an agent, or tools: functions, LangChain's, actors, and MCP servers, which are opened for
            as long; or a function with `@asynccontextmanager` that yields one of these.
        transport: "stdio" for the client that has started this process, "http" for streamable HTTP.
        name: of the server, for its clients.
        description: of an agent, for the models of its clients.
        host: where to listen, for HTTP.
        port: at which port; 0 for any, which is told on stderr.
        allowed_hosts: by which other names than that of the host clients come, without a port.
        token: what clients have to show, as a bearer: one token for all, or one for each client, by the client's name.
        drain: seconds for calls to finish at SIGTERM or Ctrl-C; what has not is ended.

    Raises:
        ImportError: without the extra `mcp`.
        TypeError: for what cannot be served.
        ValueError: for tools that need what only a graph has, and options that do not go together.
        RuntimeError: for HTTP on trio; `mcp_app` runs there, under a server that does.
        OSError: it cannot listen there.
    """
    if transport not in ("stdio", "http"):
        raise ValueError(f'serve_mcp(transport=...) is "stdio" or "http", got {transport!r}')
    if transport == "http":
        app = http_app(served, name=name, description=description, host=host, allowed_hosts=allowed_hosts, token=token)
        return await over_http(app, host, port, drain)
    if token is not None or allowed_hosts or (host, port) != (HOST, PORT):
        raise ValueError(
            "serve_mcp(host=..., port=..., token=..., allowed_hosts=...) are for HTTP: give transport='http', too"
        )
    return await over_stdio(service_of(served, name=name, description=description), drain)


def service_of(served: "Served", *, name: str | None, description: str | None) -> "Service":
    """What is served, checked; raises as `serve_mcp` does."""
    needs("an MCP server", "mcp", extra="mcp")
    from callboard_actors.mcp_service._service import Service

    return Service(served, name=name, description=description)


async def over_stdio(service: "Service", drain: float, wire: "Wire | None" = None) -> Drained:
    """Serve the client that has started this process.

    Args:
        service: what is served.
        drain: seconds for calls to finish.
        wire: of `claimed_stdio`, where stdin and stdout were claimed before.
    """
    from callboard_actors.mcp_service._over_stdio import serve_stdio
    from callboard_actors.mcp_service._stdio import claimed_stdio

    with claimed_stdio() if wire is None else nullcontext(wire) as line:
        return await serve_stdio(service, line, drain)


def http_app(
    served: "Served",
    *,
    name: str | None,
    description: str | None,
    host: str,
    allowed_hosts: Sequence[str],
    token: Token | None,
) -> "McpApp":
    """An application for the clients that come to a host; raises as `serve_mcp` does, and warns of an open door."""
    needs("an MCP server", "mcp", extra="mcp")
    from callboard_actors.mcp_service._over_http import is_loopback

    if host in _ANYWHERE and not allowed_hosts:
        raise ValueError(
            f"clients come to {host} by some other name, and nobody is let in by a name that was not said: give "
            "allowed_hosts=[...], or --allow-host NAME, such as tools.example.com"
        )
    if not is_loopback(host) and token is None:
        _log.warning("whoever reaches %s may call these tools: have clients show a token, or listen at 127.0.0.1", host)
    own = () if host in _ANYWHERE or is_loopback(host) else (_bracketed(host),)
    names = [*_LOOPBACK, *own, *allowed_hosts]
    return mcp_app(served, name=name, description=description, allowed_hosts=names, token=token)


async def over_http(app: "McpApp", host: str, port: int, drain: float) -> Drained:
    """Serve all who come by HTTP; raises as `serve_mcp` does."""
    from callboard_actors.mcp_service._over_http import serve_http

    if sniffio.current_async_library() != "asyncio":
        raise RuntimeError(
            "serve_mcp(transport='http') runs uvicorn, which needs asyncio; on trio, give mcp_app(...) to a server "
            "that runs there, such as hypercorn"
        )
    return await serve_http(app, host, port, drain=drain, listening=partial(_say_where, app.tool_names))


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _say_where(tools: Sequence[str], host: str, port: int) -> None:
    where = f"http://{_bracketed(host)}:{port}{_PATH}"
    print(f"{len(tools)} served at {where}", file=sys.stderr, flush=True)  # noqa: T201


def mcp_app(
    served: "Served",
    *,
    name: str | None = None,
    description: str | None = None,
    path: str = _PATH,
    allowed_hosts: Sequence[str] = _LOOPBACK,
    token: Token | None = None,
) -> "McpApp":
    """Make an ASGI application that serves tools by MCP, over streamable HTTP, on asyncio and trio.

    It runs by itself, or in another application that has its `lifespan`. `drain_on_signal` takes it.

    Args:
        served: a `ToolNode`, an agent, or tools: functions, LangChain's, actors, and MCP servers, which are opened for
            as long; or a function with `@asynccontextmanager` that yields one of these.
        name: of the server, for its clients.
        description: of an agent, for the models of its clients.
        path: where clients find it.
        allowed_hosts: by which names clients come, without a port.
        token: what clients have to show, as a bearer: one token for all, or one for each client, by the client's name.

    Raises:
        ImportError: without the extra `mcp`.
        TypeError: for what cannot be served.
        ValueError: for tools that need what only a graph has, and for an empty token or one of two clients.
    """
    service = service_of(served, name=name, description=description)
    from callboard_actors.mcp_service._app import McpApp

    check_token(token)
    return McpApp(service, path=path, allowed_hosts=allowed_hosts, token=token)
