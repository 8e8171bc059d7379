"""Answers that come after the connection was lost: the call is continued or unknown, never restarted."""

from typing import Any

import anyio
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from callboard import ToolNode, create_react_agent
from callboard.testing import ScriptedModel, calls
from callboard_actors.mcp import McpServer

from ._asking import Done, server

pytestmark = pytest.mark.real_clock  # the checkpointer is called in a thread

WAIT = 30


def accept(**content: object) -> dict[str, Any]:
    return {"action": "accept", "content": content}


async def resumed_elsewhere(done: Done, mode: str, call: Any, answer: Any) -> Any:
    """Let one agent ask, and resume its conversation in another agent with another connection."""
    saver, config = InMemorySaver(), {"configurable": {"thread_id": "1"}}
    model = ScriptedModel([call, "Done."])
    with anyio.fail_after(WAIT):
        async with McpServer(server(done), mode=mode) as served:
            agent = create_react_agent(model, ToolNode([served]), checkpointer=saver)
            state = await agent.ainvoke({"messages": ["go"]}, config)
            [question] = state["__interrupt__"]
        async with McpServer(server(done), mode=mode) as served:
            agent = create_react_agent(model, ToolNode([served]), checkpointer=saver)
            return await agent.ainvoke(Command(resume={question.id: answer}), config)


async def test_a_call_of_2026_goes_on_with_another_connection() -> None:
    """The conversation stores the server's state, so steps before the question are not repeated."""
    call = calls(("once", {"table": "T1"}))
    state = await resumed_elsewhere(done := Done(), "auto", call, accept(guests=4))
    assert state["messages"][2].text == "T1 for 4"
    assert done.effects == ["reserve T1", "book with reserved:T1"]


async def test_a_call_of_2025_that_was_held_open_by_what_is_gone_is_unknown() -> None:
    """A restarted call could repeat its effects; the model gets a message and no request is sent."""
    state = await resumed_elsewhere(done := Done(), "legacy", calls(("reserve", {"table": "T1"})), accept(guests=4))
    message = state["messages"][2]
    assert (message.status, message.additional_kwargs["callboard"]["ended"]) == ("error", "unknown")
    assert "was not kept open until the answer came" in message.text
    assert done.effects == ["reserve T1"]
