"""The bodies of the tests are modules that workers have to find."""

import sys
from pathlib import Path

import pytest

from callboard_actors._engine import _kernel

from . import _bodies


@pytest.fixture(autouse=True)
def _bodies_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    # pytest imports files by their path, and gives them names that no other process would find them by.
    root = Path(_bodies.__file__).parents[_bodies.__name__.count(".")]
    monkeypatch.setattr(sys, "path", [*sys.path, str(root)])


@pytest.fixture(params=["fork", pytest.param("spawn", marks=pytest.mark.exhaustive)])
def any_start(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with workers that are forked, and with such as are new interpreters."""
    if request.param == "spawn":
        monkeypatch.setattr(_kernel, "FORKS", False)
