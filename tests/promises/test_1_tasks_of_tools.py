"""Promise 1: a task that a tool leaves behind on asyncio is named in a warning."""

import asyncio
import re
import warnings

import anyio
import pytest
from langchain_core.tools import tool

from callboard import AbandonedTaskWarning, Actor, ToolNode, handler, running, tool_call

pytestmark = pytest.mark.usefixtures("nothing_told")

tasks: list[asyncio.Task[None]] = []


async def forever() -> None:
    await asyncio.sleep(1e6)


def leaving() -> ToolNode:
    async def leave() -> str:
        """Start a task, and go."""
        tasks.append(asyncio.create_task(forever(), name="the rest"))
        await asyncio.sleep(0)
        return "gone"

    return ToolNode([tool(leave)])


async def end_tasks() -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    tasks.clear()


@pytest.mark.backends("asyncio")
async def test_a_task_that_a_tool_leaves_behind_is_named_with_its_tool_and_call() -> None:
    """Without the warning, neither the batch nor the caller would learn that the task ended, or failed."""
    with pytest.warns(AbandonedTaskWarning) as caught:
        await leaving().ainvoke([tool_call("leave", "c7")])
    (text,) = [str(warning.message) for warning in caught]
    assert "tool 'leave' (call 'c7') left a task behind that outlives its batch: 'the rest', forever()" in text
    assert re.search(r"test_1_tasks_of_tools\.py:\d+", text)
    assert "asyncio.TaskGroup" in text
    assert not tasks[0].done()
    await end_tasks()


@pytest.mark.backends("asyncio")
async def test_a_task_is_named_once_for_each_tool_and_function() -> None:
    """A server would otherwise warn for each call."""
    node = leaving()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            await node.ainvoke([tool_call("leave")])
    await end_tasks()
    assert len(caught) == 1


@pytest.mark.backends("asyncio")
async def test_a_task_that_ends_with_its_tool_is_not_named() -> None:
    """The tool's tasks have ended, so there is no warning; warnings are errors here."""

    async def tidy() -> str:
        """Start tasks, and end them all; of one, the end is not awaited."""
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))
        task = asyncio.create_task(forever())
        await asyncio.sleep(0)
        task.cancel()
        async with asyncio.timeout(60):
            return "tidy"

    for _ in range(3):
        answers = (await ToolNode([tool(tidy)]).ainvoke([tool_call("tidy")]))["messages"]
        assert answers[0].content == "tidy"


@pytest.mark.backends("asyncio")
async def test_a_task_that_was_there_before_the_batch_is_not_named() -> None:
    tasks.append(asyncio.create_task(forever()))
    await ToolNode([tool("work")(_work)]).ainvoke([tool_call("work")])
    await end_tasks()


async def _work() -> str:
    """Work."""
    await asyncio.sleep(0)
    return "done"


@pytest.mark.backends("asyncio")
async def test_a_task_of_an_actor_that_a_tool_asks_is_not_named() -> None:
    """Tasks of an actor may outlive the call that asked it."""

    class Keeper(Actor):
        @handler
        async def keep(self) -> str:
            """Start a task that goes on."""
            tasks.append(asyncio.create_task(forever()))
            return "kept"

    async with running(Keeper()) as keeper:

        async def ask() -> str:
            """Ask the actor."""
            return await keeper.keep()

        await ToolNode([tool(ask)]).ainvoke([tool_call("ask")])
        await end_tasks()


@pytest.mark.backends("asyncio")
async def test_a_task_of_a_task_group_around_the_batch_is_not_named() -> None:
    """The task group around the batch waits for its tasks, even if a tool started them."""
    async with asyncio.TaskGroup() as group, anyio.create_task_group() as anyio_group:

        async def begin() -> str:
            """Begin tasks in longer groups."""
            tasks.append(group.create_task(forever()))
            anyio_group.start_soon(forever)
            return "begun"

        await ToolNode([tool(begin)]).ainvoke([tool_call("begin")])
        await end_tasks()
        anyio_group.cancel_scope.cancel()
