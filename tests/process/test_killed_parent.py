"""Workers end when the process that opened their pool is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from callboard.testing import Backend

from ._processes import WAIT, descendants, needs_bubblewrap, running, started

ROOT = Path(__file__).parents[2]


@pytest.mark.real_clock
@pytest.mark.parametrize(
    "mode",
    [
        pytest.param("plain", marks=pytest.mark.exhaustive),
        "forks",
        pytest.param("bubblewrap", marks=[pytest.mark.exhaustive, needs_bubblewrap]),
    ],
)
async def test_no_worker_outlives_its_parent_by_more_than_a_second(
    tmp_path: Path, anyio_backend: Backend, mode: str
) -> None:
    """Workers end with their parent while idle, busy, deaf to SIGTERM, with children, or in namespaces.

    A fork of the parent that has all its sockets open makes no difference.
    """
    backend = anyio_backend[0] if isinstance(anyio_backend, tuple) else anyio_backend
    command = [sys.executable, "-m", "tests.process._doomed_parent", backend, str(tmp_path), mode]
    with subprocess.Popen(command, cwd=ROOT) as parent:
        try:
            await started(tmp_path, 3)
            forked = {pid for pid in descendants(parent.pid) if _command_of(pid) == _command_of(parent.pid)}
            below = descendants(parent.pid) - forked
            assert len(below) >= (7 if mode == "bubblewrap" else 5)
            began = time.monotonic()
        finally:
            os.kill(parent.pid, signal.SIGKILL)
    with anyio.fail_after(WAIT):
        while running(below):
            await anyio.sleep(0.005)

    assert len(forked) == (mode == "forks")
    assert time.monotonic() - began < 1


def _command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
