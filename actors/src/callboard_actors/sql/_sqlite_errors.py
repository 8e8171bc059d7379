"""Errors of SQLite, in words that a model can act on."""

import re
import sqlite3
from collections.abc import Sequence

from callboard_actors.sql._errors import SqlError, did_you_mean
from callboard_actors.sql._work import Job

_NO_SUCH = re.compile(r"no such (?:table|column): (.+)")

_NOT_HERE = "A query only reads, and nothing reaches other files, settings, or the transaction around a statement."
_REMEDIES = (
    ("interrupted", "Ask for less, or for a part of it."),
    ("not authorized", _NOT_HERE),
    ("authorization denied", _NOT_HERE),
    ("readonly", "A query only reads."),
    ("string or blob too big", "A value is larger than may be read here; ask for the other columns, or its length()."),
    ("one statement at a time", "Leave out all but one."),
    ("did not supply a value", "Give each :name of the statement in the parameters."),
    ("has no name", "Write :name for each value."),
    ("is not supported", "A list or an object is its JSON as a text, for json_each()."),
    ("locked", "Another program is writing; try again."),
    ("no such function", "SQLite has no such function."),
)


def explained(error: BaseException | None, job: Job, names: Sequence[str]) -> SqlError:
    """Return the error for a model; `names` are the existing tables and columns."""
    said = str(error)
    if job.is_over and isinstance(error, (sqlite3.OperationalError, InterruptedError)):
        return SqlError(f"It was stopped after {job.seconds:g} s. Ask for less, or for a part of it.")
    if found := _NO_SUCH.fullmatch(said):
        return SqlError(f"{said}{did_you_mean(found[1], names) or '.'}")
    remedy = next((remedy for part, remedy in _REMEDIES if part in said), "")
    return SqlError(f"{said.rstrip('.')}. {remedy}".rstrip())
