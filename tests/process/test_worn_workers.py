"""Workers that are replaced between calls because of resources that earlier calls leaked."""

import pytest

from callboard_actors.process import Confine

from . import _bodies as bodies
from ._processes import confined_here, opened

pytestmark = pytest.mark.real_clock


async def test_workers_are_replaced_after_so_many_calls() -> None:
    """Regular replacement limits the harm of leaking libraries."""
    async with opened(max_calls=2) as pool:
        pids = [await pool.run(bodies.pid) for _ in range(6)]

    assert pids[0::2] == pids[1::2]
    assert len(set(pids)) == 3


@pytest.mark.parametrize("confine", [None, confined_here(reuse=True)], ids=["trusted", "confined"])
async def test_a_worker_that_has_grown_beyond_its_bound_is_replaced_after_the_call(confine: Confine | None) -> None:
    """The call that grew the worker still gets its result; the next one gets a new worker.

    The parent reads the size itself, because a confined worker's own report is not trusted.
    """
    async with opened(confine=confine, max_resident=160 * 1024**2) as pool:
        slim = [await pool.run(bodies.hold, 1) for _ in range(2)]
        grown = [await pool.run(bodies.hold, 160) for _ in range(2)]

    assert len({*slim, grown[0]}) == 1
    assert grown[1] != grown[0]


async def test_a_worker_without_a_bound_may_grow() -> None:
    """Workers are replaced by size only where a bound was set."""
    async with opened() as pool:
        assert await pool.run(bodies.hold, 160) == await pool.run(bodies.pid)
