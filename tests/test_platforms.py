"""Differences between Python versions and operating systems: POSIX names, protocols, shielded futures."""

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from anyio import fail_after, sleep_forever
from langchain_core.tools import BaseTool, tool
from typing_extensions import get_protocol_members

from callboard import (
    Actor,
    CallPolicy,
    Engine,
    Fleet,
    Limit,
    SharedLimits,
    ToolNode,
    child,
    drain_on_signal,
    handler,
)
from callboard._calls._sync_middleware import AsyncioMiddleware

WITHOUT_POSIX = """
import asyncio, os, signal, sys, time  # asyncio itself is another one on Windows
GONE = {
    os: ["fork", "forkpty", "register_at_fork", "getpgid", "killpg", "setsid", "getuid", "geteuid", "getgid",
         "sched_getaffinity", "sysconf", "uname", "mkfifo", "memfd_create", "pidfd_open", "waitid"],
    signal: ["SIGALRM", "SIGKILL", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCHLD", "setitimer", "getitimer", "ITIMER_REAL",
             "pthread_kill", "pthread_sigmask", "sigwait", "alarm", "siginterrupt"],
    time: ["clock_gettime", "clock_gettime_ns", "CLOCK_BOOTTIME", "CLOCK_MONOTONIC", "CLOCK_REALTIME",
           "CLOCK_THREAD_CPUTIME_ID", "pthread_getcpuclockid"],
}
for module, names in GONE.items():
    for name in names:
        vars(module).pop(name, None)
for name in ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "readline", "syslog"):
    sys.modules[name] = None
"""


# Packages of others are loaded before, as they look for the system that they are installed for.
ON_WINDOWS = f"""
import platform; platform.uname()
import importlib.util, socket, anyio, trio, langgraph.prebuilt
for name in "httpx2 mcp.client.stdio mcp.server psycopg redis rich.live typer uvicorn".split():
    if importlib.util.find_spec(name.partition(".")[0]):
        importlib.import_module(name)
{WITHOUT_POSIX}
def refuse(*_):
    raise NotImplementedError
def kill(*_):
    raise AssertionError("os.kill(pid, 0) is no question on Windows: 0 is CTRL_C_EVENT")
asyncio.unix_events._UnixSelectorEventLoop.add_signal_handler = refuse
os.kill = kill
socket.SO_EXCLUSIVEADDRUSE = socket.SO_KEEPALIVE
sys.platform = "win32"
"""


def in_a_new_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], timeout=60, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    "statement",
    [
        "import callboard",
        "from callboard import ToolNode, create_react_agent",
        "import callboard\nfor name in callboard.__all__: getattr(callboard, name)",
        "import callboard._cli, callboard._cli._run_command, callboard._cli._signals",
        "import callboard_actors._server.fleet._lease as lease; assert 0 < lease.now() <= lease.now()",
    ],
)
def test_the_core_can_be_imported_without_the_names_of_posix(statement: str) -> None:
    """Windows lacks these names, and the core must be importable on Windows."""
    in_a_new_python(WITHOUT_POSIX + statement)


@pytest.mark.exhaustive
def test_a_tool_runs_in_a_thread_without_the_names_of_posix_and_without_trio() -> None:
    """A successful import does not show that the code also runs; a program on asyncio does not pay for trio."""
    in_a_new_python(
        WITHOUT_POSIX + "from callboard import ToolNode\n"
        "def double(x: int) -> int:\n    'Double.'\n    return x * 2\n"
        "call = {'name': 'double', 'args': {'x': 21}, 'id': '1', 'type': 'tool_call'}\n"
        "for found in (ToolNode([double]).invoke([call]), asyncio.run(ToolNode([double]).ainvoke([call]))):\n"
        "    assert found['messages'][0].content == '42'\n"
        "assert 'trio' not in sys.modules\n"
    )


