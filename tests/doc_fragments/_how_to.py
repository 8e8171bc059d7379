"""Fragments of the pages in `docs/how-to`; `_telemetry` has those that send spans and metrics."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import psycopg
import pytest

import callboard
from callboard import ToolNode, create_react_agent, keyed, tool_call
from callboard.testing import ScriptedModel, calls
from callboard_actors.postgres import PostgresFleet, PostgresLimits
from tests.agent._postgres import running_postgres
from tests.agent._provider import Provider, reply
from tests.chromium import CHROMIUM
from tests.doc_fragments import _bodies
from tests.doc_fragments._surroundings import AsyncSteps, Fragments, Steps, World, blocks_of
from tests.doc_fragments._web import public_web
from tests.engines._fake import FakeEngine
from tests.mcp._asked import over_http

FRAGMENTS = Fragments()
fragment = FRAGMENTS.of
HOW_TO = "docs/how-to/"
SECRET = "a secret of sixteen bytes or more"
QUESTION = {"messages": [("user", "What does it cost?")]}


def content_of(state: Any) -> Any:
    return state["messages"][-1].text


@fragment(
    HOW_TO + "choose-isolation.md",
    'preload=["numpy"]',
    exhaustive=True,
    faked="numpy is an empty module: it is no dependency of callboard",
)
async def tools_in_processes(world: World) -> AsyncSteps:
    (world.folder / "numpy.py").write_text("")
    world.patch.syspath_prepend(world.folder)
    names = yield {
        "render": _bodies.render,
        "search": _bodies.search,
        "state": _bodies.state_with_call("render", scene="a hill"),
    }
    assert not names["pool"].pids  # the block has closed it


@fragment(HOW_TO + "choose-isolation.md", "print((await node", exhaustive=True)
def script_with_processes(world: World) -> Steps:
    """The block is a whole program: a script whose tools run in processes is run by its name."""
    [block] = [
        candidate
        for candidate in blocks_of(HOW_TO + "choose-isolation.md", "python no-run")
        if "__main__" in candidate.code
    ]
    Path("scene.py").write_text(block.code)
    done = subprocess.run([sys.executable, "scene.py"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("A HILL\n", "")
    yield {}  # under another name than __main__, so that it only defines its functions


@fragment(HOW_TO + "choose-isolation.md", "child(Renderer", exhaustive=True)
async def actor_in_process(world: World) -> AsyncSteps:
    from callboard_actors.process import Processes

    names = yield {"Renderer": _bodies.Renderer, "pool": Processes(workers=1)}
    async with names["node"] as node:
        assert content_of(await node.ainvoke(_bodies.state_with_call("frame", number=3))) == "scene.blend 3"


@fragment(HOW_TO + "choose-isolation.md", "runs_in=untrusted", after_page=True)
async def tools_with_confinement(world: World) -> AsyncSteps:
    names = yield {"parse": _bodies.parse}
    async with names["node"] as node:
        assert content_of(await node.ainvoke(_bodies.state_with_call("parse", text="tea"))) == "3"


@fragment(
    HOW_TO + "fetch-pages.md",
    'await client.get("https://example.org/")',
    faked="https://example.org/ is a server on loopback: tests use no network",
)
async def page_on_loopback(world: World) -> AsyncSteps:
    with public_web(world.patch):
        names = yield {}
        assert names["response"].status_code == 200
        state = await names["node"].ainvoke(_bodies.state_with_call("fetch", url="https://example.org/"))
        assert content_of(state).endswith("# Example")


@fragment(
    HOW_TO + "keep-conversations.md",
    "postgresql://clerk:secret@db.example",
    faked="db.example is a server on loopback, by variables of libpq",
    after_page=True,
    exhaustive=True,
)
async def conversations_in_postgres(world: World) -> AsyncSteps:
    with running_postgres() as server:
        server.sql("CREATE DATABASE agents")
        server.sql("ALTER ROLE clerk PASSWORD 'secret'")
        world.patch.setenv("PGHOSTADDR", "127.0.0.1")
        world.patch.setenv("PGPORT", str(server.port))
        names = yield {"model": ScriptedModel(["It costs 3.50."]), "tools": [_bodies.search]}
        async with names["agent"] as agent:
            await agent.ainvoke(QUESTION, {"configurable": {"thread_id": "ada"}})
        assert threads_in(server.url("agents", password="secret")) == [("ada",)]
    world.names["directory"].cleanup()


@fragment(
    HOW_TO + "keep-conversations.md", "AsyncPostgresSaver", backends=("asyncio",), after_page=True, exhaustive=True
)
async def conversations_of_a_saver(world: World) -> AsyncSteps:
    """The driver of this saver runs on asyncio only, as the page says."""
    with running_postgres() as server:
        url = server.new_database()
        yield {"url": url, "model": ScriptedModel(["On its way."]), "tools": [_bodies.search]}
        assert threads_in(url) == [("ada",)]
    world.names["directory"].cleanup()


@fragment(HOW_TO + "watch-a-program.md", "web=True")
async def page_of_a_program(world: World) -> AsyncSteps:
    output = world.request.getfixturevalue("capsys")
    yield {"callboard": callboard, "agent": create_react_agent(ScriptedModel(["The first."]), [])}
    assert "callboard: page http://127.0.0.1:" in output.readouterr().err


def threads_in(url: str) -> list[Any]:
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT DISTINCT thread_id FROM checkpoints").fetchall()


@fragment(HOW_TO + "mcp-servers.md", "token_of(user)", after_page=True, exhaustive=True)
async def server_of_each_user(world: World) -> AsyncSteps:
    """The server repeats the header that it gets."""

    async def token_of(user: str | None) -> str:
        return f"token of {user}"

    texts: list[str] = []

    def reply(messages: list[Any]) -> str:
        texts.append(messages[-1].text)
        return "Done."

    async with over_http("_plain_http", "2026") as url:
        request = calls(("header", {"text": "authorization"}))
        yield {"url": url, "model": ScriptedModel([request, reply]), "question": QUESTION, "token_of": token_of}
    assert texts == ["Bearer token of ann"]


@fragment(
    HOW_TO + "one-owner-per-key.md",
    "async with node:",
    after_page=True,
    exhaustive=True,
    faked="the database of the page is another one here",
)
async def node_with_a_fleet(world: World) -> AsyncSteps:
    page, texts = world.names, list[str]()

    def reply(messages: list[Any]) -> str:
        texts.append(messages[-1].text)
        return "Done."

    with running_postgres() as server:
        fleet = PostgresFleet(server.new_database(), secret=page["secret"])
        child = page["child"](page["Browser"](), key=page["by_user"], fleet=fleet, idle=600.0, cap=50)
        model = ScriptedModel([calls(("open", {"url": "https://example.com"})), reply])
        yield {"node": ToolNode([child]), "model": model, "question": QUESTION}
    assert texts == ["https://example.com is open"]


@fragment(
    HOW_TO + "one-owner-per-key.md",
    "import keyed",
    after_page=True,
    exhaustive=True,
    faked="the database of the page is another one here",
)
async def references_with_a_fleet(world: World) -> AsyncSteps:
    opened: list[Any] = []

    class Browser(world.names["Browser"]):  # type: ignore[misc, unused-ignore]
        async def stop(self) -> None:
            opened.append(self.key)

    with running_postgres() as server:
        fleet = PostgresFleet(server.new_database(), secret=world.names["secret"])
        yield {"fleet": fleet, "Browser": Browser}
    assert opened == ["ada"]


class Database:
    """Connection with psycopg's sync driver in a thread: its async one has no trio."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True)

    async def execute(self, statement: Any, values: Any = ()) -> Any:
        return await anyio.to_thread.run_sync(self.connection.execute, statement, values)


