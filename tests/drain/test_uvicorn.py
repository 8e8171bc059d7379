"""A real uvicorn is told to end during a call: the client's answer, the exit code, and the entries of the journal.

The example itself has a call that finishes in time, and a process that is killed.
"""

import time
from pathlib import Path
from typing import Any

import pytest

from ._service import ask, started, until_asked

pytestmark = [pytest.mark.real_clock, pytest.mark.exhaustive, pytest.mark.timeout(180)]


def test_what_does_not_finish_in_time_is_told_to_the_client_the_log_and_the_next_process(tmp_path: Path) -> None:
    """The exit code says that an outcome is unknown; whoever resumes the thread is asked about that call only."""
    answers: list[Any] = []
    with started(tmp_path, 0.5) as service:
        client = service.post("/rome", "Minerva 60", answers)
        until_asked(tmp_path, "Minerva")
        service.terminate()
        client.join(30)
        code = service.process.wait(30)
    with started(tmp_path) as again:
        status, found = ask(again.port, "POST", "/rome")

    assert [(answers[0][0], answers[0][1]["begun"])] == [(503, True)]
    assert code == 4
    assert service.remaining() == []
    assert "was drained: 0 finished, 1 ended; unknown: book (call '" in service.log.read_text()
    assert "thread 'rome')" in service.log.read_text()
    assert status == 200
    assert ["This call was begun" in question for question in found["questions"]] == [True]
    assert (tmp_path / "bookings").read_text() == "Minerva is asked\n"


def test_a_second_sigterm_ends_at_once_what_runs(tmp_path: Path) -> None:
    """A second signal means that there is no time for the drain."""
    answers: list[Any] = []
    with started(tmp_path, 600) as service:
        client = service.post("/rome", "Minerva 600", answers)
        until_asked(tmp_path, "Minerva")
        service.terminate()
        time.sleep(0.3)
        with pytest.raises(ConnectionRefusedError):
            ask(service.port, "POST", "/oslo", "Bristol 0")
        service.terminate()
        client.join(30)
        code = service.process.wait(30)

    assert [answer[0] for answer in answers] == [503]
    assert code == 4
