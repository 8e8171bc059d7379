"""One database used by several event loops, keys and worker processes, and statements after a killed program."""

import signal
import sys
from pathlib import Path

import anyio
import pytest

from callboard import CallPolicy, Limit, ToolNode, child, running
from callboard.testing import tool_call
from callboard_actors.process import Processes
from callboard_actors.sql import SqlDatabase, SqlError

from ._server import Shop
from ._shop import DOUBLED, ENDLESS

pytestmark = pytest.mark.real_clock


async def test_a_timeout_of_the_call_ends_the_statement(url: str) -> None:
    """The database's own error arrives before the call's timeout and tells the model the reason."""
    node = ToolNode([SqlDatabase(url)], policies={"query": CallPolicy(timeout=1.0, limit=Limit(1))})
    calls = [
        tool_call("query", "1", statement=ENDLESS.format("count(*)")),
        tool_call("query", "2", statement="SELECT 1"),
    ]

    late, other = (await node.ainvoke(calls))["messages"]

    assert late.content.startswith("It was stopped after 0.")
    assert other.content == "1\n1\n(1 row)"


@pytest.mark.exhaustive
async def test_it_can_live_in_a_worker_process(url: str) -> None:
    """A worker process can be killed whatever SQLite does."""
    async with Processes(workers=1) as pool, running(child(SqlDatabase(url), runs_in=pool)) as db:
        rows = await db.query("SELECT name FROM item WHERE id = 1")
        with pytest.raises(SqlError, match="did you mean item"):
            await db.query("SELECT * FROM itm")

    assert dict(rows[0]) == {"name": "tea"}


@pytest.mark.exhaustive
async def test_a_statement_that_grows_as_it_is_read_meets_the_memory_of_its_process(url: str) -> None:
    """SQLite expands a table expression wherever it is named, without calling our progress handler meanwhile."""
    async with Processes(workers=1, memory=1024**3) as pool, running(child(SqlDatabase(url), runs_in=pool)) as db:
        with pytest.raises(SqlError, match="more memory than there is"):
            await db.query(DOUBLED)
        assert len(await db.query("SELECT 1")) == 1


_ASKS = """
import anyio, sys
from callboard_actors.sql import SqlDatabase

async def main():
    async with SqlDatabase(sys.argv[1], timeout=600) as db:
        await db.query("SELECT pg_sleep(600)")

anyio.run(main, backend=sys.argv[2])
"""


@pytest.mark.exhaustive
async def test_a_statement_ends_with_the_program_that_was_killed(shop: Shop, anyio_backend_name: str) -> None:
    """No client can cancel the statement, so the server checks every two seconds whether its client is alive."""
    command = [sys.executable, "-c", _ASKS, shop.url, anyio_backend_name]
    async with await anyio.open_process(command, cwd=Path(__file__).parents[2]) as process:
        while not shop.sleeping():
            await anyio.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        await process.wait()
    while shop.sleeping():
        await anyio.sleep(0.1)
