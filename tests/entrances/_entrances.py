"""Entrances: each lets one value in beside a neighbour, checks the neighbour, and returns what became of the value."""

import sqlite3
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
from langchain.agents.middleware import AgentMiddleware
from langchain.agents.middleware import AgentState as LangChainState
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langgraph.types import Command, interrupt

from callboard import StorageError, ToolNode, create_agent, create_react_agent, tool_call
from callboard.telemetry import RecordingWriter, read_recording
from callboard.testing import ScriptedModel, calls
from callboard_actors.mcp import McpServer
from tests.mcp._asked import ROOT
from tests.mcp_service._clients import client_of, text_in

from ._values import VALUES, as_json, as_msgpack

AT: Any = {"configurable": {"thread_id": "1"}}
GO: Any = {"messages": [("user", "go")]}

Enter = Callable[[str, Path], Awaitable[str]]
"""Function that takes the name of a value and an empty folder, and returns what became of the value, in words."""


async def take(value: Any) -> str:
    """Take a value."""
    return f"took a {type(value).__name__}"


async def work() -> str:
    """Work."""
    return "worked"


async def build(make: Any, model: Any, tools: Any, path: Path, **options: Any) -> Any:
    """Build an agent with a database, in a thread: its graph takes up to 25 ms, which no value is guilty of."""
    return await anyio.to_thread.run_sync(
        lambda: make(model, tools, checkpointer=f"sqlite:///{path / 'db'}", **options)
    )


async def turn(make: Any, tools: Any, *replies: Any, path: Path, **options: Any) -> str:
    """Run a turn of a stored thread with a bad call and a call of `work`; return the text of the bad call."""
    async with await build(make, ScriptedModel([*replies, "done"]), tools, path, **options) as agent:
        try:
            await agent.ainvoke(GO, AT)
        except StorageError as error:
            await agent.ainvoke(GO, {"configurable": {"thread_id": "2"}})  # other threads go on
            return f"StorageError: {error}"
        messages = (await agent.aget_state(AT)).values["messages"]
    assert messages[-1].text == "done"
    bad, worked = messages[2:4]
    assert worked.text == "worked"
    return bad.text


def arguments(make: Any) -> Enter:
    """A model writes the value as an argument of a call."""

    async def enter(name: str, path: Path) -> str:
        reply = calls(("take", {"value": VALUES[name]}), "work")
        return await turn(make, [take, work], reply, "done", path=path)

    return enter


def result(make: Any) -> Enter:
    """A tool returns the value."""

    async def enter(name: str, path: Path) -> str:
        async def give() -> Any:
            """Give the value."""
            return VALUES[name]

        return await turn(make, [give, work], calls("give", "work"), path=path)

    return enter


def artifact(make: Any) -> Enter:
    """A tool returns the value as its artifact."""

    async def enter(name: str, path: Path) -> str:
        @tool(response_format="content_and_artifact")
        async def give() -> Any:
            """Give the value."""
            return "gave", VALUES[name]

        return await turn(make, [give, work], calls("give", "work"), path=path)

    return enter


async def error(name: str, path: Path) -> str:
    """A tool raises an error with the value."""

    async def give() -> Any:
        """Raise."""
        raise ValueError(VALUES[name])

    node = ToolNode([give, work], handle_tool_errors=True)
    return await turn(create_react_agent, node, calls("give", "work"), path=path)


async def wrapper(name: str, path: Path) -> str:
    """A wrapper puts the value beside the text of a message."""

    async def wrap(request: Any, execute: Any) -> Any:
        message = await execute(request)
        if request.tool_call["name"] == "work":
            return message
        return ToolMessage("wrapped", tool_call_id=message.tool_call_id, additional_kwargs={"value": VALUES[name]})

    node = ToolNode([take, work], awrap_tool_call=wrap)
    return await turn(create_react_agent, node, calls(("take", {"value": 1}), "work"), path=path)


def reply(make: Any) -> Enter:
    """A model writes the value as a content block of its reply."""

    async def enter(name: str, path: Path) -> str:
        message = calls(("take", {"value": 1}), "work")
        message.content = [{"type": "text", "text": "so", "extras": VALUES[name]}]
        return await turn(make, [take, work], message, "done", path=path)

    return enter


async def hook(name: str, path: Path) -> str:
    """A hook writes the value to the state."""

    class State(LangChainState):
        note: Any

    class Note(AgentMiddleware):
        state_schema = State

        async def abefore_model(self, state: Any, runtime: Any) -> Any:
            return (
                {"note": VALUES[name]}
                if len(state["messages"]) == 1 and runtime.execution_info.thread_id == "1"
                else None
            )

    replies = [calls(("take", {"value": 1}), "work"), "done"]
    return await turn(create_agent, [take, work], *replies, path=path, middleware=[Note()])


async def config(name: str, path: Path) -> str:
    """A caller puts the value into the config and its metadata."""
    model = ScriptedModel([calls(("take", {"value": 1})), "done"])
    thread_config = {"configurable": {"thread_id": "1", "tenant": VALUES[name]}, "metadata": {"tenant": VALUES[name]}}
    async with await build(create_react_agent, model, [take], path) as agent:
        await agent.ainvoke(GO, thread_config)
        return str((await agent.aget_state(AT)).values["messages"][-1].text)


