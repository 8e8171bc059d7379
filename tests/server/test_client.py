"""The background client of a process, with a server that does nothing."""

import logging
import subprocess
import sys
import threading

from callboard import StorageError
from callboard_actors._server._client import BackgroundClient, Connection, error_text

from ._processes import ROOT


class SilentConnection:
    """Connection to a server that says nothing."""

    async def open(self, client: str) -> None: ...

    async def close(self) -> None: ...


class Client(BackgroundClient[Connection]):
    outage_behaviour = "nothing happens"

    def __init__(self) -> None:
        super().__init__(SilentConnection, "nowhere", 1.0, logging.getLogger("callboard_actors.test"))

    def has_work(self) -> bool:
        return False

    async def send_due_messages(self, connection: Connection) -> float:
        raise AssertionError

    async def receive_notifications(self, connection: Connection) -> None:
        raise AssertionError

    def answer_waiting_callers(self) -> None: ...

    def fail_all_callers(self, error: StorageError) -> None: ...

    def forget_connection(self) -> None: ...


def test_a_posted_function_that_fails_takes_no_other_along() -> None:
    """Functions of several callers run together, and each caller waits for its own."""
    client, has_posted, done = Client(), threading.Event(), threading.Event()

    def post_two() -> None:
        client.post(lambda: 1 / 0)
        client.post(done.set)
        has_posted.set()

    client.post(post_two)

    assert has_posted.wait(10)
    assert done.wait(10)
    client.close()
    assert client.has_ended
    assert not client.post(done.clear)


def test_a_process_without_open_files_is_told_so_and_may_ask_again() -> None:
    """The thread has no event loop then. Whoever asked waited for it for ever, and held the event loop of the calls."""
    command = [sys.executable, "-m", "tests.server._no_files"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)

    assert done.stdout.splitlines() == ["redis://127.0.0.1:1 cannot be asked: [Errno 24] Too many open files.", "NEW"]


def test_an_error_without_a_text_is_told_by_its_type() -> None:
    """A timeout has no text, and the line once showed empty brackets for it."""
    assert error_text(TimeoutError()) == "TimeoutError"
    assert error_text(OSError("no route")) == "no route"
