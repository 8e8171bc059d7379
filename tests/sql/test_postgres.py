"""Queries on a real PostgreSQL server."""

import datetime as dt
import decimal
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import psycopg
import pytest
import sqlalchemy

from callboard import ActorStartError, ToolNode
from callboard.testing import ActorContract, tool_call
from callboard_actors.sql import SqlDatabase, SqlError
from callboard_actors.sql._postgres import PostgresBackend
from callboard_actors.sql._rows import Caps
from callboard_actors.sql._work import Job
from tests.agent._postgres import Server

from ._attacks import ENDLESS_POSTGRES, READ_ONLY_POSTGRES, got_through
from ._server import PASSWORD, Shop
from ._shop import ENDLESS

pytestmark = pytest.mark.real_clock


@pytest.mark.exhaustive
class TestSqlDatabase(ActorContract):
    """Contract tests for actors."""

    @pytest.fixture(autouse=True)
    def _shop(self, shop: Shop) -> None:
        self._url = shop.url

    def actor(self) -> SqlDatabase:
        return SqlDatabase(self._url)

    async def ask(self, reference: SqlDatabase) -> object:
        return await reference.query("SELECT * FROM item")


async def test_values_come_as_python_has_them(shop: Shop) -> None:
    """Numbers, dates and bytes are Python values for programs and one line of text for models."""
    statement = """
        SELECT 1 AS n, 1.50::numeric AS price, true AS yes, NULL AS nothing, 'ab'::bytea AS raw,
               DATE '2026-01-02' AS day,
               '{"a": [1]}'::jsonb AS doc, ARRAY[1, 2] AS list, '10:30' AS time, '50%' AS share, 'a:b' AS pair
    """
    async with SqlDatabase(shop.url) as db:
        rows = await db.query(statement)

    assert dict(rows[0]) == {
        "n": 1,
        "price": decimal.Decimal("1.50"),
        "yes": True,
        "nothing": None,
        "raw": b"ab",
        "day": dt.date(2026, 1, 2),
        "doc": '{"a": [1]}',
        "list": "{1,2}",
        "time": "10:30",
        "share": "50%",
        "pair": "a:b",
    }
    assert "1 | 1.50 | true | NULL | x'6162' | 2026-01-02 | " in str(rows)


@pytest.mark.exhaustive
async def test_parameters_are_values_and_never_text(shop: Shop) -> None:
    """A placeholder inside of a literal is no parameter."""
    statement = "SELECT name, ' :id' AS text, id::text FROM item WHERE name = :name OR id = ANY(:ids)"
    async with SqlDatabase(shop.url) as db:
        rows = await db.query(statement, {"name": "tea'; DROP TABLE item; --", "ids": [2, 3]})

    assert rows.values == (("ham", " :id", "2"), ("salt", " :id", "3"))


@pytest.mark.exhaustive
async def test_the_schema_is_told(shop: Shop) -> None:
    """Row counts are the server's estimates, which cost no query."""
    shop.sql("ANALYZE")
    shop.sql("COMMENT ON COLUMN item.price IS 'in euros'")
    async with SqlDatabase(shop.url) as db:
        outline, text = await db.schema(), await db.describe("item")
        with pytest.raises(SqlError, match="did you mean item"):
            await db.describe("items")

    assert "item(id INTEGER key, name TEXT, price NUMERIC, shop_id INTEGER -> shop.id), about 3 rows" in outline
    assert "  price NUMERIC default 1 -- in euros" in text.splitlines()


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("SELECT nam FROM item", 'the column "item.name".\nSELECT nam FROM item\n       ^'),
        ("SELECT 1 FROM itm", 'relation "itm" does not exist; did you mean item?\nSELECT 1 FROM itm\n              ^'),
        ("SELECT\n  name + :n FROM item", "\n  name + $1 FROM item\n       ^"),
        ("SELECT 1 / (id - 1) FROM item", "division by zero."),
        ("DELETE FROM item", "A query is one SELECT, VALUES or TABLE, and changes nothing."),
    ],
)
async def test_an_error_says_where_and_what_may_have_been_meant(shop: Shop, statement: str, says: str) -> None:
    """Positions in the error refer to the statement as the model wrote it."""
    node = ToolNode([SqlDatabase(shop.url)])

    call = tool_call("query", "1", statement=statement, parameters={"n": 1})
    [message] = (await node.ainvoke([call]))["messages"]

    assert message.status == "error"
    assert says in message.content


async def test_the_server_cuts_values_and_stops_after_the_last_row(shop: Shop) -> None:
    """Long values and endless rows are cut at the server and never sent."""
    async with SqlDatabase(shop.url, max_rows=3, max_value=5) as db:
        rows = await db.query(ENDLESS.format("x"))
        long = await db.query("SELECT repeat('ä', 9) AS text, decode('00112233445566', 'hex') AS raw, ARRAY[100, 200]")

    assert rows.values == ((1,), (2,), (3,)) and rows.more
    assert long.values == (
        ("äääää... [cut; 9 characters]", "x'0011223344'... [cut; 7 bytes]", "{100,... [cut; 9 characters]"),
    )


