"""MCP server whose tool answers "bad" with a value of `_values`: `python -m tests.entrances._served "65 bits" stdio`.

With `http` in place of `stdio`, it listens on loopback and prints its port.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.mcp._plain import Plain

from ._values import as_json

_PLAIN = Plain("2026")


def answer(message: dict[str, Any], name: str) -> str | None:
    """Return the JSON text of the answer to a message; `None` for no answer."""
    method, params, number = message.get("method"), message.get("params", {}), message.get("id")
    if number is None:
        return None
    if params.get("arguments") != {"text": "bad"}:
        return json.dumps({"jsonrpc": "2.0", "id": number, **(_PLAIN.answer(str(method), params, number) or {})})
    value = as_json(name)
    text = value if value.startswith('"') else '"bad"'
    content = f'[{{"type":"text","text":{text}}}]'
    result = f'{{"resultType":"complete","content":{content},"structuredContent":{{"value":{value}}}}}'
    return f'{{"jsonrpc":"2.0","id":{json.dumps(number)},"result":{result}}}'


class Endpoint(BaseHTTPRequestHandler):
    """HTTP handler that answers each message with JSON."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer a message."""
        text = answer(json.loads(self.rfile.read(int(self.headers["content-length"]))), sys.argv[1])
        body = (text or "").encode()
        self.send_response(202 if text is None else 200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


if __name__ == "__main__":
    if sys.argv[2] == "http":
        with ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as listener:
            print(listener.server_address[1], flush=True)
            listener.serve_forever()
    for line in sys.stdin:
        if (text := answer(json.loads(line), sys.argv[1])) is not None:
            print(text, flush=True)
