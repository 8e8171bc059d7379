"""Connections of a checkpointer by URL: closed beside readers, and shared with a forked child."""

import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest

from callboard.conversations._database import _Lazily

from ._closed_agent import READERS, READS
from ._forked_agent import CHILDREN, TURNS

ROOT = Path(__file__).parents[2]


class FakeDatabase:
    """Database whose connections are numbers; it records which ones were closed."""

    def __init__(self) -> None:
        self.opened = 0
        self.closed: list[int] = []

    def open(self) -> int:
        self.opened += 1
        return self.opened

    def close(self, connection: int) -> None:
        self.closed.append(connection)

    def is_lost(self, error: Exception) -> bool:
        return isinstance(error, ConnectionError)

    def is_gone(self) -> bool:
        return False

    explain_errors = staticmethod(nullcontext)


def run_program(name: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-m", f"tests.agent.{name}", *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    return sorted(result.stdout.splitlines())


@pytest.mark.parametrize("retire", ["close", "lose"])
def test_a_connection_in_use_is_closed_by_its_last_user(retire: str) -> None:
    """SQLite ends the process if a connection is closed under a statement of another thread."""
    database = FakeDatabase()
    lazy = _Lazily(database)  # type: ignore[arg-type]
    is_in_use, may_end = threading.Event(), threading.Event()

    def use(connection: int) -> None:
        is_in_use.set()
        may_end.wait(10)
        assert connection not in database.closed

    user = threading.Thread(target=lazy.call, args=[use])
    user.start()
    assert is_in_use.wait(10)
    if retire == "close":
        lazy.close()
        lazy.close()
    else:
        lazy.call(lambda connection: _fail_on(connection, 1))
    assert database.closed == []
    assert lazy.call(lambda connection: connection) == 2  # others go on, on a new connection
    may_end.set()
    user.join(10)
    assert database.closed == [1]
    lazy.close()
    assert database.closed == [1, 2]


def _fail_on(connection: int, lost: int) -> None:
    if connection == lost:
        raise ConnectionError


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["asyncio", "trio"])
def test_an_agent_that_is_closed_while_others_read_ends_no_process(name: str, tmp_path: Path) -> None:
    """It died of a segmentation fault."""
    assert run_program("_closed_agent", f"sqlite:///{tmp_path / 'db'}", name) == [str(READERS * READS)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_forked_children_have_connections_of_their_own(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Parent and children shared the sockets of a server, and read each other's answers."""
    url = f"sqlite:///{tmp_path / 'db'}" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    expected = [*[f"child: {TURNS} of {TURNS}"] * CHILDREN, f"parent: {TURNS} of {TURNS}"]
    assert run_program("_forked_agent", url) == expected


@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
def test_a_forked_child_has_no_live_runs_of_its_parent(tmp_path: Path) -> None:
    """It waited for an answer of an event loop that runs in its parent only, and listed the calls that run there."""
    url = f"sqlite:///{tmp_path / 'db'}"
    expected = ["child: another process runs the thread; 0 calls run here", "parent: 1 result"]
    assert run_program("_forked_live_run", url) == expected
