"""`setup()` in a process without an SDK: it sends, it shuts down, and it can be called again."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

SCRIPT = """
import logging, sys
from callboard import ToolNode
from callboard.telemetry import setup
from callboard.testing import tool_call

logging.basicConfig(level="INFO")

def call(name):
    def tool(a: int) -> str:
        "Say it."
        return str(a)

    tool.__name__ = name
    ToolNode([tool]).invoke([tool_call(name, "1", a=1)])

for name in ("first", "second"):
    with setup(endpoint=sys.argv[1], headers={"x-key": name}):
        call(name)
    call("between")
"""


class Receiver(HTTPServer):
    """OTLP receiver that keeps what it gets."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.got: list[tuple[str, str, bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.got.append((self.path, self.headers["x-key"], body))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.exhaustive
def test_it_may_be_set_up_again_and_sends_nothing_in_between(receiver: Receiver) -> None:
    """OpenTelemetry allows one provider per process, and silently drops spans after its shutdown."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, receiver.url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert [(path, key) for path, key, _ in receiver.got] == [
        ("/v1/metrics", "first"),
        ("/v1/traces", "first"),
        ("/v1/metrics", "second"),
        ("/v1/traces", "second"),
    ]
    assert all(key.encode() in body for _, key, body in receiver.got)
    assert not any(b"between" in body for _, _, body in receiver.got)
