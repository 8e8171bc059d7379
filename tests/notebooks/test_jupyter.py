"""Kernels of IPython, as Jupyter runs them: objects that stay open from one cell to another."""

import os
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

pytest.importorskip("jupyter_client")

from tests.notebooks._kernel import WAIT, Kernel, kernel

FIRST = """
import sys, asyncio, anyio
from callboard import Actor, Supervisor, ToolNode, child, create_react_agent, handler, tool_call
from callboard.testing import ScriptedModel, calls

log = []

class Counter(Actor):
    def __init__(self, slow=0.0):
        self.slow = slow
    async def start(self):
        self.number = 0
        print("starting", flush=True)
        await anyio.sleep(self.slow)
    async def stop(self):
        log.append("stopped")
    @handler
    async def count(self) -> int:
        "Count."
        self.number += 1
        return self.number

async def counted():
    state = await agent.ainvoke({"messages": "Count."})
    return state["messages"][-2].content

# ipykernel 7 cancels an interrupted cell when its event loop wakes next, which may be much later.
async def tick():
    while True:
        await asyncio.sleep(0.05)

ticking = asyncio.ensure_future(tick())
agent = create_react_agent(ScriptedModel([calls(tool_call("count")), "done"] * 20), [Counter()])
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Generator[Kernel]:
    """One kernel for several tests, because its start takes seconds."""
    with kernel(tmp_path_factory.mktemp("kernel")) as running:
        running.value(FIRST)
        yield running


@pytest.fixture
def own(tmp_path: Path) -> Generator[Kernel]:
    """Kernel that a test may end."""
    with kernel(tmp_path) as running:
        running.value(FIRST)
        yield running


def test_an_agent_stays_open_between_cells(shared: Kernel) -> None:
    """Each cell is a task of its own; the actor keeps its state from one to another."""
    tasks = [shared.value("print(id(this := asyncio.current_task()))") for _ in range(2)]
    shared.value("await agent.open()")
    counts = [shared.value("print(await counted())") for _ in range(3)]
    reopened = shared.value("await agent.open(); print(await counted())")
    closed = shared.value("await agent.aclose(); print(log)")
    alone = shared.value("print(await counted(), await counted()); log.clear()")

    assert tasks[0] != tasks[1]
    assert counts == ["1", "2", "3"]
    assert reopened == "4"
    assert closed == "['stopped']"
    assert alone.splitlines()[-1] == "1 1"


def test_a_supervisor_stays_open_between_cells(shared: Kernel) -> None:
    """Its cancel scope is left by the task that entered it, and not by that of the second cell."""
    shared.value("tree = await Supervisor([Counter()]).open()")
    assert shared.value("print(await tree[Counter].count())") == "1"
    assert shared.value("print(await tree[Counter].count())") == "2"
    assert shared.value("await tree.aclose(); print(log.pop())") == "stopped"
    assert shared.run("await tree[Counter].count()").error == "RuntimeError"


def test_an_interrupted_cell_ends_its_run_and_leaves_the_agent_open(shared: Kernel) -> None:
    """The interrupt cancels the run; the actor belongs to another task, and goes on."""
    shared.value(
        """
        from langchain_core.tools import tool
        @tool
        async def wait() -> str:
            "Wait."
            print("waiting", flush=True)
            try:
                await anyio.sleep(1000)
            finally:
                print("cleaned up", flush=True)
        script = [calls(tool_call("count")), "done", calls(tool_call("wait")), calls(tool_call("count")), "done"]
        agent = await create_react_agent(ScriptedModel(script), [Counter(), wait]).open()
        """
    )
    assert shared.value("print(await counted())") == "1"
    interrupted = shared.run("await counted()", interrupt_at="waiting")
    assert (interrupted.text, interrupted.error) == ("waiting\ncleaned up\n", "CancelledError")
    assert shared.value("print(await counted())") == "2"
    assert shared.value("await agent.aclose(); print(log.pop())") == "stopped"


def test_an_interrupted_open_has_closed_again(shared: Kernel) -> None:
    interrupted = shared.run("slow = Supervisor([Counter(1000)]); await slow.open()", interrupt_at="starting")
    assert interrupted.error == "CancelledError"
    assert shared.run("await slow[Counter].count()").error == "RuntimeError"
    assert shared.value("from callboard._loops import _owner_task; print(len(_owner_task._open))") == "0"


def test_sync_code_is_interrupted_as_usual(shared: Kernel) -> None:
    """A cell without `await` raises KeyboardInterrupt; the open objects are not affected."""
    shared.value("tree = await Supervisor([Counter()]).open()")
    busy = "import time\nprint('busy', flush=True)\ntime.sleep(1000)"
    assert shared.run(busy, interrupt_at="busy").error == "KeyboardInterrupt"
    assert shared.value("print(await tree[Counter].count())") == "1"
    shared.value("await tree.aclose()")


def test_sync_methods_say_what_to_write(shared: Kernel) -> None:
    """They would block the event loop in which the actors run."""
    shared.value("agent = await create_react_agent(ScriptedModel([calls(tool_call('count'))]), [Counter()]).open()")
    cell = shared.run("agent.close()")
    assert cell.error == "RuntimeError"
    assert "`await ....aclose()` there" in cell.traceback
    assert "Await it there (ainvoke)" in shared.run("agent.invoke({'messages': 'Count.'})").traceback
    shared.value("await agent.aclose()")


def test_on_trio_each_cell_has_its_own_loop(shared: Kernel) -> None:
    """Nothing could stay open; the error says it before anything has started."""
    shared.value("%autoawait trio")
    try:
        cell = shared.run("await Supervisor([Counter()]).open()")
        block = shared.value("async with Supervisor([Counter()]) as tree:\n    print(await tree[Counter].count())")
    finally:
        shared.value("%autoawait asyncio")

    assert cell.text == ""
    assert "with `%autoawait trio`, each cell runs an event loop of its own" in cell.traceback
    assert block.split() == ["starting", "1"]


WATCHED = """
import callboard

