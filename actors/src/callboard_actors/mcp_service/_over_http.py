"""A service over streamable HTTP, on an address of this machine."""

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
    """Whether nobody but this machine reaches an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def serve_http(
    app: McpApp, host: str, port: int, *, drain: float, listening: Callable[[str, int], object]
) -> Drained:
    """Serve until a signal comes.

    Args:
        app: is served.
        host: the address to listen at.
        port: the port; 0 for any.
        drain: seconds for calls to finish when a signal comes.
        listening: is told the address and the port, once clients may come.

    Raises:
        OSError: it cannot listen there.
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
    """A server that leaves signals to us: there may be more to end than it knows of."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


class _End:
    """The end of the server, once calls have ended."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._has_come = anyio.Event()

    def come(self) -> None:
        """Note that nothing is served any more."""
        self._has_come.set()

    async def drain(self, timeout: float = PATIENCE) -> Drained:
        """Have the server end: clients that are served have this many seconds, and are then hung up on."""
        self._server.should_exit = True
        with anyio.move_on_after(timeout):
            await self._has_come.wait()
        self._server.force_exit = True
        await self._has_come.wait()
        return Drained()
