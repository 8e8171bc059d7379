"""A server of another project on loopback: its program, its start, and its end with the tests."""

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import httpx

from ._postgres import _end_with_parent, _free_port

READY = 90
"""Seconds in which a server must start; imports take most of the time."""


def program_of(variable: str, name: str) -> str | None:
    """Return the path of a program: from the environment variable, on the path, or among the tools of uv."""
    return os.environ.get(variable) or shutil.which(name) or shutil.which(name, path=_tools_of_uv())


def _tools_of_uv() -> str:
    uv = shutil.which("uv")
    if uv is None:
        return ""
    return subprocess.run([uv, "tool", "dir", "--bin"], capture_output=True, text=True, check=False).stdout.strip()


class LocalServer:
    """A server with its files in a temporary directory; it ends with the tests, even if they are killed.

    Args:
        program: path of the program.
        health: path of the URL that answers when the server is ready.
    """

    def __init__(self, program: str, health: str) -> None:
        self._program = program
        self.directory = Path(tempfile.mkdtemp(prefix=f"callboard-{Path(program).name}-"))
        self._port = _free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._health = f"{self.url}/{health}"
        self._process: subprocess.Popen[bytes] | None = None

    def _run(self, *arguments: str, env: dict[str, str]) -> None:
        """Start the program, and wait until the server answers."""
        log = self.directory / "log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [self._program, *arguments],
                cwd=self.directory,
                env=env,
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
            return httpx.get(self._health, trust_env=False).is_success
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


def without(*prefixes: str) -> dict[str, str]:
    """Return the environment of the tests without variables that would send data elsewhere."""
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
