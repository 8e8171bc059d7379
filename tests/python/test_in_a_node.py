"""Python as a tool: one interpreter for each conversation, in its own process."""

import sys
from pathlib import Path
from typing import Any

import pytest

from callboard import ChildSpec, ToolNode, create_react_agent, running, tool_call
from callboard.testing import ScriptedModel, calls
from callboard_actors.process import Confine
from callboard_actors.python import Python, python_tool

pytestmark = pytest.mark.real_clock


def tool(**options: Any) -> ChildSpec[Python]:
    return python_tool(Python(**options), unrestricted=True)


async def run_cell(node: ToolNode, code: str, thread: str = "a") -> Any:
    call = tool_call("run_python", code[:20], code=code)
    state = await node.ainvoke([call], {"configurable": {"thread_id": thread}})
    return state["messages"][0].content


async def test_each_conversation_has_names_of_its_own() -> None:
    """A conversation finds its variables again in its next call."""
    async with ToolNode([tool()]) as node:
        assert await run_cell(node, "x = 42") == "Done; no output."
        assert await run_cell(node, "x") == "Out[2]: 42"
        assert "NameError: name 'x' is not defined" in await run_cell(node, "x", "b")
        assert await run_cell(node, "print('hi'); await __import__('asyncio').sleep(0)\nx + 1") == "hi\nOut[3]: 43"


KILLERS = {
    "exits": "import os; os._exit(3)",
    "is killed, as when memory runs out": "import os; os.kill(os.getpid(), 9)",
    "crashes": "import ctypes; ctypes.string_at(0)",
    "is deaf to its timeout": "10 ** 10 ** 9",
}


@pytest.mark.parametrize("code", KILLERS.values(), ids=KILLERS)
async def test_an_interpreter_that_was_killed_is_told_as_lost_names(code: str) -> None:
    """The cell is not run again. The next call has a new interpreter, and other conversations are not affected."""
    async with ToolNode([tool(timeout=0.5, grace=0.3)]) as node:
        await run_cell(node, "x = 42")
        await run_cell(node, "x = 43", "b")
        content = await run_cell(node, code)
        assert content.startswith("Error: 'run_python' had begun when Python['a'] died: its worker process ")
        assert "Whether it had its effect is unknown." in content
        assert content.endswith("What Python['a'] held is lost. Find out before you call it again.")
        assert (await run_cell(node, "x")).endswith("NameError: name 'x' is not defined")
        assert await run_cell(node, "x", "b") == "Out[2]: 43"


@pytest.mark.parametrize("options", [{}, {"unrestricted": True}], ids=["confined", "unrestricted"])
async def test_a_cell_that_interrupts_its_process_is_interrupted_and_names_stay(options: dict[str, Any]) -> None:
    """The cell is interrupted as at a Python prompt. It once counted as finished and the variables were lost."""
    interrupt = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    async with ToolNode([python_tool(**options)]) as node:
        await run_cell(node, "x = 42")
        content = await run_cell(node, f"{interrupt}\nwhile True: pass")
        assert content.endswith(
            "KeyboardInterrupt\n[the cell ended there. The interpreter goes on, and its names stay.]"
        )
        assert await run_cell(node, "x") == "Out[3]: 42"
        at_its_end = await run_cell(node, f"{interrupt}\n7")
        assert at_its_end == "Out[4]: 7" or "KeyboardInterrupt" in at_its_end
        assert await run_cell(node, "x") == "Out[5]: 42"


async def test_memory_over_the_bound_is_an_error_of_the_cell() -> None:
    """The cell raises MemoryError and its variables stay."""
    async with ToolNode([python_tool(unrestricted=True, memory=1024**3)]) as node:
        await run_cell(node, "x = 42")
        assert "MemoryError" in await run_cell(node, "b = bytearray(2 * 1024**3)")
        assert await run_cell(node, "x") == "Out[3]: 42"


async def test_a_missing_package_is_told_with_those_that_are_there() -> None:
    """Models often try to install packages, so the error lists the installed ones."""
    async with ToolNode([tool(packages=["anyio"])]) as node:
        content = await run_cell(node, "import no_such_package")

    assert content.endswith("['no_such_package' is not there and cannot be installed; there are: anyio]")


async def test_figures_are_content_blocks_of_the_message() -> None:
    """Figures have the form that chat models accept; here matplotlib is replaced by a module that the cell makes."""
    code = (
        "import sys, types\n"
        "class F:\n    def savefig(self, file, **_): file.write(b'PNG')\n"
        "m = types.ModuleType('p'); m.get_fignums = lambda: [1]; m.figure = lambda n: F(); m.close = lambda w: None\n"
        "sys.modules['matplotlib.pyplot'] = m\nprint('drawn')"
    )
    async with ToolNode([tool()]) as node:
        text, picture = await run_cell(node, code)

    assert text == {"type": "text", "text": "drawn\n[1 figure]"}
    assert picture == {"type": "image", "base64": "UE5H", "mime_type": "image/png"}


