"""Lost connections and killed servers: the outcomes of calls, the notice to each conversation, and reconnects."""

from pathlib import Path
from typing import Any

import anyio
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from callboard import ActorDiedError, ActorGoneError, CallPolicy, ToolNode, create_react_agent, tool_call
from callboard.testing import ScriptedModel
from callboard_actors.mcp import McpBounds, McpServer

from ._asked import OLD, ROOT, answers, bad, every_era

pytestmark = pytest.mark.real_clock


@every_era
async def test_a_call_that_was_under_way_is_unknown_and_the_next_one_works(command: list[str]) -> None:
    """The call may have had its effect, so it is not sent again. The last words on stderr often explain the end."""
    async with McpServer(command, cwd=ROOT, name="shop") as server:
        pattern = r"'leave' had begun when shop died: .*exit code 7.*I am leaving.*is unknown"
        with pytest.raises(ActorDiedError, match=pattern):
            await server.call("leave", {"text": "7"})
        assert not (await server.call("echo", {"text": "x"})).is_error


async def test_a_call_that_was_not_sent_is_sent_over_the_next_connection() -> None:
    """The call was still queued when the connection was lost, so it has had no effect."""
    texts: list[str] = []

    async def end() -> None:
        with pytest.raises(ActorDiedError):
            await server.call("leave", {"text": "7"})

    async def say() -> None:
        result = await server.call("echo", {"text": "said"})
        texts.append(result.content[0].text)  # type: ignore[union-attr]

    async with McpServer(OLD, cwd=ROOT, bounds=McpBounds(parallel=1)) as server, anyio.create_task_group() as group:
        group.start_soon(end)
        await anyio.wait_all_tasks_blocked()
        group.start_soon(say)
    assert texts == ["said"]


@every_era
async def test_that_the_session_is_lost_is_told_once_in_each_conversation(command: list[str]) -> None:
    """The model has to learn that the session's state is lost, but not with every result."""
    calls = ["remember", "leave", "remember", "remember"]
    texts: list[str] = []
    async with McpServer(command, cwd=ROOT, name="shop") as server:
        node = ToolNode([server])
        for number, tool in enumerate(calls):
            [message] = await answers(node, tool_call(tool, str(number), text="7"))
            texts.append(message.text)
    assert [("is lost" in text or "unknown" in text) for text in texts] == [False, True, False, False]


@pytest.mark.parametrize(("answer", "ends"), [({"type": "accept"}, "again"), ({"type": "ignore"}, "unknown")])
async def test_a_person_is_asked_what_became_of_a_call_where_the_policy_says_so(
    answer: dict[str, str], ends: str, tmp_path: Path
) -> None:
    """The call is sent again only if the person agrees."""
    policies = {"leave": CallPolicy(on_unknown="ask")}
    model = ScriptedModel([[tool_call("leave", "1", text="7")], "done"])
    config: Any = {"configurable": {"thread_id": "mine"}}
    async with McpServer(bad("once", str(tmp_path / "started"), "again"), cwd=ROOT, name="shop") as server:
        node = ToolNode([server], policies=policies)
        agent = create_react_agent(model, node, checkpointer=InMemorySaver())
        interrupted_state = await agent.ainvoke({"messages": [("user", "leave")]}, config)
        [question] = interrupted_state["__interrupt__"]
        state = await agent.ainvoke(Command(resume={question.id: answer}), config)
    assert "shop died" in question.value[0]["description"]
    assert ends in state["messages"][2].text


async def test_a_server_that_is_not_there_any_more_is_said_to_be(tmp_path: Path) -> None:
    """After a few reconnects waiting calls fail, and the agent goes on without the server."""
    async with McpServer(bad("once", str(tmp_path / "started")), cwd=ROOT, name="shop") as server:
        with pytest.raises(ActorDiedError):
            await server.call("leave", {"text": "7"})
        with pytest.raises(ActorGoneError, match=r"'echo' was not started: shop.*exit code 4"):
            await server.call("echo", {"text": "x"})


# A server that is killed at any point: each call has one outcome, and none is sent twice.


AGENTS, CALLS = 5, 10
