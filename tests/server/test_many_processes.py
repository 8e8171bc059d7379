"""Guarantees of shared limits and fleets, measured at a guarded resource while processes are killed."""

import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any, Self

import pytest

from ._processes import Line, begins, end, go, read, start, until, until_ready, waiting
from ._servers import RedisServer

pytestmark = [pytest.mark.real_clock, pytest.mark.exhaustive, pytest.mark.hangs_after(300)]


def plan_of(kind: str, url: str, directory: Path, **options: Any) -> dict[str, Any]:
    """Return the plan of a process with names of its own for this test at the server."""
    return {"what": kind, "url": url, "prefix": directory.name, **options}


def peak(lines: list[Line]) -> int:
    """Return the maximum number of concurrent calls."""
    running = highest = 0
    for line in lines:
        running += 1 if line.what == "begin" else -1
        highest = max(highest, running)
    return highest


def most_in_a_window(lines: list[Line], per: float) -> int:
    """Return the maximum number of calls that started within `per` seconds."""
    begun = [line.time for line in lines if line.what == "begin"]
    return max(sum(first <= moment < first + per for moment in begun[index:]) for index, first in enumerate(begun))


def wait(started: "list[subprocess.Popen[bytes]]") -> list[int]:
    return [process.wait(timeout=240) for process in started]


def until_begun(resource: Path, count: int) -> list[Line]:
    until(lambda: len(begins(resource)) >= count, 120.0)
    return read(resource)


def test_ten_thousand_calls_of_four_processes_keep_to_eight_at_once(url: str, tmp_path: Path) -> None:
    """Promise 7 for many processes: the limit is never exceeded, the queue is FIFO, and no call is lost."""
    resource = tmp_path / "resource"
    plan = plan_of("limits", url, tmp_path, lease=10.0, calls=2500, concurrency=8, seconds=0.001)
    plans = [{**plan, "backend": backend} for backend in ("asyncio", "trio", "asyncio", "trio")]

    with waiting(resource, *plans) as started:
        go(*started)
        ends = wait(started)

    lines = read(resource)
    assert ends == [0] * 4
    assert len(lines) == 20_000
    assert peak(lines) == 8
    for pid in {line.pid for line in lines}:
        tokens = [line.token for line in sorted(lines, key=lambda line: line.n) if line.pid == pid]
        assert tokens == sorted(tokens)  # each call gets its permit after those that came before it
    assert len({line.token for line in lines}) == 10_000


def test_killed_holders_and_a_killed_redis_let_no_more_run_than_may(own_redis: RedisServer, tmp_path: Path) -> None:
    """A Redis that lost its memory first collects the permits of live processes before it grants any."""
    resource = tmp_path / "resource"
    plan = plan_of("limits", own_redis.url, tmp_path, concurrency=8, seconds=0.05, calls=250)
    plan["rate"] = [100, 1.0]

    with waiting(resource, *({**plan, "tenant": f"tenant-{n}"} for n in range(4))) as started:
        go(*started)
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
    open_ones = {(line.pid, line.n): line for line in lines if line.what == "begin"}
    for line in lines:
        if line.what == "end":
            del open_ones[line.pid, line.n]
    assert {pid for pid, _ in open_ones} <= killed
    last = {pid: max(line.time for line in lines if line.pid == pid) for pid in killed}
    return sorted(
        [*lines, *(open_line._replace(time=last[open_line.pid] + 1e-6, what="end") for open_line in open_ones.values())]
    )


def test_a_stopped_process_begins_nothing_with_places_that_it_has_lost(url: str, tmp_path: Path) -> None:
    """The process is stopped again and again; it never starts a call while another process holds the permit."""
    plan = plan_of("limits", url, tmp_path, concurrency=1, calls=3000, seconds=0.002)
    with waiting(tmp_path / "r", plan, plan) as [stopped, other_process]:
        go(stopped, other_process)
        while len(read(tmp_path / "r")) < 50:
            time.sleep(0.02)
        for _ in range(5):
            stopped.send_signal(signal.SIGSTOP)
            time.sleep(1.7)
            stopped.send_signal(signal.SIGCONT)
            time.sleep(0.5)

    running: set[tuple[int, int]] = set()
    for line in read(tmp_path / "r"):
        if line.what == "begin":
            assert not any(pid != line.pid for pid, _ in running if line.pid == stopped.pid), "it had lost that place"
            running.add((line.pid, line.n))
        else:
            running.discard((line.pid, line.n))


LEASE = 1.0
KEYS = ["a", "b", "c"]


