"""Invalid tools are left out and logged by name, and servers that send too much are bounded."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.utils.function_calling import convert_to_openai_tool
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCRequest, JSONRPCResponse
from mcp_types.version import KNOWN_PROTOCOL_VERSIONS

from callboard import ActorStartError, ToolNode, tool_call
from callboard_actors.mcp import McpToolError
from callboard_actors.mcp._link import MOST_PARTS, InvalidTools, Link, watch_transport

from ._asked import ERAS, answers, odd
from ._odd import GOOD
from ._plain import NEW, OLD

ODD = {"name": "odd", "inputSchema": {"type": "string"}}
WHY = "the tool 'odd' of the MCP server 'shop' is left out: inputSchema.type: "


@pytest.mark.real_clock
@pytest.mark.parametrize("unprintable", ["bad\0name", "bad\x1b[2Jname", "bad\nname"])
@ERAS
async def test_one_that_is_none_is_left_out_and_named_and_the_others_work(
    era: str, unprintable: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One invalid tool must not disable the others; it is logged once."""
    async with odd(era, tools=[ODD, {**GOOD, "name": unprintable}]) as server:
        names = [tool.name for tool in server.tools]
        [message] = await answers(ToolNode([server]), tool_call("good", "1", text="x"))
        await server.list_tools()
    assert names == ["good"]
    assert message.text == "x"
    logged = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert sorted(WHY in line for line in logged) == [False, True]


@pytest.mark.real_clock
@ERAS
async def test_one_that_is_asked_for_by_its_name_is_refused_with_the_reason(era: str) -> None:
    """The error of a required tool says why it is missing; `deny` of it is allowed."""
    with pytest.raises(ValueError, match=WHY):
        await odd(era, tools=[ODD], allow=["odd", "good"]).__aenter__()
    async with odd(era, tools=[ODD], deny=["odd"]) as server:
        assert [tool.name for tool in server.tools] == ["good"]


@pytest.mark.exhaustive
@pytest.mark.real_clock
async def test_names_that_models_refuse_are_told_when_the_server_is_opened(caplog: pytest.LogCaptureFixture) -> None:
    """Some model providers refuse a whole request because of one name, and which ones do is unknown here."""
    async with odd("2025", tools=[{**GOOD, "name": "a b"}, {**GOOD, "name": "f.g"}]) as server:
        assert len(server.tools) == 3
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(messages) == 1
    assert "some models refuse" in messages[0] and "['a b', 'f.g']" in messages[0]
    caplog.clear()
    async with odd("2025", tools=[{**GOOD, "name": "a b"}], deny=["a b"]):
        assert not caplog.records


def tree(depth: int, width: int = 2) -> dict[str, Any]:
    """Return a schema whose size doubles with each level, once its references are replaced by their targets."""
    levels = [{f"p{n}": {"$ref": f"#/$defs/{level + 1}"} for n in range(width)} for level in range(depth)]
    targets = {str(level): {"type": "object", "properties": parts} for level, parts in enumerate([*levels, {}])}
    return {"type": "object", "properties": {"root": {"$ref": "#/$defs/0"}}, "$defs": targets}


LEADS_NOWHERE = "to no part of it"


