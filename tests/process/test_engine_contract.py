"""Worker processes pass callboard's contract tests for engines."""

import os
import signal
from typing import Any

import pytest

from callboard.extend import Engine
from callboard.testing import EngineContract
from callboard_actors.process import Processes

from ._processes import WAIT

pytestmark = [pytest.mark.real_clock, pytest.mark.exhaustive]


class TestProcesses(EngineContract):
    """Contract tests of an engine on worker processes."""

    patience = 20.0

    def engine(self) -> Engine:
        return Processes(workers=2, grace=1.0, preload=["callboard.testing._engine_bodies"])

    async def kill(self, engine: Any, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)


class TestInterpreters(TestProcesses):
    """Contract tests of an engine on new interpreters."""

    patience = 90.0

    def engine(self) -> Engine:
        # Three interpreters load it at once, which takes seconds each.
        return Processes(workers=2, start="spawn", grace=1.0, preload=["callboard.testing"], start_timeout=WAIT * 3)
