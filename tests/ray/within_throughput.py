"""Throughput of one and of two cluster nodes; reported, without a threshold; run by `tests.ray`."""

import os
import time
from typing import Any

import anyio
import pytest

import tests.ray._tools as tools  # absolute import, because Ray workers import the module by this name
from callboard import CallPolicy, ToolNode
from callboard.testing import calls

from .within_faults import WAIT, engine, second_node

pytestmark = [pytest.mark.real_clock, pytest.mark.exhaustive]

_PLACES = 4
"""Slots of a cluster node."""


@pytest.mark.parametrize(("seconds", "count"), [(0.05, 400), (0.0, 1_000)])
async def test_throughput_of_one_node_and_of_two(
    cluster: Any, capsys: pytest.CaptureFixture[str], seconds: float, count: int
) -> None:
    """Calls that wait have twice the slots on two nodes; empty calls are bound by the process that sends them."""
    with anyio.fail_after(WAIT):
        one = await _calls_each_second(seconds, count, workers=_PLACES)
        async with second_node(cluster):
            two = await _calls_each_second(seconds, count, workers=2 * _PLACES)
    with capsys.disabled():
        print(f"\nbodies of {seconds * 1e3:g} ms, calls a second: {one:.0f} on a node, {two:.0f} on two")


async def _calls_each_second(seconds: float, count: int, *, workers: int) -> float:
    async with engine(workers=workers) as ours:
        node = ToolNode([tools.pause], policies={"pause": CallPolicy(runs_in=ours)}, max_calls=count)
        await node.ainvoke([calls(*[("pause", {"seconds": 0.0})] * workers)])
        began = time.perf_counter()
        messages = await node.ainvoke([calls(*[("pause", {"seconds": seconds})] * count)])
        taken = time.perf_counter() - began
    assert {message.status for message in messages} == {"success"}
    places = {int(str(message.content)) for message in messages}
    assert len(places) == workers
    assert os.getpid() not in places
    return count / taken
