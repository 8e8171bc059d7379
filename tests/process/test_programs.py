"""Pools within programs that manage processes or loops themselves, that are killed, or that lack standard files."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from callboard.testing import Backend
from tests.helpers import until

from ._processes import NO_LINUX, ROOT, WAIT, descendants, running, wait_for_starts

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


@pytest.mark.exhaustive
def test_in_ipython_a_cell_has_a_pool(tmp_path: Path) -> None:
    """The event loop is IPython's. Functions defined in a cell cannot be found by workers, and the error says so."""
    command = [sys.executable, "-m", "IPython", "--colors=NoColor", "-c", _CELL]
    env = {**os.environ, "IPYTHONDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=WAIT * 3, check=False)
    assert "found 42" in result.stdout, result.stdout + result.stderr
    assert "refused" in result.stdout


@pytest.mark.backends("asyncio", "trio")
@pytest.mark.real_clock
@pytest.mark.parametrize(
    ("start", "mode", "linux", "with_zygote"),
    [
        pytest.param("fork", "plain", True, False, marks=pytest.mark.exhaustive),
        ("fork", "forks", True, False),
        pytest.param("fork", "confined", True, False, marks=pytest.mark.exhaustive),
        pytest.param("spawn", "forks", False, False, marks=pytest.mark.exhaustive),
        pytest.param("spawn", "plain", False, True, marks=pytest.mark.exhaustive),
        pytest.param("spawn", "forks", True, False, marks=pytest.mark.exhaustive),
    ],
)
async def test_no_worker_outlives_its_parent_by_more_than_a_second(
    tmp_path: Path, anyio_backend: Backend, start: str, mode: str, linux: bool, with_zygote: bool
) -> None:
    """Workers end with their parent while idle, busy, deaf to SIGTERM, with children, or confined.

    A fork of the parent that has all its sockets open makes no difference. Where the kernel does not signal the end of
    a parent, the zygote polls, and workers see their lifeline pipe close, also if the zygote is killed, too.
    """
    backend = anyio_backend[0] if isinstance(anyio_backend, tuple) else anyio_backend
    env = dict(os.environ) if linux else {**os.environ, "PYTHONPATH": str(NO_LINUX)}
    times: list[float] = []
    for attempt in range(3):  # the processes of a busy machine may have to wait for a processor to end on
        folder = tmp_path / str(attempt)
        folder.mkdir()
        command = [sys.executable, "-m", "tests.process._doomed_parent", backend, str(folder), mode, start]
        forks, seconds = await _measure_outliving(command, env, folder, with_zygote=with_zygote)
        assert forks == (mode == "forks")
        times.append(seconds)
        if seconds < 1:
            break

    assert min(times) < 1


async def _measure_outliving(
    command: Sequence[str], env: Mapping[str, str], folder: Path, *, with_zygote: bool
) -> tuple[int, float]:
    """Kill a parent; return the number of its forks, and for how many seconds its workers have outlived it."""
    with subprocess.Popen(command, cwd=ROOT, env=env) as parent:
        try:
            await wait_for_starts(folder, 3)
            forked = {pid for pid in descendants(parent.pid) if _command_of(pid) == _command_of(parent.pid)}
            below = descendants(parent.pid) - forked
            zygotes = {pid for pid in below if b"_zygote import" in _command_of(pid)}
            assert zygotes
            assert len(below) >= 5
            began = time.monotonic()
        finally:
            if with_zygote:
                for pid in zygotes:
                    os.kill(pid, signal.SIGKILL)
            os.kill(parent.pid, signal.SIGKILL)
    await until(lambda: not running(below), WAIT)
    return len(forked), time.monotonic() - began


def _command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


_DAEMON = """
import anyio, pathlib, sys
from callboard_actors.process import Processes
from tests.process import _bodies as bodies

async def main(start, found):
    async with Processes(workers=1, start=start) as pool:
        pathlib.Path(found).write_text(str(await pool.run(bodies.add, 20, 22)))

anyio.run(main, *sys.argv[2:], backend=sys.argv[1])
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("start", [pytest.param("fork", marks=pytest.mark.exhaustive), "spawn"])
@pytest.mark.parametrize(
    "closed",
    [*(pytest.param(closing, marks=pytest.mark.exhaustive) for closing in ("0<&- 1>&-", "2>&-")), "0<&- 1>&- 2>&-"],
)
def test_a_program_without_standard_files_has_a_pool(
    tmp_path: Path, anyio_backend: Backend, start: str, closed: str
) -> None:
    """Descriptors 0 to 2 then belong to other files, such as the event loop's; no worker may write messages to them."""
    backend = anyio_backend[0] if isinstance(anyio_backend, tuple) else anyio_backend
    output_path = tmp_path / "found"
    program = [sys.executable, "-c", _DAEMON, backend, start, str(output_path)]
    subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *program], cwd=ROOT, timeout=WAIT, check=True)
    assert output_path.read_text() == "42"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_a_process_of_another_user_that_a_call_leaves_behind_ends_no_other_calls() -> None:
    """The zygote may not kill it. The error ended the zygote, and with it all of its workers."""
    command = [sys.executable, "-m", "tests.process._other_user"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT, check=False)
    assert done.stdout.splitlines() == ["its worker process exited with code 3", "done"], done.stderr
