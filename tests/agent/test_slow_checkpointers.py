"""Slow checkpointers: data is stored however long that takes, or an error says that it was not."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from langgraph.checkpoint.memory import InMemorySaver

from callboard import StorageError, create_react_agent
from callboard._loops import _deadline
from callboard.testing import Recorder, ScriptedModel, calls
from tests.helpers import make

from ._savers import shape

pytestmark = pytest.mark.real_clock

WAIT = 20
GRACE = 0.3
THREAD = {"configurable": {"thread_id": "t"}}
QUESTION = {"messages": [("user", "go")]}
ALL = ["human:go", "ai:", "tool:work", "ai:done"]


class Slow(InMemorySaver):
    """Stores nothing while its gate is closed. On trio it runs on another loop, and therefore polls."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.waiting = threading.Event()

    async def aput_writes(
        self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self.waiting.set()
        while not self.gate.is_set():
            await asyncio.sleep(0.001)
        await super().aput_writes(config, writes, task_id, task_path)


class Tool:
    """A tool whose result arrives while the gate is closed."""

    def __init__(self, saver: Slow) -> None:
        self.saver = saver
        self.runs = 0
        saver.gate.set()

    async def work(self) -> str:
        """Work."""
        self.runs += 1
        if self.runs == 1:
            self.saver.gate.clear()
            self.saver.waiting.clear()
        return "work"

    async def is_being_stored(self) -> None:
        while not self.runs:
            await anyio.sleep(0.001)
        await until(self.saver.waiting)

    def agent(self) -> Any:
        model = ScriptedModel([calls(("work", {})), "done"])
        return create_react_agent(model, [make(self.work)], checkpointer=self.saver)


def agent_with(saver: Any, recorder: Recorder) -> Any:
    model = ScriptedModel([calls(("work", {})), "done"])
    return create_react_agent(model, [recorder.tool("work")], checkpointer=saver)


async def until(is_so: threading.Event) -> None:
    while not is_so.is_set():
        await anyio.sleep(0.001)


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_deadline, "DEFAULT_GRACE", GRACE)


async def test_what_takes_longer_than_any_grace_is_stored_all_the_same() -> None:
    """A busy database must cause neither lost results nor an error about another run."""
    saver, recorder = Slow(), Recorder()

    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            group.start_soon(agent_with(saver, recorder).ainvoke, QUESTION, THREAD)
            await until(saver.waiting)
            await anyio.sleep(3 * GRACE)
            saver.gate.set()
        state = await agent_with(saver, recorder).aget_state(THREAD)

    assert shape(state.values["messages"]) == ALL


async def test_what_is_being_stored_when_the_run_is_cancelled_is_stored() -> None:
    """The write ends within the grace, like any clean-up, so the next run finds the result."""
    tool = Tool(Slow())
    agent = tool.agent()

    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            group.start_soon(agent.ainvoke, QUESTION, THREAD)
            await tool.is_being_stored()
            group.cancel_scope.cancel()
            tool.saver.gate.set()
        result = await agent.ainvoke(None, THREAD)

    assert shape(result["messages"]) == ALL
    assert tool.runs == 1


async def test_a_checkpointer_that_never_answers_does_not_hold_a_cancelled_run() -> None:
    """The error says that the outcome of the write is unknown."""
    saver = Slow()

    with anyio.fail_after(WAIT), pytest.raises(ExceptionGroup) as caught:
        async with anyio.create_task_group() as group:
            group.start_soon(agent_with(saver, Recorder()).ainvoke, QUESTION, THREAD)
            await until(saver.waiting)
            group.cancel_scope.cancel()

    [error] = caught.value.exceptions
    assert isinstance(error, StorageError)
    assert "type Slow" in str(error)
    assert "its grace was over" in str(error)


@pytest.mark.backends("asyncio")
async def test_a_native_cancellation_goes_on_when_what_it_met_is_stored() -> None:
    """`task.cancel()`, as in `asyncio.wait_for`, neither cuts off a write nor is lost."""
    tool = Tool(Slow())
    agent = tool.agent()

    with anyio.fail_after(WAIT):
        task = asyncio.get_running_loop().create_task(agent.ainvoke(QUESTION, THREAD))
        await tool.is_being_stored()
        task.cancel()
        await asyncio.sleep(GRACE / 3)
        assert not task.done()
        tool.saver.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        result = await agent.ainvoke(None, THREAD)

    assert shape(result["messages"]) == ALL
    assert tool.runs == 1
