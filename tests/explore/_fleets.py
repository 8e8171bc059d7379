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
    outcomes: list[tuple[str, str]]
    """Each ask with its outcome."""


class Worker(Actor):
    """Actor that records its executions."""

    def __init__(self, number: int) -> None:
        self.number = number

    def _note(self, point: str, ask: str) -> None:
        _records[self.number].done.append((point, str(self.key), fencing_token() or 0, ask))

    @handler
    async def work(self, ask: str, seconds: float) -> str:
        """Take some time."""
        self._note("begin", ask)
        try:
            await anyio.sleep(seconds)
        finally:
            self._note("end", ask)
        return ask


_records: dict[int, Seen] = {}


class Process:
    """One process of a fleet; a new process replaces it after it has ended."""

    def __init__(self, server: MemoryServer, number: int, record: Seen) -> None:
        self._server, self._number, self._record = server, number, record
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
        self._record.outcomes.append((name, outcome))

    async def stop(self) -> None:
        """Stop renewing for longer than the lease."""
        fleet = self.fleet
        fleet.is_away = True
        await anyio.sleep(1.5 * LEASE)
        fleet.is_away = False


def play(plan: Rolling, backend: str) -> list[Complaint]:
    number = max(_records, default=0) + 1
    record = _records[number] = Seen([], [])
    try:
        return run_on(backend, partial(_play_plan, plan, number, record), real_clock=True)
    finally:
        del _records[number]


async def _play_plan(plan: Rolling, number: int, record: Seen) -> list[Complaint]:
    server = MemoryServer()
    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as lives:
            processes = [Process(server, number, record) for _ in range(plan.processes)]
            for process in processes:
                await lives.start(process.live)

            async def replace_process(step: Step) -> None:
                old = processes[step.process]
                if step.what == "drain":
                    await old.workers.drain(5.0)
                old.gone.set()
                new = Process(server, number, record)
                await lives.start(new.live)
                processes[step.process] = new

            async with anyio.create_task_group() as asks:
                for index, step in enumerate(plan.steps):
                    if step.process >= len(processes):
                        continue
                    process = processes[step.process]
                    if step.what == "ask":
                        asks.start_soon(process.ask, step, f"{index}")
                    elif step.what == "stop":
                        asks.start_soon(process.stop)
                    elif step.what in ("drain", "leave") and not process.is_draining:
                        process.is_draining = True
                        asks.start_soon(replace_process, step)
                    await anyio.sleep(step.seconds / 4)
            for process in processes:
                process.is_draining = True
                process.gone.set()
    return [Complaint(promise.__name__, detail) for promise in PROMISES for detail in promise(plan, record)]


def no_ask_is_done_twice(plan: Rolling, record: Seen) -> list[str]:
    """No ask runs twice, whatever happens to its owner."""
    begun = Counts(ask for point, _, _, ask in record.done if point == "begin")
    return [f"{ask} ran {times} times" for ask, times in begun.items() if times > 1]


def one_owner_acts_at_a_time(plan: Rolling, record: Seen) -> list[str]:
    """All handler executions of one owner lie before those of the next owner."""
    complaints, tokens, at_work = [], dict[str, int](), dict[str, set[str]]()
    for point, key, token, ask in record.done:
        if token < tokens.get(key, 0):
            complaints.append(f"{point} of {ask} at {key} by an owner that was replaced")
        tokens[key] = max(token, tokens.get(key, 0))
        running = at_work.setdefault(key, set())
        if point == "begin" and running:
            complaints.append(f"{ask} began at {key} beside {sorted(running)}")
        (running.add if point == "begin" else running.discard)(ask)
    return complaints


def no_ask_fails(plan: Rolling, record: Seen) -> list[str]:
    """Asks wait for the next owner; an outcome is unknown only if a paused or leaving process had begun it."""
    wrong = [f"{ask}: {outcome}" for ask, outcome in record.outcomes if outcome.startswith(("failed", "False"))]
    if not any(step.what in ("leave", "stop") for step in plan.steps):
        wrong += [f"{ask} is unknown" for ask, outcome in record.outcomes if outcome == "unknown"]
    return wrong


PROMISES = (no_ask_is_done_twice, one_owner_acts_at_a_time, no_ask_fails)
