"""Memory of an idle actor, and the reference cycles that an ask leaves to the garbage collector."""

import contextlib
import gc

import anyio
import pytest

from callboard import ToolNode, running
from callboard.testing import calls, tool_call
from tests.helpers import litter, weighed

from ._weight import KINDS, Desk

pytestmark = pytest.mark.hangs_after(120)
AT_MOST = 10 * 1024
"""Limit in bytes."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.exhaustive
def test_an_idle_actor_weighs_at_most_10_kilobytes(backend: str, kind: str) -> None:
    assert 0 < weighed("tests.actors._weight", backend, kind) <= AT_MOST


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
    given = {"messages": [calls(*(tool_call(name, query="tea") for name in names))]}
    async with ToolNode([Desk()], handle_tool_errors=True) as node:
        for _ in range(2):
            gc.collect()
            await node.ainvoke(given)
        assert litter() == []
