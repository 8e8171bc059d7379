"""Deadlocks between actors: a call that would wait for itself is refused with the chain of waiting calls."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import anyio
import pytest
from anyio.abc import TaskGroup

from callboard import Actor, DeadlockError, Reply, Supervisor, child, handler, keyed, running
from tests.helpers import keep

world: dict[str, Any] = {}


class Node(Actor):
    """Actor that asks the given actors in order."""

    groups: ClassVar[dict[str, int]] = {"pair": 2}

    @handler
    async def call(self, *route: str) -> str:
        return await follow(route)

    @handler(group="reads")
    async def read(self, *route: str) -> str:
        return await follow(route)

    @handler(group="pair")
    async def pair(self, *route: str) -> str:
        return await follow(route)

    @handler(reentrant=True)
    async def again(self, *route: str) -> str:
        return await follow(route)

    @handler
    async def by_tasks(self, *route: str) -> str:
        results: list[str] = []

        async def go() -> None:
            results.append(await follow(route))

        async with anyio.create_task_group() as group:
            group.start_soon(go)
            group.start_soon(anyio.sleep, 1)
        return results[0]

    @handler
    async def leave_running(self, *route: str) -> str:
        world["group"].start_soon(remember, route)
        await anyio.sleep(2)
        return "left"

    @handler
    async def leave_behind(self, *route: str) -> str:
        world["group"].start_soon(remember, route)
        return "left"


async def follow(route: tuple[str, ...]) -> str:
    if not route:
        return "done"
    name, _, method = route[0].partition(".")
    if name == "sleep":
        await anyio.sleep(float(method))
        return await follow(route[1:])
    return str(await getattr(world[name], method or "call")(*route[1:]))


async def remember(route: tuple[str, ...]) -> None:
    try:
        world["came_to"] = await follow(route)
    except DeadlockError as error:
        world["came_to"] = error


@asynccontextmanager
async def nodes() -> AsyncIterator[TaskGroup]:
    """Run three nodes that ask each other, beside a group for tasks that ask them, too."""
    async with Supervisor([child(Node, name=name) for name in "ABC"]) as running, anyio.create_task_group() as group:
        world.update({name: running[name] for name in "ABC"}, group=group, came_to=None)
        yield group


async def ask(*route: str) -> str:
    async with nodes():
        return await follow(route)


@pytest.mark.parametrize(
    ("route", "chain"),
    [
        (("A", "A"), ("Node.call",) * 2),
        (("A.read", "A"), ("Node.read", "Node.call")),
        (("A", "B", "A"), ("Node.call",) * 4),
        (("A", "B", "C", "A"), ("Node.call",) * 5),
        (("A.by_tasks", "B", "A.read"), ("Node.by_tasks", "Node.call", "Node.read", "Node.by_tasks")),
        (("A.read", "B", "A.call"), ("Node.read", "Node.call", "Node.call", "Node.read")),
    ],
)
async def test_a_call_that_would_wait_for_itself_is_refused_with_its_chain(
    route: tuple[str, ...], chain: tuple[str, ...]
) -> None:
    """Without a refusal, a cycle of waiting calls would never end, even if the calls come from different tasks.

    The chain lists the waiting actors in order and ends with the first one again. An actor that asks itself is listed
    twice.
    """
    with pytest.raises((DeadlockError, ExceptionGroup)) as caught:
        await ask(*route)
    error = caught.value
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, DeadlockError)
    assert error.chain == chain


@pytest.mark.parametrize(
    "route",
    [
        ("A", "A.again"),
        ("A", "B", "A.again"),
        ("A", "B", "A.again", "C", "A.again"),
        ("A.read", "B", "A.read"),
        ("A.pair", "B", "A.pair"),
    ],
)
async def test_a_call_that_has_room_to_run_is_no_deadlock(route: tuple[str, ...]) -> None:
    """A re-entrant handler, or one whose group has a free place, can run although its caller waits."""
    assert await ask(*route) == "done"


@pytest.mark.parametrize(
    "routes",
    [
        (("A", "sleep.1", "B"), ("B", "sleep.2", "A")),
        (("A.pair", "sleep.1", "B", "A.pair"), ("A.pair", "sleep.2", "C", "A.pair")),
    ],
    ids=["two actors", "a full group"],
)
async def test_of_two_that_wait_for_each_other_one_goes_on(routes: tuple[tuple[str, ...], ...]) -> None:
    """Both calls of a full group may ask for a third place through another actor: no place would become free."""
    outcomes: list[object] = []
    async with nodes() as group:
        for route in routes:
            group.start_soon(keep, outcomes, follow(route))
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["DeadlockError", "str"]


async def test_a_call_behind_one_that_waits_for_its_asker_is_a_deadlock() -> None:
    """A read may run beside a read but does not overtake a queued write, so the cycle is closed."""
    async with nodes() as group:
        group.start_soon(follow, ("sleep.1", "A"))
        with pytest.raises(DeadlockError):
            await follow(("A.read", "sleep.2", "B", "A.read"))


async def test_a_full_group_of_which_one_will_end_is_no_deadlock() -> None:
    async with nodes() as group:
        group.start_soon(follow, ("A.pair", "sleep.5"))
        assert await follow(("A.pair", "sleep.1", "B", "A.pair")) == "done"


async def test_what_a_handler_has_left_behind_asks_for_itself() -> None:
    """A background task outlives its handler. Nobody waits for the task, so it may ask the handler's former caller."""
    async with nodes():
        assert await follow(("A", "B.leave_behind", "sleep.1", "A")) == "left"
        await world["A"].call("sleep.1")
        assert await world["A"].call("B.leave_behind", "A") == "left"
        await anyio.sleep(5)
    assert world["came_to"] == "done"


