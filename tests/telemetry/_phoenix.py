"""A local Phoenix server for the tests, from the package `arize-phoenix`."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from tests.agent._local_server import LocalServer, program_of, without
from tests.agent._postgres import _free_port

EXAMPLE = Path(__file__).parents[2] / "examples" / "trace_to_phoenix.py"

ARRIVAL = 10
"""Seconds until spans are in the database."""


def program() -> str | None:
    return program_of("CALLBOARD_PHOENIX", "phoenix")


class Phoenix(LocalServer):
    """Server with its database in a temporary directory."""

    def __init__(self, program: str) -> None:
        super().__init__(program, "healthz")

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
        self._run("serve", env=_environment() | options)

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
        while len(received_spans := self._ask_for_spans(project)) < many:
            assert time.monotonic() < until, f"only {len(received_spans)} of {many} spans came: {received_spans}"
            time.sleep(0.1)
        return received_spans

    def _ask_for_spans(self, project: str) -> list[dict[str, Any]]:
        query = {"limit": 1000, "sort": "start_time", "order": "asc"}
        reply = httpx.get(f"{self.url}/v1/projects/{project}/spans", params=query, trust_env=False)
        return reply.json()["data"] if reply.is_success else []  # the first span creates the project


def _environment() -> dict[str, str]:
    return without("OTEL_", "PHOENIX_")
