"""Local stand-in for the public web: `https://example.org/` is a server on loopback, with a certificate of its own."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpcore2
import pytest
import trustme

from callboard_actors.http import GuardedTransport, _guard, fetch_tool

PUBLIC = "93.184.215.14"
"""Address that the fake resolver gives; the guard of callboard checks it as usual."""


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<h1>Example</h1>")

    def log_message(self, *_: object) -> None: ...


class _ToLoopback(httpcore2.AnyIOBackend):  # type: ignore[misc, unused-ignore]
    """Network backend that connects to the local server in place of any address."""

    port = 0

    async def connect_tcp(self, host: str, port: int, *args: Any, **options: Any) -> Any:
        assert (host, port) == (PUBLIC, 443)
        return await super().connect_tcp("127.0.0.1", self.port, *args, **options)


@contextmanager
def public_web(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Serve a page at each https URL of example.org."""
    authority = trustme.CA()
    context, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("example.org").configure_cert(context)
    authority.configure_trust(client)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    patch.setattr(_ToLoopback, "port", server.server_port)
    patch.setattr(_guard, "plain_network", _ToLoopback)
    for function in (GuardedTransport.__init__, fetch_tool):
        patch.setitem(function.__kwdefaults__, "resolver", _resolve)
        patch.setitem(function.__kwdefaults__, "tls", client)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def _resolve(host: str, port: int) -> list[str]:
    assert host == "example.org"
    return [PUBLIC]
