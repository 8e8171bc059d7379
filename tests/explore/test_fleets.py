"""The explorer finds owners that run handlers beyond their lease."""

import pytest

from callboard_actors._server.fleet._lease import Lease

from . import WORLDS
from ._fleets import Rolling, Step, one_owner_acts_at_a_time, play

pytestmark = pytest.mark.real_clock


@pytest.mark.exhaustive
def test_an_owner_that_does_not_look_at_its_lease_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted defect: a process that paused beyond its lease lets its handler continue."""
    plan = Rolling((Step("ask", 0, "a", 3.0), Step("stop", 0), Step("ask", 1, "a")))
    assert play(plan, "asyncio") == []
    monkeypatch.setattr(Lease, "safe_for", lambda self: 1.0)
    assert one_owner_acts_at_a_time.__name__ in {one.promise for one in play(plan, "asyncio")}


def test_owners_that_drain_leave_and_stop_while_they_are_asked_are_drawn() -> None:
    """A few seeds are enough to draw each of these events."""
    steps = {step.what for seed in range(20) for step in WORLDS["fleets"].plan(seed).steps}
    assert steps == {"ask", "drain", "leave", "stop"}
