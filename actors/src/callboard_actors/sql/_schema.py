"""Short texts for a model about the tables of a database."""

from collections.abc import Mapping
from typing import Any

import sqlalchemy
from sqlalchemy import Inspector
from sqlalchemy.exc import CompileError

from callboard_actors.sql._rows import SqlError, did_you_mean, shown
from callboard_actors.sql._work import Backend, Job


def outline(backend: Backend, most: int, job: Job) -> str:
    """Return one line for each table and view, with columns, types and keys; beyond `most` bytes, list only names."""
    with backend.reading(job) as connection:
        inspector = sqlalchemy.inspect(connection)
        tables = _tables(inspector)
        estimates = backend.row_estimates(connection, tables)
        lines: list[str] = []
        for number, table in enumerate(tables):
            line = f"{table}({_columns_of(inspector, table)}){_rows(estimates.get(table))}"
            most -= len(line.encode()) + 1
            if most < 0:
                names = ", ".join(tables[number:])
                lines.append(f"{len(tables) - number} more, for describe(table): {names[: max(200, most)]}")
                break
            lines.append(line)
    return "\n".join(lines) or "There are no tables."


def _tables(inspector: Inspector) -> list[str]:
    return [*inspector.get_table_names(), *inspector.get_view_names()]


def _columns_of(inspector: Inspector, table: str) -> str:
    keys = set(inspector.get_pk_constraint(table)["constrained_columns"])
    references = _references(inspector, table)
    parts: list[str] = []
    for column in inspector.get_columns(table):
        key = " key" if column["name"] in keys else ""
        parts.append(f"{column['name']} {_type(column)}{key}{references.get(column['name'], '')}")
    return ", ".join(parts)


def _type(column: Mapping[str, Any]) -> str:
    try:
        return str(column["type"])
    except CompileError:
        return "?"  # a type that SQLAlchemy does not know


def _references(inspector: Inspector, table: str) -> Mapping[str, str]:
    return {
        here: f" -> {key['referred_table']}.{there}"
        for key in inspector.get_foreign_keys(table)
        for here, there in zip(key["constrained_columns"], key["referred_columns"] or ["?"], strict=False)
    }


def _rows(estimate: str | None) -> str:
    return "" if estimate is None else f", {estimate} row{'' if estimate == '1' else 's'}"


def description(backend: Backend, table: str, job: Job) -> str:
    """Return a text about one table: its columns, keys and references; raise SqlError if the table does not exist."""
    with backend.reading(job) as connection:
        inspector = sqlalchemy.inspect(connection)
        tables = _tables(inspector)
        if table not in tables:
            raise SqlError(f"There is no table {table!r}{did_you_mean(table, tables) or '.'}")
        references = _references(inspector, table)
        return "\n".join(
            [
                f"{table}{_rows(backend.row_estimates(connection, [table]).get(table))}",
                *(_column(column, references) for column in inspector.get_columns(table)),
                *_keys(inspector, table),
            ]
        )


def _column(column: Mapping[str, Any], references: Mapping[str, str]) -> str:
    default = "" if column.get("default") is None else f" default {shown(column['default'])}"
    comment = "" if not column.get("comment") else f" -- {shown(column['comment'])}"
    null = "" if column["nullable"] else " not null"
    return f"  {column['name']} {_type(column)}{null}{default}{references.get(column['name'], '')}{comment}"


def _keys(inspector: Inspector, table: str) -> list[str]:
    key = inspector.get_pk_constraint(table)["constrained_columns"]
    lines = [f"  primary key ({', '.join(key)})"] if key else []
    for index in inspector.get_indexes(table):
        unique = "unique " if index["unique"] else ""
        lines.append(f"  {unique}index ({', '.join(column or '(expression)' for column in index['column_names'])})")
    return lines
