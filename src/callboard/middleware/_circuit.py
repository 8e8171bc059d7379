"""When a circuit breaker lets calls pass: a state machine that knows numbers only."""

import math
from collections import deque
from dataclasses import dataclass
from typing import Literal, NamedTuple

from callboard._loops._deadline import INSTANT
from callboard._types import check_count, check_seconds

State = Literal["closed", "open", "half-open"]

MOST = 1000
"""Calls that one circuit remembers, where the window has more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """When a circuit opens and closes; see `CircuitBreaker`."""

    ratio: float
    minimum: int
    window: float
    open_for: float
    probes: int

    def __post_init__(self) -> None:
        if isinstance(self.ratio, bool) or not isinstance(self.ratio, (int, float)):
            raise TypeError(f"CircuitBreaker(ratio=...) is a number, got {self.ratio!r}")
        if not 0 < self.ratio <= 1:
            raise ValueError(f"CircuitBreaker(ratio=...) must be above 0 and at most 1, got {self.ratio!r}")
        for name in ("minimum", "probes"):
            check_count(f"CircuitBreaker({name}=...)", getattr(self, name), least=1)
        for name in ("window", "open_for"):
            seconds = getattr(self, name)
            check_seconds(f"CircuitBreaker({name}=...)", seconds, zero=False)
            if seconds is None or math.isinf(seconds):
                raise ValueError(f"CircuitBreaker({name}=...) is a number of seconds, got {seconds!r}")


class Ticket(NamedTuple):
    """What a call is let in with: it was before or after the last change of state, and may be a probe."""

    changes: int
    probe: str | None = None


class Memory(NamedTuple):
    """All that a circuit knows, as plain data."""

    changes: int
    until: float | None
    """When the tool may be tried again; `None` while the circuit is closed."""
    outcomes: tuple[tuple[float, bool], ...] = ()
    probing: tuple[tuple[str, float], ...] = ()
    """Who tries the tool, and until when that counts."""


class Circuit:
    """Closed, open or half-open: is told what happens and when, and decides. Waits for nothing.

    A call that was let in before the last change of state says nothing about the present one. So each is given
    the number of changes until then in its ticket, and hands it in when it ends.
    """

    __slots__ = ("_changes", "_failures", "_inside", "_outcomes", "_probes", "_probing", "_rules", "_until")

    def __init__(self, rules: Rules, memory: Memory | None = None) -> None:
        memory = memory or Memory(0, None)
        self._rules = rules
        self._outcomes = deque(memory.outcomes)
        self._failures = sum(failed for _, failed in self._outcomes)
        self._until = memory.until
        self._changes = memory.changes
        self._inside = 0
        self._probing = dict(memory.probing)
        self._probes = 0

    @property
    def changes(self) -> int:
        """How often its state has changed."""
        return self._changes

    def memory(self) -> Memory:
        """All that it knows but for who is inside."""
        return Memory(self._changes, self._until, tuple(self._outcomes), tuple(self._probing.items()))

    def state(self, now: float) -> State:
        if self._until is None:
            return "closed"
        return "open" if self.wait(now) > 0 else "half-open"

    def wait(self, now: float) -> float:
        """Seconds for which no call is let in, as far as one can know."""
        left = -math.inf if self._until is None else self._until - now
        return left if left > INSTANT else 0.0

    def before(self, now: float) -> Ticket | None:
        """Let a call in and give it its ticket, or `None` for a call that may not run."""
        self._probes += 1
        ticket = self.admit(now, str(self._probes))
        self._inside += ticket is not None
        return ticket

    def after(self, ticket: Ticket, now: float, *, failed: bool | None) -> State | None:
        """Note how a call ended (`None`: one cannot say); returns the new state if that changed it."""
        self._inside -= 1
        return self.judge(ticket, now, failed=failed)

    def admit(self, now: float, probe: str, lease: float = math.inf) -> Ticket | None:
        """Decide whether a call is let in, as `before` does, where nobody asks who is inside.

        Args:
            now: the time.
            probe: a name for the call, if it is one that tries the tool.
            lease: seconds after which that call counts no more, unless it is renewed.
        """
        if self._until is None:
            return Ticket(self._changes)
        self._probing = {one: until for one, until in self._probing.items() if until > now}
        if self.wait(now) > 0 or len(self._probing) >= self._rules.probes:
            return None
        self._probing[probe] = now + lease
        return Ticket(self._changes, probe)

    def renew(self, ticket: Ticket, until: float) -> bool:
        """Have a probe count until then; `False` if it counts no more."""
        if ticket.probe not in self._probing or ticket.changes != self._changes:
            return False
        self._probing[ticket.probe] = until
        return True

    def release(self, probe: str) -> None:
        """Have a probe count no more, whose call never ran."""
        self._probing.pop(probe, None)

    def judge(self, ticket: Ticket, now: float, *, failed: bool | None) -> State | None:
        """Count how a call ended, as `after` does, where nobody asks who is inside."""
        if ticket.changes != self._changes:
            return None
        if ticket.probe is not None:
            self.release(ticket.probe)
        if failed is None:
            return None
        if self._until is not None:
            return self._open(now) if failed else self._close()
        self._count(now, failed)
        return self._open(now) if self._fails_too_often() else None

    def reset(self) -> None:
        """Be closed, and forget what was counted; calls under way do not count."""
        self._change(None)

    def idle(self, now: float) -> bool:
        """Whether a new circuit would do as well: nobody is inside, and what is known is too old."""
        known_until = self._until
        if known_until is None and self._outcomes:
            known_until = self._outcomes[-1][0]
        return not self._inside and (known_until is None or known_until + self._rules.window <= now)

    def _count(self, now: float, failed: bool) -> None:
        outcomes, rules = self._outcomes, self._rules
        while outcomes and (outcomes[0][0] <= now - rules.window or len(outcomes) >= max(MOST, rules.minimum)):
            self._failures -= outcomes.popleft()[1]
        outcomes.append((now, failed))
        self._failures += failed

    def _fails_too_often(self) -> bool:
        count = len(self._outcomes)
        return count >= self._rules.minimum and self._failures >= self._rules.ratio * count

    def _open(self, now: float) -> State:
        self._change(now + self._rules.open_for)
        return "open"

    def _close(self) -> State:
        self._change(None)
        return "closed"

    def _change(self, until: float | None) -> None:
        self._until = until
        self._changes += 1
        self._failures = 0
        self._probing.clear()
        self._outcomes.clear()
