"""A server of 2025, written by hand: it shakes hands, keeps a session, and knows nothing of later versions.

`python -m tests.mcp_servers._old` serves on stdin and stdout.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

_TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TOOLS = [
    {"name": name, "description": f"{name}.", "inputSchema": _TEXT} for name in ("echo", "remember", "hang", "leave")
]
VERSION = "2025-11-25"


class Old:
    """The session: its notes, and the requests that wait for ever."""

    def __init__(self) -> None:
        self._notes: list[str] = []
        self._hang: dict[object, str] = {}

    def result(self, method: str, params: dict[str, Any], number: object) -> dict[str, Any] | None:
        """The result of a request; `None` for none."""
        if method == "initialize":
            info = {"name": "old", "version": "1"}
            return {"protocolVersion": VERSION, "capabilities": {"tools": {"listChanged": True}}, "serverInfo": info}
        if method == "tools/list":
            return {"tools": TOOLS}
        text = params["arguments"].get("text", "")
        if params["name"] == "hang":
            Path(text, "began").touch()
            self._hang[number] = text
            return None
        if params["name"] == "leave":
            os._exit(int(text))
        if params["name"] == "remember":
            self._notes.append(text)
            text = str(len(self._notes))
        return {"content": [{"type": "text", "text": text}]}

    def cancelled(self, number: object) -> None:
        """Note that a caller does not wait any more."""
        if number in self._hang:
            Path(self._hang.pop(number), "cancelled").touch()


def main() -> None:
    """Answer what comes, one by one."""
    session = Old()
    for line in sys.stdin:
        message = json.loads(line)
        method, params, number = message.get("method"), message.get("params", {}), message.get("id")
        if method == "notifications/cancelled":
            session.cancelled(params["requestId"])
        if number is None:
            continue
        if method not in ("initialize", "tools/list", "tools/call"):
            send({"id": number, "error": {"code": -32601, "message": f"Method not found: {method}"}})
        elif (result := session.result(method, params, number)) is not None:
            send({"id": number, "result": result})


def send(message: dict[str, Any]) -> None:
    """Write a message."""
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
