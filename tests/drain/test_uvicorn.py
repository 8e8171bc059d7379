"""A real uvicorn is told to end during a call: the client's answer, the exit code, and the entries of the journal.

The example itself has a call that finishes in time, and a process that is killed.
"""

import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

pytestmark = [pytest.mark.real_clock, pytest.mark.exhaustive, pytest.mark.timeout(180)]
EXAMPLE = Path(__file__).parents[2] / "examples" / "drained_service.py"


@cache
def _story() -> dict[str, Any]:
    """Return the names of the example. It is loaded only when a test runs, because it imports uvicorn."""
    return runpy.run_path(str(EXAMPLE))


def ask(*request: Any) -> tuple[int, dict[str, Any]]:
    answer: tuple[int, dict[str, Any]] = _story()["ask"](*request)
    return answer


def until_asked(directory: Path, hotel: str) -> None:
    _story()["until_asked"](directory, hotel)


class Service:
    """Service of the example in its own process."""

    def __init__(self, directory: Path, seconds: float) -> None:
        with socket.create_server(("127.0.0.1", 0)) as found:
            self.port = found.getsockname()[1]
        self.log = directory / f"log-{self.port}"
        command = [sys.executable, str(EXAMPLE), "serve", str(directory), str(self.port), str(seconds)]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        _until(self._is_ready)

    def _is_ready(self) -> bool:
        try:
            return bool(ask(self.port, "GET", "/ready")[0] == 200)
        except OSError:
            assert self.process.poll() is None, self.log.read_text()
            return False

    def post(self, thread: str, text: str, answers: list[Any]) -> Thread:
        def post() -> None:
            try:
                answers.append(ask(self.port, "POST", thread, text))
            except OSError as error:
                answers.append(error)

        client = Thread(target=post)
        client.start()
        return client

    @property
    def group(self) -> list[int]:
        """Return the remaining processes of the service."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == self.process.pid and fields[0] != "Z":
                found.append(int(stat.parent.name))
        return found


def _until(holds: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def _service(directory: Path, seconds: float = 20.0) -> Iterator[Service]:
    found = Service(directory, seconds)
    try:
        yield found
    finally:
        if found.process.poll() is None:
            found.process.kill()
        found.process.wait(10)


def test_what_does_not_finish_in_time_is_told_to_the_client_the_log_and_the_next_process(tmp_path: Path) -> None:
    """The exit code says that an outcome is unknown; whoever resumes the thread is asked about that call only."""
    answers: list[Any] = []
    with _service(tmp_path, 0.5) as service:
        client = service.post("/rome", "Minerva 60", answers)
        until_asked(tmp_path, "Minerva")
        service.process.send_signal(signal.SIGTERM)
        client.join(30)
        code = service.process.wait(30)
    with _service(tmp_path) as again:
        status, found = ask(again.port, "POST", "/rome")

    assert [(answers[0][0], answers[0][1]["begun"])] == [(503, True)]
    assert code == 4
    assert service.group == []
    assert "was drained: 0 finished, 1 ended; unknown: book (call '" in service.log.read_text()
    assert "thread 'rome')" in service.log.read_text()
    assert status == 200
    assert ["This call was begun" in question for question in found["questions"]] == [True]
    assert (tmp_path / "bookings").read_text() == "Minerva is asked\n"


def test_a_second_sigterm_ends_at_once_what_runs(tmp_path: Path) -> None:
    """A second signal means that there is no time for the drain."""
    answers: list[Any] = []
    with _service(tmp_path, 600) as service:
        client = service.post("/rome", "Minerva 600", answers)
        until_asked(tmp_path, "Minerva")
        service.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        with pytest.raises(ConnectionRefusedError):
            ask(service.port, "POST", "/oslo", "Bristol 0")
        service.process.send_signal(signal.SIGTERM)
        client.join(30)
        code = service.process.wait(30)

    assert [answer[0] for answer in answers] == [503]
    assert code == 4
