"""A process of a fleet that asks actors by key, and has some; a test starts several, stops some and kills some.

The guarded resource is a file for each key. It refuses what comes with a lower token than it has seen, and has a line
for each thing that was done.
"""

import fcntl
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import anyio

from callboard import Actor, ActorDiedError, fencing_token, handler, keyed
from callboard_actors.postgres import PostgresFleet
from callboard_actors.redis import RedisFleet

from ._memory import SECRET

ROOT = Path(__file__).parents[2]


class RefusedError(Exception):
    """The resource has seen a higher token."""


class Line(NamedTuple):
    """Something that was done with the resource, or refused."""

    what: str
    token: int
    pid: int
    ask: str
    time: float


class Resource:
    """A file that only the latest owner of its key may write to."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def use(self, what: str, ask: str) -> None:
        """Do something with it.

        Raises:
            RefusedError: if somebody with a higher token has.
        """
        token = fencing_token() or 0
        with self._path.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            highest = max((line.token for line in read(self._path) if line.what != "refused"), default=0)
            is_late = token < highest
            file.write(f"{'refused' if is_late else what} {token} {os.getpid()} {ask} {time.monotonic()}\n")
        if is_late:
            raise RefusedError(f"{token} is lower than {highest}")


def read(path: Path) -> list[Line]:
    """What was done, in order."""
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [Line(what, int(token), int(pid), ask, float(when)) for what, token, pid, ask, when in lines]


class Worker(Actor):
    """Uses the resource of its key, and counts how often."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.number = 0

    async def start(self) -> None:
        self.resource = Resource(self.directory / f"{self.key}.resource")
        self.resource.use("start", "-")

    def snapshot(self) -> int:
        return self.number

    def restore(self, state: int) -> None:
        self.number = state

    @handler
    async def work(self, ask: str, seconds: float) -> int:
        """Use the resource for a while."""
        self.resource.use("begin", ask)
        try:
            await anyio.sleep(seconds)
        except BaseException:
            self.resource.use("cancelled", ask)
            raise
        self.resource.use("end", ask)
        self.number += 1
        return self.number

    @handler
    def work_in_thread(self, ask: str, seconds: float) -> int:
        """Do so in the actor's thread, where nothing can be cancelled."""
        self.resource.use("begin", ask)
        time.sleep(seconds)
        self.resource.use("end", ask)
        self.number += 1
        return self.number


def start(directory: Path, **plan: Any) -> "subprocess.Popen[bytes]":
    """Start a process that asks; it prints a line when it does, and ends when it can read one."""
    plan = {"directory": str(directory), **plan}
    command = [sys.executable, "-m", "tests.fleets._process", json.dumps(plan)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def fleet_at(plan: dict[str, Any]) -> Any:
    """The fleet of a plan."""
    kind = RedisFleet if plan["url"].startswith("unix:") else PostgresFleet
    return kind(plan["url"], secret=SECRET, prefix=plan["prefix"], lease=plan["lease"])


async def _ask_on(one: Any, name: str, draw: random.Random, keys: Sequence[str], outcomes: int) -> None:
    for number in range(1_000_000):
        ask, key = f"{name}.{number}", draw.choice(keys)
        use = one[key].work if draw.random() < 0.8 else one[key].work_in_thread
        os.write(outcomes, f"asked {key} {ask} 0 {time.monotonic()}\n".encode())
        try:
            with anyio.move_on_after(draw.choice([0.03, 60.0, 60.0, 60.0])) as scope:
                found = await use(ask, draw.choice([0.0, 0.002, 0.02]))
            said = f"cancelled {key} {ask} 0" if scope.cancelled_caught else f"value {key} {ask} {found}"
        except ActorDiedError:
            said = f"unknown {key} {ask} 0"
        except RefusedError:
            said = f"refused {key} {ask} 0"
        except Exception as error:
            said = f"error {key} {ask} {type(error).__name__}:{str(error).replace(' ', '_')[:200]}"
        os.write(outcomes, f"{said} {time.monotonic()}\n".encode())


async def run(plan: dict[str, Any]) -> None:
    """Ask until there is a line to be read."""
    directory = Path(plan["directory"])
    outcomes = os.open(directory / f"{os.getpid()}.outcomes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    draw = random.Random(plan["seed"])
    # Longer asks that are under way are let go of in time.
    async with keyed(Worker(directory), fleet=fleet_at(plan), save="each_call", idle=plan.get("idle", 0.5)) as one:
        async with anyio.create_task_group() as tasks:
            for number in range(plan["askers"]):
                name = f"{os.getpid()}-{number}"
                tasks.start_soon(_ask_on, one, name, random.Random(draw.random()), plan["keys"], outcomes)
            print("ready", flush=True)
            await anyio.to_thread.run_sync(sys.stdin.readline)
            tasks.cancel_scope.cancel()
    os.write(outcomes, f"left - - 0 {time.monotonic()}\n".encode())


if __name__ == "__main__":
    # Not `__main__`, which every process has of its own.
    from tests.fleets import _process as this

    the_plan = json.loads(sys.argv[1])
    anyio.run(this.run, the_plan, backend=the_plan.get("backend", "asyncio"))
