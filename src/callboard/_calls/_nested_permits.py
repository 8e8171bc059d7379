"""Permits of nested calls: a call lends its permits to the calls within it, and deadlocks are detected.

A call that runs an agent, or another node, only waits for the calls inside. So it lends each of its permits to these
nested calls, one at a time. The limit still holds: the innermost bodies that run are never more than the permits.

Lending does not prevent every deadlock, because calls may hold permits at several limits. A call is stuck if each
permit that it waits for is held by a stuck call. A call that waits for a stuck nested call is stuck, too. Only a call
that begins to wait can complete such a cycle; a granted permit never makes a call wait. So a nested call, or a call
that holds a permit, searches for a cycle once, right before it waits. No other call needs a search.
"""

import threading
from collections.abc import Callable, Collection, Generator, Hashable, Iterator
from contextlib import contextmanager
from typing import Protocol

from callboard._loops._protocol import EventLoop
from callboard.exceptions import DeadlockError


class Turnstile(Protocol):
    """Gate for the rate of starts, passed right before a body starts."""

    async def pass_through(self, loop: EventLoop) -> None:
        """Wait until a start is allowed, and count it."""
        ...


class LentFrom(Protocol):
    """Permit that can be lent: at a gate, at a shared limit, or from another loan."""

    @property
    def identity(self) -> Hashable:
        """Key that is equal for gates with interchangeable permits."""
        ...

    @property
    def starts(self) -> Turnstile | None:
        """Gate that counts starts, if there is a rate."""
        ...


class Holder(Protocol):
    """Attempt, as deadlock detection sees it: it holds permits, and may wait for one more."""

    waits_for: "Wait | None"
    """Current wait for a permit; `None` while the attempt does not wait."""
    stalled: "dict[Holder, None] | None"
    """Nested attempts that wait for a permit."""

    @property
    def title(self) -> str:
        """Tool and call, for errors."""
        ...


class Crowd(Protocol):
    """Limit, or one key of a limit, as deadlock detection sees it."""

    @property
    def concurrency(self) -> int | None:
        """Number of permits; `None` for no limit."""
        ...

    @property
    def holders(self) -> Collection[Holder]:
        """Attempts of this process that hold a permit."""
        ...

    @property
    def title(self) -> str:
        """Name of the queue, for errors."""
        ...


class LoanTurn:
    """Wait of one attempt for a lent permit."""

    __slots__ = ("borrower", "is_granted", "wake")

    def __init__(self, borrower: Holder) -> None:
        self.borrower = borrower
        self.is_granted = False
        self.wake: Callable[[], object] | None = None
        """Called when the loan is granted; set by the gate in whose queue the attempt waits, too."""

    def when_granted(self, wake: Callable[[], object]) -> None:
        """Call `wake` when the loan is granted, or at once if it is granted already."""
        # No lock is needed: this thread writes `wake` and then reads `is_granted`; `_grant` writes `is_granted` and
        # then reads `wake`. So at least one of the two calls `wake`; a second call has no effect.
        self.wake = wake
        if self.is_granted:
            wake()


class Loan:
    """Permit of an attempt, lent to the attempts nested in it, one at a time.

    Args:
        place: the lent permit.
        give_back: releases the permit finally.
    """

    __slots__ = ("_give_back", "_lender_has_left", "_lock", "_place", "_waiting", "borrower")

    def __init__(self, place: LentFrom, give_back: Callable[[], None]) -> None:
        # Invariant: `_give_back` is called exactly once, when the lender has left and there is no borrower. `borrower`,
        # `_waiting` and `_lender_has_left` change only under `_lock`; callbacks run outside of it.
        self.borrower: Holder | None = None
        self._place = place
        self._give_back = give_back
        self._waiting: dict[LoanTurn, None] = {}
        self._lender_has_left = False
        self._lock = threading.Lock()

    @property
    def identity(self) -> Hashable:
        """Identity of the permit."""
        return self._place.identity

    @property
    def starts(self) -> Turnstile | None:
        """Gate that counts starts; the start of a borrower counts like any other."""
        return self._place.starts

    @property
    def token(self) -> int | None:
        """Fencing token of the permit, if it is shared."""
        return getattr(self._place, "token", None)

    @property
    def is_lost(self) -> bool:
        """True if the store of a shared limit may have given the permit to another process."""
        return getattr(self._place, "is_lost", False)

    @property
    def is_closed(self) -> bool:
        """True if the lender has left, so that the permit is not lent any more."""
        return self._lender_has_left

    def try_borrow(self, borrower: Holder) -> bool:
        """Borrow the permit if it is available now."""
        with self._lock:
            if self.borrower is not None or self._lender_has_left:
                return False
            self.borrower = borrower
            return True

    def wait_for(self, turn: LoanTurn) -> None:
        """Join the queue of the loan; `turn` is granted at once if the permit is available."""
        with self._lock:
            if self._lender_has_left:  # the attempt waits in the queue of the gate, too
                return
            if self.borrower is not None:
                self._waiting[turn] = None
                return
            self.borrower = turn.borrower
        self._grant(turn)

    def withdraw(self, turn: LoanTurn) -> None:
        """Leave the queue of the loan, and return the permit if it was granted."""
        with self._lock:
            self._waiting.pop(turn, None)
            is_mine = self.borrower is turn.borrower
        if is_mine:
            self.leave()

    def leave(self) -> None:
        """Pass the permit to the next borrower or to the lender; release it if the lender has left."""
        with self._lock:
            turn = next(iter(self._waiting), None)
            if turn is not None:
                del self._waiting[turn]
            self.borrower = None if turn is None else turn.borrower
            is_over = turn is None and self._lender_has_left
        if turn is not None:
            self._grant(turn)
        elif is_over:
            self._give_back()

    def lender_leaves(self) -> None:
        """Stop lending; release the permit now, or when the last borrower returns it."""
        with self._lock:
            self._lender_has_left = True
            self._waiting.clear()  # these attempts wait in the queue of the gate, too
            is_over = self.borrower is None
        if is_over:
            self._give_back()

    def _grant(self, turn: LoanTurn) -> None:
        turn.is_granted = True
        if turn.wake is not None:
            turn.wake()


