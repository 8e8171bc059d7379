"""Deadlocks between actors: a call that would wait for itself is refused with the chain of waiting calls."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import anyio
import pytest
from anyio.abc import TaskGroup

from callboard import Actor, DeadlockError, Supervisor, child, handler, keyed
from tests.helpers import keep

others: dict[str, Any] = {}


class Node(Actor):
    """Actor that asks the given actors in order."""

    groups: ClassVar[dict[str, int]] = {"pair": 2}

    @handler
    async def call(self, *way: str) -> str:
        return await follow(way)

    @handler(group="reads")
    async def read(self, *way: str) -> str:
        return await follow(way)

    @handler(group="pair")
    async def pair(self, *way: str) -> str:
        return await follow(way)

    @handler(reentrant=True)
    async def again(self, *way: str) -> str:
        return await follow(way)

    @handler
    async def by_tasks(self, *way: str) -> str:
        found: list[str] = []

        async def go() -> None:
            found.append(await follow(way))

        async with anyio.create_task_group() as group:
            group.start_soon(go)
            group.start_soon(anyio.sleep, 1)
        return found[0]

    @handler
    async def leave_running(self, *way: str) -> str:
        others["group"].start_soon(remember, way)
        await anyio.sleep(2)
        return "left"

    @handler
    async def leave_behind(self, *way: str) -> str:
        others["group"].start_soon(remember, way)
        return "left"


async def follow(way: tuple[str, ...]) -> str:
    if not way:
        return "done"
    name, _, method = way[0].partition(".")
    if name == "sleep":
        await anyio.sleep(float(method))
        return await follow(way[1:])
    return str(await getattr(others[name], method or "call")(*way[1:]))


async def remember(way: tuple[str, ...]) -> None:
    try:
        others["came_to"] = await follow(way)
    except DeadlockError as error:
        others["came_to"] = error


@asynccontextmanager
async def nodes() -> AsyncIterator[TaskGroup]:
    """Run three nodes that ask each other, beside a group for tasks that ask them, too."""
    async with Supervisor([child(Node, name=name) for name in "ABC"]) as running, anyio.create_task_group() as group:
        others.update({name: running[name] for name in "ABC"}, group=group, came_to=None)
        yield group


async def ask(*way: str) -> str:
    async with nodes():
        return await follow(way)


@pytest.mark.parametrize(
    ("way", "chain"),
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
    way: tuple[str, ...], chain: tuple[str, ...]
) -> None:
    """Without a refusal, a cycle of waiting calls would never end, even if the calls come from different tasks.

    The chain lists the waiting actors in order and ends with the first one again. An actor that asks itself is listed
    twice.
    """
    with pytest.raises((DeadlockError, ExceptionGroup)) as caught:
        await ask(*way)
    error = caught.value
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, DeadlockError)
    assert error.chain == chain


@pytest.mark.parametrize(
    "way",
    [
        ("A", "A.again"),
        ("A", "B", "A.again"),
        ("A", "B", "A.again", "C", "A.again"),
        ("A.read", "B", "A.read"),
        ("A.pair", "B", "A.pair"),
    ],
)
async def test_a_call_that_has_room_to_run_is_no_deadlock(way: tuple[str, ...]) -> None:
    """A re-entrant handler, or one whose group has a free place, can run although its caller waits."""
    assert await ask(*way) == "done"


@pytest.mark.parametrize(
    "ways",
    [
        (("A", "sleep.1", "B"), ("B", "sleep.2", "A")),
        (("A.pair", "sleep.1", "B", "A.pair"), ("A.pair", "sleep.2", "C", "A.pair")),
    ],
    ids=["two actors", "a full group"],
)
async def test_of_two_that_wait_for_each_other_one_goes_on(ways: tuple[tuple[str, ...], ...]) -> None:
    """Both calls of a full group may ask for a third place through another actor: no place would become free."""
    found: list[object] = []
    async with nodes() as group:
        for way in ways:
            group.start_soon(keep, found, follow(way))
    assert sorted(type(one).__name__ for one in found) == ["DeadlockError", "str"]


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
        await others["A"].call("sleep.1")
        assert await others["A"].call("B.leave_behind", "A") == "left"
        await anyio.sleep(5)
    assert others["came_to"] == "done"


async def test_what_a_handler_is_about_to_leave_behind_is_no_deadlock() -> None:
    async with nodes():
        assert await others["A"].leave_running("B", "A") == "left"
        await anyio.sleep(20)
    assert others["came_to"] == "done"


async def test_one_that_is_cancelled_while_it_is_not_sure_whether_it_waits_for_itself_is_let_go() -> None:
    async with nodes():
        with anyio.move_on_after(1) as scope:
            await others["A"].by_tasks("B", "A.read")
        assert scope.cancelled_caught
        assert await others["A"].read() == "done"


class Kept(Node):
    """Keyed actor that asks other keys."""

    @handler
    async def ask(self, *way: str) -> str:
        """Ask the first of these keys to ask the others."""
        return "done" if not way else str(await others["kept"][way[0]].ask(*way[1:]))

    @handler(group="reads")
    async def wait(self, seconds: float, *way: str) -> str:
        """Wait, and then ask the first of these keys to ask the second to wait."""
        await anyio.sleep(seconds)
        return "done" if not way else str(await others["kept"][way[0]].ask_to_wait(*way[1:]))

    @handler
    async def ask_to_wait(self, *way: str) -> str:
        return "done" if not way else str(await others["kept"][way[0]].wait(0.0))


async def test_a_call_for_which_there_is_room_only_when_its_asker_has_ended_names_the_cap() -> None:
    """The cap is full, and the asking actor would have to be evicted to make room for the asked one.

    Both would wait forever.
    """
    async with keyed(Kept, cap=2) as others["kept"]:
        assert await others["kept"]["a"].ask("b") == "done"
        with pytest.raises(DeadlockError, match=r"Kept\['c'\] can live when another one goes, for cap=2;") as caught:
            await others["kept"]["a"].ask("b", "c")
        again = await others["kept"]["c"].ask("a")
    assert caught.value.chain == ("Kept.ask",) * 4
    assert again == "done"


async def test_a_call_that_waits_for_room_that_somebody_else_makes_is_no_deadlock() -> None:
    """Another live actor is busy for a while and will be evicted when it is done, so the call only has to wait."""
    async with keyed(Kept, cap=2) as others["kept"], anyio.create_task_group() as group:
        group.start_soon(others["kept"]["b"].wait, 5.0)
        await anyio.sleep(1)
        assert await others["kept"]["a"].ask("c") == "done"


async def test_of_two_that_wait_for_the_room_of_each_other_one_goes_on() -> None:
    found: list[object] = []
    async with keyed(Kept, cap=2) as others["kept"], anyio.create_task_group() as group:
        group.start_soon(keep, found, others["kept"]["a"].wait(1.0, "c"))
        group.start_soon(keep, found, others["kept"]["b"].wait(2.0, "d"))
    assert sorted(type(one).__name__ for one in found) == ["DeadlockError", "str"]


@pytest.mark.parametrize("terms", [{"cap": 2}, {"max_calls": 3}])
async def test_an_actor_that_is_about_to_go_still_takes_what_its_own_handlers_wait_for(terms: dict[str, Any]) -> None:
    """A stopping actor waits for its handlers, and the handlers wait for answers, so those asks are still accepted."""
    found: list[object] = []
    async with keyed(child(Kept, **terms)) as others["kept"], anyio.create_task_group() as group:
        group.start_soon(keep, found, others["kept"]["a"].wait(3.0, "b", "a"))
        group.start_soon(keep, found, others["kept"]["a"].wait(2.0))
        await anyio.sleep(1)
        for key in "bca":
            group.start_soon(keep, found, others["kept"][key].wait(0.0))
    assert found == ["done"] * 5