async def answer(name: str, path: Path) -> str:
    """A person answers a question with the value."""

    async def ask() -> str:
        """Ask."""
        return f"heard a {type(interrupt('what?')).__name__}"

    model = ScriptedModel([calls("ask", "work"), "done"])
    async with await build(create_react_agent, model, [ask, work], path) as agent:
        await agent.ainvoke(GO, AT)
        try:
            await agent.ainvoke(Command(resume=VALUES[name]), AT, durability="sync")
        except (ValueError, StorageError) as error:
            await agent.ainvoke(Command(resume="whole"), AT)
            return f"{type(error).__name__}: {error}"
        messages = (await agent.aget_state(AT)).values["messages"]
    assert messages[3].text == "worked"
    return str(messages[2].text)


def _put_value(name: str, path: Path) -> None:
    """Write the value in the place of a text of a database."""
    with sqlite3.connect(path) as database:
        rows = database.execute("SELECT rowid, checkpoint FROM checkpoints WHERE thread_id = '1'").fetchall()
        for number, checkpoint in rows:
            damaged = checkpoint.replace(b"\xa4MARK", as_msgpack(name))
            database.execute("UPDATE checkpoints SET checkpoint = ? WHERE rowid = ?", (damaged, number))
    database.close()


async def row(name: str, path: Path) -> str:
    """A database holds the value, as somebody else has written it."""

    class State(LangChainState):
        note: Any

    model = ScriptedModel(["hello"], loop=True)
    async with await build(create_agent, model, [], path, state_schema=State) as agent:
        await agent.ainvoke(GO, {"configurable": {"thread_id": "2"}})
        await agent.ainvoke({**GO, "note": "MARK"}, AT)
    await anyio.to_thread.run_sync(_put_value, name, path / "db")
    model = ScriptedModel(["again"], loop=True)
    async with await build(create_agent, model, [], path, state_schema=State) as agent:
        try:
            state = await agent.ainvoke(GO, AT)
        except StorageError as error:
            return f"StorageError: {error}"
        finally:
            second_state = await agent.ainvoke(GO, {"configurable": {"thread_id": "2"}})
            assert second_state["messages"][-1].text == "again"
        return f"read a {type(state['note']).__name__}"


def recorder(*, capture: bool) -> Enter:
    """A recorder writes a call with the value, and a reader reads it."""

    async def enter(name: str, path: Path) -> str:
        node = ToolNode([take, work])
        with RecordingWriter(path / "run.jsonl", capture=capture):
            output = await node.ainvoke([tool_call("take", "1", value=VALUES[name]), tool_call("work", "2")])
            while (await anyio.Path(path / "run.jsonl").read_bytes()).count(b'"event":"ended"') < 2:
                await anyio.sleep(0.01)  # the end of the block waits in this thread for what is not written yet
        assert output["messages"][1].text == "worked"
        [part] = await anyio.to_thread.run_sync(lambda: read_recording(path / "run.jsonl").parts)
        bad, worked = part.calls
        assert worked.outcome == "ok"
        return f"recorded: {bad.outcome}"

    return enter


async def recording(name: str, path: Path) -> str:
    """A recording that somebody else has written holds the value."""
    with RecordingWriter(path / "run.jsonl", capture=True):
        await ToolNode([take, work]).ainvoke([tool_call("take", "1", value="MARK"), tool_call("work", "2")])
    text = (path / "run.jsonl").read_text().replace('"MARK"', as_json(name))
    (path / "run.jsonl").write_text(text)
    try:
        [part] = await anyio.to_thread.run_sync(lambda: read_recording(path / "run.jsonl").parts)
    except ValueError as error:
        return str(error)
    return f"read {len(part.calls)} calls"


async def mcp_arguments(name: str, path: Path) -> str:
    """A call of an MCP server's tool has the value as an argument."""
    async with McpServer(_command(name, "stdio"), cwd=ROOT) as server:
        batch = [tool_call("echo", "1", text=VALUES[name]), tool_call("echo", "2", text="whole")]
        bad, good = (await ToolNode([server]).ainvoke(batch))["messages"]
    assert good.text == "whole"
    return str(bad.text)


async def mcp_result(name: str, path: Path) -> str:
    """An MCP server answers a call with the value."""
    async with McpServer(_command(name, "stdio"), cwd=ROOT) as server:
        return await _answer_of(server, may_end=name == "16 MB")


async def mcp_result_over_http(name: str, path: Path) -> str:
    """An MCP server over HTTP answers a call with the value."""
    process = await anyio.open_process(_command(name, "http"), cwd=ROOT, stderr=None)
    async with process:
        assert process.stdout is not None
        port = int(await process.stdout.receive())
        try:
            async with McpServer(f"http://127.0.0.1:{port}/mcp") as server:
                return await _answer_of(server, may_end=False)
        finally:
            process.kill()


def _command(name: str, transport: str) -> list[str]:
    return [sys.executable, "-m", "tests.entrances._served", name, transport]


async def _answer_of(server: McpServer, *, may_end: bool) -> str:
    """Call a server; a message that is too long to be read may end its session, with all its calls."""
    node = ToolNode([server])
    bad, good = (await node.ainvoke([tool_call("echo", "1", text="bad"), tool_call("echo", "2", text="whole")]))[
        "messages"
    ]
    assert good.text == "whole" or may_end
    [later] = (await node.ainvoke([tool_call("echo", "3", text="again")]))["messages"]
    assert later.text == "again"
    return str(bad.text)


async def service_result(name: str, path: Path) -> str:
    """A tool that an MCP service offers returns the value."""

    async def give() -> Any:
        """Give the value."""
        return VALUES[name]

    async with client_of([give, work], "2026-07-28") as client:
        bad = text_in(await client.call_tool("give", {}))
        assert text_in(await client.call_tool("work", {})) == "worked"
    return bad
