"""Pools of processes within programs that manage processes or event loops themselves."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from ._processes import WAIT, descendants, running

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.exhaustive

_CELL = """
from callboard_actors.process import Processes
from tests.process import _bodies as bodies
async with Processes(workers=2) as pool:
    print("found", await pool.run(bodies.add, 20, 22))
    try:
        await pool.run(lambda: 1)
    except TypeError as error:
        print("refused", error)
"""


def test_in_ipython_a_cell_has_a_pool(tmp_path: Path) -> None:
    """The event loop is IPython's. Functions defined in a cell cannot be found by workers, and the error says so."""
    command = [sys.executable, "-m", "IPython", "--colors=NoColor", "-c", _CELL]
    env = {**os.environ, "IPYTHONDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    found = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=WAIT * 3, check=False)
    assert "found 42" in found.stdout, found.stdout + found.stderr
    assert "refused" in found.stdout


@pytest.mark.parametrize("workers", [1, 2])
def test_a_uvicorn_worker_has_a_pool_and_leaves_nothing_behind(tmp_path: Path, workers: int) -> None:
    """Several uvicorn workers may each have a pool; SIGTERM ends all processes."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "tests.process._web_app:app", "--port", str(port), "--log-level=error"]
    with subprocess.Popen([*command, "--workers", str(workers)], cwd=ROOT) as server:
        try:
            for _ in range(2):
                answer = _get(f"http://127.0.0.1:{port}/?folder={tmp_path}")
                assert "did not finish within its timeout of 0.5 s" in answer["hung"]
                assert answer["found"].startswith("fine from ")
            below = descendants(server.pid)
            assert len(below) >= 2  # a zygote and a worker
        finally:
            server.send_signal(signal.SIGTERM)
    until = time.monotonic() + WAIT
    while running(below) and time.monotonic() < until:
        time.sleep(0.01)
    assert running(below) == set()


def _get(url: str) -> dict[str, str]:
    until = time.monotonic() + WAIT
    while True:
        try:
            found: dict[str, str] = httpx.get(url, timeout=WAIT).raise_for_status().json()
        except httpx.ConnectError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return found
