"""Fixtures: a separate project for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ._agents import AGENT
from ._commands import Project


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    new_project = Project(tmp_path)
    yield new_project
    new_project.close()


@pytest.fixture
def agents(project: Project) -> str:
    """Return the name of the module with the agents."""
    return project.module(AGENT)
