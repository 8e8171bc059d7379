"""Another writer to the database can neither run code here nor keep a call from ending."""

import json
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
from callboard.middleware._breaker._circuit import Memory, Rules
from callboard.middleware._breaker._fleet_circuits import circuit_of
from callboard.middleware._cache._fleet_results import document_of, message_of
from callboard.testing import tool_call
from callboard_actors.redis import RedisDocuments
from tests.helpers import make
from tests.server._servers import Place

from ._world import WAIT

Deface = Callable[[bytes], None]
"""Function that overwrites every document with a text."""


class Runs:
    """Class that records when it is unpickled or called."""

    happened: bool = False

    def __reduce__(self) -> Any:
        return _happen, ()


def _happen() -> None:
    Runs.happened = True


RESULT: dict[str, Any] = {"kind": "result", "marks": [], "at": 0, "message": None, "only_for": None}
CONSTRUCTOR = {"lc": 1, "type": "constructor", "id": ["tests", "_happen"], "kwargs": {}}
HOSTILE = {
    "nothing": b"",
    "garbage": b"\x00\xff{",
    "other": b'{"a": 1}',
    "list": b"[1, 2]",
    "deep": b"[" * 100_000,
    "deep object": b'{"kind":' * 50_000,
    "large number": b'{"changes": 1' + b"0" * 5000 + b"}",
    "pickle": pickle.dumps(Runs(), protocol=0),
    "huge": b'"' + b"x" * 3_000_000 + b'"',
    "no message": json.dumps({**RESULT, "message": '{"a": 1}'}).encode(),
    "constructor": json.dumps({**RESULT, "message": json.dumps(CONSTRUCTOR)}).encode(),
    "artifact": json.dumps({**RESULT, "message": json.dumps({"content": "x", "artifact": CONSTRUCTOR})}).encode(),
    "for ever open": json.dumps(
        {"mark": 0, "changes": 1, "until": 1e300, "first": 0, "outcomes": [], "probing": {}}
    ).encode(),
    "not a number": b'{"mark": 0, "changes": 1, "until": NaN, "first": 0, "outcomes": [], "probing": {}}',
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
async def test_what_others_have_written_over_a_circuit_is_a_new_one(database: Database) -> None:
    """The circuit is new, or open for no longer than the rules allow."""
    breaker = CircuitBreaker(minimum=2, open_for=0.2, on=OSError, shared=database.store)
    fails = True

    async def work() -> str:
        if fails:
            raise OSError("down")
        return "done"

    node = ToolNode([make(work)], middleware=[breaker], handle_tool_errors=True)

    async def call() -> str:
        with anyio.fail_after(WAIT):
            result = await node.ainvoke([tool_call("work", "1")])
        await anyio.sleep(0.02)
        return str(result["messages"][0].content)

    for text in HOSTILE.values():
        await call()
        database.deface(text)
        await call()
        database.deface(text)
        await call()
    fails = False
    await anyio.sleep(0.25)

    assert await call() == "done"
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


def found(text: str) -> Found:
    return Found(text=text, marks=(1, 2), now=1000.0, me="0" * 16)


RULES = Rules(ratio=0.5, minimum=2, window=10, open_for=7, probes=1)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
NAMES = ("mark", "changes", "until", "first", "outcomes", "probing", "kind", "marks", "leader", "waiting", "content")
FIELDS = st.dictionaries(st.sampled_from(NAMES), ANY_JSON)


@given(text=st.text() | ANY_JSON.map(json.dumps) | FIELDS.map(json.dumps))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_any_text_is_a_document_or_none(text: str) -> None:
    """Reading never raises, and no text opens a circuit for longer than the rules allow."""
    circuit = circuit_of(found(text), RULES, 10.0, Memory(0, None))

    assert circuit.wait(1000.0) <= RULES.open_for + 1
    document_of(found(text))
    message_of(text)


@given(
    until=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    first=st.integers(0, 2**53 - 1),
    outcomes=st.lists(st.tuples(st.integers(0, 2**53 - 1), st.text(".x", min_size=1, max_size=5)), max_size=5),
    probing=st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False), max_size=2),
)
def test_any_circuit_that_fits_its_form_is_one_that_works(
    until: float | None, first: int, outcomes: list[tuple[int, str]], probing: dict[str, float]
) -> None:
    """Any valid numbers give a working circuit, which can be stored again after a call."""
    stored = {"mark": 1, "changes": 3, "until": until, "first": first, "outcomes": outcomes, "probing": probing}
    circuit = circuit_of(found(json.dumps(stored)), RULES, 10.0, Memory(0, None))

    # The circuit lets a call in again, whatever the stored time says.
    assert circuit.admit(1000.0 + 2 * RULES.open_for + 10, "probe", 1.0) is not None
    ticket = circuit.admit(1000.0, "probe", 1.0)
    if ticket is not None:
        circuit.judge(ticket, 1000.0, failed=True)

    assert circuit.wait(1000.0) <= RULES.open_for + 1
    assert all(when <= 1000.001 for when, _ in circuit.memory().outcomes)
