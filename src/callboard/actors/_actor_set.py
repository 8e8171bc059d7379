"""The actors that somebody was given, such as a node: they live while it is open, or else for one block.

So do the engines that run bodies for it.
"""

from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from callboard._loops._current import current_loop, is_over
from callboard._loops._protocol import EventLoop
from callboard._statistics import ActorStatistics
from callboard.actors._child import ChildSpec
from callboard.actors._held_engines import HeldEngines
from callboard.actors._journal_snapshots import Journal, JournalSnapshots
from callboard.actors._residents import Residents


@dataclass(frozen=True, slots=True)
class Lodging:
    """Where actors live, and what is open for them and for tools that run elsewhere."""

    residents: Mapping[int, Residents]
    """By the place of their terms in the set."""
    engines: HeldEngines = field(default_factory=HeldEngines)
    loop: EventLoop = field(default_factory=current_loop)
    """In which the engines are open."""

    @property
    def is_here(self) -> bool:
        """Whether the event loop that runs here is the one in which the actors live."""
        return self.loop is current_loop()

    async def close(self) -> None:
        """Stop the actors, in the reverse order, and close what was open."""
        try:
            for one in reversed(list(self.residents.values())):
                await one.close()
        finally:
            await self.engines.close()


class ActorSet:
    """Actors, and where they live now; and the engines that run bodies for whoever has them.

    Args:
        specs: their terms.
        owner: whose they are, for errors.
        uses_engines: whether there are bodies that run elsewhere besides.
    """

    def __init__(self, specs: Sequence[ChildSpec[Any]], owner: str, *, uses_engines: bool = False) -> None:
        self.specs = specs
        self.is_needed = bool(specs) or uses_engines
        """Whether there is anything that lives."""
        self._owner = owner
        self._open: Lodging | None = None
        self._opened_in: EventLoop | None = None
        self._interrupts: list[BaseException] = []
        """Ctrl-C and the like in an actor of an open owner; for whoever closes it."""

    async def open(self) -> None:
        """Have them live until `close`; those start now of which there is one for all.

        Raises:
            ActorStartError: if one does not start.
            RuntimeError: if it is open.
        """
        if self._opened_in is not None and not is_over(self._opened_in):
            raise RuntimeError(f"{self._owner} is open already: one `async with` at a time")
        # What was opened in a loop that has ended cannot be closed any more; its actors ended with it.
        self._open, self._opened_in = None, current_loop()
        interrupts = self._interrupts = list[BaseException]()
        lodging = self._lodging(interrupts)
        try:
            for spec, residents in zip(self.specs, lodging.residents.values(), strict=True):
                if spec.runs_in is not None:
                    await lodging.engines.hold(spec.runs_in, spec.name)  # from life to life
                if spec.key is None and not spec.is_in_journal:
                    await residents.start(None)
        except BaseException:
            self._opened_in = None
            await lodging.close()
            raise
        self._open = lodging  # only now: who asks before would have another one start beside it

    async def close(self) -> None:
        """Stop the actors, those first that were started last.

        Raises:
            KeyboardInterrupt: and the like, if a handler raised it.
        """
        lodging, self._open, self._opened_in = self._open, None, None
        if lodging is not None:
            await lodging.close()
            _raise_first(self._interrupts)

    @asynccontextmanager
    async def living(self) -> AsyncGenerator[None]:
        """Have them live while the block runs, unless they do anyway; each starts when it is asked."""
        known = self.lodging()
        if not self.is_needed or (known is not None and known.is_here):
            yield
            return
        if known is not None:
            # Actors may be asked from any loop, and an engine is open in one.
            with self._known_here(Lodging(known.residents)) as lodging:
                try:
                    yield
                finally:
                    await lodging.engines.close()
            return
        interrupts = list[BaseException]()
        with self._known_here(self._lodging(interrupts)) as lodging:
            try:
                yield
            finally:
                await lodging.close()
        _raise_first(interrupts)

    @contextmanager
    def _known_here(self, lodging: Lodging) -> Generator[Lodging]:
        """Have the calling task, and what it starts, know where they live."""
        token = _lodgings.set({**_lodgings.get(), id(self): lodging})
        try:
            yield lodging
        finally:
            _lodgings.reset(token)

    def statistics(self) -> Mapping[str, ActorStatistics]:
        """What they do, by name; of those that live as the calling task knows it."""
        lodging = self.lodging()
        if lodging is None:
            return {}
        return {spec.name: one.statistics() for spec, one in zip(self.specs, lodging.residents.values(), strict=True)}

    def lodging(self) -> Lodging | None:
        """Where they live now, as the calling task knows it."""
        # That of a run first: it goes on with the actors that it has, even if the owner is opened meanwhile.
        return _lodgings.get().get(id(self)) or self._open

    def _lodging(self, interrupts: list[BaseException]) -> Lodging:
        residents = {
            number: Residents(spec.kept_in(JournalSnapshots()) if spec.is_in_journal else spec, interrupts.append)
            for number, spec in enumerate(self.specs)
        }
        return Lodging(residents)

    @property
    def in_journal(self) -> list[str]:
        """The names of those whose states are kept with a thread."""
        return [spec.name for spec in self.specs if spec.is_in_journal]

    @asynccontextmanager
    async def kept_in(self, journal: Journal) -> AsyncGenerator[None]:
        """Have the states of those be kept in this journal, while the block runs; they come to where it stands.

        Raises:
            ThreadBusyError: if another run of the thread uses the same actors.
        """
        lodging = self.lodging()
        living = [] if lodging is None else lodging.residents.values()
        here = [(one, kept) for one in living if isinstance(kept := one.spec.snapshots, JournalSnapshots)]
        token = _journals.set({**_journals.get(), id(self): journal})
        opened: list[tuple[Residents, JournalSnapshots]] = []
        try:
            for residents, kept in here:
                kept.open(journal)  # first: what is restarted meanwhile comes to the right place
                opened.append((residents, kept))
                await residents.dismiss(kept.strayed(residents.spec.name, journal, residents.alive))
            yield
        finally:
            _journals.reset(token)
            for residents, kept in opened:
                kept.close(journal, residents.alive)

    def journal(self) -> Journal:
        """Where the states of those are kept, as the calling task knows it.

        Raises:
            ValueError: if no agent has said so.
        """
        found = _journals.get().get(id(self))
        if found is None:
            raise ValueError(
                f"the actor {self.in_journal[0]} has snapshots='journal', and {self._owner} is not run by an agent of "
                "callboard's that has a checkpointer: create_react_agent(model, node, checkpointer=...). Elsewhere, "
                "have its state in a store: child(..., snapshots=InMemorySnapshots())"
            )
        return found


def _raise_first(interrupts: list[BaseException]) -> None:
    if interrupts:
        raise interrupts[0]


_journals: ContextVar[Mapping[int, Journal]] = ContextVar("callboard_journals", default=MappingProxyType({}))

_lodgings: ContextVar[Mapping[int, Lodging]] = ContextVar("callboard_lodgings", default=MappingProxyType({}))
