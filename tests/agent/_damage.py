"""Damaged databases, as disks, editors and other programs leave them."""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

ODD: Sequence[Any] = (None, 0, -1, 1.5, True, "", "text", [], {}, [None], [[]], {"a": None}, [1, "a"], 2**63)
"""Values of a wrong type or range."""

ODD_CELLS: Sequence[Any] = (None, 5, 1.5, "text", "", b"", b"\xff\xfe", b"\x90", b"\x80", b"\xc1", b"[]", "[]", "{")

TABLES = ("checkpoints", "writes")


def flip_bits(path: Path, random: Random) -> str:
    """Flip some bits."""
    data = bytearray(path.read_bytes())
    positions = [random.randrange(len(data)) for _ in range(random.choice((1, 1, 3, 20, 200)))]
    for position in positions:
        data[position] ^= 1 << random.randrange(8)
    path.write_bytes(data)
    return f"flipped {positions}"


def overwritten(path: Path, random: Random) -> str:
    """Overwrite a part with noise or zeros."""
    data = bytearray(path.read_bytes())
    start, length = random.randrange(len(data)), random.choice((1, 16, 512, 4096))
    noise = bytes(length) if random.random() < 0.5 else random.randbytes(length)
    data[start : start + length] = noise[: len(data) - start]
    path.write_bytes(data)
    return f"overwritten {start} {length}"


def cut_off_end(path: Path, random: Random) -> str:
    """Cut the end off."""
    data = path.read_bytes()
    length = random.randrange(len(data))
    path.write_bytes(data[:length])
    return f"cut at {length}"


def without_tables(path: Path, random: Random) -> str:
    """Drop or rename a table or a column."""
    table = random.choice(TABLES)
    with closing(sqlite3.connect(path)) as connection:
        column = random.choice(_columns(connection, table))
        statement = random.choice(
            (
                f"DROP TABLE {table}",
                f"ALTER TABLE {table} RENAME TO other",
                f"ALTER TABLE {table} RENAME COLUMN {column} TO other",
                f"CREATE VIEW v AS SELECT 1; DROP TABLE {table}; CREATE VIEW {table} AS SELECT 1 AS {column}",
            )
        )
        connection.executescript(statement)
    return statement


def with_odd_cells(path: Path, random: Random) -> str:
    """Write values of another type into a column."""
    table = random.choice(TABLES)
    with closing(sqlite3.connect(path)) as connection, connection:
        column, value = random.choice(_columns(connection, table)), random.choice(ODD_CELLS)
        statement = f"UPDATE OR IGNORE {table} SET {column} = ?"
        if random.random() < 0.5:
            statement += f" WHERE rowid = (SELECT rowid FROM {table} ORDER BY random() LIMIT 1)"
        try:
            connection.execute(statement, (value,))
        except sqlite3.IntegrityError:
            return f"nothing, for {statement} {value!r}"
    return f"{statement} {value!r}"


def with_odd_values(path: Path, random: Random) -> str:
    """Change a value inside the stored data, so that the bytes are readable and only the structure is wrong."""
    serde = JsonPlusSerializer()
    with closing(sqlite3.connect(path)) as connection, connection:
        column = random.choice(("checkpoint", "metadata", "value", "value"))
        table = "writes" if column == "value" else "checkpoints"
        rows = connection.execute(f"SELECT rowid, type, {column} FROM {table}").fetchall()
        if random.random() < 0.5:
            rows = rows[-1:]
        row, kind, data = random.choice(rows)
        value = json.loads(data) if column == "metadata" else serde.loads_typed((kind, data))
        changed, description = _with_odd(value, random)
        if column == "metadata":
            connection.execute(f"UPDATE {table} SET metadata = ? WHERE rowid = ?", (json.dumps(changed).encode(), row))
        else:
            kind, data = serde.dumps_typed(changed)
            connection.execute(f"UPDATE {table} SET type = ?, {column} = ? WHERE rowid = ?", (kind, data, row))
    return f"{column} of row {row}: {description}"


DAMAGES = (
    flip_bits,
    overwritten,
    cut_off_end,
    without_tables,
    with_odd_cells,
    with_odd_values,
    with_odd_values,
    with_odd_values,
)


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [str(row[1]) for row in connection.execute(f"PRAGMA table_info({table})")]


def _with_odd(value: Any, random: Random) -> tuple[Any, str]:
    paths = list(_paths_in(value, ()))
    path, odd = random.choice(paths), random.choice(ODD)
    if not path:
        return odd, f"is {odd!r}"
    container = value
    for step in path[:-1]:
        container = container[step]
    if random.random() < 0.2:
        del container[path[-1]]
        return value, f"{path} is gone"
    container[path[-1]] = odd
    return value, f"{path} is {odd!r}"


def _paths_in(node: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    yield path
    inside = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, value in inside:
        yield from _paths_in(value, (*path, name))
