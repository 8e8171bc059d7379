"""Changes to a database: approved by a person and made once."""

import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from langchain_core.messages import ToolMessage

from callboard import CallsInterrupted, ToolNode
from callboard.middleware import RequireApproval
from callboard.testing import ActorContract, tool_call
from callboard_actors.sql import SqlError, WritableSqlDatabase

from ._server import Shop
from ._shop import ENDLESS, execute, names_in, new_shop

pytestmark = pytest.mark.real_clock

BUN = tool_call("execute", "1", statement="INSERT INTO item (id, name) VALUES (:id, :name)", parameters={"id": 9, "name": "bun"})  # fmt: skip  # noqa: E501


class TestWritableSqlDatabase(ActorContract):
    """Contract tests for actors."""

    @pytest.fixture(autouse=True)
    def _shop(self, tmp_path: Path) -> None:
        self._url = new_shop(tmp_path)

    def actor(self) -> WritableSqlDatabase:
        return WritableSqlDatabase(self._url, approve=False)

    async def ask(self, reference: WritableSqlDatabase) -> object:
        return await reference.execute("UPDATE item SET price = price + 1")


async def answered(node: ToolNode, call: Any, answer: Any) -> ToolMessage:
    """Return the message of a call after a person has answered."""
    with pytest.raises(CallsInterrupted) as caught:
        await node.ainvoke([call])
    [question] = caught.value.interrupts
    found = await node.ainvoke([call], ledger=caught.value.ledger, resume={question.id: answer})
    message: ToolMessage = found["messages"][0]
    return message


def guarded(url: str, *inner: Any) -> ToolNode:
    return ToolNode([WritableSqlDatabase(url)], middleware=[RequireApproval(["execute"]), *inner])


REMOVAL = {"statement": "DELETE FROM item WHERE id = :id", "parameters": {"id": 1}}


@pytest.mark.parametrize(
    ("answer", "said", "names"),
    [
        ({"type": "accept"}, "1 row changed.", ["tea", "ham", "salt", "bun"]),
        ({"type": "ignore", "args": "no buns"}, "no buns", ["tea", "ham", "salt"]),
        ({"type": "edit", "args": {"args": REMOVAL}}, "1 row changed.", ["ham", "salt"]),
    ],
    ids=["agreed to", "declined", "changed by the person, which counts as approval"],
)
async def test_what_a_person_has_decided_is_done(url: str, answer: object, said: str, names: list[str]) -> None:
    """The model is told how many rows were changed, or reads the refusal."""
    message = await answered(guarded(url), BUN, answer)

    assert said in message.content
    assert names_in(url) == names


async def test_nothing_runs_where_nobody_is_asked(url: str) -> None:
    """A forgotten approval middleware is an error, not a database that a model can change freely."""
    with pytest.raises(RuntimeError, match=r"nobody was asked.*RequireApproval\(\['execute'\]\)"):
        await ToolNode([WritableSqlDatabase(url)]).ainvoke([BUN])

    assert names_in(url) == ["tea", "ham", "salt"]


