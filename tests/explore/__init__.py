"""Exploration: random batches, agents, kills and hostile ids on every backend, checked against the promises.

`uv run python -m tests.explore --minutes 10 --seed 1`. A plan is data that is drawn from a seed; a plan that
breaks a promise is shrunk and written as a script.
"""

from functools import partial
from typing import Any

from callboard.testing import backend_names

from . import _agents, _batches, _fleets, _hostile, _kills, _nested, _seats, _talks, _unstorable
from ._world import World

WORLDS = {
    world.name: world
    for world in (
        World("batches", _batches.draw, _batches.play, backend_names()),
        World("threads", partial(_batches.draw, threads=True), _batches.play, backend_names(real_clock=True)),
        World("agents", _agents.draw, _agents.play, backend_names()),
        World("kills", _kills.draw, _kills.play, ("asyncio", "trio")),
        World("nested", _nested.draw, _nested.play, backend_names()),
        World("talks", _talks.draw, _talks.play, ("asyncio", "trio")),
        *(
            World(f"talks on {database}", partial(_talks.draw, database=database), _talks.play, ("asyncio", "trio"))
            for database in ("sqlite", "postgresql")
        ),
        World("unstorable", _unstorable.draw, _unstorable.play, backend_names(real_clock=True)),
        World("hostile", _hostile.draw, _hostile.play, backend_names()),
        World("seats", _seats.draw, _seats.play, ("asyncio", "trio")),
        World("fleets", _fleets.draw, _fleets.play, ("asyncio", "trio")),
    )
}


def show(world: str, plan: Any, backend: str) -> int:
    """Play a plan, print its failures, and return 1 if there are any."""
    complaints = WORLDS[world].play(plan, backend)
    for complaint in complaints:
        print(complaint)
    return 1 if complaints else 0
