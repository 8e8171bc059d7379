"""Promises 5 and 10: a process dies in the middle of a batch, and the next one runs only unfinished calls."""

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.exhaustive

SCRIPT = Path(__file__).with_name("_crash_script.py")
SAVERS = pytest.mark.parametrize("saver", ["sqlite", "aiosqlite"])
SECONDS = 30
"""Time limit of one process in seconds; a process needs about two."""

FINISHED = ["quick a", "alive", "blocking b", "quick c"]


class Crash:
    """Runs the script in several processes, one after the other, on one directory."""

    def __init__(self, directory: Path, saver: str) -> None:
        self.directory = directory
        self.saver = saver

    def _command(self, action: str, answers: dict[str, Any] | None) -> list[str]:
        given = [] if answers is None else [json.dumps(answers)]
        return [sys.executable, str(SCRIPT), str(self.directory), self.saver, action, *given]

    def dies(self, answers: dict[str, Any] | None = None) -> None:
        """Run a process that ends itself at once, without any clean-up."""
        died = subprocess.run(
            self._command("exit", answers), check=False, capture_output=True, timeout=SECONDS, text=True
        )
        assert died.returncode == 9, died.stderr

    def is_killed(self, answers: dict[str, Any] | None = None) -> None:
        """Run a process that is killed from outside while a call runs."""
        marker = self.directory / "about to die"
        with subprocess.Popen(self._command("hang", answers), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            deadline = time.monotonic() + SECONDS
            while not marker.exists() and child.poll() is None and time.monotonic() < deadline:
                time.sleep(0.02)
            child.kill()
            _, errors = child.communicate(timeout=SECONDS)
        assert marker.exists(), errors
        assert child.returncode == -signal.SIGKILL
        marker.unlink()

    def goes_on(self, answers: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run a process to its end; return the output of the graph."""
        done = subprocess.run(
            self._command("live", answers), check=False, capture_output=True, timeout=SECONDS, text=True
        )
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout.splitlines()[-1]))

    @property
    def ran(self) -> Counter[str]:
        return Counter((self.directory / "log").read_text().splitlines())


@SAVERS
def test_what_finished_before_the_process_ended_itself_does_not_run_again(saver: str, tmp_path: Path) -> None:
    crash = Crash(tmp_path, saver)
    crash.dies()
    assert crash.ran == {"quick a": 1, "blocking b": 1, "quick c": 1, "deadly": 1}
    assert crash.goes_on() == {"messages": FINISHED, "questions": []}
    assert crash.ran == {"quick a": 1, "blocking b": 1, "quick c": 1, "deadly": 2}


@SAVERS
def test_what_finished_before_kill_9_does_not_run_again(saver: str, tmp_path: Path) -> None:
    crash = Crash(tmp_path, saver)
    crash.is_killed()
    crash.is_killed()
    assert crash.goes_on()["messages"] == FINISHED
    assert crash.ran == {"quick a": 1, "blocking b": 1, "quick c": 1, "deadly": 3}


@SAVERS
def test_a_node_in_a_subgraph(saver: str, tmp_path: Path) -> None:
    (tmp_path / "nested").touch()
    crash = Crash(tmp_path, saver)
    crash.dies()
    assert crash.goes_on()["messages"] == FINISHED
    assert crash.ran == {"quick a": 1, "blocking b": 1, "quick c": 1, "deadly": 2}


@SAVERS
def test_questions_that_were_open_are_asked_by_the_next_process(saver: str, tmp_path: Path) -> None:
    (tmp_path / "asking").touch()
    crash = Crash(tmp_path, saver)
    crash.dies()
    assert crash.goes_on() == {"messages": [], "questions": ["d?", "e?"]}
    assert crash.goes_on({"e?": "E"}) == {"messages": [], "questions": ["d?"]}
    assert crash.goes_on({"d?": "D"}) == {"messages": [*FINISHED, "d got D", "e got E"], "questions": []}
    ran = crash.ran
    assert [ran[line] for line in ("quick a", "blocking b", "quick c", "answered d", "answered e")] == [1] * 5
    assert ran["deadly"] == 2
