"""Savers and stores by URL: accepted forms, when a file is opened, and errors for unusable databases."""

import gc
import os
import sqlite3
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import anyio
import pytest
from anyio import to_thread
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.store.memory import InMemoryStore

from callboard import InjectedStore, StorageError, create_react_agent
from callboard.conversations._database import LazySaver, LazyStore, close, saver_of, store_of
from callboard.extend import run_on_asyncio
from callboard.testing import Recorder, ScriptedModel, calls
from callboard.threads import masked
from tests.helpers import until

from ._graphs import chain
from ._savers import AT, QUESTION, contents, errors_at_once, scripted, use_database

pytestmark = pytest.mark.real_clock


def agent_of(*replies: Any, url: Any, **options: Any) -> Any:
    return scripted(replies, [Recorder().tool("work")], checkpointer=url, **options)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'agent.db'}"


async def test_a_file_is_not_touched_before_it_is_needed(tmp_path: Path, url: str) -> None:
    """Importing a module that defines an agent must not open its file."""
    agent = agent_of("hi", url=url, store=url)
    assert list(tmp_path.iterdir()) == []
    await agent.ainvoke(QUESTION, AT)
    assert (tmp_path / "agent.db").exists()


def test_a_relative_path_is_taken_from_where_the_agent_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that changes its working directory keeps its file."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    agent = agent_of("hi", url="sqlite:///agent.db")
    monkeypatch.chdir(tmp_path / "elsewhere")
    agent.invoke(QUESTION, AT)
    assert (tmp_path / "agent.db").exists()
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("url", ["memory", "MEMORY", "memory://", "sqlite://", "sqlite:///:memory:"])
def test_in_memory_is_langgraphs_own(url: str) -> None:
    assert type(saver_of(url)) is InMemorySaver
    assert type(store_of(url)) is InMemoryStore
    assert saver_of(url) is not saver_of(url)


@pytest.mark.parametrize("checkpointer", [None, True, False, InMemorySaver()])
def test_what_langgraph_takes_for_a_checkpointer_stays_as_it_is(checkpointer: Any) -> None:
    """True and False are settings for agents within graphs."""
    assert saver_of(checkpointer) is checkpointer
    assert store_of(None) is None
    assert store_of(store := InMemoryStore()) is store


@pytest.mark.parametrize("value", [3, Path("agent.db"), object])
def test_what_is_no_saver_and_no_url_is_refused(value: object) -> None:
    """The error comes when the agent is created, and not at its first run."""
    with pytest.raises(TypeError, match="Invalid checkpointer"):
        scripted([], [], checkpointer=value)
    with pytest.raises(TypeError, match="A store is one of LangGraph's or a URL"):
        scripted([], [], store=value)  # type: ignore[arg-type]


UNKNOWN = ["agent.db", "", "redis://host", "sqlite", "sqlite:agent.db", "postgresql", "file:///x"]


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("sqlite://agent.db", "write 'sqlite:///agent.db'"),
        ("sqlite:///", "names no file"),
        ("sqlite:///agent.db?mode=ro", "write 'sqlite:///agent.db'"),
        ("postgresql://me:100%@host/db", "write postgresql://user:password@host"),
        *((url, f"{url!r}; known are sqlite:///relative") for url in UNKNOWN),
    ],
)
def test_a_slip_in_a_url_is_answered_with_the_right_form(url: str, advice: str) -> None:
    """An empty variable must not select a database in memory, and a bare path must not create a file."""
    with pytest.raises(ValueError, match=advice):
        saver_of(url)
    with pytest.raises(ValueError, match=advice):
        store_of(url)


