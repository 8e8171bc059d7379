"""Small example database of the tests."""

import os
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


def new_shop(folder: Path) -> Path:
    """Create a SQLite file with the shop in a folder; return its path."""
    path = folder / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SHOP)
    return path


def read_without_authorizer(statement: str, parameters: dict[str, str] | None = None) -> str:
    """Read the shop as the recipe does, without its authorizer."""
    with closing(sqlite3.connect(f"file:{os.environ['DATABASE']}?mode=ro", uri=True)) as connection:
        return str(connection.execute(statement).fetchall())
