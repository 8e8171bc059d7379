"""Small example database of the tests."""

import sqlite3
from contextlib import closing
from pathlib import Path

SHOP = """
CREATE TABLE shop (id INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE item (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, price NUMERIC DEFAULT 1, shop_id INTEGER REFERENCES shop (id)
);
CREATE INDEX item_name ON item (name);
INSERT INTO shop VALUES (1, 'corner');
INSERT INTO item VALUES (1, 'tea', 2.5, 1), (2, 'ham', 4, 1), (3, 'salt', NULL, NULL);
"""

ENDLESS = "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT {} FROM n"
"""Endless query: `x` returns all numbers, `count(*)` never returns a row."""

DOUBLED = "WITH t0 (x) AS (SELECT 1), {} SELECT 1 FROM t29".format(
    ", ".join(f"t{n} (x) AS (SELECT 1 FROM t{n - 1}, t{n - 1})" for n in range(1, 30))
)
"""Query that SQLite expands to a thousand million expressions before it runs."""


def new_shop(folder: Path) -> str:
    """Create a SQLite file with the shop; return its URL."""
    path = folder / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SHOP)
    return f"sqlite:///{path}"


def names_in(url: str) -> list[str]:
    """Return the names of the items, read by another connection."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM item ORDER BY id")]


def execute(url: str, statement: str) -> None:
    """Run a statement in a SQLite file by another connection."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute(statement)
