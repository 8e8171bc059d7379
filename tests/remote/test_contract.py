"""Remote workers pass callboard's contract tests for engines; the remote machine is this one, over loopback."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from callboard.extend import Engine
from callboard.testing import EngineContract

from ._commands import Worker, engine, worker

pytestmark = [pytest.mark.real_clock, pytest.mark.exhaustive]


@pytest.fixture(scope="module")
def served() -> Iterator[Worker]:
    with worker("callboard.testing._engine_bodies", "--grace", "1") as found:
        yield found


class TestRemoteEngine(EngineContract):
    """Contract tests of an engine on a remote worker."""

    patience = 20.0

    @pytest.fixture(autouse=True)
    def _at_the_worker(self, served: Worker) -> None:
        self._worker = served

    def engine(self) -> Engine:
        return engine(self._worker)

    async def kill(self, engine: Any, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
