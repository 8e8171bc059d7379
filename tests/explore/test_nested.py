"""The explorer finds a node whose nested calls wait for the places of the calls around them."""

import pytest

from callboard._calls._attempt import Attempt

from . import WORLDS
from ._nested import Nest, Nested, play


def test_a_node_that_lends_no_places_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted defect: a call within a call takes a place of its own at the limit that both share."""
    plan = Nest(batches=((Nested("red", (Nested("green"),)),),), width=1)
    assert play(plan, "asyncio") == []
    monkeypatch.setattr(Attempt, "lend", lambda self, identity: None)
    assert {one.promise for one in play(plan, "asyncio")} == {"one_limit_never_deadlocks"}


def test_nests_of_calls_at_one_limit_are_drawn() -> None:
    """Within few seeds: calls that run calls, at a limit with fewer places than there are calls."""
    plans = [WORLDS["nested"].plan(seed) for seed in range(20)]
    assert any(plan.width == 1 and any(call.inner for batch in plan.batches for call in batch) for plan in plans)
