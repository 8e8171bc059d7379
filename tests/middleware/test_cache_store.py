"""`Cache(store=...)`: processes share results in a LangGraph cache, and nothing of calls that run."""

import json
import pickle
import sqlite3
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypedDict

import anyio
import ormsgpack
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.cache.base import BaseCache
from langgraph.cache.memory import InMemoryCache
from langgraph.cache.redis import RedisCache
from langgraph.cache.sqlite import SqliteCache
from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, StateGraph
from langgraph.types import CachePolicy

from callboard import CallboardWarning, CallEvent, CallPolicy, StorageError, ToolNode, observe, tool_call
from callboard.middleware import Cache
from callboard.middleware._cache import _text_store
from callboard.middleware._cache._stored_results import StoredResults, parse_message, serialize_message
from tests.helpers import ending_of, make, run_in_threads
from tests.middleware._dict_cache import DictCache
from tests.server._servers import running_redis

pytestmark = [
    pytest.mark.real_clock,  # caches are called in worker threads
    pytest.mark.filterwarnings("ignore:the worker thread of the store of a Cache goes on"),
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),  # by LangGraph's `RedisCache`
]

WAIT = 30
"""Timeout in seconds for events that should happen at once."""


class Tool:
    """Tool in several processes; each run has a number."""

    def __init__(self, error: Exception | None = None) -> None:
        self.runs = 0
        self.gate: anyio.Event | None = None
        self.begun = anyio.Event()
        self.error = error

    async def work(self, n: int = 0) -> str:
        """Work."""
        self.runs += 1
        run, gate = self.runs, self.gate
        self.begun.set()
        if gate is not None:
            await gate.wait()
        if self.error is not None:
            raise self.error
        return f"run {run}"

    def process_with(self, store: BaseCache[Any], **options: Any) -> "Process":
        """Return a process that shares results."""
        return Process(make(self.work), Cache({"work"}, store=store, **{"key": by_number, **options}))


def by_number(request: Any) -> int:
    return int(request.tool_call["args"].get("n", 0))


class Process:
    """Node with a cache, which stands for one process."""

    def __init__(self, tool: BaseTool, cache: Cache, **options: Any) -> None:
        self.cache = cache
        self.node = ToolNode([tool], middleware=[cache], handle_tool_errors=True, **options)
        self.answers: list[ToolMessage] = []

    async def call(self, n: int = 0, call_id: str = "1") -> Any:
        """Return how callboard ended a call, or otherwise the text that the model reads."""
        with anyio.fail_after(WAIT):
            result = await self.node.ainvoke([tool_call("work", call_id, n=n)])
        self.answers += result["messages"]
        return ending_of(self.answers[-1]) or self.answers[-1].content


def notes_in(events: list[CallEvent]) -> list[str]:
    return [event.note for event in events if event.phase == "noted"]


def reasons(events: list[CallEvent]) -> list[object]:
    return [event.facts["reason"] for event in events if event.note == "cache_skipped"]


Stores = Callable[[], BaseCache[Any]]


@pytest.fixture(params=["memory", "sqlite", "redis"])
def stores(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stores]:
    """Return a factory of caches of LangGraph; each stands for the one of another process."""
    monkeypatch.setattr(_text_store, "_MAX_OPERATION_SECONDS", 20.0)  # a busy machine is no outage
    if request.param == "memory":
        memory: InMemoryCache[Any] = InMemoryCache()
        yield lambda: memory
    elif request.param == "sqlite":
        yield lambda: SqliteCache(path=str(tmp_path / "results.db"))
    else:
        with running_redis() as server, redis.Redis.from_url(server.url) as client:
            yield lambda: RedisCache(client)


async def test_a_result_is_for_all_processes(stores: Stores) -> None:
    tool = Tool()
    first, second = (tool.process_with(stores()) for _ in range(2))
    events: list[CallEvent] = []

    with observe(events.append):
        answers = [await first.call(call_id="a"), await second.call(call_id="b"), await first.call(call_id="c")]

    assert answers == ["run 1"] * 3
    assert [message.tool_call_id for message in second.answers + first.answers] == ["b", "a", "c"]
    assert notes_in(events) == ["cache_miss", "cache_hit", "cache_hit"]
    assert await second.call(n=1) == "run 2"


