"""Limits shared by processes hold, in order of arrival, on every server."""

import threading
import time

import anyio
import pytest

from callboard import CallPolicy, Limit, Rate, StorageError, ToolNode, fencing_token
from tests.helpers import ask, make, make_sync, until

from ._world import LEASE, Asking, Stores

pytestmark = pytest.mark.real_clock


async def test_two_processes_have_the_places_of_one_limit_together(stores: Stores) -> None:
    """Each process alone would be allowed three concurrent calls."""
    running = peak = 0

    async def work(index: int) -> int:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await anyio.sleep(0.01)
        running -= 1
        return index

    nodes = [
        ToolNode([make(work)], policies={"work": CallPolicy(limit=Limit(concurrency=3, shared=stores()))})
        for _ in range(2)
    ]
    statuses: list[str] = []

    async def run(node: ToolNode) -> None:
        messages = await node.ainvoke(ask(*[("work", {"index": n}) for n in range(20)]))
        statuses.extend(message.status for message in messages)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            for node in nodes:
                group.start_soon(run, node)

    assert peak == 3
    assert statuses == ["success"] * 40


async def test_who_asks_first_is_served_first_whatever_his_process(stores: Stores) -> None:
    """A process that holds a permit has no priority for the next one."""
    first_store, second_store = stores(), stores()
    asking = Asking(Limit(concurrency=1))
    await asking.ask(first_store, "first")
    for number in range(6):
        await asking.ask((second_store, first_store)[number % 2], f"{number}")

    for name in ("first", *map(str, range(6))):
        await asking.until_answered(name)
        asking.leave(name)

    assert asking.answered == ["first", *map(str, range(6))]


async def test_tenants_take_turns_however_many_calls_of_one_wait(stores: Stores) -> None:
    """A tenant with a thousand calls must not starve a tenant with one call."""
    first_store, second_store = stores(), stores()
    asking = Asking(Limit(concurrency=1))
    await asking.ask(first_store, "first")
    for number in range(8):
        await asking.ask(first_store, f"loud {number}", tenant="loud")
    for number in range(3):
        await asking.ask(second_store, f"quiet {number}", tenant="quiet")

    for had in range(12):
        await until(lambda had=had: len(asking.answered) > had)
        asking.leave(asking.answered[-1])

    turns = [f"loud {n}" if kind else f"quiet {n}" for n in range(3) for kind in (True, False)]
    assert asking.answered == ["first", *turns, *(f"loud {n}" for n in range(3, 8))]


async def test_keys_have_places_of_their_own(stores: Stores) -> None:
    """A slow host must not delay the calls of another host."""
    store, asking = stores(), Asking(Limit(concurrency=1))

    await asking.ask(store, "a", key="a")
    await asking.ask(store, "a too", key="a")
    await asking.ask(store, "b", key="b")

    assert asking.answered == ["a", "b"]


async def test_whoever_finds_the_queue_full_is_refused(stores: Stores) -> None:
    """The limit of the queue covers all processes together."""
    store, other_store = stores(), stores()
    asking = Asking(Limit(concurrency=1, queue=1))
    await asking.ask(store, "runs")
    await asking.ask(other_store, "waits")

    permit = await asking.ask(store, "too many")

    assert permit.failure == (
        "the queue of tool 't' is full in all processes together: 1 of 1 run, 1 wait, and no more may"
    )


async def test_a_cancelled_call_leaves_the_queue_at_once(stores: Stores) -> None:
    """A cancelled call in the queue would block its place and later be granted a permit for nothing."""
    store, asking = stores(), Asking(Limit(concurrency=1, queue=1))
    limit = Limit(concurrency=1, queue=1, shared=store)
    started = anyio.Event()

    async def hold(seconds: float) -> str:
        started.set()
        await anyio.sleep(seconds)
        return "done"

    node = ToolNode([make(hold)], policies={"hold": CallPolicy(limit=limit)})
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(node.ainvoke, ask(("hold", {"seconds": 20.0})))
            await started.wait()
            with anyio.move_on_after(0.2):
                await node.ainvoke(ask(("hold", {"seconds": 0.0})))
            with anyio.move_on_after(0.2) as second:
                await node.ainvoke(ask(("hold", {"seconds": 0.0})))
            assert second.cancelled_caught  # the request waited and was not refused
            group.cancel_scope.cancel()
        [message] = await node.ainvoke(ask(("hold", {"seconds": 0.0})))

    assert message.content == "done"
    assert asking.answered == []


