"""One execution of a call's body: its places and its thread."""

import threading
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, Protocol, TypeVar

from callboard._calls._attempt_clock import AttemptClock, OutOfTime, Turn
from callboard._calls._idempotency import Scope, key_of
from callboard._calls._limits import Gates, Limiter, NoPlaceError, Place
from callboard._calls._nested_places import Holder, Loan, LoanTurn, Wait, waiting
from callboard._calls._progress import Progress, Reporter, reporter
from callboard._calls._shared_limits import SharedPlace, count_start
from callboard._calls._throttle import Throttle
from callboard._loops._idle import alive
from callboard._loops._levels import Levels
from callboard._loops._protocol import EventLoop
from callboard._loops._start_order import StartOrder
from callboard._loops._threads import run_in_thread
from callboard._types import CallPolicy, Limit, ToolCallLike
from callboard.exceptions import CallTimeoutError

T = TypeVar("T")


class Owner(Protocol):
    """The call whose attempt it is."""

    loop: EventLoop
    until: float
    grace: float
    throttle: Throttle[Any] | None
    """What holds back reports of progress, once there have been some."""
    outer: Reporter | None
    """What the call runs within, if that is another call."""

    @property
    def id(self) -> str | None:
        """The id that the model gave to the call."""
        ...

    def report(self, progress: Progress, attempt: int | None = None) -> None:
        """Take in what an attempt says of its progress; from any thread."""
        ...

    def note(self, what: str, facts: Mapping[str, object]) -> None:
        """Tell observers of the call."""
        ...


class ThreadPlaces:
    """The worker threads of one node: how many there may be, and which have been abandoned."""

    def __init__(self, concurrency: int) -> None:
        self.limiters = Levels(lambda: Limiter(Limit(concurrency=concurrency), "the worker threads' queue"))
        self.concurrency = concurrency
        self.abandoned: set[object] = set()
        self.order = StartOrder()

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


_lending = threading.Lock()
"""Held while an attempt lends a place or gives all of them back; one for all, because it is held for an instant."""


