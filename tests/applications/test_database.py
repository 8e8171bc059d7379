"""The recipe for reading databases: hostile statements of a model, against its confined worker processes."""

import json
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from langchain_core.messages import ToolMessage

from callboard import CallPolicy, ToolNode, tool_call
from callboard_actors.process import Confine, Processes
from tests.process._processes import running

from ._attacks import (
    ENDLESS_POSTGRES,
    ENDLESS_SQLITE,
    LARGE_SQLITE,
    READ_ONLY_POSTGRES,
    READ_ONLY_SQLITE,
    UNINTERRUPTIBLE_SQLITE,
)
from ._server import CONNECTIONS, Shop
from ._shop import new_shop, read_without_authorizer
from .record_agents import example

pytestmark = [pytest.mark.real_clock, pytest.mark.skipif(not hasattr(os, "fork"), reason="confinement is for Linux")]

Ask = Callable[..., Awaitable[ToolMessage]]
TIMEOUT = 1.0
LATE = 3.0
"""Seconds that a killed worker may take on a busy machine."""


@asynccontextmanager
async def reading(tool: Callable[..., str], policy: CallPolicy) -> AsyncIterator[Ask]:
    """Open a node with a tool of the recipe; yield a function that calls the tool."""

    async def ask(statement: str, **parameters: Any) -> ToolMessage:
        call = tool_call(tool.__name__, "1", statement=statement, parameters=parameters or None)
        message: ToolMessage = (await node.ainvoke([call]))["messages"][0]
        return message

    with anyio.fail_after(120):
        async with ToolNode([tool], policies={tool.__name__: policy}, handle_tool_errors=True) as node:
            yield ask


def in_file(path: Path, timeout: float = 10.0) -> CallPolicy:
    confine = Confine(read=[path.parent], environment={"DATABASE": str(path)})
    policy: CallPolicy = example("database").policy_of(confine, timeout)
    return policy


def on_server(url: str, timeout: float = 10.0) -> CallPolicy:
    confine = Confine(network=True, environment={"DATABASE": url})
    policy: CallPolicy = example("database").policy_of(confine, timeout)
    return policy


async def not_refused(ask: Ask, attacks: dict[str, str], folder: str = "") -> list[str]:
    """Return the names of the attacks that did not end with an error message for the model."""
    messages = {name: await ask(statement.replace("{folder}", folder)) for name, statement in attacks.items()}
    return [name for name, message in messages.items() if message.status != "error"]


def test_each_recipe_has_at_most_sixty_lines() -> None:
    for name in ("database", "commands"):
        lines = Path(example(name).__file__).read_text().splitlines()
        assert len([line for line in lines if line.strip()]) <= 60


async def test_rows_are_read_with_parameters_and_a_bound(tmp_path: Path) -> None:
    app = example("database")
    async with reading(app.read_sqlite, in_file(new_shop(tmp_path))) as ask:
        rows = await ask("SELECT id, name, price FROM item WHERE id < :id", id=3)
        odd = await ask("SELECT x'ff', CAST(x'ff' AS text), 'ä', NULL")
        many = await ask("WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n")
        long = await ask("SELECT hex(zeroblob(20000))")
        wrong = await ask("SELECT nam FROM item")

    assert json.loads(rows.text) == {
        "columns": ["id", "name", "price"], "rows": [[1, "tea", 2.5], [2, "ham", 4]], "has_more": False,
    }  # fmt: skip
    assert json.loads(odd.text)["rows"] == [["b'\\xff'", "\ufffd", "ä", None]]
    assert (json.loads(many.text)["rows"][-1], json.loads(many.text)["has_more"]) == ([100], True)
    assert "more than 20000" in long.text
    assert "no such column: nam" in wrong.text


async def test_nothing_that_writes_gets_through_to_the_file(tmp_path: Path) -> None:
    """Writes, other files and settings are refused, each with an error message for the model."""
    path = new_shop(tmp_path)
    before = path.read_bytes()
    async with reading(example("database").read_sqlite, in_file(path)) as ask:
        assert await not_refused(ask, READ_ONLY_SQLITE, str(tmp_path)) == []

    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.exhaustive
