"""Numbers about recorded calls, a row a tool."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from callboard.telemetry import RecordedCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The calls of one tool. Durations are of those that ended, queues included, in seconds."""

    tool: str
    calls: int
    failed: int
    open: int
    p50: float | None
    p95: float | None
    longest: float | None
    waited: float
    """The seconds in queues of all calls together."""
    longest_wait: float


def tallies(calls: Iterable[RecordedCall]) -> list[Tally]:
    """A tally for each tool, the one with the most calls first."""
    by_tool: defaultdict[str, list[RecordedCall]] = defaultdict(list)
    for call in calls:
        by_tool[call.tool].append(call)
    return sorted((tally(*item) for item in by_tool.items()), key=lambda one: (-one.calls, one.tool))


def tally(name: str, calls: Sequence[RecordedCall]) -> Tally:
    """The tally of these calls, under the name of their tool."""
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


def percentile(ordered: Sequence[float], percent: int) -> float | None:
    """The smallest value that `percent` of all do not exceed; nothing of nothing."""
    return ordered[max(0, ceil(len(ordered) * percent / 100) - 1)] if ordered else None
