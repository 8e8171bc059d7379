"""Options of one run: the keywords of `ainvoke`, `astream`, `invoke` and `stream`."""

from collections.abc import Sequence
from typing import Any, Literal, TypedDict

from langgraph.runtime import RunControl

from callboard.agent._stream import MODES
from callboard.conversations._journal import Durability

StreamModes = str | Sequence[str]
NodeNames = Sequence[str] | Literal["*"] | None


class RunOptions(TypedDict, total=False):
    """Keywords that all four methods accept."""

    context: Any
    print_mode: StreamModes
    interrupt_before: NodeNames
    interrupt_after: NodeNames
    durability: Durability | None
    control: RunControl | None
    budget: float | None
    debug: bool | None
    subgraphs: bool


def checked_modes(modes: StreamModes) -> frozenset[str]:
    """Return stream modes as a set; raise ValueError for an unknown mode."""
    wanted = frozenset([modes] if isinstance(modes, str) else modes)
    if unknown := wanted - MODES:
        raise ValueError(f"There is no stream mode {', '.join(map(repr, sorted(unknown)))}, only {sorted(MODES)}")
    return wanted
