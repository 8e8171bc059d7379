"""Gateway: tools of MCP servers that are served again by MCP, over another transport."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated, Any

import anyio
import pytest
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic import BaseModel

from callboard import ActorStartError, CallPolicy, ToolNode, tool_call
from callboard.middleware import RequireApproval
from callboard_actors.mcp import McpServer
from callboard_actors.mcp_service import mcp_app
from tests.mcp import _npm

from ._clients import DECLINED, Person, client_of, fill_in, in_both_eras, text_in
from ._commands import PATIENCE, running_process

pytestmark = [
    pytest.mark.real_clock,
    # The SDK's client on trio leaves a stream of events to the garbage collector.
    pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning"),
]


class Day(BaseModel):
    """When."""

    day: str


def far() -> MCPServer[Any]:
    """Return the server behind the gateway."""
    server: MCPServer[Any] = MCPServer("far")

    @server.tool(annotations=ToolAnnotations(title="Weigh it", read_only_hint=True))
    async def weigh(what: str) -> CallToolResult:
        """Weigh something."""
        return CallToolResult(
            content=[TextContent(text=f"{what}: heavy")], structured_content={"kilos": 3}, _meta={"scale": "old"}
        )

    @server.tool()
    async def fail() -> CallToolResult:
        """Fail."""
        return CallToolResult(content=[TextContent(text="no luck")], structured_content={"code": 7}, is_error=True)

    @server.tool()
    async def count(ctx: Context[Any, Any]) -> str:
        """Count to two."""
        await ctx.report_progress(1, 2, "one")
        return "two"

    @server.tool()
    async def travel(when: Annotated[Day, Resolve(_when)]) -> str:
        """Travel."""
        return f"on {when.day}"

    return server


async def _when() -> Elicit[Day]:
    return Elicit("When?", Day)


@in_both_eras
async def test_a_tool_is_the_same_behind_a_gateway(era: str) -> None:
    """Schema, hints, text, structured content and `_meta` of the server pass through unchanged."""
    async with client_of([McpServer(far())], era) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        result = await client.call_tool("weigh", {"what": "tea"})
        failed = await client.call_tool("fail", {})

    weigh = tools["weigh"]
    assert weigh.input_schema["properties"]["what"]["type"] == "string"
    assert weigh.input_schema["required"] == ["what"]
    assert (weigh.description, weigh.title) == ("Weigh something.", "Weigh it")
    assert weigh.annotations is not None and weigh.annotations.read_only_hint is True
    assert text_in(result) == "tea: heavy"
    assert result.structured_content == {"kilos": 3}
    assert (result.meta or {})["scale"] == "old"
    assert (failed.is_error, text_in(failed), failed.structured_content) == (True, "no luck", {"code": 7})


@in_both_eras
async def test_progress_and_questions_pass_through_a_gateway(era: str) -> None:
    """The client of the gateway receives progress reports and answers the questions."""
    person, reports = Person(fill_in(day="Monday"), DECLINED), list[str | None]()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        reports.append(message)

    async with client_of([McpServer(far(), mode=era)], era, elicitation_callback=person) as client:
        await client.call_tool("count", {}, progress_callback=on_progress)
        answered = await client.call_tool("travel", {})
        refused = await client.call_tool("travel", {})

    assert reports == ["one"]
    assert person.received_forms[0].message == "When?"
    assert person.received_forms[0].requested_schema["properties"]["day"]["type"] == "string"
    assert text_in(answered) == "on Monday"
    assert refused.is_error and "decline" in text_in(refused)


@in_both_eras
async def test_a_function_that_opens_servers_gives_their_tools_policies_and_middleware(era: str) -> None:
    """A node needs open servers, so it is built inside of the function that opens them."""

    @asynccontextmanager
    async def gateway() -> AsyncIterator[ToolNode]:
        async with McpServer(far(), name="shop") as shop:
            yield ToolNode([shop], policies={"weigh": CallPolicy(timeout=5)}, middleware=[RequireApproval(["weigh"])])

    person = Person(fill_in(decision="accept"))
    async with client_of(gateway, era, elicitation_callback=person) as client:
        result = await client.call_tool("weigh", {"what": "tea"})

    assert "weigh" in person.received_forms[0].message
    assert result.structured_content == {"kilos": 3}


async def test_a_server_that_is_open_is_served_and_stays_open() -> None:
    """The program that opened the server may have other users of it."""
    async with McpServer(far()) as server:
        async with client_of([server], "legacy") as client:
            assert len((await client.list_tools()).tools) == 4
        assert server.is_open
    assert not server.is_open


async def test_what_was_opened_to_be_served_is_closed_and_can_be_served_again() -> None:
    """A restarted application opens the servers again; between two runs it has no tools and no processes."""
    server = McpServer(far())
    app = mcp_app([server], name="gate")
    for _ in range(2):
        async with app.lifespan():
            assert server.is_open
            assert "weigh" in app.tool_names
        assert not server.is_open
        assert app.tool_names == []


async def test_a_server_that_cannot_be_had_is_why_nothing_is_served() -> None:
    """The error names the server when the service starts; servers opened before it are closed."""
    good, bad = McpServer(far()), McpServer(["/no/such/program"], name="notes")
    app = mcp_app([good, bad])
    with pytest.raises(ActorStartError, match=r"'notes' did not start: .*/no/such/program"):
        async with app.lifespan():
            raise AssertionError("it is served")
    assert not good.is_open


def test_what_is_no_tool_is_said_before_anything_is_opened() -> None:
    """A description for a server's tools is refused, too, because the list of tools is not known yet."""
    with pytest.raises(TypeError, match="got 3"):
        mcp_app([McpServer(far()), 3])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="is for an agent"):
        mcp_app([McpServer(far())], description="Weighs.")


@contextmanager
def files_by_http(folder: Path, root: Path) -> Iterator[str]:
    """Serve the file server from npm over HTTP by a gateway of five lines; yield its URL."""
    server = [*_npm.command("server-filesystem"), str(root)]
    (folder / "files_gate.py").write_text(
        f"from callboard_actors.mcp import McpServer\ntools = [McpServer({server!r}, prefix='files_')]\n"
    )
    with running_process("files_gate:tools", "--http", "--port", "0", "--app-dir", str(folder)) as gate:
        yield gate.url()


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_server_that_speaks_stdio_only_is_reached_over_http(mode: str, tmp_path: Path) -> None:
    """Files are written and read over HTTP.

    The server refuses paths outside of its folder with an error for the model.
    """
    root = tmp_path / "root"
    root.mkdir()
    note = str(root / "note.txt")
    with files_by_http(tmp_path, root) as url, anyio.fail_after(PATIENCE):
        async with McpServer(url, mode=mode) as files:
            node = ToolNode([files])
            await node.ainvoke([tool_call("files_write_file", "1", path=note, content="hello")])
            calls = [
                tool_call("files_read_text_file", "2", path=note),
                tool_call("files_list_directory", "3", path=str(root)),
                tool_call("files_read_text_file", "4", path="/etc/hostname"),
            ]
            read, listed, outside = (await node.ainvoke(calls))["messages"]
            hints = {tool.name: (tool.metadata or {})["readOnlyHint"] for tool in files.tools}

    assert (root / "note.txt").read_text() == "hello"
    assert (read.status, read.text) == ("success", "hello")
    assert read.artifact["structured_content"] == {"content": "hello"}
    assert "[FILE] note.txt" in listed.text
    assert outside.status == "error"
    assert "outside allowed directories" in outside.text
    assert (hints["files_read_text_file"], hints["files_write_file"]) == (True, False)
