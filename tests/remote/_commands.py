"""Real remote workers: the command as users start it, in its own process."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio

from callboard_actors.remote import RemoteEngine

from . import _bodies

SECRET = "a secret of sixteen bytes or more"
PATIENCE = 40.0
ROOT = Path(_bodies.__file__).parents[_bodies.__name__.count(".")]
BODIES = _bodies.__name__
COMMAND = (sys.executable, "-m", "callboard._cli", "worker")


class Worker:
    """Running `callboard worker` process."""

    def __init__(self, *arguments: str, log: Path | None = None, secret: str = SECRET) -> None:
        self._log = open(log, "a") if log is not None else None  # noqa: PTH123
        environment = {**os.environ, "CALLBOARD_WORKER_SECRET": secret, "PYTHONUNBUFFERED": "1"}
        listen = () if "--listen" in arguments else ("--listen", "127.0.0.1:0")
        self.process = subprocess.Popen(
            [*COMMAND, *arguments, *listen, "--app-dir", str(ROOT)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log or subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"served at (\S+)$", line.strip())
        if found is None:
            _, said = self.process.communicate(timeout=PATIENCE)
            raise AssertionError(f"it did not start: {line!r}, {said}")
        self.address = found[1]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Wait until the process has ended; return its exit code."""
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        """End the process, also if the test has failed."""
        with self.process:
            if self.process.poll() is None:
                self.process.terminate()
                try:
                    self.process.wait(15)
                except subprocess.TimeoutExpired:
                    self.process.kill()
        if self._log is not None:
            self._log.close()


@contextmanager
def worker(*arguments: str, **options: Any) -> Iterator[Worker]:
    found = Worker(*(arguments or (BODIES,)), **options)
    try:
        yield found
    finally:
        found.close()


def engine(*workers: Worker | str, **options: Any) -> RemoteEngine:
    addresses = [one if isinstance(one, str) else one.address for one in workers]
    return RemoteEngine(addresses, **{"secret": SECRET, "grace": 2.0, **options})


def until(holds: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@asynccontextmanager
async def opened(*workers: Worker | str, **options: Any) -> AsyncIterator[RemoteEngine]:
    """Open an engine for a minute at most."""
    with anyio.fail_after(60):
        async with engine(*workers, **options) as remote:
            yield remote
