"""Servers that are away, crash, stand still or are misconfigured: calls follow the chosen policy, never silently."""

import signal
import time
from typing import Any

import anyio
import pytest

from callboard import CallPolicy, Limit, Rate, StorageError, ToolNode
from callboard_actors._server.limits._permit import Phase
from callboard_actors.postgres import PostgresLimits
from callboard_actors.redis import RedisLimits
from tests.agent._postgres import Server
from tests.helpers import ask, ended, make

from ._redis import RedisServer, program
from ._world import LEASE, Asking, Stores, until

pytestmark = [pytest.mark.real_clock, pytest.mark.exhaustive]

NOWHERE = {
    "redis": "redis://127.0.0.1:1/0",
    "postgres": "postgresql://clerk@127.0.0.1:1/limits",
}


def nowhere(kind: str, **options: Any) -> RedisLimits | PostgresLimits:
    return (RedisLimits if kind == "redis" else PostgresLimits)(NOWHERE[kind], **options)


@pytest.mark.parametrize("kind", NOWHERE)
async def test_a_call_waits_for_a_server_that_is_away_as_long_as_its_budget_allows(kind: str) -> None:
    """By default calls wait, because most outages are short."""

    async def work() -> str:
        return "done"

    limits = nowhere(kind)
    node = ToolNode([make(work)], policies={"work": CallPolicy(limit=Limit(concurrency=1, shared=limits), budget=0.3)})
    with anyio.fail_after(20):
        [message] = await node.ainvoke(ask("work"))
    limits.close()

    assert ended(message) == "deadline"


@pytest.mark.parametrize("kind", NOWHERE)
async def test_a_call_is_refused_by_choice_when_the_server_has_been_away_for_a_while(kind: str) -> None:
    """By option calls are refused; the message tells the model the reason but no password."""

    async def work() -> str:
        return "done"

    limits = nowhere(kind, away="refuse", patience=0.1)
    node = ToolNode([make(work)], policies={"work": CallPolicy(limit=Limit(concurrency=1, shared=limits))})
    with anyio.fail_after(20):
        [message] = await node.ainvoke(ask("work"))
    limits.close()

    assert ended(message) == "rejected"
    assert "127.0.0.1:1" in message.content
    assert "cannot be reached" in message.content


@pytest.mark.parametrize("kind", NOWHERE)
async def test_a_process_goes_on_with_its_share_by_choice(kind: str) -> None:
    """By option each process uses its share of the limit, rounded down so that the sum stays within the limit."""
    limits = nowhere(kind, away="local", patience=0.0, processes=3)
    asking = Asking(Limit(concurrency=7))
    for number in range(4):
        await _ask_at_once(asking, limits, f"{number}")
    await asking.until_answered("0", "1")
    await anyio.sleep(0.2)
    assert asking.answered == ["0", "1"]

    asking.leave("0")
    await asking.until_answered("2")
    assert asking.answered == ["0", "1", "2"]
    limits.close()

    assert asking.stays["2"].token is None  # no server has granted a permit


async def test_a_share_of_a_rate_is_a_rate() -> None:
    """A third of six starts per window is two starts per window."""
    limits = nowhere("redis", away="local", patience=0.0, processes=3)
    asking = Asking(Limit(rate=Rate(6, per=0.4)))
    since = time.monotonic()
    for number in range(5):
        await _ask_at_once(asking, limits, f"{number}")
    await asking.until_answered(*map(str, range(5)))
    limits.close()

    assert asking.answered == [*map(str, range(5))]
    assert 0.8 <= time.monotonic() - since < 5


async def test_a_limit_that_has_no_share_for_each_process_is_refused_when_the_node_is_built() -> None:
    """Rounding up would let the sum of all shares exceed the limit."""
    limits = nowhere("redis", away="local", processes=4)

    async def work() -> str:
        return "done"

    with pytest.raises(ValueError, match="cannot be shared out among processes=4: its concurrency has 2"):
        ToolNode([make(work)], limit=Limit(concurrency=2, shared=limits))


async def test_who_waits_is_served_when_the_server_is_there_again(own_redis: RedisServer, own_stores: Stores) -> None:
    """Positions in the queue and held permits survive, although the server has lost its memory."""
    one, other = own_stores(), own_stores()
    asking = Asking(Limit(concurrency=1))
    await asking.ask(one, "holder")
    await asking.until_answered("holder")
    for number in range(4):
        await asking.ask((one, other)[number % 2], f"{number}")
    own_redis.kill()
    await anyio.sleep(0.1)
    own_redis.start()
    await anyio.sleep(3 * LEASE + 1)
    assert asking.answered == ["holder"]

    for who in ("holder", "0", "1", "2"):
        await asking.until_answered(who)
        asking.leave(who)
    await asking.until_answered("3")

    assert asking.answered == ["holder", "0", "1", "2", "3"]


