"""A server may ask a model only if the client has lent it one."""

from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from mcp_types import AudioContent, CreateMessageRequestParams, ImageContent, SamplingMessage, TextContent, Tool

from callboard import ToolNode, agent_model, create_react_agent
from callboard.testing import ScriptedModel, calls, tool_call
from callboard_actors.mcp import McpServer
from callboard_actors.mcp._questions import Sampler, SamplingRefusedError

from ._asked import ROOT, answers
from ._asking import COMMAND, server

pytestmark = pytest.mark.real_clock  # on trio the model is called in a thread

ERAS = pytest.mark.parametrize("mode", ["auto", "legacy"])


def params(*messages: SamplingMessage, **more: Any) -> CreateMessageRequestParams:
    return CreateMessageRequestParams(messages=list(messages), max_tokens=10, **more)


@ERAS
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


@ERAS
@pytest.mark.parametrize(("sampling", "says"), [(None, "sampling"), (True, "mcpserver(sampling=model) says which")])
async def test_without_one_it_is_refused_and_the_model_reads_that_it_was(mode: str, sampling: Any, says: str) -> None:
    """Sampling costs the client money, so it has to be allowed explicitly.

    A node has no model, so outside of an agent there is none with `sampling=True`; the error names the option.
    """
    async with McpServer(server(), mode=mode, sampling=sampling) as served:
        [message] = await answers(ToolNode([served]), tool_call("shorten", "1", text="x"))

    assert message.status == "error"
    assert says in message.text.lower()


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


# The model of the agent that called, with `sampling=True`.


def calling(text: str, answer: str) -> ScriptedModel:
    """Return a model that calls the tool, answers the server and then ends the turn."""
    return ScriptedModel([calls(("shorten", {"text": text})), answer, AIMessage("done")])


async def run(agent: Any) -> str:
    """Run an agent and return the result of its one call."""
    state = await agent.ainvoke({"messages": [("user", "go")]})
    return str(state["messages"][2].text)


@ERAS
async def test_the_agents_own_model_answers(mode: str) -> None:
    """Server and model read each other's messages, and nothing of the agent's conversation."""
    model = calling("a long text", "short")
    async with McpServer(server(), mode=mode, sampling=True) as served:
        found = await run(create_react_agent(model, [served]))

    assert found.startswith("short (")
    assert texts_of(model.requests[1]) == ["Be brief.", "Say it shorter: a long text"]


def texts_of(request: Sequence[BaseMessage]) -> list[str]:
    return [message.text for message in request]


async def test_at_once_each_call_is_answered_by_the_model_of_its_agent() -> None:
    """In version 2026 a question belongs to its call, so concurrent calls are no problem."""
    found: dict[str, str] = {}

    async def one(name: str) -> None:
        found[name] = await run(create_react_agent(calling(name, f"of {name}"), [served]))

    async with McpServer(server(), sampling=True) as served, anyio.create_task_group() as group:
        for name in "abcdef":
            group.start_soon(one, name)

    assert {name: text.partition(" (")[0] for name, text in found.items()} == {name: f"of {name}" for name in "abcdef"}


async def test_over_stdio_in_2025_a_question_waits_until_it_is_known_whose_it_is(tmp_path: Any) -> None:
    """While another agent's call runs, the protocol does not tell which model is meant, so no model is asked."""
    waits = ScriptedModel([calls(("wait", {"folder": str(tmp_path)})), AIMessage("done")])
    asks = calling("x", "mine")
    async with McpServer(COMMAND, cwd=ROOT, mode="legacy", sampling=True) as served:
        async with anyio.create_task_group() as group:
            group.start_soon(run, create_react_agent(waits, [served]))
            while not (tmp_path / "waiting").exists():
                await anyio.sleep(0.01)
            found: list[str] = []

            async def ask() -> None:
                found.append(await run(create_react_agent(asks, [served])))

            group.start_soon(ask)
            while len(asks.requests) < 1:
                await anyio.sleep(0.01)
            (tmp_path / "go").touch()
    assert found[0].startswith("mine (")
    assert len(waits.requests) == 2  # none of the messages is the server's


async def test_an_agent_that_chooses_its_model_for_each_step_has_none_to_lend() -> None:
    """The error avoids asking a model that the agent might never have chosen."""
    model = calling("x", "short")
    async with McpServer(server(), sampling=True) as served:
        agent = create_react_agent(lambda state, runtime: model.bind_tools(served.tools), [served])
        with pytest.raises(Exception, match=r"McpServer\(sampling=model\) says which"):
            raise AssertionError(await run(agent))
    assert agent_model() is None
