"""A saver that loses its connection after a write: the outcome is unknown, and the thread must stay correct."""

from typing import Any

import anyio
import pytest
from langgraph.checkpoint.memory import InMemorySaver

from callboard import ToolNode, create_react_agent
from callboard.testing import Recorder, ScriptedModel, calls

pytestmark = pytest.mark.real_clock

WAIT = 20
THREAD: Any = {"configurable": {"thread_id": "1"}}
QUESTION = {"messages": [("user", "go")]}


class Unlucky(InMemorySaver):
    """Fails once after a write has been stored; may disconnect for good some writes later.

    Args:
        fails_at: number of the write after which the connection is lost.
        good_for: number of later writes that still succeed.
    """

    def __init__(self, fails_at: int, good_for: int = 1000) -> None:
        super().__init__()
        self._fails_at = fails_at
        self._last = fails_at + good_for
        self._writes = 0

    def mend(self) -> None:
        self._fails_at, self._last = -1, self._writes + 1000

    def put(self, *args: Any) -> Any:
        if self._writes >= self._last:
            raise ConnectionError("cut off")
        return super().put(*args)

    def put_writes(self, *args: Any) -> None:
        self._writes += 1
        if self._writes > self._last:
            raise ConnectionError("cut off")
        super().put_writes(*args)
        if self._writes == self._fails_at:
            raise ConnectionError("stored, but who knows")


def contents(result: Any) -> list[str]:
    return [str(message.content) for message in result["messages"]]


async def finished_and_resumed(saver: Unlucky) -> tuple[list[str], Recorder]:
    """One call ends as the connection is lost, and one a little later; then another run continues."""
    recorder = Recorder()
    node = ToolNode([recorder.tool("work"), recorder.tool("late", seconds=0.1)], on_error="finish")
    model = ScriptedModel([calls("work", "late"), "done"])
    with anyio.fail_after(WAIT):
        with pytest.raises(ConnectionError):
            await create_react_agent(model, node, checkpointer=saver).ainvoke(QUESTION, THREAD)
        saver.mend()
        result = await create_react_agent(model, node, checkpointer=saver).ainvoke(None, THREAD)
    return contents(result), recorder


@pytest.mark.parametrize("fails_at", range(2, 9))
async def test_a_write_that_was_stored_and_reported_lost_is_not_done_twice(fails_at: int) -> None:
    """The test covers each write of a turn."""
    result, recorder = await finished_and_resumed(Unlucky(fails_at))

    assert result == ["go", "", "work", "late", "done"]
    assert (recorder.count("started", "work"), recorder.count("started", "late")) == (1, 1)


async def test_what_finishes_after_a_lost_answer_is_stored_too() -> None:
    """Savers keep the first of two writes with one id, so the later result must have a new id."""
    result, recorder = await finished_and_resumed(Unlucky(5, good_for=2))

    assert result == ["go", "", "work", "late", "done"]
    assert (recorder.count("started", "work"), recorder.count("started", "late")) == (1, 1)


async def test_a_run_that_could_not_begin_does_not_keep_its_thread_busy() -> None:
    """The first write holds the thread; if its outcome is unknown, the thread must still be free for the next run."""
    saver = Unlucky(1)
    agent = create_react_agent(ScriptedModel(["done"]), [], checkpointer=saver)
    with anyio.fail_after(WAIT):
        with pytest.raises(ConnectionError):
            await agent.ainvoke(QUESTION, THREAD)
        result = await agent.ainvoke(QUESTION, THREAD)

    assert contents(result) == ["go", "done"]