async def test_without_its_authorizer_a_statement_still_writes_nothing(tmp_path: Path) -> None:
    """The kernel is the boundary: the worker may only read the folder. The authorizer gives the better message."""
    outside = tmp_path / "outside"
    outside.mkdir()
    outside_path, path = new_shop(outside), tmp_path / "inside" / "shop.db"
    path.parent.mkdir()
    outside_path.rename(path)
    new_shop(outside)
    async with reading(read_without_authorizer, in_file(path)) as ask:
        assert "tea" in (await ask("SELECT name FROM item")).text
        assert "unable to open" in (await ask(f"ATTACH '{outside / 'shop.db'}' AS other")).text
        assert "unable to open" in (await ask(f"VACUUM INTO '{path.parent / 'copy.db'}'")).text
        assert "readonly database" in (await ask("DELETE FROM item")).text

    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("name", [*UNINTERRUPTIBLE_SQLITE, *ENDLESS_SQLITE])
@pytest.mark.exhaustive
async def test_the_end_of_the_worker_bounds_every_statement(tmp_path: Path, name: str) -> None:
    """A function in C that never looks up cannot be interrupted; its process is killed."""
    policy = in_file(new_shop(tmp_path), TIMEOUT)
    pool = policy.runs_in
    assert isinstance(pool, Processes)
    async with reading(example("database").read_sqlite, policy) as ask:
        assert "tea" in (await ask("SELECT name FROM item")).text  # the pool has started
        before, begun = set(pool.pids), time.monotonic()
        message = await ask({**UNINTERRUPTIBLE_SQLITE, **ENDLESS_SQLITE}[name])
        seconds = time.monotonic() - begun
        busy = before - set(pool.pids)
        assert "tea" in (await ask("SELECT name FROM item")).text

    assert message.status == "error"
    assert "did not finish within its timeout" in message.text or "MemoryError" in message.text, message.text
    assert seconds < TIMEOUT + LATE
    assert not running(busy)


async def test_what_is_too_large_is_an_error_for_the_model(tmp_path: Path) -> None:
    async with reading(example("database").read_sqlite, in_file(new_shop(tmp_path), TIMEOUT)) as ask:
        assert await not_refused(ask, LARGE_SQLITE) == []


@pytest.mark.exhaustive
async def test_a_database_with_a_write_ahead_log_needs_a_writer_that_has_it_open(tmp_path: Path) -> None:
    """A reader without rights to write cannot create the shared memory of the log."""
    path = new_shop(tmp_path)
    app = example("database")
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("UPDATE item SET name = 'milk' WHERE id = 1")
        writer.commit()
        async with reading(app.read_sqlite, in_file(path)) as ask:
            assert "milk" in (await ask("SELECT name FROM item")).text
        of_the_file = Confine(read=[path], environment={"DATABASE": str(path)})
        async with reading(app.read_sqlite, app.policy_of(of_the_file)) as ask:
            assert (await ask("SELECT name FROM item")).status == "error"
    async with reading(app.read_sqlite, in_file(path)) as ask:
        assert (await ask("SELECT name FROM item")).status == "error"


@pytest.mark.exhaustive
async def test_rows_of_a_server_are_read_with_parameters(shop: Shop) -> None:
    statement = "SELECT name, price, DATE '2026-01-02', '{1,2}'::int[] FROM item WHERE id < %(id)s"
    async with reading(example("database").read_postgres, on_server(shop.url)) as ask:
        rows = json.loads((await ask(statement, id=2)).text)
        wrong = await ask("SELECT nam FROM item")

    assert rows["rows"] == [["tea", "2.5", "2026-01-02", [1, 2]]]
    assert 'column "nam" does not exist' in wrong.text


