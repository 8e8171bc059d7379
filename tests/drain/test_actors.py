"""Drained actors answer open asks and begin no others.

Handlers that do not finish are ended after their grace period.
"""

from typing import Any

import anyio
import pytest

from callboard import (
    Actor,
    ActorDiedError,
    ActorGoneError,
    Drained,
    Reply,
    Supervisor,
    UnknownCall,
    child,
    cleanup,
    handler,
    keyed,
)
from tests.helpers import keep

WAIT = 100


class Desk(Actor):
    """Actor whose handlers take a given time and can ask another actor to work."""

    def __init__(self, peer: Any = None) -> None:
        self.done: list[str] = []
        self.cleaned = 0
        self.peer = peer
        self.owed: list[Reply[str]] = []

    @handler
    async def work(self, name: str, seconds: float = 1.0) -> str:
        """Take so long."""
        try:
            await anyio.sleep(seconds)
        except BaseException:
            self.cleaned += 1
            raise
        self.done.append(name)
        return name

    @handler(on_cancel="restart")
    async def fragile(self) -> None:
        """Never end; its state is not to be trusted when it is cancelled."""
        await anyio.sleep_forever()

    @handler
    async def have_done(self, peers: "Peers", name: str) -> str:
        """Ask the other one after a while."""
        await anyio.sleep(2)
        return await peers.tree["other"].work(name)

    @handler(deferred=True)
    async def later(self, reply: Reply[str]) -> None:
        """Keep the reply."""
        self.owed.append(reply)


class Peers:
    """Reference to the supervision tree, for actor classes that are instantiated again."""

    tree: Any


async def _expect_end(request: Any, kind: type[Exception], pattern: str, kinds: list[str]) -> None:
    with pytest.raises(kind, match=pattern):
        await request
    kinds.append(kind.__name__)


async def test_what_actors_were_asked_is_answered_and_nothing_else_begins() -> None:
    results: list[Any] = []
    with anyio.fail_after(WAIT):
        async with Supervisor([Desk()], name="office") as tree, anyio.create_task_group() as group:
            for name in "abc":
                group.start_soon(keep, results, tree[Desk].work(name))
                await anyio.sleep(0.1)
            group.start_soon(keep, results, tree.drain(10))
            await anyio.sleep(0.1)
            with pytest.raises(ActorGoneError, match="Desk is being drained") as gone:
                await tree[Desk].work("late")
    assert gone.value.ended == "unavailable"
    assert {str(result) for result in results} == {"a", "b", "c", str(Drained(finished=3))}


async def test_what_they_ask_each_other_to_answer_still_begins() -> None:
    peers, results = Peers(), list[Any]()
    with anyio.fail_after(WAIT):
        async with Supervisor([Desk(), child(Desk(), name="other")]) as tree, anyio.create_task_group() as group:
            peers.tree = tree
            group.start_soon(keep, results, tree["Desk"].have_done(peers, "done"))
            await anyio.sleep(1)
            report = await tree.drain(10)
    assert results == ["done"]
    assert report == Drained(finished=1)


async def test_what_does_not_finish_is_unknown_and_what_had_not_begun_is_not() -> None:
    kinds: list[str] = []
    with anyio.fail_after(WAIT):
        async with Supervisor([Desk()]) as tree, anyio.create_task_group() as group:
            desk = tree[Desk]
            group.start_soon(_expect_end, desk.work("a", 1000.0), ActorDiedError, "Desk was drained", kinds)
            await anyio.sleep(1)
            group.start_soon(_expect_end, desk.work("b"), ActorGoneError, "Desk was drained", kinds)
            await anyio.sleep(1)
            report = await tree.drain(1)
            [unit] = tree._tree.units  # type: ignore[union-attr]
            assert unit.cell.is_idle  # type: ignore[attr-defined]
            assert unit._incarnation.actor.cleaned == 1  # type: ignore[attr-defined]
    assert sorted(kinds) == ["ActorDiedError", "ActorGoneError"]
    assert report == Drained(ended=2, unknown=(UnknownCall(tool="Desk.work"),))


@pytest.mark.parametrize("name", ["fragile", "later"])
async def test_a_handler_that_breaks_its_actor_and_a_reply_that_is_owed_are_ended_too(name: str) -> None:
    kinds: list[str] = []
    with anyio.fail_after(WAIT):
        async with Supervisor([Desk()]) as tree, anyio.create_task_group() as group:
            group.start_soon(
                _expect_end, getattr(tree[Desk], name)(), ActorDiedError, "nobody knows|drained|cancel", kinds
            )
            await anyio.sleep(1)
            report = await tree.drain(0)
    assert kinds == ["ActorDiedError"]
    assert [call.tool for call in report.unknown] == [f"Desk.{name}"]


async def test_a_deferred_handler_that_a_drain_ends_within_its_clean_up_is_unknown() -> None:
    """It returns as usual, and without a reply: its caller must not take `None` for the reply."""

    class Careful(Actor):
        @handler(deferred=True)
        async def later(self, reply: Reply[str]) -> None:
            self.reply = reply
            with cleanup():
                await anyio.sleep(2)

    kinds: list[str] = []
    with anyio.fail_after(WAIT):
        async with Supervisor([Careful()]) as tree, anyio.create_task_group() as group:
            group.start_soon(_expect_end, tree[Careful].later(), ActorDiedError, "Careful was drained", kinds)
            await anyio.sleep(1)
            report = await tree.drain(0)
    assert kinds == ["ActorDiedError"]
    assert [call.tool for call in report.unknown] == ["Careful.later"]


async def test_actors_by_key_are_drained_together_and_none_begins_to_live() -> None:
    results: list[Any] = []
    with anyio.fail_after(WAIT):
        async with keyed(Desk, cap=1) as desks, anyio.create_task_group() as group:
            for key in "ab":
                group.start_soon(keep, results, desks[key].work(key))
                await anyio.sleep(0.1)
            group.start_soon(keep, results, desks.drain(10))
            await anyio.sleep(0.1)
            for key in "az":
                with pytest.raises(ActorGoneError, match="is being drained"):
                    await desks[key].work("late")
    assert {str(result) for result in results} == {"a", "b", str(Drained(finished=2))}


async def test_a_supervisor_that_is_not_running_cannot_be_drained_and_one_that_runs_again_is_not() -> None:
    """A drain ends with the block of the supervisor."""
    tree = Supervisor([Desk()])
    with pytest.raises(RuntimeError, match="is not running"):
        await tree.drain()
    async with tree:
        await tree.drain()
    async with tree:
        assert await tree[Desk].work("a") == "a"
