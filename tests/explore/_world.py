"""World: how plans are drawn from a seed, and how they are played."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from ._watch import Complaint


@dataclass(frozen=True)
class World:
    """A kind of plans, and the promises that apply to them."""

    name: str
    draw: Callable[[Random], Any]
    play: Callable[[Any, str], list[Complaint]]
    backends: tuple[str, ...]

    def plan(self, seed: int) -> Any:
        """Return the plan of a seed, which is always the same."""
        return self.draw(Random(f"{self.name} {seed}"))
