"""Invalid options are refused at once, and no error shows a password."""

import subprocess
import sys
from typing import Any

import pytest

from callboard_actors.sql import SqlDatabase, WritableSqlDatabase

URL = "sqlite:///shop.db"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite://", "is no file"),
        ("sqlite:///:memory:", "is no file"),
        ("sqlite:///shop.db?mode=rwc", "is no file"),
        ("mysql://root:s3cret@localhost/shop", r"'mysql://\.\.\.'\) is for SQLite and PostgreSQL"),
        ("shop.db", "cannot be read"),
        ("postgresql://root:s3cret@localhost:port/shop", "cannot be read"),
    ],
)
def test_a_url_of_something_else_is_refused(url: str, says: str) -> None:
    """The error shows an example of a valid URL."""
    with pytest.raises(ValueError, match=f"{says}.*give it one such as 'sqlite:///shop.db'") as caught:
        SqlDatabase(url)

    assert "s3cret" not in str(caught.value)


def test_what_is_no_text_is_refused_without_being_shown() -> None:
    """The refused value may contain a password."""
    with pytest.raises(TypeError, match=r"SqlDatabase\(url\) is a text, got tuple"):
        SqlDatabase(("postgresql", "s3cret"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": 0},
        {"timeout": float("inf")},
        {"max_rows": 0},
        {"max_rows": 1.5},
        {"max_bytes": 99},
        {"max_value": 0},
        {"connections": 0},
        {"memory": 1_000_000},
    ],
)
def test_a_number_out_of_range_is_named(options: dict[str, Any]) -> None:
    """The error comes before anything is opened."""
    [name] = options
    with pytest.raises(ValueError, match=rf"SqlDatabase\({name}="):
        SqlDatabase(URL, **options)


def test_a_server_has_limits_of_its_own() -> None:
    """`memory` is for SQLite; a PostgreSQL server has its own limits, so the option would have no effect."""
    with pytest.raises(ValueError, match=r"SqlDatabase\(memory=100000000\) is for SQLite; .* work_mem"):
        SqlDatabase("postgresql://reader@localhost/shop", memory=100_000_000)


def test_the_name_of_the_table_of_calls_is_checked() -> None:
    """The name of a table becomes a part of statements."""
    with pytest.raises(ValueError, match="is the name of a table"):
        WritableSqlDatabase(URL, once='x"; DROP TABLE item; --')


def test_neither_an_actor_nor_its_reference_shows_its_url() -> None:
    """The representations of actors and references are written to logs."""
    assert "s3cret" not in repr(SqlDatabase("postgresql://reader:s3cret@localhost/shop"))


def test_the_package_loads_no_database_before_it_is_used() -> None:
    """Workers import the package, too, so its import has to be cheap."""
    script = "import sys, callboard_actors.sql; print({'sqlalchemy', 'psycopg', 'sqlite3'} & set(sys.modules))"

    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60)

    assert done.stdout == "set()\n"


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says how to install the extra."""
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)

    with pytest.raises(ImportError, match=r"SqlDatabase needs sqlalchemy: pip install 'callboard-actors\[sql\]'"):
        SqlDatabase(URL)