@pytest.mark.parametrize(
    ("url", "missing", "extra"),
    [
        ("sqlite:///agent.db", "langgraph.checkpoint.sqlite", "sqlite"),
        ("postgresql://host/db", "psycopg", "postgres"),
        ("postgresql://host/db", "langgraph.checkpoint.postgres", "postgres"),
    ],
)
def test_a_missing_driver_is_named_with_what_brings_it(
    url: str, missing: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error comes when the agent is created, and names the package to install."""
    monkeypatch.setitem(sys.modules, missing, None)
    for name in ("_sqlite", "_postgresql"):
        monkeypatch.delitem(sys.modules, f"callboard.conversations.{name}", raising=False)

    for make in (saver_of, store_of):
        with pytest.raises(ImportError, match=rf"pip install 'langgraph-checkpoint-{extra}<"):
            make(url)


async def broken(agent: Any) -> StorageError:
    """Return the errors of an agent about its database, one for each run."""
    with pytest.raises(StorageError) as first:
        await agent.ainvoke(QUESTION, AT)
    with pytest.raises(StorageError) as second:
        await agent.ainvoke(QUESTION, AT)
    assert str(first.value) == str(second.value)
    return first.value


@pytest.mark.parametrize(
    "content", [b"a note to myself\n" * 100, b"SQLite format 3\x00" + b"?" * 4096], ids=["text", "cut"]
)
@pytest.mark.parametrize("kind", ["saver", "store"])
async def test_a_file_that_is_no_database_is_named_and_left_alone(tmp_path: Path, content: bytes, kind: str) -> None:
    """The file may be valuable, so it is not changed."""
    path = tmp_path / "notes.db"
    path.write_bytes(content)
    read = partial(saver_of(f"sqlite:///{path}").get_tuple, AT)  # type: ignore[union-attr]
    if kind == "store":
        read = partial(store_of(f"sqlite:///{path}").get, ("a",), "b")  # type: ignore[union-attr]
    with pytest.raises(StorageError, match="Name another file, or move this one away") as caught:
        await to_thread.run_sync(read)
    assert str(path) in str(caught.value)
    assert isinstance(caught.value.__cause__, sqlite3.DatabaseError)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


async def test_a_damaged_database_is_told_from_a_foreign_file(tmp_path: Path, url: str) -> None:
    """Unlike a foreign file, a damaged database may be partly recoverable."""
    path = tmp_path / "agent.db"
    agent = agent_of("x" * 50_000, "y", url=url)
    await agent.ainvoke(QUESTION, AT)
    await close(agent.checkpointer)
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    error = await broken(agent_of("never", url=url))
    assert "is damaged" in str(error)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("path", "reason"), [("no/agent.db", "there is no directory '{}/no'"), ("", "is a directory; name a file in it")]
)
async def test_a_path_that_is_no_file_is_named_and_not_made(tmp_path: Path, path: str, reason: str) -> None:
    """A missing directory usually means a misspelt path."""
    error = await broken(agent_of("never", url=f"sqlite:///{tmp_path / path}"))
    assert reason.format(tmp_path) in str(error)
    assert list(tmp_path.iterdir()) == []


@contextmanager
def without_privileges() -> Iterator[None]:
    """Run without root's privileges, because root may write to every file."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
async def test_a_file_that_may_not_be_written_is_named_with_what_has_to_be_allowed(mode: str) -> None:
    """SQLite reports this in several ways, depending on the journal mode of the file."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "agent.db"
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"PRAGMA journal_mode={mode}")
            connection.execute("CREATE TABLE t (x)")
        path.chmod(0o444)
        Path(directory).chmod(0o555)
        saver: Any = saver_of(f"sqlite:///{path}")
        with without_privileges():
            with pytest.raises(StorageError, match=r"[Aa]llow this process to (read and )?write") as caught:
                await to_thread.run_sync(saver.get_tuple, AT)
        Path(directory).chmod(0o755)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("table", ["checkpoints", "writes"])
async def test_tables_of_another_program_are_left_alone(tmp_path: Path, url: str, table: str) -> None:
    """An application's database may have a table of the same name, which must not be changed."""
    path = tmp_path / "agent.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, mine TEXT)")
        connection.execute(f"INSERT INTO {table} (mine) VALUES ('precious')")
        connection.commit()
    error = await broken(agent_of("never", url=url))
    assert "of another program" in str(error)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute(f"SELECT id, mine FROM {table}").fetchall() == [(1, "precious")]


async def test_a_store_of_a_newer_version_is_refused(tmp_path: Path, url: str) -> None:
    """Writing to a newer format without knowing it could destroy data."""
    store: Any = store_of(url)
    await store.aput(("a",), "b", {"c": 1})
    await close(store)
    with closing(sqlite3.connect(tmp_path / "agent.db")) as newer:
        newer.execute("INSERT INTO store_migrations (v) VALUES (999)")
        newer.commit()

    with pytest.raises(StorageError, match="Upgrade langgraph-checkpoint-sqlite"):
        await store.aget(("a",), "b")


