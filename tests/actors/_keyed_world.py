"""Random plans for keyed counters that are asked, evicted and killed. Their stored state is compared at the end."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import anyio
import sniffio
from hypothesis import strategies as st

from callboard import Actor, Reply, child, cleanup, handler, keyed
from callboard.actors._actor_set import Keyed

from ._random_asks import Ask, FatalError, Kill, Player, Steps, steps

LONG = 400
"""End of a plan that is not closed early. All asks have ended by then."""


@dataclass(frozen=True)
class Plan:
    """Plan of what happens to the counters of one block."""

    steps: Steps
    cap: int | None = None
    idle: int | None = None
    save: Literal["at_end", "each_call"] = "at_end"
    start: int = 0
    stop: int = 0
    store: Sequence[tuple[int, bool]] = ((0, True),)
    """Delay and success of each operation of the store, repeated from the beginning."""
    starts: Sequence[bool] = (True,)
    """Success of each start, repeated from the beginning."""
    until: int = LONG


keyed_plans = st.builds(
    Plan,
    steps=steps(
        ("up", "up", "add", "look", "later"), st.none() | st.none() | st.integers(0, 4), keys="abc", until=10, most=14
    ),
    cap=st.sampled_from((None, 1, 2)),
    idle=st.sampled_from((None, None, 2)),
    save=st.sampled_from(("at_end", "each_call")),
    start=st.integers(0, 1),
    stop=st.integers(0, 1),
    store=st.just([(0, True)]) | st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=4),
    starts=st.just([True]) | st.just([True]) | st.lists(st.booleans(), min_size=1, max_size=3),
    until=st.sampled_from((LONG, LONG, 3, 7)),
)


class Counter(Actor):
    """Keyed counter that records its state when it starts and stops."""

    groups: ClassVar[dict[str, int]] = {"adds": 2}
    fatal = (FatalError,)

    def __init__(self, world: "KeyedWorld") -> None:
        self.world = world

    def _note(self, event: str, ask_id: int = -1, value: object = None) -> None:
        self.world.diary.write(event, ask_id, self.key, value)

    async def start(self) -> None:
        self.count = 0
        self._note("starts")
        try:
            await anyio.sleep(self.world.plan.start)
            if not self.world.next_start():
                raise ConnectionError("not yet")
        except BaseException:
            self._note("stops")
            raise
        self._note("serves")

    async def stop(self) -> None:
        try:
            await anyio.sleep(self.world.plan.stop)
        finally:
            self._note("stops")

    async def snapshot(self) -> int:
        self._note("is kept", value=self.count)
        return self.count

    async def restore(self, snapshot: int) -> None:
        self.count = snapshot

    async def _do(self, ask_id: int, ask: Ask) -> int:
        self._note("begins", ask_id, self.count)
        try:
            await anyio.sleep(ask.seconds)
        except BaseException:
            with cleanup():
                await anyio.sleep(ask.cleanup)
            self._note("ends", ask_id)
            raise
        if ask.result == "value" and ask.name != "look":
            self.count += 1
            self._note("counts", ask_id, self.count)
        self._note("ends", ask_id)
        if ask.result == "error":
            raise ValueError(ask_id)
        if ask.result == "fatal":
            self._note("breaks")
            raise FatalError(ask_id)
        return self.count

    @handler
    async def up(self, ask_id: int, ask: Ask) -> int:
        return await self._do(ask_id, ask)

    @handler(group="adds")
    async def add(self, ask_id: int, ask: Ask) -> int:
        return await self._do(ask_id, ask)

    @handler(group="control")
    async def look(self, ask_id: int, ask: Ask) -> int:
        return await self._do(ask_id, ask)

    @handler(deferred=True)
    async def later(self, reply: Reply[int], ask_id: int, ask: Ask) -> None:
        self._note("begins", ask_id, self.count)
        if ask.result == "value":
            self.count += 1
            self._note("counts", ask_id, self.count)
        self._note("ends", ask_id)
        if ask.result == "fatal":
            self._note("breaks")
            raise FatalError(ask_id)
        self.world.group.start_soon(self.world.send, reply, ask_id, ask, self.count)


class Store:
    """Slow store that fails when the plan says so."""

    def __init__(self, world: "KeyedWorld") -> None:
        self._world = world
        self._turns = 0
        self.snapshots: dict[Hashable, object] = {}

    async def _take(self) -> bool:
        turns = self._world.plan.store
        seconds, succeeds = turns[self._turns % len(turns)]
        self._turns += 1
        await anyio.sleep(seconds)
        return succeeds

    async def load(self, actor: str, key: Hashable) -> object:
        snapshot = self.snapshots.get(key)
        if not await self._take():
            self._world.diary.write("does not load", key=key)
            raise OSError("no such disk")
        self._world.diary.write("loads", key=key, value=snapshot)
        return snapshot

    async def save(self, actor: str, key: Hashable, snapshot: object) -> None:
        self._world.diary.write("is saving", key=key)
        succeeds = False
        try:
            succeeds = await self._take()
        finally:
            if succeeds:
                self.snapshots[key] = snapshot
            self._world.diary.write("saves" if succeeds else "does not save", key=key, value=snapshot)
        if not succeeds:
            raise OSError("disk full")


class KeyedWorld(Player):
    """Player of one plan."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan.steps)
        self.plan = plan
        self._starts = 0

    def next_start(self) -> bool:
        succeeds = self.plan.starts[self._starts % len(self.plan.starts)]
        self._starts += 1
        return succeeds

    async def play(self) -> list[str]:
        """Play the plan and return the tasks that are left."""
        plan, diary = self.plan, self.diary
        diary.began_at = anyio.current_time()
        terms = child(
            Counter(self), cap=plan.cap, idle=plan.idle, save=plan.save, snapshots=Store(self), stop_timeout=4
        )
        async with anyio.create_task_group() as self.group:
            async with keyed(terms) as counters:
                for ask_id, step in enumerate(plan.steps):
                    self.group.start_soon(self._step, ask_id, step, counters)
                await anyio.sleep(plan.until)
                alive = counters.statistics().alive
                diary.write("closes", value=alive)
            diary.write("over")
        if sniffio.current_async_library() == "trio":
            await anyio.lowlevel.checkpoint()
        return [*self.wrong_ends(), *self.list_left_tasks()]

    async def _step(self, ask_id: int, step: Ask | Kill, counters: Keyed[Counter]) -> None:
        await anyio.sleep(step.at)
        if isinstance(step, Kill):
            resident = counters._keyed_actors._alive.get(step.key)
            if resident is not None:
                self.diary.write("killed", key=step.key)
                resident.unit.kill("the plan says so")
            return
        await self.ask(counters[step.key], ask_id, step)

    def may_be_gone(self, ask_id: int, ask: Ask) -> bool:
        """Return whether the block was closing, or the actor had not started or had ended too often."""
        before = self.diary.lines[: self.diary.position_of("answered", ask_id)]
        failed = sum(line.key == ask.key and line.event in ("does not load", "stops", "killed") for line in before)
        return failed > 0 or any(line.event == "closes" for line in before)

    def is_result(self, ask_id: int, ask: Ask, outcome: object) -> bool:
        return isinstance(outcome, int) and (ask.name == "look" or ask_id in self.diary.all_of("counts"))
