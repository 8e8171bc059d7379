"""Calls that would wait for themselves are refused with the chain; those that would not go on."""

from typing import Any, ClassVar

import anyio
import pytest

from callboard import Actor, DeadlockError, Supervisor, child, handler

WAIT = 60
others: dict[str, Any] = {}


class Node(Actor):
    """Asks whomever it is told to, in order."""

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


def tree() -> Supervisor:
    return Supervisor([child(Node, name=name) for name in "ABC"])


async def ask(*way: str) -> str:
    with anyio.fail_after(WAIT):
        async with tree() as running, anyio.create_task_group() as group:
            others.update({name: running[name] for name in "ABC"}, group=group)
            return await follow(way)


@pytest.mark.parametrize(
    ("way", "chain"),
    [
        (("A", "A"), ("Node.call",) * 3),
        (("A", "B", "A"), ("Node.call",) * 4),
        (("A", "B", "C", "A"), ("Node.call",) * 5),
        (("A.by_tasks", "B", "A.read"), ("Node.by_tasks", "Node.call", "Node.read", "Node.by_tasks")),
        (("A.read", "B", "A.call"), ("Node.read", "Node.call", "Node.call", "Node.read")),
    ],
)
async def test_a_call_that_would_wait_for_itself_is_refused_with_its_chain(
    way: tuple[str, ...], chain: tuple[str, ...]
) -> None:
    """Nobody would ever wake them; so the last one to ask is told, by whatever tasks it came.

    The chain has those that wait for each other, and the first one again at its end.
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
        ("A", "B", "A.again"),
        ("A", "B", "A.again", "C", "A.again"),
        ("A.read", "B", "A.read"),
        ("A.pair", "B", "A.pair"),
    ],
)
async def test_a_call_that_has_room_to_run_is_no_deadlock(way: tuple[str, ...]) -> None:
    """Declared re-entrance, and groups with a place left."""
    assert await ask(*way) == "done"


async def test_of_two_that_ask_each_other_one_goes_on() -> None:
    """A asks B while B asks A: one of them is told, and with its end the other has its answer."""
    found: list[object] = []

    async def go(*way: str) -> None:
        try:
            found.append(await follow(way))
        except DeadlockError as error:
            found.append(error)

    with anyio.fail_after(WAIT):
        async with tree() as running:
            others.update({name: running[name] for name in "ABC"})
            async with anyio.create_task_group() as group:
                group.start_soon(go, "A", "sleep.1", "B")
                group.start_soon(go, "B", "sleep.2", "A")
    assert sorted(type(one).__name__ for one in found) == ["DeadlockError", "str"]


async def test_a_call_behind_one_that_waits_for_its_asker_is_a_deadlock() -> None:
    """A read has room beside a read, but it does not overtake the call that waits for that read to end."""
    with anyio.fail_after(WAIT):
        async with tree() as running, anyio.create_task_group() as group:
            others.update({name: running[name] for name in "ABC"})
            group.start_soon(follow, ("sleep.1", "A"))
            with pytest.raises(DeadlockError):
                await follow(("A.read", "sleep.2", "B", "A.read"))


async def test_a_full_group_of_which_one_will_end_is_no_deadlock() -> None:
    """It waits for a place, and whoever has the other place needs nothing of it."""
    with anyio.fail_after(WAIT):
        async with tree() as running, anyio.create_task_group() as group:
            others.update({name: running[name] for name in "ABC"})
            group.start_soon(follow, ("A.pair", "sleep.5"))
            assert await follow(("A.pair", "sleep.1", "B", "A.pair")) == "done"


async def test_a_full_group_of_which_all_wait_for_it_is_a_deadlock() -> None:
    """Both have a place of the group, and both ask for a third one by way of another actor."""
    found: list[str] = []

    async def go(*way: str) -> None:
        try:
            found.append(await follow(way))
        except DeadlockError:
            found.append("deadlock")

    with anyio.fail_after(WAIT):
        async with tree() as running:
            others.update({name: running[name] for name in "ABC"})
            async with anyio.create_task_group() as group:
                group.start_soon(go, "A.pair", "sleep.1", "B", "A.pair")
                group.start_soon(go, "A.pair", "sleep.2", "C", "A.pair")
    assert sorted(found) == ["deadlock", "done"]


async def test_what_a_handler_has_left_behind_asks_for_itself() -> None:
    """Its handler has ended, so nobody waits for it: it may ask whoever asked that handler."""
    with anyio.fail_after(WAIT):
        async with tree() as running, anyio.create_task_group() as group:
            others.update({name: running[name] for name in "ABC"}, group=group)
            assert await follow(("A", "B.leave_behind", "sleep.1", "A")) == "left"
            await others["A"].call("sleep.1")
            assert await others["A"].call("B.leave_behind", "A") == "left"
            await anyio.sleep(5)
    assert others["came_to"] == "done"
