"""A PostgreSQL server on loopback for tests, from Debian's package `postgresql`."""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

PASSWORD = "p:ss/w@rd"
"""A password with characters that must be escaped in a URL."""

READY = 30
"""Seconds in which the server must start; it needs about one."""


def programs() -> Path | None:
    """Return the folder of the newest server's programs; `None` if no server is installed."""
    folders = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if path := shutil.which("initdb"):
        folders.append(Path(path).parent)
    return max(folders, key=_major, default=None)


def _major(path: Path) -> float:
    return float(path.parent.name) if path.parent.name.replace(".", "").isdigit() else 0


class Server:
    """A server with its data in a temporary directory; it ends with the tests, even if they are killed."""

    def __init__(self, bin: Path) -> None:
        self._bin = bin
        # PostgreSQL refuses to run as root.
        self._user: dict[str, Any] = {"user": "postgres", "group": "postgres", "extra_groups": []} if _is_root() else {}
        self.directory = Path(tempfile.mkdtemp(prefix="callboard-postgres-"))
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = count(1)
        self._make()

    def _make(self) -> None:
        password = self.directory / "password"
        password.write_text(PASSWORD)
        if self._user:
            shutil.chown(self.directory, "postgres", "postgres")
            shutil.chown(password, "postgres", "postgres")
        initdb = [self._bin / "initdb", "-D", self.directory / "data", "-U", "clerk", "--auth=scram-sha-256"]
        options = [f"--pwfile={password}", "--encoding=UTF8", "--no-locale", "--no-sync"]
        subprocess.run(
            [*initdb, *options], check=True, capture_output=True, cwd=self.directory, timeout=60, **self._user
        )

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        options = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.directory),
            "max_connections": "200",
            "fsync": "off",  # only a power cut loses data, a kill does not
        }
        command = [str(self._bin / "postgres"), "-D", str(self.directory / "data"), "-p", str(self.port)]
        command += [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.directory,
                stdout=log,
                stderr=log,
                preexec_fn=_end_with_parent,  # noqa: PLW1509 (a single system call)
                **self._user,
            )
        until = time.monotonic() + READY
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError((self.directory / "log").read_text())
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            self.sql("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def stop(self) -> None:
        """Stop the server as an administrator would: connections are cut, and committed data is kept."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(timeout=30)
            self._process = None

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.directory)

    def url(self, database: str = "postgres", *, user: str = "clerk", password: str = PASSWORD) -> str:
        return f"postgresql://{user}:{quote(password, safe='')}@127.0.0.1:{self.port}/{database}"

    def new_database(self, template: str = "template1") -> str:
        """Return the URL of a new database, a copy of the template: by default it is empty."""
        name = f"test_{next(self._numbers)}"
        self.sql(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.url(name)

    def drop(self, url: str) -> None:
        self.sql(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")

    def sql(self, statement: str, url: str | None = None) -> list[tuple[Any, ...]]:
        """Return the rows of a statement."""
        with psycopg.connect(url or self.url(), autocommit=True, connect_timeout=5) as connection:
            done = connection.execute(statement)
            return done.fetchall() if done.description else []

    def cut_connections(self, url: str) -> int:
        """Kill every connection to a database; return their number."""
        name = url.rpartition("/")[2]
        return len(self.sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"))


@contextmanager
def running_postgres() -> Iterator[Server]:
    """Run a server for a `with` block; skip the test if PostgreSQL is not installed."""
    if (folder := programs()) is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    server = Server(folder)
    try:
        server.start()
        yield server
    finally:
        server.remove()


def _is_root() -> bool:
    return os.geteuid() == 0


def _end_with_parent() -> None:
    """Let the server stop when the test process is gone, even if it was killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGINT)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
