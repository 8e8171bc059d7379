"""Servers that are away, crash, stand still or are misconfigured: calls go on or are refused, and never hang."""

import time
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from callboard import StorageError, ToolNode
from callboard.middleware import Cache, CircuitBreaker
from callboard.testing import tool_call
from callboard_actors.postgres import PostgresDocuments
from callboard_actors.redis import RedisDocuments
from tests.agent._postgres import Server
from tests.helpers import ended, make
from tests.server.limits._redis import RedisServer, program
from tests.server.limits.test_server_away import NOWHERE, crash

from ._world import LEASE, WAIT, until

pytestmark = [pytest.mark.real_clock, pytest.mark.exhaustive]

Documents = RedisDocuments | PostgresDocuments


class Process:
    """Tool behind a cache and a circuit breaker, which stands for one process."""

    def __init__(self, store: Documents, **options: Any) -> None:
        self.runs = 0
        self.fails = False
        self.store = store
        self.cache = Cache({"work"}, shared=store, key=lambda request: request.tool_call["args"].get("n", 0))
        self.breaker = CircuitBreaker(shared=store, **{"minimum": 2, "open_for": 30.0, "on": OSError, **options})
        self.node = ToolNode([make(self.work)], middleware=[self.cache, self.breaker], handle_tool_errors=True)

    async def work(self, n: int = 0) -> str:
        self.runs += 1
        if self.fails:
            raise OSError("down")
        return f"run {self.runs}"

    async def call(self, n: int = 0) -> Any:
        with anyio.fail_after(WAIT):
            [message] = (await self.node.ainvoke([tool_call("work", "1", n=n)]))["messages"]
        return ended(message) or message.content

    async def open(self) -> None:
        self.fails = True
        for n in range(2):
            await self.call(100 + n)
        await until(lambda: self.breaker.state("work") == "open")
        self.fails = False


def nowhere(kind: str, **options: Any) -> Documents:
    return (RedisDocuments if kind == "redis" else PostgresDocuments)(NOWHERE[kind], **options)


@pytest.mark.parametrize("kind", NOWHERE)
async def test_calls_go_on_without_a_server_and_the_first_one_alone_waits(kind: str) -> None:
    """By default calls go on, because a breaker or a cache must not stop them."""
    process = Process(nowhere(kind, patience=0.3))
    since = time.monotonic()
    assert await process.call() == "run 1"
    first = time.monotonic() - since
    await anyio.sleep(0.5)
    since = time.monotonic()
    assert [await process.call() for _ in range(5)] == [f"run {n}" for n in range(2, 7)]
    process.store.close()

    assert first < 3
    assert time.monotonic() - since < 0.5


@pytest.mark.parametrize("kind", NOWHERE)
async def test_calls_are_refused_by_choice(kind: str) -> None:
    """The message tells the model the reason but no password."""
    process = Process(nowhere(kind, patience=0.1, away="refuse"))
    assert await process.call() == "rejected"
    process.store.close()

    assert process.runs == 0


@pytest.fixture
def pair(own_redis: RedisServer) -> Iterator[tuple[Process, Process]]:
    """Return two processes at a Redis that the test may kill."""
    stores = [RedisDocuments(own_redis.url, lease=LEASE, patience=0.3) for _ in range(2)]
    yield Process(stores[0]), Process(stores[1])
    for store in stores:
        store.close()


async def test_a_server_that_stands_still_keeps_nobody_for_long(
    own_redis: RedisServer, pair: tuple[Process, Process]
) -> None:
    """Calls wait until the outage is known, at most for their patience; later calls do not wait."""
    one, other = pair
    assert await one.call() == "run 1"
    own_redis.pause(on=True)
    since = time.monotonic()
    found = await one.call()
    took = time.monotonic() - since
    own_redis.pause(on=False)

    assert found == "run 2"
    assert took < 2
    await anyio.sleep(0.3)
    await one.call(5)
    await anyio.sleep(0.1)
    assert await other.call(5) == "run 3"


