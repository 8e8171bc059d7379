"""Ten common tasks, each as a program that was written with only `llms-full.txt` and the skill.

`docs/reference/ten-tasks.md` has the record. A program checks its own result.
"""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "reference" / "ten-tasks.md"
PROGRAMS = sorted(path.stem for path in HERE.glob("*.py") if path.name not in {"__init__.py", "test_tasks.py"})

ON_ASYNCIO_ONLY = {"mcp_both_ways", "timeouts_in_a_graph"}
"""Programs with a part that is bound to asyncio: the server of MCP's SDK, and LangGraph's own loop."""
OWN_PROCESS = {"secrets_and_traces"}
"""Programs that set up OpenTelemetry, which is possible once for each process."""
IN_THIS_PROCESS = [
    (name, backend)
    for name in PROGRAMS
    if name not in OWN_PROCESS
    for backend in ("asyncio", "trio")
    if backend == "asyncio" or name not in ON_ASYNCIO_ONLY
]

pytestmark = pytest.mark.real_clock


@pytest.mark.parametrize(("name", "backend"), IN_THIS_PROCESS)
def test_a_task_has_its_result(name: str, backend: str) -> None:
    """The texts for coding agents are enough to write this program."""
    main = runpy.run_path(str(HERE / f"{name}.py"))["main"]

    async def run_in_time() -> None:
        with anyio.fail_after(60):
            await main()

    anyio.run(run_in_time, backend=backend)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(OWN_PROCESS))
def test_a_task_with_its_own_process_has_its_result(name: str) -> None:
    """It runs on both backends, one after the other."""
    command = [sys.executable, str(HERE / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_task_names_its_backends(name: str) -> None:
    """A reader who runs the program sees it on trio, too, unless a part of it is bound to asyncio."""
    end = (HERE / f"{name}.py").read_text().partition("__main__")[2]

    assert "anyio.run(main)" in end
    assert ('backend="trio"' in end) == (name not in ON_ASYNCIO_ONLY)


def test_the_page_has_every_task_once() -> None:
    """The record names each program, and there is no task without a program."""
    assert len(PROGRAMS) == 10
    assert sorted(re.findall(r"tests/tasks/(\w+)\.py\)", PAGE.read_text())) == PROGRAMS
