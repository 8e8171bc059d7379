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

from ._processes import NO_LINUX, WAIT, descendants, needs_bubblewrap, running, started

ROOT = Path(__file__).parents[2]


@pytest.mark.real_clock
@pytest.mark.parametrize(
    ("start", "mode", "linux", "with_zygote"),
    [
        pytest.param("fork", "plain", True, False, marks=pytest.mark.exhaustive),
        ("fork", "forks", True, False),
        pytest.param("fork", "bubblewrap", True, False, marks=[pytest.mark.exhaustive, needs_bubblewrap]),
        pytest.param("spawn", "forks", False, False, marks=pytest.mark.exhaustive),
        pytest.param("spawn", "plain", False, True, marks=pytest.mark.exhaustive),
        pytest.param("spawn", "forks", True, False, marks=pytest.mark.exhaustive),
    ],
)
async def test_no_worker_outlives_its_parent_by_more_than_a_second(
    tmp_path: Path, anyio_backend: Backend, start: str, mode: str, linux: bool, with_zygote: bool
) -> None:
    """Workers end with their parent while idle, busy, deaf to SIGTERM, with children, or in namespaces.

    A fork of the parent that has all its sockets open makes no difference. Where the kernel does not signal the end of
    a parent, the zygote polls, and workers see their lifeline pipe close, also if the zygote is killed, too.
    """
    backend = anyio_backend[0] if isinstance(anyio_backend, tuple) else anyio_backend
    command = [sys.executable, "-m", "tests.process._doomed_parent", backend, str(tmp_path), mode, start]
    env = dict(os.environ) if linux else {**os.environ, "PYTHONPATH": str(NO_LINUX)}
    with subprocess.Popen(command, cwd=ROOT, env=env) as parent:
        try:
            await started(tmp_path, 3)
            forked = {pid for pid in descendants(parent.pid) if _command_of(pid) == _command_of(parent.pid)}
            below = descendants(parent.pid) - forked
            zygotes = {pid for pid in below if b"_zygote import" in _command_of(pid)}
            assert zygotes
            assert len(below) >= (7 if mode == "bubblewrap" else 5)
            began = time.monotonic()
        finally:
            if with_zygote:
                for pid in zygotes:
                    os.kill(pid, signal.SIGKILL)
            os.kill(parent.pid, signal.SIGKILL)
    with anyio.fail_after(WAIT):
        while running(below):
            await anyio.sleep(0.005)

    assert len(forked) == (mode == "forks")
    assert time.monotonic() - began < 1


def _command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