class Wait:
    """Wait for a permit of a limit, or for a loan of such a permit."""

    __slots__ = ("crowd", "loan")

    def __init__(self, crowd: Crowd, loan: Loan | None) -> None:
        self.crowd = crowd
        self.loan = loan

    def may_end_by(self) -> tuple[Collection[Holder], Holder | None]:
        """Return the holders of the permits and the borrower of the loan; the end of any of them may end the wait."""
        return list(self.crowd.holders), None if self.loan is None else self.loan.borrower


@contextmanager
def waiting(attempt: Holder, wait: Wait, around: Collection[Holder], tool: str, call_id: str | None) -> Generator[None]:
    """Register the wait of an attempt during the block; raise `DeadlockError` if the wait completes a cycle.

    `around` are the enclosing attempts, which all wait for this one; `tool` and `call_id` are for the error.
    """
    attempt.waits_for = wait
    for one in around:
        if one.stalled is None:
            one.stalled = {}
        one.stalled[attempt] = None
    try:
        # Registered before the search: if two threads complete a cycle at the same time, at least one of them finds it.
        if (chain := _circle(attempt, frozenset(around))) is not None:
            raise DeadlockError(tool, call_id, tuple(one.title for one in chain), remedy=_remedy(wait.crowd))
        yield
    finally:
        attempt.waits_for = None
        for one in around:
            if one.stalled is not None:
                one.stalled.pop(attempt, None)


def _remedy(crowd: Crowd) -> str:
    limit = crowd.title.removeprefix("the queue of ")
    return (
        f"Every place at the limit of {limit} is held by a call that waits for this one; raise its concurrency, or "
        "give the calls that run within others a limit of their own."
    )


def _circle(attempt: Holder, around: Collection[Holder]) -> list[Holder] | None:
    """Return a cycle of waiting attempts that begins and ends with `attempt`, or `None`."""
    if not _all_wait(attempt):  # cheap, and false for almost every wait
        return None
    stuck = _stuck(attempt)
    return _chain(attempt, around, stuck) if attempt in stuck else None


def _all_wait(attempt: Holder) -> bool:
    """Return whether every attempt from which this one could get a permit waits, too: a necessary condition."""
    return attempt.waits_for is not None and _is_stuck(
        attempt.waits_for, lambda one: bool(one.stalled) or one.waits_for is not None
    )


def _is_stuck(wait: Wait, is_stuck: Callable[[Holder], bool]) -> bool:
    """Return whether a wait never ends, given a predicate for stuck attempts."""
    holders, borrower = wait.may_end_by()
    concurrency, loan = wait.crowd.concurrency, wait.loan
    # A holder that is not listed counts as one that will end. So a deadlock across processes is not found, and a permit
    # of unknown work never causes a `DeadlockError`.
    if concurrency is None or len(holders) < concurrency:
        return False  # a permit is free, or is held by another process or by work that is no attempt
    if loan is not None and not loan.is_closed and (borrower is None or not is_stuck(borrower)):
        return False
    return all(is_stuck(one) for one in holders)


def _waits_of(one: Holder) -> Iterator[Holder]:
    """Yield the waiting attempts that must get their permits before this attempt can end: nested ones, and itself."""
    yield from [] if one.stalled is None else list(one.stalled)
    if one.waits_for is not None:
        yield one


def _stuck(attempt: Holder) -> set[Holder]:
    """Return the waiting attempts, among those that this one depends on, that never get a permit."""
    # First all that this attempt depends on, then remove those whose wait can end, until no more can be removed. What
    # remains is the largest set of attempts that wait only for each other.
    stuck: set[Holder] = set()
    todo = [attempt]
    while todo:
        one = todo.pop()
        if one in stuck or (wait := one.waits_for) is None:
            continue
        stuck.add(one)
        holders, borrower = wait.may_end_by()
        for holder in (*holders, *([] if borrower is None else [borrower])):
            todo += _waits_of(holder)

    def is_stuck(holder: Holder) -> bool:
        return any(one in stuck for one in _waits_of(holder))

    while freed := {one for one in stuck if one.waits_for is None or not _is_stuck(one.waits_for, is_stuck)}:
        stuck -= freed
    return stuck


def _chain(attempt: Holder, around: Collection[Holder], stuck: Collection[Holder]) -> list[Holder]:
    """Return the attempts on a path of waits from an attempt back to itself, for the error."""
    chain, here = [attempt], attempt
    while here.waits_for is not None:
        holders, _ = here.waits_for.may_end_by()
        holder = next((one for one in holders if one in around), None) or next(iter(holders))
        if holder is not here:
            chain.append(holder)
        if holder in around or holder is attempt:
            break
        here = next((one for one in _waits_of(holder) if one in stuck), attempt)
        if here in chain[:-1]:
            break
        if here is not holder:
            chain.append(here)
    return [*chain, attempt] if chain[-1] is not attempt or len(chain) == 1 else chain
