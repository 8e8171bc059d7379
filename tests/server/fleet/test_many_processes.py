"""Several processes, some killed or stopped: checks of the guarded resource and of the outcomes that askers got."""

import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard import ActorDiedError, keyed

from ._process import Line, Worker, fleet_at, read, start

pytestmark = [pytest.mark.real_clock, pytest.mark.exhaustive]

LEASE = 1.0
LONG = 3.0
"""In seconds; for processes that must not lose their lease on a busy machine."""
KEYS = ["a", "b", "c"]


@pytest.fixture(params=["redis", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """Return the URL of a server for all processes."""
    is_redis = request.param == "redis"
    found: str = request.getfixturevalue("redis_server").url if is_redis else request.getfixturevalue("postgres_url")
    return found


def _outcomes(directory: Path) -> list[tuple[str, str, str, str, float]]:
    found: list[tuple[str, str, str, str, float]] = []
    for path in directory.glob("*.outcomes"):
        for line in path.read_text().splitlines():
            what, key, ask, value, when = line.split()
            found.append((what, key, ask, value, float(when)))
    return found


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
        one = start(self._directory, **plan)
        self.running.append(one)
        assert one.stdout is not None
        assert one.stdout.readline() == b"ready\n"

    def kill(self, one: "subprocess.Popen[bytes]") -> None:
        """Kill a process."""
        self.running.remove(one)
        self.disturbed.add(one.pid)
        _end(one)

    def pause(self, one: "subprocess.Popen[bytes]", seconds: float) -> None:
        """Stop a process for longer than its lease."""
        self.disturbed.add(one.pid)
        one.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        one.send_signal(signal.SIGCONT)

    def finish(self) -> None:
        """End all running processes in order."""
        for one in self.running:
            assert one.stdin is not None
            one.stdin.write(b"\n")
            one.stdin.flush()
        for one in self.running:
            assert one.wait(60) == 0

    def remove(self) -> None:
        for one in self.running:
            _end(one)


def _end(one: "subprocess.Popen[bytes]") -> None:
    with one:  # close the pipes
        one.kill()


def check(directory: Path, crowd: Crowd) -> Counter[str]:
    """Check the guarantees; return how often askers got which outcome."""
    told = [one for one in _outcomes(directory) if one[0] not in ("asked", "left")]
    done = [line for key in KEYS for line in read(directory / f"{key}.resource")]
    begun = Counter(line.ask for line in done if line.what == "begin")
    ended = Counter(line.ask for line in done if line.what == "end")

    assert max(Counter(ask for _, _, ask, _, _ in told).values()) == 1
    assert max(begun.values()) == 1, "an ask was done twice"
    for what, key, ask, value, _ in told:
        assert what != "error", value
        if what == "value":
            assert begun[ask] == ended[ask] == 1, (key, ask)
    for key in KEYS:
        numbers = [value for what, of, _, value, _ in told if what == "value" and of == key]
        assert len(numbers) == len(set(numbers)), "a state that was answered for was lost"
        _check_one_instance(read(directory / f"{key}.resource"), crowd.disturbed)
    asked = {ask for what, _, ask, _, _ in _outcomes(directory) if what == "asked"}
    open_asks = asked - {ask for _, _, ask, _, _ in told}
    for pid in {one.pid for one in crowd.running}:
        # Asks that were open when the process was told to end have no line.
        assert len([ask for ask in open_asks if ask.startswith(f"{pid}-")]) <= 4
    return Counter(what for what, *_ in told)


def _check_one_instance(lines: list[Line], disturbed: set[int]) -> None:
    """Check that there was one instance at any time: all actions of an owner precede those of the next."""
    accepted = [line for line in lines if line.what != "refused"]
    assert [line.token for line in accepted] == sorted(line.token for line in accepted)
    assert len({line.token for line in accepted}) == len({(line.token, line.pid) for line in accepted})
    at_work: dict[str, Line] = {}
    for line in accepted:
        for other in at_work.values():
            if other.token != line.token:
                # Only an owner that was killed or stopped may leave a handler without an end.
                assert other.pid in disturbed, (other, line)
        at_work = {ask: one for ask, one in at_work.items() if one.token == line.token}
        if line.what == "begin":
            assert not at_work, "two handlers at once"
            at_work[line.ask] = line
        else:
            at_work.pop(line.ask, None)


@pytest.mark.parametrize("seed", range(3))
def test_random_asks_with_kills_and_pauses(url: str, tmp_path: Path, seed: int) -> None:
    """Tokens at the resource show one instance at any time; each ask has one outcome and is done at most once."""
    draw = random.Random(seed)
    crowd = Crowd(tmp_path, url=url, prefix=tmp_path.name, lease=LEASE, keys=KEYS, askers=3, seed=seed)
    try:
        for _ in range(3):
            crowd.add()
        time.sleep(2 * LEASE)  # a fresh server grants no key at first
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
        told = check(tmp_path, crowd)
    finally:
        crowd.remove()

    assert told["value"] > 100
    print(f"told: {dict(told)}")


def test_nobody_is_disturbed_and_nothing_is_lost(url: str, tmp_path: Path) -> None:
    """Idle actors end and their keys move between processes, without any unknown outcome."""
    plan = {"url": url, "prefix": tmp_path.name, "lease": LEASE, "keys": KEYS, "askers": 2, "seed": 7, "idle": 0.05}
    crowd = Crowd(tmp_path, **plan)
    try:
        for _ in range(3):
            crowd.add()
        time.sleep(4 * LEASE)
        crowd.finish()
        told = check(tmp_path, crowd)
    finally:
        crowd.remove()

    assert set(told) <= {"value", "cancelled"}
    assert told["value"] > 100


async def test_a_killed_owner_is_followed_by_whoever_asks_next(url: str, tmp_path: Path) -> None:
    """The saved state is restored; the running ask is unknown, and waiting asks are done."""
    plan = {"url": url, "prefix": tmp_path.name, "lease": LONG, "keys": ["k"], "askers": 0, "seed": 1}
    crowd = Crowd(tmp_path, **plan, idle=60.0)
    told: list[str] = []

    async def ask(one: Any, name: str, seconds: float) -> None:
        try:
            told.append(f"{name} {await one.work(name, seconds)}")
        except ActorDiedError as died:
            told.append(f"{name} {died.ended}")

    try:
        with anyio.fail_after(40):
            crowd._plan["askers"] = 1  # this process asks first and becomes the owner of the key
            await anyio.to_thread.run_sync(crowd.add)
            path = tmp_path / "k.resource"
            while not any(line.what == "end" for line in read(path)):
                await anyio.sleep(0.01)
            [owner] = crowd.running
            async with keyed(Worker(tmp_path), fleet=fleet_at(plan), save="each_call") as one:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(ask, one["k"], "first", 30.0)
                    while not any(line.ask == "first" for line in read(path)):
                        await anyio.sleep(0.01)
                    tasks.start_soon(ask, one["k"], "second", 0.0)
                    await anyio.sleep(0.2)
                    before = time.monotonic()
                    crowd.kill(owner)
                after = time.monotonic() - before
    finally:
        crowd.remove()

    number = len([line for line in read(path) if line.what == "end" and line.pid == owner.pid])
    assert sorted(told) == ["first unknown", f"second {number + 1}"]
    assert [line.what for line in read(path) if line.ask == "first"] == ["begin"]
    assert after < 2 * LONG
    print(f"taken over after {after:.2f} s, with a lease of {LONG:g} s")


async def test_an_owner_that_stood_still_is_a_has_been(url: str, tmp_path: Path) -> None:
    """The process continues in the middle of a handler: the resource refuses its write, and its instance ends."""
    plan = {"url": url, "prefix": tmp_path.name, "lease": LONG, "keys": ["k"], "askers": 1, "seed": 1}
    crowd = Crowd(tmp_path, **plan, idle=60.0)
    path = tmp_path / "k.resource"
    told: list[str] = []

    async def ask(one: Any, name: str) -> None:
        try:
            told.append(f"{await one.work_in_thread(name, 2.5 * LONG)}")
        except ActorDiedError as died:
            told.append(f"{name} {died.ended}")

    try:
        with anyio.fail_after(40):
            await anyio.to_thread.run_sync(crowd.add)
            while not any(line.what == "end" for line in read(path)):
                await anyio.sleep(0.01)
            [owner] = crowd.running
            async with keyed(Worker(tmp_path), fleet=fleet_at(plan), save="each_call") as one:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(ask, one["k"], "slow")
                    while not any(line.ask == "slow" for line in read(path)):
                        await anyio.sleep(0.01)
                    tasks.start_soon(anyio.to_thread.run_sync, crowd.pause, owner, 3 * LONG)
                    await one["k"].work("mine", 0.0)  # as soon as the lease has expired
                while not any(line.what == "refused" for line in read(path)):
                    await anyio.sleep(0.01)
        crowd.finish()
    finally:
        crowd.remove()

    assert told == ["slow unknown"]
    assert [line.what for line in read(path) if line.ask == "slow"] == ["begin", "refused"]
    _check_one_instance(read(path), crowd.disturbed)
