"""Guarantees of shared limits, measured at the guarded resource while processes are killed."""

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ._process import Line, most_in_a_window, peak, read, start
from ._redis import RedisServer

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(300)]


@contextmanager
def waiting(resource: Path, *plans: dict[str, Any]) -> "Iterator[list[subprocess.Popen[bytes]]]":
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


def go(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    process.stdin.write(b"go\n")
    process.stdin.flush()


@contextmanager
def processes(resource: Path, *plans: dict[str, Any]) -> "Iterator[list[subprocess.Popen[bytes]]]":
    """Start processes that make calls."""
    with waiting(resource, *plans) as started:
        for one in started:
            go(one)
        yield started


def wait(started: "list[subprocess.Popen[bytes]]") -> list[int]:
    return [one.wait(timeout=240) for one in started]


def until_begun(resource: Path, count: int) -> list[Line]:
    while True:
        lines = read(resource)
        if sum(line.what == "begin" for line in lines) >= count:
            return lines
        time.sleep(0.02)


@pytest.fixture(params=["redis", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """Return the URL of a server of the tests."""
    if request.param == "redis":
        return str(request.getfixturevalue("redis_server").url)
    return str(request.getfixturevalue("postgres_url"))


def options(tmp_path: Path, **more: Any) -> dict[str, Any]:
    return {"prefix": tmp_path.name, "lease": 1.0, **more}


@pytest.mark.exhaustive
def test_ten_thousand_calls_of_four_processes_keep_to_eight_at_once(url: str, tmp_path: Path) -> None:
    """Promise 7 for many processes: the limit is never exceeded, the queue is FIFO, and no call is lost."""
    resource = tmp_path / "resource"
    plan = {"url": url, "options": options(tmp_path, lease=10.0), "calls": 2500, "concurrency": 8, "seconds": 0.001}
    plans = [{**plan, "backend": backend} for backend in ("asyncio", "trio", "asyncio", "trio")]

    with processes(resource, *plans) as started:
        ends = wait(started)

    lines = read(resource)
    assert ends == [0] * 4
    assert len(lines) == 20_000
    assert peak(lines) == 8
    for pid in {line.pid for line in lines}:
        tokens = [line.token for line in sorted(lines, key=lambda line: line.index) if line.pid == pid]
        assert tokens == sorted(tokens)  # each call gets its permit after those that came before it
    assert len({line.token for line in lines}) == 10_000


@pytest.mark.exhaustive
def test_four_processes_keep_to_fifty_starts_a_second(url: str, tmp_path: Path) -> None:
    """The sliding window counts the actual starts of calls, not the grants of the server."""
    resource = tmp_path / "resource"
    plan = {"url": url, "options": options(tmp_path), "calls": 75, "rate": [50, 1.0], "concurrency": 8}

    with processes(resource, plan, plan, plan, plan) as started:
        ends = wait(started)

    lines = read(resource)
    begins = [line.time for line in lines if line.what == "begin"]
    assert ends == [0] * 4
    assert len(begins) == 300
    assert most_in_a_window(lines, 1.0) == 50
    assert peak(lines) <= 8
    assert begins[-1] - begins[0] < 10  # 5 s at least


@pytest.mark.exhaustive
def test_a_tenant_with_a_tenth_of_the_load_is_done_after_a_fifth_of_the_time(url: str, tmp_path: Path) -> None:
    """While both tenants wait, each gets half of the starts, however many calls it has queued."""
    resource = tmp_path / "resource"
    plan = {"url": url, "options": options(tmp_path), "concurrency": 4, "seconds": 0.01}
    loud, quiet = {**plan, "calls": 1000, "tenant": "loud"}, {**plan, "calls": 100, "tenant": "quiet"}

    with waiting(resource, loud, quiet) as started:
        go(started[0])
        until_begun(resource, 50)
        go(started[1])
        ends = wait(started)

    begins = [line.tenant for line in read(resource) if line.what == "begin"]
    shared = begins[begins.index("quiet") : len(begins) - begins[::-1].index("quiet")]
    assert ends == [0, 0]
    assert len(begins) == 1100
    assert 90 <= shared.count("loud") <= 110
    assert shared.count("quiet") == 100


def test_places_of_a_killed_process_come_back_within_a_lease_or_so(url: str, tmp_path: Path) -> None:
    """A killed process sends no message; later holders have higher tokens."""
    resource = tmp_path / "resource"
    plan = {"url": url, "options": options(tmp_path), "concurrency": 2}
    doomed, heir = {**plan, "calls": 4, "seconds": 60.0}, {**plan, "calls": 4}

    with waiting(resource, doomed, heir) as started:
        go(started[0])
        before = until_begun(resource, 2)
        go(started[1])
        started[0].send_signal(signal.SIGKILL)
        assert started[1].wait(timeout=10) == 0

    later = [line for line in read(resource) if line.pid == started[1].pid]
    assert len(later) == 8
    assert min(line.token for line in later) > max(line.token for line in before)


def test_a_process_that_ends_gives_its_places_back_at_once(url: str, tmp_path: Path) -> None:
    """A closing process releases its permits before it ends, so no lease has to expire."""
    resource = tmp_path / "resource"
    plan = {"url": url, "options": options(tmp_path, lease=6.0), "concurrency": 1, "calls": 1}

    with waiting(resource, plan, plan, plan) as started:
        go(started[0])
        assert started[0].wait(timeout=60) == 0  # a fresh server grants nothing for one lease
        began = time.monotonic()
        for one in started[1:]:
            go(one)
        assert wait(started) == [0, 0, 0]

    assert time.monotonic() - began < 6.0


@pytest.mark.exhaustive
def test_killed_holders_and_a_killed_redis_let_no_more_run_than_may(own_redis: RedisServer, tmp_path: Path) -> None:
    """A Redis that lost its memory first collects the permits of live processes before it grants any."""
    resource = tmp_path / "resource"
    plan = {"url": own_redis.url, "options": options(tmp_path), "concurrency": 8, "seconds": 0.05, "calls": 250}
    plan["rate"] = [100, 1.0]

    with processes(resource, *({**plan, "tenant": f"tenant-{n}"} for n in range(4))) as started:
        until_begun(resource, 100)
        started[0].send_signal(signal.SIGKILL)
        until_begun(resource, 200)
        own_redis.kill()
        own_redis.start()
        until_begun(resource, 350)
        started[1].send_signal(signal.SIGKILL)
        own_redis.kill()
        own_redis.start()
        ends = wait(started)

    lines = read(resource)
    killed = {started[0].pid, started[1].pid}
    survived = [line for line in lines if line.pid not in killed]
    assert ends == [-9, -9, 0, 0]
    assert len(survived) == 1000
    assert most_in_a_window(lines, 1.0) <= 100
    assert peak(with_ends(lines, killed)) <= 8


def with_ends(lines: list[Line], killed: set[int]) -> list[Line]:
    """Return the lines, with an end for killed calls: at the latest their process's last line."""
    open_ones = {(line.pid, line.index): line for line in lines if line.what == "begin"}
    for line in lines:
        if line.what == "end":
            del open_ones[line.pid, line.index]
    assert {pid for pid, _ in open_ones} <= killed
    last = {pid: max(line.time for line in lines if line.pid == pid) for pid in killed}
    return sorted([*lines, *(one._replace(time=last[one.pid] + 1e-6, what="end") for one in open_ones.values())])
