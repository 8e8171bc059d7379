"""What one process may do of a limit while the server that keeps it is away."""

from collections import deque
from typing import Literal

from callboard import Limit
from callboard_actors._places._line import Numbers

Away = Literal["wait", "refuse", "local"]
"""What becomes of calls while the server is away."""


class Share:
    """The share of one process of several: rounded down, so that all shares together are no more than the limit."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._starts: dict[str, deque[float]] = {}

    def check(self, limit: Limit) -> None:
        """Raise ValueError for a limit of which there is no share."""
        counts = {"concurrency": limit.concurrency, "rate": None if limit.rate is None else limit.rate.calls}
        for name, count in counts.items():
            if count is not None and count < self._processes:
                raise ValueError(
                    f"{limit!r} cannot be shared out among processes={self._processes}: its {name} has {count}; "
                    "give it more, or choose away='wait' or away='refuse'"
                )

    def allows(self, gate: str, numbers: Numbers, held: int, now: float) -> bool:
        """Whether one more may begin; if so, it counts as begun."""
        if numbers.concurrency is not None and held >= numbers.concurrency // self._processes:
            return False
        if numbers.calls is None:
            return True
        most = numbers.calls // self._processes
        starts = self._starts.setdefault(gate, deque(maxlen=most))
        if len(starts) == most and starts[0] + numbers.per / 1e6 > now:
            return False
        starts.append(now)
        return True
