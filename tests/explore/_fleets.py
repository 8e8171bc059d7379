"""Fleets: owners that drain, leave and pause beyond their lease, while all processes ask.

A process that pauses no longer reaches the server with its renewals and messages; its actors share the event loop
of the other processes, which must go on.
"""

from collections import Counter as Counts
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Literal

import anyio

from callboard import Actor, ActorDiedError, ActorGoneError, StorageError, fencing_token, handler, keyed
from tests.server.fleet._memory import MemoryFleet, MemoryServer

from ._watch import Complaint, run_on

LEASE = 1.0
WAIT = 40.0
"""Seconds for a whole plan; no plan takes ten."""
Happens = Literal["ask", "drain", "leave", "stop"]


@dataclass(frozen=True)
class Step:
    """An event of a process, or an ask by it."""

    what: Happens
    process: int
    key: str = "a"
    seconds: float = 0.0
    """Seconds that a handler takes, or seconds until the next step."""


@dataclass(frozen=True)
class Rolling:
    """Plan: the processes of a fleet and their events; each process that drains or leaves is replaced by a new one."""

    steps: tuple[Step, ...]
    processes: int = 2


def draw(chance: Random) -> Rolling:
    """Draw a plan: mostly asks."""
    processes = chance.randint(2, 3)
    steps = (
        Step(
            chance.choice(("ask",) * 8 + ("drain", "leave", "stop")),
            chance.randrange(processes),
            chance.choice("aab"),
            chance.choice((0.0, 0.0, 0.02, 0.1, 0.4)),
        )
        for _ in range(chance.randint(4, 25))
    )
    return Rolling(tuple(steps), processes)


@dataclass
class Seen:
    """Record of handler executions and of the outcomes that askers received."""

    done: list[tuple[str, str, int, str]]
    """Point of the handler, key, token and ask, in order."""
    told: list[tuple[str, str]]
    """Each ask with its outcome."""


class Worker(Actor):
    """Actor that records its executions."""

    def __init__(self, number: int) -> None:
        self.number = number

    def _note(self, what: str, ask: str) -> None:
        _seen[self.number].done.append((what, str(self.key), fencing_token() or 0, ask))

    @handler
    async def work(self, ask: str, seconds: float) -> str:
        """Take some time."""
        self._note("begin", ask)
        try:
            await anyio.sleep(seconds)
        finally:
            self._note("end", ask)
        return ask


_seen: dict[int, Seen] = {}


class Process:
    """One process of a fleet; a new process replaces it after it has ended."""

    def __init__(self, server: MemoryServer, number: int, seen: Seen) -> None:
        self._server, self._number, self._seen = server, number, seen
        self._ends: list[anyio.Event] = []

    async def live(self, *, task_status: Any) -> None:
        """Run until the process is told to stop."""
        self.fleet, self.gone, self.is_draining = MemoryFleet(self._server, lease=LEASE), anyio.Event(), False
        async with keyed(Worker(self._number), fleet=self.fleet) as self.workers:
            task_status.started()
            await self.gone.wait()

    async def ask(self, step: Step, name: str) -> None:
        """Ask, and record the outcome."""
        is_draining = self.is_draining
        try:
            outcome = str(await self.workers[step.key].work(name, step.seconds) == name)
        except ActorDiedError:
            outcome = "unknown"
        except Exception as error:
            may_be_refused = isinstance(error, (ActorGoneError, StorageError)) and (is_draining or self.is_draining)
            outcome = "refused" if may_be_refused else f"failed: {error!r}"
        self._seen.told.append((name, outcome))

    async def stop(self) -> None:
        """Stop renewing for longer than the lease."""
        fleet = self.fleet
        fleet.is_away = True
        await anyio.sleep(1.5 * LEASE)
        fleet.is_away = False


def play(plan: Rolling, backend: str) -> list[Complaint]:
    number = max(_seen, default=0) + 1
    seen = _seen[number] = Seen([], [])
    try:
        return run_on(backend, partial(_played, plan, number, seen), real_clock=True)
    finally:
        del _seen[number]


async def _played(plan: Rolling, number: int, seen: Seen) -> list[Complaint]:
    server = MemoryServer()
    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as lives:
            processes = [Process(server, number, seen) for _ in range(plan.processes)]
            for one in processes:
                await lives.start(one.live)

            async def replaced(step: Step) -> None:
                old = processes[step.process]
                if step.what == "drain":
                    await old.workers.drain(5.0)
                old.gone.set()
                new = Process(server, number, seen)
                await lives.start(new.live)
                processes[step.process] = new

            async with anyio.create_task_group() as asks:
                for place, step in enumerate(plan.steps):
                    if step.process >= len(processes):
                        continue
                    one = processes[step.process]
                    if step.what == "ask":
                        asks.start_soon(one.ask, step, f"{place}")
                    elif step.what == "stop":
                        asks.start_soon(one.stop)
                    elif step.what in ("drain", "leave") and not one.is_draining:
                        one.is_draining = True
                        asks.start_soon(replaced, step)
                    await anyio.sleep(step.seconds / 4)
            for one in processes:
                one.is_draining = True
                one.gone.set()
    return [Complaint(promise.__name__, what) for promise in PROMISES for what in promise(plan, seen)]


def no_ask_is_done_twice(plan: Rolling, seen: Seen) -> list[str]:
    """No ask runs twice, whatever happens to its owner."""
    begun = Counts(ask for what, _, _, ask in seen.done if what == "begin")
    return [f"{ask} ran {times} times" for ask, times in begun.items() if times > 1]


def one_owner_acts_at_a_time(plan: Rolling, seen: Seen) -> list[str]:
    """All handler executions of one owner lie before those of the next owner."""
    found, tokens, at_work = [], dict[str, int](), dict[str, set[str]]()
    for what, key, token, ask in seen.done:
        if token < tokens.get(key, 0):
            found.append(f"{what} of {ask} at {key} by an owner that was replaced")
        tokens[key] = max(token, tokens.get(key, 0))
        running = at_work.setdefault(key, set())
        if what == "begin" and running:
            found.append(f"{ask} began at {key} beside {sorted(running)}")
        (running.add if what == "begin" else running.discard)(ask)
    return found


def no_ask_fails(plan: Rolling, seen: Seen) -> list[str]:
    """Asks wait for the next owner; an outcome is unknown only if a paused or leaving process had begun it."""
    wrong = [f"{ask}: {outcome}" for ask, outcome in seen.told if outcome.startswith(("failed", "False"))]
    if not any(step.what in ("leave", "stop") for step in plan.steps):
        wrong += [f"{ask} is unknown" for ask, outcome in seen.told if outcome == "unknown"]
    return wrong


PROMISES = (no_ask_is_done_twice, one_owner_acts_at_a_time, no_ask_fails)
