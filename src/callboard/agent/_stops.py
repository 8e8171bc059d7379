"""What a run goes on with, and where it stops, so that somebody can look."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from callboard._langgraph._node_scope import Outer

Nodes = Sequence[str] | Literal["*"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stops:
    """Nodes at which a run stops; `"*"` for all."""

    before: Nodes = ()
    after: Nodes = ()

    def or_those_of(self, before: Nodes | None, after: Nodes | None) -> "Stops":
        """Returns the stops of a run: those that it was given, or else these."""
        return Stops(before=before or self.before, after=after or self.after)

    def stop_before(self, nodes: Sequence[str]) -> bool:
        return _meets(self.before, nodes)

    def stop_after(self, nodes: Sequence[str]) -> bool:
        return _meets(self.after, nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What a run goes on with, and where it stops."""

    answers: Mapping[str, Any]
    """Answers to open questions, by interrupt id."""
    stops: Stops
    """Nodes at which to stop."""
    resumed: bool
    """Whether the run goes on from a stop, which it must not meet again at once."""
    outer: Outer | None
    """The graph around the agent."""
    checkpointer: Any
    """The checkpointer that graphs inside get."""


def _meets(stops: Nodes, nodes: Sequence[str]) -> bool:
    return bool(nodes) if stops == "*" else any(node in stops for node in nodes)
