"""Errors of PostgreSQL, in words that a model can act on."""

import re
from typing import Any

import psycopg
from psycopg import errors

from callboard_actors.sql._errors import SqlError, did_you_mean, pointed
from callboard_actors.sql._postgres_query import DECLARE, Query
from callboard_actors.sql._work import Job

_MISSING = re.compile(r'(?:relation|column) "?(.+?)"? does not exist')
_NAMES = """
SELECT relname FROM pg_class WHERE relkind IN ('r', 'v', 'm', 'p', 'f') AND pg_table_is_visible(oid)
  AND relnamespace <> 'pg_catalog'::regnamespace
UNION
SELECT attname FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
WHERE attnum > 0 AND relkind IN ('r', 'v', 'm', 'p', 'f') AND pg_table_is_visible(attrelid)
  AND relnamespace <> 'pg_catalog'::regnamespace
"""
_ONLY_A_QUERY = "A query is one SELECT, VALUES or TABLE, and changes nothing."


def explained(
    error: BaseException | None,
    job: Job,
    query: Query | None = None,
    driver: psycopg.Connection[Any] | None = None,
) -> SqlError:
    """Return the error for a model; `query` and `driver` are those of the failed statement, if it was one."""
    if isinstance(error, errors.QueryCanceled) or job.stopped is not None:
        return SqlError(f"It was stopped after {job.seconds:g} s. Ask for less, or for a part of it.")
    if not isinstance(error, psycopg.Error) or not error.diag.message_primary:
        said = str(error).strip().partition("\n")[0]
        if isinstance(error, psycopg.DataError):
            return SqlError(f"{said.rstrip('.')}. Ask for it as a text, or give it as one: value::text.")
        is_away = isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
        return SqlError(f"The database does not answer: {said}" if is_away else f"{said}.")
    told = error.diag
    said = f"{told.message_primary}{_meant(error, driver) or '.'}"
    said += "".join(f" {part}" for part in (told.message_detail, told.message_hint) if part)
    return SqlError(said + _remedy(error, query) + _place(error, query))


def _meant(error: psycopg.Error, driver: psycopg.Connection[Any] | None) -> str:
    """Return similar names for an unknown name, unless PostgreSQL already suggests one in its hint."""
    found = _MISSING.fullmatch(error.diag.message_primary or "")
    if found is None or error.diag.message_hint or driver is None:
        return ""
    try:
        driver.execute("ROLLBACK")
        names = [name for (name,) in driver.execute(_NAMES)]
    except psycopg.Error:
        return ""  # suggestions are optional
    return did_you_mean(found[1], names)


def _remedy(error: psycopg.Error, query: Query | None) -> str:
    if query is None or not query.only_reads:
        return ""
    is_other = isinstance(error, (errors.SyntaxError, errors.ReadOnlySqlTransaction, errors.FeatureNotSupported))
    return f" {_ONLY_A_QUERY}" if is_other or isinstance(error, errors.InvalidCursorDefinition) else ""


def _place(error: psycopg.Error, query: Query | None) -> str:
    position = error.diag.statement_position
    if query is None or position is None or query.is_wrapped:
        return ""
    start = len(DECLARE) if query.only_reads else 0
    return pointed(query.read, max(1, int(position) - start))
