"""The Ray engine passes callboard's contract tests for engines; run by `tests.ray`."""

import os
import signal
from typing import Any

import pytest

from callboard.extend import Engine
from callboard_actors.ray import RayEngine
from tests.engines._contract import EngineContract

pytestmark = [pytest.mark.real_clock, pytest.mark.exhaustive]


class TestRay(EngineContract):
    """Contract tests of an engine on Ray."""

    patience = 120.0

    def engine(self) -> Engine:
        return RayEngine(os.environ["CALLBOARD_TEST_RAY"], workers=2, grace=1.0, cpus=0.5)

    async def kill(self, engine: Any, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
