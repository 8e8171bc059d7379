"""Files and licences of the two distributions."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
DISTRIBUTIONS = [ROOT, ROOT / "actors"]
each = pytest.mark.parametrize("folder", DISTRIBUTIONS, ids=["callboard", "callboard-actors"])


def settings(folder: Path) -> Any:
    return tomllib.loads((folder / "pyproject.toml").read_text())


@each
def test_a_source_distribution_holds_its_own_files_only(folder: Path) -> None:
    """The pattern `src` would also match `actors/src` and so include the other distribution; `/src` does not."""
    patterns = settings(folder)["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]

    assert [one for one in patterns if not one.startswith("/")] == []
    assert [one for one in patterns if not (folder / one.strip("/")).exists()] == []


@each
def test_a_distribution_has_its_licence(folder: Path) -> None:
    """A wheel holds the files of its own folder only."""
    assert settings(folder)["project"]["license-files"] == ["LICENSE"]
    assert (folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_what_both_need_has_one_lower_bound() -> None:
    """`callboard-actors` is released with its version of callboard, so both need the same lower bounds."""
    ours, theirs = (set(settings(folder)["project"]["dependencies"]) for folder in DISTRIBUTIONS)

    assert {one for one in theirs if not one.startswith("callboard==")} <= ours
