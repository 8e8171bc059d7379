"""Circuits of a breaker that several processes share through a document store, and each process's copies of them.

While a circuit is closed or open, calls are decided by the local copy, without waiting. The store notifies all
processes of a change of state. Outcomes are sent to the store in the background. Only admission while half-open
asks the store each time, because the number of trial calls is limited over all processes.
"""

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from secrets import token_hex
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from callboard._langgraph._vocabulary import ToolCallRequest
from callboard._records._documents import EVERYBODY, Away, Document, Done, Found, SharedDocuments, Written
from callboard._util._canonical import digest
from callboard.middleware._asking import ask
from callboard.middleware._breaker._circuit import FEWEST, MOST, Admission, Circuit, Memory, Rules, State, Ticket

# JSON form of a circuit. Other clients may write to the store, so reading validates everything.


_Seconds = Annotated[float, Field(allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0, lt=2**53)]


class _Stored(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    mark: int
    """Value of the reset mark at writing time. A later reset makes the whole document invalid."""
    changes: _Count
    until: _Seconds | None
    first: _Count
    """Time of the oldest outcome, in milliseconds. Each entry of `outcomes` gives the milliseconds since the last."""
    outcomes: list[tuple[_Count, Annotated[str, Field(pattern=r"^[.x]+$")]]]
    """Outcomes at one time: "." for each success, "x" for each failure."""
    probing: dict[str, _Seconds]


def text_of(circuit: Circuit, mark: int) -> str:
    """Return the JSON of a circuit; times are rounded to milliseconds."""
    memory = circuit.memory()
    outcomes: list[tuple[int, str]] = []
    first = last = round(memory.outcomes[0][0] * 1000) if memory.outcomes else 0
    for when, failed in memory.outcomes:
        # Never before the previous outcome: rounding or a clock set back would give a negative difference.
        now = max(last, round(when * 1000))
        if outcomes and now == last:
            outcomes[-1] = (outcomes[-1][0], outcomes[-1][1] + ".x"[failed])
        else:
            outcomes.append((now - last, ".x"[failed]))
        last = now
    return _Stored(
        mark=mark,
        changes=memory.changes,
        until=memory.until,
        first=first,
        outcomes=outcomes,
        probing=dict(memory.probing),
    ).model_dump_json()


_SLACK = 1.0
"""Seconds by which the store's clock may go back before a document counts as forged."""
_EACH_OUTCOME, _EACH_PROBE = 20, 48
"""Maximum bytes that one outcome and one trial call take in the document."""


def size_of(rules: Rules) -> int:
    """Return the maximum size in bytes of the document of a circuit."""
    return 1024 + max(MOST, rules.minimum) * _EACH_OUTCOME + rules.probes * _EACH_PROBE


def circuit_of(found: Found, rules: Rules, lease: float, known: Memory) -> Circuit:
    """Return the circuit that a document describes, or `known` if the store has lost it.

    `lease` is the number of seconds for which a trial call counts unless it is renewed.
    """
    if found.text is None:
        # The store has lost its data, as after a restart without persistence: this process restores what it knows.
        return Circuit(rules, known)
    try:
        stored = _Stored.model_validate_json(found.text)
    except ValidationError:
        stored = None
    if stored is None or (stored.until or 0) > found.now + rules.open_for + _SLACK:
        # Invalid, or open for longer than any circuit can be: some other client wrote this. Start with a closed
        # circuit, and with a number of changes that makes all tickets of running calls invalid.
        return Circuit(rules, Memory(known.changes + 1, None))
    if found.marks[0] != stored.mark:
        # All circuits were reset after this was written.
        return Circuit(rules, Memory(stored.changes + 1, None))
    return Circuit(rules, _checked(stored, rules, lease, found.now))


def _checked(stored: _Stored, rules: Rules, lease: float, now: float) -> Memory:
    """Return the plausible part: no outcome is in the future, and no trial call counts for more than a lease."""
    outcomes: list[tuple[float, bool]] = []
    when = stored.first
    for later, ends in stored.outcomes:
        when += later
        outcomes += [(when / 1000, end == "x") for end in ends]
    return Memory(
        stored.changes,
        stored.until,
        tuple(outcome for outcome in outcomes[-max(MOST, rules.minimum) :] if outcome[0] <= now + 0.001),
        tuple((probe, until) for probe, until in stored.probing.items() if until <= now + lease + _SLACK),
    )


# Circuits


_RESET = "reset"
"""Name of the mark that closes all circuits of a breaker."""

_Ends = list[tuple[Ticket, bool | None]]


@dataclass(slots=True, eq=False)
class _View:
    """This process's copy of one circuit. The lock of `FleetCircuits` guards all writes, except to `tending`."""

    document: Document
    circuit: Circuit
    is_known: bool = False
    """`True` once the store has reported the circuit's state."""
    is_alone: bool = False
    """`True` while the store cannot be reached; this process then decides by its copy alone."""
    inside: int = 0
    """Number of calls that are admitted or waiting for admission; the view is not dropped before it is 0."""
    ends: _Ends = field(default_factory=list[tuple[Ticket, bool | None]])
    """Outcomes that have not been sent to the store."""
    is_saying: bool = False
    """`True` while outcomes are being sent. At most one batch is sent at a time, so a slow store gets larger ones."""
    news: State | None = None
    """New state that observers have not been told yet."""
    tending: dict[str, Callable[[], object]] = field(default_factory=dict[str, Callable[[], object]])
    """Functions that stop the renewal of this process's trial calls, by probe name."""


class FleetCircuits:
    """Circuits that are kept in a store; used from any thread and event loop."""

    def __init__(self, store: SharedDocuments, rules: Rules, name: object) -> None:
        if (size := size_of(rules)) > store.largest:
            raise ValueError(
                f"CircuitBreaker(minimum={rules.minimum!r}, probes={rules.probes!r}, shared=...): such a circuit takes "
                f"up to {size:,} bytes, and the store has room for largest={store.largest:,}"
            )
        self._store = store
        self._rules = rules
        # By values, not by types: a process with another version of the code, or with 1 for 1.0, shares the circuits.
        numbers = [rules.ratio, rules.minimum, rules.window, rules.open_for, rules.probes]
        self._shelf = f"circuits-{digest([name, list(map(float, numbers))])[:32]}"
        self._lives = rules.window + rules.open_for + store.lease
        self._views: dict[str, _View] = {}
        self._lock = threading.Lock()
        self._prune_at = FEWEST
        store.listen(self)

    def checked(self, key: Hashable) -> Hashable:
        """Return the key; raise `ValueError` if it has no JSON form by which other processes could know it."""
        _name_of(key)
        return key

    async def enter(self, key: Hashable, request: ToolCallRequest) -> Admission:
        """Request admission; wait for the store only if the circuit is new to this process, or half-open."""
        view = self._view(_name_of(key))
        # Counted before the first await: a view with calls inside survives `_prune()`.
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
        if not view.is_known and not view.is_alone:
            found = await ask(self._store, view.document, partial(self._look, view), request)
            self._take(view, found)
        if (admission := self._decided_here(view)) is not None:
            return admission
        probe = token_hex(8)
        try:
            claimed = await ask(self._store, view.document, partial(self._claim, view, probe), request)
        except BaseException:
            # A cancelled task does not learn whether its claim was made. Give it back at once; otherwise other
            # processes would wait until the lease ends. The release follows the claim in the queue.
            self._store.change(view.document, partial(self._release, view, probe))
            raise
        if claimed is None:
            return self._decided_alone(view)
        circuit, ticket, now = claimed.value
        self._take(view, Done(circuit))
        if ticket is not None and ticket.probe is not None:
            # Renewed until `leave()`. If this process dies, the trial place is free again after one lease.
            view.tending[probe] = self._store.tend(view.document, partial(self._renew, view, ticket))
        return self._admitted(view, ticket, circuit.wait(now))

    def _decided_here(self, view: _View) -> Admission | None:
        """Return the decision by the local copy, or `None` if the store must decide about a trial call."""
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
        """Send an outcome to the store; a change of state is reported with the next call."""
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
                # Changes nothing. A trial call is sent even so, because its place must be freed.
                return None
            view.ends.append((ticket, failed))
        self._say(view)
        return None

    def state(self, key: Hashable) -> State:
        """Return the state of a circuit as far as this process knows it; the first query asks the store meanwhile."""
        view = self._view(_name_of(key))
        if not view.is_known:
            self._look_again(view)
        with self._lock:
            return view.circuit.state(self._store.clock())

    def reset(self, key: Hashable) -> None:
        """Close a circuit, or all circuits, in all processes; running calls will not count."""
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
        """Read a circuit again after another process changed it; all circuits if notifications may be lost."""
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
        """Send outcomes to the store in one batch, unless a batch is under way; then `_said()` sends the next."""
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
                # Not stored: count these outcomes, and those that came meanwhile, in the local copy.
                ends += view.ends
                view.ends = []
                for ticket, failed in ends:
                    view.circuit.judge(ticket, self._store.clock(), failed=failed)
        self._say(view)

    def _take(self, view: _View, found: Done[Circuit] | None, *, is_away: bool = True) -> None:
        """Replace the local copy by the store's circuit; `None`: keep the copy, because the store cannot be reached."""
        with self._lock:
            if found is None:
                view.is_alone, view.is_known = is_away, False
                return
            view.is_alone, view.is_known = False, True
            before, view.circuit = view.circuit, found.value
            if view.circuit.changes != before.changes:
                view.news = "closed" if view.circuit.memory().until is None else "open"

    # Rules. They run in a thread of the store, and again after each conflict with another process. So they must
    # neither wait nor have side effects; they read the local copy only under the lock.

    def _circuit(self, view: _View, found: Found) -> Circuit:
        with self._lock:
            known = view.circuit.memory()
        return circuit_of(found, self._rules, self._store.lease, known)

    def _written(self, circuit: Circuit, found: Found, changes: int) -> Written:
        tell = frozenset((EVERYBODY,)) if circuit.changes != changes else frozenset[str]()
        return Written(text=text_of(circuit, found.marks[0]), lives=self._lives, tell=tell)

    def _look(self, view: _View, found: Found) -> tuple[Written | None, Circuit]:
        circuit = self._circuit(view, found)
        # Write even though nothing changed: the store has lost an open circuit, which all processes must know.
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
        # Keys may come from the model, so their number is unlimited. Doubling the threshold keeps the average cost
        # per new circuit constant.
        if len(self._views) >= self._prune_at:
            now = self._store.clock()
            views = self._views.items()
            self._views = {name: view for name, view in views if view.inside or not view.circuit.idle(now)}
            self._prune_at = max(FEWEST, 2 * len(self._views))


def _name_of(key: Hashable) -> str:
    """Return the document name of a key; raise `ValueError` if the key has no JSON form.

    It is a digest, because the key may contain text of a model, which must not choose names in the store.
    """
    return digest(key)[:32]