def forget(cache: Cache, target: str) -> None:
    if target == "clear":
        cache.clear()
    elif target == "key":
        cache.invalidate("work", key=7)
    else:
        cache.invalidate("work")


async def until_forgotten(process: Process, answer: str) -> None:
    """Call until the process does not read an answer any more: the store is told in the background."""
    with anyio.fail_after(WAIT):
        while await process.call(7) == answer:
            await anyio.sleep(0.01)


@pytest.mark.parametrize("target", ["tool", "key", "clear"])
async def test_an_invalidation_is_for_all_processes(stores: Stores, target: str) -> None:
    """Later calls of the same process miss the cache at once, and their results are shared again."""
    tool = Tool()
    first, second = (tool.process_with(stores()) for _ in range(2))
    assert [await first.call(7), await second.call(7)] == ["run 1"] * 2

    forget(first.cache, target)

    assert await first.call(7) == "run 2"
    await until_forgotten(second, "run 1")
    assert await second.call(7) == await first.call(7) != "run 1"


@pytest.mark.parametrize("target", ["tool", "key", "clear"])
@pytest.mark.parametrize("is_elsewhere", [True, False])
async def test_a_result_that_was_computed_during_an_invalidation_is_not_used(target: str, is_elsewhere: bool) -> None:
    """The result may be based on old data, so it is for its own call only."""
    store, tool = InMemoryCache[Any](), Tool()
    gate = tool.gate = anyio.Event()
    first, second = (tool.process_with(store) for _ in range(2))

    async with anyio.create_task_group() as group:
        group.start_soon(first.call, 7)
        await tool.begun.wait()
        tool.gate = None
        forget((second if is_elsewhere else first).cache, target)
        gate.set()

    assert first.answers[0].content == "run 1"
    assert await first.call(7) == await second.call(7) == "run 2"


async def test_a_first_call_cannot_undo_an_invalidation_of_another_process() -> None:
    """Both processes begin with an empty store, and the invalidation comes while the first body runs."""
    store, tool = DictCache(), Tool()
    gate = tool.gate = anyio.Event()
    first, second = (tool.process_with(store) for _ in range(2))

    async with anyio.create_task_group() as group:
        group.start_soon(first.call, 7)
        await tool.begun.wait()
        tool.gate = None
        before = dict(store.values)
        second.cache.invalidate("work")
        while store.values == before:
            await anyio.sleep(0.01)
        gate.set()

    assert await second.call(7) == "run 2"


async def test_a_failure_is_not_stored() -> None:
    """Neither an error nor a message of failure is a result."""
    store, tool = DictCache(), Tool(OSError("down"))
    first, second = (tool.process_with(store) for _ in range(2))

    async def work(n: int = 0) -> ToolMessage:
        tool.runs += 1
        return ToolMessage("no luck", tool_call_id="1", status="error")

    failing = Process(make(work), Cache({"work"}, store=store, key=by_number))
    assert "down" in await first.call()
    assert await failing.call() == await failing.call() == "no luck"
    tool.error = None

    assert await second.call() == "run 4"


@pytest.mark.parametrize(("age", "answer"), [(9.0, "run 1"), (10.1, "run 2"), (-100.0, "run 1")])
async def test_a_result_is_used_until_it_is_as_old_as_its_ttl(age: float, answer: str) -> None:
    """Also by a cache that never deletes a result. The clock of the process that wrote it may be ahead."""
    store, tool = DictCache(), Tool()
    process = tool.process_with(store, ttl=10)
    await process.call()
    assert set(store.lifetimes.values()) == {None, 10}

    [(key, text)] = store.results().items()
    header, _, message = text.partition("\n")
    store.values[key] = f"{json.dumps({**json.loads(header), 'at': time.time() - age})}\n{message}"

    assert await process.call() == answer