@pytest.mark.parametrize("name", ["asyncio", pytest.param("trio", marks=pytest.mark.exhaustive)])
def test_a_node_and_an_agent_run_without_the_names_of_posix(name: str) -> None:
    """Sync and async tools, a timeout, a drain by signal and the loop of model and tools: all of it is for Windows."""
    in_a_new_python(
        ON_WINDOWS
        + f"""
from callboard import CallPolicy, ToolNode, create_react_agent, drain_on_signal
from callboard.testing import ScriptedModel, calls

async def wait(seconds: float) -> str:
    "Wait."
    await anyio.sleep(seconds)
    return "waited"

def double(x: int) -> int:
    "Double."
    return x * 2

async def main():
    node = ToolNode([wait, double], policies={{"wait": CallPolicy(timeout=0.2)}})
    asked = calls(("wait", {{"seconds": 60}}), ("wait", {{"seconds": 0}}), ("double", {{"x": 21}}))
    model = ScriptedModel([asked, "done"])
    agent = create_react_agent(model, node, checkpointer="memory")
    async with agent, drain_on_signal(agent) as shutdown:
        found = await agent.ainvoke({{"messages": "?"}}, {{"configurable": {{"thread_id": "t"}}}})
    texts = [message.content for message in found["messages"]]
    assert "timeout of 0.2 s" in texts[2] and texts[3:] == ["waited", "42", "done"], texts
    assert shutdown.exit_code == 0

anyio.run(main, backend={name!r})
"""
    )


@pytest.mark.exhaustive
def test_clients_of_servers_can_be_imported_without_the_names_of_posix() -> None:
    """These rooms talk to servers and start no workers, so nothing in them needs POSIX."""
    in_a_new_python(
        ON_WINDOWS
        + """
for name in ("http", "mcp", "mcp_service", "postgres", "redis"):
    room = importlib.import_module(f"callboard_actors.{name}")
    assert [getattr(room, name) for name in room.__all__]
"""
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["asyncio", "trio"])
def test_a_database_and_a_server_of_mcp_work_without_the_names_of_posix(name: str, tmp_path: Path) -> None:
    """The table of systems on the page about installing says so: a conversation in a file, a process of MCP."""
    (tmp_path / "server.py").write_text(
        "from mcp.server.mcpserver import MCPServer\n"
        "server = MCPServer('sums')\n"
        "@server.tool()\n"
        "def add(a: int, b: int) -> int:\n    'Add.'\n    return a + b\n"
        "server.run()\n"
    )
    output = in_a_new_python(
        ON_WINDOWS
        + f"""
from callboard import create_react_agent
from callboard.testing import ScriptedModel, calls
from callboard_actors.mcp import McpServer

folder = {str(tmp_path)!r}

async def main():
    asked = calls(("add", {{"a": 20, "b": 22}}))
    model = ScriptedModel([asked, "Done."])
    async with McpServer([sys.executable, f"{{folder}}/server.py"]) as server:
        agent = create_react_agent(model, [server], checkpointer=f"sqlite:///{{folder}}/agent.db")
        async with agent:
            found = await agent.ainvoke({{"messages": "?"}}, {{"configurable": {{"thread_id": "t"}}}})
    print([message.content for message in found["messages"]])

anyio.run(main, backend={name!r})
"""
    )

    assert "42" in output
    assert "Done." in output


@pytest.mark.exhaustive
def test_a_tool_in_a_worker_process_says_that_it_needs_posix() -> None:
    """The error of a missing module, such as fcntl, would not tell a user that WSL helps."""
    output = in_a_new_python(
        ON_WINDOWS
        + """
for name, cls in (("process", "Processes"), ("python", "python_tool")):
    try:
        getattr(importlib.import_module(f"callboard_actors.{name}"), cls)
    except ImportError as error:
        print(error)
"""
    )

    assert len(re.findall("needs a POSIX system, and this is win32: .* within WSL", output)) == 2


@pytest.mark.exhaustive
def test_a_command_runs_without_the_names_of_posix() -> None:
    """A traceback in a terminal looks like a defect."""
    output = in_a_new_python(
        ON_WINDOWS
        + """
from callboard._cli import main
sys.argv = ["callboard", "demo", "--calls", "10"]
try:
    main()
except SystemExit as end:
    assert end.code == 0, end.code
"""
    )

    assert "tasks left over: 0" in output
    assert "Traceback" not in output


@pytest.mark.exhaustive
def test_the_lease_decides_where_a_process_cannot_be_looked_up() -> None:
    """On Windows `os.kill(pid, 0)` sends Ctrl-C to other processes, and fails for a process that has ended."""
    in_a_new_python(
        ON_WINDOWS + "from callboard.conversations import _lease\n"
        "ours = _lease.new_holder()\n"
        "theirs = {**ours, 'token': 'theirs', 'pid': os.getppid()}\n"
        "assert _lease.is_alive(ours) and _lease.is_alive(theirs)\n"
        "assert not _lease.is_alive({**theirs, 'until': 0.0})\n"
        "_lease.release(ours)\n"
        "assert not _lease.is_alive(ours)\n"
    )


