"""Databases as actors, on SQLite and PostgreSQL: `SqlDatabase` reads, `WritableSqlDatabase` also writes.

    node = ToolNode([SqlDatabase("sqlite:///shop.db")])

    async with SqlDatabase("postgresql://reader@localhost/shop") as db:
        rows = await db.query("select name from item where price < :price", {"price": 5})

The database enforces the permissions and limits of a statement. The text of a statement decides nothing.
"""

from callboard_actors.sql._database import SqlDatabase as SqlDatabase
from callboard_actors.sql._database import WritableSqlDatabase as WritableSqlDatabase
from callboard_actors.sql._rows import Rows as Rows
from callboard_actors.sql._rows import SqlError as SqlError

__all__ = ["Rows", "SqlDatabase", "SqlError", "WritableSqlDatabase"]
