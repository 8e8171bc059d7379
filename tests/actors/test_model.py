"""Random plans with deaths and restarts, in which every ask must end with a result or an error."""

import pytest
from hypothesis import example, given

from tests.helpers import examples_at_length

from ._keyed_promises import broken_promises
from ._keyed_world import KeyedWorld, keyed_plans
from ._keyed_world import Plan as KeyedPlan
from ._tree_model import Model
from ._tree_world import Branch, Death, Leaf, TreeWorld, tree_plans
from ._tree_world import Plan as TreePlan
from ._world import Plan, World, plans

pytestmark = pytest.mark.hangs_after(1000)


@given(plan=plans)
@examples_at_length(3000)
async def test_each_ask_comes_to_one_end_whatever_happens_to_the_actor(plan: Plan) -> None:
    assert await World(plan).play() == []


@given(plan=keyed_plans)
@examples_at_length(1000)
async def test_each_key_has_one_actor_which_goes_on_from_what_was_saved_last(plan: KeyedPlan) -> None:
    world = KeyedWorld(plan)
    assert await world.play() == []
    assert broken_promises(world) == []


TRIED_TWICE = TreePlan(
    Branch(
        [
            Leaf(name="a"),
            Leaf("permanent", name="b"),
            Branch(
                [
                    Leaf(name="ca"),
                    Leaf(later=["fails", "fails", "starts"], name="cb"),
                    Branch([Leaf(name="cca")], intensity=3, period=5.29, name="cc"),
                    Leaf(later=["fails"], name="cd"),
                ],
                intensity=2,
                period=30.29,
                name="c",
            ),
        ],
        strategy="rest_for_one",
        intensity=3,
        period=1.29,
    ),
    [Death(1, 2, "y"), Death(3, 9), Death(4, 1)],
)
"""A branch fails when it is started with others, while a restart of its own is still due."""


def assert_same(actual: list[tuple[float, str]], expected: list[tuple[float, str]]) -> None:
    """Compare events and their order, and their times rounded to milliseconds."""
    assert [event for _, event in actual] == [event for _, event in expected]
    assert [when for when, _ in actual] == pytest.approx([when for when, _ in expected], rel=0, abs=0.0011)


@given(plan=tree_plans)
@examples_at_length(1000)
@example(plan=TRIED_TWICE)
async def test_a_tree_of_supervisors_starts_and_stops_whom_otp_would(plan: TreePlan) -> None:
    world = TreeWorld(plan)
    assert await world.play() == []
    assert_same(world.events, Model(plan).events)