async def slow(text: str) -> str:
    "Take long."
    await anyio.sleep(1.5)
    return text

with callboard.watch():
    print("printed")
    result = await ToolNode([slow]).ainvoke([tool_call("slow", str(number), text="tea") for number in range(3)])
print(sys.stdout.isatty(), type(sys.stdout).__name__)
"""


def test_a_watched_cell_shows_plain_lines(shared: Kernel) -> None:
    """The kernel sets `FORCE_COLOR`, but a notebook cannot redraw a view of a terminal."""
    lines = shared.value(WATCHED).splitlines()

    assert lines[0] == "printed"
    assert any("0 of 3 ended, 3 running; slow(text='tea')" in line for line in lines)
    assert [line.split()[:2] for line in lines if line.startswith(("slow", "all"))] == [["slow", "3"], ["all", "3"]]
    assert "\x1b" not in "".join(lines)
    assert lines[-1] == "False OutStream"
    second_output = shared.value(
        "with callboard.watch():\n    await ToolNode([slow]).ainvoke([tool_call('slow', '1', text='')])"
    )
    assert "1 of 1 calls ended" in second_output


def test_an_interrupted_cell_ends_its_view(shared: Kernel) -> None:
    """The next cell can watch again."""
    code = "import callboard\nwith callboard.watch():\n    print('waits', flush=True)\n    await asyncio.sleep(1000)"
    assert shared.run(code, interrupt_at="waits").error == "CancelledError"
    assert "no calls" in shared.value("with callboard.watch():\n    pass")


SERVER = """
import os, pathlib
from mcp.server import MCPServer
pathlib.Path("server.pid").write_text(str(os.getpid()))
server = MCPServer("notes")
@server.tool()
def note(text: str) -> str:
    "Note."
    return "noted " + text
server.run("stdio")
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("now", [False, True], ids=["shut down", "killed"])
def test_a_kernel_that_ends_leaves_no_process(own: Kernel, tmp_path: Path, now: bool) -> None:
    """A notebook is often closed without `aclose()`; the MCP server and the worker processes end, too."""
    (tmp_path / "server.py").write_text(SERVER)
    (tmp_path / "work.py").write_text("import os\n\ndef pid() -> int:\n    'Number.'\n    return os.getpid()\n")
    own.value(
        """
        from callboard import CallPolicy
        from callboard_actors.mcp import McpServer
        from callboard_actors.process import Processes
        import work
        server = await McpServer([sys.executable, "server.py"], name="notes").open()
        pool = Processes(workers=1)
        script = [calls(tool_call("pid")), "done"]
        node = await ToolNode([work.pid, server, Counter()], policies={"pid": CallPolicy(runs_in=pool)}).open()
        """
    )
    worker = own.value("print((await node.ainvoke([tool_call('pid')]))['messages'][0].content)")
    noted = own.value("print((await node.ainvoke([tool_call('note', text='x')]))['messages'][0].content)")
    pids = [int(worker), int((tmp_path / "server.pid").read_text())]
    assert "noted x" in noted
    assert all(_lives(pid) for pid in pids)

    own.end(now=now)

    deadline = time.monotonic() + WAIT
    while any(_lives(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    stderr = (tmp_path / "stderr").read_text()
    assert ("was open when the program ended; end it with `await ....aclose()`" in stderr) is not now


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    if sys.platform == "linux":  # a zombie has ended, and waits for its parent
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    return True
