"""Fragments of `actors/README.md` and of the examples in `docs/reference/actors.md`."""

import atexit
import json
import os
import shlex
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from callboard import ToolNode, create_react_agent
from callboard.testing import ScriptedModel, calls
from tests.agent._postgres import running_postgres
from tests.doc_fragments import _bodies
from tests.doc_fragments._hosts import own_address, resolve
from tests.doc_fragments._surroundings import ROOT, AsyncSteps, Fragments, World
from tests.doc_fragments._web import public_web
from tests.mcp import _npm
from tests.mcp_service._clients import text_in
from tests.server._servers import running_redis

FRAGMENTS = Fragments()
fragment = FRAGMENTS.of
README, REFERENCE = "actors/README.md", "docs/reference/actors.md"
SECRET = "a secret of sixteen bytes or more"
WEB = "https://example.org/ is a server on loopback: tests use no network"
QUESTION = {"messages": [("user", "What is it?")]}


async def call_tool(node: Any, name: str, **args: Any) -> Any:
    """Return the content of the message about one call of an open node."""
    state = await node.ainvoke(_bodies.state_with_call(name, **args))
    return state["messages"][-1].content


def texts(state: Any) -> list[Any]:
    """Return the contents of the messages of tools."""
    return [message.text for message in state["messages"] if message.type == "tool"]


@fragment(README, "Processes(workers=2")
@fragment(REFERENCE, "Processes(workers=2", exhaustive=True)
async def pool(world: World) -> AsyncSteps:
    names = yield {"fn": _bodies.parse, "args": ("four",)}
    assert names["value"] == 4
    assert not names["pool"].pids  # the block has closed it


PARSERS = """
from pathlib import Path

def parse(path):
    Path("out/parsed").write_text("done")
    try:
        return Path(path).read_text() + Path("secret").read_text()
    except PermissionError:
        return f"{Path(path).read_text()} only"
"""


@fragment(README, 'preload=["parsers"]')
async def pool_with_confinement(world: World) -> AsyncSteps:
    folders(world)
    (world.folder / "parsers.py").write_text(PARSERS)
    world.patch.syspath_prepend(world.folder)
    world.patch.delitem(sys.modules, "parsers", raising=False)
    names = yield {}
    assert names["value"] == "a page only"
    assert Path("out/parsed").read_text() == "done"


def folders(world: World) -> None:
    """Make the folders that the page names, and a file beside them."""
    for name in ("data", "out"):
        (world.folder / name).mkdir()
    (world.folder / "data" / "page.html").write_text("a page")
    (world.folder / "secret").write_text("secret")


COMMANDS, DATABASE = "docs/how-to/run-commands.md", "docs/how-to/ask-a-database.md"


def recipes(world: World) -> None:
    """Put the examples in the path, from which a reader copies them."""
    world.patch.syspath_prepend(ROOT / "examples")


@fragment(COMMANDS, "run_command", exhaustive=True)
async def project_for_commands(world: World) -> AsyncSteps:
    recipes(world)
    (world.folder / "project").mkdir()
    (world.folder / "project" / "notes.txt").write_text("tea\nham\n")
    names = yield {}
    assert names["counted"].status == "success"


@fragment(DATABASE, "read_sqlite", exhaustive=True)
async def file_with_a_database(world: World) -> AsyncSteps:
    recipes(world)
    names = yield {}
    assert names["rows"].status == "success"


@fragment(DATABASE, "read_postgres", exhaustive=True)
async def server_with_a_database(world: World) -> AsyncSteps:
    recipes(world)
    world.patch.setenv("DATABASE_URL", "postgresql://reader:secret@127.0.0.1:1/shop")
    names = yield {}
    async with names["node"] as node:
        assert "connection to server at" in await call_tool(node, "read_postgres", statement="SELECT 1")


NUMPY = "numpy is a small module: it is no dependency of callboard"


def fake_numpy(world: World) -> None:
    (world.folder / "numpy.py").write_text("pi = 3")
    world.patch.syspath_prepend(world.folder)


@fragment(README, "python_tool(", faked=NUMPY, exhaustive=True)
async def interpreter(world: World) -> AsyncSteps:
    fake_numpy(world)
    names = yield {}
    async with names["node"] as node:
        assert await call_tool(node, "run_python", code="x = 40\nx + 2") == "Out[1]: 42"
        assert "there are: numpy" in await call_tool(node, "run_python", code="import pandas")


@fragment(REFERENCE, "python_tool(", faked=NUMPY, exhaustive=True)
async def interpreter_of_an_agent(world: World) -> AsyncSteps:
    fake_numpy(world)
    names = yield {"model": ScriptedModel([calls(("run_python", {"code": "import numpy; numpy.pi"})), "three"])}
    async with names["agent"] as agent:
        assert texts(await agent.ainvoke(QUESTION)) == ["Out[1]: 3"]


@fragment(README, "fetch_tool(", faked=WEB)
async def web(world: World) -> AsyncSteps:
    with public_web(world.patch):
        names = yield {}
        assert names["response"].text == "<h1>Example</h1>"
        await fetches_a_page(names["node"])


@fragment(REFERENCE, "client.get(", faked=WEB)
async def web_for_a_program(world: World) -> AsyncSteps:
    with public_web(world.patch):
        names = yield {"httpx2": httpx2}
        assert names["response"].text == "<h1>Example</h1>"


@fragment(REFERENCE, "fetch_tool(", faked=WEB)
async def web_for_a_model(world: World) -> AsyncSteps:
    with public_web(world.patch):
        names = yield {}
        await fetches_a_page(names["node"])


