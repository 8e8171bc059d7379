"""Short description of the tables of a database."""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy
from sqlalchemy import Inspector
from sqlalchemy.exc import CompileError

from callboard_actors.sql._rows import SqlError, did_you_mean, shown
from callboard_actors.sql._work import Backend, Job


def outline(backend: Backend, schemas: Sequence[str], most: int, job: Job) -> str:
    """Return one line for each table, with its columns, types and keys, up to `most` bytes."""
    with backend.reading(job) as connection:
        inspector = sqlalchemy.inspect(connection)
        tables = _tables(inspector, schemas)
        estimates = backend.row_estimates(connection, [*tables])
        lines: list[str] = []
        for number, (title, (schema, name)) in enumerate(tables.items()):
            line = f"{title}({_columns_of(inspector, schema, name)}){_rows(estimates.get(title))}"
            most -= len(line.encode()) + 1
            if most < 0:
                names = ", ".join([*tables][number:])
                lines.append(f"{len(tables) - number} more, for describe(table): {names[: max(200, most)]}")
                break
            lines.append(line)
    return "\n".join(lines) or "There are no tables."


def _tables(inspector: Inspector, schemas: Sequence[str]) -> Mapping[str, tuple[str | None, str]]:
    """Return schema and name of each table and view, by their name in a statement."""
    found: dict[str, tuple[str | None, str]] = {}
    for schema in schemas or (None,):
        for name in (*inspector.get_table_names(schema), *inspector.get_view_names(schema)):
            found[name if schema is None else f"{schema}.{name}"] = (schema, name)
    return found


def _columns_of(inspector: Inspector, schema: str | None, name: str) -> str:
    keys = set(inspector.get_pk_constraint(name, schema)["constrained_columns"])
    references = _references(inspector, schema, name)
    parts: list[str] = []
    for column in inspector.get_columns(name, schema):
        key = " key" if column["name"] in keys else ""
        parts.append(f"{column['name']} {_type(column)}{key}{references.get(column['name'], '')}")
    return ", ".join(parts)


def _type(column: Mapping[str, Any]) -> str:
    try:
        return str(column["type"])
    except CompileError:
        return "?"  # a type that SQLAlchemy does not know


def _references(inspector: Inspector, schema: str | None, name: str) -> Mapping[str, str]:
    return {
        here: f" -> {key['referred_table']}.{there}"
        for key in inspector.get_foreign_keys(name, schema)
        for here, there in zip(key["constrained_columns"], key["referred_columns"] or ["?"], strict=False)
    }


def _rows(estimate: str | None) -> str:
    return "" if estimate is None else f", {estimate} row{'' if estimate == '1' else 's'}"


def description(backend: Backend, schemas: Sequence[str], table: str, job: Job) -> str:
    """Return the description of a table without its rows; raise SqlError if it does not exist."""
    with backend.reading(job) as connection:
        inspector = sqlalchemy.inspect(connection)
        tables = _tables(inspector, schemas)
        if table not in tables:
            raise SqlError(f"There is no table {table!r}{did_you_mean(table, tables) or '.'}")
        schema, name = tables[table]
        lines = [f"{table}{_rows(backend.row_estimates(connection, [table]).get(table))}"]
        references = _references(inspector, schema, name)
        lines += [_column(column, references) for column in inspector.get_columns(name, schema)]
        lines += _keys(inspector, schema, name)
        return "\n".join(lines)


def _column(column: Mapping[str, Any], references: Mapping[str, str]) -> str:
    default = "" if column.get("default") is None else f" default {shown(column['default'])}"
    comment = "" if not column.get("comment") else f" -- {shown(column['comment'])}"
    null = "" if column["nullable"] else " not null"
    return f"  {column['name']} {_type(column)}{null}{default}{references.get(column['name'], '')}{comment}"


def _keys(inspector: Inspector, schema: str | None, name: str) -> list[str]:
    key = inspector.get_pk_constraint(name, schema)["constrained_columns"]
    lines = [f"  primary key ({', '.join(key)})"] if key else []
    for index in inspector.get_indexes(name, schema):
        unique = "unique " if index["unique"] else ""
        lines.append(f"  {unique}index ({', '.join(column or '(expression)' for column in index['column_names'])})")
    return lines
