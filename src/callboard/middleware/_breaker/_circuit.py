"""Circuits of a breaker: the state machine of one, the circuits of a process, and those of many processes."""

import math
import threading
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from callboard._langgraph._vocabulary import ToolCallRequest
from callboard._loops._current import common_time
from callboard._records._documents import Document, Found, SharedDocuments, Written
from callboard._records._policies import check_count, check_seconds
from callboard._util._canonical import digest
from callboard.middleware._asking import ask

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
    """Proof of admission of one call: the state in which it was admitted, and whether it is a trial call."""

    changes: int
    is_probe: bool = False


class Circuit:
    """Circuit that is closed, open or half-open; it decides at once and never waits. Callers hold their own lock.

    Invariant: an outcome counts only if the state has not changed since the call was admitted. Each ticket therefore
    carries the number of changes at admission. A slow call from before the circuit opened cannot close it.
    """

    __slots__ = ("_changes", "_failures", "_inside", "_outcomes", "_probing", "_rules", "_until", "asked_at")

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._outcomes = deque[tuple[float, bool]]()
        self._failures = 0
        self._until: float | None = None
        """Time from which the tool may be tried again; `None` while the circuit is closed."""
        self._changes = 0
        self._inside = 0
        self._probing = 0
        """Number of running trial calls of the current state."""
        self.asked_at = -math.inf
        """Time at which other processes were last asked about this circuit."""

    @property
    def changes(self) -> int:
        """Number of changes of state."""
        return self._changes

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
        is_probe = self._until is not None
        if is_probe:
            if self.wait(now) > 0 or self._probing >= self._rules.probes:
                return None
            self._probing += 1
        self._inside += 1
        return Ticket(self._changes, is_probe)

    def after(self, ticket: Ticket, now: float, *, failed: bool | None) -> State | None:
        """Count the outcome of an admitted call (`None`: neither way), and return the new state if it changed."""
        self._inside -= 1
        if ticket.changes != self._changes:
            return None
        # The place of a trial call is freed even if its outcome counts neither way, such as after a cancellation.
        self._probing -= ticket.is_probe
        if failed is None:
            return None
        if self._until is not None:
            return self._open(now) if failed else self._close()
        self._count(now, failed)
        return self._open(now) if self._fails_too_often() else None

    def follow(self, left: float, now: float) -> State | None:
        """Open for the seconds for which other processes refuse calls, or, with 0, be open no longer.

        Return "open" if the circuit was not open before. Calls that are running then will not count.
        """
        if self.wait(now) > 0:
            self._until = now + left
        elif left > 0:
            self._change(now + left)
            return "open"
        return None

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
        self._probing = 0
        self._outcomes.clear()


# Circuits of a process


FEWEST = 64
"""Number of circuits from which on unused ones are removed."""


class Admission(NamedTuple):
    """Answer of a circuit to one call."""

    key: Hashable
    circuit: Circuit
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
        return Admission(key, circuit, ticket, wait, state if ticket is not None and state == "half-open" else None)

    def leave(self, admission: Admission, failed: bool | None) -> State | None:
        """Count the outcome of an admitted call. A circuit that was reset meanwhile is no longer in the dict."""
        assert admission.ticket is not None
        with self._lock:
            return admission.circuit.after(admission.ticket, common_time(), failed=failed)

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


# Circuits of many processes


_FRESH = 1.0
"""Seconds for which calls are decided without asking whether another process has opened the circuit."""
_ON_THE_WAY = 0.1
"""Seconds by which a document expires early, because it is written later than its circuit opened.

Otherwise a call that waited exactly as long as it was told would find the document once more."""
_RESET = "reset"
"""Mark that makes all documents of a breaker void."""
_SLACK = 1.0
"""Seconds by which the clock of the store may go back before a document counts as forged."""


class SharedCircuits(LocalCircuits):
    """Circuits that are open in many processes together. Each process counts outcomes and tries the tool by itself.

    The document of an open circuit lives exactly as long as the circuit is open: its remaining life is the whole
    message, so the clocks of the processes need not agree.
    """

    def __init__(self, rules: Rules, store: SharedDocuments, name: object) -> None:
        super().__init__(rules)
        self._store = store
        # By values, not by types: a process with another version of the code, or with 1 for 1.0, shares the circuits.
        numbers = [rules.ratio, rules.minimum, rules.window, rules.open_for, rules.probes]
        self._shelf = f"circuits-{digest([name, list(map(float, numbers))])[:32]}"

    def checked(self, key: Hashable) -> Hashable:
        """Return the key; raise `ValueError` if it has no JSON form by which other processes could know it."""
        self._document(key)
        return key

    async def enter(self, key: Hashable, request: ToolCallRequest) -> Admission:
        """Request admission; wait for the store if it was last asked about this circuit more than a second ago."""
        now = common_time()
        with self._lock:
            circuit = self._circuit(key, now)
            changes, is_due = circuit.changes, circuit.asked_at + _FRESH <= now
        news = None
        # `None` during an outage: the process then goes on with what it knows.
        if is_due and (found := await ask(self._store, self._document(key), self._left, request)) is not None:
            news = self._follow(key, changes, found.value)
        admission = await super().enter(key, request)
        return admission._replace(news=news or admission.news)

    def _follow(self, key: Hashable, changes: int, left: float) -> State | None:
        now = common_time()
        with self._lock:
            circuit = self._circuit(key, now)
            # If it has opened or closed here while the store was asked, the answer is older than that.
            if circuit.changes != changes:
                return None
            circuit.asked_at = now
            return circuit.follow(left, now)

    def leave(self, admission: Admission, failed: bool | None) -> State | None:
        """Count the outcome of an admitted call; if it opens the circuit, tell the store without waiting."""
        news = super().leave(admission, failed)
        if news == "open":
            # With an answer, the change is dropped in an outage. After it, the circuit would open for too long.
            self._store.change(self._document(admission.key), self._open, _drop)
        return news

    def reset(self, key: Hashable) -> None:
        """Forget a circuit, or all of them. In other processes open circuits become half-open."""
        super().reset(key)
        if key is None:
            self._store.mark(self._shelf, _RESET)
        else:
            self._store.change(self._document(key), lambda _: (Written(text=None), None))

    # Rules: they run in a thread of the store.

    def _left(self, found: Found) -> tuple[None, float]:
        """Return the seconds for which a circuit is still open; 0 for a document that is void or forged."""
        is_open = found.text == _text_of(found) and found.left <= self._rules.open_for + _SLACK
        return None, max(0.0, found.left) if is_open else 0.0

    def _open(self, found: Found) -> tuple[Written, None]:
        return Written(text=_text_of(found), lives=max(0.001, self._rules.open_for - _ON_THE_WAY)), None

    def _document(self, key: Hashable) -> Document:
        # A digest, because the key may contain text of a model, which must not choose names in the store.
        return Document(self._shelf, digest(key)[:32], (_RESET,))


def _text_of(found: Found) -> str:
    """Return the text of an open circuit: it is void after the next reset of all circuits."""
    return f"open {found.marks[0]}"


def _drop(_: object) -> None: ...
