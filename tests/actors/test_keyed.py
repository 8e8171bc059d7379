"""Keyed actors: one actor for each key, the cap, eviction and restored state."""

import gc
import sys
import threading
from collections.abc import Hashable
from contextlib import suppress
from itertools import count

import anyio
import pytest

from callboard import (
    Actor,
    ActorDiedError,
    ActorGoneError,
    InMemorySnapshots,
    Keyed,
    Reply,
    ToolNode,
    child,
    handler,
    keyed,
    tool_call,
)
from tests.helpers import keep, live_tasks

from ._lives import lives


class Counter(Actor):
    """Counter that keeps its count in snapshots."""

    async def start(self) -> None:
        lives.append(f"start {self.key}")
        self.count = 0

    async def stop(self) -> None:
        lives.append(f"stop {self.key}")

    async def snapshot(self) -> int:
        return self.count

    async def restore(self, snapshot: int) -> None:
        self.count = snapshot

    @handler
    async def up(self, seconds: float = 0.0) -> int:
        """Count."""
        if seconds:
            await anyio.sleep(seconds)
        self.count += 1
        return self.count


async def test_each_key_has_an_actor_that_starts_when_it_is_asked() -> None:
    async with keyed(Counter()) as counters:
        before = list(lives)
        counts = [await counters[key].up() for key in ("a", "b", "a")]

    assert before == []
    assert counts == [1, 1, 2]
    assert lives[:2] == ["start a", "start b"]
    assert sorted(lives[2:]) == ["stop a", "stop b"]


class Clumsy(Counter):
    """Counter that fails after counting."""

    fatal = (ZeroDivisionError,)

    @handler
    async def slip(self) -> None:
        """Count, and fail."""
        self.count += 1
        raise ValueError(self.count)

    @handler
    async def die(self) -> None:
        """End the actor."""
        raise ZeroDivisionError


async def test_the_state_after_a_call_that_failed_is_kept_like_any_other() -> None:
    """An ordinary error does not roll the state back, so the snapshot after it has the change, even after a crash."""
    async with keyed(Clumsy(), save="each_call") as counters:
        await counters["a"].up()
        with pytest.raises(ValueError, match="2"):
            await counters["a"].slip()
        with pytest.raises(ActorDiedError):
            await counters["a"].die()
        count = await counters["a"].up()

    assert count == 3


async def test_a_reference_that_is_kept_leads_to_the_same_actor_through_evictions() -> None:
    async with keyed(Counter(), cap=1) as counters:
        counter = counters["a"]
        first = await counter.up()
        await counters["b"].up()
        same_counter = counters["a"]
        counts = [await counter.up(), await same_counter.up(), await counter.up()]

    assert first == 1
    assert counts == [2, 3, 4]
    assert counter == same_counter


async def test_a_start_that_fails_is_said_to_those_who_asked_and_tried_again_for_the_next() -> None:
    fails = [True, False]

    class Shaky(Counter):
        async def start(self) -> None:
            await super().start()
            if fails.pop(0):
                raise ConnectionError("not yet")

    async with keyed(Shaky()) as counters:
        with pytest.raises(ActorGoneError, match=r"Shaky\['a'\].*ConnectionError\('not yet'\)"):
            await counters["a"].up()
        count = await counters["a"].up()

    assert count == 1


async def test_after_the_block_nobody_lives_and_a_kept_reference_says_so() -> None:
    """A kept reference raises at once after the block, instead of waiting forever."""
    async with keyed(Counter()) as counters:
        counter = counters["a"]
        await counter.up()
    with pytest.raises(ActorGoneError, match="it was ended"):
        await counter.up()
    with pytest.raises(ActorGoneError, match="it was ended"):
        await counters["new"].up()