@pytest.mark.parametrize(("ttl", "lifetime"), [(0.5, 1), (10.2, 11), (float("inf"), None), (1e300, None)])
async def test_the_store_gets_whole_seconds(ttl: float, lifetime: int | None) -> None:
    """LangGraph's caches take whole seconds, and cannot count to the year 10,000."""
    store = DictCache()
    await Tool().process_with(store, ttl=ttl).call()
    [key] = store.results()
    assert store.lifetimes[key] == lifetime


async def test_results_of_another_version_are_not_used() -> None:
    store, tool = DictCache(), Tool()
    await tool.process_with(store, version=1).call()

    assert [await tool.process_with(store, version=version).call() for version in (2, None, "1", 1)] == [
        *("run 2", "run 3", "run 4"),
        "run 1",
    ]


async def plain(n: int = 0) -> str:
    """A function of a module has nothing but its arguments."""
    _plain_runs.append(n)
    return f"{n}"


_plain_runs: list[int] = []


async def test_without_a_key_the_arguments_are_what_a_function_depends_on() -> None:
    """A module-level function does the same in every process of the program."""
    _plain_runs.clear()
    store = InMemoryCache[Any]()
    tools = [StructuredTool.from_function(coroutine=plain, name="work", description="Work.") for _ in range(2)]
    processes = [Process(tool, Cache({"work"}, store=store)) for tool in tools]

    assert [await process.call(5) for process in processes] == ["5"] * 2
    assert _plain_runs == [5]
    processes[1].cache.invalidate("work", {"n": 5})
    assert [await process.call(5) for process in processes] == ["5"] * 2
    assert _plain_runs == [5, 5]


async def test_a_tool_that_is_more_than_a_function_is_shared_with_a_key_only() -> None:
    """A stateful tool may belong to one user, and another process may have one of the same name for another."""
    store, tool = DictCache(), Tool()
    processes = [tool.process_with(store, key=None) for _ in range(2)]
    events: list[CallEvent] = []

    with observe(events.append), pytest.warns(CallboardWarning, match=r"shares? results of the tool 'work'.*key=") as _:
        answers = [await process.call() for process in processes]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answers += [await process.call() for process in processes]

    assert answers == ["run 1", "run 2", "run 3", "run 4"]
    assert notes_in(events) == ["cache_skipped", "cache_miss"] * 2
    assert not store.values


NOT_STORED: dict[str, tuple[Any, Any]] = {
    "a tuple": ("text", {"pair": (1, 2)}),
    "an object": ("text", object()),
    "not a number": ("text", {"n": float("nan")}),
    "bytes": ("text", b"\xff"),
    "a lone surrogate": ("a \ud800 b", None),
    "a lone surrogate in an artifact": ("text", ["\udfff"]),
    "a key that is no text": ("text", {1: 2}),
    "too long": ("x" * 1_200_000, None),
    "too long in UTF-8": ("ß" * 600_000, None),
    "too many parts": ("text", [0] * 20_001),
}


def returning(content: Any, artifact: Any, runs: list[int]) -> BaseTool:
    async def work(n: int = 0) -> tuple[Any, Any]:
        runs.append(n)
        return content, artifact

    return StructuredTool.from_function(
        coroutine=work, name="work", description="Work.", response_format="content_and_artifact"
    )


@pytest.mark.parametrize(("content", "artifact"), NOT_STORED.values(), ids=NOT_STORED)
async def test_a_result_that_cannot_be_stored_is_unharmed(content: Any, artifact: Any) -> None:
    """JSON would change it, or it is too large: the result is neither sent nor changed, and observers are told."""
    store, runs, events = DictCache(), list[int](), list[CallEvent]()
    processes = [Process(returning(content, artifact, runs), Cache({"work"}, store=store, key=by_number)) for _ in "12"]

    with observe(events.append):
        for process in processes:
            await process.call()

    assert len(runs) == 2
    assert reasons(events) == ["cannot be shared"] * 2
    assert not store.results()
    assert [process.answers[0].content for process in processes] == [content] * 2
    assert processes[1].answers[0].artifact is artifact or processes[1].answers[0].artifact == artifact


