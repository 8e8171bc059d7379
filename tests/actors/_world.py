"""Random plans for one actor that is asked by many tasks and dies now and then.

A diary of the run is judged at the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import anyio
import sniffio
from hypothesis import strategies as st

from callboard import (
    Actor,
    ActorDiedError,
    ActorGoneError,
    Backoff,
    MailboxFullError,
    Reply,
    Supervisor,
    SupervisorError,
    child,
    cleanup,
    handler,
)
from callboard.actors._supervised import ActorUnit
from tests.helpers import live_tasks

HandlerName = Literal["work", "read", "look", "later", "outer"]
Result = Literal["value", "error", "fatal"]
IN_ORDER = ("work", "read", "later", "outer")
"""Handlers whose messages wait for their turn in the mailbox."""
INTENSITY, PERIOD = 2, 10.0
BACKOFF = Backoff(first=0.5, factor=2, most=3, jitter=0)
READS = 2


@dataclass(frozen=True)
class Ask:
    """One planned ask: its time, handler, duration, end and the caller's patience."""

    at: int
    name: HandlerName
    seconds: int = 0
    result: Result = "value"
    patience: int | None = None
    cleanup: int = 0
    """Seconds of clean-up in the handler after a cancellation."""


@dataclass(frozen=True)
class Kill:
    """Planned kill of the actor."""

    at: int


@dataclass(frozen=True)
class Plan:
    """Plan of what happens to one actor."""

    steps: Sequence[Ask | Kill]
    start: int = 0
    """Seconds that a start takes."""
    size: int = 100
    when_full: Literal["wait", "reject", "drop_oldest"] = "wait"
    until: int = 30
    """Time at which the actor is stopped."""


asks = st.builds(
    Ask,
    at=st.integers(0, 12),
    name=st.sampled_from(("work", "work", "read", "read", "look", "later", "outer")),
    seconds=st.integers(0, 3),
    result=st.sampled_from(("value", "value", "value", "error", "fatal")),
    patience=st.none() | st.integers(0, 4),
    cleanup=st.integers(0, 1),
)
plans = st.builds(
    Plan,
    steps=st.lists(asks | asks | asks | st.builds(Kill, at=st.integers(0, 12)), min_size=1, max_size=12),
    start=st.integers(0, 2),
    size=st.sampled_from((1, 2, 100)),
    when_full=st.sampled_from(("wait", "reject", "drop_oldest")),
    until=st.sampled_from((3, 8, 30)),
)


class FatalError(Exception):
    """Fatal error of the actor."""


@dataclass
class Diary:
    """Ordered record of what happened."""

    lines: list[tuple[float, str, int]] = field(default_factory=list)
    began_at: float = 0.0

    def write(self, what: str, who: int = -1) -> None:
        self.lines.append((round(anyio.current_time() - self.began_at, 6), what, who))

    def all_of(self, what: str) -> list[int]:
        return [who for _, done, who in self.lines if done == what]

    def place(self, what: str, who: int) -> int:
        return next(number for number, line in enumerate(self.lines) if line[1:] == (what, who))


