"""Put the folder of the tests on the path: workers have to find the modules with the functions that they run."""

import sys
from pathlib import Path

import pytest

from callboard_actors._engine import _kernel

from . import _bodies


@pytest.fixture(autouse=True)
def _bodies_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    # pytest imports files by their path, under names by which no other process would find them.
    root = Path(_bodies.__file__).parents[_bodies.__name__.count(".")]
    monkeypatch.setattr(sys, "path", [*sys.path, str(root)])


@pytest.fixture(params=["fork", pytest.param("spawn", marks=pytest.mark.exhaustive)])
def any_start(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test twice, with workers that are forked and that are new interpreters; return which, "fork" or "spawn"."""
    if request.param == "spawn":
        monkeypatch.setattr(_kernel, "FORKS", False)
    return str(request.param) if _kernel.FORKS else "spawn"
