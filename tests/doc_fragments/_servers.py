"""Servers on loopback for fragments: PostgreSQL, Redis, and an HTTP server that keeps the requests."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Received(NamedTuple):
    """Request to the receiver."""

    path: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """HTTP server that answers each request with an empty JSON object, and keeps it."""

    def __init__(self) -> None:
        received = self.received = list[Received]()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                unpacked = gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body
                received.append(Received(self.path, {**self.headers}, unpacked))
                self.do_GET()

            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    received: list[Received]


@contextmanager
def receiver() -> Iterator[Receiver]:
    """Run a receiver."""
    new_receiver = Receiver()
    thread = threading.Thread(target=new_receiver.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield new_receiver
    finally:
        new_receiver.server.shutdown()
        new_receiver.server.server_close()
        thread.join()
