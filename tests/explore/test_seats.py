"""The explorer finds a pool that trusts the records of its confined workers."""

from typing import Any

import pytest

from callboard_actors.process._crew import Crew
from callboard_actors.process._worker_proxy import WorkerProxy

from . import WORLDS
from ._seats import Bodies, play, what_had_its_effect_is_not_said_to_be_unstarted

pytestmark = pytest.mark.real_clock


def test_a_pool_that_believes_its_confined_workers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted defect: the pool trusts the record in the worker, and not its own record of sent calls."""

    def believing(self: Any) -> WorkerProxy:
        return WorkerProxy(1024)

    plan = Bodies(("denies and exits",))
    assert play(plan, "asyncio") == []
    monkeypatch.setattr(Crew, "_new_worker", believing)
    assert [one.promise for one in play(plan, "asyncio")] == [what_had_its_effect_is_not_said_to_be_unstarted.__name__]


def test_seats_that_lie_are_drawn() -> None:
    """A few seeds are enough to draw each kind of lie, in seats and in the workers of a pool."""
    plans = [WORLDS["seats"].plan(seed) for seed in range(20)]
    lying = [plan for plan in plans if any("denies" in end for end in plan.ends)]
    assert {plan.seated for plan in lying} == {True, False}
