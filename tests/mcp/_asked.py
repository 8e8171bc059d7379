"""Helpers of the tests of MCP servers: the commands of the servers, and the answers of a node."""

import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import anyio
import pytest
from langchain_core.messages import ToolMessage

from callboard import ToolNode
from callboard_actors.mcp import McpServer

WAIT = 30
"""Timeout in seconds for events that must happen eventually."""
ROOT = Path(__file__).parents[len(str(__package__).split("."))]
"""Folder from which the package of these tests can be imported by its current name."""
SDK = [sys.executable, "-m", f"{__package__}._served", "stdio"]
NEW, OLD = ([sys.executable, "-m", f"{__package__}._plain", era] for era in ("2026", "2025"))
ERAS = pytest.mark.parametrize("era", ["2025", "2026"])
every_era = pytest.mark.parametrize("command", [OLD, NEW], ids=["2025", "2026"])


def bad(defect: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", f"{__package__}._bad", defect, *arguments]


def odd(era: str, **options: Any) -> McpServer:
    """Return a server that lists or sends odd things, which `_odd` explains; further options are those of McpServer."""
    oddities = {key: options.pop(key) for key in ("tools", "many", "cursor", "blocks", "pings") if key in options}
    command = [sys.executable, "-m", f"{__package__}._odd", era, json.dumps(oddities)]
    return McpServer(command, cwd=ROOT, name="shop", **options)


async def answers(
    node: ToolNode, *calls: Mapping[str, Any], config: Mapping[str, Any] | None = None
) -> list[ToolMessage]:
    state = await node.ainvoke(list(calls), cast("Any", config))
    return cast("list[ToolMessage]", state["messages"])


async def appears(path: Path) -> None:
    """Wait until a server has written a note."""
    with anyio.fail_after(WAIT):
        while not path.exists():
            await anyio.sleep(0.01)


@contextmanager
def serve_module(module: str, *arguments: str) -> Generator[str]:
    """Run a server on loopback in its own process; yield its URL."""
    command = [sys.executable, "-m", f"{__package__}.{module}", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
        finally:
            process.kill()


@asynccontextmanager
async def over_http(module: str, *arguments: str) -> AsyncGenerator[str]:
    """Run a server on loopback for one test; the event loop goes on while it starts."""
    with ExitStack() as stack:
        yield await anyio.to_thread.run_sync(stack.enter_context, serve_module(module, *arguments))


def port_of(url: str) -> str:
    """Return the port of a server, so that another server can listen there."""
    return str(urlsplit(url).port)
