"""Reference model in Python of one step of a limit server; the scripts of Redis and PostgreSQL have to agree with it.

The model ignores crashes and time. It holds the permits, the queue and the order of turns.
"""

from dataclasses import dataclass, field


@dataclass
class Waiter:
    """Entry of the queue."""

    who: str
    tenant: str
    rank: int


@dataclass
class Model:
    """One limit.

    Args:
        concurrency: maximum number of permits.
        queue: maximum number of waiting entries; `None` for any number.
    """

    concurrency: int
    queue: int | None
    held: list[str] = field(default_factory=list)
    waiting: list[Waiter] = field(default_factory=list)
    """Queue in order of arrival."""
    lanes: dict[str, int] = field(default_factory=dict)
    """Highest rank of each tenant since the queue was last empty."""
    granted: list[str] = field(default_factory=list)
    full: list[str] = field(default_factory=list)

    def enter(self, who: str, tenant: str) -> None:
        """Request a permit."""
        if not self.waiting and len(self.held) < self.concurrency:
            self._give(who)
        elif self.queue is not None and len(self.waiting) >= self.queue:
            self.full.append(who)
        else:
            if not self.waiting:
                self.lanes.clear()
            rank = max(self._head().rank if self.waiting else 0, self.lanes.get(tenant, -1) + 1)
            self.lanes[tenant] = rank
            self.waiting.append(Waiter(who, tenant, rank))

    def leave(self, who: str) -> None:
        """Release a permit or leave the queue, then grant the free permit to the next entry."""
        self.held = [one for one in self.held if one != who]
        self.waiting = [one for one in self.waiting if one.who != who]
        while self.waiting and len(self.held) < self.concurrency:
            head = self._head()
            self.waiting.remove(head)
            self._give(head.who)

    def _head(self) -> Waiter:
        return min(self.waiting, key=lambda one: one.rank)  # the first of those

    def _give(self, who: str) -> None:
        self.held.append(who)
        self.granted.append(who)
