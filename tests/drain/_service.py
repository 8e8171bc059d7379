"""The service of `examples/drained_service.py` in a process of its own, under any server."""

import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Any

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "drained_service.py"

Command = Callable[[Path, int, float], list[str]]
"""Function that returns the command of a server for a directory, a port, and the seconds of the drain."""


@cache
def _story() -> dict[str, Any]:
    """Return the names of the example. It is loaded only when a test runs, because it imports uvicorn."""
    return runpy.run_path(str(EXAMPLE))


def ask(*request: Any) -> tuple[int, dict[str, Any]]:
    answer: tuple[int, dict[str, Any]] = _story()["ask"](*request)
    return answer


def service_of(directory: Path, seconds: float) -> Any:
    """Return the application of the example."""
    return _story()["service"](directory, seconds)


def until_asked(directory: Path, hotel: str) -> None:
    _story()["until_asked"](directory, hotel)


def until(holds: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def the_example(directory: Path, port: int, seconds: float) -> list[str]:
    """Return the command of the example itself, which starts uvicorn in its own program."""
    return [sys.executable, str(EXAMPLE), "serve", str(directory), str(port), str(seconds)]


class Service:
    """Service of the example in its own process."""

    def __init__(self, directory: Path, seconds: float, command: Command = the_example) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.log = directory / f"log-{self.port}"
        variables = {**os.environ, "DIRECTORY": str(directory), "SECONDS": str(seconds)}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command(directory, self.port, seconds),
                cwd=ROOT,
                env=variables,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until(self.is_ready)

    def is_ready(self) -> bool:
        """Return whether the readiness probe passes; a refused connection is a failed probe."""
        try:
            return bool(ask(self.port, "GET", "/ready")[0] == 200)
        except OSError:
            assert self.process.poll() is None, self.log.read_text()
            return False

    def post(self, thread: str, text: str, answers: list[Any]) -> Thread:
        def post() -> None:
            try:
                answers.append(ask(self.port, "POST", thread, text))
            except Exception as error:
                answers.append(error)

        client = Thread(target=post)
        client.start()
        return client

    @property
    def group(self) -> list[int]:
        """Return the remaining processes of the service."""
        pids = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == self.process.pid and fields[0] != "Z":
                pids.append(int(stat.parent.name))
        return pids

    def remaining(self, seconds: float = 5.0) -> list[int]:
        """Return the processes of the service that have not ended this many seconds after its first process.

        Python's tracker of resources ends a moment after the process that started it.
        """
        until = time.monotonic() + seconds
        while (pids := self.group) and time.monotonic() < until:
            time.sleep(0.02)
        return pids

    def refuses_connections(self) -> bool:
        """Return whether the server has closed its port."""
        try:
            socket.create_connection(("127.0.0.1", self.port)).close()
        except ConnectionRefusedError:
            return True
        return False

    def terminate(self) -> None:
        """Send SIGTERM to the first process only, as Docker and Kubernetes do."""
        self.process.send_signal(signal.SIGTERM)


@contextmanager
def running_service(directory: Path, seconds: float = 20.0, command: Command = the_example) -> Iterator[Service]:
    service = Service(directory, seconds, command)
    try:
        yield service
    finally:
        for pid in service.group:
            os.kill(pid, signal.SIGKILL)
        service.process.wait(10)
