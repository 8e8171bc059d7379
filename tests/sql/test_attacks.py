"""Statements of a model that SQLite has to refuse."""

import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from callboard_actors.sql import SqlDatabase, SqlError
from callboard_actors.sql._rows import Caps
from callboard_actors.sql._sqlite import SqliteBackend
from callboard_actors.sql._work import Job

from ._attacks import ENDLESS_SQLITE, LARGE_SQLITE, READ_ONLY_SQLITE, got_through
from ._shop import DOUBLED, names_in

pytestmark = pytest.mark.real_clock


async def test_nothing_that_writes_gets_through(url: str, tmp_path: Path) -> None:
    """Writes, other files and settings are refused, each with an error message and without a crash."""
    before = (tmp_path / "shop.db").read_bytes()
    async with SqlDatabase(url) as db:
        assert await got_through(db, READ_ONLY_SQLITE, str(tmp_path)) == []

    assert (tmp_path / "shop.db").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["shop.db"]


@pytest.mark.parametrize("name", ENDLESS_SQLITE)
async def test_what_never_ends_is_ended_by_the_database(url: str, name: str) -> None:
    """SQLite's progress handler ends the statement; its thread is free and the connection can be reused."""
    async with SqlDatabase(url, timeout=0.3, connections=1) as db:
        with pytest.raises(SqlError, match=r"stopped after 0\.3 s"):
            await db.query(ENDLESS_SQLITE[name])
        assert len(await db.query("SELECT 1")) == 1


def test_sqlite_ends_a_statement_by_itself(url: str) -> None:
    """The time limit works without any watcher outside of SQLite's thread."""
    backend = SqliteBackend(Path(url.removeprefix("sqlite:///")), 1, writes=False)
    try:
        with pytest.raises(SqlError, match=r"stopped after 0\.2 s"):
            backend.query(ENDLESS_SQLITE["an endless count"], {}, Caps(rows=1, bytes=100, value=10), Job(0.2))
    finally:
        backend.close()


async def test_what_is_too_large_is_refused_before_there_is_memory_for_it(url: str) -> None:
    """SQLite's limits refuse a value before its memory is allocated."""
    async with SqlDatabase(url) as db:
        assert await got_through(db, LARGE_SQLITE) == []


@pytest.mark.exhaustive
async def test_the_slowest_step_that_nothing_can_interrupt_is_short(url: str) -> None:
    """One SQL function is one step of SQLite's virtual machine; its time is bounded by the length of values."""
    text = "replace(hex(zeroblob({})), '0', 'a')"
    slow = f"SELECT instr({text.format(199_000)}, {text.format(99_000)} || 'b')"

    async with SqlDatabase(url, timeout=0.1) as db:
        with pytest.raises(SqlError, match="stopped after"):
            for _ in range(50):
                await db.query(slow)


async def test_full_text_json_and_pragma_tables_can_be_read(url: str, tmp_path: Path) -> None:
    """Harmless virtual tables must not be refused together with dangerous ones."""
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute("CREATE VIRTUAL TABLE note USING fts5(text)")
        connection.execute("INSERT INTO note VALUES ('buy tea'), ('sell ham')")
        connection.execute("CREATE VIRTUAL TABLE place USING rtree(id, x0, x1)")
        connection.execute("INSERT INTO place VALUES (1, 2, 3)")

    async with SqlDatabase(url) as db:
        notes = await db.query("SELECT text FROM note WHERE note MATCH 'tea'")
        places = await db.query("SELECT id FROM place WHERE x0 > 1")
        items = await db.query("SELECT value FROM json_each('[1, 2]')")
        columns = await db.query("SELECT name FROM pragma_table_info('shop')")
        plan = await db.query("EXPLAIN QUERY PLAN SELECT * FROM item")
        for table in ("sqlite_master", "sqlite_schema", "Sqlite_Master"):
            assert len(await db.query(f"SELECT name FROM {table}")) > 0

    assert [*notes.values, *places.values, *items.values, *columns.values] == [
        ("buy tea",), (1,), (1,), (2,), ("id",), ("name",)
    ]  # fmt: skip
    assert len(plan) == 1


