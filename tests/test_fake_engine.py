"""Engines are held to one suite; the fake one, whose workers are tasks of this process, too."""

from typing import Any

import pytest

from callboard.extend import Engine
from callboard.testing import EngineContract, FakeEngine

pytestmark = pytest.mark.real_clock


class TestFakeEngine(EngineContract):
    """Bodies are tasks, and threads, of this process; the latter nobody can end."""

    patience = 10.0
    ends_threads = False

    def engine(self) -> Engine:
        return FakeEngine()

    async def kill(self, engine: Any, pid: int) -> None:
        engine.kill(title="goes_on")
