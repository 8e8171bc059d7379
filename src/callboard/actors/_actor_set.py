"""Actors of an owner, such as a tool node, with their engines; and `keyed`, which runs keyed actors without an owner.

The actors of an owner run while the owner is open, or else during one `async with` block. Engines are opened at first
use and closed together.
"""

from collections.abc import AsyncGenerator, Callable, Hashable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Generic

from callboard._calls._draining import PATIENCE
from callboard._loops._current import current_loop, is_over
from callboard._loops._deadline import DEFAULT_GRACE
from callboard._loops._protocol import EventLoop
from callboard._records._policies import Engine, unhashable
from callboard._records._reports import ActorStatistics, Drained
from callboard._util._errors import raise_first
from callboard.actors._child import A, ChildSpec, check_store, spec_of
from callboard.actors._keyed import FleetActors, KeyedActors
from callboard.actors._reference import reference_to
from callboard.actors._snapshots import Journal, JournalSnapshots
from callboard.exceptions import EngineError


def _new_keyed_actors(spec: ChildSpec[Any], on_interrupt: Callable[[BaseException], object]) -> KeyedActors:
    return (KeyedActors if spec.fleet is None else FleetActors)(spec, on_interrupt)


class ActorSession:
    """Running actors of an `ActorSet`, and the engines that are open for them in one event loop."""

    def __init__(self, keyed_actors: Sequence[KeyedActors], *, owns_actors: bool = True) -> None:
        self.keyed_actors = keyed_actors
        """Keyed actors of the session, in the order of their child specs."""
        self.loop = current_loop()
        self._owns_actors = owns_actors
        self._engines = AsyncExitStack()
        self._engine_ids: set[int] = set()
        self._is_closed = False

    async def hold(self, engine: Engine, title: str) -> None:
        """Open an engine and keep it open until `close`; do nothing if this session has opened it already."""
        if id(engine) in self._engine_ids:
            return
        self._refuse_if_closed(title)
        # Other tasks run during this await: `close` may be called, or the same engine opened twice.
        await engine.__aenter__()
        try:
            self._refuse_if_closed(title)
        except EngineError:
            await engine.__aexit__(None, None, None)
            raise
        # Two tasks may open the same engine at once. Each opening is closed, because engines count them.
        self._engines.push_async_exit(engine)
        self._engine_ids.add(id(engine))

    def _refuse_if_closed(self, title: str) -> None:
        if self._is_closed:
            raise EngineError(title, None, "whoever had its engine open has closed it", ended="unavailable")

    async def close(self) -> None:
        """Stop the actors in reverse order of their child specs, then close the session's engines."""
        async with AsyncExitStack() as stack:  # an error or a cancellation of one stop must not leave out the others
            stack.push_async_callback(self._close_engines)
            for actors in self.keyed_actors if self._owns_actors else []:
                stack.push_async_callback(actors.close)

    async def _close_engines(self) -> None:
        # First: a `hold` in progress closes its engine itself when it sees this.
        self._is_closed = True
        self._engine_ids.clear()
        await self._engines.aclose()


