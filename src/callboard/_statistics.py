"""Snapshots of the numbers of running and waiting calls, for nodes and actors."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorStatistics:
    """Numbers of one actor at one moment, or the sums over the keyed actors of one child."""

    alive: int
    """Number of actors that run or are starting."""
    running: int
    """Number of calls with a running handler, or with a `Reply` that is still open."""
    waiting: int
    """Number of calls in the mailboxes."""
    restarts: int
    """Number of restarts after an actor ended by itself, so far."""
    evictions: int
    """Number of evictions so far, of idle actors or to make place for other keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Numbers of a node's calls at one moment."""

    running: int
    """Number of calls with a running body, without abandoned threads."""
    waiting: int
    """Number of calls that wait for a permit."""
    abandoned_threads: int
    """Number of worker threads that outlived their calls. Each still holds its permits."""
    actors: Mapping[str, ActorStatistics] = field(default_factory=dict[str, ActorStatistics])
    """Statistics of the node's actors, by name."""
