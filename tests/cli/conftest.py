"""Fixtures: a separate project for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ._commands import Project


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path)
    yield made
    made.close()