async def test_an_approval_is_not_for_other_arguments(url: str) -> None:
    """Inner middleware could otherwise change the arguments after the answer."""

    async def changes(request: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
        args = {"statement": "DELETE FROM item"}
        return await call_next(request.override(tool_call={**request.tool_call, "args": args}))

    with pytest.raises(RuntimeError, match="something else than a person has agreed to"):
        await answered(guarded(url, changes), BUN, {"type": "accept"})

    assert names_in(url) == ["tea", "ham", "salt"]


async def test_who_says_so_needs_no_person(url: str) -> None:
    """A program may turn off approval; the same call in another run is executed again."""
    call = tool_call("execute", "1", statement="INSERT INTO item (name) VALUES ('bun')")
    node = ToolNode([WritableSqlDatabase(url, approve=False)])

    for _ in range(2):
        await node.ainvoke([call])
    async with WritableSqlDatabase(url, approve=False) as db:
        rows = await db.execute("UPDATE item SET price = 2 WHERE name = 'bun' RETURNING name")

    assert names_in(url) == ["tea", "ham", "salt", "bun", "bun"]
    assert (rows.changed, rows.values) == (2, (("bun",), ("bun",)))


async def test_all_rows_are_changed_though_few_are_shown(url: str) -> None:
    """The cap applies to the answer only, although SQLite changes rows only as far as it is read."""
    async with WritableSqlDatabase(url, approve=False, max_rows=1) as db:
        rows = await db.execute("DELETE FROM item RETURNING id")

    assert len(rows) == 1 and rows.more
    assert names_in(url) == []


@pytest.mark.parametrize(
    "statement",
    [
        "COMMIT",
        "ROLLBACK",
        "BEGIN",
        "SAVEPOINT a",
        "DELETE FROM item; DELETE FROM shop",
        "ATTACH 'other.db' AS other",
        "VACUUM INTO 'other.db'",
        "PRAGMA writable_schema = ON",
        "PRAGMA foreign_keys = OFF",
        "SELECT load_extension('x')",
        "UPDATE item SET name = NULL",
        "INSERT INTO item (name, shop_id) VALUES ('x', 99)",
        f"INSERT INTO item (name) {ENDLESS.format('x')}",
    ],
)
async def test_what_fails_changes_nothing(url: str, statement: str) -> None:
    """Each statement is a transaction that it cannot leave; the next one starts a new transaction."""
    async with WritableSqlDatabase(url, approve=False, timeout=0.5, connections=1) as db:
        with pytest.raises(SqlError):
            await db.execute(statement)
        assert len(await db.query("SELECT * FROM item")) == 3
        assert (await db.execute("UPDATE item SET price = 1")).changed == 3

    assert names_in(url) == ["tea", "ham", "salt"]


@pytest.mark.exhaustive
async def test_a_file_that_another_program_writes_is_said_to_be_locked(url: str) -> None:
    """The error comes after a bounded wait."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as other:
        other.execute("BEGIN IMMEDIATE")
        async with WritableSqlDatabase(url, approve=False) as db:
            with pytest.raises(SqlError, match=r"locked\. Another program is writing; try again"):
                await db.execute("UPDATE item SET price = 1")


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
@pytest.mark.parametrize("once", ["once", "again"])
async def test_a_killed_agent_has_changed_the_database_once(
    tmp_path: Path, anyio_backend_name: str, request: pytest.FixtureRequest, kind: str, once: str
) -> None:
    """The kill comes after the commit and before the result is stored.

    Either the database knows that the change was made, or the model is told to find out.
    """
    shop: Shop | None = request.getfixturevalue("shop") if kind == "postgresql" else None
    url = new_shop(tmp_path) if shop is None else shop.url
    _with_numbers(url, shop)

    with anyio.fail_after(100):
        asked = await _life(anyio_backend_name, url, tmp_path, once, "ask")
        died = await _life(anyio_backend_name, url, tmp_path, once, "die")
        resumed = await _life(anyio_backend_name, url, tmp_path, once, "resume")

    names = names_in(url) if shop is None else shop.names()
    assert (asked.returncode, died.returncode, resumed.returncode) == (0, -9, 0), resumed.stderr
    assert sorted(names) == sorted(["tea", "ham", "salt", "bun"])
    told = resumed.stdout.decode().splitlines()
    if once == "once":
        assert told == ["1 row changed.", "It had been executed before, by this call."]
    else:
        assert "whether it had any effect is unknown" in told[0]


def _with_numbers(url: str, shop: Shop | None) -> None:
    """Make both databases assign item ids by themselves."""
    if shop is None:
        execute(url, "UPDATE item SET price = price")
    else:
        shop.sql("ALTER TABLE item ALTER id ADD GENERATED BY DEFAULT AS IDENTITY (START 10)")


async def _life(backend: str, url: str, folder: Path, once: str, step: str) -> "subprocess.CompletedProcess[bytes]":
    saver = f"sqlite:///{folder}/agent.db"
    script = Path(__file__).with_name("_killed.py")
    return await anyio.run_process([sys.executable, str(script), backend, url, saver, once, step], check=False)
