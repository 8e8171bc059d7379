"""Random plans for one actor that is asked by many tasks and dies now and then.

A diary of the run is judged at the end.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import anyio
import sniffio
from hypothesis import strategies as st

from callboard import Actor, Backoff, MailboxFullError, Reply, Supervisor, SupervisorError, child, cleanup, handler
from callboard.actors._supervised import ActorUnit

from ._random_asks import Ask, Diary, FatalError, Kill, Player, Steps, steps

IN_ORDER = ("work", "read", "later", "outer")
"""Handlers whose messages wait for their turn in the mailbox."""
INTENSITY, PERIOD = 2, 10.0
BACKOFF = Backoff(first=0.5, factor=2, maximum=3, jitter=0)
READS = 2


@dataclass(frozen=True)
class Plan:
    """Plan of what happens to one actor."""

    steps: Steps
    start: int = 0
    """Seconds that a start takes."""
    size: int = 100
    when_full: Literal["wait", "reject"] = "wait"
    until: int = 30
    """Time at which the actor is stopped."""


plans = st.builds(
    Plan,
    steps=steps(
        ("work", "work", "read", "read", "look", "later", "outer"), st.none() | st.integers(0, 4), until=12, most=12
    ),
    start=st.integers(0, 2),
    size=st.sampled_from((1, 2, 100)),
    when_full=st.sampled_from(("wait", "reject")),
    until=st.sampled_from((3, 8, 30)),
)


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

    async def _do(self, ask_id: int, ask: Ask) -> int:
        self.diary.write("begins", ask_id)
        try:
            await anyio.sleep(ask.seconds)
        except BaseException:
            with cleanup():
                await anyio.sleep(ask.cleanup)
            self.diary.write("ends", ask_id)
            raise
        self.diary.write("ends", ask_id)
        if ask.result == "error":
            raise ValueError(ask_id)
        if ask.result == "fatal":
            raise FatalError(ask_id)
        self.diary.write("succeeds", ask_id)
        return ask_id

    @handler
    async def work(self, ask_id: int, ask: Ask) -> int:
        return await self._do(ask_id, ask)

    @handler(group="reads")
    async def read(self, ask_id: int, ask: Ask) -> int:
        return await self._do(ask_id, ask)

    @handler(group="control")
    async def look(self, ask_id: int, ask: Ask) -> int:
        return await self._do(ask_id, ask)

    @handler(deferred=True)
    async def later(self, reply: Reply[int], ask_id: int, ask: Ask) -> None:
        self.diary.write("begins", ask_id)
        self.diary.write("ends", ask_id)
        if ask.result == "fatal":
            raise FatalError(ask_id)
        self.world.group.start_soon(self.world.send, reply, ask_id, ask, ask_id)

    @handler
    async def outer(self, ask_id: int, ask: Ask) -> int:
        self.diary.write("begins", ask_id)
        try:
            await self.world.peer.relay(ask_id, ask)
        finally:
            self.diary.write("ends", ask_id)
        self.diary.write("succeeds", ask_id)
        return ask_id

    @handler(reentrant=True)
    async def back(self, ask_id: int, ask: Ask) -> int:
        await anyio.sleep(ask.seconds)
        if ask.result == "error":
            raise ValueError(ask_id)
        if ask.result == "fatal":
            raise FatalError(ask_id)
        return ask_id


class Peer(Actor):
    """Actor that asks the actor that is asking it."""

    def __init__(self, world: "World") -> None:
        self.world = world

    @handler(group="relays")
    async def relay(self, ask_id: int, ask: Ask) -> int:
        return await self.world.desk.back(ask_id, ask)


class World(Player):
    """Player of one plan."""

    desk: Desk
    peer: Peer

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan.steps)
        self.plan = plan
        self.gave_up: BaseException | None = None

    async def play(self) -> list[str]:
        """Play the plan and return what went wrong."""
        diary = self.diary
        diary.began_at = anyio.current_time()  # set again when all actors have started
        desk = child(
            Desk(diary, self.plan.start, self), mailbox=self.plan.size, when_full=self.plan.when_full, stop_timeout=2
        )
        tree = Supervisor([Peer(self), desk], intensity=INTENSITY, period=PERIOD, backoff=BACKOFF)
        async with anyio.create_task_group() as self.group:
            try:
                async with tree:
                    diary.began_at = anyio.current_time()
                    self.desk, self.peer = tree[Desk], tree[Peer]
                    units = tree._tree.units
                    for ask_id, step in enumerate(self.plan.steps):
                        self.group.start_soon(self._step, ask_id, step, units[1])
                    await anyio.sleep(self.plan.until)
            except SupervisorError as error:
                self.gave_up = error
            diary.write("over")
        if sniffio.current_async_library() == "trio":
            await anyio.lowlevel.checkpoint()
        return [
            *self.wrong_ends(),
            *self._judge_order(),
            *self._judge_limits(),
            *self._judge_restarts(),
            *self.list_left_tasks(),
        ]

    async def _step(self, ask_id: int, step: Ask | Kill, unit: ActorUnit) -> None:
        await anyio.sleep(step.at)
        if isinstance(step, Kill):
            life_events = [line.event for line in self.diary.lines if line.event in ("starts", "stops")]
            life = unit._incarnation
            begins = life is not None and life._on_start is not None and life._killed is None  # true once per life
            if begins and life_events[-1:] == ["stops"]:
                self.diary.write("starts")  # without the kill, it would start in this iteration of the loop
                self.diary.write("stops")
            unit.kill("the plan says so")
            return
        await self.ask(self.desk, ask_id, step)

    def complaint(self, ask_id: int, ask: Ask, outcome: object, *, begun: bool) -> str | None:
        if isinstance(outcome, MailboxFullError):
            return "had begun" if begun else "there was room" if self.plan.when_full == "wait" else None
        return super().complaint(ask_id, ask, outcome, begun=begun)

    def may_be_gone(self, ask_id: int, ask: Ask) -> bool:
        return "over" in [line.event for line in self.diary.lines]

    def is_result(self, ask_id: int, ask: Ask, outcome: object) -> bool:
        return outcome == ask_id and (ask_id in self.diary.all_of("succeeds") or ask_id in self.diary.all_of("replies"))

    def _judge_order(self) -> list[str]:
        queued = {ask_id for ask_id, ask in enumerate(self.plan.steps) if isinstance(ask, Ask) and ask.name in IN_ORDER}
        begun = [ask_id for ask_id in self.diary.all_of("begins") if ask_id in queued]
        asks = [ask_id for ask_id in self.diary.all_of("asked") if ask_id in begun]
        return [
            f"{later} overtook {first}"
            for position, later in enumerate(begun)
            for first in begun[position + 1 :]
            if asks.index(first) < asks.index(later) and not self._begin_together(first, later)
        ]

    def _begin_together(self, *asks: int) -> bool:
        """Return whether all are `read` asks that began at the same time: the order of such asks is arbitrary."""
        return {self.plan.steps[ask_id].name for ask_id in asks} == {"read"} and len({*map(self._began_at, asks)}) == 1

    def _began_at(self, ask_id: int) -> float:
        return self.diary.lines[self.diary.position_of("begins", ask_id)].at

    def _judge_limits(self) -> list[str]:
        running: set[int] = set()
        wrong = []
        for event, ask_id in ((line.event, line.ask_id) for line in self.diary.lines):
            if event == "begins":
                running.add(ask_id)
                names = [self.plan.steps[number].name for number in running if self.plan.steps[number].name != "look"]
                if names.count("read") > READS or (len(names) > 1 and set(names) != {"read"}):
                    wrong.append(f"side by side: {names}")
            elif event == "ends":
                running.discard(ask_id)
            elif event in ("starts", "stops") and running:
                wrong.append(f"{event} while there run {running}")
        return wrong

    def _judge_restarts(self) -> list[str]:
        """Check the number of restarts against OTP's formula, computed from the recorded times."""
        window: list[float] = []
        due: float | None = None
        gave_up = False
        wrong = []
        ends = next(line.at for line in self.diary.lines if line.event == "over")
        for moment, event in ((line.at, line.event) for line in self.diary.lines):
            if event == "stops":
                if moment >= self.plan.until:
                    break  # the plan stops the actor
                window = [stop_time for stop_time in window if stop_time > moment - PERIOD] + [moment]
                gave_up = len(window) > INTENSITY
                due = moment + BACKOFF.delay(len(window), 0)
            elif event == "starts" and moment > 0:
                if gave_up or due is None or abs(moment - due) > 1e-6:
                    wrong.append(f"started at {moment}, where {'never' if gave_up else due} was due")
                due = None
        if gave_up != (self.gave_up is not None):
            wrong.append(f"gave up: {self.gave_up!r}, where that was {gave_up}")
        if due is not None and not gave_up and due < ends:
            wrong.append(f"was not started at {due}")
        return wrong
