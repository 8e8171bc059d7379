"""Calls of a batch start in the order of the reply, on every path."""

import gc
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import BaseTool
from langgraph.graph import START, MessagesState, StateGraph

from callboard import Limit, ToolNode, create_react_agent, tool_call
from callboard.testing import ScriptedModel, calls
from tests.helpers import make, make_sync

BATCHES = 100
WIDTH = 6


class Order:
    """Tools whose bodies record their number in the first line."""

    def __init__(self) -> None:
        self.started: list[int] = []

    def sync_tool(self) -> BaseTool:
        def work(number: int) -> str:
            self.started.append(number)
            return str(number)

        return make_sync(work)

    def async_tool(self) -> BaseTool:
        async def work(number: int) -> str:
            self.started.append(number)
            await anyio.lowlevel.checkpoint()
            return str(number)

        return make(work)

    def batches(self) -> list[list[int]]:
        """Return the numbers in the order in which their calls started, by batch."""
        return [self.started[start : start + WIDTH] for start in range(0, len(self.started), WIDTH)]


def _batch() -> list[Any]:
    return [tool_call("work", f"c{n}", number=n) for n in range(WIDTH)]


IN_ORDER = [*range(WIDTH)]


@pytest.mark.real_clock
@pytest.mark.parametrize("limit", [None, Limit(concurrency=2)], ids=["free", "limited"])
@pytest.mark.parametrize("make", [Order.sync_tool, Order.async_tool])
async def test_calls_start_in_the_order_of_the_reply(make: Callable[[Order], BaseTool], limit: Limit | None) -> None:
    """Regression: idle threads were woken together, so in every second batch a later call started first.

    trio runs ready tasks in any order, so the order must not depend on the scheduler.
    """
    order = Order()
    node = ToolNode([make(order)], limit=limit)
    for _ in range(BATCHES):
        await node.ainvoke(_batch())
    assert order.batches() == [IN_ORDER] * BATCHES


def by_node(body: BaseTool) -> None:
    node = ToolNode([body])
    for _ in range(20):
        node.invoke(_batch())


def by_graph(body: BaseTool) -> None:
    compiled = StateGraph(MessagesState).add_node("tools", ToolNode([body])).add_edge(START, "tools").compile()
    for _ in range(20):
        compiled.invoke({"messages": [HumanMessage("go"), AIMessage("", tool_calls=_batch())]})


def by_agent(body: BaseTool) -> None:
    agent = create_react_agent(ScriptedModel([*(calls(*_batch()) for _ in range(20)), "done"]), [body])
    agent.invoke({"messages": [("user", "go")]}, {"recursion_limit": 100})


@pytest.mark.parametrize("run", [by_node, by_graph, by_agent])
def test_sync_calls_start_in_the_order_of_the_reply_by_every_door(run: Callable[[BaseTool], None]) -> None:
    """An agent's loop starts calls on its own path, beside the node's."""
    order = Order()
    run(order.sync_tool())
    assert order.batches() == [IN_ORDER] * 20


@pytest.mark.real_clock
async def test_a_call_that_is_cancelled_before_it_begins_does_not_hold_those_after_it() -> None:
    """The cancelled call passes its ticket on, and the next batch starts at once, in order."""
    order = Order()
    node = ToolNode([order.sync_tool()])
    for _ in range(20):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await node.ainvoke(_batch())
    del order.started[:]
    await node.ainvoke(_batch())
    assert order.batches() == [IN_ORDER]


@pytest.mark.real_clock
async def test_passed_tickets_are_not_kept() -> None:
    """A node runs any number of calls, so used tickets must be freed."""

    def count_tickets() -> int:
        gc.collect()
        return sum(type(item).__name__ == "Ticket" for item in gc.get_objects())

    node = ToolNode([Order().sync_tool()])
    before = count_tickets()
    for _ in range(20):
        await node.ainvoke(_batch())
    # The last ticket stays for its successor, and a thread that returns its result just now still has its own.
    assert count_tickets() <= before + 1 + WIDTH
