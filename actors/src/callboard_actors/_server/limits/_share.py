"""Share of one process in a limit, used while the server cannot be reached."""

from collections import deque
from typing import Literal

from callboard import Limit
from callboard_actors._server.limits._transport import Numbers

Away = Literal["wait", "refuse", "local"]
"""Policy for calls during an outage."""


class Share:
    """Share of one process among several. Rounded down, so that all shares together never exceed the limit."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        # Starts of each gate within its window, in loop time. Kept over outages: a rate does not begin anew.
        self._starts: dict[str, deque[float]] = {}

    def check(self, limit: Limit) -> None:
        """Raise ValueError for a limit too small to be shared among the processes."""
        counts = {"concurrency": limit.concurrency, "rate": None if limit.rate is None else limit.rate.calls}
        for name, count in counts.items():
            if count is not None and count < self._processes:
                raise ValueError(
                    f"{limit!r} cannot be shared out among processes={self._processes}: its {name} has {count}; "
                    "give it more, or choose away='wait' or away='refuse'"
                )

    def allows(self, gate: str, numbers: Numbers, held: int, now: float) -> bool:
        """Return whether one more call may begin; if so, count it as begun."""
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
