"""Spare interpreters as their zygote sees them; each test takes the part of the zygote."""

import os
import select
import signal
import socket
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from callboard_actors.process import Processes
from callboard_actors.process._loading import FatalError
from callboard_actors.process._settings import Settings
from callboard_actors.process._standbys import Standbys, _Standby
from callboard_actors.process._zygote import _Zygote

ENDS = f"{__package__}._ends_its_process"

pytestmark = pytest.mark.real_clock


@contextmanager
def _begun(
    said: list[tuple[Any, ...]], poll: select.poll, preload: Sequence[str] = (), wanted: Sequence[str] = ()
) -> Generator[Standbys]:
    terms = Processes(workers=1, start="spawn", preload=preload)._terms
    standbys = Standbys(
        Settings(parent=os.getpid(), backend="asyncio", terms=terms, wanted=tuple(wanted)),
        poll,
        loading=lambda place: said.append(("loading", place)),
        ready=lambda: said.append(("ready",)),
        born=lambda number, pid: said.append(("born", number, pid)),
        unborn=lambda number, error: said.append(("unborn", number, error)),
    )
    with _held(standbys):
        standbys.begin()
        yield standbys


@contextmanager
def _held(standbys: Standbys) -> Generator[None]:
    """Hold the spare interpreters, and end them all at the end."""
    try:
        yield
    finally:
        standbys.end()
        for pid in standbys.pids():
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            standbys.lost(pid)
        os.close(standbys._lifeline)
        os.close(standbys._held)


def _given(standbys: Standbys, poll: select.poll, begun_counter: int) -> _Standby:
    """Return an interpreter that has reported as worker number 7, before the zygote has read the report."""
    while not any(one.is_ready for one in standbys._standbys.values()):
        for fd, _ in poll.poll():
            standbys.hear(fd)
    here, there = socket.socketpair()
    with here:
        standbys.ask(7, [there.detach(), os.dup(2), os.dup(begun_counter)], is_seat=False)
        [given] = [one for one in standbys._standbys.values() if one.given is not None]
        select.select([given.control], [], [])
    return given


def test_the_module_that_ends_an_interpreter_is_known_though_it_was_buried_first() -> None:
    """The last messages are read after the exit, so that the error does not blame the previously loaded module."""
    said: list[tuple[Any, ...]] = []
    with _begun(said, select.poll(), wanted=["no_such_module", ENDS]) as standbys:
        assert standbys._first is not None
        os.waitpid(standbys._first, 0)
        with pytest.raises(SystemExit):
            standbys.lost(standbys._first)

    assert said == [("loading", 0), ("loading", 1)]


def test_why_there_can_be_no_interpreter_is_known_though_it_was_buried_first() -> None:
    """The error of the pool gives the reason of the failed start, not only that its zygote ended."""
    with _begun([], select.poll(), preload=["no_such_module"]) as standbys:
        assert standbys._first is not None
        os.waitpid(standbys._first, 0)
        with pytest.raises(FatalError, match="preload='no_such_module' cannot be imported"):
            standbys.lost(standbys._first)


def test_a_worker_that_ends_at_once_has_been_one(tmp_path: Path) -> None:
    """The start of a short-lived worker is reported, so that its end is not mistaken for a failed start."""
    said: list[tuple[Any, ...]] = []
    poll = select.poll()
    with _begun(said, poll) as standbys, (tmp_path / "notebook").open("wb") as begun_counter:
        given = _given(standbys, poll, begun_counter.fileno())
        os.kill(given.pid, signal.SIGKILL)
        os.waitpid(given.pid, 0)
        standbys.lost(given.pid)

        assert said[1:] == [("born", 7, given.pid)]
        assert given.pid not in standbys.pids()


def test_the_zygote_knows_the_end_of_a_worker_whose_birth_it_hears_of_in_the_same_instant(tmp_path: Path) -> None:
    """A zygote that misses this end would count a process that no longer exists as a worker for ever."""
    control, pool = socket.socketpair()
    settings = Settings(parent=os.getpid(), backend="asyncio", terms=Processes(workers=1, start="spawn")._terms)
    zygote = _Zygote(control, settings)
    zygote.prepare()
    standbys = zygote._starter
    assert isinstance(standbys, Standbys)
    with (
        control,
        pool,
        zygote._woken,
        zygote._wake,
        _held(standbys),
        (tmp_path / "notebook").open("wb") as begun_counter,
    ):
        standbys.begin()
        given = _given(standbys, zygote._poll, begun_counter.fileno())
        os.kill(given.pid, signal.SIGKILL)
        os.waitid(os.P_PID, given.pid, os.WEXITED | os.WNOWAIT)
        zygote._reap()

        assert zygote._living == {}
        assert [(one.number, one.exitcode) for one in zygote._ended] == [(7, -signal.SIGKILL)]
