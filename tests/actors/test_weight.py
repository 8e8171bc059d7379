"""Memory of an idle actor, and the reference cycles that an ask leaves to the garbage collector."""

import contextlib
import gc
from typing import Any

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
@pytest.mark.parametrize("name", ["work", "read", "later", "fail"])
async def test_an_ask_leaves_nothing_in_cycles(name: str) -> None:
    async with running(Desk) as desk:
        for _ in range(2):  # warm-up
            gc.collect()
            for _ in range(5):
                with pytest.raises(ValueError) if name == "fail" else contextlib.nullcontext():
                    await getattr(desk, name)("tea")
        assert litter() == []


@pytest.mark.usefixtures("no_collector")
async def test_an_ask_that_is_cancelled_leaves_nothing_in_cycles() -> None:
    async def give_up(desk: Any) -> None:
        with anyio.move_on_after(1):
            await desk.slow("tea")

    async with running(Desk) as desk:
        for _ in range(2):
            gc.collect()
            await give_up(desk)
        assert litter() == []


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("name", ["work", "later", "fail"])
async def test_a_batch_of_an_actors_tools_leaves_nothing_in_cycles(name: str) -> None:
    given = {"messages": [calls(*(tool_call(name, query="tea") for _ in range(5)))]}
    async with ToolNode([Desk()], handle_tool_errors=True) as node:
        for _ in range(2):
            gc.collect()
            await node.ainvoke(given)
        assert litter() == []
