"""Hand-written servers that start at once: `python -m tests.mcp._plain 2025` or `2026`.

The server of 2025 requires a handshake and knows no later version; the server of 2026 knows no handshake.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

_TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
_NAMES = ("echo", "remember", "hang", "leave", "meta", "pid", "header", "refuse")
TOOLS = [{"name": name, "description": f"{name}.", "inputSchema": _TEXT} for name in _NAMES]
OLD, NEW = "2025-11-25", "2026-07-28"
_CACHED = {"ttlMs": 0, "cacheScope": "private"}


class Plain:
    """State of the server: its notes, and the requests that wait for ever."""

    def __init__(self, era: str, *, leaves: bool = True) -> None:
        self._is_new = era == "2026"
        self._leaves = leaves
        self._notes: list[str] = []
        self._hang: dict[object, str] = {}

    def answer(self, method: str, params: dict[str, Any], number: object) -> dict[str, Any] | None:
        """Return the result or the error of a request; `None` for no answer."""
        if method == "tools/list":
            return {"result": {"tools": TOOLS, "resultType": "complete", **_CACHED}}
        if method == "tools/call" and params["name"] == "refuse":
            return {"error": {"code": -32000, "message": str(params["arguments"]["text"])}}
        if method == "tools/call":
            text = self._text(params["name"], params, number)
            content = [{"type": "text", "text": text}]
            return None if text is None else {"result": {"content": content, "resultType": "complete"}}
        if method == ("server/discover" if self._is_new else "initialize"):
            return {"result": self._introduction()}
        return {"error": {"code": -32601, "message": f"Method not found: {method}"}}

    def _introduction(self) -> dict[str, Any]:
        if self._is_new:
            return {"supportedVersions": [NEW], "capabilities": {"tools": {}}, "resultType": "complete", **_CACHED}
        info = {"name": "plain", "version": "1"}
        return {"protocolVersion": OLD, "capabilities": {"tools": {"listChanged": True}}, "serverInfo": info}

    def _text(self, tool: str, params: dict[str, Any], number: object) -> str | None:
        text = str(params["arguments"].get("text", ""))
        if tool == "hang":
            Path(text, "began").touch()
            self._hang[number] = text
            return None
        if tool == "leave" and not self._leaves:
            return "asked again, and stays"
        if tool == "leave":
            sys.stderr.write("I am leaving\n")
            sys.stderr.flush()
            os._exit(int(text))
        if tool == "meta":
            return json.dumps(params.get("_meta", {}))
        if tool == "pid":
            return str(os.getpid())
        if tool == "remember":
            self._notes.append(text)
            if "NOTES" in os.environ:
                with Path(os.environ["NOTES"]).open("a") as notes:
                    notes.write(text + "\n")
            return str(len(self._notes))
        return text

    def note_cancel(self, number: object) -> None:
        """Note that a caller has cancelled its request."""
        if number in self._hang:
            Path(self._hang.pop(number), "cancelled").touch()


def main(era: str, *, leaves: bool = True) -> None:
    """Answer requests one by one; the tool `leave` may be refused."""
    plain = Plain(era, leaves=leaves)
    for line in sys.stdin:
        message = json.loads(line)
        method, params, number = message.get("method"), message.get("params", {}), message.get("id")
        if method == "notifications/cancelled":
            plain.note_cancel(params["requestId"])
        if number is not None and (answer := plain.answer(method, params, number)) is not None:
            send({"id": number, **answer})


def send(message: dict[str, Any]) -> None:
    """Write a message."""
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
