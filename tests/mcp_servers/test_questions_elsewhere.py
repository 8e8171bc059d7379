"""Questions of servers in processes of their own: whose they are, and what is left of them when a process has ended."""

from pathlib import Path
from typing import Any

import anyio
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from callboard import CallsInterrupted, ToolNode, create_react_agent
from callboard.testing import ScriptedModel, calls, tool_call
from callboard_actors.mcp import McpServer

from ._asked import WAIT, answers
from ._asking import COMMAND

pytestmark = pytest.mark.real_clock

SURE = {"action": "accept", "content": {"sure": True}}


def effects(folder: Path) -> list[str]:
    return (folder / "effects").read_text().splitlines()


async def test_over_stdio_the_call_that_does_not_end_meanwhile_is_the_one_that_asked(tmp_path: Path) -> None:
    """The protocol of 2025 does not say which call a question is for; another one must not be asked for it."""
    with anyio.fail_after(WAIT):
        async with McpServer([*COMMAND, str(tmp_path)], mode="legacy") as served:
            node = ToolNode([served])
            batch = [tool_call("wait", "1", folder=str(tmp_path)), tool_call("cancel", "2", table="T2")]
            waiting: dict[str, Any] = {}

            async def run() -> None:
                with pytest.raises(CallsInterrupted) as asked:
                    await node.ainvoke(batch)
                waiting.update(ledger=asked.value.ledger, questions=asked.value.interrupts)

            async with anyio.create_task_group() as group:
                group.start_soon(run)
                await answers(node, tool_call("reserve_nothing", "3"))  # an unknown tool: the loop has turned
                (tmp_path / "go").touch()
            [question] = waiting["questions"]
            state = await node.ainvoke(batch, ledger=waiting["ledger"], resume={question.id: SURE})

    assert question.value["tool"] == "cancel"
    assert [message.text for message in state["messages"]] == ["waited", "cancelled T2: True"]


async def test_two_calls_that_both_ask_over_stdio_are_both_answered(tmp_path: Path) -> None:
    """Neither ends before it is answered, so that waiting for one to end would be waiting for ever."""
    with anyio.fail_after(WAIT):
        async with McpServer([*COMMAND, str(tmp_path)], mode="legacy") as served:
            node, batch = ToolNode([served]), [tool_call("cancel", f"{n}", table=f"T{n}") for n in range(2)]
            with pytest.raises(CallsInterrupted) as asked:
                await node.ainvoke(batch)
            resume = {one.id: SURE for one in asked.value.interrupts}
            state = await node.ainvoke(batch, ledger=asked.value.ledger, resume=resume)

    assert [message.text for message in state["messages"]] == ["cancelled T0: True", "cancelled T1: True"]
    assert sorted(effects(tmp_path)) == ["cancel T0 True", "cancel T1 True"]


async def resumed_elsewhere(folder: Path, mode: str, call: Any, answer: Any) -> Any:
    """An agent asks; another one, with another connection, is given the answer."""
    saver, config = InMemorySaver(), {"configurable": {"thread_id": "1"}}
    model = ScriptedModel([call, "Done."])
    with anyio.fail_after(WAIT):
        async with McpServer([*COMMAND, str(folder)], mode=mode) as served:
            agent = create_react_agent(model, ToolNode([served]), checkpointer=saver)
            state = await agent.ainvoke({"messages": ["go"]}, config)
            [question] = state["__interrupt__"]
        async with McpServer([*COMMAND, str(folder)], mode=mode) as served:
            agent = create_react_agent(model, ToolNode([served]), checkpointer=saver)
            return await agent.ainvoke(Command(resume={question.id: answer}), config)


async def test_a_call_of_2026_goes_on_with_another_connection(tmp_path: Path) -> None:
    """All that is needed is in the conversation: what was done before the question is not done again."""
    call = calls(("once", {"table": "T1"}))
    state = await resumed_elsewhere(tmp_path, "auto", call, {"action": "accept", "content": {"guests": 4}})
    assert state["messages"][2].text == "T1 for 4"
    assert effects(tmp_path) == ["reserve T1", "book with reserved:T1"]


async def test_a_call_of_2025_that_was_held_open_by_what_is_gone_is_unknown(tmp_path: Path) -> None:
    """To begin it anew could do everything twice; the model is told, and nothing is sent."""
    state = await resumed_elsewhere(tmp_path, "legacy", calls(("reserve", {"table": "T1"})), SURE)
    message = state["messages"][2]
    assert (message.status, message.additional_kwargs["callboard"]["ended"]) == ("error", "unknown")
    assert "was not kept open until the answer came" in message.text
    assert effects(tmp_path) == ["reserve T1"]
