"""Warnings that are issued once per tool and process."""

from collections.abc import Iterator

import pytest

from callboard._calls import _batch
from callboard._loops import _left_tasks, _watchdog


@pytest.fixture
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget earlier warnings, and the pause that follows a slow search for left tasks."""
    monkeypatch.setattr(_left_tasks, "_look_again", 0.0)
    for warned in (_batch._warned, _watchdog._warned):
        warned.clear()
    yield
    for warned in (_batch._warned, _watchdog._warned):
        warned.clear()
