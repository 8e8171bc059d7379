"""Cost of an MCP tool call through callboard's actor, compared with the plain SDK and with langchain-mcp-adapters.

The adapters need a version of the SDK before 2, so they run in a separate environment, which is created on first use.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import anyio
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from sniffio import current_async_library

from callboard import ToolNode
from callboard.testing import tool_call
from callboard_actors.mcp import McpServer

from ._measure import BACKENDS, WALL, Table

ADAPTERS = "langchain-mcp-adapters==0.3.2"
SERVER = [sys.executable, "-m", "tests.mcp._served", "stdio"]
_THEIRS = Path(__file__).with_name("_mcp_adapters.py")
_BARE = "SDK's session alone"
_OURS = "`McpServer.call`"
_NODE = "a tool of it in a `ToolNode`"
_TOOL = "a tool of it by itself, as LangChain runs it"


def mcp(*, calls: int, opened: int) -> Table:
    """Measure sequential calls over stdio, as p50 in microseconds. The contestants alternate call by call."""
    table = Table("MCP", ["", *BACKENDS])
    ours = [anyio.run(_medians, calls, backend=backend) for backend in BACKENDS]
    for name in ours[0]:
        table.add(f"{name}, us", *(one[name] * 1e6 if name in one else None for one in ours))
    ratios = [one[_OURS] / one[_BARE] for one in ours]
    table.add(f"{_OURS} : {_BARE}", *ratios)
    table.promise("a call through the actor to one of the SDK", 1.1, ratios)
    theirs = _of_adapters(calls, opened)
    if theirs is None:
        table.notes = [f"{ADAPTERS} is not to be had here."]
    for name, seconds in (theirs or {}).items():
        table.add(f"{name}, us", seconds * 1e6, None)
    return table


async def _medians(calls: int) -> dict[str, float]:
    async with Client(StdioServerParameters(command=SERVER[0], args=SERVER[1:])) as bare, McpServer(SERVER) as server:
        await bare.list_tools()  # otherwise the SDK lists the tools during the first call
        node, [echo] = ToolNode([server]), [tool for tool in server.tools if tool.name == "echo"]
        arguments = {"text": "hello"}
        contestants: dict[str, Callable[[], Awaitable[object]]] = {
            _BARE: lambda: bare.session.call_tool("echo", arguments),
            _OURS: lambda: server.call("echo", arguments),
            _NODE: lambda: node.ainvoke([tool_call("echo", "1", text="hello")]),
        }
        if current_async_library() == "asyncio":  # LangChain runs a tool directly on asyncio only
            contestants[_TOOL] = lambda: echo.ainvoke(arguments)
        return await _in_turns(calls, contestants)


async def _in_turns(calls: int, contestants: dict[str, Callable[[], Awaitable[object]]]) -> dict[str, float]:
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(calls + 5):
        for name, call in contestants.items():
            began = WALL()
            await call()
            taken[name].append(WALL() - began)
    return {name: statistics.median(values[5:]) for name, values in taken.items()}


def _of_adapters(calls: int, opened: int) -> dict[str, float] | None:
    """Return the medians of langchain-mcp-adapters with the same server."""
    python = _python_of_adapters()
    if python is None:
        return None
    command = [str(python), str(_THEIRS), json.dumps({"calls": calls, "opened": opened, "server": SERVER})]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return {str(name): float(seconds) for name, seconds in json.loads(found.stdout).items()}


def _python_of_adapters() -> Path | None:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "callboard-tests"
    home, uv = cache / ADAPTERS, shutil.which("uv")
    python = home / "bin" / "python"
    if not python.exists() and uv is not None:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            if not _ran([uv, "venv", "--relocatable", f"{scratch}/made"]):
                return None
            if not _ran([uv, "pip", "install", "--python", f"{scratch}/made/bin/python", ADAPTERS]):
                return None
            Path(scratch, "made").rename(home)
    return python if python.exists() else None


def _ran(command: Sequence[str]) -> bool:
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0
