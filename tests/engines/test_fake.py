"""The fake engine, whose workers are tasks of this process, passes the test suite of all engines."""

from typing import Any

import pytest

from callboard.extend import Engine

from ._contract import EngineContract
from ._fake import FakeEngine

pytestmark = pytest.mark.real_clock


class TestFakeEngine(EngineContract):
    """Bodies are tasks and threads of this process; threads cannot be killed."""

    patience = 10.0
    ends_threads = False

    def engine(self) -> Engine:
        return FakeEngine()

    async def kill(self, engine: Any, pid: int) -> None:
        engine.kill(title="goes_on")
