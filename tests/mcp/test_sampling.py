"""A server may ask a model only if the client has lent it one."""

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from mcp_types import AudioContent, CreateMessageRequestParams, ImageContent, SamplingMessage, TextContent, Tool

from callboard import ToolNode
from callboard.testing import ScriptedModel, tool_call
from callboard_actors.mcp import McpServer
from callboard_actors.mcp._sampling import Sampler, SamplingRefusedError

from ._asking import server

pytestmark = pytest.mark.real_clock  # on trio the model is called in a thread

ERAS = ["auto", "legacy"]


def params(*messages: SamplingMessage, **more: Any) -> CreateMessageRequestParams:
    return CreateMessageRequestParams(messages=list(messages), max_tokens=10, **more)


@pytest.mark.parametrize("mode", ERAS)
async def test_a_model_that_was_lent_answers_the_server(mode: str) -> None:
    """The tool continues with the model's answer; the model reads only the server's messages."""
    model = ScriptedModel(["short"])
    async with McpServer(server(), mode=mode, sampling=model) as served:
        found = await ToolNode([served]).ainvoke([tool_call("shorten", "1", text="a long text")])

    assert found["messages"][0].text.startswith("short (")
    [read] = model.requests
    assert [(type(one), one.text) for one in read] == [
        (SystemMessage, "Be brief."),
        (HumanMessage, "Say it shorter: a long text"),
    ]


@pytest.mark.parametrize("mode", ERAS)
async def test_without_one_it_is_refused_and_the_model_reads_that_it_was(mode: str) -> None:
    """Sampling costs the client money, so it has to be allowed explicitly."""
    async with McpServer(server(), mode=mode) as served:
        [message] = (await ToolNode([served]).ainvoke([tool_call("shorten", "1", text="x")]))["messages"]

    assert message.status == "error"
    assert "sampling" in message.text.lower()


def test_what_is_lent_has_to_be_a_model() -> None:
    """A model name would fail only when the server asks, so it is refused at once."""
    with pytest.raises(TypeError, match=r"sampling=.*chat model, or True.*'gpt'"):
        McpServer(server(), sampling="gpt")  # type: ignore[arg-type]


async def test_pictures_and_both_roles_reach_the_model() -> None:
    """Content arrives as blocks that models accept, in the original order."""
    model, picture = ScriptedModel(["seen"]), ImageContent(data="", mime_type="image/png")
    reply = await Sampler(model, "it")(
        params(
            SamplingMessage(role="user", content=[TextContent(text="look"), picture]),
            SamplingMessage(role="assistant", content=TextContent(text="where?")),
            SamplingMessage(role="user", content=AudioContent(data="", mime_type="audio/wav")),
        )
    )

    assert isinstance(reply.content, TextContent) and reply.content.text == "seen"
    look, where, hear = model.requests[0]
    assert [block["type"] for block in look.content] == ["text", "image"]  # type: ignore[index]
    assert isinstance(where, AIMessage)
    assert hear.content[0]["mime_type"] == "audio/wav"  # type: ignore[index]


async def test_a_model_is_not_lent_for_tools_of_the_server() -> None:
    """Tool use would need an agent loop without supervision."""
    with pytest.raises(SamplingRefusedError, match="calls its tools"):
        await Sampler(ScriptedModel(["x"]), "it")(params(tools=[Tool(name="t", input_schema={"type": "object"})]))
