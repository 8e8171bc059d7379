"""The explorer: draw plans, play them, shrink failing plans, and write them down."""

import gc
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ._plans import homes_in, shrink, written
from ._watch import Complaint
from ._world import World

ROOT = Path(__file__).parents[2]

SCRIPT = '''\
"""{complaint}

World {world}, seed {seed}, backend {backend}. Run it; it exits with 1 as long as it fails.
"""

import sys

sys.path.insert(0, {root!r})

from tests.explore import show
{imports}

PLAN = {plan}

if __name__ == "__main__":
    sys.exit(show({world!r}, PLAN, {backend!r}))
'''


@dataclass(frozen=True)
class Failure:
    """A plan that broke a promise, shrunk as far as possible."""

    world: World
    seed: int
    backend: str
    plan: Any
    complaints: Sequence[Complaint]

    def script(self) -> str:
        """Return a program that reproduces the failure."""
        return SCRIPT.format(
            complaint=_line(self.complaints[0]),
            world=self.world.name,
            seed=self.seed,
            backend=self.backend,
            root=str(ROOT),
            imports="\n".join(f"from tests.explore.{home} import {name}" for home, name in sorted(homes_in(self.plan))),
            plan=written(self.plan),
        )


def _line(complaint: Complaint) -> str:
    return str(complaint).replace("\\", "/").replace('"""', "'''").replace("\n", " ")[:300]


def explore_one(world: World, seed: int, backend: str, most: int = 300) -> Failure | None:
    """Play the plan of a seed; if it breaks a promise, find a smaller plan that breaks the same one."""
    plan = world.plan(seed)
    complaints = world.play(plan, backend)
    if not complaints:
        return None
    promise = complaints[0].promise

    def fails(smaller: Any) -> bool:
        return any(complaint.promise == promise for complaint in world.play(smaller, backend))

    smallest = shrink(plan, fails, most)
    remaining = [complaint for complaint in world.play(smallest, backend) if complaint.promise == promise]
    return Failure(world, seed, backend, smallest, remaining or complaints)


@dataclass
class Tally:
    """Number and speed of the plans that were played."""

    plans: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.plans} plans, {self.plans / max(self.seconds, 1e-9):.0f}/s"


def explore(worlds: Sequence[World], seed: int, seconds: float, backends: Sequence[str]) -> Iterator[Failure]:
    """Play plans of all worlds in turn on all backends for some seconds; report progress on stderr."""
    tallies = {world.name: Tally() for world in worlds}
    until, reported_at = time.monotonic() + seconds, time.monotonic()
    while time.monotonic() < until:
        world = min(worlds, key=lambda candidate: tallies[candidate.name].seconds)
        tally = tallies[world.name]
        since = time.monotonic()
        for backend in [one for one in world.backends if not backends or one in backends]:
            if (failure := explore_one(world, seed + tally.plans, backend)) is not None:
                yield failure
        if not tally.plans:
            # What the first plan has made stays: agents, schemas, connections. Each later plan searches only its own
            # objects for garbage.
            gc.freeze()
        tally.plans += 1
        tally.seconds += time.monotonic() - since
        if time.monotonic() > reported_at + 5:
            reported_at = time.monotonic()
            print("; ".join(f"{name}: {one}" for name, one in tallies.items()), file=sys.stderr, flush=True)
    print("; ".join(f"{name}: {one}" for name, one in tallies.items()), file=sys.stderr, flush=True)
