"""A draining owner hands over idle keys, and asks from other processes wait for the next owner."""

from typing import Any

import anyio
import pytest

from callboard import ActorDiedError, ActorGoneError, Drained, keyed
from tests.helpers import until

from ._memory import MemoryFleet, MemoryServer
from ._world import Counter, Fleets, actions_in, two_processes

pytestmark = pytest.mark.real_clock


async def test_asks_of_other_processes_wait_while_their_owner_drains(fleets: Fleets, log: str) -> None:
    """The next owner answers these asks in their order, after the running handler has ended."""
    async with two_processes(fleets, log) as (first_actors, second_actors), anyio.create_task_group() as tasks:
        await first_actors["k"].up()
        tasks.start_soon(first_actors["k"].hold, "first", 0.5)
        await until(lambda: "first began" in actions_in(log))
        drains = list[Drained]()

        async def drain() -> None:
            drains.append(await first_actors.drain(20.0))

        tasks.start_soon(drain)
        await anyio.wait_all_tasks_blocked()
        texts = list[str]()

        async def ask(text: str) -> None:
            texts.append(text)
            await second_actors["k"].note(text)

        for number in range(5):
            tasks.start_soon(ask, f"{number}")
        await until(lambda: len(actions_in(log)) == 7)
        assert (await second_actors["k"].up())[0] == 2
        assert (first_actors.statistics().alive, second_actors.statistics().alive) == (0, 1)

    assert actions_in(log) == ["first began", "first ended", *texts]
    assert [str(report) for report in drains] == ["1 finished, 0 ended"]


async def test_idle_keys_are_handed_over_while_others_drain(fleets: Fleets, log: str) -> None:
    """Idle keys move with their states, without waiting for handlers of other keys."""
    async with two_processes(fleets, log) as (first_actors, second_actors), anyio.create_task_group() as tasks:
        await first_actors["idle"].up()
        tasks.start_soon(_ignoring, first_actors["busy"], "it")
        await until(lambda: "it began" in actions_in(log))
        tasks.start_soon(first_actors.drain, 20.0)
        await until(lambda: first_actors.statistics().alive == 1)
        assert (await second_actors["idle"].up())[0] == 2
        assert actions_in(log) == ["it began"]
        tasks.cancel_scope.cancel()


async def test_an_ask_that_a_drain_did_not_get_to_is_answered_by_the_next_owner(fleets: Fleets, log: str) -> None:
    """The ask was still in the mailbox when the timeout of the drain expired, so it had not begun."""
    drained = Drained()
    async with two_processes(fleets, log) as (first_actors, second_actors), anyio.create_task_group() as tasks:
        await first_actors["k"].up()
        tasks.start_soon(_ignoring, first_actors["k"], "first")
        await until(lambda: "first began" in actions_in(log))
        tasks.start_soon(second_actors["k"].note, "second")
        await until(lambda: first_actors.statistics().waiting == 1)
        drained = await first_actors.drain(0.1)
        await until(lambda: "second" in actions_in(log))
        assert second_actors.statistics().alive == 1

    assert (drained.ended, len(drained.unknown)) == (1, 1)


async def _ignoring(counter: Any, text: str) -> None:
    try:
        await counter.hold(text)
    except ActorDiedError:
        pass


async def test_asks_of_the_process_that_drains_are_refused(fleets: Fleets, log: str) -> None:
    """A draining process begins nothing new, but it can still ask actors of other processes."""
    async with two_processes(fleets, log) as (first_actors, second_actors):
        await second_actors["elsewhere"].up()
        await first_actors["k"].up()
        await first_actors.drain(1.0)
        with pytest.raises(ActorGoneError, match="is being drained"):
            await first_actors["k"].up()
        assert (await first_actors["elsewhere"].up())[0] == 2
        assert (await second_actors["k"].up())[0] == 2


async def test_a_key_is_handed_over_after_the_replies_of_its_owner(log: str) -> None:
    """An asker that finds another owner before the reply would count an answered ask as unknown."""
    server = MemoryServer()
    slow, other_fleet = (MemoryFleet(server, lease=1.0) for _ in range(2))
    replies = list[Any]()
    async with keyed(Counter(log), fleet=slow) as first_actors, keyed(Counter(log), fleet=other_fleet) as second_actors:
        with anyio.fail_after(30):
            await first_actors["k"].up()
            slow.slow_letters = 0.5  # the other process looks for the owner twice meanwhile, with each heartbeat
            async with anyio.create_task_group() as tasks:

                async def ask() -> None:
                    replies.append(await second_actors["k"].hold("it", 0.1))

                tasks.start_soon(ask)
                await until(lambda: "it began" in actions_in(log))
                await first_actors.drain(5.0)
            slow.slow_letters = 0.0

    assert replies == ["it"]
