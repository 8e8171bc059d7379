"""Workers that are replaced between calls, because of what calls have left in them."""

import anyio
import pytest

from callboard_actors.process import Processes

from . import _bodies as bodies
from ._processes import WAIT, confined_here

pytestmark = pytest.mark.real_clock


async def test_workers_are_replaced_after_so_many_calls() -> None:
    """For libraries that leak."""
    with anyio.fail_after(WAIT):
        async with Processes(workers=1, max_calls=2) as pool:
            pids = [await pool.run(bodies.pid) for _ in range(6)]

    assert pids[0::2] == pids[1::2]
    assert len(set(pids)) == 3


async def test_a_worker_that_has_grown_beyond_its_bound_is_replaced_after_the_call() -> None:
    """For libraries that leak: the call that it grew in has its result, and the next one has a slim worker."""
    with anyio.fail_after(WAIT):
        async with Processes(workers=1, max_resident=160 * 1024**2) as pool:
            slim = [await pool.run(bodies.hold, 1) for _ in range(2)]
            grown = [await pool.run(bodies.hold, 160) for _ in range(2)]

    assert len({*slim, grown[0]}) == 1
    assert grown[1] != grown[0]


async def test_a_worker_without_a_bound_may_grow() -> None:
    """It is only replaced where somebody has asked for that."""
    with anyio.fail_after(WAIT):
        async with Processes(workers=1) as pool:
            assert await pool.run(bodies.hold, 160) == await pool.run(bodies.pid)


async def test_a_confined_worker_that_has_grown_is_replaced_too() -> None:
    """Its size is looked up here; what it says itself would not be believed."""
    with anyio.fail_after(WAIT):
        async with Processes(workers=1, confine=confined_here(reuse=True), max_resident=160 * 1024**2) as pool:
            slim = [await pool.run(bodies.hold, 1) for _ in range(2)]
            grown = [await pool.run(bodies.hold, 160) for _ in range(2)]

    assert len({*slim, grown[0]}) == 1
    assert grown[1] != grown[0]
