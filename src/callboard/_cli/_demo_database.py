"""Database of the demo: a SQLite file, queried by a sync function that blocks its thread."""

import random
import sqlite3
import tempfile
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

CITIES = ("Amsterdam", "Berlin", "Lagos", "Lima", "Osaka", "Oslo", "Porto", "Toronto")


def make_database(directory: Path, *, seed: int, rows: int = 5_000) -> Path:
    """Write a database with `rows` orders, determined by the seed, and return its path."""
    path = directory / "orders.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, city TEXT, amount INTEGER)")
        connection.executemany("INSERT INTO orders VALUES (?, ?, ?)", _orders(seed, rows))
    return path


@contextmanager
def temporary_database(*, seed: int, rows: int = 5_000) -> Generator[Path, None, None]:
    """Create a database in a temporary directory for the block. Blocks: enter it before the event loop starts."""
    with tempfile.TemporaryDirectory(prefix="callboard-", ignore_cleanup_errors=True) as directory:
        yield make_database(Path(directory), seed=seed, rows=rows)


def query(path: Path, city: str) -> dict[str, int]:
    """Return the number and the total amount of a city's orders, in cents, over a new read-only connection."""
    # A new connection each time: a SQLite connection belongs to its thread, and worker threads come and go.
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        count, total = connection.execute(
            "SELECT count(*), coalesce(sum(amount), 0) FROM orders WHERE city = ?", (city,)
        ).fetchone()
    return {"count": count, "total": total}


def _orders(seed: int, rows: int) -> Iterator[tuple[int, str, int]]:
    rng = random.Random(seed)  # noqa: S311  (the same numbers each time)
    return ((number, rng.choice(CITIES), rng.randint(100, 50_000)) for number in range(1, rows + 1))
