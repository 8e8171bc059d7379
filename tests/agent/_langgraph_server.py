"""LangGraph's server on loopback for tests, from the package `langgraph-cli[inmem]`."""

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

SERVED = Path(__file__).with_name("_served.py")

READY = 90
"""Seconds in which the server must start; imports take most of the time."""


def program() -> str | None:
    """Return the path of the server's program: CALLBOARD_LANGGRAPH, on the path, or among the tools of uv."""
    return (
        os.environ.get("CALLBOARD_LANGGRAPH")
        or shutil.which("langgraph")
        or shutil.which("langgraph", path=_tools_of_uv())
    )


def _tools_of_uv() -> str:
    uv = shutil.which("uv")
    if uv is None:
        return ""
    return subprocess.run([uv, "tool", "dir", "--bin"], capture_output=True, text=True, check=False).stdout.strip()


class LangGraphServer:
    """A server with its files in a temporary directory; it ends with the tests, even if they are killed."""

    def __init__(self, program: str) -> None:
        self._program = program
        self.directory = Path(tempfile.mkdtemp(prefix="callboard-langgraph-"))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *names: str) -> None:
        """Start the server with some graphs of `_served`, and wait until it answers."""
        about = {"dependencies": ["."], "graphs": {name: f"{SERVED}:{name}" for name in names}}
        (self.directory / "langgraph.json").write_text(json.dumps(about))
        log = self.directory / "log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [self._program, "dev", "--no-browser", "--no-reload", "--port", str(self._port)],
                cwd=self.directory,
                env=_environment(),
                stdout=output,
                stderr=output,
                preexec_fn=_end_with_parent,  # noqa: PLW1509 (a single system call)
            )
        until = time.monotonic() + READY
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(log.read_text()[-4000:])
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/ok", trust_env=False).is_success
        except httpx.TransportError:
            return False

    def remove(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(timeout=10)
        shutil.rmtree(self.directory)


def _environment() -> dict[str, str]:
    """Return the environment of the tests without settings that send traces elsewhere."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LANGSMITH_", "LANGCHAIN_"))}
    return kept | {"LANGSMITH_TRACING": "false", "LANGGRAPH_CLI_NO_ANALYTICS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def _end_with_parent() -> None:
    """Let the server stop when the test process is gone, even if it was killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)
