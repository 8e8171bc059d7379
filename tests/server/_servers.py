"""Servers of the tests, from Debian's packages `redis-server` and `postgresql`, and stores on them."""

import ctypes
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import redis

from callboard_actors.postgres import PostgresFleet, PostgresLimits
from callboard_actors.redis import RedisLimits
from tests.agent._postgres import Server as PostgresServer

SECRET = "a secret of at least sixteen bytes"
NOWHERE = {"redis": "redis://127.0.0.1:1/0", "postgres": "postgresql://clerk@127.0.0.1:1/app"}
"""URLs at which no server answers."""
READY = 30
"""Timeout in seconds for the start of the server, which takes a tenth of a second."""


def program() -> str | None:
    """Return the path of the server program; `None` if it is not installed."""
    return shutil.which("redis-server")


class RedisServer:
    """Server that keeps everything in memory; it ends when the tests end in any way."""

    def __init__(self, program: str, *options: str) -> None:
        self._program = program
        self._options = options
        self.directory = Path(tempfile.mkdtemp(prefix="callboard-redis-"))
        self.socket = self.directory / "socket"
        self.url = f"unix://{self.socket}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server and wait until it answers."""
        options = ["--port", "0", "--unixsocket", str(self.socket), "--save", "", "--dir", str(self.directory)]
        self._process = subprocess.Popen(
            [self._program, *options, *self._options],
            stdout=subprocess.DEVNULL,
            preexec_fn=_end_with_parent,  # noqa: PLW1509 (a single system call)
        )
        until = time.monotonic() + READY
        while not self._answers():
            assert self._process.poll() is None and time.monotonic() < until
            time.sleep(0.01)

    def _answers(self) -> bool:
        try:
            with redis.Redis(unix_socket_path=str(self.socket)) as client:
                return bool(client.ping())
        except redis.AuthenticationError:
            return True
        except redis.ConnectionError:
            return False

    def wait_until_up_for(self, *, seconds: int) -> None:
        """Wait until the server has run for so long."""
        if not seconds:
            return
        with redis.Redis(unix_socket_path=str(self.socket)) as client:
            while int(client.info("server")["uptime_in_seconds"]) < seconds:
                time.sleep(0.05)

    def kill(self) -> None:
        """Kill the server, so that its memory is lost as in a power cut."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(timeout=30)
            self._process = None

    def pause(self, *, on: bool) -> None:
        """Stop or continue the server process."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP if on else signal.SIGCONT)

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.directory)


@contextmanager
def running_redis(*options: str, uptime: int = 0) -> Iterator[RedisServer]:
    """Run a server with command-line options until the block ends; skip the test if Redis is not installed.

    The block begins when the server has run for `uptime` seconds: a fresh server grants no permits for one lease.
    """
    if (path := program()) is None:
        pytest.skip("Redis is not installed: apt-get install redis-server")
    server = RedisServer(path, *options)
    try:
        server.start()
        server.wait_until_up_for(seconds=uptime)
        yield server
    finally:
        server.remove()


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def crash(server: PostgresServer) -> None:
    """Crash a server, so that it recovers at its next start."""
    process = server._process
    assert process is not None
    process.send_signal(signal.SIGQUIT)
    process.wait(timeout=30)
    server._process = None


def server_url(request: Any, name: str) -> str:
    """Return the URL of the server of all tests, "redis" or "postgres", for a test with this `request`."""
    url = request.getfixturevalue("redis_server").url if name == "redis" else request.getfixturevalue("postgres_url")
    return str(url)


def store_at(url: str, kind: str, **options: Any) -> Any:
    """Make a store of limits or a fleet on the server of a URL."""
    if kind == "fleet":
        return PostgresFleet(url, **{"secret": SECRET, **options})
    limits: Any = PostgresLimits if url.startswith("postgresql:") else RedisLimits
    return limits(url, **options)


_numbers = count(1)


class Place:
    """Server with names of its own for one test; each store on it acts as a separate process."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.prefix = f"test-{next(_numbers)}"
        self._stores: list[Any] = []

    def store(self, kind: str, **options: Any) -> Any:
        store = store_at(self.url, kind, **{"prefix": self.prefix, **options})
        self._stores.append(store)
        return store

    def close(self) -> None:
        for store in self._stores:
            if hasattr(store, "close"):
                store.close()
