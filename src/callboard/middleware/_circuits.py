"""The circuits of a breaker, by key: those of one process, and what a breaker asks of any."""

import threading
from collections.abc import Hashable
from typing import NamedTuple, Protocol

from callboard._calls._limits import _common_time
from callboard._loops._current import current_loop
from callboard.middleware._circuit import Circuit, Rules, State, Ticket
from callboard.tools._vocabulary import ToolCallRequest

FEWEST = 64
"""Circuits from which on those are looked for that are not needed any more."""


class Admission(NamedTuple):
    """What a circuit says to a call."""

    circuit: object
    """Which one; its circuits know what it is."""
    ticket: Ticket | None
    """`None` for a call that may not run."""
    wait: float
    """Seconds for which no call is let in, as far as one can know."""
    news: State | None
    """The state, if those who watch have still to be told of it."""


class Circuits(Protocol):
    """The circuits of one breaker, by key: of this process, or shared with others."""

    def checked(self, key: Hashable) -> Hashable:
        """A key that there may be a circuit of.

        Raises:
            ValueError: for one of which there can be none.
        """
        ...

    async def enter(self, key: Hashable, request: ToolCallRequest) -> Admission:
        """Ask for a call to be let in."""
        ...

    def leave(self, admission: Admission, failed: bool | None) -> State | None:
        """Note how a call ended that was let in; returns the new state if that is known to have changed it."""
        ...

    def state(self, key: Hashable) -> State:
        """How a circuit is now."""
        ...

    def reset(self, key: Hashable) -> None:
        """Close a circuit, or all of them (`None`)."""
        ...


class LocalCircuits:
    """Circuits that one process has for itself."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._circuits: dict[Hashable, Circuit] = {}
        self._lock = threading.Lock()
        self._prune_at = FEWEST

    def checked(self, key: Hashable) -> Hashable:
        """Returns the key as it is: in one process there can be a circuit of any."""
        return key

    async def enter(self, key: Hashable, request: ToolCallRequest) -> Admission:
        """Ask for a call to be let in; waits for nothing."""
        now = _common_time(current_loop())
        with self._lock:
            circuit = self._circuit(key, now)
            wait, state = circuit.wait(now), circuit.state(now)
            ticket = circuit.before(now)
        return Admission(circuit, ticket, wait, state if ticket is not None and state == "half-open" else None)

    def leave(self, admission: Admission, failed: bool | None) -> State | None:
        """Note how a call ended that was let in."""
        circuit, ticket = admission.circuit, admission.ticket
        assert isinstance(circuit, Circuit)
        assert ticket is not None
        with self._lock:
            return circuit.after(ticket, _common_time(current_loop()), failed=failed)

    def state(self, key: Hashable) -> State:
        """How a circuit is now; in a running event loop."""
        with self._lock:
            circuit = self._circuits.get(key)
            return "closed" if circuit is None else circuit.state(_common_time(current_loop()))

    def reset(self, key: Hashable) -> None:
        """Forget a circuit, or all of them; calls under way do not count."""
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
        # Keys come from the model and have no end; doubling the mark keeps the cost of looking constant.
        if len(self._circuits) >= self._prune_at:
            self._circuits = {key: circuit for key, circuit in self._circuits.items() if not circuit.idle(now)}
            self._prune_at = max(FEWEST, 2 * len(self._circuits))
