"""Queries on SQLite by programs and by models, in several processes, and statements after a killed program."""

import signal
import sys
from pathlib import Path

import anyio
import pytest

from callboard import ActorStartError, CallPolicy, Limit, ToolNode, child, running
from callboard.testing import ActorContract, tool_call
from callboard_actors.process import Processes
from callboard_actors.sql import SqlDatabase, SqlError

from ._server import Shop
from ._shop import DOUBLED, ENDLESS, execute, new_shop

pytestmark = pytest.mark.real_clock


class TestSqlDatabase(ActorContract):
    """Contract tests for actors."""

    @pytest.fixture(autouse=True)
    def _shop(self, tmp_path: Path) -> None:
        self._url = new_shop(tmp_path)

    def actor(self) -> SqlDatabase:
        return SqlDatabase(self._url)

    async def ask(self, reference: SqlDatabase) -> object:
        return await reference.query("SELECT * FROM item")


async def test_a_program_has_rows_as_mappings_and_as_tuples(url: str) -> None:
    """Without an agent the database is a context manager."""
    async with SqlDatabase(url) as db:
        rows = await db.query("SELECT name, price FROM item WHERE id = :id", {"id": 1})

    assert list(rows) == [{"name": "tea", "price": 2.5}]
    assert rows.values == (("tea", 2.5),)
    assert rows[-1]["name"] == "tea" and len(rows[:1]) == 1


async def test_it_can_be_opened_again_but_not_twice_at_once(url: str) -> None:
    """A second block would close the connections of the first one."""
    db = SqlDatabase(url)

    for _ in range(2):
        async with db as open_db:
            with pytest.raises(RuntimeError, match="open already"):
                async with db:
                    pass
            assert len(await open_db.query("SELECT 1")) == 1


async def test_a_model_reads_a_table_and_the_program_has_the_rows(url: str) -> None:
    """The text is compact, and the artifact has the rows for programs, such as for a chart."""
    node = ToolNode([SqlDatabase(url)])
    call = tool_call("query", "1", statement="SELECT id, price, 'a|b' || char(10) AS odd FROM item WHERE id <> 2")

    [message] = (await node.ainvoke([call]))["messages"]

    [none] = (await node.ainvoke([tool_call("query", "2", statement="SELECT id FROM item WHERE 0")]))["messages"]

    assert none.content == "id\n(0 rows)"  # a model that reads an empty message would ask again
    assert message.content == "id | price | odd\n1 | 2.5 | a\\|b\\n\n3 | NULL | a\\|b\\n\n(2 rows)"
    assert message.artifact == {
        "columns": ["id", "price", "odd"],
        "rows": [[1, 2.5, "a|b\n"], [3, None, "a|b\n"]],
        "more": False,
    }


async def test_there_are_no_more_tools_than_reading_takes(url: str) -> None:
    """A tool that always refuses would only invite a model to call it."""
    assert set(ToolNode([SqlDatabase(url)]).tools_by_name) == {"schema", "describe", "query"}


async def test_the_schema_is_told_in_a_line_for_each_table(url: str) -> None:
    """A model needs columns, types, keys and row counts to write a statement."""
    async with SqlDatabase(url) as db:
        text = await db.schema()

    assert text.splitlines() == [
        "item(id INTEGER key, name TEXT, price NUMERIC, shop_id INTEGER -> shop.id), 3 rows",
        "shop(id INTEGER key, name TEXT), 1 row",
    ]


async def test_a_large_schema_is_cut_and_says_what_was_left_out(url: str) -> None:
    """A thousand tables would fill the context window of a model."""
    for number in range(20):
        execute(url, f"CREATE TABLE more_{number} (id INTEGER PRIMARY KEY, name TEXT)")

    async with SqlDatabase(url, max_bytes=400) as db:
        text = await db.schema()

    assert len(text) < 800
    assert "more, for describe(table): more_" in text.splitlines()[-1]


