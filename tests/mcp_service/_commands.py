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


def arguments(target: str, *options: str) -> list[str]:
    """Return the arguments of `callboard mcp` that serve a name of `_served`."""
    return [f"{_served.__name__}:{target}", "--app-dir", str(ROOT), *options]


def by_stdio(target: str, *options: str) -> StdioServerParameters:
    """Return a server for the SDK's client, which starts the process."""
    command, *args = [*COMMAND, *arguments(target, *options)]
    return StdioServerParameters(command=command, args=args, cwd=ROOT)


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
        message: dict[str, Any] = json.loads(self.process.stdout.readline())
        return message

    def url(self) -> str:
        """Return the URL that the server prints."""
        assert self.process.stderr is not None
        lines = []
        for line in self.process.stderr:
            lines.append(line)
            if match := re.search(r"served at (\S+)$", line.strip()):
                return match[1]
        raise AssertionError(f"it did not start: {lines}")

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def end(self) -> tuple[int, str, str]:
        """Wait until the process has ended; return its exit code and the rest of its output."""
        out, error = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, out, error


@contextmanager
def running_process(*options: str, environment: dict[str, str] | None = None) -> Iterator[Process]:
    """Start a server and end it with the block."""
    process = Process(*options, environment=environment)
    with process.process:
        try:
            yield process
        finally:
            process.process.kill()


def run_command(*options: str, environment: dict[str, str] | None = None) -> tuple[int, str]:
    with running_process(*options, environment=environment) as server:
        code, _, error = server.end()
    return code, error


def appears_soon(path: Path) -> None:
    """Wait for a file, in a test without an event loop."""
    anyio.run(appears, path)
