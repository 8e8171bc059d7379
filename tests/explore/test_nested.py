"""The explorer finds nested calls that wait for the places of their own outer calls."""

import pytest

from callboard._calls._call import Attempt

from . import WORLDS
from ._nested import Nest, Nested, play


def test_a_node_that_lends_no_places_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted defect: a nested call takes a place of its own at the limit that it shares with the outer call."""
    plan = Nest(batches=((Nested("red", (Nested("green"),)),),), width=1)
    assert play(plan, "asyncio") == []
    monkeypatch.setattr(Attempt, "lend", lambda self, identity: None)
    assert {one.promise for one in play(plan, "asyncio")} == {"one_limit_never_deadlocks"}


def test_nests_of_calls_at_one_limit_are_drawn() -> None:
    """A few seeds are enough to draw nested calls at a limit with fewer places than calls."""
    plans = [WORLDS["nested"].plan(seed) for seed in range(20)]
    assert any(plan.width == 1 and any(call.inner for batch in plan.batches for call in batch) for plan in plans)