async def test_a_table_is_described_without_its_values(url: str) -> None:
    """Values may be personal data; a schema is not."""
    async with SqlDatabase(url) as db:
        text = await db.describe("item")

    assert text.splitlines() == [
        "item, 3 rows",
        "  id INTEGER",
        "  name TEXT not null",
        "  price NUMERIC default 1",
        "  shop_id INTEGER -> shop.id",
        "  primary key (id)",
        "  index (name)",
    ]


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("SELECT nam FROM item", "no such column: nam; did you mean name?"),
        ("SELECT i.pric FROM item i", "no such column: i.pric; did you mean price?"),
        ("SELECT 1 FROM itm", "no such table: itm; did you mean item?"),
        ("SELECT :id", "Give each :name of the statement in the parameters"),
        ("SELECT FROM", 'near "FROM": syntax error'),
        ("SELECT 1; SELECT 2", "one statement"),
        ("", "a query is a SELECT"),
    ],
)
async def test_an_error_is_a_message_that_a_model_can_act_on(url: str, statement: str, says: str) -> None:
    """The error does not end the run."""
    node = ToolNode([SqlDatabase(url)])

    [message] = (await node.ainvoke([tool_call("query", "1", statement=statement)]))["messages"]

    assert message.status == "error"
    assert says in message.content


@pytest.mark.parametrize(
    ("statement", "parameters"),
    [("SELECT '\ud800'", {}), ("SELECT :a", {"a": "\ud800"}), ("SELECT :a", {"a": 2**70})],
)
async def test_what_a_driver_cannot_send_is_an_answer_too(
    url: str, statement: str, parameters: dict[str, object]
) -> None:
    """A model's JSON may contain lone surrogates and numbers of any length, which must not end the run."""
    call = tool_call("query", "1", statement=statement, parameters=parameters)

    [message] = (await ToolNode([SqlDatabase(url)]).ainvoke([call]))["messages"]

    assert message.status == "error"
    assert "cannot be sent to the database" in message.content and "at most 64 bits" in message.content


async def test_no_more_rows_are_computed_than_are_shown(url: str) -> None:
    """The query stops after the last row that is shown, even if it would never end."""
    async with SqlDatabase(url, max_rows=3) as db:
        rows = await db.query(ENDLESS.format("x"))

    assert [row["x"] for row in rows] == [1, 2, 3]
    assert rows.more
    assert str(rows).endswith("(The first 3 rows; there are more. Ask for fewer, or for count(*).)")


async def test_bytes_of_an_answer_and_of_a_value_are_capped(url: str) -> None:
    """Many rows with long texts fill a context window as much as one large value."""
    async with SqlDatabase(url, max_bytes=500, max_value=10) as db:
        many = await db.query(ENDLESS.format("printf('%05d', x) AS x"))
        long = await db.query("SELECT printf('%.100c', 'a') AS text, zeroblob(50) AS raw")
    async with SqlDatabase(url, max_bytes=100) as db:
        none = await db.query("SELECT printf('%.200c', 'a') AS text")

    assert "larger than an answer may be" in str(none)  # or it would look like an empty table
    assert many.more and len(str(many)) < 700
    assert long.values == (("a" * 10 + "... [cut; 100 characters]", f"x'{'00' * 10}'... [cut; 50 bytes]"),)


@pytest.mark.parametrize(("text", "said"), [(None, "no database at"), ("no database" * 1000, "not a database")])
async def test_a_file_that_is_no_database_is_told_at_once_and_none_is_made(
    tmp_path: Path, text: str | None, said: str
) -> None:
    """SQLite would create an empty file, which hides the mistake, or complain with the first query."""
    path = tmp_path / "text.db"
    if text is not None:
        path.write_text(text)

    with pytest.raises(ActorStartError, match=said):
        async with SqlDatabase(f"sqlite:///{path}"):
            pass

    assert path.exists() is (text is not None)


# One database used by several event loops, keys and worker processes, and statements after a killed program.


async def test_a_timeout_of_the_call_ends_the_statement(url: str) -> None:
    """The database's own error arrives before the call's timeout and tells the model the reason."""
    node = ToolNode([SqlDatabase(url)], policies={"query": CallPolicy(timeout=0.6, limit=Limit(1))})
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
