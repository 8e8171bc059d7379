"""Closed agents and nodes wait for their runs, and can be used again."""

import threading
from typing import Any

import anyio
import pytest

from callboard import DrainingError, ToolNode, create_react_agent
from callboard.testing import Recorder, ScriptedModel, calls

from ._runs import CONFIG, GO, WAIT, Fallen, until


@pytest.mark.real_clock
async def test_an_agent_that_is_closed_waits_for_its_runs_and_may_be_used_again() -> None:
    """`aclose` must not take the database from running calls."""
    recorder, found = Recorder(), Fallen()
    model = ScriptedModel([calls("slow"), "done", "again"])
    agent = create_react_agent(model, [recorder.tool("slow", seconds=0.2)], checkpointer="sqlite:///:memory:")
    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            group.start_soon(found.run, agent.ainvoke, GO, CONFIG)
            await until(lambda: recorder.running == 1)
            await agent.aclose()

            assert [one["messages"][-1].content for one in found.results] == ["done"]
        result = await agent.ainvoke(GO, {"configurable": {"thread_id": "other"}})
        await agent.aclose()

    assert result["messages"][-1].content == "again"


async def test_a_block_of_a_node_that_is_left_waits_for_its_runs() -> None:
    """The node's actors live as long as a call may ask them."""
    recorder, found = Recorder(), Fallen()
    node = ToolNode([recorder.tool("slow", seconds=2)])
    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            async with node:
                group.start_soon(found.run, node.ainvoke, [calls("slow")])
                await until(lambda: recorder.running == 1)
            assert recorder.running == 0
        assert len(await node.ainvoke([calls("slow")])) == 1

    assert [one[0].status for one in found.results] == ["success"]


@pytest.mark.real_clock
async def test_a_block_of_an_agent_that_is_left_waits_for_its_runs_and_one_that_is_entered_begins_again() -> None:
    """Actors and databases are closed after the runs; entering the block again starts new ones."""
    recorder, found = Recorder(), Fallen()
    model = ScriptedModel([calls("slow"), "done", "again"])
    agent = create_react_agent(model, [recorder.tool("slow", seconds=0.2)])
    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            async with agent:
                group.start_soon(found.run, agent.ainvoke, GO)
                await until(lambda: recorder.running == 1)
            assert recorder.running == 0
        await agent.drain()
        with pytest.raises(DrainingError):
            await agent.ainvoke(GO)
        async with agent:
            result = await agent.ainvoke(GO)

    assert result["messages"][-1].content == "again"
    assert len(found.results) == 1


@pytest.mark.real_clock
def test_sync_code_closes_an_agent_when_the_runs_of_other_threads_have_ended() -> None:
    """Code without an event loop has a synchronous method to close an agent."""
    recorder = Recorder()
    model = ScriptedModel([calls("slow"), "done"])
    agent = create_react_agent(model, [recorder.tool("slow", seconds=0.3)], checkpointer="sqlite:///:memory:")
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(agent.invoke(GO, CONFIG)))
    thread.start()
    while not recorder.running:
        threading.Event().wait(0.01)
    agent.close()

    assert recorder.running == 0
    thread.join(5)
    assert results[0]["messages"][-1].content == "done"


@pytest.mark.real_clock
async def test_sync_code_that_would_wait_for_a_run_of_the_loop_it_blocks_is_told_so() -> None:
    """A run cannot end while synchronous code blocks its event loop and waits for it."""
    recorder, found = Recorder(), Fallen()
    agent = create_react_agent(ScriptedModel([calls("slow"), "done"]), [recorder.tool("slow", seconds=0.1)])
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(found.run, agent.ainvoke, GO)
            await until(lambda: recorder.running == 1)
            with pytest.raises(RuntimeError, match="in the event loop that waits for this: await it there"):
                agent.close()

    assert len(found.results) == 1
