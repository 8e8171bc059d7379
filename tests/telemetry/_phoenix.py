"""A local Phoenix server for the tests, from the package `arize-phoenix`."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from tests.agent._postgres import _end_with_parent, _free_port

EXAMPLE = Path(__file__).parents[2] / "examples" / "trace_to_phoenix.py"

READY = 90
"""Seconds for the start of the server, which takes about 20 seconds of processor time, mostly for imports."""

ARRIVAL = 10
"""Seconds until spans are in the database."""


def program() -> str | None:
    """Return the server's program: from CALLBOARD_PHOENIX, the path, or the tools of uv."""
    return (
        os.environ.get("CALLBOARD_PHOENIX") or shutil.which("phoenix") or shutil.which("phoenix", path=_tools_of_uv())
    )


def _tools_of_uv() -> str:
    uv = shutil.which("uv")
    if uv is None:
        return ""
    return subprocess.run([uv, "tool", "dir", "--bin"], capture_output=True, text=True, check=False).stdout.strip()


class Phoenix:
    """Server with its database in a temporary directory. It ends with the tests, even if they are killed."""

    def __init__(self, program: str) -> None:
        self._program = program
        self.directory = Path(tempfile.mkdtemp(prefix="callboard-phoenix-"))
        self._port = _free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server and wait until it answers."""
        options = {
            "PHOENIX_HOST": "127.0.0.1",
            "PHOENIX_PORT": str(self._port),
            "PHOENIX_GRPC_PORT": str(_free_port()),
            "PHOENIX_WORKING_DIR": str(self.directory),
            "PHOENIX_TELEMETRY_ENABLED": "false",
            "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
            "PHOENIX_LOG_MIGRATIONS": "false",
        }
        log = self.directory / "log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [self._program, "serve"],
                cwd=self.directory,
                env=_environment() | options,
                stdout=output,
                stderr=output,
                preexec_fn=_end_with_parent,  # noqa: PLW1509 (a single system call)
            )
        until = time.monotonic() + READY
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(log.read_text()[-2000:])
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/healthz", trust_env=False).is_success
        except httpx.TransportError:
            return False

    def run_example(self, project: str, *arguments: str) -> str:
        """Run the example as users do. Its spans go into a project of that name."""
        done = subprocess.run(
            [sys.executable, "-W", "error", str(EXAMPLE), "--endpoint", self.url, *arguments],
            env=_environment() | {"OTEL_RESOURCE_ATTRIBUTES": f"openinference.project.name={project}"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def spans(self, project: str, many: int) -> list[dict[str, Any]]:
        """Wait until the project has this many spans, and return them in the order of their beginnings."""
        until = time.monotonic() + ARRIVAL
        while len(found := self._ask_for_spans(project)) < many:
            assert time.monotonic() < until, f"only {len(found)} of {many} spans came: {found}"
            time.sleep(0.1)
        return found

    def _ask_for_spans(self, project: str) -> list[dict[str, Any]]:
        query = {"limit": 1000, "sort": "start_time", "order": "asc"}
        reply = httpx.get(f"{self.url}/v1/projects/{project}/spans", params=query, trust_env=False)
        return reply.json()["data"] if reply.is_success else []  # the first span creates the project

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
    """Return this process's environment without variables that would send spans elsewhere."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "PHOENIX_"))}
