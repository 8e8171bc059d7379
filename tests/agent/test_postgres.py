"""Agents on PostgreSQL: a real server on loopback, by URL and by LangGraph's own savers, sync and async."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import psycopg
import pytest
from anyio import to_thread
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg import Connection
from psycopg.rows import DictRow, dict_row

from callboard import StorageError, create_react_agent
from callboard.conversations._database import close, saver_of, store_of
from callboard.conversations._postgresql import CONNECTIONS
from callboard.extend import run_on_asyncio
from callboard.testing import Recorder, ScriptedModel, calls

from ._postgres import PASSWORD, Server, running_postgres
from ._savers import AT, QUESTION, complaint, contents, errors_at_once, say, scripted, use_database

pytestmark = [pytest.mark.real_clock, pytest.mark.exhaustive]

WAIT = 60
OPTIONS: dict[str, Any] = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}

KINDS = pytest.mark.parametrize("kind", ["url", "sync", "async"])


@asynccontextmanager
async def saver_on(url: str, kind: str) -> AsyncIterator[Any]:
    """Return a checkpointer; on trio, the async one lives on the background loop of asyncio."""
    if kind == "url":
        saver = saver_of(url)
        yield saver
        await close(saver)
    elif kind == "sync":
        with Connection[DictRow].connect(url, **OPTIONS) as connection:
            saver = PostgresSaver(connection)
            await to_thread.run_sync(saver.setup)
            yield saver
    else:
        manager = AsyncPostgresSaver.from_conn_string(url)
        saver = await run_on_asyncio(manager.__aenter__)
        await run_on_asyncio(saver.setup)
        yield saver
        await run_on_asyncio(partial(manager.__aexit__, None, None, None))


@KINDS
async def test_every_place_of_a_thread_can_be_gone_back_to(postgres_url: str, kind: str) -> None:
    replies = [calls("work"), "one", "two", "three", "other two"]
    async with saver_on(postgres_url, kind) as saver:
        agent = scripted(replies, [Recorder().tool("work")], checkpointer=saver)
        for text in ("a", "b", "c"):
            await agent.ainvoke(say(text), AT)
        history = [snapshot async for snapshot in agent.aget_state_history(AT)]
        after_first = next(snapshot for snapshot in history if contents(snapshot.values)[-1:] == ["one"])
        forked = await agent.ainvoke(say("B"), after_first.config)
        whole_history = [snapshot async for snapshot in agent.aget_state_history(AT)]
        now = await agent.aget_state(AT)
        before = await agent.aget_state(history[0].config)
    assert contents(forked) == ["a", "", "work", "one", "B", "other two"]
    assert now.values == forked
    assert contents(before.values) == ["a", "", "work", "one", "b", "two", "c", "three"]
    assert [contents(snapshot.values) for snapshot in history] == [
        contents(snapshot.values) for snapshot in whole_history[-len(history) :]
    ]
    assert [len(snapshot.values["messages"]) for snapshot in history if not snapshot.next][:3] == [8, 6, 4]


@KINDS
async def test_storage_grows_with_what_is_new(postgres_url: str, postgres_server: Server, kind: str) -> None:
    """Ten more turns need as much space as ten earlier ones, because earlier messages are not stored again."""
    sizes = []
    async with saver_on(postgres_url, kind) as saver:
        agent = scripted(["x" * 1000], [], loop=True, checkpointer=saver)
        for _ in range(4):
            for _ in range(10):
                await agent.ainvoke(say("y" * 1000), AT)
            tables = ("checkpoint_blobs", "checkpoint_writes")
            rows = [postgres_server.sql(f"SELECT sum(length(blob)) FROM {table}", postgres_url) for table in tables]
            sizes.append(sum(int(row[0][0]) for row in rows))
        snapshots = [snapshot async for snapshot in agent.aget_state_history(AT)]

    first, last = sizes[1] - sizes[0], sizes[3] - sizes[2]
    assert last < 1.5 * first, sizes
    assert sizes[-1] < 10 * 40 * 2000
    assert [len(snapshot.values["messages"]) for snapshot in snapshots if not snapshot.next and snapshot.values] == [
        *range(80, 0, -2)
    ]


async def test_fifty_conversations_at_once_share_a_few_connections(postgres_url: str, postgres_server: Server) -> None:
    saver = saver_of(postgres_url)

    def reply(messages: Any) -> Any:
        message = messages[-1]
        if message.type == "human":
            return calls(("work", {"query": f"{message.content} 1"}), ("work", {"query": f"{message.content} 2"}))
        return f"worked on {message.content}"

    agent = scripted([reply], [Recorder().tool("work")], loop=True, checkpointer=saver)
    results: dict[int, list[str]] = {}
    peak = 0

    async def talk(number: int) -> None:
        config: Any = {"configurable": {"thread_id": str(number)}}
        await agent.ainvoke(say(f"a{number}"), config)
        results[number] = contents(await agent.ainvoke(say(f"b{number}"), config))

    async def watch() -> None:
        nonlocal peak
        count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'callboard'"
        while len(results) < 50:
            peak = max(peak, (await to_thread.run_sync(postgres_server.sql, count))[0][0])
            await anyio.sleep(0.05)

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        for number in range(50):
            group.start_soon(talk, number)
    await close(saver)

    def turn(name: str) -> list[str]:
        return [name, "", f"{name} 1", f"{name} 2", f"worked on {name} 2"]

    assert results == {n: turn(f"a{n}") + turn(f"b{n}") for n in range(50)}
    assert 1 < peak <= CONNECTIONS + 1  # one run creates the tables


async def test_connections_that_were_cut_between_two_turns_are_not_missed(
    postgres_url: str, postgres_server: Server
) -> None:
    """Firewalls and server restarts cut idle connections."""
    saver = saver_of(postgres_url)
    agent = scripted(["one", "two"], [], checkpointer=saver)
    await agent.ainvoke(QUESTION, AT)
    assert await to_thread.run_sync(postgres_server.cut_connections, postgres_url) >= 1
    result = await agent.ainvoke(QUESTION, AT)
    await close(saver)
    assert contents(result) == ["go", "one", "go", "two"]


async def test_connections_that_are_cut_in_the_middle_of_a_turn_are_not_missed(
    postgres_url: str, postgres_server: Server
) -> None:
    """Data whose write was cut is stored again, which gives the same result."""

    async def cut(query: str = "") -> str:
        """Cut every connection."""
        return str(await to_thread.run_sync(postgres_server.cut_connections, postgres_url) >= 1)

    saver = saver_of(postgres_url)
    # One cut per batch: a repeated write is not repeated again, so a second cut would be an error.
    model = ScriptedModel([calls("work", "cut", "work"), calls("cut"), calls("cut", "work"), "done"])
    agent = create_react_agent(model, [cut, Recorder().tool("work")], checkpointer=saver)
    result = await agent.ainvoke(QUESTION, AT)
    state = await agent.aget_state(AT)
    await close(saver)
    assert contents(result)[-1] == "done"
    assert state.values["messages"] == result["messages"]
    assert complaint(result["messages"]) is None


async def until_a_result_is_stored(server: Server, url: str) -> None:
    stored = "SELECT count(*) FROM checkpoint_writes WHERE position('ToolMessage' IN encode(blob, 'escape')) > 0"
    while (await to_thread.run_sync(server.sql, stored, url))[0][0] == 0:
        await anyio.sleep(0.01)


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_saver_of_the_users_own_that_loses_its_connection_loses_nothing_else(
    postgres_url: str, postgres_server: Server, kind: str
) -> None:
    """The driver's error arrives unwrapped; with a new connection the thread continues, and finished calls are kept."""
    recorder = Recorder()

    async def cut(query: str = "") -> str:
        """Cut every connection, once the work is done."""
        await until_a_result_is_stored(postgres_server, postgres_url)
        await to_thread.run_sync(postgres_server.cut_connections, postgres_url)
        return "cut"

    with pytest.raises(psycopg.OperationalError):
        async with saver_on(postgres_url, kind) as saver:
            model = ScriptedModel([calls("work", "cut"), "done"])
            await create_react_agent(model, [recorder.tool("work"), cut], checkpointer=saver).ainvoke(QUESTION, AT)
    async with saver_on(postgres_url, kind) as saver:
        agent = scripted(["done"], [recorder.tool("work"), recorder.tool("cut")], checkpointer=saver)
        result = await agent.ainvoke(None, AT)
    assert contents(result)[-1] == "done"
    assert contents(result)[2] == "work"
    assert recorder.count("started", "work") == 1
    assert complaint(result["messages"]) is None


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server of this test's own, which it may stop."""
    with running_postgres() as server:
        yield server


