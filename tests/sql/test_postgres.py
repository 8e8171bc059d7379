"""Queries on a real PostgreSQL server, its values, and the roles that are refused."""

import datetime as dt
import decimal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import psycopg
import pytest
import sqlalchemy
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from callboard import ActorStartError, ToolNode
from callboard.testing import ActorContract, tool_call
from callboard_actors.sql import SqlDatabase, SqlError, WritableSqlDatabase
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


# PostgreSQL values without a Python type, and settings that change how values are written.


async def values(shop: Shop, statement: str, parameters: dict[str, Any] | None = None) -> tuple[Any, ...]:
    """Return the first row of a statement's result."""
    with anyio.fail_after(30):
        async with SqlDatabase(shop.url) as db:
            return (await db.query(statement, parameters)).values[0]


async def test_times_that_python_does_not_know_are_what_the_server_writes(shop: Shop) -> None:
    """Many tables contain dates of infinity; one such row must not fail the whole query."""
    found = await values(
        shop,
        "SELECT DATE 'infinity', DATE '0044-03-15 BC', TIMESTAMPTZ '-infinity', TIMESTAMP '12000-01-01 10:30',"
        " TIME '24:00', DATE '2026-01-02'",
    )

    assert found == ("infinity", "0044-03-15 BC", "-infinity", "12000-01-01 10:30:00", "24:00:00", dt.date(2026, 1, 2))


async def test_a_month_is_no_number_of_days(shop: Shop) -> None:
    """Intervals with months or years are returned as text, because the driver would convert them to wrong numbers."""
    found = await values(shop, "SELECT INTERVAL '2 days 3 hours', INTERVAL '1 year 2 mons', INTERVAL '178000000 years'")

    assert found == (dt.timedelta(days=2, hours=3), "1 year 2 mons", "178000000 years")


@pytest.mark.parametrize(("name", "value"), [("DateStyle", "German"), ("IntervalStyle", "iso_8601")])
async def test_a_setting_of_a_statement_is_no_error(shop: Shop, name: str, value: str) -> None:
    """The driver parses only the default format of times, so another format would end the run with an error."""
    statement = f"SELECT set_config('{name}', '{value}', false), now(), INTERVAL '26 hours' FROM generate_series(1, 30)"
    node = ToolNode([SqlDatabase(shop.url, connections=1)])
    async with node:
        [set_] = (await node.ainvoke([tool_call("query", "1", statement=statement)]))["messages"]
        [after] = (await node.ainvoke([tool_call("query", "2", statement="SELECT DATE '2026-01-02'")]))["messages"]

    assert set_.status == "success"
    assert set_.text.endswith("(30 rows)")
    assert after.artifact["rows"] == [[dt.date(2026, 1, 2)]]


async def test_a_mapping_is_json(shop: Shop) -> None:
    """A model passes parameters as JSON and writes a mapping as an object."""
    assert await values(shop, "SELECT :doc::jsonb -> 'tea' = '[1]'", {"doc": {"tea": [1]}}) == (True,)


async def test_what_a_change_returns_can_be_stored(shop: Shop) -> None:
    """The driver returns ranges as objects that no checkpointer can store."""
    statement = "SELECT int4range(1, 5), ARRAY[int4range(1, 2)], '{\"a\": [1]}'::jsonb, 1.5::numeric, '{1}'::int[]"
    node = ToolNode([WritableSqlDatabase(shop.url, approve=False, once=None)])
    [message] = (await node.ainvoke([tool_call("execute", "1", statement=statement)]))["messages"]
    serializer = JsonPlusSerializer()

    assert message.artifact["rows"][0][:3] == ["[1, 5)", ["[1, 2)"], {"a": [1]}]
    assert serializer.loads_typed(serializer.dumps_typed(message)).artifact == message.artifact


async def test_what_a_change_returns_and_cannot_be_read_says_what_to_do(shop: Shop) -> None:
    """The change is rolled back, because its result could not be reported."""
    insert = "INSERT INTO item VALUES (9, 'pea', 1, NULL) RETURNING DATE 'infinity'"
    async with WritableSqlDatabase(shop.url, approve=False, once=None) as db:
        with pytest.raises(SqlError, match=r"date too large .*\. Ask for it as a text, .*: value::text"):
            await db.execute(insert)
        changed = await db.execute(f"{insert}::text")

    assert changed.values == (("infinity",),)
    assert shop.names() == ["tea", "ham", "salt", "pea"]


# PostgreSQL roles whose rights reach beyond their database are refused.


async def refusal(url: str) -> str:
    """Return the error of opening a database."""
    with anyio.fail_after(40), pytest.raises(ActorStartError) as caught:
        async with SqlDatabase(url):
            pass
    return str(caught.value)


@contextmanager
def role(server: Server, *grants: str) -> Iterator[None]:
    """Create a role with some rights of its own, which the reader has only after SET ROLE."""
    server.sql("CREATE ROLE office NOLOGIN; ALTER ROLE reader NOINHERIT; GRANT office TO reader")
    try:
        for grant in grants:
            server.sql(grant)
        yield
    finally:
        server.sql("ALTER ROLE reader INHERIT; DROP OWNED BY office; DROP ROLE office")


