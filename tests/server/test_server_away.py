"""Servers that are away, crash, stand still or are misconfigured: calls follow the chosen policy, and never hang."""

from typing import Any

import anyio
import pytest

from callboard import CallPolicy, Limit, StorageError, ToolNode
from callboard.extend import PermitRequest
from tests.helpers import ask, ending_of, make, until

from ._servers import NOWHERE, RedisServer, crash, store_at
from .limits._world import LEASE, Asking, Stores

pytestmark = [pytest.mark.real_clock, pytest.mark.exhaustive]


@pytest.fixture(params=NOWHERE)
def nowhere(request: pytest.FixtureRequest) -> str:
    """Return a URL at which no server answers."""
    return NOWHERE[request.param]


async def work() -> str:
    return "done"


def node_with_limit(store: Any, **policy: Any) -> ToolNode:
    limit = Limit(concurrency=1, shared=store)
    return ToolNode([make(work)], policies={"work": CallPolicy(limit=limit, **policy)})


async def test_a_call_waits_for_a_server_that_is_away_as_long_as_its_budget_allows(nowhere: str) -> None:
    """By default calls wait, because most outages are short."""
    limits = store_at(nowhere, "limits")
    with anyio.fail_after(20):
        [message] = await node_with_limit(limits, budget=0.3).ainvoke(ask("work"))
    limits.close()

    assert ending_of(message) == "deadline"


async def test_a_call_is_refused_by_choice_when_the_server_has_been_away_for_a_while(nowhere: str) -> None:
    """By option calls are refused; the message tells the model the reason but no password."""
    limits = store_at(nowhere, "limits", away="refuse", patience=0.1)
    with anyio.fail_after(20):
        [message] = await node_with_limit(limits).ainvoke(ask("work"))
    limits.close()

    assert ending_of(message) == "rejected"
    assert "127.0.0.1:1" in message.content
    assert "cannot be reached" in message.content


@pytest.mark.parametrize("kind", ["redis", "postgres"])
async def test_who_waits_is_served_when_the_server_is_there_again(kind: str, request: pytest.FixtureRequest) -> None:
    """Positions in the queue and held permits survive, although the server has lost its memory.

    PostgreSQL empties its unlogged tables after a crash. The server gives nothing away before it is told of permits.
    """
    server, url = _own(kind, request)
    first_store, second_store = (store_at(url, "limits", lease=LEASE) for _ in range(2))
    asking = Asking(Limit(concurrency=1))
    await asking.ask(first_store, "holder")
    await asking.until_answered("holder")
    asking.permits["holder"].begin()  # the server may be away for longer than the lease
    for number in range(4):
        await asking.ask((first_store, second_store)[number % 2], f"{number}")
    _kill(server)
    await anyio.sleep(0.1)
    server.start()
    await anyio.sleep(3 * LEASE + 1)
    assert asking.answered == ["holder"]

    for name in ("holder", "0", "1", "2"):
        await asking.until_answered(name)
        asking.leave(name)
    await asking.until_answered("3")
    for store in (first_store, second_store):
        store.close()

    assert asking.answered == ["holder", "0", "1", "2", "3"]


def _own(kind: str, request: pytest.FixtureRequest) -> tuple[Any, str]:
    """Return a server that the test may kill, and its URL."""
    server = request.getfixturevalue(f"own_{kind}")
    return server, server.url if kind == "redis" else server.url()


def _kill(server: Any) -> None:
    if isinstance(server, RedisServer):
        server.kill()
    else:
        crash(server)


async def test_a_server_that_stood_still_takes_no_places_away(own_redis: RedisServer, own_stores: Stores) -> None:
    """The processes kept renewing, but the server did not read; no permit may expire because of that."""
    first_store, second_store = own_stores(), own_stores()
    asking = Asking(Limit(concurrency=2))
    await asking.ask(first_store, "a")
    await asking.ask(second_store, "b")
    await asking.until_answered("a", "b")
    for name in ("a", "b"):
        asking.permits[name].begin()  # a permit whose call has not started is dropped when it may be lost
    await asking.ask(first_store, "c")
    await asking.ask(second_store, "d")

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
    first_store, second_store = own_stores(), own_stores()
    asking = Asking(Limit(concurrency=1))
    await asking.ask(first_store, "holder")
    await asking.until_answered("holder")
    await asking.ask(second_store, "next")
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
    permit = await asking.ask(store, "waits")

    store.close()
    await asking.until_answered("waits")

    assert isinstance(permit.failure, StorageError)
    assert "closed while calls waited" in str(permit.failure)


async def test_whoever_asks_while_a_store_is_closed_has_an_answer(nowhere: str) -> None:
    """The thread of the store may end at the moment of the request, which must not wait for ever."""
    store = store_at(nowhere, "limits")
    answered: list[str] = []
    request = PermitRequest(limit=Limit(concurrency=1), name="tool:t", title="the queue of tool 't'")
    store.ask(request, lambda: None).leave()
    client = store._current_client
    store.close()

    permit = client.request_permit("tool:t", request, lambda: answered.append("late"))
    permit.leave()

    assert answered == ["late"]
    assert "the store was closed" in str(permit.failure)


async def test_a_wrong_password_is_said_at_once(locked_redis: RedisServer) -> None:
    """A wrong password will not become right; going on without the server would hide it."""
    store = store_at(locked_redis.url, "limits", patience=10.0)
    with anyio.fail_after(30), pytest.raises(StorageError, match="user and a password"):
        await node_with_limit(store).ainvoke(ask("work"))
    store.close()


async def test_a_database_that_is_not_there_is_said_at_once(postgres_url: str) -> None:
    """A missing database is a permanent error, like a wrong password."""
    store = store_at(postgres_url.rpartition("/")[0] + "/nobody_made_it", "limits", patience=10.0)
    with anyio.fail_after(30), pytest.raises(StorageError, match="nobody_made_it") as caught:
        await node_with_limit(store).ainvoke(ask("work"))
    assert "p%3Ass" not in str(caught.value)
    store.close()
