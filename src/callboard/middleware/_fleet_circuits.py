"""The circuits of a breaker that many processes share: each is a document, and here is what this process knows of it.

While a circuit is closed or open, calls are decided upon by what is known here; the store tells when that changes. How
calls ended is said to it without anybody waiting. Only who may try the tool is asked there each time.
"""

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from secrets import token_hex

from callboard._canonical import digest
from callboard._documents import EVERYBODY, Away, Document, Done, Found, SharedDocuments, Written
from callboard._loops._current import current_loop
from callboard.middleware._asking import ask
from callboard.middleware._circuit import Circuit, Rules, State, Ticket
from callboard.middleware._circuit_documents import circuit_of, size_of, text_of
from callboard.middleware._circuits import FEWEST, Admission
from callboard.tools._vocabulary import ToolCallRequest

_RESET = "reset"
"""The mark that closes all circuits of a shelf."""

_Ends = list[tuple[Ticket, bool | None]]


@dataclass(slots=True, eq=False)
class _View:
    """A circuit as it is known here."""

    document: Document
    circuit: Circuit
    is_known: bool = False
    """Whether the store has said how it is."""
    is_alone: bool = False
    """Whether the store is away, and this process goes on with what it knows."""
    inside: int = 0
    ends: _Ends = field(default_factory=list[tuple[Ticket, bool | None]])
    """How calls ended of which the store has still to be told."""
    is_saying: bool = False
    news: State | None = None
    """A new state, of which observers have still to be told."""
    tending: dict[str, Callable[[], object]] = field(default_factory=dict[str, Callable[[], object]])
    """What ends the care for probes of this process."""


