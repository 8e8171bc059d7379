"""A world: what a seed draws, and how it is played."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from ._watch import Complaint


@dataclass(frozen=True)
class World:
    """A kind of plans, and the promises that they are held to."""

    name: str
    draw: Callable[[Random], Any]
    play: Callable[[Any, str], list[Complaint]]
    backends: tuple[str, ...]

    def plan(self, seed: int) -> Any:
        """The plan of a seed, always the same one."""
        return self.draw(Random(f"{self.name} {seed}"))