async def test_nothing_that_writes_gets_through(shop: Shop) -> None:
    """Reading beyond the database and changing settings for later statements are refused, too."""
    _prepare(shop)
    async with SqlDatabase(shop.url, connections=1) as db:
        assert await got_through(db, READ_ONLY_POSTGRES) == []
        state = await db.query(
            "SELECT current_user, current_setting('transaction_read_only') AS ro, "
            "current_setting('default_transaction_read_only') AS default_ro"
        )

    assert shop.names() == ["tea", "ham", "salt"]
    assert shop.sql("SELECT last_value, is_called FROM numbers") == [(1, False)]
    assert dict(state[0]) == {"current_user": "reader", "ro": "on", "default_ro": "on"}


def _prepare(shop: Shop) -> None:
    shop.sql("CREATE SEQUENCE numbers")
    shop.sql("GRANT ALL ON SEQUENCE numbers TO reader")
    for name, rights in (("forget_all", ""), ("forget_all_as_owner", "SECURITY DEFINER")):
        shop.sql(
            f"CREATE FUNCTION {name}() RETURNS void LANGUAGE plpgsql {rights} AS $$ BEGIN DELETE FROM item; END $$"
        )
    shop.sql("GRANT DELETE ON item TO reader")


async def test_what_a_session_keeps_is_gone_with_the_statement(shop: Shop) -> None:
    """Settings, advisory locks and large objects do not reach the next statement on the connection."""
    async with SqlDatabase(shop.url, connections=1) as db:
        await db.query("SELECT set_config('statement_timeout', '0', false), set_config('work_mem', '1GB', false)")
        await db.query("SELECT pg_advisory_lock(42), lo_create(77)")
        left = await db.query(
            "SELECT current_setting('work_mem') AS memory, (SELECT count(*) FROM pg_locks "
            "WHERE locktype = 'advisory') AS locks, (SELECT count(*) FROM pg_largeobject_metadata) AS objects"
        )

    assert dict(left[0]) == {"memory": "4MB", "locks": 0, "objects": 0}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ENDLESS_POSTGRES)
async def test_what_never_ends_is_ended_on_the_server(shop: Shop, name: str) -> None:
    """The statement ends even if it disables the timeout or ignores a cancel; the next statement works."""
    shop.sql(
        "CREATE FUNCTION deaf() RETURNS void LANGUAGE plpgsql AS $$ BEGIN LOOP BEGIN PERFORM pg_sleep(60); "
        "EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP; END $$"
    )
    async with SqlDatabase(shop.url, timeout=0.3, connections=1) as db:
        with _lock(shop), pytest.raises(SqlError, match="stopped after"):
            await db.query(ENDLESS_POSTGRES[name])
        assert len(await db.query("SELECT 1")) == 1
    await _until_nothing_runs(shop)


def test_the_server_ends_a_statement_by_itself(shop: Shop) -> None:
    """The server's own timeout works without a watcher in the client, and ends no other statement."""
    backend = PostgresBackend(sqlalchemy.make_url(shop.url), 1)
    caps = Caps(rows=1, bytes=100, value=10)
    try:
        with pytest.raises(SqlError, match=r"stopped after 0\.2 s"):
            backend.query("SELECT pg_sleep(60)", {}, caps, Job(0.2))
        assert backend.query("SELECT pg_backend_pid()", {}, caps, Job(5)).columns == ("pg_backend_pid",)
    finally:
        backend.close()


@contextmanager
def _lock(shop: Shop) -> Iterator[None]:
    """Hold the lock for which a statement waits."""
    with psycopg.connect(shop.admin_url, autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(1)")
        yield


async def _until_nothing_runs(shop: Shop) -> None:
    """Wait until no statement runs. The server notices a cut connection within two seconds."""
    while shop.running():
        await anyio.sleep(0.05)


async def test_a_cancelled_call_is_cancelled_on_the_server(shop: Shop) -> None:
    """A statement without a waiting caller must not use the server."""
    async with SqlDatabase(shop.url, timeout=60, connections=1) as db:
        async with anyio.create_task_group() as group:
            group.start_soon(db.query, "SELECT pg_sleep(60)")
            while not shop.sleeping():
                await anyio.sleep(0.02)
            group.cancel_scope.cancel()
        assert shop.running() == 0
        assert len(await db.query("SELECT 1")) == 1


@pytest.mark.exhaustive
async def test_no_connection_is_left_at_the_end(shop: Shop) -> None:
    """The number of connections of a server is limited."""
    async with SqlDatabase(shop.url, connections=2) as db:
        async with anyio.create_task_group() as group:
            for _ in range(6):
                group.start_soon(db.query, "SELECT pg_sleep(0.05)")
        most = shop.connected()
    while shop.connected():
        await anyio.sleep(0.02)

    assert 1 <= most <= 2


@pytest.mark.exhaustive
async def test_a_server_that_cannot_be_reached_is_told_without_the_password(shop: Shop, server: Server) -> None:
    """Neither the error nor the representation of the actor contains the password."""
    db = SqlDatabase(server.url("nowhere", user="reader", password=PASSWORD))

    with pytest.raises(ActorStartError) as caught:
        async with db:
            pass

    chain = [caught.value, caught.value.__cause__]
    assert "does not exist" in str(caught.value)
    assert not any("s3cret" in text for one in [*chain, db] for text in (str(one), repr(one)))


@pytest.mark.exhaustive
async def test_a_connection_that_was_cut_is_replaced(shop: Shop, server: Server) -> None:
    """The next statement gets a new connection and does not fail."""
    async with SqlDatabase(shop.url, connections=1) as db:
        await db.query("SELECT 1")
        server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'reader'")
        while shop.connected():
            await anyio.sleep(0.02)
        assert len(await db.query("SELECT 1")) == 1
