"""Where a run stops, so that somebody can look."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Stops:
    """Nodes at which a run stops; `"*"` for all."""

    before: Sequence[str] | Literal["*"] = ()
    after: Sequence[str] | Literal["*"] = ()

    def stop_before(self, nodes: Sequence[str]) -> bool:
        return _meets(self.before, nodes)

    def stop_after(self, nodes: Sequence[str]) -> bool:
        return _meets(self.after, nodes)


def _meets(stops: Sequence[str] | Literal["*"], nodes: Sequence[str]) -> bool:
    return bool(nodes) if stops == "*" else any(node in stops for node in nodes)
