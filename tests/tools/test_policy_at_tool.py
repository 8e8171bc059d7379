"""Policies that stand at tools: `@CallPolicy(...)` over a function, a LangChain tool, or a handler of an actor."""

import functools
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest
from langchain.agents import create_agent as langchains_agent
from langchain_core.tools import BaseTool, tool

from callboard import Actor, CallPolicy, Limit, ToolNode, create_agent, create_react_agent, handler, tool_call
from callboard.middleware import Supervise
from callboard.testing import ScriptedModel, calls
from callboard.tools._supervision import Supervision
from tests.helpers import ask, ending_of, run_in_threads

WAIT = 20


@CallPolicy(timeout=0.05)
async def slow() -> str:
    """Wait for ever."""
    await anyio.sleep_forever()
    return ""


@CallPolicy(timeout=0.05)
@tool
async def slow_tool() -> str:
    """Wait for ever."""
    await anyio.sleep_forever()
    return ""


@tool
@functools.wraps(slow)
async def wrapped() -> str:
    return await slow()


@CallPolicy(timeout=0.05)
def read() -> str:
    """Read for a second, in a thread."""
    threading.Event().wait(1)
    return ""


class Clerk(Actor):
    """Actor with a slow handler."""

    @CallPolicy(timeout=0.05)
    @handler
    async def outside(self) -> str:
        """Wait for ever."""
        await anyio.sleep_forever()
        return ""

    @handler
    @CallPolicy(timeout=0.05)
    async def inside(self) -> str:
        """Wait for ever."""
        await anyio.sleep_forever()
        return ""


async def end_of(node: ToolNode, name: str) -> object:
    with anyio.fail_after(WAIT):
        [message] = await node.ainvoke(ask(name))
    return ending_of(message)


@pytest.mark.parametrize("tool_function", [slow, slow_tool, wrapped])
async def test_a_tool_runs_under_the_policy_that_stands_at_it(tool_function: Any) -> None:
    node = ToolNode([tool_function])
    assert await end_of(node, next(iter(node.tools_by_name))) == "timeout"


@pytest.mark.parametrize("name", ["outside", "inside"])
async def test_a_handler_runs_under_the_policy_that_stands_at_it(name: str) -> None:
    node = ToolNode([Clerk()])
    [full] = [tool_name for tool_name in node.tools_by_name if tool_name.endswith(name)]
    assert await end_of(node, full) == "timeout"


async def test_a_policy_by_name_replaces_the_one_at_the_tool() -> None:
    """As a whole: what the policy by name leaves out comes from the node."""

    @CallPolicy(timeout=0.05)
    async def late() -> str:
        """Return after the timeout."""
        await anyio.sleep(0.1)
        return "done"

    assert await end_of(ToolNode([late]), "late") == "timeout"
    assert await end_of(ToolNode([late], policies={"late": CallPolicy(timeout=WAIT)}), "late") is None


async def test_a_tool_keeps_its_options_and_takes_the_others_from_the_node() -> None:
    @CallPolicy(idempotent=True)
    async def forever() -> str:
        """Wait for ever."""
        await anyio.sleep_forever()
        return ""

    assert await end_of(ToolNode([forever], timeout=0.05), "forever") == "timeout"


async def test_all_nodes_of_a_tool_share_the_limit_of_its_policy() -> None:
    running: list[int] = []
    counts: list[int] = []

    @CallPolicy(limit=Limit(concurrency=2))
    async def count() -> str:
        """Count the calls that run."""
        running.append(1)
        counts.append(len(running))
        await anyio.sleep(0.01)
        running.pop()
        return ""

    async def run() -> None:
        await ToolNode([count]).ainvoke(ask(*["count"] * 6))

    with anyio.fail_after(WAIT):
        await run()
        assert max(counts) == 2
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            tasks.start_soon(run)
    assert max(counts) == 2


@pytest.mark.real_clock
@pytest.mark.parametrize("make", [create_react_agent, create_agent])
async def test_the_calls_of_agents_run_under_it(make: Callable[..., Any]) -> None:
    agent = make(ScriptedModel([calls("slow"), "done"]), [slow])
    state = await agent.ainvoke({"messages": [("user", "go")]})
    assert ending_of(state["messages"][2]) == "timeout"


def test_the_calls_of_langchains_agent_run_under_it() -> None:
    agent: Any = langchains_agent(ScriptedModel([calls("read"), "done"]), [read], middleware=[Supervise()])
    state = agent.invoke({"messages": [("user", "go")]})
    assert ending_of(state["messages"][2]) == "timeout"


def test_threads_that_meet_a_tool_first_at_the_same_time_share_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Supervise` learns the tools of an agent in its first calls."""
    supervision = Supervision("Supervise", "the agent", timeout=None, limit=None, policies=None, grace=5.0)
    together, limiters = threading.Barrier(2), list[object]()

    def slowly(tool: Any) -> CallPolicy:
        with suppress(threading.BrokenBarrierError):
            together.wait(0.2)  # both are here, unless one waits for the other
        return CallPolicy(limit=Limit(concurrency=1))

    def meet() -> None:
        supervision.adopt([slow_tool])
        limiters.append(supervision.limiters["slow_tool"])

    monkeypatch.setattr("callboard.tools._supervision.policy_of", slowly)
    run_in_threads(*(threading.Thread(target=meet) for _ in range(2)))
    assert limiters[0] is limiters[1]


class Plain(BaseTool):
    """LangChain tool without a function."""

    name: str = "plain"
    description: str = "Do nothing."

    def _run(self) -> str:
        return ""


@pytest.mark.parametrize("subject", [Plain(), 3, "search", tool_call("search")])
def test_what_has_no_function_is_refused_with_the_remedy(subject: Any) -> None:

    with pytest.raises(TypeError, match=r"policies={'name': CallPolicy\(...\)}"):
        CallPolicy(timeout=1)(subject)


def test_a_policy_at_a_tool_of_a_number_that_looks_like_milliseconds_is_warned_about() -> None:
    @CallPolicy(timeout=30_000)
    def read() -> str:
        """Read."""
        return ""

    with pytest.warns(UserWarning, match="tool 'read'"):
        ToolNode([read])
