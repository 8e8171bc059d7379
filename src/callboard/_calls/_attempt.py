"""One execution of a call's body: its places and its thread."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar

from callboard._calls._limits import Gate, Gates, Limiter, NoPlaceError
from callboard._loops._levels import Levels
from callboard._loops._protocol import EventLoop
from callboard._loops._threads import run_in_thread
from callboard._types import Limit, ToolCallLike

T = TypeVar("T")


class Owner(Protocol):
    """The call whose attempt it is."""

    loop: EventLoop

    def note(self, what: str, facts: Mapping[str, object]) -> None:
        """Tell observers of the call."""
        ...


class ThreadPlaces:
    """The worker threads of one node: how many there may be, and which have been abandoned."""

    def __init__(self, concurrency: int) -> None:
        self.limiters = Levels(lambda: Limiter(Limit(concurrency=concurrency), "the worker threads' queue"))
        self.concurrency = concurrency
        self.abandoned: set[object] = set()

    def at_least(self, concurrency: int | None) -> "ThreadPlaces":
        """These, or so many for one run that asks for more; those that are abandoned count for all."""
        if concurrency is None or concurrency <= self.concurrency:
            return self
        wider = ThreadPlaces(concurrency)
        wider.abandoned = self.abandoned
        return wider

    @property
    def lost(self) -> str | None:
        """Why no thread can be had, in words, if that is so."""
        if len(self.abandoned) < self.concurrency:
            return None
        return f"all {self.concurrency} worker threads are held by calls that were given up and still run"


class Attempt:
    """One execution of a call's body: the places it holds, and the thread it may take.

    Args:
        owner: the supervised call.
        call: as this attempt executes it; a middleware may have changed it.
        threads: where it finds a thread.
    """

    __slots__ = ("_call", "_handed_over", "_owner", "_places", "_thread_limiter", "_threads")

    def __init__(self, owner: Owner, call: ToolCallLike, threads: ThreadPlaces | None) -> None:
        self._owner = owner
        self._call = call
        self._threads = threads
        self._thread_limiter = None if threads is None else threads.limiters.here()
        self._places: tuple[Gate, ...] = ()
        self._handed_over = False

    async def run_in_thread(self, fn: Callable[[], T]) -> T:
        """Run a sync body in a worker thread, which keeps the attempt's places until it ends."""
        name = f"tool {self._call['name']!r} (call {self._call.get('id')!r})"
        if self._threads is None:
            return await run_in_thread(self._owner.loop, fn, name, self)
        with self._threads.limiters.below():
            return await run_in_thread(self._owner.loop, fn, name, self)

    async def enter(self, limiters: Iterable[Gates]) -> None:
        """Take a place at every limiter, in turn.

        Raises:
            NoPlaceError: if one of them has none, and no room to wait either.
        """
        loop = self._owner.loop
        if self._thread_limiter is not None:
            limiters = (*limiters, self._thread_limiter)
        for limiter in limiters:
            gate = limiter.gate(self._call, loop)
            self._refuse_if_lost()  # perhaps while it waited
            if not gate.try_enter(loop):
                await gate.enter(loop)
            self._places = (*self._places, gate)
        for gate in self._places:
            if gate.starts is not None:
                await gate.starts.pass_through(loop)

    def _refuse_if_lost(self) -> None:
        if self._threads is not None and (lost := self._threads.lost) is not None:
            raise NoPlaceError(lost)

    def leave(self) -> None:
        """Give the places back, unless a thread still needs them."""
        if not self._handed_over:
            self._leave_places()

    def _leave_places(self) -> None:
        places, self._places = self._places, ()
        for gate in reversed(places):
            gate.leave()

    def thread_abandoned(self) -> None:
        """Let the thread keep the places, and refuse those who wait for a thread if it was the last."""
        self._handed_over = True
        self._owner.note("abandoned", {})
        threads, limiter = self._threads, self._thread_limiter
        if threads is not None and limiter is not None:
            threads.abandoned.add(self)
            if threads.lost is not None:
                limiter.gate(self._call, self._owner.loop).refuse_waiting(threads.lost)

    def thread_ended(self) -> None:
        if self._threads is not None:
            self._threads.abandoned.discard(self)
        self._leave_places()
