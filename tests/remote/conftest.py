"""The bodies of the tests are modules that workers have to find."""

import sys
from collections.abc import Iterator

import pytest

from ._commands import ROOT, Worker, worker


@pytest.fixture(autouse=True)
def _bodies_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    # pytest imports files by their path, and gives them names that no other process would find them by.
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])


@pytest.fixture(scope="session")
def served() -> Iterator[Worker]:
    """A worker for all tests that do it no harm."""
    with worker() as found:
        yield found
