"""Middleware and stores with sync and async methods: the entry point of the call decides which is used."""

from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware
from langchain_core.tools import BaseTool
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from callboard import ToolNode, tool_call
from callboard.guards import Redact, StoreVault
from callboard.middleware import OutputBudget

pytestmark = pytest.mark.real_clock

CALL = [tool_call("double", "1", x=21)]


def double(x: int) -> int:
    """Twice as much."""
    return 2 * x


class Both:
    """User-defined middleware with both methods."""

    def __init__(self) -> None:
        self.halves: list[str] = []

    def wrap_tool_call(self, request: Any, execute: Any) -> Any:
        self.halves.append("sync")
        return execute(request)

    async def awrap_tool_call(self, request: Any, execute: Any) -> Any:
        self.halves.append("async")
        return await execute(request)


class OfLangChain(Both, AgentMiddleware):
    """LangChain middleware with both methods."""


class OnlyInName(Both):
    """Middleware with a sync method that only raises, as a base class may require."""

    def wrap_tool_call(self, request: Any, execute: Any) -> Any:
        raise NotImplementedError("await it")


@pytest.mark.parametrize("middleware", [Both, OfLangChain])
async def test_a_middleware_with_both_halves_is_entered_as_its_node_was(middleware: Any) -> None:
    """Sync methods may hold a thread lock and async ones a client of the event loop, so the entry point must decide."""
    instance = middleware()
    node = ToolNode([double], middleware=[instance])
    await node.ainvoke(CALL)
    node.invoke(CALL)
    await node.ainvoke(CALL)
    assert instance.halves == ["async", "sync", "async"]


def test_a_half_that_only_raises_is_none() -> None:
    """LangGraph's default method raises `NotImplementedError`. The other method is used instead."""
    middleware = OnlyInName()

    class AsyncOnly(BaseTool):
        name: str = "double"
        description: str = "Twice as much."

        def _run(self, x: int) -> int:
            raise NotImplementedError("use ainvoke")

        async def _arun(self, x: int) -> int:
            return 2 * x

    output = ToolNode([AsyncOnly()], middleware=[middleware]).invoke(CALL)

    assert output["messages"][0].content == "42"
    assert middleware.halves == ["async"]


class TwoHalves(BaseStore):
    """Store that records which of its methods were called."""

    def __init__(self) -> None:
        self.inner = InMemoryStore()
        self.halves: set[str] = set()

    def batch(self, ops: Any) -> Any:
        self.halves.add("sync")
        return self.inner.batch(ops)

    async def abatch(self, ops: Any) -> Any:
        self.halves.add("async")
        return self.inner.batch(ops)


def long() -> str:
    """Much."""
    return "me@example.com " * 1000


class OnlySync(TwoHalves):
    async def abatch(self, ops: Any) -> Any:
        raise NotImplementedError


async def test_a_vault_in_a_store_of_one_half_works() -> None:
    """A store of a user may implement only one half."""
    redact = Redact(["email"], vault=StoreVault(OnlySync()))
    hidden = await redact.hide("me@example.com")
    assert (hidden.startswith("<email:"), await redact.restore(hidden)) == (True, "me@example.com")


@pytest.mark.backends("asyncio")
@pytest.mark.parametrize(
    "middleware",
    [lambda store: OutputBudget(10, store=store), lambda store: Redact(reveal=["long"], vault=StoreVault(store))],
    ids=["OutputBudget", "the vault of Redact"],
)
async def test_middleware_asks_a_store_by_the_door_of_their_call(middleware: Any) -> None:
    """A store's connection belongs to sync code or to the event loop, so middleware uses the matching methods."""
    call = [tool_call("long", "1")]
    for halves in ("sync", "async"):
        store = TwoHalves()
        node = ToolNode([long], middleware=[middleware(store)])
        if halves == "sync":
            node.invoke(call)
        else:
            await node.ainvoke(call)
        assert store.halves == {halves}
