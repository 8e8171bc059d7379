"""Circuits of a breaker by key: their common interface, and the circuits of a single process."""

import threading
from collections.abc import Hashable
from typing import NamedTuple, Protocol

from callboard._loops._current import common_time
from callboard.middleware._breaker._circuit import Circuit, Rules, State, Ticket
from callboard.tools._vocabulary import ToolCallRequest

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


class Circuits(Protocol):
    """Interface of the circuits of one breaker, local to a process or shared."""

    def checked(self, key: Hashable) -> Hashable:
        """Return the key, or raise `ValueError` if these circuits cannot use it."""
        ...

    async def enter(self, key: Hashable, request: ToolCallRequest) -> Admission:
        """Request admission of a call."""
        ...

    def leave(self, admission: Admission, failed: bool | None) -> State | None:
        """Count the outcome of an admitted call, without waiting; return the new state if it is known to change."""
        ...

    def state(self, key: Hashable) -> State:
        """Return the current state of a circuit."""
        ...

    def reset(self, key: Hashable) -> None:
        """Close the circuit of a key, or all circuits if the key is `None`."""
        ...


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
