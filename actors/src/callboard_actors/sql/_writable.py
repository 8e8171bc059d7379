"""`WritableSqlDatabase`: a database that is changed where a person has agreed."""

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
    """A database that is read, and changed by `execute`; the rest is that of a `SqlDatabase`.

        node = ToolNode([WritableSqlDatabase("sqlite:///shop.db")], middleware=[RequireApproval(["execute"])])

    `execute` runs the statement and the parameters that a person has agreed to in `RequireApproval`, and nothing else.
    The database notes the calls that it has executed, in the transaction of each: one that is made again, because
    nobody knows what became of it, changes nothing and is told what it had changed.

    Args:
        url: of the database.
        approve: whether somebody has to have agreed. Without it `execute` runs what a model writes.
        once: the table of those notes, which is made when it is needed; `None` for none, where calls that are made
            again change again.
        options: of `SqlDatabase`.

    Raises:
        ValueError: for what no table can be called.
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
    """See that a person has agreed to exactly this.

    Raises:
        RuntimeError: nobody was asked, or about something else.
    """
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
        return None  # no tool call; a program calls, and knows what it has done