class Desk(Actor):
    """Actor that does what each ask says and records it."""

    groups: ClassVar[dict[str, int]] = {"reads": READS}
    fatal = (FatalError,)

    def __init__(self, diary: Diary, seconds: int, world: "World") -> None:
        self.diary = diary
        self.seconds = seconds
        self.world = world

    async def start(self) -> None:
        self.diary.write("starts")
        try:
            await anyio.sleep(self.seconds)
        except BaseException:  # the actor was killed, which counts as a stop
            self.diary.write("stops")
            raise

    async def stop(self) -> None:
        self.diary.write("stops")
        await anyio.lowlevel.checkpoint()

    async def _do(self, who: int, ask: Ask) -> int:
        self.diary.write("begins", who)
        try:
            await anyio.sleep(ask.seconds)
        except BaseException:
            with cleanup():
                await anyio.sleep(ask.cleanup)
            self.diary.write("ends", who)
            raise
        self.diary.write("ends", who)
        if ask.result == "error":
            raise ValueError(who)
        if ask.result == "fatal":
            raise FatalError(who)
        self.diary.write("succeeds", who)
        return who

    @handler
    async def work(self, who: int, ask: Ask) -> int:
        return await self._do(who, ask)

    @handler(group="reads")
    async def read(self, who: int, ask: Ask) -> int:
        return await self._do(who, ask)

    @handler(group="control")
    async def look(self, who: int, ask: Ask) -> int:
        return await self._do(who, ask)

    @handler(deferred=True)
    async def later(self, reply: Reply[int], who: int, ask: Ask) -> None:
        self.diary.write("begins", who)
        self.diary.write("ends", who)
        if ask.result == "fatal":
            raise FatalError(who)
        self.world.group.start_soon(self.world.send, reply, who, ask)

    @handler
    async def outer(self, who: int, ask: Ask) -> int:
        self.diary.write("begins", who)
        try:
            await self.world.peer.relay(who, ask)
        finally:
            self.diary.write("ends", who)
        self.diary.write("succeeds", who)
        return who

    @handler(reentrant=True)
    async def back(self, who: int, ask: Ask) -> int:
        await anyio.sleep(ask.seconds)
        if ask.result == "error":
            raise ValueError(who)
        if ask.result == "fatal":
            raise FatalError(who)
        return who


class Peer(Actor):
    """Actor that asks the actor that is asking it."""

    def __init__(self, world: "World") -> None:
        self.world = world

    @handler(group="relays")
    async def relay(self, who: int, ask: Ask) -> int:
        return await self.world.desk.back(who, ask)