@fragment(HOW_TO + "one-owner-per-key.md", "class Book(Actor)", after_page=True, exhaustive=True)
async def book_with_fence(world: World) -> AsyncSteps:
    """A later owner is its token in the row: the former owner can write no more."""
    names = yield {}
    with running_postgres() as server:
        database = Database(url := server.new_database())
        await database.execute("CREATE TABLE books (id text, text text, token numeric)")
        await database.execute("INSERT INTO books VALUES ('tea', '', 0)")
        fleet = PostgresFleet(url, secret=SECRET)
        with database.connection:
            async with keyed(names["Book"](database), fleet=fleet) as books:
                await books["tea"].append("one")
                await database.execute("UPDATE books SET token = token + 1")
                with pytest.raises(RuntimeError, match="another process owns this book now"):
                    await books["tea"].append("two")
            assert (await database.execute("SELECT text FROM books")).fetchall() == [("one",)]


@fragment(HOW_TO + "share-limits.md", "storage.put", exhaustive=True)
async def storage_with_fence(world: World) -> AsyncSteps:
    """A storage that stores the highest token refuses a late write."""

    class Storage:
        tokens: list[Any] = []

        async def put(self, path: str, text: str, fence: Any) -> None:
            assert fence > max(self.tokens, default=0)
            self.tokens.append(fence)

    from callboard import CallPolicy, Limit

    storage = Storage()
    names = yield {"storage": storage}
    with running_postgres() as server:
        limits = PostgresLimits(server.new_database())
        policy = CallPolicy(limit=Limit(concurrency=1, shared=limits))
        node = ToolNode([names["write"]], policies={"write": policy})
        for number in (1, 2):
            [message] = (await node.ainvoke([tool_call("write", str(number), path="a", text="b")]))["messages"]
            assert message.text == "written"
        await anyio.to_thread.run_sync(limits.close)
    assert len(storage.tokens) == 2