async def test_a_server_that_stops_in_the_middle_is_named_and_nothing_is_lost(own_server: Server) -> None:
    """The same agent object continues when the server is back."""
    recorder = Recorder()

    async def stop(query: str = "") -> str:
        """Stop the server, once the work is done."""
        if not stopped:
            await until_a_result_is_stored(own_server, own_server.url())
            stopped.append(True)
            await to_thread.run_sync(own_server.stop)
        return "stopped"

    stopped: list[bool] = []
    saver = saver_of(own_server.url())
    model = ScriptedModel([calls("work", "stop"), "done"])
    agent = create_react_agent(model, [recorder.tool("work"), stop], checkpointer=saver)
    with pytest.raises(StorageError, match=f"127.0.0.1:{own_server.port}/postgres' cannot be reached") as caught:
        await agent.ainvoke(QUESTION, AT)
    with pytest.raises(StorageError, match="cannot be reached"):
        await agent.aget_state(AT)
    await to_thread.run_sync(own_server.start)
    result = await agent.ainvoke(None, AT)
    await close(saver)
    assert PASSWORD not in str(caught.value)
    assert "refused" in str(caught.value)
    assert contents(result)[2] == "work"
    assert contents(result)[-1] == "done"
    assert recorder.count("started", "work") == 1


