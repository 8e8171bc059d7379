"""Promise 4: a cancelled run ends as cancelled, even if a client below it swallows the cancellation."""

import asyncio
from typing import Any

import anyio
import pytest
from langgraph.checkpoint.memory import InMemorySaver

from callboard import create_react_agent
from callboard.testing import Recorder, ScriptedModel, calls

from ._savers import AT, QUESTION, scripted

WAIT = 60


class Deaf:
    """A hook that swallows cancellations.

    Args:
        times: number of cancellations that it swallows.
    """

    def __init__(self, times: int) -> None:
        self.begun = asyncio.Event()
        self.times = times

    async def __call__(self, state: Any) -> dict[str, Any]:
        self.begun.set()
        while self.times:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                self.times -= 1
        return {}


@pytest.mark.backends("asyncio")
@pytest.mark.parametrize("has_saver", [False, True])
async def test_what_comes_in_spite_of_a_cancellation_does_not_count(has_saver: bool) -> None:
    """Before Python 3.12 `asyncio.wait_for` may swallow a cancellation, as do clients with a timeout for chunks."""
    recorder, hook = Recorder(), Deaf(1)
    model = ScriptedModel([calls(("work", {"query": "a"})), "done"])
    saver = InMemorySaver() if has_saver else None
    agent = create_react_agent(model, [recorder.tool("work")], pre_model_hook=hook, checkpointer=saver)
    task = asyncio.create_task(agent.ainvoke(QUESTION, AT))
    await hook.begun.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert (hook.times, model.requests, recorder.count("started")) == (0, [], 0)
    if has_saver:
        state = await agent.aget_state(AT)
        assert state.next == ("pre_model_hook",)
        assert (await agent.ainvoke(None, AT))["messages"][-1].content == "done"


@pytest.mark.backends("asyncio")
async def test_who_hears_no_cancellation_is_cancelled_again_when_the_grace_is_over() -> None:
    """A body that swallows one cancellation would otherwise leave an endless stream running for good."""
    hook = Deaf(3)
    agent = scripted(["done"], [], pre_model_hook=hook)
    with anyio.fail_after(50):
        task = asyncio.create_task(agent.ainvoke(QUESTION))
        await hook.begun.wait()
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled()
    assert hook.times == 0


@pytest.mark.backends("asyncio")
async def test_what_was_cancelled_before_the_run_is_no_matter_of_the_run() -> None:
    """A clean-up may run an agent in a task that was cancelled before; the run ignores that older cancellation."""

    async def main() -> Any:
        try:
            await asyncio.sleep(WAIT)
        except asyncio.CancelledError:
            return await scripted(["done"], []).ainvoke(QUESTION)

    task = asyncio.create_task(main())
    await asyncio.sleep(0)
    task.cancel()
    result = await task
    assert result["messages"][-1].content == "done"
