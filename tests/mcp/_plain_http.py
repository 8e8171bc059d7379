"""The servers of `_plain` over HTTP on loopback: `python -m tests.mcp._plain_http era [port]` prints the port.

A user named bob sees no tools. The argument of the tool `leave` decides the fate of its request: "cut" breaks the
connection, "huge" sends an answer without end, "packed" one that is large only after decompression, "many" and
"events" one of many values, as JSON and as an event. A key of `_STRAY` sends a message that does not answer the
request, and a number is an HTTP status.
"""

import gzip
import json
import sys
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import uuid4

from ._plain import Plain

_ERA = sys.argv[1]
_PLAIN = Plain(_ERA)
_SESSION = uuid4().hex
_STRAY: dict[str, dict[str, Any]] = {
    "other": {"id": 4711, "result": {}},
    "nobody": {"id": None, "error": {"code": -32000, "message": "too busy"}},
    "own": {"method": "notifications/message", "params": {}},
}
_STATUS = 3
"""Number of digits of an HTTP status. A status in place of an era is the answer to every request."""


class Endpoint(BaseHTTPRequestHandler):
    """HTTP handler that answers each request with JSON; in version 2025 it requires its session."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer a message."""
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        method, params = message.get("method"), message.get("params", {})
        if len(_ERA) == _STATUS:
            self._send(int(_ERA), {"detail": "no"})
        elif method == "tools/call" and params["name"] == "leave":
            self._fail(params["arguments"]["text"])
        elif _ERA == "2025" and method not in ("initialize", "server/discover") and not self._is_in_session():
            self._send(404, {})
        elif "id" not in message:
            self._send(202, None)
        elif method == "tools/call" and params["name"] == "header":
            content = [{"type": "text", "text": self.headers.get(params["arguments"]["text"])}]
            result = {"content": content, "resultType": "complete"}
            self._send(200, {"jsonrpc": "2.0", "id": message["id"], "result": result})
        elif method == "tools/list" and self.headers.get("x-user") == "bob":
            self._send(200, {"jsonrpc": "2.0", "id": message["id"], "result": {"tools": []}})
        elif (answer := _PLAIN.answer(method, params, message["id"])) is not None:
            self._send(200, {"jsonrpc": "2.0", "id": message["id"], **answer})

    def _is_in_session(self) -> bool:
        return bool(self.headers.get("mcp-session-id") == _SESSION)

    def do_GET(self) -> None:
        """Refuse to open a stream of messages."""
        self._send(405, None)

    def do_DELETE(self) -> None:
        """End the session."""
        self._send(200, None)

    def _fail(self, failure: str) -> None:
        if failure == "cut":
            self.close_connection = True
        elif failure in _STRAY:
            self._send(200, {"jsonrpc": "2.0", **_STRAY[failure]})
        elif failure == "packed":
            self._send(200, {"text": "x" * 10**7}, packed=True)
        elif failure == "many":
            self._send(200, {"jsonrpc": "2.0", "id": 1, "result": {"values": [{}] * 5000}})
        elif failure == "events":
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            small = 'data: {"jsonrpc": "2.0", "method": "notifications/message"}'
            # Small events, then one of many values whose line ends are split over two writes.
            with suppress(OSError):
                for part in (f"{small}\r\n\r", "\n", *[f"{small}\r\n\r\n"] * 1000, *["data: [{},{}],\r", "\n"] * 1000):
                    self.wfile.write(part.encode())
            self.close_connection = True
        elif failure == "huge":
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.end_headers()
            with suppress(OSError):
                while True:
                    self.wfile.write(b"x" * 65536)
            self.close_connection = True
        else:
            self._send(int(failure), {"detail": "no"})

    def _send(self, status: int, body: dict[str, Any] | None, *, packed: bool = False) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        data = gzip.compress(data) if packed else data
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        if packed:
            self.send_header("content-encoding", "gzip")
        if _ERA == "2025":
            self.send_header("mcp-session-id", _SESSION)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


if __name__ == "__main__":
    port = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with ThreadingHTTPServer(("127.0.0.1", port), Endpoint) as listener:
        print(listener.server_address[1], flush=True)
        listener.serve_forever()
