"""Attempt: one execution of a call's body, with its permits, its worker thread and its timeouts.

The timeouts are suspended while the body waits for its turn in an engine.
"""

import math
import threading
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from time import monotonic
from typing import Any, NamedTuple, Protocol, TypeVar

from callboard._calls._idempotency import KeyScope, key_of
from callboard._calls._limits import GatePermit, Gates, Limiter, NoPlaceError
from callboard._calls._nested_permits import Holder, Loan, LoanTurn, Wait, waiting
from callboard._calls._progress import Progress, Reporter, Throttle, reporter
from callboard._calls._shared_limits import SharedPermit, count_start
from callboard._loops._current import run_there
from callboard._loops._deadline import Timed, TimeLimit, current_timed
from callboard._loops._idle import IdleScope, report_activity
from callboard._loops._protocol import EventLoop, Scope
from callboard._loops._start_order import StartOrder
from callboard._loops._threads import PerDepth, run_in_thread
from callboard._records._policies import CallPolicy, Limit, ToolCallLike
from callboard.exceptions import CallTimeoutError

T = TypeVar("T")


# Timeouts


class OutOfTime(NamedTuple):
    """Reason why a timeout ended an attempt."""

    seconds: float
    is_idle: bool
    """True for the idle timeout, false for the timeout of the whole body."""
    held: str | None
    """Description of the code that blocked the event loop meanwhile, if any."""
    cause: Exception | None
    """Error that the clean-up of the body raised."""


class AttemptClock:
    """Timeout and idle timeout of one body.

    Args:
        loop: the running event loop.
        policy: has both timeouts.
        until: deadline of the call, in loop time.
        grace: seconds of clean-up.
    """

    __slots__ = ("_began", "_grace", "_idle", "_loop", "_scope", "_timed", "_timeout", "_until")

    def __init__(self, loop: EventLoop, policy: CallPolicy, until: float, grace: float) -> None:
        self._loop = loop
        self._timeout = policy.timeout
        self._until = until
        self._grace = grace
        self._began = monotonic()
        deadline = self._deadline()
        idle = policy.idle_timeout
        self._idle = None if idle is None else IdleScope(loop, idle, deadline, grace)
        self._scope: Scope = loop.scope(deadline, grace) if self._idle is None else self._idle
        self._timed = Timed(loop, min(until, deadline), grace)

    def _deadline(self) -> float:
        return math.inf if self._timeout is None else self._loop.now() + self._timeout

    async def run(self, body: Callable[[], Awaitable[T]]) -> "T | OutOfTime":
        """Run the body; return its result, or the reason if a timeout ended it."""
        token = current_timed.set(self._timed)
        try:
            with (limit := TimeLimit(self._scope)):
                return await body()
        finally:
            current_timed.reset(token)
        # Reached only if a timeout ended the block.
        idle = self._idle
        if idle is not None and idle.was_idle:
            return OutOfTime(idle.seconds, True, self._loop.pulse.held_since(idle.since), limit.cause)
        assert self._timeout is not None
        return OutOfTime(self._timeout, False, self._loop.pulse.held_since(self._began), limit.cause)

    def hold(self) -> None:
        """Suspend both timeouts while the body waits for its turn in an engine; only in the loop's thread."""
        self._timed.until = self._until
        if self._idle is not None:
            self._idle.hold()
        else:
            self._scope.move(math.inf)

    def go_on(self) -> None:
        """Restart both timeouts from zero, because the body begins; from any thread."""
        run_there(self._loop, self._begin_anew)

    def _begin_anew(self) -> None:
        self._began, deadline = monotonic(), self._deadline()
        self._timed.until = min(self._until, deadline)
        if self._idle is not None:
            self._idle.go_on(deadline)
        else:
            self._scope.move(deadline)


class Turn:
    """Wait of a body for its turn in an engine; its timeouts are suspended meanwhile."""

    __slots__ = ("_clock", "_is_over")

    def __init__(self, clock: AttemptClock) -> None:
        self._clock = clock
        self._is_over = False
        clock.hold()

    def begin(self) -> None:
        """Restart the timeouts, because the body begins; once, from any thread."""
        self._is_over = True  # before `go_on`: `end` in the event loop must not restart the timeouts a second time
        self._clock.go_on()

    def end(self) -> None:
        """Restart the timeouts if the body never began."""
        if not self._is_over:
            self._clock.go_on()