@pytest.mark.real_clock
@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (tree(12), "inputSchema: with its references expanded, it has more than 5000 parts"),
        (tree(100, 1), "inputSchema: with its references expanded, it has more than 5000 parts"),
        ({"type": "object", "properties": {"a": {"$ref": "https://127.0.0.1/a"}}}, LEADS_NOWHERE),
        ({"type": "object", "properties": {"a": {"$ref": "#/properties/b"}}}, LEADS_NOWHERE),
        ({"type": "object", "properties": {"$ref": {"type": "string"}}}, LEADS_NOWHERE),
        ({"type": "object", "properties": {"a": {"$ref": "#/required/1"}}, "required": ["a"]}, LEADS_NOWHERE),
    ],
    ids=["tree", "chain", "another document", "no such part", "no reference", "no such item"],
)
async def test_a_schema_that_cannot_be_shown_to_a_model_is_left_out(
    schema: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each request of a model replaces all references: 1.5 kB would become a megabyte, or an error of the request."""
    shared = {**tree(6), "required": [], "$defs": {**tree(6)["$defs"], "loop": {"$ref": "#/$defs/loop"}}}
    async with odd(
        "2025", tools=[{"name": "wide", "inputSchema": schema}, {"name": "shared", "inputSchema": shared}]
    ) as server:
        assert [tool.name for tool in server.tools] == ["shared", "good"]
        for tool in server.tools:
            convert_to_openai_tool(tool)
    [logged] = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert logged.startswith("the tool 'wide' of the MCP server 'shop' is left out: inputSchema: ")
    assert why in logged


def test_the_schemas_of_all_tools_are_bounded_together() -> None:
    """Each request of a model has the schemas of all tools, and a list may have a hundred pages."""
    sieve = invalid_tools(OLD)
    for page in range(20):
        listed = [{"name": f"{page} {n}", "inputSchema": tree(7)} for n in range(2)]
        sieve.sift(SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=1, result={"tools": listed})))
    assert 20 < len(sieve.reasons) < 40
    assert sieve.reasons["19 1"] == "inputSchema: with the schemas of the tools before it, it has more than 20000 parts"
    sieve.begin_list()
    assert sieve.reasons == {}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3), lambda one: st.lists(one, max_size=3)
)
TOOL = st.fixed_dictionaries(
    {},
    optional={
        "name": JSON,
        "description": JSON,
        "inputSchema": JSON | st.fixed_dictionaries({}, optional={"type": JSON, "properties": JSON}),
        "outputSchema": JSON,
        "annotations": JSON,
    },
)


def invalid_tools(version: str) -> InvalidTools:
    sieve = InvalidTools()
    sieve.version = version
    return sieve


@given(st.lists(TOOL | JSON, max_size=4), st.sampled_from(KNOWN_PROTOCOL_VERSIONS))
def test_whatever_a_server_lists_the_good_ones_stay_and_each_other_has_a_reason(
    other_tools: list[Any], version: str
) -> None:
    """The filter never raises: it runs in the message stream, and an error would close the connection."""
    sieve = invalid_tools(version)
    result_fields = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    listed = [GOOD, *other_tools, GOOD]
    response = JSONRPCResponse(jsonrpc="2.0", id=1, result={"tools": list(listed), **result_fields})
    sieve.sift(SessionMessage(response))

    kept_tools = response.result["tools"]
    assert kept_tools[0] == kept_tools[-1] == GOOD
    assert len(kept_tools) == len(listed) or sieve.reasons


@pytest.mark.parametrize(
    "result",
    [{"content": [], "tools": [ODD]}, {"tools": {"odd": ODD}}, {"tools": [ODD], "nextCursor": 7}],
    ids=["result of a tool", "no list", "no result"],
)
@pytest.mark.parametrize("version", [OLD, NEW])
def test_what_is_no_list_of_tools_stays_as_it_is(result: dict[str, Any], version: str) -> None:
    """A tool may return similar data, and errors of the list itself are reported by the SDK."""
    sieve = invalid_tools(version)
    response = JSONRPCResponse(jsonrpc="2.0", id=1, result=dict(result))
    sieve.sift(SessionMessage(response))
    assert response.result == result
    assert sieve.reasons == {}


# Servers that send too much: messages are counted before they are parsed, and the connection stays usable.


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ({"tools": [{}] * 50_000}, "it has more than 1000 tools"),
        ({"content": [{}] * 500_000}, "it has more than 1000 content blocks"),
        ({"content": [], "tools": [{}] * 50_000}, "it has more than 1000 tools"),
        ({"resources": [{}] * 50_000}, "it has more than 1000 resources"),
    ],
    ids=["tools", "content", "tools beside content", "resources"],
)
def test_parts_of_an_answer_are_counted_before_one_is_read(
    version: str, result: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parsing tries each content block as every member of a union, which is expensive."""
    read: list[object] = []
    monkeypatch.setattr("callboard_actors.mcp._link._misfit", lambda *_: read.append(1))
    sieve = invalid_tools(version)
    came = sieve.sift(SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=7, result=result)))

    assert isinstance(came, SessionMessage)
    assert isinstance(came.message, JSONRPCError)
    assert (came.message.id, came.message.error.message, read) == (7, reason, [])


