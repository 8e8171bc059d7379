"""Fixtures: `same(scenario)` compares callboard with LangGraph in each mode of the test."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from . import _harness as harness

Same = Callable[..., Any]
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore the deprecation warnings of LangGraph's reference."""
    silence = pytest.mark.filterwarnings("ignore::langgraph.warnings.LangGraphDeprecationWarning")
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(silence)


@pytest.fixture(params=harness.MODES)
def same(request: pytest.FixtureRequest) -> Same:
    """Compare directly and as a node of a graph, async and sync."""
    return partial(harness.assert_same, mode=request.param)


@pytest.fixture(params=harness.DIRECT_MODES)
def same_direct(request: pytest.FixtureRequest) -> Same:
    """Compare the object itself, async and sync; for agents, and for inputs that no graph accepts."""
    return partial(harness.assert_same, mode=request.param)


@pytest.fixture(params=harness.ASYNC_MODES)
def same_async(request: pytest.FixtureRequest) -> Same:
    """Compare async only, where LangGraph has no sync method or a different one."""
    return partial(harness.assert_same, mode=request.param)


@pytest.fixture(params=harness.GRAPH_MODES)
def same_graph(request: pytest.FixtureRequest) -> Same:
    """Compare in a graph only."""
    return partial(harness.assert_same, mode=request.param)
