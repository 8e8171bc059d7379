"""Put the folder of the tests on the path: workers have to find the modules with the functions that they serve."""

import sys
from collections.abc import Iterator

import pytest

from ._commands import ROOT, Worker, worker


@pytest.fixture(autouse=True)
def _bodies_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    # pytest imports files by their path, under names by which no other process would find them.
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])


@pytest.fixture(scope="session")
def served() -> Iterator[Worker]:
    """Start one worker that all tests share which do not damage it."""
    with worker() as found:
        yield found