async def test_an_error_that_is_not_about_the_file_stays_as_it_is(url: str) -> None:
    saver: Any = saver_of(url)
    config: Any = {"configurable": {"thread_id": "1", "checkpoint_ns": "", "checkpoint_id": "1"}}

    with pytest.raises(TypeError, match="serializable"):
        await to_thread.run_sync(saver.put_writes, config, [("a", threading.Lock())], "task")
    await to_thread.run_sync(saver.put_writes, config, [("a", 1)], "task")


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Another process that writes without pause."""
    with closing(sqlite3.connect(tmp_path / "agent.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("BEGIN IMMEDIATE")
        yield connection


async def test_a_writer_beside_us_is_waited_for(url: str, busy: sqlite3.Connection) -> None:
    results: list[Any] = []

    async def ask() -> None:
        results.append(await agent_of("hi", url=url).ainvoke(QUESTION, AT))

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        await anyio.sleep(0.2)
        assert not results
        busy.execute("COMMIT")
    assert contents(results[0]) == ["go", "hi"]


async def test_a_writer_who_does_not_end_is_an_error_after_a_while(
    url: str, busy: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callboard.conversations._sqlite.PATIENCE", 0.2)
    agent = agent_of("hi", "hi", url=url)
    with pytest.raises(StorageError, match="is in use"):
        await agent.ainvoke(QUESTION, AT)
    busy.execute("COMMIT")
    await close(agent.checkpointer)  # the busy timeout of a connection is fixed when it is opened
    monkeypatch.undo()
    result = await agent.ainvoke(QUESTION, AT)
    assert contents(result)[-1] == "hi"


@pytest.mark.parametrize("make", [saver_of, store_of])
def test_many_may_open_a_new_file_at_once(tmp_path: Path, make: Any) -> None:
    for number in range(5):
        databases = [make(f"sqlite:///{tmp_path / f'{number}.db'}") for _ in range(8)]
        assert errors_at_once(use_database, databases) == []
        for database in databases:
            database.close()


def open_files(path: Path) -> int:
    """Return the number of this process's descriptors for a file."""
    middleware = Path("/proc/self/fd").iterdir()
    return sum(os.path.realpath(middleware) == str(path) for middleware in middleware)


has_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors as Linux shows them")


@has_proc
async def test_a_file_can_be_closed_and_is_opened_again(tmp_path: Path, url: str) -> None:
    """The end of an agent's block closes what it has opened: here, its checkpointer and its store."""
    agent = agent_of("one", "two", url=url, store=url)
    await close(agent.checkpointer, None, InMemorySaver())
    async with agent:
        await agent.ainvoke(QUESTION, AT)
        assert open_files(tmp_path / "agent.db") == 1
        await agent._runner.store.aget(("a",), "b")
        assert open_files(tmp_path / "agent.db") == 2
    assert open_files(tmp_path / "agent.db") == 0
    await close(agent.checkpointer)
    result = await agent.ainvoke(QUESTION, AT)
    await close(agent.checkpointer)
    await close(agent.checkpointer)
    assert open_files(tmp_path / "agent.db") == 0
    assert contents(result) == ["go", "one", "go", "two"]


@has_proc
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_file_is_closed_when_its_agent_is_forgotten(tmp_path: Path, url: str, backend: str) -> None:
    async def main() -> None:
        agent = agent_of("hi", url=url)
        await agent.ainvoke(QUESTION, AT)
        assert open_files(tmp_path / "agent.db") == 1
        # On trio, the thread that ran the request forgets it in its next turn.
        await run_on_asyncio(anyio.lowlevel.checkpoint)

    def is_closed() -> bool:
        gc.collect()
        return open_files(tmp_path / "agent.db") == 0

    anyio.run(main, backend=backend)
    # The thread of the database may not have had its turn yet, in which it forgets the last request.
    anyio.run(until, is_closed)


@pytest.mark.filterwarnings("ignore:The default datetime adapter:DeprecationWarning")  # LangGraph's, on 3.12
async def test_tools_use_a_store_on_any_loop(url: str) -> None:
    async def learn(fact: str, store: Annotated[Any, InjectedStore()]) -> str:
        """Learn."""
        await store.aput(("facts",), fact, {"fact": fact})
        items = await store.asearch(("facts",))
        return ", ".join(sorted(item.key for item in items))

    def recall(fact: str, store: Annotated[Any, InjectedStore()]) -> str:
        """Recall."""
        return str(store.get(("facts",), fact).value)

    model = ScriptedModel([calls(("learn", {"fact": "a"})), calls(("recall", {"fact": "a"})), "done"])
    result = await create_react_agent(model, [learn, recall], store=url).ainvoke(QUESTION)
    assert contents(result)[2] == "a"
    assert contents(result)[4] == "{'fact': 'a'}"
    opened_store: Any = store_of(url)
    assert isinstance(opened_store, LazyStore)
    assert opened_store.get(("facts",), "a").value == {"fact": "a"}
    opened_store.put(("facts",), "a", {"fact": "b"}, ttl=5)
    opened_store.delete(("facts",), "a")
    assert opened_store.get(("facts",), "a") is None
    opened_store.close()