# Permits and execution


class Owner(Protocol):
    """Call of an attempt, as the attempt sees it."""

    loop: EventLoop
    until: float
    grace: float
    throttle: Throttle[Any] | None
    """Rate limit of progress reports, created by the first report."""
    outer: Reporter | None
    """Enclosing attempt or call, if there is one."""

    @property
    def id(self) -> str | None:
        """Id that the model gave to the call."""
        ...

    def report(self, progress: Progress, attempt: int | None = None) -> None:
        """Report progress of an attempt; from any thread."""
        ...

    def note(self, what: str, facts: Mapping[str, object]) -> None:
        """Report a decision about the call to its observers."""
        ...


class ThreadPermits:
    """Worker threads of one node: their limit, and the attempts whose threads were abandoned."""

    def __init__(self, concurrency: int) -> None:
        self.limiters = PerDepth(lambda: Limiter(Limit(concurrency=concurrency), "the worker threads' queue"))
        self.concurrency = concurrency
        self.abandoned: set[object] = set()  # added in event loops, removed in the threads: set operations are atomic
        self.order = StartOrder()

    def at_least(self, concurrency: int | None) -> "ThreadPermits":
        """Return this object, or a wider one for a run that asks for more threads."""
        if concurrency is None or concurrency <= self.concurrency:
            return self
        wider = ThreadPermits(concurrency)
        wider.abandoned = self.abandoned  # shared: an abandoned thread occupies the process, not one run
        return wider

    @property
    def lost(self) -> str | None:
        """Error text if all threads are abandoned and still run, else `None`."""
        if len(self.abandoned) < self.concurrency:
            return None
        return f"all {self.concurrency} worker threads are held by calls that were given up and still run"


_lending = threading.Lock()
"""Lock for lending a permit and for releasing all permits of an attempt; shared, because it is held very briefly."""


