"""Memory of a waiting call, and reference cycles of a batch.

A host of agents may hold very many calls. A garbage collection would stop
the event loop.
"""

import contextlib
import gc
from typing import Any

import anyio
import pytest
from langgraph.types import interrupt

from callboard import CallPolicy, CallsInterrupted, ToolNode, tool_call
from callboard.testing import calls
from tests.helpers import litter, measure_bytes

from ._weight import LIMITS

WAIT = 60
AT_MOST = 6 * 1024
"""Limit of a waiting call in bytes. A call of LangGraph takes 9.7 KB on asyncio."""


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.exhaustive
def test_a_waiting_call_weighs_at_most_6_kilobytes(backend: str, limit: str) -> None:
    """At this size 100,000 waiting calls need 600 MB, whether they wait in their bodies or for a place."""
    assert 0 < measure_bytes("tests.tools._weight", backend, limit) <= AT_MOST


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


def pass_on_from_a_thread(request: Any, call_next: Any) -> Any:
    """A sync middleware that does nothing."""
    return call_next(request)


TOOLS = [fine, slow, boom, approval]
POLICIES = {"slow": CallPolicy(timeout=2)}


async def cycles_of(node: ToolNode, name: str, count: int, *, raises: type[Exception] | None) -> list[str]:
    """Return the objects, by type, that only the collector can free after a batch. The first batch is a warm-up."""
    node_input = {"messages": [calls(*(tool_call(name, query="tea") for _ in range(count)))]}
    for _ in range(2):
        gc.collect()
        with contextlib.nullcontext() if raises is None else pytest.raises(raises):
            await node.ainvoke(node_input)
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
@pytest.mark.real_clock
@pytest.mark.backends("asyncio")  # errors of trio's own threads are in cycles
@pytest.mark.parametrize("name", ["fine", "boom"])
async def test_sync_middleware_leaves_nothing_in_cycles(name: str) -> None:
    """An error passes two futures between the thread of the middleware and the event loop, and these refer to it."""
    node = ToolNode(TOOLS, handle_tool_errors=True, policies=POLICIES, middleware=[pass_on_from_a_thread])
    assert await cycles_of(node, name, 5, raises=None) == []


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
