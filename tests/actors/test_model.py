"""Many ask an actor, at random; it is killed and restarted, and every one of them learns what came of it."""

import anyio
import pytest
from hypothesis import given, settings

from ._world import Plan, World, plans

WAIT = 1000


@given(plan=plans)
@settings(max_examples=60)
async def test_each_ask_comes_to_one_end_whatever_happens_to_the_actor(plan: Plan) -> None:
    """None is lost or handled twice, each has its turn, no group has too many, and restarts are counted."""
    with anyio.fail_after(WAIT):
        assert await World(plan).play() == []


@pytest.mark.exhaustive
@given(plan=plans)
@settings(max_examples=3000)
async def test_each_of_thousands_of_plans_comes_to_an_end(plan: Plan) -> None:
    """What is seldom, too."""
    with anyio.fail_after(WAIT):
        assert await World(plan).play() == []
