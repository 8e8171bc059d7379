"""A small share of what is explored, always the same one; and the explorer finds what is wrong, or it is of no use."""

import gc
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from callboard.testing import backend_names

from . import WORLDS, _agents, _batches, _bodies, _fleets, _hostile, _kills, _nested, _seats
from ._defects import DEFECTS, Around, AsksOneByOne, ForgetsTheLedger, MixesAnswersUp
from ._explore import Failure, explore_one
from ._plans import homes_in, shrink, smaller_than, written
from ._watch import run_on

SHARE = {"batches": 80, "threads": 2, "agents": 8, "kills": 1, "hostile": 40, "seats": 2, "fleets": 2, "nested": 30}
"""Plans of each world; each is played on every backend."""
SEEDS = {AsksOneByOne: 438, MixesAnswersUp: 438, ForgetsTheLedger: 85}
"""Where it takes long to find a defect, which is where to look; the explorer itself has more time."""


@pytest.fixture(autouse=True, scope="module")
def _quick_collector() -> Iterator[None]:
    """What is imported is no litter of a plan: looking for that takes a millisecond then."""
    gc.freeze()
    yield
    gc.unfreeze()


SLOW = {"fleets": [pytest.mark.exhaustive]}
"""Worlds of which a plan takes seconds, because leases have to end."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW.get(name, [])) for name in WORLDS])
def test_a_share_of_what_is_explored_keeps_its_promises(name: str) -> None:
    """The same plans each time, so that nobody's change fails by chance."""
    world = WORLDS[name]

    found = [
        one for seed in range(SHARE[name]) for backend in world.backends if (one := explore_one(world, seed, backend))
    ]

    assert [one.script() for one in found] == []


def found_in(defect: type[Around], backend: str) -> Failure:
    """The first failure that a defect leads to, made smaller."""
    play = partial(_batches.play, make=defect)
    # Twice, because trio runs its tasks in any order, and some defects show in one of them only.
    world = replace(WORLDS["batches"], play=lambda plan, name: play(plan, name) or play(plan, name))
    for seed in range(first := SEEDS.get(defect, 0), first + 100):
        complaints = world.play(world.plan(seed), backend)
        if complaints and complaints[0].promise == DEFECTS[defect]:
            found = explore_one(world, seed, backend, most=150)
            assert found is not None
            return found
    raise AssertionError(f"{defect.__name__} was not found")


@pytest.mark.parametrize(
    ("defect", "backend"),
    [(defect, ("asyncio", "trio")[place % 2]) for place, defect in enumerate(DEFECTS)],
    ids=lambda one: one if isinstance(one, str) else one.__name__,
)
@pytest.mark.exhaustive
def test_a_defect_is_found_and_its_plan_made_small(defect: type[Around], backend: str) -> None:
    """Each by the promise that it breaks; what is left of the plan shows little but the defect."""
    found = found_in(defect, backend)

    assert found.complaints[0].promise == DEFECTS[defect]
    assert len(found.plan.calls) <= 2
    assert len(written(found.plan)) < 250
    assert _batches.play(found.plan, backend) == []


def test_a_plan_of_a_seed_is_always_the_same_and_comes_back_from_its_script() -> None:
    """Or nobody could see again what was found."""
    homes = {
        home.__name__.rpartition(".")[2]: vars(home)
        for home in (_agents, _batches, _bodies, _fleets, _hostile, _kills, _nested, _seats)
    }
    for world in WORLDS.values():
        for seed in range(30):
            plan = world.plan(seed)
            assert plan == world.plan(seed)
            known = {name: homes[home][name] for home, name in homes_in(plan)}
            assert eval(written(plan), known) == plan


@dataclass(frozen=True)
class Plan:
    """A plan about nothing."""

    numbers: tuple[int, ...]
    word: str = "none"
    inner: tuple["Plan", ...] = ()


def test_a_plan_is_made_as_small_as_what_it_shows() -> None:
    """Nothing is left that could be left out."""
    big = Plan((5, 7, 3, 9, 1), "word", (Plan((1, 2)), Plan((4,), "x", (Plan((7,)),))))

    def shows(plan: Plan) -> bool:
        return any(one > 6 for one in plan.numbers) and any(len(one.numbers) > 0 for one in plan.inner)

    smallest = shrink(big, shows)

    assert smallest in (Plan((7,), inner=(Plan((0,)),)), Plan((9,), inner=(Plan((0,)),)))
    assert not any(shows(one) for one in smaller_than(smallest))


@pytest.mark.parametrize("backend", backend_names())
def test_what_waits_for_ever_is_said_to(backend: str) -> None:
    """The explorer goes on."""

    async def wait() -> Any:
        import anyio

        await anyio.sleep_forever()

    assert [one.promise for one in run_on(backend, wait)] == ["it_ends"]


@pytest.mark.exhaustive
def test_a_failure_is_written_down_as_a_program_that_shows_it(tmp_path: Path) -> None:
    """It exits with 1 while it fails; the plan of this one keeps all promises, and so with 0."""
    world = WORLDS["batches"]
    found = Failure(world, 1, "trio", world.plan(1), [_batches.Complaint("no_task_is_left", 'of "these"')])
    script = tmp_path / "failure.py"
    script.write_text(found.script())

    done = subprocess.run([sys.executable, str(script)], check=False, capture_output=True, text=True)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