@fragment(
    HOW_TO + "share-one-browser.md",
    "playwright.sync_api",
    exhaustive=True,
    faked="Chromium is that of the system, not the one that Playwright downloads",
)
async def browser(world: World) -> AsyncSteps:
    from playwright.sync_api import BrowserType

    from callboard import running

    if CHROMIUM is None:
        pytest.skip("chromium is not installed (apt-get install chromium)")
    launch = BrowserType.launch
    world.patch.setattr(
        BrowserType, "launch", lambda self: launch(self, executable_path=CHROMIUM, args=["--no-sandbox"])
    )
    names = yield {}
    async with running(names["Browser"]()) as page:
        assert await page.read("data:text/html,<p id=price>It costs 3.50.") == "It costs 3.50."
        assert await page.wait_for("#price") == "it is there"
        with anyio.move_on_after(0.5) as scope:
            await page.wait_for("#never")
        assert scope.cancelled_caught
        assert await page.wait_for("#price") == "it is there"  # the thread is free, the page is open


@fragment(HOW_TO + "shut-down.md", "async for job in queue", backends=("asyncio", "trio"), exit_code=0)
def program_with_drain(world: World) -> Steps:
    """SIGTERM comes during the call of the only job, which is finished all the same."""
    finished: list[Any] = []
    log = world.request.getfixturevalue("caplog")
    log.set_level("INFO", "callboard")

    async def book() -> str:
        """Book a room."""
        os.kill(os.getpid(), signal.SIGTERM)
        await anyio.sleep(0.1)
        return "It is booked."

    agent = create_react_agent(ScriptedModel([calls("book"), "Done."]), [book])

    async def jobs() -> AsyncIterator[Any]:
        yield QUESTION
        await anyio.sleep_forever()

    async def handle(job: Any) -> None:
        state = await agent.ainvoke(job)
        finished.extend(message.text for message in state["messages"][-2:])

    world.patch.setattr(anyio, "run", partial(anyio.run, backend=world.backend))
    yield {"engine": FakeEngine(), "agent": agent, "queue": jobs(), "handle": handle}
    assert finished == ["It is booked.", "Done."]
    [drained] = [
        record.message for record in log.records if "was drained" in record.message and "agent" in record.message
    ]
    assert "1 finished, 0 ended" in drained


@fragment(HOW_TO + "shut-down.md", "async def lifespan(app)")
async def application_with_drain(world: World) -> AsyncSteps:
    from starlette.applications import Starlette
    from starlette.routing import Route

    agent = create_react_agent(ScriptedModel(["It costs 3.50."]), [_bodies.search], checkpointer="memory")
    names = yield {"agent": agent}
    app = Starlette(routes=[Route("/{thread}", names["chat"], methods=["POST"])])
    # As a server does: without a handler of its own, the block below would be cancelled.
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        async with (
            names["lifespan"](app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client,
        ):
            assert (await client.post("/ada", content="What is it?")).json() == {"answer": "It costs 3.50."}
            os.kill(os.getpid(), signal.SIGTERM)
            while not app.state.shutdown.has_begun:
                await anyio.sleep(0.01)
            await anyio.wait_all_tasks_blocked()  # the drain of the agent begins some turns of the loop later
            refused = await client.post("/ada", content="And now?")
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert "being drained" in refused.json()["error"]
    finally:
        signal.signal(signal.SIGTERM, before)
    assert app.state.shutdown.exit_code == 0


@fragment(
    HOW_TO + "serve-tools-by-mcp.md",
    "async def tools():",
    exhaustive=True,
    after_page=True,
    faked="the npm server is never asked",
)
async def gateway(world: World) -> AsyncSteps:
    """The block defines a function, which is called with a server of ours in place of the one of npm."""
    program = world.folder / "files.py"
    program.write_text(FILES)
    real = world.names["McpServer"]
    names = yield {}
    names["McpServer"] = lambda command, **options: real([sys.executable, program], **options)
    async with names["tools"]() as node:
        state = await node.ainvoke(_bodies.state_with_call("files_read_file", path="a.txt"))
    assert content_of(state) == "text of a.txt"


FILES = """
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
"""


@fragment(
    HOW_TO + "use-a-real-model.md", '"openai:gpt-5.1"', faked="OpenAI is a server on loopback that speaks its protocol"
)
def model_by_name(world: World) -> Steps:
    with Provider(reply("It costs 3.50.")) as provider:
        world.patch.setenv("OPENAI_API_KEY", "no key")
        world.patch.setenv("OPENAI_BASE_URL", provider.url)
        names = yield {"search": _bodies.search}
        assert content_of(names["agent"].invoke(QUESTION)) == "It costs 3.50."
    [request] = provider.requests
    assert request.body["model"] == "gpt-5.1"
    assert request.body["messages"][0]["content"] == "Answer briefly."
