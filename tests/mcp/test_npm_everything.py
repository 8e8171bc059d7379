"""The reference server "everything" from npm, over stdio and HTTP."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from callboard import CallPolicy, CallsInterrupted, ToolNode, observe
from callboard.testing import tool_call
from callboard_actors.mcp import McpServer

from ._asked import WAIT, answers
from ._npm import command, everything_over_http

pytestmark = [
    pytest.mark.real_clock,
    pytest.mark.exhaustive,
    pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning"),  # the SDK leaves streams open
]

over_both = pytest.mark.parametrize("over", ["stdio", "http"])


@asynccontextmanager
async def everything(over: str, **options: Any) -> AsyncGenerator[McpServer]:
    with anyio.fail_after(2 * WAIT):
        if over == "stdio":
            async with McpServer([*command("server-everything"), "stdio"], name="everything", **options) as server:
                yield server
        else:
            async with everything_over_http() as url, McpServer(url, name="everything", **options) as server:
                yield server


def kinds(content: Any) -> list[str]:
    return [block["type"] for block in content]


@over_both
async def test_each_kind_of_content_arrives_as_a_block(over: str) -> None:
    """Images, embedded resources, resource links, structured content and errors arrive besides text."""
    async with everything(over) as server:
        echo, wrong, picture, links, embedded, weather = await answers(
            ToolNode([server]),
            tool_call("echo", "5", message="hello"),
            tool_call("get-sum", "6", a="two"),
            tool_call("get-tiny-image", "1"),
            tool_call("get-resource-links", "2", count=2),
            tool_call("get-resource-reference", "3", resourceType="Blob", resourceId=1),
            tool_call("get-structured-content", "4", location="Chicago"),
        )

    assert (echo.text, wrong.status) == ("Echo: hello", "error")
    assert kinds(picture.content) == ["text", "image", "text"]
    assert kinds(links.content) == ["text", "file", "file"]
    assert links.content[1]["url"].startswith("demo://resource/")  # type: ignore[index]
    assert kinds(embedded.content) == ["text", "file", "text"]
    assert set(weather.artifact["structured_content"]) == {"temperature", "conditions", "humidity"}


@over_both
async def test_its_progress_keeps_a_call_alive(over: str) -> None:
    """Progress reports of the server reset the idle timeout of the call."""
    seen: list[Any] = []
    policies: Mapping[str, CallPolicy] = {"trigger-long-running-operation": CallPolicy(idle_timeout=2.0)}
    async with everything(over) as server:
        with observe(lambda event: seen.append(event) if event.what == "progress" else None):
            [message] = await answers(
                ToolNode([server], policies=policies),
                tool_call("trigger-long-running-operation", "1", duration=3, steps=6),
            )

    assert "completed" in message.text
    assert seen


@over_both
async def test_it_asks_a_person_and_goes_on(over: str) -> None:
    """The server asks during the call, as in versions before 2026, with every kind of form field."""
    call = tool_call("trigger-elicitation-request", "1")
    async with everything(over) as server:
        node = ToolNode([server])
        with pytest.raises(CallsInterrupted) as asked:
            await node.ainvoke([call])
        [question] = asked.value.interrupts
        answer = {"action": "accept", "content": {"name": "Ada", "integer": 7}}
        state = await node.ainvoke([call], ledger=asked.value.ledger, resume={question.id: answer})

    assert "birthdate" in question.value["request"]["requestedSchema"]["properties"]
    assert "Name: Ada" in state["messages"][0].text


@over_both
async def test_its_resources_and_prompts_are_read(over: str) -> None:
    """Resources are listed, templates are filled in, and a resource in a prompt becomes a block of its message."""
    async with everything(over, resources=True, prompts=True) as server:
        [text] = await server.read_resource("demo://resource/dynamic/text/1")
        [blob] = await server.read_resource("demo://resource/dynamic/blob/1")
        [greeting] = await server.get_prompt("args-prompt", {"city": "Oslo"})
        with_resource = await server.get_prompt("resource-prompt", {"resourceType": "Text", "resourceId": "1"})
        [listed] = await answers(ToolNode([server]), tool_call("list_resources", "1"))

    assert "Resource 1" in text.as_string()
    assert b"Resource 1" in blob.as_bytes()
    assert "Oslo" in greeting.text
    assert len(with_resource) == 2
    assert "demo://resource/dynamic/text/{resourceId}" in listed.text
