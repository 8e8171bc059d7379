"""A draining owner hands over idle keys, and asks from other processes wait for the next owner."""

from typing import Any

import anyio
import pytest

from callboard import ActorDiedError, ActorGoneError, Drained, keyed
from tests.helpers import until

from ._memory import MemoryFleet, MemoryServer
from ._world import Counter, Fleets, done_in, two

pytestmark = pytest.mark.real_clock


async def test_asks_of_other_processes_wait_while_their_owner_drains(fleets: Fleets, log: str) -> None:
    """The next owner answers these asks in their order, after the running handler has ended."""
    async with two(fleets, log) as (here, there), anyio.create_task_group() as tasks:
        await here["k"].up()
        tasks.start_soon(here["k"].hold, "first", 0.5)
        await until(lambda: "first began" in done_in(log))
        drains = list[Drained]()

        async def drain() -> None:
            drains.append(await here.drain(20.0))

        tasks.start_soon(drain)
        await anyio.wait_all_tasks_blocked()
        asked = list[str]()

        async def ask(what: str) -> None:
            asked.append(what)
            await there["k"].note(what)

        for number in range(5):
            tasks.start_soon(ask, f"{number}")
        await until(lambda: len(done_in(log)) == 7)
        assert (await there["k"].up())[0] == 2
        assert (here.statistics().alive, there.statistics().alive) == (0, 1)

    assert done_in(log) == ["first began", "first ended", *asked]
    assert [str(one) for one in drains] == ["1 finished, 0 ended"]


async def test_idle_keys_are_handed_over_while_others_drain(fleets: Fleets, log: str) -> None:
    """Idle keys move with their states, without waiting for handlers of other keys."""
    async with two(fleets, log) as (here, there), anyio.create_task_group() as tasks:
        await here["idle"].up()
        tasks.start_soon(_ignoring, here["busy"], "it")
        await until(lambda: "it began" in done_in(log))
        tasks.start_soon(here.drain, 20.0)
        await until(lambda: here.statistics().alive == 1)
        assert (await there["idle"].up())[0] == 2
        assert done_in(log) == ["it began"]
        tasks.cancel_scope.cancel()


async def test_an_ask_that_a_drain_did_not_get_to_is_answered_by_the_next_owner(fleets: Fleets, log: str) -> None:
    """The ask was still in the mailbox when the timeout of the drain expired, so it had not begun."""
    drained = Drained()
    async with two(fleets, log) as (here, there), anyio.create_task_group() as tasks:
        await here["k"].up()
        tasks.start_soon(_ignoring, here["k"], "first")
        await until(lambda: "first began" in done_in(log))
        tasks.start_soon(there["k"].note, "second")
        await until(lambda: here.statistics().waiting == 1)
        drained = await here.drain(0.1)
        await until(lambda: "second" in done_in(log))
        assert there.statistics().alive == 1

    assert (drained.ended, len(drained.unknown)) == (1, 1)


async def _ignoring(one: Any, what: str) -> None:
    try:
        await one.hold(what)
    except ActorDiedError:
        pass


async def test_asks_of_the_process_that_drains_are_refused(fleets: Fleets, log: str) -> None:
    """A draining process begins nothing new, but it can still ask actors of other processes."""
    async with two(fleets, log) as (here, there):
        await there["elsewhere"].up()
        await here["k"].up()
        await here.drain(1.0)
        with pytest.raises(ActorGoneError, match="is being drained"):
            await here["k"].up()
        assert (await here["elsewhere"].up())[0] == 2
        assert (await there["k"].up())[0] == 2


async def test_a_key_is_handed_over_after_the_replies_of_its_owner(log: str) -> None:
    """An asker that finds another owner before the reply would count an answered ask as unknown."""
    server = MemoryServer()
    slow, other = (MemoryFleet(server, lease=1.0) for _ in range(2))
    found = list[Any]()
    async with keyed(Counter(log), fleet=slow) as here, keyed(Counter(log), fleet=other) as there:
        with anyio.fail_after(30):
            await here["k"].up()
            slow.slow_letters = 0.5  # the other process looks for the owner twice meanwhile, with each heartbeat
            async with anyio.create_task_group() as tasks:

                async def ask() -> None:
                    found.append(await there["k"].hold("it", 0.1))

                tasks.start_soon(ask)
                await until(lambda: "it began" in done_in(log))
                await here.drain(5.0)
            slow.slow_letters = 0.0

    assert found == ["it"]