async def test_a_turn_makes_two_commits_and_the_log_of_the_file_stays_small(tmp_path: Path, url: str) -> None:
    """The start of a run and its end are one commit each, with the lease, the input and the checkpoints.

    A commit waits for the disk. The log has a page for each changed page of each commit, until it begins anew.
    """
    saver: Any = saver_of(url)
    log: list[int] = []

    def trace(statement: str) -> None:
        if statement == "COMMIT":
            log.append((tmp_path / "agent.db-wal").stat().st_size)

    with open_file(saver) as file:
        file.conn.set_trace_callback(trace)
        agent = agent_of(*[calls("work")] * 50, "done", url=saver, loop_guard=False)
        await agent.ainvoke(QUESTION, {**AT, "recursion_limit": 110})
    assert len(log) == 2 * 50 + 2
    assert max(log) < 500_000


async def test_a_checkpoint_that_cannot_be_stored_does_not_take_the_last_result_with_it(url: str) -> None:
    """Both belong to one transaction, which is rolled back; then the result is stored alone."""
    saver: Any = saver_of(url)
    with open_file(saver) as file:
        original_put, checkpoints = file.put, []

        def put(config: Any, checkpoint: Any, *args: Any) -> Any:
            checkpoints.append(checkpoint)
            if len(checkpoints) > 1:
                raise sqlite3.OperationalError("the disk is full")
            return original_put(config, checkpoint, *args)

        file.put = put
        with pytest.raises(StorageError, match="the disk is full"):
            await agent_of("done", url=saver).ainvoke(QUESTION, AT)
        del file.put

        assert contents((await agent_of(url=saver).aget_state(AT)).values) == ["go", "done"]


@contextmanager
def open_file(saver: Any) -> Iterator[Any]:
    """Yield the saver of LangGraph on the opened file, which does not wait for the disk."""
    file = saver._lazily.call(lambda opened_saver: opened_saver)
    file.conn.execute("PRAGMA synchronous=OFF")
    yield file
    saver.close()


def test_the_saver_serves_a_langgraph_graph(url: str) -> None:
    """The saver is LangGraph's, but opens its file later; `with_allowlist` returns a saver on the same file."""
    saver: Any = saver_of(url)
    assert isinstance(saver, LazySaver)
    saver.serde = JsonPlusSerializer(allowed_msgpack_modules=[("langchain_core.messages.human", "HumanMessage")])
    graph = chain(("say", lambda state: {"messages": [("ai", "hi")]}), saver=saver)
    graph.invoke(QUESTION, AT)
    narrow = saver.with_allowlist([("langchain_core.messages.ai", "AIMessage")])
    assert [m.content for m in graph.get_state(AT).values["messages"]] == ["go", "hi"]
    assert narrow.serde is not saver.serde
    assert narrow.get_tuple(AT).checkpoint["id"] == saver.get_tuple(AT).checkpoint["id"]
    assert len(list(saver.list(AT, limit=2))) == 2
    saver.delete_thread("1")
    assert saver.get_tuple(AT) is None
    saver.close()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cret@host/db",
        "postgresql://me:s3cr@/et@host/db",
        "postgresql://:s3cret@host/db",
        "postgresql://host/db?user=me&password=s3cret&sslmode=require",
        "postgresql:/me:s3cret@host/db",
        "redis://me:s3cret@host",
        "sqlite://me:s3cret@host/db",
        "host=db user=me password=s3cret",
        "host=db password = 's3cret and more' user=me",
    ],
)
def test_no_form_of_url_shows_its_password(url: str) -> None:
    """Misspelt URLs appear in errors as well, and they may contain a password."""
    masked_url = masked(url)
    assert "s3c" not in masked_url
    assert "et@" not in masked_url
    assert "and more" not in masked_url
