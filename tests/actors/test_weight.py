"""Reference cycles that an ask would leave to the garbage collector."""

import contextlib
import gc

import anyio
import pytest

from callboard import Actor, Reply, ToolNode, handler, running, tool_call
from callboard.testing import calls
from tests.helpers import litter

pytestmark = pytest.mark.hangs_after(120)


class Desk(Actor):
    """Handlers of every kind."""

    @handler
    async def work(self, query: str) -> str:
        """Answer."""
        return query

    @handler(group="reads")
    async def read(self, query: str) -> str:
        """Answer, beside others."""
        return query

    @handler(deferred=True)
    async def later(self, reply: Reply[str], query: str) -> None:
        """Answer by a reply."""
        reply.send(query)

    @handler
    async def fail(self, query: str) -> str:
        """Fail."""
        raise ValueError(query)

    @handler
    async def slow(self, query: str) -> str:
        """Answer too late."""
        await anyio.sleep(30)
        return query


@pytest.mark.usefixtures("no_collector")
async def test_an_ask_leaves_nothing_in_cycles_also_if_it_fails_or_is_cancelled() -> None:
    async with running(Desk) as desk:
        for _ in range(2):  # warm-up
            gc.collect()
            for name in ("work", "read", "later", "fail", "slow"):
                for _ in range(5):
                    with pytest.raises(ValueError) if name == "fail" else contextlib.nullcontext():
                        with anyio.move_on_after(1):
                            await getattr(desk, name)("tea")
        assert litter() == []


@pytest.mark.usefixtures("no_collector")
async def test_a_batch_of_an_actors_tools_leaves_nothing_in_cycles() -> None:
    names = [name for name in ("work", "later", "fail") for _ in range(5)]
    node_input = {"messages": [calls(*(tool_call(name, query="tea") for name in names))]}
    async with ToolNode([Desk()], handle_tool_errors=True) as node:
        for _ in range(2):
            gc.collect()
            await node.ainvoke(node_input)
        assert litter() == []