def outcomes(directory: Path) -> list[list[str]]:
    """Return what askers recorded: the outcome, key and name of the ask, and its value."""
    return [line.split() for path in directory.glob("*.outcomes") for line in path.read_text().splitlines()]


class Crowd:
    """Processes of a fleet. Each is `running`, or has the time at which it was killed or stopped."""

    def __init__(self, directory: Path, **plan: Any) -> None:
        self._directory = directory
        self._plan = plan
        self._seeds = random.Random(plan["seed"])
        self.running: list[subprocess.Popen[bytes]] = []
        self.disturbed: set[int] = set()

    def add(self) -> None:
        """Start one more process, and wait until it asks."""
        plan = {**self._plan, "seed": self._seeds.random(), "backend": self._seeds.choice(["asyncio", "trio"])}
        process = start(self._directory, **plan)
        self.running.append(process)
        until_ready(process)

    def kill(self, process: "subprocess.Popen[bytes]") -> None:
        self.running.remove(process)
        self.disturbed.add(process.pid)
        end(process)

    def pause(self, process: "subprocess.Popen[bytes]", seconds: float) -> None:
        """Stop a process for longer than its lease."""
        self.disturbed.add(process.pid)
        process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        process.send_signal(signal.SIGCONT)

    def finish(self) -> None:
        go(*self.running)
        for process in self.running:
            assert process.wait(60) == 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.running:
            end(process)


def check(directory: Path, crowd: Crowd) -> Counter[str]:
    """Check the guarantees; return how often askers got which outcome."""
    answers = [entry for entry in outcomes(directory) if entry[0] != "asked"]
    done = [line for key in KEYS for line in read(directory / f"{key}.resource")]
    begun = Counter(line.name for line in done if line.what == "begin")
    ended = Counter(line.name for line in done if line.what == "end")

    assert max(Counter(ask for _, _, ask, _ in answers).values()) == 1
    assert max(begun.values()) == 1, "an ask was done twice"
    for kind, key, ask, value in answers:
        assert kind != "error", value
        if kind == "value":
            assert begun[ask] == ended[ask] == 1, (key, ask)
    for key in KEYS:
        numbers = [value for kind, of, _, value in answers if kind == "value" and of == key]
        assert len(numbers) == len(set(numbers)), "a state that was answered for was lost"
        _check_one_instance(read(directory / f"{key}.resource"), crowd.disturbed)
    asks = {ask for kind, _, ask, _ in outcomes(directory) if kind == "asked"}
    open_asks = asks - {ask for _, _, ask, _ in answers}
    for pid in {entry.pid for entry in crowd.running}:
        # Asks that were open when the process was told to end have no line.
        assert len([ask for ask in open_asks if ask.startswith(f"{pid}-")]) <= 4
    return Counter(kind for kind, *_ in answers)


def _check_one_instance(lines: list[Line], disturbed: set[int]) -> None:
    """Check that there was one instance at any time: all actions of an owner precede those of the next."""
    accepted = [line for line in lines if line.what != "refused"]
    assert [line.token for line in accepted] == sorted(line.token for line in accepted)
    assert len({line.token for line in accepted}) == len({(line.token, line.pid) for line in accepted})
    at_work: dict[str, Line] = {}
    for line in accepted:
        for open_action in at_work.values():
            if open_action.token != line.token:
                # Only an owner that was killed or stopped may leave a handler without an end.
                assert open_action.pid in disturbed, (open_action, line)
        at_work = {ask: action for ask, action in at_work.items() if action.token == line.token}
        if line.what == "begin":
            assert not at_work, "two handlers at once"
            at_work[line.name] = line
        else:
            at_work.pop(line.name, None)


@pytest.mark.parametrize("seed", range(3))
def test_random_asks_with_kills_and_pauses(postgres_url: str, tmp_path: Path, seed: int) -> None:
    """Tokens at the resource show one instance at any time; each ask has one outcome and is done at most once."""
    draw = random.Random(seed)
    plan = plan_of("fleet", postgres_url, tmp_path, lease=LEASE, keys=KEYS, askers=3, seed=seed)
    with Crowd(tmp_path, **plan) as crowd:
        for _ in range(3):
            crowd.add()
        for _ in range(5):
            time.sleep(draw.uniform(0.2, 1.0))
            victim = draw.choice(crowd.running)
            if draw.random() < 0.5:
                crowd.kill(victim)
                crowd.add()
            else:
                crowd.pause(victim, draw.uniform(1.5, 2.0) * LEASE)
        time.sleep(2 * LEASE)
        crowd.finish()
        counts = check(tmp_path, crowd)

    assert counts["value"] > 100
    print(f"told: {dict(counts)}")