async def test_a_cancelled_call_is_interrupted(url: str) -> None:
    """The thread ends with the call and its slot is free."""
    async with SqlDatabase(url, timeout=60, connections=1) as db:
        threads = threading.active_count()
        begun = time.monotonic()
        with anyio.move_on_after(0.3) as scope:
            await db.query(ENDLESS_SQLITE["an endless count"])
        assert scope.cancelled_caught
        assert len(await db.query("SELECT 1")) == 1
        assert time.monotonic() - begun < 15
        assert threading.active_count() <= threads + 2
    assert names_in(url) == ["tea", "ham", "salt"]


async def test_a_database_that_is_left_ends_what_runs(url: str) -> None:
    """Leaving the block cancelled leaves no thread inside of SQLite."""
    async with anyio.create_task_group() as group:
        async with SqlDatabase(url, timeout=60) as db:
            group.start_soon(db.query, ENDLESS_SQLITE["an endless count"])
            await anyio.sleep(0.2)
            group.cancel_scope.cancel()

    assert _open_files(url) == []


def _open_files(url: str) -> list[str]:
    """Return the files of the database that this process has open."""
    found = [str(one.readlink()) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
    return [one for one in found if one.startswith(url.removeprefix("sqlite:///"))]


_GROWS = """
import sys
from pathlib import Path
import anyio
from callboard_actors.sql import SqlDatabase, SqlError

def most():  # and not `ru_maxrss`, which a program has from whoever started it
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])

async def main(url, memory, statement):
    before = most()
    async with SqlDatabase(url, memory=memory, timeout=60) as db:
        try:
            print(len(await db.query(statement)))
        except SqlError as error:
            print(error)
        print(len(await db.query("SELECT * FROM item")))
    print((most() - before) // 1024)

for backend in ("asyncio", "trio"):
    anyio.run(main, sys.argv[1], int(sys.argv[2]) or None, sys.argv[3], backend=backend)
"""


@pytest.mark.parametrize(("memory", "expressions"), [(32, 29), pytest.param(0, 18, marks=pytest.mark.exhaustive)])
def test_a_statement_that_grows_as_it_is_read_meets_a_limit(url: str, memory: int, expressions: int) -> None:
    """Nested common table expressions can double memory per 40 characters; the error affects no other statement."""
    statement = DOUBLED.partition(f", t{expressions + 1} (")[0].partition(" SELECT 1 FROM t29")[0]
    arguments = [url, str(memory * 1024**2), f"{statement} SELECT 1 FROM t{expressions}"]
    ended = subprocess.run([sys.executable, "-c", _GROWS, *arguments], check=True, stdout=subprocess.PIPE, text=True)
    said, rows, grown, again, rows_again, _ = ended.stdout.splitlines()

    assert rows == rows_again == "3"
    if memory:
        assert said.startswith("It takes more memory than there is.")
        assert again == said
        assert int(grown) < 120
    else:
        assert said == again == "1"
        assert int(grown) > 150


TABLES_OF_THE_CONNECTION = ["sqlite_stmt", "SQLITE_STMT", "main.sqlite_stmt", "sqlite_dbpage", "sqlite_memstat"]


@pytest.mark.parametrize("table", TABLES_OF_THE_CONNECTION)
async def test_tables_that_show_the_connection_or_the_process_are_refused(url: str, table: str) -> None:
    """Tables about the connection would show one conversation the statements of another, with their literals."""
    async with SqlDatabase(url, connections=1) as db:
        await db.query("SELECT 'secret of another conversation'")
        for columns in ("*", "count(*)", "1"):
            with pytest.raises(SqlError):
                await db.query(f"SELECT {columns} FROM {table}")
        with pytest.raises(SqlError):
            await db.query(f"WITH x AS (SELECT * FROM {table}) SELECT * FROM x")