class Attempt:
    """One execution of a call's body: the places it holds, the thread it may take, the time it has.

    Args:
        owner: the supervised call.
        call: as this attempt executes it; a middleware may have changed it.
        threads: where it finds a thread.
    """

    __slots__ = (
        "_call",
        "_handed_over",
        "_loans",
        "_places",
        "_thread_limiter",
        "_threads",
        "clock",
        "number",
        "owner",
        "scope",
        "stalled",
        "waits_for",
    )

    def __init__(self, owner: Owner, call: ToolCallLike, threads: ThreadPlaces | None) -> None:
        self.owner = owner
        self.number = 0
        """Which one of its call it is, while its body runs; 0 before and after."""
        self.clock: AttemptClock | None = None
        """Its timeouts, if it has any, while its body runs."""
        self.scope: Scope | None = None
        """What its call runs in, once that is known."""
        self._call = call
        self._threads = threads
        self._thread_limiter = None if threads is None else threads.limiters.here()
        self._places: tuple[Place | Loan, ...] = ()
        self._loans: dict[Hashable, Loan] | None = None
        """Its places that are lent, or were, to calls within it."""
        self.waits_for: Wait | None = None
        self.stalled: dict[Holder, None] | None = None
        self._handed_over = False

    @property
    def tool(self) -> str:
        """The name of what it executes."""
        return str(self._call["name"])

    @property
    def call(self) -> ToolCallLike:
        """The tool call as this attempt executes it, without injected arguments."""
        return self._call

    @property
    def title(self) -> str:
        """The tool and the call, for errors."""
        return f"{self.tool!r} (call {self.owner.id!r})"

    def begin(self, number: int) -> None:
        """Note that the body starts; its beginning and its end are signs of life of what is around the call."""
        alive()
        self.number = number
        reporter.set(self)

    def end(self) -> None:
        """Note that the body has ended; what it left behind, such as a thread, reports no more."""
        self.number = 0
        reporter.set(self.owner)
        if self.owner.throttle is not None:
            self.owner.throttle.flush()
        alive()

    def report(self, progress: Progress) -> None:
        """Take in what the body says of its progress; from any thread."""
        if number := self.number:
            self.owner.report(progress, number)

    async def in_time(self, body: Callable[[], Awaitable[T]], policy: CallPolicy) -> T:
        """Run the body until a timeout of its policy is over.

        Raises:
            CallTimeoutError: if it was: the timeout, or the idle one since the last sign of life.
        """
        owner = self.owner
        clock = self.clock = AttemptClock(owner.loop, policy, owner.until, owner.grace)
        found = await clock.run(body)
        if not isinstance(found, OutOfTime):
            return found
        name, seconds = self._call["name"], found.seconds
        raise CallTimeoutError(name, owner.id, seconds, held=found.held, idle=found.is_idle) from found.cause

    def waits(self) -> Turn | None:
        """Have the time stand still until its body has its turn elsewhere; `None` if it has no timeout."""
        return None if self.clock is None else Turn(self.clock)

    async def run_in_thread(self, fn: Callable[[], T]) -> T:
        """Run a sync body in a worker thread, which keeps the attempt's places until it ends."""
        name = f"tool {self._call['name']!r} (call {self._call.get('id')!r})"
        if self._threads is None:
            return await run_in_thread(self.owner.loop, fn, name, self)
        with self._threads.limiters.below():
            return await run_in_thread(self.owner.loop, fn, name, self, order=self._threads.order)

    async def enter(self, limiters: Sequence[Gates]) -> None:
        """Take a place at every limiter, in turn.

        Raises:
            NoPlaceError: if one of them has none, and no room to wait either.
        """
        loop = self.owner.loop
        if self._thread_limiter is not None:
            limiters = (*limiters, self._thread_limiter)
        around: tuple[Attempt, ...] | None = None
        while True:
            for limiter in limiters:
                gate = limiter.gate(self._call, loop)
                self._refuse_if_lost()  # perhaps while it waited
                if around is None:
                    around = tuple(self._around())
                if around or self._places:
                    place = await self._place_at(gate, around, loop)
                else:  # nobody waits for this call; thousands of them wait here, and each frame of theirs weighs
                    if not gate.try_enter(loop):
                        await gate.enter(loop)
                    place = self._holding(gate)
                self._places = (*self._places, place)
            if await count_start(self._places, loop):
                return
            self._leave_places()

    def _around(self) -> "Iterator[Attempt]":
        """The attempts that this one runs within, the nearest first."""
        one = self.owner.outer
        while one is not None:
            if isinstance(one, Attempt):
                yield one
                one = one.owner.outer
            else:
                one = getattr(one, "outer", None)  # a call, whose middleware runs this one

    async def _place_at(self, gate: Place, around: "tuple[Attempt, ...]", loop: EventLoop) -> Place | Loan:
        """Take a place, or borrow that of the nearest attempt around this one that has such a place.

        For an attempt that runs within another one, or has a place already.

        Raises:
            NoPlaceError: if there is none, and no room to wait.
            DeadlockError: if the attempt would wait for itself.
        """
        lent = (one.lend(gate.identity) for one in around) if around and gate.is_lendable else ()
        loan = next((one for one in lent if one is not None), None)
        if loan is not None and loan.try_borrow(self):
            return loan
        if loan is None and gate.try_enter(loop):
            return self._holding(gate)
        turn = None if loan is None else LoanTurn(self)
        with waiting(self, Wait(gate, loan), around, self.tool, self.owner.id):
            if loan is None or turn is None:
                await gate.enter(loop)
                return self._holding(gate)
            loan.wait_for(turn)
            try:
                has_own = await gate.enter(loop, turn)
            except BaseException:
                loan.withdraw(turn)
                raise
            if not has_own:
                return loan
            loan.withdraw(turn)
            return self._holding(gate)

    def _holding(self, gate: Place) -> Place:
        """Note that the attempt has a place of its own, for the search for circles."""
        if isinstance(gate, SharedPlace):
            gate.note_holder(self, has=True)
        elif gate.concurrency is not None:
            gate.holders.add(self)
        return gate

    def _give_back(self, gate: Place) -> None:
        if isinstance(gate, SharedPlace):
            gate.note_holder(self, has=False)
        elif gate.concurrency is not None:
            gate.holders.discard(self)
        gate.leave()

    def lend(self, identity: Hashable) -> Loan | None:
        """Return the loan of a place, for an attempt within this one; `None` if it has no such place, or lost it."""
        with _lending:  # a place that is being given back is not lent any more
            loan = None if self._loans is None else self._loans.get(identity)
            if loan is not None:
                return None if loan.is_lost else loan
            place = next((one for one in self._places if one.identity == identity), None)
            # A place that the store may have given to another process is not lent: the borrower takes one of its own.
            if place is None or (isinstance(place, (SharedPlace, Loan)) and place.is_lost):
                return None
            give_back = place.leave if isinstance(place, Loan) else partial(self._give_back, place)
            loan = Loan(place, give_back)
            self._loans = {**(self._loans or {}), identity: loan}
            return loan

    @property
    def idempotency_key(self) -> str | None:
        """The key by which a service knows the call again (`callboard.idempotency_key`); `None` without a scope."""
        return None if self.scope is None else key_of(self._call, self.scope)

    @property
    def fencing_token(self) -> int | None:
        """The fencing token of the narrowest shared limit at which it has a place; `None` if there is none."""
        tokens = (place.token for place in self._places if isinstance(place, (SharedPlace, Loan)))
        return next((token for token in tokens if token is not None), None)

    def _refuse_if_lost(self) -> None:
        if self._threads is not None and (lost := self._threads.lost) is not None:
            raise NoPlaceError(lost)

    def leave(self) -> None:
        """Give the places back, unless a thread still needs them."""
        if not self._handed_over:
            self._leave_places()

    def _leave_places(self) -> None:
        if not self._places:
            return
        with _lending:
            places, self._places = self._places, ()
            loans, self._loans = self._loans or {}, None
        for place in reversed(places):
            if (loan := loans.get(place.identity)) is not None:
                loan.lender_leaves()
            elif isinstance(place, Loan):
                place.leave()
            else:
                self._give_back(place)

    def thread_abandoned(self) -> None:
        """Let the thread keep the places, and refuse those who wait for a thread if it was the last."""
        self._handed_over = True
        self.owner.note("abandoned", {})
        threads, limiter = self._threads, self._thread_limiter
        if threads is not None and limiter is not None:
            threads.abandoned.add(self)
            if threads.lost is not None:
                limiter.gate(self._call, self.owner.loop).refuse_waiting(threads.lost)

    def thread_ended(self) -> None:
        if self._threads is not None:
            self._threads.abandoned.discard(self)
        self._leave_places()


