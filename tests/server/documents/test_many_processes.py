"""Guarantees of shared circuits and results, measured at the tool while processes are killed."""

import json
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.server.limits._redis import RedisServer

from ._process import begins, read, start

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(120)]


@contextmanager
def processes(resource: Path, *plans: dict[str, Any]) -> "Iterator[list[subprocess.Popen[bytes]]]":
    """Start processes that wait before their calls; kill the remaining ones at the end."""
    started = [start(resource, **plan) for plan in plans]
    try:
        for one in started:
            assert one.stdout is not None
            assert one.stdout.readline() == b"ready\n"
        yield started
    finally:
        for one in started:
            one.kill()
            one.wait()
            for stream in (one.stdin, one.stdout):
                assert stream is not None
                stream.close()


def go(*started: "subprocess.Popen[bytes]") -> None:
    for one in started:
        assert one.stdin is not None
        one.stdin.write(b"go\n")
        one.stdin.flush()


def said(process: "subprocess.Popen[bytes]") -> dict[str, int]:
    """Return how the calls of a process ended, after the last one."""
    assert process.stdout is not None
    found = json.loads(process.stdout.readline())
    assert process.wait(timeout=60) == 0
    return dict(found)


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture(params=["redis", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """Return the URL of a server of the tests."""
    if request.param == "redis":
        return str(request.getfixturevalue("redis_server").url)
    return str(request.getfixturevalue("postgres_url"))


@pytest.mark.parametrize("skew", [0.0, 86_400.0])
def test_of_identical_calls_of_four_processes_each_runs_once(url: str, tmp_path: Path, skew: float) -> None:
    """Four processes with wrong clocks make 800 calls, of which 20 are different."""
    resource = tmp_path / "resource"
    plan = {"url": url, "prefix": tmp_path.name, "what": "cache", "calls": 200, "keys": 20, "seconds": 0.02}
    backends = ("asyncio", "trio", "asyncio", "trio")
    plans = [{**plan, "backend": backend, "skew": skew * (n - 1.5)} for n, backend in enumerate(backends)]

    with processes(resource, *plans) as started:
        go(*started)
        found = [said(one) for one in started]

    assert sorted(line.n for line in begins(resource)) == list(range(20))
    together = sum((Counter(one) for one in found), Counter[str]())
    assert len(together) == 20
    assert set(together.values()) == {40}


def test_when_a_leader_is_killed_one_of_those_who_wait_runs_after_its_lease(url: str, tmp_path: Path) -> None:
    """A killed process sends no message, so its lease has to expire."""
    resource = tmp_path / "resource"
    plan = {"url": url, "prefix": tmp_path.name, "what": "cache", "calls": 1, "lease": 1.0}
    doomed, heir = {**plan, "seconds": 60.0}, {**plan, "seconds": 0.2}

    with processes(resource, doomed, heir, heir, heir) as started:
        go(started[0])
        until(lambda: len(begins(resource)) == 1)
        go(*started[1:])
        time.sleep(0.5)
        started[0].send_signal(signal.SIGKILL)
        killed = time.monotonic()
        found = [said(one) for one in started[1:]]
        took = time.monotonic() - killed

    assert len(begins(resource)) == 2
    assert [list(one.values()) for one in found] == [[1]] * 3
    assert len({text for one in found for text in one}) == 1
    assert took < 5


def test_a_leader_that_stood_still_overwrites_nothing(url: str, tmp_path: Path) -> None:
    """The stopped leader continues after a newer one has stored its result; its fencing token is refused."""
    resource = tmp_path / "resource"
    plan = {"url": url, "prefix": tmp_path.name, "what": "cache", "calls": 1, "lease": 0.6}
    slow, heir = {**plan, "seconds": 0.4}, {**plan, "seconds": 0.0}

    with processes(resource, slow, heir, heir) as started:
        go(started[0])
        until(lambda: len(begins(resource)) == 1)
        started[0].send_signal(signal.SIGSTOP)
        go(started[1])
        by_heir = said(started[1])
        started[0].send_signal(signal.SIGCONT)
        by_slow = said(started[0])
        go(started[2])
        by_later = said(started[2])

    assert by_heir == by_later == {f"0 by {started[1].pid}": 1}
    assert by_slow == {f"0 by {started[0].pid}": 1}


def test_when_who_tries_the_tool_is_killed_another_process_does_after_its_lease(url: str, tmp_path: Path) -> None:
    """If the lease of a probe never expired, a repaired tool would never be tried again."""
    resource = tmp_path / "resource"
    rules = {"minimum": 2, "open_for": 0.3, "window": 60.0}
    plan = {"url": url, "prefix": tmp_path.name, "what": "breaker", "rules": rules, "lease": 1.0}
    fails = {**plan, "calls": 2, "fails": True}
    hangs = {**plan, "calls": 1, "seconds": 60.0}
    heir = {**plan, "calls": 40, "pause": 0.1}

    with processes(resource, fails, hangs, heir) as started:
        go(started[0])
        said(started[0])
        time.sleep(0.5)
        go(started[1])
        until(lambda: len(begins(resource)) == 3)
        started[1].send_signal(signal.SIGKILL)
        killed = time.monotonic()
        go(started[2])
        until(lambda: len(begins(resource)) > 3)
        took = time.monotonic() - killed
        ends = said(started[2])

    assert 0.3 < took < 5
    assert sum(count for text, count in ends.items() if "unavailable" in text) >= 3
    assert ends[f"0 by {started[2].pid}"] >= 5


def test_four_processes_try_a_tool_that_is_down_as_seldom_as_one(url: str, tmp_path: Path) -> None:
    """After the circuit has opened, one call runs at a time, and one in each period of `open_for`."""
    resource = tmp_path / "resource"
    rules = {"minimum": 4, "open_for": 0.4, "window": 60.0}
    plan = {"url": url, "prefix": tmp_path.name, "what": "breaker", "rules": rules, "lease": 5.0, "fails": True}
    plan = {**plan, "calls": 300, "pause": 0.01, "seconds": 0.02}

    with processes(resource, *({**plan, "backend": backend} for backend in ("asyncio", "trio") * 2)) as started:
        go(*started)
        for one in started:
            said(one)

    lines = read(resource)
    opened = [line for line in lines if line.what == "end"][3].time
    later = [line.time for line in lines if line.what == "begin" and line.time > opened + 0.2]
    assert len(later) >= 3
    assert all(one - before >= 0.4 for before, one in pairwise(later))


def test_a_redis_that_is_killed_under_load_costs_runs_and_no_answers(own_redis: RedisServer, tmp_path: Path) -> None:
    """Redis loses all results; every call still returns a right answer, and later calls share results again."""
    resource = tmp_path / "resource"
    plan = {"url": own_redis.url, "prefix": tmp_path.name, "what": "cache", "calls": 300, "keys": 10}
    plan = {**plan, "seconds": 0.02, "pause": 0.01}

    with processes(resource, plan, plan, plan) as started:
        go(*started)
        for number in range(1, 3):
            until(lambda number=number: len(begins(resource)) >= 10 * number)  # type: ignore[misc]
            time.sleep(0.3)
            own_redis.kill()
            time.sleep(0.2)
            own_redis.start()
        found = [said(one) for one in started]

    assert [sum(one.values()) for one in found] == [300] * 3
    assert all(" by " in text for one in found for text in one)
    ran = len(begins(resource))
    last = begins(resource)[-10:]
    assert 30 <= ran < 900
    assert sorted(line.n for line in last) == list(range(10))  # all processes know the last results
