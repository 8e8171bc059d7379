"""Statistics of recorded calls by tool, and of recorded actors."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from callboard.telemetry import FAILURES, Part, RecordedAsk, RecordedCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Statistics of the calls of one tool. Durations are of ended calls, in seconds, waits included."""

    tool: str
    calls: int
    failed: int
    open: int
    p50: float | None
    p95: float | None
    longest: float | None
    waited: float
    """Total time of all calls in queues, in seconds."""
    longest_wait: float


def tallies(calls: Iterable[RecordedCall]) -> list[Tally]:
    """Return the statistics of each tool, the tool with the most calls first."""
    by_tool: defaultdict[str, list[RecordedCall]] = defaultdict(list)
    for call in calls:
        by_tool[call.tool].append(call)
    return sorted((tally(*item) for item in by_tool.items()), key=lambda one: (-one.calls, one.tool))


def tally(name: str, calls: Sequence[RecordedCall]) -> Tally:
    """Return the statistics of calls of one tool."""
    durations = sorted(call.end - call.start for call in calls if call.end is not None)
    return Tally(
        tool=name,
        calls=len(calls),
        failed=sum(call.failed for call in calls),
        open=sum(call.end is None for call in calls),
        p50=percentile(durations, 50),
        p95=percentile(durations, 95),
        longest=durations[-1] if durations else None,
        waited=sum(call.waited for call in calls),
        longest_wait=max((call.waited for call in calls), default=0.0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorTally:
    """Statistics of the asks and life-cycle changes of the actors of one name; durations in seconds."""

    actor: str
    asks: int
    failed: int
    open: int
    p50: float | None
    p95: float | None
    longest_wait: float
    """Longest time of an ask in a mailbox."""
    starts: int
    restarts: int
    evictions: int


def actor_tallies(parts: Iterable[Part]) -> list[ActorTally]:
    """Return the statistics of each actor, the actor with the most asks first."""
    asks: defaultdict[str, list[RecordedAsk]] = defaultdict(list)
    lives: defaultdict[str, list[str]] = defaultdict(list)
    for part in parts:
        for ask in part.asks:
            asks[ask.actor].append(ask)
        for change in part.lives:
            lives[change.actor].append(change.what)
    found = [_actor_tally(actor, asks[actor], lives[actor]) for actor in {**asks, **lives}]
    return sorted(found, key=lambda one: (-one.asks, one.actor))


def _actor_tally(actor: str, asks: Sequence[RecordedAsk], lives: Sequence[str]) -> ActorTally:
    durations = sorted(ask.end - ask.start for ask in asks if ask.end is not None)
    return ActorTally(
        actor=actor,
        asks=len(asks),
        failed=sum(ask.outcome in FAILURES for ask in asks),
        open=sum(ask.end is None for ask in asks),
        p50=percentile(durations, 50),
        p95=percentile(durations, 95),
        longest_wait=max((ask.taken - ask.start for ask in asks if ask.taken is not None), default=0.0),
        starts=lives.count("started"),
        restarts=lives.count("restarted"),
        evictions=lives.count("evicted"),
    )


def percentile(ordered: Sequence[float], percent: int) -> float | None:
    """Return the smallest value that `percent` of the sorted values do not exceed; `None` without values."""
    return ordered[max(0, ceil(len(ordered) * percent / 100) - 1)] if ordered else None
