"""Conditions of a run: answers to resume with, and nodes at which to stop."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from callboard._langgraph._node_scope import Outer

Nodes = Sequence[str] | Literal["*"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakpoints:
    """Nodes at which a run stops; `"*"` for all nodes."""

    before: Nodes = ()
    after: Nodes = ()

    def or_else(self, before: Nodes | None, after: Nodes | None) -> "Breakpoints":
        """Return the stops given for one run, or these as defaults."""
        return Breakpoints(before=before or self.before, after=after or self.after)

    def stop_before(self, nodes: Sequence[str]) -> bool:
        return _meets(self.before, nodes)

    def stop_after(self, nodes: Sequence[str]) -> bool:
        return _meets(self.after, nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeState:
    """Conditions under which a run goes on and stops."""

    answers: Mapping[str, Any]
    """Answers to open questions, by interrupt id."""
    stops: Breakpoints
    """Nodes at which to stop."""
    resumed: bool
    """`True` if the run resumes from a stop, which must not stop it again at once."""
    outer: Outer | None
    """Graph around the agent, if any."""
    checkpointer: Any
    """Checkpointer for graphs within the agent."""


def _meets(stops: Nodes, nodes: Sequence[str]) -> bool:
    return bool(nodes) if stops == "*" else any(node in stops for node in nodes)