async def test_code_that_forks_is_not_warned_of_threads_that_are_not_its_own() -> None:
    """Python 3.12 and later warn about threads at a fork.

    The interpreter's own threads only read output and keep time.
    """
    code = "import os\nchild = os.fork()\nif not child: os._exit(3)\nos.waitstatus_to_exitcode(os.waitpid(child, 0)[1])"
    async with ToolNode([tool()]) as node:
        assert await run_cell(node, code) == "Out[1]: 3"


async def test_an_agent_has_it_in_one_line() -> None:
    """Without an open block, the interpreter lives for one run of the agent."""
    model = ScriptedModel([calls(("run_python", {"code": "x = 20"})), calls(("run_python", {"code": "x + 1"})), "21."])
    run = await create_react_agent(model, [tool()]).ainvoke({"messages": [("user", "20 + 1?")]})

    assert [message.text for message in run["messages"] if message.type == "tool"] == ["Done; no output.", "Out[2]: 21"]


async def test_without_a_process_of_its_own_it_does_not_start() -> None:
    """Without a separate process a model's code would run in this one."""
    with pytest.raises(Exception, match=r"python_tool\(\.\.\.\)"):
        async with running(Python()):
            pass


@pytest.mark.parametrize("options", [{}, {"confine": Confine()}], ids=["default", "confine"])
def test_a_tool_is_refused_where_its_code_cannot_be_confined(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """The pool's own error is about `memory` and `confine`, which the caller need not have given."""
    monkeypatch.setattr(sys, "platform", "darwin")

    with pytest.raises(
        NotImplementedError, match=r"python_tool needs Linux.*this is darwin; run the program in a Linux"
    ):
        python_tool(**options)


def test_what_cannot_work_is_refused_when_it_is_said() -> None:
    """The error is raised when the tool is made, not by the model's first call."""
    with pytest.raises(ValueError, match=r"both confine=\.\.\. and unrestricted=True"):
        python_tool(confine=Confine(), unrestricted=True)
    with pytest.raises(TypeError, match=r"preload='json'.* is one string"):
        python_tool(preload="json")
    with pytest.raises(ValueError, match="'no_such_package' is not installed"):
        tool(packages=["no_such_package"])
    with pytest.raises(TypeError, match="one string"):
        tool(packages="numpy")
    with pytest.raises(ValueError, match="timeout=0"):
        tool(timeout=0)
    with pytest.raises(ValueError, match="max_output=1"):
        tool(max_output=1)
    for number in (-1, "two", 2.5):
        with pytest.raises(ValueError, match=f"pictures={number!r}"):
            tool(pictures=number)
    with pytest.raises(TypeError, match=r"takes a Python, such as python_tool\(Python\(timeout=5\)\); got 5$"):
        python_tool(5)  # type: ignore[arg-type]


BREAKERS = {
    "sys.getrecursionlimit": "import sys; sys.getrecursionlimit = None",
    "signal.setitimer": "import signal; signal.setitimer = None",
    "os.dup2": "import os; os.dup2 = None",
    "os.dup": "import os; os.dup = None",
    "most of os": "import os; os.write = os.read = os.fstat = os.getpid = os.close = os._exit = None",
    "ast.parse": "import ast; ast.parse = None",
    "threading.Timer": "import threading; threading.Timer = None",
    "threads": "import threading; threading.Thread.start = None",
    "inspect": "import inspect; inspect.CO_COROUTINE = None",
    "io": "import io, sys; io.TextIOWrapper = io.FileIO = None; sys.stdout.close()",
    "our answers": "import callboard_actors._engine._plain_replies as r; r.to_json = r.json = None",
    "our socket": "import callboard_actors.process._worker as w; w.encode_frame = None",
    "our flush": "import callboard_actors.process._worker as w; w.flush_output = None",
}


QUICK = ("os.dup2", "threads", "our flush")


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(code, id=name, marks=[] if name in QUICK else pytest.mark.exhaustive)
        for name, code in BREAKERS.items()
    ],
)
async def test_a_cell_that_breaks_its_interpreter_ends_it_and_later_calls_work(code: str) -> None:
    """The next calls once failed outside of the node. Now the model reads that the variables are lost."""
    async with ToolNode([python_tool()]) as node:
        assert await run_cell(node, "x = 42") == "Done; no output."
        content = await run_cell(node, code)
        assert content.startswith("Error: 'run_python' had begun when Python['a'] died: ")
        assert content.endswith("What Python['a'] held is lost. Find out before you call it again.")
        assert await run_cell(node, "1 + 1") == "Out[1]: 2"
        assert (await run_cell(node, "x")).endswith("NameError: name 'x' is not defined")


