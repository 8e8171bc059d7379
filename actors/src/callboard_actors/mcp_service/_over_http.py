"""Service over streamable HTTP, with uvicorn."""

import logging
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from ipaddress import ip_address

import anyio
import uvicorn

from callboard import Drained, drain_on_signal
from callboard_actors.mcp_service._app import McpApp
from callboard_actors.mcp_service._service import PATIENCE

_log = logging.getLogger("callboard")


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached only from this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def serve_http(
    app: McpApp, host: str, port: int, *, drain: float, listening: Callable[[str, int], object]
) -> Drained:
    """Serve until SIGTERM or SIGINT; raise OSError if the address cannot be used.

    Args:
        app: application to serve.
        host: address to listen on.
        port: port to listen on; 0 for any free port.
        drain: seconds for calls to finish after a signal.
        listening: called with address and port when clients can connect.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as listener:
        server = _Server(uvicorn.Config(app, lifespan="off", log_config=None, access_log=False))
        end = _End(server)
        async with app.lifespan(), drain_on_signal(app, end, timeout=drain) as shutdown:
            listening(*listener.getsockname()[:2])
            await server.serve(sockets=[listener])
            end.come()
    return shutdown.report


class _Server(uvicorn.Server):
    """Uvicorn server without its own signal handlers: `drain_on_signal` drains the calls first."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


class _End:
    """Drainable end of the server; it is drained after the calls."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._has_come = anyio.Event()

    def come(self) -> None:
        """Note that the server has stopped."""
        self._has_come.set()

    async def drain(self, timeout: float = PATIENCE) -> Drained:
        """Stop the server; close the connections that still have requests after `timeout` seconds."""
        self._server.should_exit = True
        with anyio.move_on_after(timeout):
            await self._has_come.wait()
        self._server.force_exit = True
        await self._has_come.wait()
        return Drained()
