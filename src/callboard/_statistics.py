"""A moment in the life of calls and of actors, in numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorStatistics:
    """A moment in the life of an actor, or of those by key."""

    alive: int
    """How many live, or are about to."""
    running: int
    """Calls whose handler runs, or whose reply somebody has taken along."""
    waiting: int
    """Calls in their mailboxes."""
    restarts: int
    """How often one was started again after it had ended by itself, so far."""
    evictions: int
    """How often one had to go, so far: because nobody asked it, or for the sake of another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """A moment in the life of a node's calls."""

    running: int
    """Calls with a body that runs now, abandoned threads not counted."""
    waiting: int
    """Calls that wait for a place."""
    abandoned_threads: int
    """Worker threads that outlived their calls and still hold their places."""
    actors: Mapping[str, ActorStatistics] = field(default_factory=dict[str, ActorStatistics])
    """By name, those among the tools."""