async def test_an_administrator_is_refused(shop: Shop) -> None:
    """A read-only transaction does not protect the server's files from a superuser; the error suggests a role."""
    said = await refusal(shop.admin_url)

    assert "may read the server's files" in said
    assert "CREATE ROLE reader LOGIN" in said


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name", ["pg_read_server_files", "pg_write_server_files", "pg_execute_server_program", "pg_signal_backend"]
)
async def test_a_member_of_a_role_that_reaches_the_server_is_refused(shop: Shop, server: Server, name: str) -> None:
    """Indirect membership counts, even if the rights first need SET ROLE."""
    with role(server, f"GRANT {name} TO office"):
        assert f"is, or is a member of, {name}" in await refusal(shop.url)


async def test_what_postgres_keeps_from_everybody_nobody_brings(shop: Shop) -> None:
    """The server's privileges tell which functions are restricted, such as those of `adminpack` and `pg_surgery`.

    Functions of an extension that everybody may call are no reason to refuse a role, nor are functions withheld from
    it.
    """
    for name in ("adminpack", "pg_surgery", "pg_stat_statements", "pgcrypto", "postgres_fdw", "file_fdw"):
        shop.sql(f"CREATE EXTENSION {name}")
    async with SqlDatabase(shop.url) as db:
        with pytest.raises(SqlError, match="permission denied"):
            await db.query("SELECT pg_file_unlink('/etc/passwd')")
    shop.sql("GRANT EXECUTE ON FUNCTION pg_file_unlink(text), heap_force_kill(regclass, tid[]) TO reader")
    said = await refusal(shop.url)

    assert (
        "may call heap_force_kill(regclass,tid[]), which PostgreSQL keeps from everybody; pg_file_unlink(text)" in said
    )
    assert "REVOKE EXECUTE ON FUNCTION heap_force_kill(regclass,tid[]) FROM PUBLIC" in said


@pytest.mark.exhaustive
async def test_what_it_may_call_by_another_role_counts(shop: Shop, server: Server) -> None:
    """Without INHERIT a query can still change to the other role, and then has all of its rights."""
    with role(server):
        shop.sql("GRANT EXECUTE ON FUNCTION pg_read_file(text) TO office")
        try:
            assert "may call pg_read_file(text), which PostgreSQL keeps from everybody" in await refusal(shop.url)
        finally:
            shop.sql("REVOKE EXECUTE ON FUNCTION pg_read_file(text) FROM office")


async def test_a_function_in_a_language_that_may_do_anything_is_refused(shop: Shop) -> None:
    """Every role may call such a function unless that is revoked or its schema is closed.

    Trigger functions are no reason.
    """
    shop.sql("CREATE LANGUAGE outside HANDLER plpgsql_call_handler")
    shop.sql("CREATE FUNCTION noted() RETURNS trigger LANGUAGE outside AS $$ BEGIN RETURN NEW; END $$")
    shop.sql("CREATE SCHEMA hidden")
    shop.sql("CREATE FUNCTION hidden.run(text) RETURNS text LANGUAGE outside AS $$ BEGIN RETURN $1; END $$")
    async with SqlDatabase(shop.url) as db:
        assert len(await db.query("SELECT 1")) == 1
    shop.sql("CREATE FUNCTION run(text) RETURNS text LANGUAGE outside AS $$ BEGIN RETURN $1; END $$")
    assert "may call run(text), which is written in outside, which may do whatever" in await refusal(shop.url)
    shop.sql("REVOKE EXECUTE ON FUNCTION run(text) FROM PUBLIC")
    async with SqlDatabase(shop.url) as db:
        assert len(await db.query("SELECT 1")) == 1


async def test_a_function_that_connects_to_other_servers_is_refused(shop: Shop) -> None:
    """Every role may call `dblink` where it is installed; the statement that the error suggests is sufficient."""
    shop.sql("CREATE EXTENSION dblink")
    assert "dblink(text,text), which connects to others" in await refusal(shop.url)
    for function in ("dblink(text, text)", "dblink(text, text, boolean)", "dblink(text)", "dblink(text, boolean)"):
        shop.sql(f"REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC")
    for options in ("text, text", "text, text, boolean", "text", "text, boolean"):
        shop.sql(f"REVOKE EXECUTE ON FUNCTION dblink_exec({options}) FROM PUBLIC")
    for options in ("text", "text, text"):
        shop.sql(f"REVOKE EXECUTE ON FUNCTION dblink_connect({options}) FROM PUBLIC")
    async with SqlDatabase(shop.url) as db:
        for call in (
            "dblink_send_query('dbname=postgres', 'SELECT 1')",
            "dblink_open('dbname=postgres', 'c', 'x')",
        ):
            with pytest.raises(SqlError, match=r"not available|not found|connection"):
                await db.query(f"SELECT {call}")