@pytest.mark.exhaustive
async def test_nothing_that_writes_gets_through_to_the_server(shop: Shop) -> None:
    """Here the role may write, so that the transaction alone is tried."""
    shop.sql("CREATE SEQUENCE numbers; GRANT ALL ON SEQUENCE numbers TO reader; GRANT DELETE ON item TO reader")
    for name, rights in (("forget_all", ""), ("forget_all_as_owner", "SECURITY DEFINER")):
        shop.sql(
            f"CREATE FUNCTION {name}() RETURNS void LANGUAGE plpgsql {rights} AS $$ BEGIN DELETE FROM item; END $$"
        )
    async with reading(example("database").read_postgres, on_server(shop.url)) as ask:
        assert await not_refused(ask, READ_ONLY_POSTGRES) == []

    assert shop.names() == ["tea", "ham", "salt"]
    assert shop.sql("SELECT last_value, is_called FROM numbers") == [(1, False)]


@pytest.mark.parametrize("name", [name for name in ENDLESS_POSTGRES if name != "a lock that another has"])
@pytest.mark.exhaustive
async def test_a_statement_ends_on_the_server_soon_after_its_call(shop: Shop, name: str) -> None:
    """The server sees that its client has gone, whatever the statement has set."""
    shop.sql(
        "CREATE FUNCTION deaf() RETURNS void LANGUAGE plpgsql AS $$ BEGIN LOOP BEGIN PERFORM pg_sleep(60); "
        "EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP; END $$"
    )
    async with reading(example("database").read_postgres, on_server(shop.url, TIMEOUT)) as ask:
        await ask("SELECT 1")  # the pool has started
        begun = time.monotonic()
        assert "did not finish within its timeout" in (await ask(ENDLESS_POSTGRES[name])).text
        assert time.monotonic() - begun < TIMEOUT + LATE
        with anyio.fail_after(10):
            while shop.running():
                await anyio.sleep(0.05)


@pytest.mark.exhaustive
async def test_a_function_that_never_looks_up_holds_a_processor_of_the_server_and_not_the_call(shop: Shop) -> None:
    """PostgreSQL looks up neither for a timeout nor for a lost client in `btrim`; its role bounds the number."""
    # Longer than the call, and short enough for a test; a larger number of characters takes hours.
    deaf = "SELECT length(btrim(repeat('a', 70000), repeat('b', 70000) || 'a'))"
    shop.sql("ALTER ROLE reader CONNECTION LIMIT 1")
    try:
        async with reading(example("database").read_postgres, on_server(shop.url, TIMEOUT)) as ask:
            assert "did not finish within its timeout" in (await ask(deaf)).text
            assert "too many connections for role" in (await ask(deaf)).text
            assert shop.running() == 1
            with anyio.fail_after(60):
                while shop.running():
                    await anyio.sleep(0.1)
    finally:
        shop.sql(f"ALTER ROLE reader CONNECTION LIMIT {CONNECTIONS}")


@pytest.mark.exhaustive
async def test_a_role_without_the_right_writes_no_message_into_the_log(shop: Shop) -> None:
    """This function writes in a transaction that is read-only, and every role may call it by default."""
    name = "pg_logical_emit_message"
    statement = f"SELECT {name}(false, 'a', 'b')"
    async with reading(example("database").read_postgres, on_server(shop.url)) as ask:
        assert (await ask(statement)).status == "success"
        shop.sql(f"REVOKE EXECUTE ON FUNCTION {name}(boolean, text, text), {name}(boolean, text, bytea) FROM PUBLIC")
        assert "permission denied" in (await ask(statement)).text


@pytest.mark.exhaustive
async def test_a_superuser_is_refused(shop: Shop) -> None:
    async with reading(example("database").read_postgres, on_server(shop.admin_url)) as ask:
        assert "is a superuser" in (await ask("SELECT 1")).text


@pytest.mark.exhaustive
async def test_a_worker_without_network_reads_no_server(shop: Shop) -> None:
    app = example("database")
    confine = Confine(environment={"DATABASE": shop.url})
    async with reading(app.read_postgres, app.policy_of(confine)) as ask:
        assert "OperationalError" in (await ask("SELECT 1")).text
