"""Process of a fleet that asks keyed actors and owns some; tests start several, and stop or kill some.

The guarded resource is a file for each key. It refuses a lower token than it has seen, and has a line for each action.
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

ROOT = Path(__file__).parents[3]


class RefusedError(Exception):
    """Raised when the resource has seen a higher token."""


class Line(NamedTuple):
    """Action on the resource, or its refusal."""

    what: str
    token: int
    pid: int
    ask: str
    time: float


class Resource:
    """File to which only the latest owner of its key may write."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def use(self, what: str, ask: str) -> None:
        """Use the resource.

        Raises:
            RefusedError: if the resource has seen a higher token.
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
    """Return all actions in order."""
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [Line(what, int(token), int(pid), ask, float(when)) for what, token, pid, ask, when in lines]


class Worker(Actor):
    """Actor that uses the resource of its key and counts the uses."""

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
    """Start a process that asks actors; it prints a line when it starts to ask, and ends when it reads a line."""
    plan = {"directory": str(directory), **plan}
    command = [sys.executable, "-m", "tests.server.fleet._process", json.dumps(plan)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def fleet_at(plan: dict[str, Any]) -> Any:
    """Return the fleet of a plan."""
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
    """Ask actors until a line can be read from stdin."""
    directory = Path(plan["directory"])
    outcomes = os.open(directory / f"{os.getpid()}.outcomes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    draw = random.Random(plan["seed"])
    # Leaving the block ends asks that take longer.
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
    # `__main__` is another module in every process.
    from tests.server.fleet import _process as this  # noqa: PLW0406

    the_plan = json.loads(sys.argv[1])
    anyio.run(this.run, the_plan, backend=the_plan.get("backend", "asyncio"))