async def refusal(url: str) -> str:
    """Return the errors of an agent and of a store about an unusable database."""
    saver, store = saver_of(url), store_of(url)
    agent = scripted(["never"], [], checkpointer=saver)
    with pytest.raises(StorageError) as caught:
        await agent.ainvoke(QUESTION, AT)
    with pytest.raises(StorageError):
        await store.aget(("a",), "b")  # type: ignore[union-attr]
    assert isinstance(caught.value.__cause__, psycopg.Error) or caught.value.__cause__ is None
    return str(caught.value)


async def test_a_wrong_password_is_told_and_not_shown(postgres_server: Server) -> None:
    """The error shows neither the wrong nor the right password."""
    reason = await refusal(postgres_server.url(password="s3cret"))
    assert "password authentication failed" in reason
    assert "s3cret" not in reason


async def test_a_database_that_there_is_not_is_told(postgres_server: Server) -> None:
    assert 'database "nowhere" does not exist' in await refusal(postgres_server.url("nowhere"))


async def test_a_user_who_may_not_make_tables_is_told(postgres_url: str, postgres_server: Server) -> None:
    """The error names the missing privilege, which is not needed once the tables exist."""
    name = postgres_url.rpartition("/")[2]
    postgres_server.sql("DROP ROLE IF EXISTS guest")
    postgres_server.sql("CREATE ROLE guest LOGIN PASSWORD 'guest'")
    guest = postgres_server.url(name, user="guest", password="guest")
    try:
        reason = await refusal(guest)
        assert "Allow this user to make tables" in reason

        owner: Any = saver_of(postgres_url)
        await to_thread.run_sync(owner.get_tuple, AT)
        await close(owner)
        postgres_server.sql("GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO guest", postgres_url)
        saver = saver_of(guest)
        result = await scripted(["hi"], [], checkpointer=saver).ainvoke(QUESTION, AT)
        await close(saver)
        assert contents(result) == ["go", "hi"]
    finally:
        postgres_server.sql("DROP OWNED BY guest", postgres_url)
        postgres_server.sql("DROP ROLE guest")


async def test_a_pooler_that_mixes_the_statements_of_its_clients_is_told(
    postgres_url: str, postgres_server: Server
) -> None:
    """PgBouncer in transaction mode gives a client the connection on which another one has prepared its statements."""
    saver = saver_of(postgres_url)
    agent = scripted(["hi", "again"], [], checkpointer=saver)
    await agent.ainvoke(QUESTION, AT)
    # A trigger prepares statements by the names that psycopg gives to its own.
    postgres_server.sql(
        "CREATE FUNCTION prepare_all() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "DEALLOCATE ALL; "
        "FOR number IN 0..99 LOOP EXECUTE format('PREPARE _pg3_%s AS SELECT 1', number); END LOOP; "
        "RETURN NULL; END $$",
        postgres_url,
    )
    postgres_server.sql(
        "CREATE TRIGGER prepare_all AFTER INSERT ON checkpoints EXECUTE FUNCTION prepare_all()", postgres_url
    )
    with pytest.raises(StorageError, match="use the pooler's session mode"):
        for _ in range(3):
            await agent.ainvoke(QUESTION, AT)
    await close(saver)


@pytest.mark.parametrize("table", ["checkpoint_migrations", "store_migrations"])
async def test_tables_of_a_newer_version_are_refused(postgres_url: str, postgres_server: Server, table: str) -> None:
    """Writing to a newer format without knowing it could destroy data."""
    saver, store = saver_of(postgres_url), store_of(postgres_url)
    await to_thread.run_sync(saver.get_tuple, AT)  # type: ignore[union-attr]
    await store.aput(("a",), "b", {"c": 1})  # type: ignore[union-attr]
    await close(saver, store)
    postgres_server.sql(f"INSERT INTO {table} (v) VALUES (999)", postgres_url)

    with pytest.raises(StorageError, match="Upgrade langgraph-checkpoint-postgres"):
        if table == "store_migrations":
            await store.aget(("a",), "b")  # type: ignore[union-attr]
        else:
            await to_thread.run_sync(saver.get_tuple, AT)  # type: ignore[union-attr]
    await close(saver, store)


@pytest.mark.parametrize("make", [saver_of, store_of])
def test_many_machines_may_make_the_tables_at_once(postgres_url: str, make: Any) -> None:
    """One machine creates the tables, and the others wait without blocking it."""
    databases = [make(postgres_url) for _ in range(8)]
    assert errors_at_once(use_database, databases) == []
    for database in databases:
        database.close()
