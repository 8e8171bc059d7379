"""A tool that reads SQLite, and one that reads PostgreSQL: a model's statements run in confined worker processes.

`python database.py` reads a SQLite file. The page docs/how-to/ask-a-database.md tells what bounds a statement.
"""

import json
import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio

from callboard import CallPolicy, ToolNode, tool_call
from callboard_actors.process import Confine, Processes

MAX_ROWS, MAX_BYTES = 100, 20_000
READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}


def read_sqlite(statement: str, parameters: dict[str, Any] | None = None) -> str:
    """Read the database by one SELECT, with values for its :names. `SELECT sql FROM sqlite_schema` lists the tables."""
    with closing(sqlite3.connect(f"file:{quote(os.environ['DATABASE'])}?mode=ro", uri=True)) as connection:
        connection.text_factory = lambda text: text.decode(errors="replace")
        connection.executescript("PRAGMA query_only = on; PRAGMA temp_store = memory")
        connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in READING else sqlite3.SQLITE_DENY)
        return first_rows(connection, statement, parameters or {})


def read_postgres(statement: str, parameters: dict[str, Any] | None = None) -> str:
    """Read the database by one SELECT, with values for its %(names)s. information_schema.columns lists the tables."""
    import psycopg

    settings = "-c default_transaction_read_only=on -c statement_timeout=5s -c client_connection_check_interval=1s"
    with closing(psycopg.connect(os.environ["DATABASE"], options=settings)) as connection:  # closing rolls back
        if connection.info.parameter_status("is_superuser") == "on":
            raise PermissionError("the role in $DATABASE is a superuser; use one that has SELECT only")
        return first_rows(connection.cursor("statement"), statement, parameters)  # DECLARE takes one SELECT only


def first_rows(reader: Any, statement: str, parameters: dict[str, Any] | None) -> str:
    try:
        cursor = reader.execute(statement, parameters)
        rows, columns = cursor.fetchmany(MAX_ROWS + 1), [name for name, *_ in cursor.description]
    except Exception as error:
        raise ValueError(str(error)) from None  # the model reads it, with `handle_tool_errors=True`
    table = {"columns": columns, "rows": rows[:MAX_ROWS], "has_more": len(rows) > MAX_ROWS}
    if len(text := json.dumps(table, default=str, ensure_ascii=False)) > MAX_BYTES:
        raise ValueError(f"the result has more than {MAX_BYTES} characters: select fewer columns, or parts of texts")
    return text


def policy_of(confine: Confine, timeout: float = 10.0) -> CallPolicy:
    """Return the policy of a tool that reads a database; the end of the call ends its worker process."""
    return CallPolicy(runs_in=Processes(confine=confine, memory=1024**3), timeout=timeout, idempotent=True)


async def main(file: Path) -> None:
    policy = policy_of(Confine(read=[file.parent], environment={"DATABASE": str(file)}))
    async with ToolNode([read_sqlite], policies={"read_sqlite": policy}, handle_tool_errors=True) as node:
        for statement in ("SELECT name, price FROM item", "DELETE FROM item", "SELECT nam FROM item"):
            print((await node.ainvoke([tool_call("read_sqlite", "1", statement=statement)]))["messages"][0].content)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        with closing(sqlite3.connect(Path(folder, "shop.db"))) as shop:
            shop.executescript("CREATE TABLE item (name TEXT, price NUMERIC); INSERT INTO item VALUES ('tea', 2.5)")
        anyio.run(main, Path(folder, "shop.db"))