async def test_what_a_handler_is_about_to_leave_behind_is_no_deadlock() -> None:
    async with nodes():
        assert await world["A"].leave_running("B", "A") == "left"
        await anyio.sleep(20)
    assert world["came_to"] == "done"


async def test_a_reply_in_the_moment_in_which_it_is_sure_that_there_is_no_deadlock_reaches_its_caller() -> None:
    """After five seconds, it is sure. On asyncio, the end of this wait would hide a reply in the same step."""
    replies: list[Reply[str]] = []

    class Desk(Actor):
        @handler
        async def wait_for(self, route: tuple[str, ...]) -> str:
            await anyio.sleep(0.5)
            return await follow(route)

        @handler(deferred=True)
        async def later(self, reply: Reply[str]) -> None:
            replies.append(reply)

    async with nodes() as group, running(Desk()) as world["desk"]:
        begin = anyio.current_time()
        group.start_soon(world["desk"].wait_for, ("A",))
        group.start_soon(world["A"].leave_running, "sleep.1", "desk.later")
        # A moment before the timer of five seconds, and within the resolution of the loop's clock.
        await anyio.sleep_until(begin + 1 + 5 - 1e-9)
        assert replies.pop().send("done")
        await anyio.sleep(1)
    assert world["came_to"] == "done"


async def test_one_that_is_cancelled_while_it_is_not_sure_whether_it_waits_for_itself_is_let_go() -> None:
    async with nodes():
        with anyio.move_on_after(1) as scope:
            await world["A"].by_tasks("B", "A.read")
        assert scope.cancelled_caught
        assert await world["A"].read() == "done"


class Kept(Node):
    """Keyed actor that asks other keys."""

    @handler
    async def ask(self, *route: str) -> str:
        """Ask the first of these keys to ask the others."""
        return "done" if not route else str(await world["kept"][route[0]].ask(*route[1:]))

    @handler(group="reads")
    async def wait(self, seconds: float, *route: str) -> str:
        """Wait, and then ask the first of these keys to ask the second to wait."""
        await anyio.sleep(seconds)
        return "done" if not route else str(await world["kept"][route[0]].ask_to_wait(*route[1:]))

    @handler
    async def ask_to_wait(self, *route: str) -> str:
        return "done" if not route else str(await world["kept"][route[0]].wait(0.0))


async def test_a_call_for_which_there_is_room_only_when_its_asker_has_ended_names_the_cap() -> None:
    """The cap is full, and the asking actor would have to be evicted to make room for the asked one.

    Both would wait forever.
    """
    async with keyed(Kept, cap=2) as world["kept"]:
        assert await world["kept"]["a"].ask("b") == "done"
        with pytest.raises(DeadlockError, match=r"Kept\['c'\] can live when another one goes, for cap=2;") as caught:
            await world["kept"]["a"].ask("b", "c")
        later_result = await world["kept"]["c"].ask("a")
    assert caught.value.chain == ("Kept.ask",) * 4
    assert later_result == "done"


async def test_a_call_that_waits_for_room_that_somebody_else_makes_is_no_deadlock() -> None:
    """Another live actor is busy for a while and will be evicted when it is done, so the call only has to wait."""
    async with keyed(Kept, cap=2) as world["kept"], anyio.create_task_group() as group:
        group.start_soon(world["kept"]["b"].wait, 5.0)
        await anyio.sleep(1)
        assert await world["kept"]["a"].ask("c") == "done"


async def test_of_two_that_wait_for_the_room_of_each_other_one_goes_on() -> None:
    outcomes: list[object] = []
    async with keyed(Kept, cap=2) as world["kept"], anyio.create_task_group() as group:
        group.start_soon(keep, outcomes, world["kept"]["a"].wait(1.0, "c"))
        group.start_soon(keep, outcomes, world["kept"]["b"].wait(2.0, "d"))
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["DeadlockError", "str"]


@pytest.mark.parametrize("terms", [{"cap": 2}, {"max_calls": 3}])
async def test_an_actor_that_is_about_to_go_still_takes_what_its_own_handlers_wait_for(terms: dict[str, Any]) -> None:
    """A stopping actor waits for its handlers, and the handlers wait for answers, so those asks are still accepted."""
    results: list[object] = []
    async with keyed(child(Kept, **terms)) as world["kept"], anyio.create_task_group() as group:
        group.start_soon(keep, results, world["kept"]["a"].wait(3.0, "b", "a"))
        group.start_soon(keep, results, world["kept"]["a"].wait(2.0))
        await anyio.sleep(1)
        for key in "bca":
            group.start_soon(keep, results, world["kept"][key].wait(0.0))
    assert results == ["done"] * 5
