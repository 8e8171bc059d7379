"""Calls of a batch start in the order of the reply, on every path."""

import threading
from typing import Any

import anyio
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import BaseTool, tool
from langgraph.graph import START, MessagesState, StateGraph

from callboard import Limit, ToolNode, create_react_agent
from callboard._loops._threads import StartOrder
from callboard.testing import ScriptedModel, calls, tool_call

BATCHES = 100
WIDTH = 6


class Order:
    """Tools whose bodies record their number in the first line."""

    def __init__(self) -> None:
        self.started: list[int] = []

    def sync_tool(self) -> BaseTool:
        def work(number: int) -> str:
            """Note the number."""
            self.started.append(number)
            return str(number)

        return tool(work)

    def async_tool(self) -> BaseTool:
        async def work(number: int) -> str:
            """Note the number."""
            self.started.append(number)
            await anyio.lowlevel.checkpoint()
            return str(number)

        return tool(work)

    def batches_out_of_order(self) -> list[list[int]]:
        """Return the batches whose calls did not start in the order of the reply."""
        batches = [self.started[at : at + WIDTH] for at in range(0, len(self.started), WIDTH)]
        return [batch for batch in batches if batch != list(range(WIDTH))]


def _batch() -> list[Any]:
    return [tool_call("work", f"c{n}", number=n) for n in range(WIDTH)]


@pytest.mark.real_clock
async def test_sync_calls_start_in_the_order_of_the_reply() -> None:
    """Regression: idle threads were woken together, so in every second batch a later call started first."""
    order = Order()
    node = ToolNode([order.sync_tool()])
    with anyio.fail_after(60):
        for _ in range(BATCHES):
            await node.ainvoke(_batch())
    assert len(order.started) == BATCHES * WIDTH
    assert order.batches_out_of_order() == []


def test_sync_calls_start_in_the_order_of_the_reply_from_sync_code() -> None:
    """`invoke` keeps the same order."""
    order = Order()
    node = ToolNode([order.sync_tool()])
    for _ in range(BATCHES):
        node.invoke(_batch())
    assert order.batches_out_of_order() == []


@pytest.mark.real_clock
async def test_sync_calls_that_wait_for_a_limit_start_in_the_order_of_the_reply() -> None:
    """With two places, each later call starts after all calls before it."""
    order = Order()
    node = ToolNode([order.sync_tool()], limit=Limit(concurrency=2))
    with anyio.fail_after(60):
        for _ in range(BATCHES):
            await node.ainvoke(_batch())
    assert order.batches_out_of_order() == []


async def test_async_calls_start_in_the_order_of_the_reply() -> None:
    """trio runs ready tasks in any order, so the order must not depend on the scheduler."""
    order = Order()
    node = ToolNode([order.async_tool()])
    with anyio.fail_after(60):
        for _ in range(BATCHES):
            await node.ainvoke(_batch())
    assert order.batches_out_of_order() == []


@pytest.mark.real_clock
async def test_sync_calls_of_an_agent_start_in_the_order_of_the_reply() -> None:
    """An agent's loop starts calls on its own path, beside the node's."""
    order = Order()
    replies = [calls(*_batch()) for _ in range(20)]
    agent = create_react_agent(ScriptedModel([*replies, "done"]), [order.sync_tool()])
    with anyio.fail_after(60):
        await agent.ainvoke({"messages": [("user", "go")]}, {"recursion_limit": 100})
    assert len(order.started) == 20 * WIDTH
    assert order.batches_out_of_order() == []


def test_sync_calls_in_a_graph_of_langgraph_start_in_the_order_of_the_reply() -> None:
    """A compiled LangGraph graph, run by `invoke`, keeps the order."""
    order = Order()
    graph = StateGraph(MessagesState)
    graph.add_node("tools", ToolNode([order.sync_tool()]))
    graph.add_edge(START, "tools")
    compiled = graph.compile()
    for _ in range(20):
        compiled.invoke({"messages": [HumanMessage("go"), AIMessage("", tool_calls=_batch())]})
    assert len(order.started) == 20 * WIDTH
    assert order.batches_out_of_order() == []


@pytest.mark.real_clock
async def test_a_call_that_is_cancelled_before_it_begins_does_not_hold_those_after_it() -> None:
    """The cancelled call passes its ticket on, and the next batch starts at once, in order."""
    order = Order()
    node = ToolNode([order.sync_tool()])
    with anyio.fail_after(60):
        for _ in range(20):
            with anyio.CancelScope() as scope:
                scope.cancel()
                await node.ainvoke(_batch())
        del order.started[:]
        await node.ainvoke(_batch())
    assert order.batches_out_of_order() == []


def test_a_thread_waits_for_the_one_before_it_and_for_no_other() -> None:
    """Whichever thread runs first, the functions begin in the order of their tickets."""
    order, begun = StartOrder(), list[int]()
    tickets = [order.ticket() for _ in range(5)]

    def work(number: int) -> None:
        tickets[number].wait()
        begun.append(number)
        tickets[number].pass_on()

    threads = [threading.Thread(target=work, args=(number,)) for number in reversed(range(5))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert begun == [0, 1, 2, 3, 4]


def test_passed_tickets_are_not_kept() -> None:
    """A node runs any number of calls, so used tickets must be freed."""
    order = StartOrder()
    ticket = order.ticket()
    ticket.pass_on()
    for _ in range(3):
        ticket = order.ticket()
        ticket.wait()
        ticket.pass_on()
    assert ticket._before is None
