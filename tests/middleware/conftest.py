"""Recorder for all tests of middleware."""

import pytest

from callboard.testing import Recorder


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()
