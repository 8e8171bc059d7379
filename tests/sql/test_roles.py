"""PostgreSQL roles whose rights reach beyond their database are refused."""

from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import pytest

from callboard import ActorStartError
from callboard_actors.sql import SqlDatabase, SqlError
from tests.agent._postgres import Server

from ._server import Shop

pytestmark = pytest.mark.real_clock


async def refusal(url: str) -> str:
    """Return the error of opening a database."""
    with anyio.fail_after(40), pytest.raises(ActorStartError) as caught:
        async with SqlDatabase(url):
            pass
    return str(caught.value)


@contextmanager
def role(server: Server, *grants: str) -> Iterator[None]:
    """Create a role that can be granted to others, with some rights of its own."""
    server.sql("CREATE ROLE office NOLOGIN")
    try:
        for grant in grants:
            server.sql(grant)
        yield
    finally:
        server.sql("DROP OWNED BY office")
        server.sql("DROP ROLE office")


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
    with role(server, f"GRANT {name} TO office", "GRANT office TO reader"):
        server.sql("ALTER ROLE reader NOINHERIT")
        try:
            assert f"is, or is a member of, {name}" in await refusal(shop.url)
        finally:
            server.sql("ALTER ROLE reader INHERIT")


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
    with role(server, "GRANT office TO reader"):
        server.sql("ALTER ROLE reader NOINHERIT")
        shop.sql("GRANT EXECUTE ON FUNCTION pg_read_file(text) TO office")
        try:
            assert "may call pg_read_file(text), which PostgreSQL keeps from everybody" in await refusal(shop.url)
        finally:
            shop.sql("REVOKE EXECUTE ON FUNCTION pg_read_file(text) FROM office")
            server.sql("ALTER ROLE reader INHERIT")


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