class ActorSet:
    """Actors that belong to an owner, such as a tool node: their child specs, and the session in which they run now."""

    def __init__(self, specs: Sequence[ChildSpec[Any]], owner: str) -> None:
        self.specs = specs
        self.is_needed = bool(specs)
        """True if the set has actors to open, or its owner has engines; those are opened with it."""
        self._owner = owner
        self._open: ActorSession | None = None
        self._opened_in: EventLoop | None = None
        self._interrupts: list[BaseException] = []
        """Errors such as KeyboardInterrupt that actors raised while the owner was open; `close` raises the first."""

    async def open(self) -> None:
        """Start the session that lasts until `close`, open its engines, and start the actors that have no keys."""
        if self._opened_in is not None and not is_over(self._opened_in):
            raise RuntimeError(f"{self._owner} is open already: one `async with` at a time")
        # A session of a loop that has ended cannot be closed any more; its actors ended with the loop.
        # Set before the first await, so that a second `open` at the same time fails.
        self._open, self._opened_in = None, current_loop()
        interrupts = self._interrupts = list[BaseException]()
        session = self._new_session(interrupts)
        try:
            for spec, keyed_actors in zip(self.specs, session.keyed_actors, strict=True):
                if spec.runs_in is not None:
                    await session.hold(spec.runs_in, spec.name)  # stays open between incarnations
                if spec.key is None and not spec.is_in_journal:
                    await keyed_actors.start(None)
        except BaseException:
            self._opened_in = None
            await session.close()
            raise
        self._open = session  # only now: a call during the start must not start a second actor

    async def close(self) -> None:
        """Stop the actors of the open session in reverse order, and close its engines."""
        # Before the await: a run that begins meanwhile opens a session of its own.
        session, self._open, self._opened_in = self._open, None, None
        if session is not None:
            await session.close()
            raise_first(self._interrupts)

    @asynccontextmanager
    async def open_for_block(self) -> AsyncGenerator[None]:
        """Open a session for the `async with` block if this event loop has none; actors start at their first call."""
        current = self.session()
        if not self.is_needed or (current is not None and current.loop is current_loop()):
            yield
            return
        interrupts = list[BaseException]()
        if current is None:
            session = self._new_session(interrupts)
        else:
            # Actors may be called from any loop, but an engine is open in one loop only: open engines for this loop.
            session = ActorSession(current.keyed_actors, owns_actors=False)
        token = _sessions.set({**_sessions.get(), self: session})
        try:
            yield
        finally:
            try:
                await session.close()
            finally:
                _sessions.reset(token)
        raise_first(interrupts)

    def statistics(self) -> Mapping[str, ActorStatistics]:
        """Return the statistics of the actors in the current task's session, by the actor's name."""
        session = self.session()
        return {} if session is None else {actors.spec.name: actors.statistics() for actors in session.keyed_actors}

    def session(self) -> ActorSession | None:
        """Return the session that the current task uses; `None` if no session is open."""
        # The session of a run goes first: the run keeps its actors even if the owner is opened meanwhile.
        return _sessions.get().get(self) or self._open

    def _new_session(self, interrupts: list[BaseException]) -> ActorSession:
        specs = [spec.with_snapshots(JournalSnapshots()) if spec.is_in_journal else spec for spec in self.specs]
        return ActorSession([_new_keyed_actors(spec, interrupts.append) for spec in specs])

    @property
    def in_journal(self) -> list[str]:
        """Names of the actors that store their states in an agent's conversation thread."""
        return [spec.name for spec in self.specs if spec.is_in_journal]

    @asynccontextmanager
    async def store_in(self, journal: Journal) -> AsyncGenerator[None]:
        """Store the states of actors with `snapshots="journal"` in `journal`, inside the `async with` block."""
        session = self.session()
        living = [] if session is None else session.keyed_actors
        journaled = [
            (actors, store) for actors in living if isinstance(store := actors.spec.snapshots, JournalSnapshots)
        ]
        token = _journals.set({**_journals.get(), self: journal})
        opened: list[tuple[KeyedActors, JournalSnapshots]] = []
        try:
            for keyed_actors, store in journaled:
                store.open(journal)  # before the await: an actor that restarts meanwhile loads from this journal
                opened.append((keyed_actors, store))
                # The next call of a dismissed actor restores its state from the journal.
                await keyed_actors.dismiss(store.stale_keys(keyed_actors.spec.name, journal, keyed_actors.alive))
            yield
        finally:
            _journals.reset(token)
            for keyed_actors, store in opened:
                store.close(journal, keyed_actors.alive)

    def journal(self) -> Journal:
        """Return the journal in which the current task stores the states of actors."""
        journal = _journals.get().get(self)
        if journal is None:
            raise ValueError(
                f"the actor {self.in_journal[0]} has snapshots='journal', and {self._owner} is not run by an agent of "
                "callboard's that has a checkpointer: create_react_agent(model, node, checkpointer=...). Elsewhere, "
                "have its state in a store: child(..., snapshots=InMemorySnapshots())"
            )
        return journal


_journals: ContextVar[Mapping[ActorSet, Journal]] = ContextVar("callboard_journals", default=MappingProxyType({}))
"""Journal of each actor set, for the current task and the tasks that it starts."""

_sessions: ContextVar[Mapping[ActorSet, ActorSession]] = ContextVar("callboard_actors", default=MappingProxyType({}))
"""Session of each actor set, for the current task and the tasks that it starts."""


# Keyed actors outside of a node


class Keyed(Generic[A]):
    """Running keyed actors, as `keyed` yields them; indexing with a key returns a reference to the key's actor."""

    def __init__(self, keyed_actors: KeyedActors) -> None:
        self._keyed_actors = keyed_actors

    def __getitem__(self, key: Hashable) -> A:
        """Return a reference to the actor of a key, whether the actor runs or not."""
        try:
            hash(key)
        except TypeError as error:
            raise unhashable(f"{self._keyed_actors.spec.name}[...]", key) from error
        reference: A = reference_to(self._keyed_actors.cell(key), self._keyed_actors.spec.kind)
        return reference

    async def drain(self, timeout: float = PATIENCE) -> Drained:
        """Refuse new calls, finish the calls that were accepted, and return a report; see `Supervisor.drain`."""
        return await self._keyed_actors.drain(timeout)

    def statistics(self) -> ActorStatistics:
        """Return the numbers of running actors, calls, restarts and evictions."""
        return self._keyed_actors.statistics()


@asynccontextmanager
async def keyed(actor: type[A] | A | ChildSpec[A], **terms: Any) -> AsyncGenerator[Keyed[A]]:
    """Run keyed actors for the duration of an `async with` block, one for each key.

    An actor starts at its first call (`await books["mine"].append("hello")`). It is evicted when it is idle for long,
    or when another key needs its place. If its class has `snapshot` and `restore`, it starts again with its last state.

    Args:
        actor: an actor class, an object of it, or a result of `child`.
        terms: options for `child`, such as `cap` and `idle`.

    Raises:
        KeyboardInterrupt: or the like, if a handler raised it, at the end of the block, which is cancelled.
    """
    spec = spec_of(actor, "keyed", **terms)
    if spec.key is not None:
        raise ValueError("keyed(...) is given the key in brackets, as in books['mine']; key=... is for a node")
    check_store(spec, "keyed(...)")
    interrupts: list[BaseException] = []

    def end_block(error: BaseException) -> None:
        interrupts.append(error)
        # Called in a supervisor's task: the error is raised in the owner's task, at the end of its block.
        scope.cancel()

    scope = current_loop().scope(float("inf"), DEFAULT_GRACE)
    keyed_actors = _new_keyed_actors(spec, end_block)
    try:
        with scope:
            yield Keyed(keyed_actors)
    finally:
        # Outside the scope: stopping the actors must not be cancelled together with the block.
        await keyed_actors.close()
    raise_first(interrupts)