async def test_a_long_text_is_stored_as_it_is() -> None:
    """Its commas are no parts of a structure, and its line breaks and quotes are not escaped."""
    store, text, runs = DictCache(), 'a,"b"\n[' * 100_000, list[int]()
    for _ in range(2):
        process = Process(returning(text, None, runs), Cache({"work"}, store=store, key=by_number))
        await process.call()
        assert process.answers[0].content == text
    assert len(runs) == 1


@pytest.mark.parametrize("artifact", [2**70, -(2**64), [1, {"a": [None, True, 1.5, "ß"]}]])
async def test_large_numbers_and_nested_data_come_back_exactly(artifact: Any) -> None:
    """Also numbers of more than 64 bits, which other formats cannot store."""
    store, runs = DictCache(), list[int]()
    for _ in range(2):
        process = Process(returning("text", artifact, runs), Cache({"work"}, store=store, key=by_number))
        await process.call()
        assert process.answers[0].artifact == artifact
    assert len(runs) == 1


async def test_a_key_that_is_no_json_stays_in_its_process() -> None:
    """Another process could not compute the same key."""
    store, key, events = DictCache(), object(), list[CallEvent]()
    process = Tool().process_with(store, key=lambda _: key)

    with observe(events.append):
        await process.call()

    assert notes_in(events) == ["cache_skipped", "cache_miss"]
    assert not store.values
    process.cache.invalidate("work", key=key)


async def test_neither_arguments_nor_names_are_stored() -> None:
    """Everything but the result is stored as a digest."""
    store = DictCache()
    process = Tool().process_with(
        store, key=lambda request: f"secret {request.tool_call['args']['n']}", version="private"
    )

    await process.call(n=5, call_id="private")

    assert "run 1" in repr(store.values)
    assert all(word not in repr(store.values) for word in ("secret", "private", "'work'"))


@pytest.fixture
def short_outages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls wait for a tenth of a second, and try a store again at once."""
    monkeypatch.setattr(_text_store, "_MAX_OPERATION_SECONDS", 0.1)
    monkeypatch.setattr(_text_store, "_OUTAGE_PAUSE", 0.0)


async def test_calls_run_while_the_store_fails_and_the_log_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    """An outage must not stop calls, and only the first call asks the store."""
    store, tool, events = DictCache(), Tool(), list[CallEvent]()
    process = tool.process_with(store)
    store.error = sqlite3.OperationalError("locked")

    with observe(events.append):
        assert [await process.call() for _ in range(5)] == [f"run {run}" for run in range(1, 6)]

    assert store.reads == 1
    assert reasons(events) == ["the store is away"] * 5
    messages = [record.getMessage() for record in caplog.records if record.name == "callboard"]
    assert messages == [
        "the store of a Cache, of type DictCache, cannot be used (locked); calls run without it until it can"
    ]


@pytest.mark.usefixtures("short_outages")
async def test_a_store_that_works_again_is_used_again(caplog: pytest.LogCaptureFixture) -> None:
    """The log says that the outage is over."""
    store, tool = DictCache(), Tool()
    process = tool.process_with(store)
    store.error = OSError("away")
    await process.call()
    store.error = None

    assert [await process.call() for _ in range(2)] == ["run 2"] * 2
    assert caplog.records[-1].getMessage() == "the store of a Cache, of type DictCache, works again"


async def test_a_store_that_is_full_costs_results_only() -> None:
    """It can be read, but not written."""
    store, tool = DictCache(), Tool()
    await tool.process_with(store).call(1)

    def refuse(_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    store.set = refuse  # type: ignore[method-assign]

    assert await tool.process_with(store).call(1) == "run 1"
    assert [await tool.process_with(store).call(2) for _ in range(2)] == ["run 2", "run 3"]


@pytest.mark.usefixtures("short_outages")
async def test_a_store_that_hangs_holds_neither_the_call_nor_the_event_loop() -> None:
    """A call waits a moment for the store, and others run meanwhile."""
    store, tool, turns = DictCache(), Tool(), 0
    process = tool.process_with(store)
    store.gate.clear()

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await anyio.sleep(0.001)
            turns += 1

    try:
        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                group.start_soon(take_turns)
                assert await process.call() == "run 1"
                group.cancel_scope.cancel()
    finally:
        store.gate.set()
    assert turns > 10


async def test_a_result_is_not_lost_if_the_store_hangs_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call with a budget uses at most half of the rest for the store."""
    store, tool = DictCache(), Tool()
    process = tool.process_with(store)
    await process.call(1)
    process.node = ToolNode([make(tool.work)], middleware=[process.cache], policies={"work": CallPolicy(budget=2.0)})
    real_set = store.set

    def hang(pairs: Any) -> None:
        store.gate.clear()
        real_set(pairs)

    store.set = hang  # type: ignore[method-assign]
    try:
        assert await process.call(2) == "run 2"
    finally:
        store.gate.set()