async def test_a_body_can_read_its_fencing_token_and_later_ones_are_higher(stores: Stores) -> None:
    """The guarded resource refuses a late call after it has seen a higher token."""
    store = stores(name="resource")

    async def task() -> str:
        return str(fencing_token())

    def thread() -> str:
        return str(fencing_token())

    limit = Limit(concurrency=1, shared=store)
    node = ToolNode([make(task), make_sync(thread)], policies={n: CallPolicy(limit=limit) for n in ("task", "thread")})
    with anyio.fail_after(20):
        tokens = [int((await node.ainvoke(ask(name)))[0].content) for name in ("task", "task", "thread", "thread")]

    assert tokens == sorted(set(tokens))
    assert fencing_token() is None


async def test_a_start_that_never_came_does_not_count(stores: Stores) -> None:
    """If a call is cancelled before it starts, its start returns to the other calls."""
    store, asking = stores(), Asking(Limit(rate=Rate(1, per=2.5)))
    await asking.ask(store, "changed his mind")
    await asking.until_answered("changed his mind")  # a fresh server grants nothing for one window
    await asking.ask(store, "next")
    since = time.monotonic()
    asking.leave("changed his mind")

    await asking.until_answered("next")
    assert time.monotonic() - since < 1.5


async def test_a_process_that_is_silent_for_a_lease_loses_its_places(stores: Stores) -> None:
    """A killed or stopped process sends no renewal."""
    dead, store = stores(), stores()
    asking = Asking(Limit(concurrency=1))
    lost = await asking.ask(dead, "dead")
    await asking.ask(dead, "dead and waiting")
    permit = await asking.ask(store, "heir")
    goes_on = _stand_still(dead, seconds=20 * LEASE)

    await asking.until_answered("heir")
    goes_on.set()

    assert lost.token is not None and permit.token is not None
    assert permit.token > lost.token
    assert "dead and waiting" not in asking.answered


@pytest.mark.exhaustive
async def test_a_process_that_stood_still_says_again_what_it_has(stores: Stores) -> None:
    """The calls of the process still run, so only the remaining permits may be granted; waiting calls keep waiting."""
    late, store = stores(), stores()
    asking = Asking(Limit(concurrency=1))
    (await asking.ask(late, "late")).begin()
    await asking.ask(late, "late and waiting")
    await asking.ask(store, "heir")
    _stand_still(late, seconds=2.5 * LEASE)
    await asking.until_answered("heir")
    await asking.ask(store, "next")
    await anyio.sleep(2 * LEASE)

    asking.leave("heir")
    await anyio.sleep(LEASE)
    assert asking.answered == ["late", "heir"]
    asking.leave("late")
    await until(lambda: len(asking.answered) == 3)


async def test_processes_with_other_numbers_for_one_limit_are_refused_with_both(stores: Stores) -> None:
    """With different numbers for one limit it would be unclear which of them holds."""
    await Asking(Limit(concurrency=2)).ask(stores(), "first")

    permit = await Asking(Limit(concurrency=3)).ask(stores(), "second")

    assert isinstance(permit.failure, StorageError)
    assert "concurrency=2" in str(permit.failure)
    assert "concurrency=3" in str(permit.failure)
    assert "the same numbers in all processes, or another name" in str(permit.failure)


@pytest.mark.exhaustive
async def test_numbers_may_change_when_nobody_has_the_former_ones(stores: Stores) -> None:
    """A deployment changes the numbers; the leases of the old processes expire first."""
    old, new = stores(), stores()
    asking = Asking(Limit(concurrency=2))
    await asking.ask(old, "old")
    asking.leave("old")
    old.close()
    await anyio.sleep(1.5 * LEASE)

    permit = await Asking(Limit(concurrency=3)).ask(new, "new")

    assert permit.failure is None


async def test_two_limits_of_one_name_are_one_limit(stores: Stores) -> None:
    """Two tools for one host share its permits if their stores have the same name."""
    store = stores(name="host")
    running = peak = 0

    async def one() -> str:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await anyio.sleep(0.05)
        running -= 1
        return "done"

    limit = Limit(concurrency=1, shared=store)
    node = ToolNode(
        [make(one, "read"), make(one, "write")], policies={n: CallPolicy(limit=limit) for n in ("read", "write")}
    )
    with anyio.fail_after(20):
        await node.ainvoke(ask("read", "write", "read"))

    assert peak == 1


def _stand_still(store: object, *, seconds: float) -> threading.Event:
    """Block the thread of a store for a while, or until the event is set, as if its process had been stopped."""
    client, goes_on = store._current_client, threading.Event()  # type: ignore[attr-defined]
    client.post(lambda: goes_on.wait(seconds))
    return goes_on
