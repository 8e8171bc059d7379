"""Supervisors: the order of starts, stops and restarts, and the results of asks meanwhile."""

import gc
import sys
from types import FrameType
from typing import Any, ClassVar

import anyio
import pytest

from callboard import (
    Actor,
    ActorDiedError,
    ActorGoneError,
    Backoff,
    MailboxFullError,
    PoisonousCallError,
    Reply,
    Supervisor,
    SupervisorError,
    child,
    handler,
)
from tests.helpers import BrokenError, keep, live_tasks

pytestmark = pytest.mark.hangs_after(600)
SOON = Backoff(first=0)


class Worker(Actor):
    """Actor that reports its starts and stops, and dies when told to."""

    log: ClassVar[list[str]] = []
    groups: ClassVar[dict[str, int]] = {}
    fatal = (BrokenError,)

    def __init__(self, name: str = "w", slow: float = 0) -> None:
        self.name = name
        self.slow = slow

    async def start(self) -> None:
        await anyio.sleep(self.slow)
        self.log.append(f"+{self.name}")

    async def stop(self) -> None:
        self.log.append(f"-{self.name}")

    @handler
    async def die(self, why: str = "") -> None:
        raise BrokenError(why)

    @handler
    async def work(self, seconds: float = 0) -> str:
        await anyio.sleep(seconds)
        return self.name

    @handler(group="reads")
    async def read(self) -> str:
        await anyio.sleep(1)
        return self.name

    @handler(deferred=True)
    async def later(self, reply: Reply[str]) -> None:
        KEPT.append(reply)


KEPT: list[Any] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Worker.log.clear()
    KEPT.clear()


def workers(*names: str, **terms: Any) -> list[Any]:
    return [child(Worker(name), name=name, **terms) for name in names]


@pytest.mark.parametrize(
    ("strategy", "restart_log"),
    [("one_for_one", "-b +b"), ("one_for_all", "-b -c -a +a +b +c"), ("rest_for_one", "-b -c +b +c")],
)
async def test_children_start_in_order_and_stop_in_reverse_and_restart_by_strategy(
    strategy: Any, restart_log: str
) -> None:
    async with Supervisor(workers("a", "b", "c"), strategy=strategy, backoff=SOON) as tree:
        with pytest.raises(ActorDiedError):
            await tree["b"].die()
        assert await tree["c"].work() == "c"
        assert await tree["b"].work() == "b"
    assert Worker.log == f"+a +b +c {restart_log} -c -b -a".split()


async def test_a_temporary_child_that_is_stopped_with_the_others_is_gone_for_those_who_ask() -> None:
    """A temporary child does not come back, so asks raise instead of waiting."""
    terms = [*workers("a"), *workers("t", restart="temporary")]
    async with Supervisor(terms, strategy="one_for_all", backoff=SOON) as tree:
        with pytest.raises(ActorDiedError):
            await tree["a"].die()
        assert await tree["a"].work() == "a"
        with pytest.raises(ActorGoneError):
            await tree["t"].work()


async def test_a_block_that_is_left_while_a_supervisor_within_restarts_leaves_nothing() -> None:
    before = live_tasks()
    inner = Supervisor([child(Worker("i", 5), name="i"), child(Worker("j", 5), name="j")], intensity=0, name="inner")
    async with Supervisor([inner], backoff=SOON) as tree:
        with pytest.raises(ActorDiedError):
            await tree["i"].die()
        await anyio.sleep(2)
    await anyio.sleep(100)
    assert live_tasks() == before
    assert Worker.log.count("+j") == Worker.log.count("-j") == 1
    assert Worker.log.count("+i") == Worker.log.count("-i")


async def test_a_call_that_kills_is_refused_also_where_it_waits_already() -> None:
    """Five concurrent calls that kill their actor cause two deaths.

    The other calls are refused, and no more deaths count.
    """
    came_to: list[object] = []
    async with Supervisor(workers("w", poison=2), intensity=1, backoff=SOON) as tree:
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(keep, came_to, tree["w"].die("x"))
        assert await tree["w"].work() == "w"
    assert sorted(type(outcome).__name__ for outcome in came_to) == ["ActorDiedError"] * 2 + ["PoisonousCallError"] * 3


@pytest.mark.parametrize("name", ["work", "read"])
async def test_an_actor_is_replaced_after_so_many_calls_exactly(name: str) -> None:
    async with Supervisor(workers("w", max_calls=3)) as tree, anyio.create_task_group() as group:
        for _ in range(7):
            group.start_soon(getattr(tree["w"], name))
    assert Worker.log == ["+w", "-w"] * 3


async def test_an_actor_is_replaced_when_it_is_old_and_idle() -> None:
    async with Supervisor(workers("w", max_age=10)) as tree:
        assert await tree["w"].work(15) == "w"
        await anyio.sleep(1)
        assert Worker.log == ["+w", "-w", "+w"]
        await anyio.sleep(10)
        assert Worker.log == ["+w", "-w"] * 2 + ["+w"]


async def test_an_actor_that_starts_for_longer_than_its_age_answers() -> None:
    """Its age counts from the end of its start: otherwise each incarnation would be replaced before its first call."""
    async with Supervisor([child(Worker("w", slow=20), name="w", max_age=10)]) as tree:
        with anyio.fail_after(100):
            assert await tree["w"].work() == "w"
    assert Worker.log == ["+w", "-w"]


async def test_an_old_actor_is_replaced_when_the_caller_of_a_kept_reply_has_gone() -> None:
    """The queued asks must not depend on another ask to trigger the replacement."""
    async with Supervisor(workers("w", max_calls=1)) as tree, anyio.create_task_group() as group:

        async def give_up() -> None:
            with anyio.move_on_after(1):
                await tree["w"].later()

        group.start_soon(give_up)
        await anyio.sleep(0.5)
        assert await tree["w"].work() == "w"