async def test_one_that_is_asked_in_the_moment_in_which_the_block_ends_is_not_left_behind() -> None:
    before = live_tasks()
    for _ in range(20):
        async with anyio.create_task_group() as group:

            async def ask() -> None:
                with suppress(ActorGoneError):
                    await counters["a"].up()
                done.set()  # noqa: B023

            done = anyio.Event()
            async with keyed(Counter()) as counters:
                group.start_soon(ask)
                while not counters.statistics().waiting:
                    await anyio.lowlevel.checkpoint()
            await done.wait()

    await anyio.lowlevel.checkpoint()
    assert lives.count("start a") == lives.count("stop a")
    assert live_tasks() == before


async def test_a_block_ends_in_order_while_another_thread_makes_references() -> None:
    """They are made in any thread. The end looked at all actors without the lock of those who make them."""
    interval = sys.getswitchinterval()
    has_ended = threading.Event()

    def refer(counters: Keyed[Counter]) -> None:
        for number in count():
            counters["late", number]
            if has_ended.is_set():
                return

    sys.setswitchinterval(1e-6)
    try:
        async with keyed(Counter()) as counters:
            references = [counters[number] for number in range(20_000)]
            thread = threading.Thread(target=refer, args=[counters])
            thread.start()
    finally:
        sys.setswitchinterval(interval)
        has_ended.set()
        thread.join()
    with pytest.raises(ActorGoneError, match="it was ended"):
        await references[-1].up()


async def test_snapshots_are_kept_where_somebody_says() -> None:
    snapshots = InMemorySnapshots()
    counts: list[int] = []

    for _ in range(3):
        async with keyed(Counter(), snapshots=snapshots) as counters:
            counts.append(await counters["a"].up())

    assert counts == [1, 2, 3]


async def test_a_snapshot_that_cannot_be_read_or_saved_is_said() -> None:
    """An unreadable snapshot is an error. A snapshot that cannot be saved is logged, and the call keeps its result."""

    class Broken(InMemorySnapshots):
        async def load(self, actor: str, key: Hashable) -> object:
            if key == "bad":
                raise OSError("no such disk")
            return await super().load(actor, key)

        async def save(self, actor: str, key: Hashable, snapshot: object) -> None:
            raise OSError("disk full")

    async with keyed(Counter(), snapshots=Broken()) as counters:
        with pytest.raises(ActorGoneError, match="its snapshot could not be read"):
            await counters["bad"].up()
        assert await counters["good"].up() == 1


@pytest.mark.exhaustive
@pytest.mark.timeout(300)  # 20,000 actors start, in a minute of CPU time
@pytest.mark.backends("asyncio", "trio")
async def test_ten_thousand_of_which_a_hundred_live() -> None:
    class Nowhere:
        """Store that holds states outside this process's memory."""

        def __init__(self) -> None:
            self._counts = bytearray(10_000)

        async def load(self, actor: str, key: Hashable) -> object:
            assert isinstance(key, int)
            return self._counts[key] or None

        async def save(self, actor: str, key: Hashable, snapshot: object) -> None:
            assert isinstance(key, int)
            assert isinstance(snapshot, int)
            self._counts[key] = snapshot

    spec = child(Counter, key=lambda call: int(call["id"]), cap=100, snapshots=Nowhere())
    node = ToolNode([spec])
    objects: list[int] = []

    async def note() -> None:
        lives.clear()
        await anyio.sleep(1_000)  # the heap of asyncio keeps timers of ended calls until they are due
        gc.collect()
        objects.append(len(gc.get_objects()))

    async with node:
        for turn in (1, 2):
            for first in range(0, 10_000, 500):
                result = await node.ainvoke([tool_call("up", str(key)) for key in range(first, first + 500)])
                assert [message.content for message in result["messages"]] == [str(turn)] * 500
                if first == 5_000 and turn == 1:
                    await note()
            await note()

    # The node's record of conversations is bounded, and full after the first half.
    assert max(objects) - min(objects) < 1_000, objects


async def test_the_one_that_was_asked_least_recently_goes_first_and_comes_back_with_its_state() -> None:
    async with keyed(Counter(), cap=2) as counters:
        for key in "abac":
            await counters[key].up()
        earlier_lives = list(lives)
        count = await counters["b"].up()

    assert earlier_lives == ["start a", "start b", "stop b", "start c"]
    assert count == 2