def own_attempt(tool: str) -> Attempt | None:
    """The attempt of a tool that runs here; `None` in another tool that uses this one, whose timeout has the wait."""
    attempt = reporter.get()
    return attempt if isinstance(attempt, Attempt) and attempt.tool == tool else None


_owned: ContextVar[tuple[int, object] | None] = ContextVar("callboard_owned", default=None)
"""The token of the key that the running actor has in its fleet, and the attempt within which that was set."""


def fenced_by(token: int) -> None:
    """Have code work under this token from here on, as far as a variable reaches, and until a call begins within it."""
    _owned.set((token, reporter.get()))


def fencing_token() -> int | None:
    """The fencing token of what is leased to the running code.

    In an actor that has a fleet, that of its key. In a call, that of the shared limit at which it has a place; of
    several, the narrowest one's.

    Whoever is given a place later has a higher one. A process that stood still for too long has lost its place
    without knowing; a resource that keeps the highest token that it has seen can refuse what comes with a lower one.
    That is of use with `Limit(concurrency=1)`; with more places, it tells late calls from those that a lease
    protects. `None` outside a call, and where no limit is shared.
    """
    attempt, owned = reporter.get(), _owned.get()
    if owned is not None and owned[1] is attempt:
        return owned[0]
    return attempt.fencing_token if isinstance(attempt, Attempt) else None