@pytest.mark.parametrize("terms", [{"max_calls": 1}, {"max_age": 10}])
async def test_an_actor_that_is_to_be_replaced_takes_calls_while_it_owes_a_reply(terms: dict[str, float]) -> None:
    """The reply may depend on a later call. If that waited for the next incarnation, both would wait for ever."""

    class Exchange(Worker):
        @handler
        async def send(self, text: str) -> None:
            KEPT.pop().send(text)

    outcomes: list[object] = []
    async with Supervisor([child(Exchange, **terms)]) as tree, anyio.create_task_group() as group:
        with anyio.fail_after(100):
            group.start_soon(keep, outcomes, tree[Exchange].later())
            await anyio.sleep(20)
            await tree[Exchange].send("sent")
            assert await tree[Exchange].work() == "w"
    assert outcomes == ["sent"]
    assert Worker.log[:3] == ["+w", "-w", "+w"]


async def test_an_actor_stops_in_order_also_if_a_reply_is_collected_at_this_moment() -> None:
    """The collector may run at any call. It drops the reply, which settles its message while others are looked at."""

    class Forgetful(Worker):
        @handler(deferred=True)
        async def forget(self, reply: Reply[str]) -> None:
            cycle: list[object] = [reply]
            cycle.append(cycle)

        @handler
        async def end(self) -> None:
            sys.setprofile(collect)
            raise BrokenError

    def collect(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name == "is_taken_only":
            sys.setprofile(None)
            gc.collect()

    outcomes: list[object] = []
    gc.disable()
    try:
        async with Supervisor([child(Forgetful)], backoff=SOON) as tree, anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(keep, outcomes, tree[Forgetful].forget())
            await anyio.sleep(1)
            with pytest.raises(ActorDiedError):
                await tree[Forgetful].end()
            assert await tree[Forgetful].work() == "w"
    finally:
        sys.setprofile(None)
        gc.enable()
    assert [type(outcome).__name__ for outcome in outcomes] == ["RuntimeError"] * 2
    assert Worker.log == ["+w", "-w"] * 2


@pytest.mark.parametrize(
    ("when_full", "came_to"),
    [
        ("wait", {"1": "w", "2": "w", "3": "w"}),
        ("reject", {"1": "w", "2": "w", "3": "MailboxFullError"}),
    ],
)
async def test_one_call_more_than_may_wait_waits_or_is_refused(when_full: Any, came_to: dict[str, str]) -> None:
    outcomes: dict[str, str] = {}

    async def ask(tree: Supervisor, caller: str) -> None:
        await anyio.sleep(float(caller) / 10)
        try:
            outcomes[caller] = await tree["w"].work(5)
        except MailboxFullError as error:
            outcomes[caller] = type(error).__name__

    async with Supervisor(workers("w", mailbox=1, when_full=when_full)) as tree:
        async with anyio.create_task_group() as group:
            for name in came_to:
                group.start_soon(ask, tree, name)
    assert outcomes == came_to


async def test_a_description_that_cannot_be_made_again_is_a_start_that_fails() -> None:
    instances: list[int] = []

    class Once(Worker):
        def __init__(self) -> None:
            super().__init__()
            instances.append(1)
            if len(instances) > 2:
                raise OSError("no more")

    with pytest.raises(SupervisorError, match="no more"):
        async with Supervisor([Once], intensity=2, backoff=SOON) as tree:
            with pytest.raises(ActorDiedError):
                await tree[Once].die()
            await anyio.sleep_forever()


async def test_a_control_call_that_kills_ends_what_runs_beside_it_on_either_loop() -> None:
    class Watched(Worker):
        @handler(group="control")
        async def check(self) -> None:
            raise BrokenError

    outcomes: list[object] = []
    async with Supervisor([Watched], backoff=SOON) as tree, anyio.create_task_group() as group:
        group.start_soon(keep, outcomes, tree[Watched].work(1000))
        await anyio.sleep(1)
        with pytest.raises(ActorDiedError):
            await tree[Watched].check()
        began = anyio.current_time()
        assert await tree[Watched].work() == "w"
        assert anyio.current_time() - began < 1
        assert [type(outcome) for outcome in outcomes] == [ActorDiedError]


async def test_a_success_resets_the_count_of_its_call() -> None:
    """A connection that is lost three times in weeks, and works in between, is not refused for ever."""
    lost: list[str] = []

    class Feed(Worker):
        @handler
        async def receive(self, source: str) -> str:
            if source in lost:
                lost.remove(source)
                raise BrokenError("reset by peer")
            return source

    async with Supervisor([child(Feed, poison=2)], backoff=SOON, intensity=99) as tree:

        async def lose() -> None:
            lost.append("a")
            with pytest.raises(ActorDiedError):
                await tree[Feed].receive("a")

        for _ in range(4):
            await lose()
            assert await tree[Feed].receive("a") == "a"
        await lose()
        assert await tree[Feed].receive("b") == "b"  # of another call
        await lose()
        with pytest.raises(PoisonousCallError):
            await tree[Feed].receive("a")


async def test_a_cancel_is_no_poison() -> None:
    class Fragile(Worker):
        @handler(on_cancel="restart")
        async def fragile(self, seconds: float) -> str:
            return await self.work(seconds)

    async with Supervisor([child(Fragile, poison=2)], backoff=SOON, intensity=9) as tree:
        for _ in range(4):
            with anyio.move_on_after(1) as scope:
                await tree[Fragile].fragile(5)
            assert scope.cancelled_caught
        assert await tree[Fragile].fragile(5) == "w"
