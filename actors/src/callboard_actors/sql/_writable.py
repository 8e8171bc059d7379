"""`WritableSqlDatabase`: a database that is changed only with a person's approval."""

import re
from collections.abc import Mapping
from typing import Any

from callboard import handler, idempotency_key
from callboard.middleware import approved_arguments
from callboard_actors.sql._backend import Once
from callboard_actors.sql._database import SqlDatabase
from callboard_actors.sql._rows import Rows

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


class WritableSqlDatabase(SqlDatabase):
    """Database for reading, and for changes with `execute`; otherwise like `SqlDatabase`.

        node = ToolNode([WritableSqlDatabase("sqlite:///shop.db")], middleware=[RequireApproval(["execute"])])

    `execute` runs only the statement and parameters that a person approved in `RequireApproval`. The database records
    each executed call in the transaction of its change. A call that is repeated because its outcome is unknown changes
    nothing, and returns the number of rows that it had changed.

    Args:
        url: of the database.
        approve: whether a person must have approved. Without it, `execute` runs everything that a model writes.
        once: table of the executed calls, created when needed; with `None`, repeated calls change the data again.
        options: of `SqlDatabase`.

    Raises:
        ValueError: for an invalid table name.
    """

    _writes = True

    def __init__(
        self, url: str, *, approve: bool = True, once: str | None = "callboard_executed", **options: Any
    ) -> None:
        super().__init__(url, **options)
        if once is not None and not _NAME.fullmatch(once):
            raise ValueError(f"WritableSqlDatabase(once={once!r}) is the name of a table: letters, digits and _")
        self._approve = approve
        self._once = once

    @handler(group="statements")
    async def execute(self, statement: str, parameters: Mapping[str, object] | None = None) -> Rows:
        """Run one statement that changes the database, such as INSERT, UPDATE or DELETE, in its own transaction.

        Values belong in `parameters`, by name: `where id = :id` with {"id": 3}.
        """
        if self._approve:
            _check_approved(statement, parameters)
        once = None if self._once is None or (key := _key()) is None else Once(self._once, key)
        return await self._run(lambda job: self._backend.execute(statement, parameters or {}, self._caps, job, once))


def _check_approved(statement: str, parameters: Mapping[str, object] | None) -> None:
    """Raise RuntimeError unless a person has approved exactly these arguments."""
    approved = approved_arguments()
    if approved is None:
        raise RuntimeError(
            "WritableSqlDatabase.execute changes the database, and nobody was asked. Give the node or the agent "
            "middleware=[RequireApproval(['execute'])], or say that nobody has to be: "
            "WritableSqlDatabase(url, approve=False)"
        )
    if approved.get("statement") != statement or (approved.get("parameters") or {}) != (parameters or {}):
        raise RuntimeError(
            "WritableSqlDatabase.execute was given something else than a person has agreed to; a middleware within "
            "RequireApproval must not change its arguments"
        )


def _key() -> str | None:
    try:
        return idempotency_key()
    except RuntimeError:
        return None  # no tool call: a program calls, and knows itself what it has executed