async def test_what_is_forgotten_while_the_server_is_away_is_forgotten_when_it_is_back(
    own_redis: RedisServer, pair: tuple[Process, Process]
) -> None:
    """A result that is known to be wrong must not come back after an outage."""
    one, other = pair
    await one.call(1)
    await one.call(2)
    await anyio.sleep(0.1)
    assert await other.call(1) == "run 1"

    own_redis.pause(on=True)
    one.cache.invalidate("work", key=1)
    one.cache.invalidate("work", key=2)
    await anyio.sleep(0.5)
    own_redis.pause(on=False)
    await anyio.sleep(3)

    assert await other.call(1) == "run 1"  # its own result first
    assert other.runs == 1
    assert await one.call(2) == "run 3"


async def test_a_killed_redis_comes_back_with_circuits_as_they_were(
    own_redis: RedisServer, pair: tuple[Process, Process]
) -> None:
    """A process that knows an open circuit restores it; lost results are computed again."""
    one, other = pair
    assert await one.call(1) == "run 1"
    await one.open()
    await until(lambda: other.breaker.state("work") == "open")

    own_redis.kill()
    assert await one.call(7) == "unavailable"
    own_redis.start()
    new = Process(RedisDocuments(own_redis.url, patience=5.0))
    await anyio.sleep(1.0)
    found = await new.call(7)
    new.store.close()

    assert found == "unavailable"
    assert new.runs == 0


async def test_a_killed_redis_keeps_nobody_who_waits_for_a_result(
    own_redis: RedisServer, pair: tuple[Process, Process]
) -> None:
    """The result of the leader is lost, so waiting calls run by themselves."""
    gate = anyio.Event()
    one, other = pair

    async def work(n: int = 0) -> str:
        await gate.wait()
        return "done"

    nodes = [ToolNode([make(work)], middleware=[process.cache], handle_tool_errors=True) for process in pair]
    found: list[str] = []

    async def call(node: ToolNode) -> None:
        [message] = (await node.ainvoke([tool_call("work", "1")]))["messages"]
        found.append(str(message.content))

    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            for node in nodes:
                group.start_soon(call, node)
            await anyio.sleep(0.3)
            own_redis.kill()
            await anyio.sleep(0.3)
            own_redis.start()
            await anyio.sleep(0.3)
            gate.set()

    assert found == ["done"] * 2
    assert one.runs == other.runs == 0


async def test_a_crashed_postgres_comes_back_with_circuits_as_they_were(own_postgres: Server) -> None:
    """PostgreSQL empties its unlogged table after a crash."""
    store = PostgresDocuments(own_postgres.url(), lease=LEASE, patience=0.3)
    one = Process(store)
    await one.call(1)
    await one.open()
    crash(own_postgres)
    assert await one.call(7) == "unavailable"
    own_postgres.start()
    new = Process(PostgresDocuments(own_postgres.url(), patience=5.0))
    await anyio.sleep(1.5)
    found = await new.call(7)
    new.store.close()
    store.close()

    assert found == "unavailable"


async def test_a_wrong_password_is_said_at_once() -> None:
    """A wrong password is an error of the call; going on without the server would hide it."""
    if (found := program()) is None:
        pytest.skip("Redis is not installed: apt-get install redis-server")
    server = RedisServer(found, "--requirepass", "secret")
    server.start()
    store = RedisDocuments(server.url, patience=10.0)

    async def work() -> str:
        return "done"

    node = ToolNode([make(work)], middleware=[CircuitBreaker(shared=store)])
    try:
        with anyio.fail_after(WAIT), pytest.raises(StorageError, match="user and a password"):
            await node.ainvoke([tool_call("work", "1")])
    finally:
        store.close()
        server.remove()


async def test_a_database_that_is_not_there_is_said_at_once(postgres_url: str) -> None:
    """A missing database is a permanent error, like a wrong password."""
    store = PostgresDocuments(postgres_url.rpartition("/")[0] + "/nobody_made_it", patience=10.0)
    process = Process(store)
    try:
        with anyio.fail_after(WAIT):
            node = ToolNode([make(process.work)], middleware=[process.cache])
            with pytest.raises(StorageError, match="nobody_made_it") as caught:
                await node.ainvoke([tool_call("work", "1")])
    finally:
        store.close()

    assert "p%3Ass" not in str(caught.value)
