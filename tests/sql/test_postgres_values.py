"""PostgreSQL values without a Python type, and settings that change how values are written."""

import datetime as dt
from typing import Any

import anyio
import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from callboard import ToolNode
from callboard.testing import tool_call
from callboard_actors.sql import SqlDatabase, SqlError, WritableSqlDatabase

from ._server import Shop

pytestmark = pytest.mark.real_clock


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
