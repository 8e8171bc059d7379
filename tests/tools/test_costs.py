"""Cost of building a node, memory of a waiting call, and reference cycles of a batch.

Web servers build a node for each request. A host of agents may hold very many calls. A garbage collection would stop
the event loop.
"""

import contextlib
import gc
from collections.abc import Callable
from typing import Any

import anyio
import langgraph.prebuilt
import pytest
from langchain_core.tools import BaseTool, tool
from langgraph.types import interrupt

from callboard import CallPolicy, CallsInterrupted, ToolNode, create_react_agent
from callboard.testing import ScriptedModel, calls, tool_call
from tests.helpers import litter, weighed

from ._weight import LIMITS
from .test_unanswered import work_of

WAIT = 60
AT_MOST = 6 * 1024
"""Limit of a waiting call in bytes. A call of LangGraph takes 9.7 KB on asyncio."""


@tool
async def look_up(query: str) -> str:
    """Look something up."""
    return query


def work_of_building(build: Callable[[list[BaseTool]], object]) -> int:
    """Return how many functions run while a node of one tool is built, after one build as warm-up."""
    build([look_up])
    return work_of(lambda: build([look_up]), "call")


def test_building_a_node_takes_no_more_steps_than_langgraphs() -> None:
    """Signatures are inspected and threads prepared by the first call. Only mistakes are checked while building."""
    assert work_of_building(ToolNode) <= work_of_building(langgraph.prebuilt.ToolNode)


def run_of_node(count: int) -> None:
    """Run this many calls in a node."""
    anyio.run(ToolNode([look_up]).ainvoke, [tool_call("look_up", f"call_{n}", query="tea") for n in range(count)])


def run_of_agent(count: int) -> None:
    """Run an agent with this many calls in one reply."""
    replies = [[tool_call("look_up", f"call_{n}", query="tea") for n in range(count)], "Done."]
    anyio.run(create_react_agent(ScriptedModel(replies), [look_up]).ainvoke, {"messages": [("user", "go")]})


@pytest.mark.parametrize(("run", "limit"), [(run_of_node, 120), (run_of_agent, 167)])
def test_each_further_call_of_a_batch_takes_few_steps(run: Callable[[int], None], limit: int) -> None:
    """A step more for each call is hardly seen in a time, but twenty are. Steps are Python and C functions that run."""
    run(1)
    assert work_of(lambda: run(200)) - work_of(lambda: run(100)) <= limit * 100


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.exhaustive
def test_a_waiting_call_weighs_at_most_6_kilobytes(backend: str, limit: str) -> None:
    """At this size 100,000 waiting calls need 600 MB, whether they wait in their bodies or for a place."""
    assert 0 < weighed("tests.tools._weight", backend, limit) <= AT_MOST


async def fine(query: str) -> str:
    """Answer."""
    return query


async def slow(query: str) -> str:
    """Answer too late."""
    await anyio.sleep(30)
    return query


async def boom(query: str) -> str:
    """Fail."""
    raise RuntimeError(query)


async def approval(query: str) -> str:
    """Ask a person."""
    return str(interrupt(query))


async def pass_on(request: Any, call_next: Any) -> Any:
    """A middleware that does nothing."""
    return await call_next(request)


TOOLS = [fine, slow, boom, approval]
POLICIES = {"slow": CallPolicy(timeout=2)}


async def cycles_of(node: ToolNode, name: str, count: int, *, raises: type[Exception] | None) -> list[str]:
    """Return the objects, by type, that only the collector can free after a batch. The first batch is a warm-up."""
    given = {"messages": [calls(*(tool_call(name, query="tea") for _ in range(count)))]}
    for _ in range(2):
        gc.collect()
        with contextlib.nullcontext() if raises is None else pytest.raises(raises):
            await node.ainvoke(given)
    return litter()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.exhaustive), 5])
@pytest.mark.parametrize("middleware", [[], [pass_on, pass_on]], ids=["plain", "middleware"])
@pytest.mark.parametrize("name", ["fine", "slow", "boom", "approval", "nobody"])
async def test_a_batch_leaves_nothing_in_cycles(name: str, middleware: list[Any], count: int) -> None:
    """A call that succeeds, fails, times out, asks a person or names an unknown tool leaves no cycle."""
    node = ToolNode(TOOLS, handle_tool_errors=True, policies=POLICIES, middleware=middleware)
    with anyio.fail_after(WAIT * 4):
        raises = CallsInterrupted if name == "approval" else None
        assert await cycles_of(node, name, count, raises=raises) == []


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("on_error", ["cancel", "finish"])
@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.exhaustive), 5])
@pytest.mark.exhaustive
async def test_an_error_that_is_raised_leaves_nothing_in_cycles(on_error: Any, count: int) -> None:
    """The traceback of a raised error references all frames. They are freed when the caller has handled the error."""
    node = ToolNode(TOOLS, handle_tool_errors=False, on_error=on_error)
    raises = ExceptionGroup if on_error == "finish" and count > 1 else RuntimeError
    with anyio.fail_after(WAIT):
        assert await cycles_of(node, "boom", count, raises=raises) == []
