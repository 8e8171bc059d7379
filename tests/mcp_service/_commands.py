"""`callboard mcp` in its own process, as users start it, and its clients."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
from mcp import StdioServerParameters

from tests.mcp._asked import appears

from . import _served

PATIENCE = 40.0
"""Timeout in seconds for events that must happen eventually."""
ROOT = Path(_served.__file__).parents[_served.__name__.count(".")]
COMMAND = (sys.executable, "-m", "callboard._cli", "mcp")


def arguments(what: str, *options: str) -> list[str]:
    """Return the arguments of `callboard mcp` that serve a name of `_served`."""
    return [f"{_served.__name__}:{what}", "--app-dir", str(ROOT), *options]


def by_stdio(what: str, *options: str) -> StdioServerParameters:
    """Return a server for the SDK's client, which starts the process."""
    command, *rest = [*COMMAND, *arguments(what, *options)]
    return StdioServerParameters(command=command, args=rest, cwd=ROOT)


class Process:
    """Server process that the test has started itself."""

    def __init__(self, *options: str, environment: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
            text=True,
        )

    def send(self, method: str, number: int | None = None, **params: Any) -> None:
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message if number is None else {**message, "id": number}) + "\n")
        self.process.stdin.flush()

    def shake_hands(self) -> None:
        """Begin a session of version 2025."""
        client = {"name": "test", "version": "1"}
        self.send("initialize", 0, protocolVersion="2025-11-25", capabilities={}, clientInfo=client)
        assert self.receive()["id"] == 0
        self.send("notifications/initialized")

    def receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def url(self) -> str:
        """Return the URL that the server prints."""
        assert self.process.stderr is not None
        said = []
        for line in self.process.stderr:
            said.append(line)
            if found := re.search(r"served at (\S+)$", line.strip()):
                return found[1]
        raise AssertionError(f"it did not start: {said}")

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def end(self) -> tuple[int, str, str]:
        """Wait until the process has ended; return its exit code and the rest of its output."""
        out, error = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, out, error


@contextmanager
def started(*options: str, environment: dict[str, str] | None = None) -> Iterator[Process]:
    """Start a server and end it with the block."""
    one = Process(*options, environment=environment)
    with one.process:
        try:
            yield one
        finally:
            one.process.kill()


def ran(*options: str, environment: dict[str, str] | None = None) -> tuple[int, str]:
    with started(*options, environment=environment) as server:
        code, _, error = server.end()
    return code, error


def appears_soon(path: Path) -> None:
    """Wait for a file, in a test without an event loop."""
    anyio.run(appears, path)