@pytest.mark.usefixtures("short_outages")
@pytest.mark.parametrize("outage", ["error", "silence"])
@pytest.mark.parametrize("target", ["tool", "key", "clear"])
async def test_an_invalidation_during_an_outage_is_not_lost(outage: str, target: str) -> None:
    """LangGraph's `RedisCache` hides errors of the server, so that a lost write looks like a write."""
    store, tool = DictCache(), Tool()
    first, second = (tool.process_with(store) for _ in range(2))
    await first.call(7)
    if outage == "error":
        store.error = OSError("away")
    else:
        store.loses_writes = True
    forget(first.cache, target)
    assert await first.call(7) == "run 2"
    store.error, store.loses_writes = None, False

    while await second.call(7) == "run 1":
        await first.call(8)  # any call of the process tries again
        await anyio.sleep(0.01)


async def test_a_store_without_sync_methods_is_refused_in_words() -> None:
    """They run in worker threads, because the async ones of a cache may block or need a certain event loop."""
    store = DictCache()
    store.error = NotImplementedError()
    node = ToolNode([make(Tool().work)], middleware=[Cache({"work"}, store=store, key=by_number)])

    with pytest.raises(StorageError, match=r"DictCache.*does not implement the sync methods"):
        await node.ainvoke([tool_call("work", "1")])


async def test_a_locked_database_holds_nobody(tmp_path: Path) -> None:
    """SQLite waits five seconds for a lock, in a worker thread."""
    store, tool = SqliteCache(path=str(tmp_path / "results.db")), Tool()
    process = tool.process_with(store)
    assert await process.call() == "run 1"
    with sqlite3.connect(tmp_path / "results.db") as connection:
        connection.execute("BEGIN EXCLUSIVE")
        with anyio.fail_after(4):
            assert await process.call(2) == "run 2"
        connection.rollback()
    connection.close()


REPLIES: dict[str, Any] = {
    "no dict": [1],
    "a number": 5,
    "an object": object(),
    "no values": {},
}


@pytest.mark.usefixtures("short_outages")
@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES)
async def test_a_store_that_replies_with_nonsense_is_a_miss(reply: Any) -> None:
    """A cache of the user may return anything."""
    store, tool = DictCache(), Tool()
    store.reply = reply

    assert await tool.process_with(store).call() == "run 1"


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
FIELDS = st.dictionaries(st.sampled_from(("mark", "at", "message", "content")), ANY_JSON)
VALUES = st.text() | ANY_JSON.map(json.dumps) | FIELDS.map(json.dumps) | ANY_JSON | st.binary()


@given(values=st.lists(VALUES, min_size=3, max_size=6))
def test_any_stored_value_is_a_result_or_a_miss(values: list[Any]) -> None:
    """Reading never raises, and a text that no call has stored under the present mark is no result."""
    texts = [value for value in values if isinstance(value, str)]
    results = StoredResults(DictCache(), None, 60.0)

    assert [results._read_hit(text, "0" * 32) for text in texts] == [None] * len(texts)
    for text in texts:
        parse_message(text)


HOSTILE: dict[str, str] = {
    "deep": "[" * 500_000 + "]" * 500_000,
    "wide": "[" + "[]," * 340_000 + "[]]",
    "many keys": "{" + ",".join(f'"{n}":0' for n in range(100_000)) + "}",
    "a long number": "9" * 1_000_000,
    "16 MB": "[" + "[]," * 5_000_000 + "[]]",
    "within the bounds": "[" + '{"a":[1]},' * 6_000 + "1]",
}


