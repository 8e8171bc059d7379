"""Values that JSON in UTF-8 cannot carry end one call, in words; the session and its other calls go on."""

import math
from typing import Any

import pytest

from callboard import ToolNode, tool_call
from callboard_actors.mcp import McpServer, McpToolError

from ._asked import ROOT, answers, every_era

pytestmark = pytest.mark.real_clock


@every_era
async def test_arguments_that_cannot_be_sent_end_their_call_alone(command: list[str]) -> None:
    bad = [tool_call("echo", repr(value), text=value) for value in ("half \ud83d", math.nan, -math.inf)]
    async with McpServer(command, cwd=ROOT) as server:
        good, *messages = await answers(ToolNode([server]), tool_call("echo", "whole", text="whole"), *bad)
        assert good.text == "whole"
        for message in messages:
            assert message.status == "error"
            assert "Not started: the value of the arguments of 'echo' cannot be sent" in message.text


@every_era
@pytest.mark.parametrize(
    "read",
    [
        lambda server, text: server.read_resource(f"note:{text}"),
        lambda server, text: server.get_prompt("greet", {"name": text}),
    ],
)
async def test_a_uri_or_an_argument_of_a_prompt_that_cannot_be_sent_leaves_the_session_as_it_is(
    command: list[str], read: Any
) -> None:
    async with McpServer(command, cwd=ROOT) as server:
        with pytest.raises(McpToolError, match="cannot be sent: it has half of a surrogate pair"):
            await read(server, "half \ud83d")
        [message] = await answers(ToolNode([server]), tool_call("echo", "1", text="whole"))
        assert message.text == "whole"
