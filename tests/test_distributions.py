"""Files, licences and extras of the two distributions."""

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from callboard.extend import install_command

ROOT = Path(__file__).parents[1]
DISTRIBUTIONS = [ROOT, ROOT / "actors"]
each = pytest.mark.parametrize("folder", DISTRIBUTIONS, ids=["callboard", "callboard-actors"])


def settings(folder: Path) -> Any:
    return tomllib.loads((folder / "pyproject.toml").read_text())


@each
def test_a_source_distribution_holds_its_own_files_only(folder: Path) -> None:
    """The pattern `src` would also match `actors/src` and so include the other distribution; `/src` does not."""
    patterns = settings(folder)["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]

    assert [pattern for pattern in patterns if not pattern.startswith("/")] == []
    assert [pattern for pattern in patterns if not (folder / pattern.strip("/")).exists()] == []


@each
def test_a_distribution_has_its_licence(folder: Path) -> None:
    """A wheel holds the files of its own folder only."""
    assert settings(folder)["project"]["license-files"] == ["LICENSE"]
    assert (folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_what_both_need_has_one_lower_bound() -> None:
    """`callboard-actors` is released with its version of callboard, so both need the same lower bounds."""
    callboard_needs, actors_needs = (set(settings(folder)["project"]["dependencies"]) for folder in DISTRIBUTIONS)

    assert {requirement for requirement in actors_needs if not requirement.startswith("callboard==")} <= callboard_needs


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
        ("psycopg", "PostgresLimits", "'postgresql://localhost/db'"),
        ("psycopg", "PostgresFleet", "'postgresql://localhost/db', secret='s' * 32"),
    ],
)
def test_a_store_without_its_client_library_names_the_extra(package: str, cls: str, arguments: str) -> None:
    """An import of the room alone must not fail: applications choose a store by their configuration."""
    extra = "redis" if package == "redis" else "postgres"
    code = _BLOCKED.format(package=package, room=f"callboard_actors.{extra}", cls=cls, arguments=arguments)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
    assert install_command("callboard-actors", extra) in done.stdout
