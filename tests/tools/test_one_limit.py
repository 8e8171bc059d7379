"""One `Limit` object is one limit, wherever it is given; equal objects and copies are limits of their own."""

import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import anyio
import pytest

from callboard import CallPolicy, Limit, Rate, ToolNode, create_react_agent, tool_call
from callboard.testing import Recorder, ScriptedModel, calls
from tests.helpers import run_in_threads

WAIT = 30.0


def batch(*names: str) -> list[Any]:
    return [tool_call(name, f"c{number}") for number, name in enumerate(names)]


async def run_together(*nodes_and_names: tuple[ToolNode, list[str]]) -> None:
    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            for node, names in nodes_and_names:
                group.start_soon(node.ainvoke, batch(*names))


async def test_tools_with_one_policy_share_its_limit() -> None:
    recorder, policy, names = Recorder(), CallPolicy(limit=Limit(concurrency=2)), ["a", "b", "c", "d"]
    tools = [recorder.tool(name, seconds=1.0) for name in names]

    await run_together((ToolNode(tools, policies=dict.fromkeys(names, policy)), names))

    assert recorder.peak == 2


async def test_nodes_with_one_limit_share_it() -> None:
    recorder, limit = Recorder(), Limit(concurrency=2)
    nodes = [ToolNode([recorder.tool("work", seconds=1.0)], limit=limit) for _ in range(3)]

    await run_together(*((node, ["work"] * 3) for node in nodes))

    assert recorder.peak == 2
    assert recorder.count("finished") == 9


async def test_a_tool_and_its_node_with_one_limit_take_one_permit() -> None:
    recorder, limit = Recorder(), Limit(concurrency=1)
    policies = {"work": CallPolicy(limit=limit)}

    await run_together((ToolNode([recorder.tool("work", seconds=1.0)], limit=limit, policies=policies), ["work"] * 3))

    assert (recorder.peak, recorder.count("finished")) == (1, 3)


@pytest.mark.parametrize(
    "duplicate",
    [replace, copy.copy, copy.deepcopy, lambda limit: pickle.loads(pickle.dumps(limit)), lambda _: Limit(1)],
    ids=["replace", "copy", "deepcopy", "pickle", "equal"],
)
async def test_a_copy_is_a_limit_of_its_own(duplicate: Callable[[Limit], Limit]) -> None:
    recorder, limit = Recorder(), Limit(1)
    limit_copy = duplicate(limit)
    nodes = [ToolNode([recorder.tool("work", seconds=1.0)], limit=item) for item in (limit, limit_copy)]

    await run_together(*((node, ["work"] * 2) for node in nodes))

    assert limit_copy == limit
    assert recorder.peak == 2


async def test_a_copied_node_has_limits_of_its_own() -> None:
    recorder = Recorder()
    node = ToolNode([recorder.tool("work", seconds=1.0)], limit=Limit(1))

    await run_together((node, ["work"] * 2), (copy.deepcopy(node), ["work"] * 2))

    assert recorder.peak == 2


async def test_each_key_is_shared() -> None:
    recorder, limit = Recorder(), Limit(1, key=lambda call: call["args"]["query"])
    nodes = [ToolNode([recorder.tool("work", seconds=1.0)], limit=limit) for _ in range(2)]
    requests = [tool_call("work", f"c{number}", query=key) for number, key in enumerate("aabb")]
    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            for node in nodes:
                group.start_soon(node.ainvoke, requests)

    assert recorder.peak == 2
    assert recorder.peak_of(query="a") == 1


async def test_a_rate_outlasts_the_nodes_that_have_it() -> None:
    """A service may make a node for each request."""
    limit, starts = Limit(rate=Rate(2, per=60.0)), []

    async def work() -> str:
        """Work."""
        starts.append(anyio.current_time())
        return ""

    with anyio.fail_after(1000):
        for _ in range(6):
            await ToolNode([work], limit=limit).ainvoke(batch("work"))
            gc.collect()

    assert [round(start - starts[0]) for start in starts] == [0, 0, 60, 60, 120, 120]


@pytest.mark.real_clock
async def test_a_sub_agent_with_the_limit_of_its_parent_goes_on() -> None:
    recorder, limit = Recorder(), Limit(concurrency=1)
    inner = create_react_agent(
        ScriptedModel([calls("look", "look"), "found"], loop=True), ToolNode([recorder.tool("look")], limit=limit)
    )

    async def ask() -> str:
        """Ask the sub-agent."""
        return (await inner.ainvoke({"messages": [("user", "go")]}))["messages"][-1].text

    outer = create_react_agent(ScriptedModel([calls("ask", "ask"), "done"]), ToolNode([ask], limit=limit))
    state = await outer.ainvoke({"messages": [("user", "go")]})

    assert [message.text for message in state["messages"][2:4]] == ["found", "found"]
    assert (recorder.peak, recorder.count("finished")) == (1, 4)


@pytest.mark.real_clock
def test_event_loops_in_two_threads_share_it() -> None:
    running, peak, limit, lock = [0], [0], Limit(concurrency=1), threading.Lock()

    async def work() -> str:
        """Work."""
        with lock:
            running[0] += 1
            peak[0] = max(peak[0], running[0])
        await anyio.sleep(0.001)
        with lock:
            running[0] -= 1
        return ""

    def run(backend: str) -> None:
        anyio.run(ToolNode([work], limit=limit).ainvoke, batch(*["work"] * 20), backend=backend)

    run_in_threads(*(threading.Thread(target=run, args=(backend,)) for backend in ("asyncio", "trio", "asyncio")))
    assert peak == [1]


async def test_a_rejection_names_what_has_the_limit() -> None:
    limit = Limit(concurrency=1, queue=0)
    names = ["a", "b", "c", "d"]
    node = ToolNode(
        [Recorder().tool(name, seconds=1.0) for name in names], policies=dict.fromkeys(names, CallPolicy(limit=limit))
    )
    with anyio.fail_after(WAIT):
        messages = (await node.ainvoke(batch("a", "b")))["messages"]

    assert "the queue of tool 'a', tool 'b', tool 'c' and others is full: 1 of 1 run" in messages[1].text


def test_nothing_keeps_a_limit_that_nobody_has() -> None:
    limit = Limit(1)
    node = ToolNode([Recorder().tool("work")], limit=limit)
    limit_ref = weakref.ref(limit)

    del limit, node
    gc.collect()

    assert limit_ref() is None