class Attempt:
    """Single execution of a call's body, with its permits, worker thread and time limits.

    Args:
        owner: the supervised call.
        call: the tool call as this attempt executes it; a middleware may have changed it.
        threads: worker threads of the node; `None` for a body that takes no thread.
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

    def __init__(self, owner: Owner, call: ToolCallLike, threads: ThreadPermits | None) -> None:
        self.owner = owner
        self.number = 0
        """Number of the attempt within its call while the body runs; 0 before and after."""
        self.clock: AttemptClock | None = None
        """Timeouts of the body, if it has any, while it runs."""
        self.scope: KeyScope | None = None
        """Unique name of the call for idempotency keys, once known."""
        self._call = call
        self._threads = threads
        self._thread_limiter = None if threads is None else threads.limiters.here()
        # Both change only under `_lending` once the body runs: nested calls borrow from other threads and loops.
        self._places: tuple[GatePermit | Loan, ...] = ()
        self._loans: dict[Hashable, Loan] | None = None
        """Permits that are, or were, lent to nested calls, by identity of the gate."""
        self.waits_for: Wait | None = None
        self.stalled: dict[Holder, None] | None = None
        self._handed_over = False  # True once an abandoned thread is responsible for releasing the permits

    @property
    def tool(self) -> str:
        """Name of the tool."""
        return str(self._call["name"])

    @property
    def call(self) -> ToolCallLike:
        """Tool call as this attempt executes it, without injected arguments."""
        return self._call

    @property
    def title(self) -> str:
        """Tool and call, for errors."""
        return f"{self.tool!r} (call {self.owner.id!r})"

    def begin(self, number: int) -> None:
        """Record the start of the body."""
        report_activity()  # the start and the end of a nested call are activity of the enclosing blocks
        self.number = number
        reporter.set(self)

    def end(self) -> None:
        """Record the end of the body."""
        self.number = 0  # from now on `report` ignores a thread or a task that the body has left behind
        reporter.set(self.owner)
        if self.owner.throttle is not None:
            self.owner.throttle.flush()
        report_activity()

    def report(self, progress: Progress) -> None:
        """Report progress of the body; from any thread, ignored after the end of the body."""
        if number := self.number:  # read once: the loop may set it to 0 meanwhile
            self.owner.report(progress, number)

    async def in_time(self, body: Callable[[], Awaitable[T]], policy: CallPolicy) -> T:
        """Run the body; raise `CallTimeoutError` when the timeout or the idle timeout of the policy is over."""
        owner = self.owner
        clock = self.clock = AttemptClock(owner.loop, policy, owner.until, owner.grace)
        found = await clock.run(body)
        if not isinstance(found, OutOfTime):
            return found
        name, seconds = self._call["name"], found.seconds
        raise CallTimeoutError(name, owner.id, seconds, held=found.held, idle=found.is_idle) from found.cause

    def waits(self) -> Turn | None:
        """Suspend the timeouts while the body waits for its turn in an engine; `None` without timeouts."""
        return None if self.clock is None else Turn(self.clock)

    async def run_in_thread(self, fn: Callable[[], T]) -> T:
        """Run a sync body in a worker thread; an abandoned thread keeps the attempt's permits until it ends."""
        name = f"tool {self._call['name']!r} (call {self._call.get('id')!r})"
        if self._threads is None:
            return await run_in_thread(self.owner.loop, fn, name, self)
        # Tools that `fn` runs and waits for use the thread limit one level deeper, or they could wait for `fn`.
        with self._threads.limiters.below():
            return await run_in_thread(self.owner.loop, fn, name, self, order=self._threads.order)

    async def enter(self, limiters: Sequence[Gates]) -> None:
        """Acquire a permit at every limiter, in order; raise `NoPlaceError` if a queue is full."""
        loop = self.owner.loop
        if self._thread_limiter is not None:
            limiters = (*limiters, self._thread_limiter)
        around: tuple[Attempt, ...] | None = None
        while True:
            for limiter in limiters:
                gate = limiter.gate(self._call, loop)
                self._refuse_if_lost()  # all threads may have been abandoned while this attempt waited
                if around is None:
                    around = tuple(self._around())
                if around or self._places:
                    place = await self._place_at(gate, around, loop)
                else:  # no call waits for this one, so no deadlock is possible; fewer frames for thousands of waiters
                    if not gate.try_enter(loop):
                        await gate.enter(loop)
                    place = self._holding(gate)
                self._places = (*self._places, place)
            if await count_start(self._places, loop):
                return
            # A shared permit was lost during the wait. All are acquired anew, in order: see `count_start`.
            self._leave_places()

    def _around(self) -> "Iterator[Attempt]":
        """Yield the enclosing attempts, the nearest first."""
        one = self.owner.outer
        while one is not None:
            if isinstance(one, Attempt):
                yield one
                one = one.owner.outer
            else:
                one = getattr(one, "outer", None)  # a call, if its middleware runs this attempt's call

    async def _place_at(self, gate: GatePermit, around: "tuple[Attempt, ...]", loop: EventLoop) -> GatePermit | Loan:
        """Acquire a permit, or borrow it from the nearest enclosing attempt; raise `DeadlockError` on a cycle."""
        # Only for nested attempts, and for attempts that hold a permit already: only these can be part of a deadlock.
        lent = (one.lend(gate.identity) for one in around) if around and gate.is_lendable else ()
        loan = next((one for one in lent if one is not None), None)
        if loan is not None and loan.try_borrow(self):
            return loan
        if loan is None and gate.try_enter(loop):
            return self._holding(gate)
        turn = None if loan is None else LoanTurn(self)
        # The attempt waits in two queues, of the gate and of the loan, and takes the permit that comes first.
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
            loan.withdraw(turn)  # returns the loan if it was granted at the same moment
            return self._holding(gate)

    def _holding(self, gate: GatePermit) -> GatePermit:
        """Register the attempt as holder of a permit, for deadlock detection."""
        if isinstance(gate, SharedPermit):
            gate.note_holder(self, has=True)
        elif gate.concurrency is not None:
            gate.holders.add(self)
        return gate

    def _give_back(self, gate: GatePermit) -> None:
        # Unregistered before the permit is free: `holders` must never list more attempts than there are permits.
        if isinstance(gate, SharedPermit):
            gate.note_holder(self, has=False)
        elif gate.concurrency is not None:
            gate.holders.discard(self)
        gate.leave()

    def lend(self, identity: Hashable) -> Loan | None:
        """Return the loan of a permit for a nested attempt; `None` if this attempt has no such permit or lost it."""
        with _lending:  # a permit that is being released must not be lent any more
            loan = None if self._loans is None else self._loans.get(identity)
            if loan is not None:
                return None if loan.is_lost else loan
            place = next((one for one in self._places if one.identity == identity), None)
            # The store may have given a lost permit to another process: the borrower has to acquire its own.
            if place is None or (isinstance(place, (SharedPermit, Loan)) and place.is_lost):
                return None
            give_back = place.leave if isinstance(place, Loan) else partial(self._give_back, place)
            loan = Loan(place, give_back)
            self._loans = {**(self._loans or {}), identity: loan}
            return loan

    @property
    def idempotency_key(self) -> str | None:
        """Idempotency key of the call, as `callboard.idempotency_key` returns it; `None` without a scope."""
        return None if self.scope is None else key_of(self._call, self.scope)

    @property
    def fencing_token(self) -> int | None:
        """Fencing token of the narrowest shared limit at which the attempt has a permit; `None` without one."""
        tokens = (place.token for place in self._places if isinstance(place, (SharedPermit, Loan)))
        return next((token for token in tokens if token is not None), None)

    def _refuse_if_lost(self) -> None:
        if self._threads is not None and (lost := self._threads.lost) is not None:
            raise NoPlaceError(lost)

    def leave(self) -> None:
        """Release the permits, unless an abandoned thread keeps them."""
        if not self._handed_over:
            self._leave_places()

    def _leave_places(self) -> None:
        if not self._places:
            return
        with _lending:  # taken out in one step: a nested attempt either borrows before, or finds no permit
            places, self._places = self._places, ()
            loans, self._loans = self._loans or {}, None
        for place in reversed(places):
            if (loan := loans.get(place.identity)) is not None:
                loan.lender_leaves()  # the last borrower releases it, if one has it now
            elif isinstance(place, Loan):
                place.leave()
            else:
                self._give_back(place)

    def thread_abandoned(self) -> None:
        """Let the thread keep the permits; reject queued calls if this was the last usable thread."""
        self._handed_over = True  # before `leave`, which the call reaches right after this
        self.owner.note("abandoned", {})
        threads, limiter = self._threads, self._thread_limiter
        if threads is not None and limiter is not None:
            threads.abandoned.add(self)
            if threads.lost is not None:
                limiter.gate(self._call, self.owner.loop).refuse_waiting(threads.lost)

    def thread_ended(self) -> None:
        """Release the permits at the end of an abandoned thread."""
        if self._threads is not None:
            self._threads.abandoned.discard(self)
        self._leave_places()


