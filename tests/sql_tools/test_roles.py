"""A role of PostgreSQL that reaches beyond its database is refused, however it came to that."""

from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import pytest
from tests.agent._postgres import Server

from callboard import ActorStartError
from callboard_actors.sql import SqlDatabase, SqlError

from ._server import Shop

pytestmark = pytest.mark.real_clock


async def refusal(url: str) -> str:
    """Why a database is not opened."""
    with anyio.fail_after(40), pytest.raises(ActorStartError) as caught:
        async with SqlDatabase(url):
            pass
    return str(caught.value)


@contextmanager
def role(server: Server, *grants: str) -> Iterator[None]:
    """Have a role that others may be granted, and which may do something itself."""
    server.sql("CREATE ROLE office NOLOGIN")
    try:
        for grant in grants:
            server.sql(grant)
        yield
    finally:
        server.sql("DROP OWNED BY office")
        server.sql("DROP ROLE office")


async def test_an_administrator_is_refused(shop: Shop) -> None:
    """No transaction keeps one from the server's files; the remedy is a role, and is told."""
    said = await refusal(shop.admin_url)

    assert "may read the server's files" in said
    assert "CREATE ROLE reader LOGIN" in said


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name", ["pg_read_server_files", "pg_write_server_files", "pg_execute_server_program", "pg_signal_backend"]
)
async def test_a_member_of_a_role_that_reaches_the_server_is_refused(shop: Shop, server: Server, name: str) -> None:
    """Also where it is a member of a member, and has to ask for its rights."""
    with role(server, f"GRANT {name} TO office", "GRANT office TO reader"):
        server.sql("ALTER ROLE reader NOINHERIT")
        try:
            assert f"is, or is a member of, {name}" in await refusal(shop.url)
        finally:
            server.sql("ALTER ROLE reader INHERIT")


async def test_what_postgres_keeps_from_everybody_nobody_brings(shop: Shop) -> None:
    """Files by `adminpack`, pages of a table by `pg_surgery`: there is no list of them but the one that the server has.

    What everybody may call of an extension is no reason, nor what is there and withheld.
    """
    for name in ("adminpack", "pg_surgery", "pg_stat_statements", "pgcrypto", "postgres_fdw", "file_fdw"):
        shop.sql(f"CREATE EXTENSION {name}")
    with anyio.fail_after(40):
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
    """Without INHERIT a query takes that role on by itself, and what it runs then has all of its rights."""
    with role(server, "GRANT office TO reader"):
        server.sql("ALTER ROLE reader NOINHERIT")
        shop.sql("GRANT EXECUTE ON FUNCTION pg_read_file(text) TO office")
        try:
            assert "may call pg_read_file(text), which PostgreSQL keeps from everybody" in await refusal(shop.url)
        finally:
            shop.sql("REVOKE EXECUTE ON FUNCTION pg_read_file(text) FROM office")
            server.sql("ALTER ROLE reader INHERIT")


async def test_a_function_in_a_language_that_may_do_anything_is_refused(shop: Shop) -> None:
    """Everybody may call it, unless it is withheld, or in a schema that is; what only a trigger calls is no reason."""
    shop.sql("CREATE LANGUAGE outside HANDLER plpgsql_call_handler")
    shop.sql("CREATE FUNCTION noted() RETURNS trigger LANGUAGE outside AS $$ BEGIN RETURN NEW; END $$")
    shop.sql("CREATE SCHEMA hidden")
    shop.sql("CREATE FUNCTION hidden.run(text) RETURNS text LANGUAGE outside AS $$ BEGIN RETURN $1; END $$")
    with anyio.fail_after(40):
        async with SqlDatabase(shop.url) as db:
            assert len(await db.query("SELECT 1")) == 1
    shop.sql("CREATE FUNCTION run(text) RETURNS text LANGUAGE outside AS $$ BEGIN RETURN $1; END $$")
    assert "may call run(text), which is written in outside, which may do whatever" in await refusal(shop.url)
    shop.sql("REVOKE EXECUTE ON FUNCTION run(text) FROM PUBLIC")
    with anyio.fail_after(40):
        async with SqlDatabase(shop.url) as db:
            assert len(await db.query("SELECT 1")) == 1


async def test_a_function_that_connects_to_other_servers_is_refused(shop: Shop) -> None:
    """`dblink` is everybody's where it is installed; what its remedy names is enough."""
    shop.sql("CREATE EXTENSION dblink")
    assert "dblink(text,text), which connects to others" in await refusal(shop.url)
    for function in ("dblink(text, text)", "dblink(text, text, boolean)", "dblink(text)", "dblink(text, boolean)"):
        shop.sql(f"REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC")
    for options in ("text, text", "text, text, boolean", "text", "text, boolean"):
        shop.sql(f"REVOKE EXECUTE ON FUNCTION dblink_exec({options}) FROM PUBLIC")
    for options in ("text", "text, text"):
        shop.sql(f"REVOKE EXECUTE ON FUNCTION dblink_connect({options}) FROM PUBLIC")
    with anyio.fail_after(40):
        async with SqlDatabase(shop.url) as db:
            for call in (
                "dblink_send_query('dbname=postgres', 'SELECT 1')",
                "dblink_open('dbname=postgres', 'c', 'x')",
            ):
                with pytest.raises(SqlError, match=r"not available|not found|connection"):
                    await db.query(f"SELECT {call}")
