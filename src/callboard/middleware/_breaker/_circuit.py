"""Circuits of a breaker: the state machine of one, which handles numbers only, and the circuits of a process."""

import math
import threading
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from callboard._langgraph._vocabulary import ToolCallRequest
from callboard._loops._current import common_time
from callboard._records._policies import check_count, check_seconds

# State machine


_INSTANT = 1e-6
"""Seconds; two readings of a clock may differ by less."""

State = Literal["closed", "open", "half-open"]

MOST = 1000
"""Maximum number of outcomes that one circuit remembers, even if its window has more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Numbers that decide when a circuit opens and closes; see `CircuitBreaker`."""

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
    """Proof of admission of one call: the state in which it was admitted, and the trial call's name if it is one."""

    changes: int
    probe: str | None = None


class Memory(NamedTuple):
    """Complete state of a circuit as plain data."""

    changes: int
    until: float | None
    """Time from which the tool may be tried again; `None` while the circuit is closed."""
    outcomes: tuple[tuple[float, bool], ...] = ()
    probing: tuple[tuple[str, float], ...] = ()
    """Name of each running trial call, and the time until which it counts."""


class Circuit:
    """Circuit that is closed, open or half-open; it decides at once and never waits. Callers hold their own lock.

    Invariant: an outcome counts only if the state has not changed since the call was admitted. Each ticket therefore
    carries the number of changes at admission. A slow call from before the circuit opened cannot close it.
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
        """Number of changes of state."""
        return self._changes

    def memory(self) -> Memory:
        """Return the complete state, except the number of running calls."""
        return Memory(self._changes, self._until, tuple(self._outcomes), tuple(self._probing.items()))

    def state(self, now: float) -> State:
        if self._until is None:
            return "closed"
        return "open" if self.wait(now) > 0 else "half-open"

    def wait(self, now: float) -> float:
        """Return the seconds until the next call may be admitted; 0.0 if one may be admitted now."""
        left = -math.inf if self._until is None else self._until - now
        return left if left > _INSTANT else 0.0

    def before(self, now: float) -> Ticket | None:
        """Admit a call and return its ticket, or return `None` to refuse it."""
        self._probes += 1
        ticket = self.admit(now, str(self._probes))
        self._inside += ticket is not None
        return ticket

    def after(self, ticket: Ticket, now: float, *, failed: bool | None) -> State | None:
        """Count the outcome of an admitted call (`None`: neither way), and return the new state if it changed."""
        self._inside -= 1
        return self.judge(ticket, now, failed=failed)

    def admit(self, now: float, probe: str, lease: float = math.inf) -> Ticket | None:
        """Decide about a call as `before` does, without counting it as running in this process."""
        if self._until is None:
            return Ticket(self._changes)
        # Trial calls of processes that died never end; without this their places would stay taken.
        self._probing = {one: until for one, until in self._probing.items() if until > now}
        if self.wait(now) > 0 or len(self._probing) >= self._rules.probes:
            return None
        self._probing[probe] = now + lease
        return Ticket(self._changes, probe)

    def renew(self, ticket: Ticket, until: float) -> bool:
        """Extend the time of a trial call; return `False` if the trial no longer counts."""
        if ticket.probe not in self._probing or ticket.changes != self._changes:
            return False
        self._probing[ticket.probe] = until
        return True

    def release(self, probe: str) -> None:
        """Remove a trial call that never ran."""
        self._probing.pop(probe, None)

    def judge(self, ticket: Ticket, now: float, *, failed: bool | None) -> State | None:
        """Count an outcome as `after` does, without counting running calls of this process."""
        if ticket.changes != self._changes:
            return None
        # The place of a trial call is freed even if its outcome counts neither way, such as after a cancellation.
        if ticket.probe is not None:
            self.release(ticket.probe)
        if failed is None:
            return None
        if self._until is not None:
            return self._open(now) if failed else self._close()
        self._count(now, failed)
        return self._open(now) if self._fails_too_often() else None

    def reset(self) -> None:
        """Close the circuit and forget all outcomes; running calls will not count."""
        self._change(None)

    def idle(self, now: float) -> bool:
        """Return whether the circuit can be dropped: no running call, and no knowledge that is still valid."""
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


# Circuits of a process


FEWEST = 64
"""Number of circuits from which on unused ones are removed."""


class Admission(NamedTuple):
    """Answer of a circuit to one call."""

    circuit: object
    """The circuit, in the form that its `Circuits` object uses; opaque to the breaker."""
    ticket: Ticket | None
    """`None` if the call is refused."""
    wait: float
    """Seconds until the next call may be admitted, as far as known."""
    news: State | None
    """New state that observers have not been told yet, or `None`."""


class LocalCircuits:
    """Circuits of a single process, used from any thread and event loop."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._circuits: dict[Hashable, Circuit] = {}
        # Guards the dict and every circuit in it: calls of several event loops and threads share them.
        self._lock = threading.Lock()
        self._prune_at = FEWEST

    def checked(self, key: Hashable) -> Hashable:
        """Return the key; any hashable key is valid in one process."""
        return key

    async def enter(self, key: Hashable, request: ToolCallRequest) -> Admission:
        """Request admission of a call; never waits."""
        now = common_time()
        with self._lock:
            circuit = self._circuit(key, now)
            wait, state = circuit.wait(now), circuit.state(now)
            ticket = circuit.before(now)
        return Admission(circuit, ticket, wait, state if ticket is not None and state == "half-open" else None)

    def leave(self, admission: Admission, failed: bool | None) -> State | None:
        """Count the outcome of an admitted call. A circuit that was reset meanwhile is no longer in the dict."""
        circuit, ticket = admission.circuit, admission.ticket
        assert isinstance(circuit, Circuit)
        assert ticket is not None
        with self._lock:
            return circuit.after(ticket, common_time(), failed=failed)

    def state(self, key: Hashable) -> State:
        """Return the current state of a circuit; needs a running event loop for its clock."""
        with self._lock:
            circuit = self._circuits.get(key)
            return "closed" if circuit is None else circuit.state(common_time())

    def reset(self, key: Hashable) -> None:
        """Forget a circuit, or all of them; running calls will not count."""
        with self._lock:
            if key is None:
                self._circuits.clear()
            else:
                self._circuits.pop(key, None)

    def _circuit(self, key: Hashable, now: float) -> Circuit:
        circuit = self._circuits.get(key)
        if circuit is None:
            self._prune(now)
            circuit = self._circuits[key] = Circuit(self._rules)
        return circuit

    def _prune(self, now: float) -> None:
        # Keys may come from the model, so their number is unlimited. Doubling the threshold keeps the average cost
        # per new circuit constant. A circuit with running calls is never dropped: its outcomes would be lost.
        if len(self._circuits) >= self._prune_at:
            self._circuits = {key: circuit for key, circuit in self._circuits.items() if not circuit.idle(now)}
            self._prune_at = max(FEWEST, 2 * len(self._circuits))
