"""Public functions `serve_mcp` and `mcp_app`, and their parts that `callboard mcp` uses."""

import logging
import sys
from collections.abc import Sequence
from functools import partial
from typing import Final, Literal

import sniffio

from callboard import Drained
from callboard_actors.mcp_service._http import McpApp, is_loopback, serve_http
from callboard_actors.mcp_service._service import Served, Service
from callboard_actors.mcp_service._stdio import claimed_stdio, serve_stdio
from callboard_actors.mcp_service._token import Token, check_token

Transport = Literal["stdio", "http"]
"""Transport: stdio for the client that started this process, or HTTP for any client."""

HOST: Final = "127.0.0.1"
PORT: Final = 8000
"""Default address and port to listen on."""

_PATH: Final = "/mcp"
_LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
"""Names of the loopback interface."""
_ANYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104 - for comparison only
_log = logging.getLogger("callboard")


async def serve_mcp(
    served: Served,
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
    """Serve tools by MCP until the client leaves, or until SIGTERM or SIGINT; return the report of the drain.

    Args:
        served: a `ToolNode`, an agent, or tools (functions, LangChain tools, actors, MCP servers); or a function with
            `@asynccontextmanager` that yields one of these. MCP servers are opened while the tools are served.
        transport: "stdio" for the client that started this process, "http" for streamable HTTP.
        name: name of the server, for its clients.
        description: description of an agent, for the models of its clients.
        host: address to listen on, for HTTP.
        port: port to listen on, for HTTP; 0 for any free port, which is printed on stderr.
        allowed_hosts: further host names, without a port, that clients may use to reach the server.
        token: bearer token that all clients must send, or a mapping from client names to their tokens.
        drain: seconds for calls to finish after a signal; later ones are ended.

    Raises:
        TypeError: for an object that cannot be served.
        ValueError: for tools with arguments that only a graph provides, and for contradictory options.
        RuntimeError: for HTTP on trio; run `mcp_app` under an ASGI server that supports trio.
        OSError: if the address cannot be used.
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
    service = Service(served, name=name, description=description)
    with claimed_stdio() as wire:
        return await serve_stdio(service, wire, drain)


def http_app(
    served: Served,
    *,
    name: str | None,
    description: str | None,
    host: str,
    allowed_hosts: Sequence[str],
    token: Token | None,
) -> McpApp:
    """Return an application for a host; raise the errors of `serve_mcp`, and warn of access without a token."""
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


async def over_http(app: McpApp, host: str, port: int, drain: float) -> Drained:
    """Serve clients by HTTP; raise the errors of `serve_mcp`."""
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
    served: Served,
    *,
    name: str | None = None,
    description: str | None = None,
    path: str = _PATH,
    allowed_hosts: Sequence[str] = _LOOPBACK,
    token: Token | None = None,
) -> McpApp:
    """Return an ASGI application that serves tools by MCP over streamable HTTP, on asyncio and trio.

    Run it under an ASGI server, or mount it in another application that uses its `lifespan`. It can be passed to
    `drain_on_signal`.

    Args:
        served: a `ToolNode`, an agent, or tools (functions, LangChain tools, actors, MCP servers); or a function with
            `@asynccontextmanager` that yields one of these. MCP servers are opened while the tools are served.
        name: name of the server, for its clients.
        description: description of an agent, for the models of its clients.
        path: URL path of the MCP endpoint.
        allowed_hosts: host names, without a port, that clients may use to reach the server.
        token: bearer token that all clients must send, or a mapping from client names to their tokens.

    Raises:
        TypeError: for an object that cannot be served.
        ValueError: for tools with arguments that only a graph provides, for an empty token, and for equal tokens.
    """
    service = Service(served, name=name, description=description)
    check_token(token)
    return McpApp(service, path=path, allowed_hosts=allowed_hosts, token=token)