async def test_a_crashed_postgres_is_told_again_before_it_gives_anything_away(own_postgres: Server) -> None:
    """PostgreSQL empties its unlogged tables after a crash, which shows the crash to the processes."""
    one, other = (PostgresLimits(own_postgres.url(), lease=LEASE) for _ in range(2))
    asking = Asking(Limit(concurrency=1))
    await asking.ask(one, "holder")
    for number in range(3):
        await asking.ask((one, other)[number % 2], f"{number}")
    crash(own_postgres)
    own_postgres.start()
    await anyio.sleep(4 * LEASE)
    assert asking.answered == ["holder"]

    for who in ("holder", "0", "1"):
        await asking.until_answered(who)
        asking.leave(who)
    await asking.until_answered("2")
    for store in (one, other):
        store.close()

    assert asking.answered == ["holder", "0", "1", "2"]


def crash(server: Server) -> None:
    """Crash a server, so that it recovers at its next start."""
    process = server._process
    assert process is not None
    process.send_signal(signal.SIGQUIT)
    process.wait(timeout=30)
    server._process = None


async def test_a_server_that_stood_still_takes_no_places_away(own_redis: RedisServer, own_stores: Stores) -> None:
    """The processes kept renewing, but the server did not read; no permit may expire because of that."""
    one, other = own_stores(), own_stores()
    asking = Asking(Limit(concurrency=2))
    await asking.ask(one, "a")
    await asking.ask(other, "b")
    await asking.until_answered("a", "b")
    for who in ("a", "b"):
        asking.stays[who].begin()  # a permit whose call has not started is dropped when it may be lost
    await asking.ask(one, "c")
    await asking.ask(other, "d")

    own_redis.pause(on=True)
    await anyio.sleep(2 * LEASE)
    own_redis.pause(on=False)
    await anyio.sleep(3 * LEASE)

    assert sorted(asking.answered) == ["a", "b"]
    asking.leave("b")
    await until(lambda: len(asking.answered) == 3)


async def test_places_that_are_left_while_the_server_is_away_are_free_when_it_is_back(
    own_redis: RedisServer, own_stores: Stores
) -> None:
    """Releases that could not be sent are sent after the outage."""
    one, other = own_stores(), own_stores()
    asking = Asking(Limit(concurrency=1))
    await asking.ask(one, "holder")
    await asking.until_answered("holder")
    await asking.ask(other, "next")
    own_redis.kill()
    asking.leave("holder")
    own_redis.start()

    await asking.until_answered("next")


async def test_calls_that_wait_when_their_store_is_closed_are_told(stores: Stores) -> None:
    """Calls that wait at a closed store would never get a permit."""
    store = stores()
    asking = Asking(Limit(concurrency=1))
    await asking.ask(store, "holder")
    await asking.until_answered("holder")
    stay = await asking.ask(store, "waits")

    store.close()
    await asking.until_answered("waits")

    assert isinstance(stay.failure, StorageError)
    assert "closed while calls waited" in str(stay.failure)


async def test_a_wrong_password_is_said_at_once(tmp_path: Any) -> None:
    """A wrong password will not become right, so the error comes at once."""
    if (found := program()) is None:
        pytest.skip("Redis is not installed: apt-get install redis-server")
    server = RedisServer(found, "--requirepass", "secret")
    server.start()
    limits = RedisLimits(server.url)
    try:
        asking = Asking(Limit(concurrency=1))
        stay = await asking.ask(limits, "who")
    finally:
        limits.close()
        server.remove()

    assert isinstance(stay.failure, StorageError)
    assert "user and a password" in str(stay.failure)


async def test_a_database_that_is_not_there_is_said_at_once(postgres_url: str) -> None:
    """A missing database is a permanent error, like a wrong password."""
    limits = PostgresLimits(postgres_url.rpartition("/")[0] + "/nobody_made_it")
    stay = await Asking(Limit(concurrency=1)).ask(limits, "who")
    limits.close()

    assert isinstance(stay.failure, StorageError)
    assert "nobody_made_it" in str(stay.failure)
    assert "p%3Ass" not in str(stay.failure)


async def _ask_at_once(asking: Asking, store: Any, who: str) -> None:
    """Request a permit; wait only until the store has received the request."""
    from callboard.extend import PermitRequest

    wanted = PermitRequest(limit=asking.limit, name="tool:t", title="the queue of tool 't'")
    stay = asking.stays[who] = store.ask(wanted, lambda: asking.answered.append(who))
    await until(lambda: stay.id != "" and stay.phase is not Phase.GONE)