def test_structured_content_may_have_many_parts() -> None:
    """Structured content is not parsed into models; only schema validation reads it."""
    sieve = invalid_tools(NEW)
    rows = {"content": [{"type": "text", "text": "x"}] * MOST_PARTS, "structuredContent": {"rows": [{}] * 50_000}}
    message = SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=1, result=rows))
    assert sieve.sift(message) is message


@pytest.mark.real_clock
@ERAS
async def test_a_server_with_too_many_tools_is_refused(era: str) -> None:
    """The limit applies before the tools are parsed."""
    with pytest.raises(ActorStartError, match="more than 1000 tools"):
        await odd(era, many=2_000).__aenter__()
    async with odd(era, many=900) as server:
        assert len(server.tools) == 901


@pytest.mark.real_clock
@ERAS
async def test_a_result_with_too_many_parts_fails_its_call_alone(era: str) -> None:
    """The next call on the same connection succeeds."""
    async with odd(era, blocks=5_000) as server:
        for _ in range(2):
            with pytest.raises(McpToolError, match="more than 1000 content blocks"):
                await server.call("good", {"text": "x"})
        assert [tool.name for tool in await server.list_tools()] == ["good"]


@pytest.mark.real_clock
@ERAS
async def test_a_server_that_pings_again_and_again_is_answered_and_stays_usable(era: str) -> None:
    """The SDK starts a task for each ping, so pings have to be limited."""
    async with odd(era, pings=300) as server:
        for _ in range(2):
            assert not (await server.call("good", {"text": "x"})).is_error


@asynccontextmanager
async def line() -> AsyncIterator[tuple[Any, Any, Any, Any]]:
    """Open a watched transport: the server's send stream, the session's two streams, and the replies to the server."""
    into, read = anyio.create_memory_object_stream[Any](10_000)
    write, out_of = anyio.create_memory_object_stream[Any](10_000)

    @asynccontextmanager
    async def transport() -> AsyncIterator[Any]:
        yield read, write

    async with watch_transport(transport(), Link()) as (incoming, outgoing):
        with into, read, write, out_of:
            yield into, incoming, outgoing, out_of


def ping(number: int) -> SessionMessage:
    return SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=number, method="ping"))


async def test_requests_of_a_server_are_read_as_they_are_answered() -> None:
    """A thousand pings at once must not become a thousand tasks; first none is answered, and then each."""
    got: list[Any] = []

    async def read(incoming: Any) -> None:
        while True:
            message = await incoming.receive()
            got.append(message.message.id)

    async with line() as (into, incoming, outgoing, _), anyio.create_task_group() as group:
        for number in range(1000):
            into.send_nowait(ping(number))
        group.start_soon(read, incoming)
        with anyio.move_on_after(0.01):
            await anyio.sleep_forever()
        first = len(got)
        for number in range(1000):
            await outgoing.send(SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=number, result={})))
            with anyio.move_on_after(0.0001):
                await anyio.sleep_forever()
        group.cancel_scope.cancel()

    assert first < 20
    assert got == list(range(1000))


async def test_a_request_that_is_never_answered_does_not_end_the_connection() -> None:
    """A request may wait for a person, or the server has withdrawn it; later messages are read after a pause."""
    async with line() as (into, incoming, _, __):
        for number in range(100):
            into.send_nowait(ping(number))
        with anyio.fail_after(10):
            got = [(await incoming.receive()).message.id for _ in range(100)]
    assert got == list(range(100))
