"""Permits of one attempt at the limits of its call, and their loans to nested attempts.

A call that runs an agent, or another node, only waits for the calls inside. So it lends each of its permits to these
nested calls, one at a time. The limit still holds: the innermost bodies that run are never more than the permits.
"""

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial

from callboard._calls._deadlocks import Holder, PermitQueue, waiting
from callboard._calls._gate import Gate, NoPlaceError
from callboard._calls._limits import AnyGate, AnyLimiter
from callboard._calls._shared_permits import SharedPermit
from callboard._calls._thread_pool import ThreadPermits
from callboard._loops._protocol import EventLoop
from callboard._records._policies import CallContext, Limit, ToolCallLike

_lending = threading.Lock()
"""Lock for lending and releasing permits; shared by all attempts, because the lock is held very briefly."""


class Loan:
    """Permit that an attempt lends to its nested attempts, one at a time.

    It is released when neither the lender nor a nested attempt needs it any more.
    """

    __slots__ = ("_give_back", "_lock", "_permit", "_users", "borrower_queue")

    def __init__(self, permit: "AnyGate | Loan", title: str, give_back: Callable[[], None]) -> None:
        self.borrower_queue = Gate(Limit(concurrency=1), title)
        """Queue of the nested attempts; its holder has the permit."""
        self._permit = permit
        self._give_back = give_back
        self._users = 1  # the lender, and each nested attempt that has the permit or waits for it
        self._lock = threading.Lock()

    @property
    def identity(self) -> Hashable:
        """Identity of the lent permit; equal for permits that are interchangeable."""
        return self._permit.identity

    @property
    def start_rate_gate(self) -> "Gate | None":
        """Rate limit of this process that must count the borrower's start; `None` if there is none."""
        return self._permit.start_rate_gate

    @property
    def token(self) -> int | None:
        """Fencing token of the lent permit; `None` if the permit is not shared."""
        return None if isinstance(self._permit, Gate) else self._permit.token

    @property
    def is_lost(self) -> bool:
        """True if the store of a shared limit may have given the permit to another process."""
        return not isinstance(self._permit, Gate) and self._permit.is_lost

    def join(self) -> None:
        """Keep the permit for one more nested attempt, until this attempt withdraws. The lender must not have left."""
        with self._lock:
            self._users += 1

    def withdraw(self) -> None:
        """End the use of the permit by the lender or by one nested attempt; the last one releases the permit."""
        with self._lock:
            self._users -= 1
            is_over = not self._users
        if is_over:
            self._give_back()


