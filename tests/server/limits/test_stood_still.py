"""A process that was stopped for longer than its lease starts no call with an expired permit."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard import Limit, Rate
from callboard.extend import LimitGuard, PermitRequest
from callboard_actors._server.limits._gate import Gate
from callboard_actors._server.limits._permit import LocalPermit
from callboard_actors._server.limits._transport import Answer, Numbers

from ._process import read
from .test_many_processes import go, options, url, waiting

__all__ = ["url"]

LIMIT = Limit(concurrency=1, rate=Rate(5))
LEASE = 9.0


class World:
    """Gate with its own clock, whose permits record their answers."""

    def __init__(self) -> None:
        self.time = 100.0
        self.wanted = PermitRequest(limit=LIMIT, name="tool:t", title="the queue of tool 't'")
        numbers = Numbers.of(LIMIT, lease=LEASE)
        self.gate = Gate("tool:t", self.wanted, numbers, "a server", clock=lambda: self.time)
        self.answered: list[str] = []

    def enter(self, name: str) -> LocalPermit:
        stay = LocalPermit(self.wanted, lambda: self.answered.append(name), lambda what: what())
        stay.id, stay.gate = name, self.gate
        self.gate.enter(stay)
        return stay

    def says(self) -> list[tuple[str, str]]:
        return [(op.kind, op.id) for op in self.gate.step(self.time).ops]

    def hears(self, **answer: Any) -> None:
        self.gate.take(Answer(**{"epoch": "1", **answer}), self.time)


def test_word_of_a_place_that_is_read_after_the_lease_is_no_place() -> None:
    """The grant was sent while the process stood still; the request keeps its position in the queue."""
    world = World()
    stay = world.enter("a")
    world.says()
    world.hears(queued={"a": "0/a"})
    world.time += LEASE

    world.gate.note_heard("a", 7)

    assert (world.answered, stay.is_waiting) == ([], True)
    assert world.says() == [("wait", "a")]


def test_an_answer_that_is_read_after_the_lease_gives_no_place() -> None:
    """The process stood still between the request and the answer."""
    world = World()
    world.enter("a")
    world.says()
    world.time += LEASE

    world.hears(granted={"a": 7})

    assert world.answered == []
    assert world.says() == [("enter", "a")]


def test_a_place_is_lost_that_no_body_began_with_when_the_lease_was_over() -> None:
    """The permit is lost as soon as the lease ends, for good; for calls that have started it is reported again."""
    world = World()
    waits, runs = world.enter("a"), world.enter("b")
    world.says()
    world.hears(granted={"a": 7, "b": 8})
    runs.begin()
    assert not waits.is_lost
    world.time += LEASE

    assert waits.is_lost
    assert [one for one in world.says() if one[0] == "hold"] == [("hold", "b")]
    world.hears()
    assert waits.is_lost
    waits.leave()
    assert world.says() == []


def test_a_sign_of_life_that_was_heard_keeps_all_places() -> None:
    """The lease counts from the time at which the renewal was sent."""
    world = World()
    stay = world.enter("a")
    world.says()
    world.hears(granted={"a": 7})
    world.time += 0.9 * LEASE
    world.says()
    world.time += 0.5 * LEASE
    assert stay.is_lost
    world.hears()

    assert not stay.is_lost


class Losing:
    """Store whose first permit is lost before its call starts."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def check(self, limit: Limit, /) -> None: ...

    def ask(self, wanted: PermitRequest, on_answer: Any, /) -> Any:
        return LosingStay(self, on_answer, is_lost=not self.said)


class LosingStay:
    """Permit of one attempt."""

    failure = None
    token = 1

    def __init__(self, store: Losing, on_answer: Any, *, is_lost: bool) -> None:
        self._said = store.said
        self.is_lost = is_lost
        self._said.append("ask")
        on_answer()

    def begin(self) -> None:
        self._said.append("begin")

    def leave(self) -> None:
        self._said.append("leave")


async def test_a_lost_place_is_taken_anew() -> None:
    """A call that has not started requests a new permit."""
    store = Losing()
    with anyio.fail_after(5):
        async with LimitGuard(Limit(concurrency=1, shared=store), "t").place({"name": "t", "args": {}, "id": "1"}):
            store.said.append("body")

    assert store.said == ["ask", "leave", "ask", "begin", "body", "leave"]


@pytest.mark.exhaustive
@pytest.mark.real_clock
def test_a_stopped_process_begins_nothing_with_places_that_it_has_lost(url: str, tmp_path: Path) -> None:
    """The process is stopped again and again; it never starts a call while another process holds the permit."""
    plan = {"url": url, "options": options(tmp_path), "concurrency": 1, "calls": 3000, "seconds": 0.002}
    with waiting(tmp_path / "r", plan, plan) as [stopped, other]:
        go(stopped)
        go(other)
        while len(read(tmp_path / "r")) < 50:
            time.sleep(0.02)
        for _ in range(5):
            os.kill(stopped.pid, signal.SIGSTOP)
            time.sleep(1.7)
            os.kill(stopped.pid, signal.SIGCONT)
            time.sleep(0.5)

    running: set[tuple[int, int]] = set()
    for line in read(tmp_path / "r"):
        if line.what == "begin":
            assert not any(pid != line.pid for pid, _ in running if line.pid == stopped.pid), "it had lost that place"
            running.add((line.pid, line.index))
        else:
            running.discard((line.pid, line.index))