async def test_whoever_is_not_asked_for_a_while_goes() -> None:
    async with keyed(Counter(), idle=10.0) as counters:
        await counters["a"].up()
        await anyio.sleep(6)
        await counters["b"].up()
        await anyio.sleep(6)
        alive = counters.statistics().alive
        gone = list(lives)
        await anyio.sleep(20)
        none = counters.statistics().alive
        count = await counters["a"].up()

    assert gone[:3] == ["start a", "start b", "stop a"]
    assert (alive, none, count) == (1, 0, 2)


async def test_one_that_never_rests_does_not_keep_the_others_away() -> None:
    counts: list[int] = []

    async def ask(key: str, times: int) -> None:
        counts.extend([await counters[key].up() for _ in range(times)])

    async with keyed(Counter(), cap=1) as counters, anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(ask, "busy", 40)
        group.start_soon(ask, "other", 1)

    assert sorted(counts)[:2] == [1, 1]
    assert max(counts) == 200


async def test_an_actor_that_makes_room_lets_its_handlers_end_however_old_it_is() -> None:
    class Reader(Counter):
        @handler(group="reads")
        async def read(self, seconds: float) -> None:
            """Read, beside others."""
            await anyio.sleep(seconds)

    async with keyed(child(Reader, cap=1, max_age=10.0)) as readers, anyio.create_task_group() as group:
        with anyio.fail_after(101):
            group.start_soon(readers["a"].read, 100.0)
            await anyio.sleep(1)
            group.start_soon(readers["b"].read, 0.0)
            await anyio.sleep(1)
            await readers["a"].read(0.0)  # its end finds that "b" waits
            await anyio.sleep(97)
            waiting = readers.statistics()
        await anyio.sleep(2)

    assert (waiting.alive, waiting.waiting) == (1, 1)
    assert lives == ["start a", "stop a", "start b", "stop b"]


async def test_an_actor_that_makes_room_sends_the_replies_that_it_owes() -> None:
    """An eviction ends no call, also not one whose handler returns without a reply after the eviction has begun."""
    replies: list[Reply[str]] = []
    outcomes: list[object] = []

    class Desk(Counter):
        @handler(deferred=True, group="desk")
        async def later(self, reply: Reply[str], seconds: float) -> None:
            """Keep the reply after a while."""
            await anyio.sleep(seconds)
            replies.append(reply)

    async with keyed(child(Desk, cap=1)) as desks, anyio.create_task_group() as group:
        group.start_soon(keep, outcomes, desks["a"].later(3.0))
        await anyio.sleep(1)
        group.start_soon(keep, outcomes, desks["b"].up())
        group.start_soon(keep, outcomes, desks["a"].later(0.0))  # its end finds that "b" waits
        await anyio.sleep(1)
        replies.pop().send("second")
        await anyio.sleep(5)
        replies.pop().send("first")
    assert outcomes == ["second", "first", 1]
    assert lives == ["start a", "stop a", "start b", "stop b"]


async def test_saves_of_calls_side_by_side_do_not_overtake_each_other() -> None:
    """If an older state were saved after a newer one, a crash would lose a result that a caller already has."""

    class Adder(Counter):
        @handler(group="adds")
        async def add(self, seconds: float) -> int:
            """Count, beside others."""
            return await self.up(seconds)

    class Slow(InMemorySnapshots):
        async def save(self, actor: str, key: Hashable, snapshot: object) -> None:
            await anyio.sleep(5 if snapshot == 1 else 0)
            saved.append(snapshot)

    saved: list[object] = []
    async with keyed(child(Adder, save="each_call", snapshots=Slow())) as counters:
        async with anyio.create_task_group() as group:
            group.start_soon(counters["a"].add, 1.0)
            group.start_soon(counters["a"].add, 2.0)
        saved_by_calls = list(saved)

    assert saved_by_calls == sorted(saved_by_calls, key=str)
    assert saved_by_calls[-1] == 2
