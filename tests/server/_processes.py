"""Process that uses shared limits or a fleet; tests start several, and stop or kill some.

The guarded resource is a file with a line for each action, with the time of a clock that all processes of a machine
share. That of a fleet refuses a lower token than it has seen.
"""

import fcntl
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

_SKEW = float(json.loads(sys.argv[1]).get("skew", 0.0)) if __name__ == "__main__" else 0.0
if _SKEW:
    # Set before other modules import these functions: a process whose clocks are all wrong.
    _of_day, _since_start = time.time, time.monotonic
    time.time = lambda: _of_day() + _SKEW
    time.monotonic = lambda: _since_start() + abs(_SKEW)

import anyio  # noqa: E402

from callboard import (  # noqa: E402
    Actor,
    ActorDiedError,
    CallPolicy,
    Limit,
    Rate,
    ToolNode,
    fencing_token,
    handler,
    keyed,
    tool_call,
)
from callboard.extend import Permit, PermitRequest  # noqa: E402
from tests.server._servers import store_at  # noqa: E402

ROOT = Path(__file__).parents[2]


def now() -> float:
    """Return the time of a clock that no process changes."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


# The side of the tests.


class Line(NamedTuple):
    """Line about an action on the resource, or its refusal."""

    time: float
    """For "begin" under a limit, the moment from which the limit counts the start; see `Timed`."""
    what: str
    pid: int
    name: str
    """Tenant or ask."""
    n: int
    token: int


def _lines(text: str) -> list[Line]:
    rows = [line.split() for line in text.splitlines()]
    return [Line(float(t), action, int(pid), name, int(n), int(token)) for t, action, pid, name, n, token in rows]


def read(resource: Path) -> list[Line]:
    """Return the lines of all actions in order of time."""
    return sorted(_lines(resource.read_text() if resource.exists() else ""))


def begins(resource: Path) -> list[Line]:
    return [line for line in read(resource) if line.what == "begin"]


def start(resource: Path, **plan: Any) -> "subprocess.Popen[bytes]":
    """Start a process; it prints a line when it is ready, and then waits for a line."""
    command = [sys.executable, "-m", "tests.server._processes", json.dumps({"resource": str(resource), **plan})]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def until_ready(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"


def go(*started: "subprocess.Popen[bytes]") -> None:
    for process in started:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()


def end(process: "subprocess.Popen[bytes]") -> None:
    with process:  # closes the pipes
        process.kill()


@contextmanager
def waiting(resource: Path, *plans: dict[str, Any]) -> "Iterator[list[subprocess.Popen[bytes]]]":
    """Start processes that wait before their calls; kill the remaining ones at the end."""
    started = [start(resource, **plan) for plan in plans]
    try:
        for process in started:
            until_ready(process)
        yield started
    finally:
        for process in started:
            end(process)


def read_outcomes(process: "subprocess.Popen[bytes]") -> dict[str, int]:
    """Return how the calls of a process ended, after the last one."""
    assert process.stdout is not None
    outcomes = json.loads(process.stdout.readline())
    assert process.wait(timeout=240) == 0
    return dict(outcomes)


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


# The side of the processes.


class RefusedError(Exception):
    """Raised when the resource has seen a higher token."""


_started: ContextVar[float | None] = ContextVar("_started", default=None)


class Timed:
    """Store of limits that notes when each call starts.

    The body's own first line is later: the system may stop a process between the two, for as long as it likes.
    """

    def __init__(self, store: Any) -> None:
        self._store = store
        self.check = store.check

    def ask(self, request: PermitRequest, on_answer: Callable[[], object], /) -> Permit:
        permit = self._store.ask(request, on_answer)

        def begin() -> None:
            _started.set(now())
            type(permit).begin(permit)

        permit.begin = begin
        return permit


class Resource:
    """File that records actions."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._length = self._highest = 0  # what is known of the file: its length, and the highest token

    def note(self, action: str, name: str = "-", n: int = 0) -> None:
        with self._path.open("a") as file:
            time = (action == "begin" and _started.get()) or now()
            file.write(f"{time:.6f} {action} {os.getpid()} {name} {n} {fencing_token() or 0}\n")

    def use(self, action: str, ask: str) -> None:
        """Record an action of the latest owner only.

        Raises:
            RefusedError: if the resource has seen a higher token.
        """
        token = fencing_token() or 0
        with self._path.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(self._length)
            for line in _lines(file.read()):
                self._highest = max(self._highest, 0 if line.what == "refused" else line.token)
            self._length = file.tell()
            self.note("refused" if token < self._highest else action, ask)
        if token < self._highest:
            raise RefusedError(f"{token} is lower than {self._highest}")


