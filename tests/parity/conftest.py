"""Hook for all comparisons with LangGraph."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore the deprecation warnings of LangGraph's reference."""
    silence = pytest.mark.filterwarnings("ignore::langgraph.warnings.LangGraphDeprecationWarning")
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(silence)