@dataclass(slots=True, eq=False, repr=False)
class Permits:
    """Permits that one attempt holds: its own, and those that it has borrowed from enclosing attempts."""

    tool: str
    call_id: str | None
    _loop: EventLoop
    _enclosing: "tuple[Permits, ...]"
    """Permits of the attempts that enclose this one, the nearest first."""
    # Permits and loans change under `_lending` once the body runs: nested calls borrow from other threads and loops.
    _permits: tuple[AnyGate | Loan, ...] = ()
    """Permits in the order of the limits; a `Loan` is a permit borrowed from an enclosing attempt."""
    _loans: dict[Hashable, Loan] | None = None
    """Loans of the permits to nested attempts, by identity of the permit; `None` before the first loan."""
    waits_for: PermitQueue | None = None
    stalled: dict[Holder, None] | None = None
    awaited_queue: PermitQueue | None = None
    """Queue of the limit at which the attempt asks for a permit, for reports; `None` before the first one."""

    @property
    def title(self) -> str:
        """Name of the tool and id of the call, as text for errors."""
        return f"{self.tool!r} (call {self.call_id!r})"

    async def acquire(
        self,
        call: ToolCallLike,
        limiters: Sequence[AnyLimiter],
        context: Callable[[], CallContext],
        threads: ThreadPermits | None,
    ) -> None:
        """Acquire a permit at every limiter, in order; raise `NoPlaceError` if a queue is full."""
        while True:
            for limiter in limiters:
                gate = self.awaited_queue = limiter.gate(call, self._loop, context)
                # All threads may have been abandoned while this attempt waited.
                if threads is not None and (lost := threads.lost) is not None:
                    raise NoPlaceError(lost)
                if self._enclosing or self._permits:
                    permit = await self._acquire_or_borrow(gate, partial(limiter.tenant_of, call, context))
                else:  # no call waits for this one, so no deadlock is possible; fewer frames for thousands of waiters
                    if not gate.try_enter(self._loop):
                        await gate.enter(self._loop, limiter.tenant_of(call, context))
                    gate.add_holder(self)
                    permit = gate
                self._permits = (*self._permits, permit)
            if await count_start(self._permits, self._loop):
                return
            # A shared permit was lost during the wait. All are acquired anew, in order: see `count_start`.
            self.release()

    async def _acquire_or_borrow(self, gate: AnyGate, tenant_of: Callable[[], Hashable]) -> AnyGate | Loan:
        """Acquire a permit at a limit, or borrow one; raise `DeadlockError` in a deadlock."""
        # Only for nested attempts, and for attempts that hold a permit already: only these can be part of a deadlock.
        loans = (permits.lend(gate) for permits in self._enclosing) if gate.is_lendable else ()
        loan = next((loan for loan in loans if loan is not None), None)
        queue = gate if loan is None else loan.borrower_queue
        if not queue.try_enter(self._loop):
            if loan is not None and gate.try_enter(self._loop):  # another has the loan, but a permit is free
                loan.withdraw()
                gate.add_holder(self)
                return gate
            try:
                with waiting(self, queue, self._enclosing):
                    await queue.enter(self._loop, tenant_of())
            except BaseException:
                if loan is not None:
                    loan.withdraw()
                raise
        queue.add_holder(self)
        return gate if loan is None else loan

    @property
    def fencing_token(self) -> int | None:
        """Fencing token of the first permit at a shared limit; `None` without such a permit."""
        tokens = (permit.token for permit in self._permits if isinstance(permit, (SharedPermit, Loan)))
        return next((token for token in tokens if token is not None), None)

    def lend(self, gate: AnyGate) -> Loan | None:
        """Return a `Loan` of a permit of this limit, joined for the caller; `None` if the attempt holds none now."""
        with _lending:  # a permit that is being released must not be lent any more
            loan = None if self._loans is None else self._loans.get(gate.identity)
            if loan is None:
                permit = next((permit for permit in self._permits if permit.identity == gate.identity), None)
                if permit is None:
                    return None
                loan = Loan(permit, gate.title, partial(self._give_back, permit))
                self._loans = {**(self._loans or {}), gate.identity: loan}
            if loan.is_lost:  # the store may have given it to another process: the borrower has to acquire its own
                return None
            loan.join()
            return loan

    def release(self) -> None:
        """Release all permits; nested attempts that have borrowed one keep it until their own end."""
        with _lending:  # taken out in one step: a nested attempt either borrows before, or finds no permit
            permits, self._permits = self._permits, ()
            loans, self._loans = self._loans or {}, None
        for permit in reversed(permits):
            if (loan := loans.get(permit.identity)) is not None:
                loan.withdraw()  # the last nested attempt releases it, if some have it or wait for it
            else:
                self._give_back(permit)

    def _give_back(self, permit: AnyGate | Loan) -> None:
        queue = permit.borrower_queue if isinstance(permit, Loan) else permit
        # Before the permit is free: `holders` must never list more attempts than there are permits.
        queue.remove_holder(self)
        queue.leave()
        if isinstance(permit, Loan):
            permit.withdraw()


async def count_start(permits: Sequence[AnyGate | Loan], loop: EventLoop) -> bool:
    """Wait until all rate limits allow one more start, and count the start; return `False` if a permit was lost."""
    # A permit is lost if this process was suspended longer than its lease. Then the caller must release all permits and
    # acquire them again in order: a call that holds a later one and waits for an earlier one could wait for ever.
    for permit in permits:
        if permit.start_rate_gate is not None:
            await permit.start_rate_gate.pass_through(loop)
    if any(permit.is_lost for permit in permits if isinstance(permit, (SharedPermit, Loan))):
        return False
    # Last, and without an `await`: between the start that other processes count and the body, nothing may wait.
    for permit in permits:
        if isinstance(permit, SharedPermit):
            permit.begin()
    return True
