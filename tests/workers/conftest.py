"""The bodies of the tests are modules that workers have to find."""

import sys
from pathlib import Path

import pytest

from . import _bodies


@pytest.fixture(autouse=True)
def _bodies_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    # pytest imports files by their path, and gives them names that no other process would find them by.
    root = Path(_bodies.__file__).parents[_bodies.__name__.count(".")]
    monkeypatch.setattr(sys, "path", [*sys.path, str(root)])
