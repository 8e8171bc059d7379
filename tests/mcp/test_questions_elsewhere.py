"""Questions of 2025 servers over stdio, where the protocol does not name the call that asks."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard import CallsInterrupted, ToolNode
from callboard.testing import tool_call
from callboard_actors.mcp import McpServer

from ._asking import COMMAND, ROOT

pytestmark = [pytest.mark.real_clock, pytest.mark.exhaustive]

SURE = {"action": "accept", "content": {"sure": True}}


def effects(folder: Path) -> list[str]:
    return (folder / "effects").read_text().splitlines()


async def test_over_stdio_the_call_that_does_not_end_meanwhile_is_the_one_that_asked(tmp_path: Path) -> None:
    """The protocol of 2025 does not say which call asks, so the server's other calls are awaited first."""
    async with McpServer([*COMMAND, str(tmp_path)], cwd=ROOT, mode="legacy") as served:
        node = ToolNode([served])
        batch = [tool_call("wait", "1", folder=str(tmp_path)), tool_call("cancel", "2", table="T2")]
        waiting: dict[str, Any] = {}

        async def run() -> None:
            with pytest.raises(CallsInterrupted) as asked:
                await node.ainvoke(batch)
            waiting.update(ledger=asked.value.ledger, questions=asked.value.interrupts)

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            while not (tmp_path / "waiting").exists():
                await anyio.sleep(0.01)
            (tmp_path / "go").touch()
        [question] = waiting["questions"]
        state = await node.ainvoke(batch, ledger=waiting["ledger"], resume={question.id: SURE})

    assert question.value["tool"] == "cancel"
    assert [message.text for message in state["messages"]] == ["waited", "cancelled T2: True"]


async def test_two_calls_that_both_ask_over_stdio_are_both_answered(tmp_path: Path) -> None:
    """Neither call ends before its answer, so the questions must not wait for a call to end."""
    async with McpServer([*COMMAND, str(tmp_path)], cwd=ROOT, mode="legacy") as served:
        node, batch = ToolNode([served]), [tool_call("cancel", f"{n}", table=f"T{n}") for n in range(2)]
        with pytest.raises(CallsInterrupted) as asked:
            await node.ainvoke(batch)
        resume = {one.id: SURE for one in asked.value.interrupts}
        state = await node.ainvoke(batch, ledger=asked.value.ledger, resume=resume)

    assert [message.text for message in state["messages"]] == ["cancelled T0: True", "cancelled T1: True"]
    assert sorted(effects(tmp_path)) == ["cancel T0 True", "cancel T1 True"]