class FleetCircuits:
    """Circuits that are kept in a store.

    Args:
        store: where.
        rules: of each; breakers with others have other circuits.
        name: of the breaker, in all processes alike.

    Raises:
        ValueError: for circuits that are too large for the store.
    """

    def __init__(self, store: SharedDocuments, rules: Rules, name: object) -> None:
        if (size := size_of(rules)) > store.largest:
            raise ValueError(
                f"CircuitBreaker(minimum={rules.minimum!r}, probes={rules.probes!r}, shared=...): such a circuit takes "
                f"up to {size:,} bytes, and the store has room for largest={store.largest:,}"
            )
        self._store = store
        self._rules = rules
        # By values, not by type: a copy of the code elsewhere has the same circuits.
        numbers = [rules.ratio, rules.minimum, rules.window, rules.open_for, rules.probes]
        self._shelf = f"circuits-{digest([name, list(map(float, numbers))])[:32]}"
        self._lives = rules.window + rules.open_for + store.lease
        self._views: dict[str, _View] = {}
        self._lock = threading.Lock()
        self._prune_at = FEWEST
        store.listen(self)

    def checked(self, key: Hashable) -> Hashable:
        """A key, if there is JSON of it, by which other processes know it."""
        _name_of(key)
        return key

    async def enter(self, key: Hashable, request: ToolCallRequest) -> Admission:
        """Ask for a call to be let in; waits for the store where the circuit is new here, or half-open.

        Raises:
            CallRejectedError: if the store is away, and calls are to be refused then.
            StorageError: if it cannot be used.
        """
        view = self._view(_name_of(key))
        with self._lock:
            view.inside += 1
        try:
            admission = await self._admission(view, request)
        except BaseException:
            with self._lock:
                view.inside -= 1
            raise
        if admission.ticket is None:
            with self._lock:
                view.inside -= 1
        return admission

    async def _admission(self, view: _View, request: ToolCallRequest) -> Admission:
        loop = current_loop()
        if not view.is_known and not view.is_alone:
            found = await ask(self._store, view.document, partial(self._look, view), request, loop)
            self._take(view, found)
        if (admission := self._decided_here(view)) is not None:
            return admission
        probe = token_hex(8)
        try:
            claimed = await ask(self._store, view.document, partial(self._claim, view, probe), request, loop)
        except BaseException:
            # It may have been claimed; whoever waits for it need not wait for the end of a lease.
            self._store.change(view.document, partial(self._release, view, probe))
            raise
        if claimed is None:
            return self._decided_alone(view)
        circuit, ticket, now = claimed.value
        self._take(view, Done(circuit))
        if ticket is not None and ticket.probe is not None:
            view.tending[probe] = self._store.tend(view.document, partial(self._renew, view, ticket))
        return self._admitted(view, ticket, circuit.wait(now))

    def _decided_here(self, view: _View) -> Admission | None:
        """What follows from what is known here; `None` if the store has to be asked who may try the tool."""
        with self._lock:
            now = self._store.clock()
            if not view.is_alone and view.circuit.state(now) == "half-open":
                return None
            wait, ticket = view.circuit.wait(now), view.circuit.admit(now, token_hex(8))
        return self._admitted(view, ticket, wait)

    def _decided_alone(self, view: _View) -> Admission:
        self._take(view, None)
        admission = self._decided_here(view)
        assert admission is not None
        return admission

    def _admitted(self, view: _View, ticket: Ticket | None, wait: float) -> Admission:
        with self._lock:
            news, view.news = view.news, None
        if ticket is not None and ticket.probe is not None:
            news = "half-open"
        return Admission(view, ticket, wait, news)

    def leave(self, admission: Admission, failed: bool | None) -> State | None:
        """Note how a call ended; what became of the circuit is told with the next call."""
        view, ticket = admission.circuit, admission.ticket
        assert isinstance(view, _View)
        assert ticket is not None
        if ticket.probe is not None and (stop := view.tending.pop(ticket.probe, None)) is not None:
            stop()
        with self._lock:
            view.inside -= 1
            if view.is_alone:
                return view.circuit.judge(ticket, self._store.clock(), failed=failed)
            if failed is None and ticket.probe is None:
                return None
            view.ends.append((ticket, failed))
        self._say(view)
        return None

    def state(self, key: Hashable) -> State:
        """How a circuit is, as far as it is known here."""
        view = self._view(_name_of(key))
        if not view.is_known:
            self._look_again(view)
        with self._lock:
            return view.circuit.state(self._store.clock())

    def reset(self, key: Hashable) -> None:
        """Close a circuit, or all of them, for all processes; calls under way do not count."""
        if key is None:
            with self._lock:
                for view in self._views.values():
                    view.circuit.reset()
            self._store.mark(self._shelf, _RESET)
            return
        view = self._view(_name_of(key))
        with self._lock:
            view.circuit.reset()
        self._store.change(view.document, partial(self._close, view))

    def heard(self, document: Document | None) -> None:
        """Look again at a circuit that has changed elsewhere, or at all of them."""
        with self._lock:
            views = list(self._views.values())
            if document is not None and document.name != _RESET:
                views = [self._views[document.name]] if document.name in self._views else []
        if document is None or document.shelf == self._shelf:
            for view in views:
                self._look_again(view)

    def _look_again(self, view: _View) -> None:
        self._store.change(view.document, partial(self._look, view), partial(self._answered, view))

    def _answered(self, view: _View, answer: Done[Circuit] | Away | Exception) -> None:
        self._take(view, answer if isinstance(answer, Done) else None, is_away=isinstance(answer, Away))

    def _say(self, view: _View) -> None:
        """Tell the store how calls ended: all that is known while it hears of the last ones goes together."""
        with self._lock:
            if view.is_saying or not view.ends:
                return
            view.is_saying = True
            ends, view.ends = view.ends, []
        self._store.change(view.document, partial(self._count, view, ends), partial(self._said, view, ends))

    def _said(self, view: _View, ends: _Ends, answer: Done[Circuit] | Away | Exception) -> None:
        with self._lock:
            view.is_saying = False
        self._answered(view, answer)
        if not isinstance(answer, Done):
            with self._lock:
                ends += view.ends
                view.ends = []
                for ticket, failed in ends:
                    view.circuit.judge(ticket, self._store.clock(), failed=failed)
        self._say(view)

    def _take(self, view: _View, found: Done[Circuit] | None, *, is_away: bool = True) -> None:
        """Know a circuit as the store has it; without it, as before."""
        with self._lock:
            if found is None:
                view.is_alone, view.is_known = is_away, False
                return
            view.is_alone, view.is_known = False, True
            before, view.circuit = view.circuit, found.value
            if view.circuit.changes != before.changes:
                view.news = "closed" if view.circuit.memory().until is None else "open"

    # The rules. They run in a thread of the store.

    def _circuit(self, view: _View, found: Found) -> Circuit:
        with self._lock:
            known = view.circuit.memory()
        return circuit_of(found, self._rules, self._store.lease, known)

    def _written(self, circuit: Circuit, found: Found, changes: int) -> Written:
        tell = frozenset((EVERYBODY,)) if circuit.changes != changes else frozenset[str]()
        return Written(text=text_of(circuit, found.marks[0]), lives=self._lives, tell=tell)

    def _look(self, view: _View, found: Found) -> tuple[Written | None, Circuit]:
        circuit = self._circuit(view, found)
        is_forgotten = found.text is None and circuit.memory().until is not None
        return self._written(circuit, found, circuit.changes) if is_forgotten else None, circuit

    def _claim(
        self, view: _View, probe: str, found: Found
    ) -> tuple[Written | None, tuple[Circuit, Ticket | None, float]]:
        circuit = self._circuit(view, found)
        ticket = circuit.admit(found.now, probe, self._store.lease)
        is_probe = ticket is not None and ticket.probe is not None
        written = self._written(circuit, found, circuit.changes) if is_probe else None
        return written, (circuit, ticket, found.now)

    def _release(self, view: _View, probe: str, found: Found) -> tuple[Written | None, None]:
        circuit = self._circuit(view, found)
        circuit.release(probe)
        return self._written(circuit, found, circuit.changes), None

    def _renew(self, view: _View, ticket: Ticket, found: Found) -> tuple[Written | None, None]:
        circuit = self._circuit(view, found)
        renewed = circuit.renew(ticket, found.now + self._store.lease)
        return self._written(circuit, found, circuit.changes) if renewed else None, None

    def _count(self, view: _View, ends: _Ends, found: Found) -> tuple[Written | None, Circuit]:
        circuit = self._circuit(view, found)
        changes = circuit.changes
        for ticket, failed in ends:
            circuit.judge(ticket, found.now, failed=failed)
        return self._written(circuit, found, changes), circuit

    def _close(self, view: _View, found: Found) -> tuple[Written | None, None]:
        circuit = self._circuit(view, found)
        changes = circuit.changes
        circuit.reset()
        return self._written(circuit, found, changes), None

    def _view(self, name: str) -> _View:
        with self._lock:
            view = self._views.get(name)
            if view is None:
                self._prune()
                document = Document(self._shelf, name, (_RESET,))
                view = self._views[name] = _View(document, Circuit(self._rules))
            return view

    def _prune(self) -> None:
        # Keys come from the model and have no end; doubling the mark keeps the cost of looking constant.
        if len(self._views) >= self._prune_at:
            now = self._store.clock()
            views = self._views.items()
            self._views = {name: view for name, view in views if view.inside or not view.circuit.idle(now)}
            self._prune_at = max(FEWEST, 2 * len(self._views))


def _name_of(key: Hashable) -> str:
    """What stands for a key in the store: a digest, for it may be made of what a model wrote.

    Raises:
        ValueError: for a key of which there is no JSON.
    """
    return digest(key)[:32]
