"""Protocol of a kind of database for `SqlDatabase`; all methods run in worker threads."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from callboard_actors.sql._rows import Caps, Rows
from callboard_actors.sql._work import Job

if TYPE_CHECKING:
    import sqlalchemy

Parameters = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Once:
    """Key by which the database recognises a statement that it has executed before."""

    table: str
    key: str


class Backend(Protocol):
    """Database with a pool of connections."""

    def check(self, job: Job) -> None:
        """Check that the database exists, and that its role cannot do more than it should.

        Raises:
            SqlError: names the problem and the remedy.
        """
        ...

    def reading(self, job: Job) -> "AbstractContextManager[sqlalchemy.Connection]":
        """Return a connection for reading, which is stopped with the job."""
        ...

    def query(self, statement: str, parameters: Parameters, caps: Caps, job: Job) -> Rows:
        """Run a statement that only reads, and return its rows.

        Raises:
            SqlError: if the statement writes, or fails.
        """
        ...

    def execute(self, statement: str, parameters: Parameters, caps: Caps, job: Job, once: Once | None) -> Rows:
        """Run one statement in a transaction of its own, and commit it.

        Raises:
            SqlError: if nothing was changed, or if the text says that this is unknown.
        """
        ...

    def row_estimates(self, connection: "sqlalchemy.Connection", tables: Sequence[str]) -> Mapping[str, str]:
        """Return rough row counts of tables, as far as they are known without counting everything."""
        ...

    def close(self) -> None:
        """Close the pools of connections; no other method is called afterwards."""
        ...