async def fetches_a_page(node: ToolNode) -> None:
    assert (await call_tool(node, "fetch", url="https://example.org/")).endswith("# Example")
    assert "example.com" in await call_tool(node, "fetch", url="https://example.com/")


NPX = "npx is a script that runs an installed copy of the same server: tests use no network"


def install_npx(world: World) -> None:
    """Put a program `npx` on the path that knows one package."""
    server = _npm.command("server-everything")
    npx = world.folder / "npx"
    npx.write_text(f'#!/bin/sh\n[ "$*" = "-y @modelcontextprotocol/server-everything" ] && exec {shlex.join(server)}\n')
    npx.chmod(0o755)
    world.patch.setenv("PATH", str(world.folder), prepend=os.pathsep)


@fragment(README, "McpServer(", faked=NPX, exhaustive=True)
async def mcp_server(world: World) -> AsyncSteps:
    install_npx(world)
    names = yield {"model": ScriptedModel([calls(("get-sum", {"a": 2, "b": 3})), "five"])}
    assert texts(names["state"]) == ["The sum of 2 and 3 is 5."]


@fragment(REFERENCE, "McpServer(", faked=NPX, exhaustive=True)
async def mcp_server_of_a_program(world: World) -> AsyncSteps:
    install_npx(world)
    printed = world.request.getfixturevalue("capsys")
    names = yield {"model": ScriptedModel([calls(("get-sum", {"a": 2, "b": 3})), "five"])}
    assert "Echo: hello" in printed.readouterr().out
    async with names["server"]:
        assert texts(await names["agent"].ainvoke(QUESTION)) == ["The sum of 2 and 3 is 5."]


@fragment(README, "serve_mcp(")
async def mcp_service(world: World) -> AsyncSteps:
    """The first client speaks to stdin and stdout of this process; the second one to the application."""
    agent = create_react_agent(ScriptedModel(["hello"]), [], name="guide")
    with own_stdio() as (to_server, from_server):
        async with anyio.create_task_group() as tasks:
            replies: list[Any] = []
            tasks.start_soon(anyio.to_thread.run_sync, talk, to_server, from_server, replies)
            names = yield {"search": _bodies.search, "book": _bodies.book, "agent": agent}
    assert replies[-1]["result"]["content"][0]["text"] == "all about tea"
    async with names["app"].lifespan(), client_of(names["app"]) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["guide"]
        assert text_in(await client.call_tool("guide", {"message": "hi"})) == "hello"


@asynccontextmanager
async def client_of(app: Any) -> AsyncIterator[Client]:
    """Connect a client to an application, without a socket."""
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app)) as web:
        async with Client(streamable_http_client("http://127.0.0.1:8000/mcp", http_client=web)) as client:
            yield client


@contextmanager
def own_stdio() -> Iterator[tuple[int, int]]:
    """Replace stdin and stdout of this process by pipes; yield their other ends."""
    (stdin, to_server), (from_server, stdout) = os.pipe(), os.pipe()
    saved_descriptors = [os.dup(0), os.dup(1)]
    os.dup2(stdin, 0)
    os.dup2(stdout, 1)
    try:
        yield to_server, from_server
    finally:
        for number, descriptor in enumerate(saved_descriptors):
            os.dup2(descriptor, number)
        for descriptor in (*saved_descriptors, stdin, stdout):
            os.close(descriptor)


def talk(to_server: int, from_server: int, replies: list[Any]) -> None:
    """Call a tool as a client of version 2025 does, and leave."""
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    with open(to_server, "w", buffering=1) as sink, open(from_server) as source:
        for number, (method, params) in enumerate(
            [("initialize", hello), ("notifications/initialized", {}), ("tools/call", SEARCH)]
        ):
            is_request = not method.startswith("notifications/")
            message = {"jsonrpc": "2.0", "method": method, "params": params}
            print(json.dumps(message | ({"id": number} if is_request else {})), file=sink)
            if is_request:
                replies.append(json.loads(source.readline()))


SEARCH = {"name": "search", "arguments": {"query": "tea"}}


@cache
def redis_of_the_page() -> str:
    """Start a Redis server for both backends and return its address.

    A server gives nothing away in the first seconds after its start.
    """
    address, until_exit = own_address(), ExitStack()
    until_exit.enter_context(running_redis("--bind", address, "--port", "6379"))
    atexit.register(until_exit.close)
    return address


@fragment(README, "RedisLimits(", faked="localhost is another address of loopback", exhaustive=True)
async def shared_state(world: World) -> AsyncSteps:
    """A second fleet stands for a second process."""
    resolve(world.patch, {"localhost": redis_of_the_page()})
    with running_postgres() as server:
        url = server.new_database()
        names = yield {"secret": SECRET, "Browser": _bodies.Browser, "by_user": by_user, "database_url": url}
        with closing(names["limits"]):
            async with ToolNode([_bodies.permitted], policies={"permitted": names["policy"]}) as node:
                assert await call_tool(node, "permitted") == "with a token"
            second = names["child"](_bodies.Browser(), key=by_user, fleet=names["PostgresFleet"](url, secret=SECRET))
            async with names["node"] as node, ToolNode([second]) as second_node:
                assert await call_tool(node, "open", url="a", user="ada") == "1 pages of ada"
                assert await call_tool(second_node, "open", url="b", user="ada") == "2 pages of ada"


def by_user(call: Any, context: Any) -> str:
    return str(call["args"]["user"])
