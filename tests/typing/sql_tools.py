"""Databases as type checkers see them: a reference is typed as the actor, and rows as mappings."""

from collections.abc import Mapping
from typing import Any, assert_type

from callboard_actors.sql import Rows, SqlDatabase, WritableSqlDatabase


async def asks(read: SqlDatabase, write: WritableSqlDatabase) -> None:
    async with SqlDatabase("sqlite:///shop.db", max_rows=10) as db:
        assert_type(db, SqlDatabase)
        assert_type(await db.query("SELECT :id", {"id": 1}), Rows)
    async with WritableSqlDatabase("sqlite:///shop.db", approve=False, max_rows=10) as db:
        assert_type(await db.execute("DELETE FROM item"), Rows)
    assert_type(await read.schema(), str)
    rows = await write.query("SELECT 1")
    assert_type(rows[0], Mapping[str, Any])
    read.execute("DELETE FROM item")  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]
