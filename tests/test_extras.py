"""Rooms of callboard_actors can be imported without their extras; the remedy comes when an object is made."""

import subprocess
import sys

import pytest

_BLOCKED = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name.split(".")[0] == {package!r} else find_spec(name, *rest)
from {room} import {cls}
try:
    {cls}({arguments})
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("package", "cls", "arguments"),
    [
        ("redis", "RedisLimits", "'redis://localhost'"),
        ("redis", "RedisDocuments", "'redis://localhost'"),
        ("redis", "RedisFleet", "'redis://localhost', secret='s' * 32"),
        ("psycopg", "PostgresLimits", "'postgresql://localhost/db'"),
        ("psycopg", "PostgresDocuments", "'postgresql://localhost/db'"),
        ("psycopg", "PostgresFleet", "'postgresql://localhost/db', secret='s' * 32"),
    ],
)
def test_a_store_without_its_client_library_names_the_extra(package: str, cls: str, arguments: str) -> None:
    """An import of the room alone must not fail: applications choose a store by their configuration."""
    extra = "redis" if package == "redis" else "postgres"
    code = _BLOCKED.format(package=package, room=f"callboard_actors.{extra}", cls=cls, arguments=arguments)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
    assert f"callboard-actors[{extra}]" in done.stdout
