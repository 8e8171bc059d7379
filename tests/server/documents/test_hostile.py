"""Another writer to the database can neither run code here nor keep a call from ending."""

import json
import math
import pickle
import time
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import psycopg
import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard import ToolNode
from callboard.extend import Found
from callboard.middleware import Cache, CircuitBreaker
from callboard.middleware._breaker import Rules, SharedCircuits
from callboard.middleware._cache._stored_results import message_of, result_of
from callboard.testing import tool_call
from callboard_actors.redis import RedisDocuments
from tests.helpers import make
from tests.server._servers import Place

from ._memory import MemoryDocuments, MemoryServer
from ._world import WAIT


class Runs:
    """Class that records when it is unpickled or called."""

    happened: bool = False

    def __reduce__(self) -> Any:
        return _happen, ()


def _happen() -> None:
    Runs.happened = True


RESULT: dict[str, Any] = {"marks": [], "at": 0, "message": None}
CONSTRUCTOR = {"lc": 1, "type": "constructor", "id": ["tests", "_happen"], "kwargs": {}}
HOSTILE = {
    "nothing": b"",
    "garbage": b"\x00\xff{",
    "other": b'{"a": 1}',
    "list": b"[1, 2]",
    "deep": b"[" * 100_000,
    "deep object": b'{"marks":' * 50_000,
    "large number": b'{"at": 1' + b"0" * 5000 + b"}",
    "pickle": pickle.dumps(Runs(), protocol=0),
    "huge": b'"' + b"x" * 3_000_000 + b'"',
    "no message": json.dumps({**RESULT, "message": '{"a": 1}'}).encode(),
    "constructor": json.dumps({**RESULT, "message": json.dumps(CONSTRUCTOR)}).encode(),
    "artifact": json.dumps({**RESULT, "message": json.dumps({"content": "x", "artifact": CONSTRUCTOR})}).encode(),
    "not a number": b'{"marks": [], "at": NaN, "message": null}',
    "open": b"open 1",
}


def deface_redis(url: str, prefix: str, text: bytes) -> None:
    with redis.Redis.from_url(url) as client:
        for key in client.scan_iter(f"{prefix}:*"):
            if client.type(key) == b"hash" and client.hget(key, "body"):
                client.hset(key, "body", text)


def deface_postgres(url: str, prefix: str, text: bytes) -> None:
    said = text.decode(errors="replace").replace("\0", "")
    with psycopg.connect(url, autocommit=True) as connection:
        where = "WHERE shelf LIKE %s AND body IS NOT NULL"
        connection.execute(f"UPDATE callboard_documents SET body = %s {where}", [said, f"{prefix}:%"])


class Database:
    """Server to which another program writes."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.store = place.store("documents", patience=10.0)

    def deface(self, text: bytes) -> None:
        deface = deface_postgres if self._place.url.startswith("postgresql:") else deface_redis
        deface(self._place.url, self._place.prefix, text)


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    """Return a database of the tests."""
    place = Place(url)
    yield Database(place)
    place.close()


@pytest.mark.real_clock
@pytest.mark.exhaustive
async def test_what_others_have_written_over_a_result_is_a_miss(database: Database) -> None:
    """The call runs, and its result replaces the foreign text."""
    runs: list[int] = []

    async def work() -> str:
        runs.append(1)
        return "done"

    node = ToolNode([make(work)], middleware=[Cache({"work"}, shared=database.store, key=lambda _: 1)])

    async def call() -> str:
        with anyio.fail_after(WAIT):
            result = await node.ainvoke([tool_call("work", "1")])
        await anyio.sleep(0.02)
        return str(result["messages"][0].content)

    await call()
    for number, (name, text) in enumerate(HOSTILE.items()):
        database.deface(text)
        assert (name, await call()) == (name, "done")
        assert (name, await call()) == (name, "done")
        assert (name, len(runs)) == (name, number + 2)

    assert not Runs.happened


@pytest.mark.real_clock
@pytest.mark.exhaustive
async def test_keys_of_redis_that_are_something_else_are_overwritten(redis_server: Any) -> None:
    """The foreign keys have names that are reserved for documents."""
    prefix = f"hostile-keys-{time.monotonic_ns()}"
    others: list[Callable[[Any, Any], object]] = [
        lambda client, key: client.set(key, "x"),
        lambda client, key: client.rpush(key, "x"),
        lambda client, key: client.hset(key, "version", "9" * 15),
    ]
    store = RedisDocuments(redis_server.url, prefix=prefix, patience=10.0)

    async def work() -> str:
        return "done"

    cache = Cache({"work"}, shared=store, key=lambda _: 1)
    node = ToolNode([make(work)], middleware=[cache, CircuitBreaker(shared=store)])
    try:
        with anyio.fail_after(WAIT), redis.Redis.from_url(redis_server.url) as client:
            for _ in range(3):
                result = await node.ainvoke([tool_call("work", "1")])
                assert result["messages"][0].content == "done"
                await anyio.sleep(0.02)
                for number, key in enumerate(sorted(client.scan_iter(f"{prefix}:*"))):
                    client.delete(key)
                    others[number % 3](client, key)
            assert (await node.ainvoke([tool_call("work", "1")]))["messages"][0].content == "done"
    finally:
        store.close()


def found(text: str, left: float = math.inf) -> Found:
    return Found(text=text, left=left, marks=(1, 2), now=1000.0)


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
FIELDS = st.dictionaries(st.sampled_from(("marks", "at", "message", "content")), ANY_JSON)


@given(
    text=st.just("open 1") | st.text() | ANY_JSON.map(json.dumps) | FIELDS.map(json.dumps),
    left=st.floats(0, 1e9) | st.just(math.inf),
)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_any_text_is_a_document_or_none(text: str, left: float) -> None:
    """Reading never raises, and no text opens a circuit for longer than the rules allow."""
    rules = Rules(ratio=0.5, minimum=2, window=10, open_for=7, probes=1)
    circuits = SharedCircuits(rules, MemoryDocuments(MemoryServer()), None)

    _, seconds = circuits._left(found(text, left))

    assert seconds <= rules.open_for + 1
    assert (text == "open 1" and left <= 8) or seconds == 0
    result_of(found(text))
    message_of(text)
