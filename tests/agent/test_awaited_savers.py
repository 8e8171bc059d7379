"""Checkpointers by users: overridden methods are called, and do not block the event loop."""

import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from langgraph.checkpoint.memory import InMemorySaver

from callboard import ToolNode, create_react_agent
from callboard._loops._current import current_loop
from callboard.testing import Recorder, ScriptedModel, calls

from ._savers import SAVERS, saver_of

pytestmark = pytest.mark.real_clock

WAIT = 20
THREAD: Any = {"configurable": {"thread_id": "1"}}
QUESTION = {"messages": [("user", "go")]}


@pytest.mark.parametrize("kind", SAVERS)
async def test_a_tool_may_await_a_node_of_several_calls_whatever_keeps_the_thread(kind: str, tmp_path: Path) -> None:
    """The inner node writes its ledger to the outer agent's saver; on trio, that saver lives on another loop."""
    inner = ToolNode([Recorder().tool("work")])

    async def delegate() -> str:
        """Have two things done."""
        done = await inner.ainvoke(calls("work", "work").tool_calls)
        return str(len(done["messages"]))

    with anyio.fail_after(WAIT):
        async with saver_of(kind, tmp_path / "db") as saver:
            agent = create_react_agent(ScriptedModel([calls("delegate"), "done"]), [delegate], checkpointer=saver)
            result = await agent.ainvoke(QUESTION, THREAD)

    assert [message.content for message in result["messages"]] == ["go", "", "2", "done"]


class Counting(InMemorySaver):
    """Overrides the async methods."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    async def aget_tuple(self, *args: Any, **kwargs: Any) -> Any:
        self.heard.append("aget_tuple")
        return await super().aget_tuple(*args, **kwargs)

    async def aput(self, *args: Any, **kwargs: Any) -> Any:
        self.heard.append("aput")
        return await super().aput(*args, **kwargs)

    async def aput_writes(self, *args: Any, **kwargs: Any) -> Any:
        self.heard.append("aput_writes")
        return await super().aput_writes(*args, **kwargs)


async def test_overrides_of_the_saver_in_memory_are_called() -> None:
    """A subclass of the in-memory saver may encrypt or count, so it must not be treated as the plain saver."""
    saver = Counting()
    agent = create_react_agent(ScriptedModel([calls("work"), "done"]), [Recorder().tool("work")], checkpointer=saver)

    with anyio.fail_after(WAIT):
        await agent.ainvoke(QUESTION, THREAD)

    assert {"aget_tuple", "aput", "aput_writes"} <= set(saver.heard)


class Slow(InMemorySaver):
    """Overrides the sync methods with blocking code."""

    def put(self, *args: Any, **kwargs: Any) -> Any:
        time.sleep(0.2)
        return super().put(*args, **kwargs)

    def put_writes(self, *args: Any, **kwargs: Any) -> Any:
        time.sleep(0.2)
        return super().put_writes(*args, **kwargs)


@pytest.mark.exhaustive
async def test_a_slow_override_does_not_hold_the_event_loop() -> None:
    """Methods that are only sync run in a thread, although the class inherits async ones."""
    agent = create_react_agent(ScriptedModel(["done"]), [], checkpointer=Slow())
    gaps: list[float] = []

    async def watch() -> None:
        while True:
            before = current_loop().now()
            await anyio.sleep(0.01)
            gaps.append(current_loop().now() - before)

    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            await agent.ainvoke(QUESTION, THREAD)
            tasks.cancel_scope.cancel()

    assert len(gaps) > 10