def own_attempt(tool: str) -> Attempt | None:
    """Return the running attempt if it executes this tool; `None` in another tool, whose timeout includes the wait."""
    attempt = reporter.get()
    return attempt if isinstance(attempt, Attempt) and attempt.tool == tool else None


_owned: ContextVar[tuple[int, object] | None] = ContextVar("callboard_owned", default=None)
"""Fencing token of the running actor's key in its fleet, and the attempt in which it was set."""


def fenced_by(token: int) -> None:
    """Set the fencing token of the current context; a call that begins within it has a token of its own."""
    _owned.set((token, reporter.get()))


def fencing_token() -> int | None:
    """Return the fencing token of the lease that protects the running code; `None` without a lease.

    In an actor of a fleet, the lease is that of its key. In a tool call, it is the permit at a shared limit; with
    several shared limits, at the narrowest.

    A later permit or owner has a higher token. A process that was suspended for too long loses its lease without
    noticing. So a resource should store the highest token that it has seen, and refuse requests with a lower one.
    This gives exclusive access with `Limit(concurrency=1)`; with more permits, it only recognizes late calls.
    """
    attempt, owned = reporter.get(), _owned.get()
    if owned is not None and owned[1] is attempt:
        return owned[0]
    return attempt.fencing_token if isinstance(attempt, Attempt) else None