class World:
    """Player of one plan."""

    group: Any
    desk: Desk
    peer: Peer

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.diary = Diary()
        self.came_to: dict[int, object] = {}
        self.gave_up: BaseException | None = None

    async def play(self) -> list[str]:
        """Play the plan and return what went wrong."""
        before = live_tasks()
        diary = self.diary
        diary.began_at = anyio.current_time()  # set again when all actors have started
        desk = child(
            Desk(diary, self.plan.start, self),
            mailbox=self.plan.size,
            when_full=self.plan.when_full,
            stop_timeout=2,
        )
        tree = Supervisor([Peer(self), desk], intensity=INTENSITY, period=PERIOD, backoff=BACKOFF)
        async with anyio.create_task_group() as self.group:
            try:
                async with tree:
                    diary.began_at = anyio.current_time()
                    self.desk, self.peer = tree[Desk], tree[Peer]
                    units = tree._tree.units
                    for who, step in enumerate(self.plan.steps):
                        self.group.start_soon(self._step, who, step, units[1])
                    await anyio.sleep(self.plan.until)
            except SupervisorError as error:
                self.gave_up = error
            diary.write("over")
        if sniffio.current_async_library() == "trio":
            await anyio.lowlevel.checkpoint()
        return [*self._judge(), *(f"a task is left: {task}" for task in live_tasks() - before)]

    async def _step(self, who: int, step: Ask | Kill, unit: ActorUnit) -> None:
        await anyio.sleep(step.at)
        if isinstance(step, Kill):
            seen = [what for _, what, _ in self.diary.lines if what in ("starts", "stops")]
            life = unit._life
            begins = life is not None and life._on_start is not None and life._killed is None  # true once per life
            if begins and seen[-1:] == ["stops"]:
                self.diary.write("starts")  # without the kill, it would start in this iteration of the loop
                self.diary.write("stops")
            unit.kill("the plan says so")
            return
        self.diary.write("asked", who)
        with anyio.move_on_after(float("inf") if step.patience is None else step.patience) as scope:
            try:
                self.came_to[who] = await getattr(self.desk, step.name)(who, step)
            except Exception as error:
                self.came_to[who] = error
        if scope.cancelled_caught:
            assert who not in self.came_to
            self.came_to[who] = "cancelled"
        self.diary.write("answered", who)

    async def send(self, reply: Reply[int], who: int, ask: Ask) -> None:
        await anyio.sleep(ask.seconds)
        if ask.result == "error":
            reply.fail(ValueError(who))
        else:
            self.diary.write("succeeds", who)
            reply.send(who)

    def _judge(self) -> list[str]:
        return [*self._judge_answers(), *self._judge_order(), *self._judge_limits(), *self._judge_restarts()]

    def _judge_answers(self) -> list[str]:
        wrong = []
        begun, ended, good = (self.diary.all_of(what) for what in ("begins", "ends", "succeeds"))
        wrong += [f"{who} began twice" for who in set(begun) if begun.count(who) > 1]
        for who, ask in enumerate(self.plan.steps):
            if isinstance(ask, Kill):
                continue
            if who not in self.came_to:
                wrong.append(f"{who} was lost")
                continue
            found = self.came_to[who]
            if who in begun and who not in ended:
                wrong.append(f"the handler of {who} did not end")
            elif who in begun and self.diary.place("ends", who) > self.diary.place("answered", who):
                wrong.append(f"{who} was answered before its handler had ended")
            if (complaint := self._complaint(ask, who, found, who in begun, who in good)) is not None:
                wrong.append(f"{who} {complaint}: {found!r}")
        return wrong

    def _complaint(self, ask: Ask, who: int, found: object, begun: bool, good: bool) -> str | None:
        if isinstance(found, ActorDiedError):
            return None if begun else "had not begun"
        if isinstance(found, ActorGoneError):
            return "had begun" if begun else None if "over" in [line[1] for line in self.diary.lines] else "too early"
        if isinstance(found, MailboxFullError):
            return "had begun" if begun else "there was room" if self.plan.when_full == "wait" else None
        if isinstance(found, ValueError):
            return None if begun and ask.result == "error" and found.args == (who,) else "was another's error"
        if found == "cancelled":
            return None if ask.patience is not None else "was cancelled by nobody"
        return None if found == who and begun and good else "was not the result"

    def _judge_order(self) -> list[str]:
        queued = {who for who, ask in enumerate(self.plan.steps) if isinstance(ask, Ask) and ask.name in IN_ORDER}
        begun = [who for who in self.diary.all_of("begins") if who in queued]
        asked = [who for who in self.diary.all_of("asked") if who in begun]
        return [
            f"{later} overtook {first}"
            for place, later in enumerate(begun)
            for first in begun[place + 1 :]
            if asked.index(first) < asked.index(later) and not self._begin_together(first, later)
        ]

    def _begin_together(self, *asks: int) -> bool:
        """Return whether all are `read` asks that began at the same time: the order of such asks is arbitrary."""
        return {self.plan.steps[who].name for who in asks} == {"read"} and len({*map(self._began_at, asks)}) == 1

    def _began_at(self, who: int) -> float:
        return self.diary.lines[self.diary.place("begins", who)][0]

    def _judge_limits(self) -> list[str]:
        running: set[int] = set()
        wrong = []
        for _, what, who in self.diary.lines:
            if what == "begins":
                running.add(who)
                names = [self.plan.steps[one].name for one in running if self.plan.steps[one].name != "look"]
                if names.count("read") > READS or (len(names) > 1 and set(names) != {"read"}):
                    wrong.append(f"side by side: {names}")
            elif what == "ends":
                running.discard(who)
            elif what in ("starts", "stops") and running:
                wrong.append(f"{what} while there run {running}")
        return wrong

    def _judge_restarts(self) -> list[str]:
        """Check the number of restarts against OTP's formula, computed from the recorded times."""
        window: list[float] = []
        due: float | None = None
        gave_up = False
        wrong = []
        ends = next(at for at, what, _ in self.diary.lines if what == "over")
        for at, what, _ in self.diary.lines:
            if what == "stops":
                if at >= self.plan.until:
                    break  # the plan stops the actor
                window = [one for one in window if one > at - PERIOD] + [at]
                gave_up = len(window) > INTENSITY
                due = at + BACKOFF.delay(len(window), 0)
            elif what == "starts" and at > 0:
                if gave_up or due is None or abs(at - due) > 1e-6:
                    wrong.append(f"started at {at}, where {'never' if gave_up else due} was due")
                due = None
        if gave_up != (self.gave_up is not None):
            wrong.append(f"gave up: {self.gave_up!r}, where that was {gave_up}")
        if due is not None and not gave_up and due < ends:
            wrong.append(f"was not started at {due}")
        return wrong