def test_a_fleet_has_a_clock_where_the_one_that_counts_suspended_time_is_missing() -> None:
    """macOS has CLOCK_MONOTONIC, and no CLOCK_BOOTTIME."""
    in_a_new_python(
        "import time\nvars(time).pop('CLOCK_BOOTTIME', None)\n"
        "from callboard_actors._server.fleet._lease import now\nassert 0 < now() <= now()"
    )


class Forwarded:
    """Forwards attributes to another object with `__getattr__`, as proxies and lazy clients do."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Tools:
    def get_tools(self) -> list[BaseTool]:
        return [double]


@tool
def double(x: int) -> int:
    """Double."""
    return x * 2


class Book(Actor):
    @handler
    def pages(self) -> int:
        return 3


def having(protocol: type) -> Any:
    """Return an object with every member of a protocol, and no other member."""
    return SimpleNamespace(**dict.fromkeys(get_protocol_members(protocol), print))


@pytest.mark.parametrize(
    "give",
    [
        pytest.param(lambda: ToolNode([Forwarded(Tools())]), id="toolkit"),
        pytest.param(lambda: CallPolicy(runs_in=Forwarded(having(Engine))), id="engine"),
        pytest.param(lambda: Limit(concurrency=1, shared=Forwarded(having(SharedLimits))), id="limits"),
        pytest.param(lambda: child(Book(), fleet=Forwarded(having(Fleet))), id="fleet"),
    ],
)
def test_an_object_may_have_the_methods_of_a_protocol_by_getattr(give: Callable[[], object]) -> None:
    """`isinstance` ignores `__getattr__` from Python 3.12 on."""
    give()


async def test_what_is_drained_may_have_the_method_by_getattr() -> None:
    """The same as the test above, in an event loop."""
    with fail_after(10):
        async with drain_on_signal(Forwarded(ToolNode([double]))):
            pass


def test_an_object_that_lacks_a_method_is_refused() -> None:
    """An object without a method is refused; so is a class, because its methods have no instance."""
    lacking = having(Engine)
    del lacking.run_body
    for wrong in (Forwarded(lacking), Engine):
        with pytest.raises(TypeError, match="is an engine"):
            CallPolicy(runs_in=wrong)


def shield_of_python_3_14(inner: "asyncio.Future[Any]") -> "asyncio.Future[Any]":
    """`asyncio.shield` as from Python 3.14 on: errors that come after a cancellation go to the loop's handler."""
    loop = inner.get_loop()
    outer = loop.create_future()

    def pass_on(_: object) -> None:
        if outer.cancelled():
            return
        if inner.cancelled():
            outer.cancel()
        elif (error := inner.exception()) is not None:
            outer.set_exception(error)
        else:
            outer.set_result(inner.result())

    def tell(_: object) -> None:
        if not inner.cancelled() and inner.exception() is not None:
            loop.call_exception_handler({"message": "exception in shielded future", "exception": inner.exception()})

    def leave(_: object) -> None:
        if not inner.done():
            inner.remove_done_callback(pass_on)
            inner.add_done_callback(tell)

    inner.add_done_callback(pass_on)
    outer.add_done_callback(leave)
    return outer


@pytest.mark.backends("trio")
@pytest.mark.real_clock
async def test_an_error_of_a_call_that_its_middleware_has_cancelled_is_not_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After a middleware has cancelled a call, the call's late error is not logged, although Python 3.14 does so."""
    monkeypatch.setattr(asyncio, "shield", shield_of_python_3_14)
    begun = threading.Event()

    async def fails_in_its_clean_up(_: str) -> str:
        try:
            begun.set()
            await sleep_forever()
        finally:
            raise ValueError("too late")

    async def gives_up(request: str, call_next: Callable[[str], Awaitable[str]]) -> str:
        task = asyncio.ensure_future(call_next(request))
        await asyncio.to_thread(begun.wait, 10)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0)
        return "gave up"

    with fail_after(20):
        assert await AsyncioMiddleware[str, str](gives_up)("?", fails_in_its_clean_up) == "gave up"

    assert caplog.text == ""