async def test_what_a_cell_does_to_our_own_code_ends_its_interpreter_with_the_next_call() -> None:
    """Exceptions inside of the interpreter's own code end the interpreter and never leave the node."""
    code = "from callboard_actors.python._python import Python; del Python.run_python; Python._handlers.clear()"
    async with ToolNode([python_tool()]) as node:
        await run_cell(node, code)
        assert isinstance(await run_cell(node, "1 + 1"), str)
        assert "NameError" in await run_cell(node, "x")
        assert "Out[" in await run_cell(node, "2 + 2")


DEAF = {
    "no timer": "import signal; signal.setitimer(signal.ITIMER_REAL, 0)\n10 ** 10 ** 9",
    "no event loop": "import asyncio; asyncio.BaseEventLoop.call_soon = asyncio.BaseEventLoop.create_task = None",
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("code", DEAF.values(), ids=DEAF)
async def test_a_cell_whose_process_never_answers_is_ended_from_outside(
    code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell can switch off the timer that runs in its own process, so a timer outside of it is needed."""
    monkeypatch.setattr("callboard_actors.python._tool._ANSWER_TIME", 2.0)
    async with ToolNode([python_tool(Python(timeout=0.3, grace=0.2))]) as node:
        await run_cell(node, "x = 42")
        content = await run_cell(node, code)
        # On trio that event loop is not the worker's, so the cell has done no harm.
        assert (
            content.endswith("What Python['a'] held is lost. Find out before you call it again.")
            or content == "Done; no output."
        )
        lost = content != "Done; no output."
        assert await run_cell(node, "1 + 1") == ("Out[1]: 2" if lost else "Out[3]: 2")


_ATTEMPTS = {
    "reads": "open({secret!r}).read()",
    "writes": "open({folder!r} + '/written', 'w').write('x')",
    "connects": "import socket; socket.socket() and 'connected'",
    "starts": "import os; os.fork() and 'started'",
    "environment": "import os; os.environ['SECRET_KEY']",
}


async def test_what_code_may_do_unrestricted_it_may_not_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files, the network, processes and the environment are closed; an unrestricted interpreter can use all of them."""
    secret = tmp_path / "secret"
    secret.write_text("a secret")
    monkeypatch.setenv("SECRET_KEY", "a key")
    codes = {name: code.format(secret=str(secret), folder=str(tmp_path)) for name, code in _ATTEMPTS.items()}
    async with ToolNode([python_tool(unrestricted=True)]) as free, ToolNode([python_tool()]) as confined:
        for name, code in codes.items():
            assert "Error" not in await run_cell(free, code), name
            refused = await run_cell(confined, code)
            assert ("KeyError" if name == "environment" else "PermissionError") in refused, name
        assert await run_cell(confined, "import json, sqlite3, decimal; json.dumps([1])") == "Out[6]: '[1]'"


async def test_it_may_do_besides_what_somebody_has_said(tmp_path: Path) -> None:
    """Additional permissions open, for instance, a folder for output files."""
    async with ToolNode([python_tool(confine=Confine(write=[tmp_path]))]) as node:
        await run_cell(node, f"open({str(tmp_path)!r} + '/written', 'w').write('x')")
    assert (tmp_path / "written").read_text() == "x"


_LIES = """
import os
with open({trace!r}, "a") as file:
    file.write("run\\n")
for name in os.listdir("/proc/self/fd"):
    try:
        if "callboard-begun" in os.readlink("/proc/self/fd/" + name):
            os.pwrite(int(name), bytes(8), 0)
    except OSError:
        pass
os._exit(0)
"""


async def test_a_cell_that_denies_to_have_begun_runs_once_and_then_counts_as_poison(tmp_path: Path) -> None:
    """A cell once cleared the begun counter of its worker and was run again for ever."""
    trace = tmp_path / "trace"
    code = _LIES.format(trace=str(trace))
    async with ToolNode([python_tool(confine=Confine(read=["/proc"], write=[tmp_path]))]) as node:
        assert "Whether it had its effect is unknown." in await run_cell(node, code)
        assert len(trace.read_text().splitlines()) == 1
        await run_cell(node, code)
        assert len(trace.read_text().splitlines()) == 1
