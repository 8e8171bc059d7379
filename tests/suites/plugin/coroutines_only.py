"""A pytest plugin that runs only the coroutine tests of a suite."""

import inspect

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect all tests that are no coroutine functions."""
    sync_items = [item for item in items if not inspect.iscoroutinefunction(getattr(item, "obj", None))]
    config.hook.pytest_deselected(items=sync_items)
    items[:] = [item for item in items if item not in sync_items]
