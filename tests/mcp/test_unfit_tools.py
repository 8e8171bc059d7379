"""Invalid tools are left out and logged by name, and valid ones can be used."""

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse
from mcp_types.version import KNOWN_PROTOCOL_VERSIONS

from callboard import ToolNode
from callboard.testing import tool_call
from callboard_actors.mcp._link import InvalidTools

from ._asked import ERAS, answers, odd
from ._odd import GOOD
from ._plain import NEW, OLD

pytestmark = pytest.mark.real_clock

ODD = {"name": "odd", "inputSchema": {"type": "string"}}
WHY = "the tool 'odd' of the MCP server 'shop' is left out: inputSchema.type: "


@ERAS
async def test_one_that_is_none_is_left_out_and_named_and_the_others_work(
    era: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One invalid tool must not disable the others; it is logged once."""
    async with odd(era, tools=[ODD]) as server:
        names = [tool.name for tool in server.tools]
        [message] = await answers(ToolNode([server]), tool_call("good", "1", text="x"))
        await server.list_tools()
    assert names == ["good"]
    assert message.text == "x"
    assert [WHY in record.getMessage() for record in caplog.records if "left out" in record.getMessage()] == [True]


@ERAS
async def test_one_that_is_asked_for_by_its_name_is_refused_with_the_reason(era: str) -> None:
    """The error of a required tool says why it is missing; `deny` of it is allowed."""
    with pytest.raises(ValueError, match=WHY):
        await odd(era, tools=[ODD], allow=["odd", "good"]).__aenter__()
    async with odd(era, tools=[ODD], deny=["odd"]) as server:
        assert [tool.name for tool in server.tools] == ["good"]


@pytest.mark.exhaustive
async def test_names_that_models_refuse_are_told_when_the_server_is_opened(caplog: pytest.LogCaptureFixture) -> None:
    """Some model providers refuse a whole request because of one name, and which ones do is unknown here."""
    async with odd("2025", tools=[{**GOOD, "name": "a b"}, {**GOOD, "name": "f.g"}]) as server:
        assert len(server.tools) == 3
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == 1
    assert "some models refuse" in told[0] and "['a b', 'f.g']" in told[0]
    caplog.clear()
    async with odd("2025", tools=[{**GOOD, "name": "a b"}], deny=["a b"]):
        assert not caplog.records


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


@given(st.lists(TOOL | JSON, max_size=4), st.sampled_from(KNOWN_PROTOCOL_VERSIONS))
def test_whatever_a_server_lists_the_good_ones_stay_and_each_other_has_a_reason(
    others: list[Any], version: str
) -> None:
    """The filter never raises: it runs in the message stream, and an error would close the connection."""
    sieve = InvalidTools()
    sieve.version = version
    rest = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    listed = [GOOD, *others, GOOD]
    response = JSONRPCResponse(jsonrpc="2.0", id=1, result={"tools": list(listed), **rest})
    sieve.sift(SessionMessage(response))

    kept = response.result["tools"]
    assert kept[0] == kept[-1] == GOOD
    assert len(kept) == len(listed) or sieve.reasons


@pytest.mark.parametrize(
    "result",
    [{"content": [], "tools": [ODD]}, {"tools": {"odd": ODD}}, {"tools": [ODD], "nextCursor": 7}],
    ids=["result of a tool", "no list", "no result"],
)
@pytest.mark.parametrize("version", [OLD, NEW])
def test_what_is_no_list_of_tools_stays_as_it_is(result: dict[str, Any], version: str) -> None:
    """A tool may return similar data, and errors of the list itself are reported by the SDK."""
    sieve = InvalidTools()
    sieve.version = version
    response = JSONRPCResponse(jsonrpc="2.0", id=1, result=dict(result))
    sieve.sift(SessionMessage(response))
    assert response.result == result
    assert sieve.reasons == {}
