"""Fragments of the pages in `docs/how-to`."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from langchain_core.messages import HumanMessage

from callboard import ToolNode
from callboard.testing import ScriptedModel, calls
from tests.doc_fragments import _bodies
from tests.doc_fragments._surroundings import AsyncSteps, Fragments, Names, Steps, World, blocks_of
from tests.doc_fragments._web import public_web
from tests.remote._commands import SECRET, engine, worker

FRAGMENTS = Fragments()
fragment = FRAGMENTS.of
HOW_TO = "docs/how-to/"
QUESTION = {"messages": [("user", "What does it cost?")]}


def content_of(state: Any) -> Any:
    return state["messages"][-1].content


@fragment(
    HOW_TO + "choose-isolation.md",
    'preload=["numpy"]',
    faked="numpy is an empty module: it is no dependency of callboard",
)
async def isolated_tools(world: World) -> AsyncSteps:
    (world.folder / "numpy.py").write_text("")
    world.patch.syspath_prepend(world.folder)
    names = yield {
        "render": _bodies.render,
        "search": _bodies.search,
        "state": _bodies.called("render", scene="a hill"),
    }
    assert not names["pool"].pids  # the block has closed it


@fragment(HOW_TO + "choose-isolation.md", "print((await node")
def isolated_script(world: World) -> Steps:
    """The block is a whole program: a script whose tools run in processes is run by its name."""
    [block] = [one for one in blocks_of(HOW_TO + "choose-isolation.md", "python no-run") if "__main__" in one.code]
    Path("scene.py").write_text(block.code)
    done = subprocess.run([sys.executable, "scene.py"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("A HILL\n", "")
    yield {}  # under another name than __main__, so that it only defines its functions


@fragment(HOW_TO + "choose-isolation.md", "child(Renderer")
async def isolated_actor(world: World) -> AsyncSteps:
    from callboard_actors.process import Processes

    names = yield {"Renderer": _bodies.Renderer, "pool": Processes(workers=1)}
    async with names["node"] as node:
        assert content_of(await node.ainvoke(_bodies.called("frame", number=3))) == "scene.blend 3"


@fragment(HOW_TO + "choose-isolation.md", "runs_in=untrusted", after_page=True)
async def confined_tools(world: World) -> AsyncSteps:
    from callboard import CallPolicy

    names = yield {"parse": _bodies.parse, **isolated_imports(CallPolicy)}
    async with names["node"] as node:
        assert content_of(await node.ainvoke(_bodies.called("parse", text="tea"))) == "3"


def isolated_imports(*_: object) -> Names:
    return {}


@fragment(
    HOW_TO + "fetch-pages.md",
    'await http.get("https://example.org/")',
    faked="https://example.org/ is a server on loopback: tests use no network",
)
async def fetched_page(world: World) -> AsyncSteps:
    with public_web(world.patch):
        names = yield {}
        assert names["page"].status == 200
        async with names["node"] as node:
            found = await node.ainvoke(_bodies.called("fetch", url="https://example.org/"))
        assert content_of(found).endswith("# Example")


@fragment(HOW_TO + "keep-conversations.md", "postgresql://clerk:secret@db.example", after_page=True)
def kept_in_postgres(world: World) -> Steps:
    """The agent connects at its first run; `tests/agent` runs such agents on a server."""
    names = yield {"model": ScriptedModel(["hi"]), "tools": [_bodies.search]}
    assert names["agent"].invoke


@fragment(HOW_TO + "run-on-other-machines.md", "connects at the first call", after_page=True)
async def other_machines(world: World) -> AsyncSteps:
    """The page's engine names two hosts; this one has a worker on loopback."""
    module = _bodies.__name__
    world.patch.setenv("CALLBOARD_WORKER_SECRET", SECRET)
    with worker(module, secret=SECRET) as running:
        engine_here = engine(running)
        policy = world.names["CallPolicy"](runs_in=engine_here, timeout=60.0)
        names = yield {
            "render": _bodies.render,
            "Renderer": _bodies.Renderer,
            "engine": engine_here,
            "policy": policy,
            "state": _bodies.called("render", scene="a hill"),
        }
        async with ToolNode([_bodies.render], policies={"render": policy}) as node:
            assert content_of(await node.ainvoke(_bodies.called("render", scene="a hill"))) == "A HILL"
        assert names["node"]


@fragment(HOW_TO + "serve-tools-by-mcp.md", "async def tools():", after_page=True, faked="the npm server is never asked")
async def gateway(world: World) -> AsyncSteps:
    """The block defines a function, which is called with a server of ours in place of the one of npm."""
    program = world.folder / "files.py"
    program.write_text(FILES)
    real = world.names["McpServer"]
    names = yield {}
    names["McpServer"] = lambda command, **options: real([sys.executable, program], **options)
    async with names["tools"]() as node:
        found = await node.ainvoke(_bodies.called("files_read_file", path="a.txt"))
    assert content_of(found) == "text of a.txt"


FILES = '''
import asyncio

from mcp.server.mcpserver import MCPServer

server = MCPServer("files")


@server.tool()
async def read_file(path: str) -> str:
    "Read a file."
    return f"text of {path}"


@server.tool()
async def write_file(path: str, text: str) -> str:
    "Write a file."
    return "written"


asyncio.run(server.run_stdio_async())
'''


@fragment(HOW_TO + "use-a-real-model.md", '"openai:gpt-5.1"', faked="the key; no request is sent")
def named_model(world: World) -> Steps:
    world.patch.setenv("OPENAI_API_KEY", "no key")
    names = yield {"search": _bodies.search}
    assert names["agent"].invoke


assert HumanMessage and calls