@pytest.mark.parametrize("wraps", ["as the result", "as the message", "as the artifact"])
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
async def test_a_hostile_text_is_a_miss_and_does_not_hold_the_event_loop(text: str, wraps: str) -> None:
    """Another program may have written it. The event loop makes a turn every few milliseconds meanwhile."""
    store, tool = DictCache(), Tool()
    process = tool.process_with(store)
    await process.call()
    [(key, stored)] = store.results().items()
    if wraps == "as the artifact":
        text = ToolMessage("x", tool_call_id="").model_dump_json().replace('"artifact":null', f'"artifact":{text}')
    if wraps != "as the result":
        text = f"{stored.partition(chr(10))[0]}\n{text}"
    pauses: list[float] = []

    async def take_turns() -> None:
        last = time.process_time()
        pauses.append(0.0)
        while True:
            await anyio.sleep(0.001)
            now = time.process_time()  # on a busy machine, other processes make the wall clock run on
            pauses[-1], last = max(pauses[-1], now - last), now

    for _ in range(3):
        store.values[key] = text
        async with anyio.create_task_group() as group:
            group.start_soon(take_turns)
            await anyio.sleep(0.01)
            await process.call()
            group.cancel_scope.cancel()

    assert min(pauses) < 0.02, "the loop was held"


def row_of(path: Path, kind: str, data: bytes) -> None:
    """Replace all results of a SQLite file, as another program may do."""
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE cache SET encoding = ?, val = ? WHERE key LIKE 'result-%'", (kind, data))
    connection.close()


class Exploit:
    """Object whose pickle runs code when it is read."""

    def __reduce__(self) -> Any:
        return exploits.append, ("pickle",)


exploits: list[str] = []


def exploit(argument: str) -> str:
    """Record that stored data has called code."""
    exploits.append(argument)
    return argument


FORGED: dict[str, tuple[str, bytes]] = {
    "a pickle": ("pickle", pickle.dumps(Exploit())),
    # LangGraph's serializer imports the module and calls the name.
    "msgpack": ("msgpack", ormsgpack.packb(ormsgpack.Ext(0, ormsgpack.packb((__name__, "exploit", "msgpack"))))),
    "JSON": ("json", json.dumps({"lc": 2, "type": "constructor", "id": [__name__, "exploit"], "args": ["x"]}).encode()),
    "other bytes": ("bytes", b"\xff\xfe"),
    "no text": ("null", b""),
}


@pytest.mark.parametrize(("kind", "data"), FORGED.values(), ids=FORGED)
async def test_stored_data_runs_no_code(tmp_path: Path, kind: str, data: bytes) -> None:
    """Promise 14, for whoever can write to the database: each forged value is a miss."""
    path = tmp_path / "results.db"
    exploits.clear()
    tool = Tool()
    process = tool.process_with(SqliteCache(path=str(path)))
    await process.call()
    row_of(path, kind, data)

    assert await process.call() == "run 2"
    assert exploits == []
    if kind == "msgpack":  # the same bytes do run with the serializer of LangGraph: the test attacks something
        JsonPlusSerializer().loads_typed((kind, data))
        assert exploits == ["msgpack"]


class PickleSerializer:
    """Serializer of a user, which pickles everything."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        return "pickle", pickle.dumps(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        return pickle.loads(data[1])


def test_a_serializer_that_stores_pickles_is_refused() -> None:
    """LangGraph's own with `pickle_fallback` is fine: it gets bytes, which need no pickle."""
    with pytest.raises(ValueError, match=r"reading a pickle runs the code in it, .* without serde="):
        Cache({"work"}, store=InMemoryCache(serde=PickleSerializer()))
    Cache({"work"}, store=InMemoryCache(serde=JsonPlusSerializer(pickle_fallback=True)))


