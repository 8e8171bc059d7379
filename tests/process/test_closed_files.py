"""Pools of programs that were started without stdin, stdout or stderr, as some daemons are."""

import subprocess
import sys
from pathlib import Path

import pytest

from callboard.testing import Backend

from ._processes import WAIT

ROOT = Path(__file__).parents[2]
_PROGRAM = """
import anyio, pathlib, sys
from callboard_actors.process import Processes
from tests.process import _bodies as bodies

async def main(start, found):
    async with Processes(workers=1, start=start) as pool:
        pathlib.Path(found).write_text(str(await pool.run(bodies.add, 20, 22)))

anyio.run(main, *sys.argv[2:], backend=sys.argv[1])
"""


@pytest.mark.parametrize("start", [pytest.param("fork", marks=pytest.mark.exhaustive), "spawn"])
@pytest.mark.parametrize(
    "closed", [*(pytest.param(some, marks=pytest.mark.exhaustive) for some in ("0<&- 1>&-", "2>&-")), "0<&- 1>&- 2>&-"]
)
def test_a_program_without_standard_files_has_a_pool(
    tmp_path: Path, anyio_backend: Backend, start: str, closed: str
) -> None:
    """Descriptors 0 to 2 then belong to other files, such as the event loop's; no worker may write messages to them."""
    backend = anyio_backend[0] if isinstance(anyio_backend, tuple) else anyio_backend
    found = tmp_path / "found"
    program = [sys.executable, "-c", _PROGRAM, backend, start, str(found)]
    subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *program], cwd=ROOT, timeout=WAIT, check=True)
    assert found.read_text() == "42"
