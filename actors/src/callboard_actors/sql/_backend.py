"""What a kind of database has to do for a `SqlDatabase`; all of it in worker threads."""

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
    """By which the database knows a statement that it has executed before."""

    table: str
    key: str


class Backend(Protocol):
    """A database, by its connections."""

    def check(self, job: Job) -> None:
        """See that it is there, and that it can be asked for no more than it should be.

        Raises:
            SqlError: says what is the matter, and the remedy.
        """
        ...

    def reading(self, job: Job) -> "AbstractContextManager[sqlalchemy.Connection]":
        """A connection for reading, which is ended with the job."""
        ...

    def query(self, statement: str, parameters: Parameters, caps: Caps, job: Job) -> Rows:
        """What a statement gives that only reads.

        Raises:
            SqlError: it does not, or fails.
        """
        ...

    def execute(self, statement: str, parameters: Parameters, caps: Caps, job: Job, once: Once | None) -> Rows:
        """Run one statement in a transaction of its own, and commit it.

        Raises:
            SqlError: nothing was changed, unless it says that this is unknown.
        """
        ...

    def row_estimates(self, connection: "sqlalchemy.Connection", tables: Sequence[str]) -> Mapping[str, str]:
        """About how many rows tables have, as far as it is known without counting all of them."""
        ...

    def close(self) -> None:
        """Close the pools of connections; nothing is asked afterwards."""
        ...