class Mirror(CipherProtocol):
    """Cipher that reverses bytes."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "mirror", plaintext[::-1]

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return ciphertext[::-1]


async def test_a_cache_that_encrypts_still_does_and_reads_nothing_in_the_clear(tmp_path: Path) -> None:
    """LangGraph's encrypting serializer reads unencrypted data, too, which anybody can forge."""
    path, tool = tmp_path / "results.db", Tool()
    exploits.clear()
    first, second = (
        tool.process_with(SqliteCache(path=str(path), serde=EncryptedSerializer(Mirror()))) for _ in range(2)
    )
    assert [await first.call(), await second.call()] == ["run 1"] * 2
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT encoding, val FROM cache").fetchall()
    connection.close()
    assert {kind for kind, _ in rows} == {"bytes+mirror"}
    assert not any(b"run 1" in value for _, value in rows)

    row_of(path, *FORGED["msgpack"])
    assert await second.call() == "run 2"
    assert exploits == []


async def test_a_graph_with_the_same_cache_object_is_told_so() -> None:
    """The cache has the serializer of the middleware, and a graph would read nothing from it."""

    class State(TypedDict):
        text: str

    store = InMemoryCache[Any]()
    Cache({"work"}, store=store)
    Cache({"other"}, store=store)  # several caches may use one object
    graph = StateGraph(State)
    graph.add_node("node", lambda _: {"text": "done"}, cache_policy=CachePolicy())
    graph.add_edge(START, "node")

    with pytest.raises(TypeError, match="Give the graph a cache object of its own"):
        graph.compile(cache=store).invoke({"text": ""})


@pytest.mark.parametrize("wrong", [SqliteCache, "redis://localhost", {}])
def test_what_is_no_cache_of_langgraph_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"Cache\(store=...\) takes a LangGraph cache, such as .*SqliteCache"):
        Cache({"work"}, store=wrong)


def test_options_that_would_have_no_effect_are_refused() -> None:
    """A version is for results that outlive the process, and a store has bounds of its own."""
    with pytest.raises(ValueError, match=r"Cache\(version=...\) is for results that outlive the process"):
        Cache({"work"}, version=2)
    with pytest.raises(ValueError, match=r"Cache\(size=5, store=...\): a store has bounds of its own"):
        Cache({"work"}, store=InMemoryCache(), size=5)
    with pytest.raises(TypeError, match=r"Cache\(version=...\) is a text or a number, got <object"):
        Cache({"work"}, store=InMemoryCache(), version=object())  # type: ignore[arg-type]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
OTHERS = st.binary() | st.tuples(st.integers()) | st.sets(st.integers()) | st.dictionaries(st.integers(), st.integers())


@given(content=st.text() | st.lists(st.text() | st.dictionaries(st.text(), JSON), max_size=3), artifact=JSON | OTHERS)
def test_a_result_comes_back_as_it_was_or_is_not_stored(content: Any, artifact: Any) -> None:
    message = ToolMessage(content, tool_call_id="1", artifact=artifact, name="work", additional_kwargs={"a": [1]})

    text = serialize_message(message)

    if text is not None:
        stored = parse_message(text)
        assert stored is not None
        assert stored.model_copy(update={"tool_call_id": "1"}) == message
        assert repr(stored.artifact) == repr(artifact)
        assert repr(stored.content) == repr(message.content)


class Subclass(ToolMessage):
    """Subclass of a message, with additional state."""


@pytest.mark.parametrize("artifact", [True, 1, 1.5, None, {"a": [1, {"b": None}]}])
def test_plain_data_is_stored(artifact: Any) -> None:
    """Plain data in an artifact is stored; a subclass of a message is not."""
    assert serialize_message(ToolMessage("x", tool_call_id="1", artifact=artifact)) is not None
    assert serialize_message(Subclass("x", tool_call_id="1", artifact=artifact)) is None


def test_invalidations_of_many_threads_all_reach_the_store() -> None:
    """`invalidate` may be called from any thread, without an event loop."""
    store = DictCache()
    cache = Cache({f"work {n}" for n in range(50)}, store=store)
    run_in_threads(*(threading.Thread(target=cache.invalidate, args=(f"work {n}",)) for n in range(50)))
    deadline = time.monotonic() + WAIT
    while len(store.values) < 50:
        assert time.monotonic() < deadline
        time.sleep(0.01)