def node_of(plan: dict[str, Any]) -> ToolNode:
    """Return a node with a tool that uses the resource under a limit."""
    resource, tenant = Resource(Path(plan["resource"])), plan.get("tenant", "-")

    async def work(n: int) -> str:
        """Use the guarded resource."""
        resource.note("begin", tenant, n)
        try:
            await anyio.sleep(plan.get("seconds", 0.0))
        finally:
            resource.note("end", tenant, n)
        return f"{n} by {os.getpid()}"

    store = store_at(plan["url"], "limits", prefix=plan["prefix"], lease=plan.get("lease", 1.0))
    rate = None if plan.get("rate") is None else Rate(*plan["rate"])
    lane = (lambda call: tenant) if "tenant" in plan else None
    limit = Limit(concurrency=plan.get("concurrency"), rate=rate, shared=Timed(store), tenant=lane)
    return ToolNode([work], policies={"work": CallPolicy(limit=limit)})


async def call(plan: dict[str, Any], node: ToolNode) -> None:
    await node.ainvoke([tool_call("work", f"c{number}", n=number) for number in range(plan["calls"])])


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


def fleet_at(plan: dict[str, Any]) -> Any:
    return store_at(plan["url"], "fleet", prefix=plan["prefix"], lease=plan["lease"])


async def _ask_on(workers: Any, name: str, draw: random.Random, keys: Sequence[str], outcomes: int) -> None:
    for number in range(1_000_000):
        ask, key = f"{name}.{number}", draw.choice(keys)
        use = workers[key].work if draw.random() < 0.8 else workers[key].work_in_thread
        os.write(outcomes, f"asked {key} {ask} 0\n".encode())
        try:
            with anyio.move_on_after(draw.choice([0.03, 60.0, 60.0, 60.0])) as scope:
                value = await use(ask, draw.choice([0.0, 0.002, 0.02]))
            outcome = f"cancelled {key} {ask} 0" if scope.cancelled_caught else f"value {key} {ask} {value}"
        except ActorDiedError:
            outcome = f"unknown {key} {ask} 0"
        except RefusedError:
            outcome = f"refused {key} {ask} 0"
        except Exception as error:
            outcome = f"error {key} {ask} {type(error).__name__}:{str(error).replace(' ', '_')[:200]}"
        os.write(outcomes, f"{outcome}\n".encode())


async def ask(plan: dict[str, Any]) -> None:
    """Ask actors of a fleet until a line can be read from stdin."""
    directory = Path(plan["resource"])
    outcomes = os.open(directory / f"{os.getpid()}.outcomes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    draw = random.Random(plan["seed"])
    # Leaving the block ends asks that take longer.
    async with keyed(Worker(directory), fleet=fleet_at(plan), save="each_call", idle=plan.get("idle", 0.5)) as workers:
        async with anyio.create_task_group() as tasks:
            for number in range(plan["askers"]):
                name = f"{os.getpid()}-{number}"
                tasks.start_soon(_ask_on, workers, name, random.Random(draw.random()), plan["keys"], outcomes)
            print("ready", flush=True)
            await anyio.to_thread.run_sync(sys.stdin.readline)
            tasks.cancel_scope.cancel()


if __name__ == "__main__":
    # `__main__` is another module in every process.
    from tests.server import _processes as this  # noqa: PLW0406

    the_plan = json.loads(sys.argv[1])
    backend = the_plan.get("backend", "asyncio")
    if the_plan["what"] == "fleet":
        anyio.run(this.ask, the_plan, backend=backend)
    else:
        the_node = this.node_of(the_plan)
        print("ready", flush=True)
        sys.stdin.readline()
        anyio.run(this.call, the_plan, the_node, backend=backend)
