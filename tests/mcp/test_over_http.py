"""Servers over HTTP: a failed request fails one call, and an ended session is renewed."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard import ActorStartError, EngineError, ToolNode, tool_call
from callboard_actors.mcp import McpBounds, McpServer
from callboard_actors.mcp._http import describe_stray

from ._asked import answers, over_http, port_of

pytestmark = pytest.mark.real_clock
every_era = pytest.mark.parametrize("era", ["2025", "2026"])


@every_era
@pytest.mark.parametrize(
    ("failure", "ended", "why"),
    [
        ("cut", "unknown", "the connection broke before its answer came"),
        ("huge", "unknown", "it sent a message of more than 1000000 bytes"),
        ("many", "unknown", r"a message of more than 1000 values; McpBounds\(max_values=...\) allows more"),
        ("events", "unknown", "SSE stream failed: it sent a message of more than 1000 values"),
        ("packed", "unknown", "its answer has the encoding 'gzip', and 'identity' was asked for"),
        ("other", "unknown", r"in place of its answer came an answer to another request, with id 4711 in place of \d+"),
        ("nobody", "unknown", "in place of its answer came an error without an id, .*too busy"),
        ("own", "unknown", "in place of its answer came a message of its own, 'notifications/message'"),
        ("500", "unknown", "it answered with HTTP status 500"),
        ("401", "unavailable", "it refused the request with HTTP status 401"),
    ],
)
@pytest.mark.filterwarnings(
    "ignore:Async generator 'http:ResourceWarning"
)  # httpx leaves a resource open where an answer is cut off
async def test_a_request_that_fails_is_the_end_of_one_call(era: str, failure: str, ended: str, why: str) -> None:
    """The error says whether the server can have seen the request; other calls go on in the same session."""
    async with (
        over_http("_plain_http", era) as url,
        McpServer(url, name="shop", bounds=McpBounds(max_message=10**6, max_values=1000)) as server,
    ):
        await server.call("remember", {"text": "x"})
        with pytest.raises(EngineError, match=why) as caught:
            await server.call("leave", {"text": failure})
        [note] = await answers(ToolNode([server]), tool_call("remember", "1", text="y"))
    assert caught.value.ended == ended
    assert note.text == "2"


async def test_a_server_that_is_away_has_not_begun_and_is_asked_again_when_it_is_back() -> None:
    """A restarted server does not end the agent; in version 2026 no state is lost."""
    async with over_http("_plain_http", "2026") as url:
        server = await _open_while_it_is_there(url)
    with pytest.raises(EngineError, match=r"'echo' was not started: .*cannot be reached") as caught:
        await server.call("echo", {"text": "x"})
    async with over_http("_plain_http", "2026", port_of(url)):
        [message] = await answers(ToolNode([server]), tool_call("echo", "1", text="x"))
        await server.__aexit__(None, None, None)
    assert caught.value.ended == "unavailable"
    assert message.text == "x"


async def _open_while_it_is_there(url: str) -> McpServer:
    return await McpServer(url).__aenter__()


async def test_a_call_in_a_session_that_has_ended_is_sent_in_a_new_one() -> None:
    """The server has not run the call; the conversation is told once that the session's state is lost."""
    config = {"configurable": {"thread_id": "mine"}}
    texts: list[str] = []
    async with over_http("_plain_http", "2025") as url:
        server = await _open_while_it_is_there(url)
        node = ToolNode([server])
        await answers(node, tool_call("remember", "1", text="x"), config=config)
    async with over_http("_plain_http", "2025", port_of(url)):
        for number in ("2", "3"):
            [message] = await answers(node, tool_call("remember", number, text="x"), config=config)
            texts.append(message.text)
        await server.__aexit__(None, None, None)
    assert texts[0].startswith("1")
    assert "what its session held is lost" in texts[0]
    assert texts[1] == "2"


async def test_a_server_that_refuses_everybody_is_told_with_its_status() -> None:
    """Most refusals are caused by a missing key, so the error shows the HTTP status."""
    async with over_http("_plain_http", "401") as url:
        with pytest.raises(ActorStartError, match="did not start: it refused the request with HTTP status 401"):
            await McpServer(url).__aenter__()


# Responses that answer their request, by the id in the message.

NUMBERS = st.integers(0, 2**40)


def message(**parts: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **parts}).encode()


@given(NUMBERS, st.booleans())
def test_an_answer_with_the_same_id_is_one_also_as_text(number: int, as_text: bool) -> None:
    """Some servers send the id as text, and the SDK accepts this."""
    request = message(id=number, method="tools/call")
    assert describe_stray(request, message(id=str(number) if as_text else number, result={})) is None


@given(NUMBERS, NUMBERS | st.text(alphabet="abc", max_size=3) | st.none() | st.booleans() | st.lists(NUMBERS))
def test_one_with_another_id_never_is(number: int, other_id: Any) -> None:
    """Any other id, whatever its type, is refused."""
    if isinstance(other_id, bool) or other_id != number:
        assert describe_stray(message(id=number, method="tools/call"), message(id=other_id, result={})) is not None


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (message(method="notifications/initialized"), message(id=7, result={})),
        (message(id=1, method="tools/call"), b"not json"),
        (message(id=1, method="tools/call"), b"[" * 5000),
        (message(id=1, method="tools/call"), b"[]"),
        (message(id=1, method="tools/call"), b'{"detail": "no"}'),
        (message(id=1, method="tools/call"), message(id=2, result="x" * 70_000)),
    ],
)
def test_what_is_for_others_to_judge_is_left_to_them(request_: bytes, answer: bytes) -> None:
    """Messages without an id, invalid messages and messages too large to parse twice are passed on."""
    assert describe_stray(request_, answer) is None
