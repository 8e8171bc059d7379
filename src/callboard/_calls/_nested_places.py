"""Places of calls that run within other calls: a call lends its place, and a circle of waiting calls is found.

A call that runs an agent, or another node, waits for the calls in there and does nothing else. So it lends each of
its places to the calls within it, one at a time. A limit that counts it holds all the same: of a call and those
within it, as many innermost bodies run as they have places.

Lending is not enough where calls hold places at several limits. A call is stuck if all places that it waits for are
held by calls that are stuck themselves, or wait for calls within them that are. Such a circle is closed by a call that
begins to wait, since a place that is given never makes anybody wait. So every call that somebody may wait for looks
for a circle once, right before it waits. A call of which nobody waits never looks.
"""

import threading
from collections.abc import Callable, Collection, Generator, Hashable, Iterator
from contextlib import contextmanager
from typing import Protocol

from callboard._loops._protocol import EventLoop
from callboard.exceptions import DeadlockError


class Turnstile(Protocol):
    """What an attempt passes right before its body starts."""

    async def pass_through(self, loop: EventLoop) -> None:
        """Wait until it may start, and count its start."""
        ...


class LentFrom(Protocol):
    """A place that can be lent: a gate, a place at a shared limit, or another loan."""

    @property
    def identity(self) -> Hashable:
        """Equal for all places of which one will do as well as another."""
        ...

    @property
    def starts(self) -> Turnstile | None:
        """Where its start is counted, if there is a rate of starts."""
        ...


class Holder(Protocol):
    """An attempt: it holds places, and may wait for one more."""

    waits_for: "Wait | None"
    """The place that it waits for, while it does."""
    stalled: "dict[Holder, None] | None"
    """The attempts within it that wait for a place."""

    @property
    def title(self) -> str:
        """The tool and the call, for errors."""
        ...


class Crowd(Protocol):
    """A limit, or one key of it, as far as the search for circles looks at it."""

    @property
    def concurrency(self) -> int | None:
        """How many places there are; `None` for any number."""
        ...

    @property
    def holders(self) -> Collection[Holder]:
        """The attempts of this process that hold a place."""
        ...

    @property
    def title(self) -> str:
        """The name of its queue, for errors."""
        ...


class LoanTurn:
    """The wait of one attempt for a lent place."""

    __slots__ = ("borrower", "is_granted", "wake")

    def __init__(self, borrower: Holder) -> None:
        self.borrower = borrower
        self.is_granted = False
        self.wake: Callable[[], object] | None = None
        """Called once the loan is granted; set by the gate in whose queue the attempt waits, too."""

    def when_granted(self, wake: Callable[[], object]) -> None:
        """Call `wake` once the loan is granted, or at once if it has been."""
        self.wake = wake
        if self.is_granted:  # looked at after `wake` was set, and granted before `wake` is read
            wake()


class Loan:
    """The place of an attempt, lent to the attempts within it, one at a time.

    Args:
        place: that is lent.
        give_back: gives the place back for good.
    """

    __slots__ = ("_give_back", "_lender_has_left", "_lock", "_place", "_waiting", "borrower")

    def __init__(self, place: LentFrom, give_back: Callable[[], None]) -> None:
        self.borrower: Holder | None = None
        self._place = place
        self._give_back = give_back
        self._waiting: dict[LoanTurn, None] = {}
        self._lender_has_left = False
        self._lock = threading.Lock()

    @property
    def identity(self) -> Hashable:
        """That of the place."""
        return self._place.identity

    @property
    def starts(self) -> Turnstile | None:
        """The gate that counts starts: the start of a borrower counts as any other."""
        return self._place.starts

    @property
    def token(self) -> int | None:
        """The fencing token of the place, if it is shared."""
        return getattr(self._place, "token", None)

    @property
    def is_lost(self) -> bool:
        """Whether the place was lost at the store of a shared limit, because this process stood still."""
        return getattr(self._place, "is_lost", False)

    @property
    def is_closed(self) -> bool:
        """Whether nobody can be lent this place any more."""
        return self._lender_has_left

    def try_borrow(self, borrower: Holder) -> bool:
        """Take the place, if the lender has it and no attempt has borrowed it."""
        with self._lock:
            if self.borrower is not None or self._lender_has_left:
                return False
            self.borrower = borrower
            return True

    def wait_for(self, turn: LoanTurn) -> None:
        """Join the queue of the loan; `turn` is granted at once if the place is free."""
        with self._lock:
            if self._lender_has_left:
                return
            if self.borrower is not None:
                self._waiting[turn] = None
                return
            self.borrower = turn.borrower
        self._grant(turn)

    def withdraw(self, turn: LoanTurn) -> None:
        """Leave the queue, and give the place back if it was granted."""
        with self._lock:
            self._waiting.pop(turn, None)
            is_mine = self.borrower is turn.borrower
        if is_mine:
            self.leave()

    def leave(self) -> None:
        """Give the place to the next borrower, or back to the lender, or back for good if the lender has left."""
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
        """Give the place back for good, once it is not lent; from now on it is lent to nobody."""
        with self._lock:
            self._lender_has_left = True
            self._waiting.clear()  # these attempts stand in the queue of the limit, too
            is_over = self.borrower is None
        if is_over:
            self._give_back()

    def _grant(self, turn: LoanTurn) -> None:
        turn.is_granted = True
        if turn.wake is not None:
            turn.wake()


class Wait:
    """A wait for a place at a limit, or for a lent one at the same limit."""

    __slots__ = ("crowd", "loan")

    def __init__(self, crowd: Crowd, loan: Loan | None) -> None:
        self.crowd = crowd
        self.loan = loan

    def may_end_by(self) -> tuple[Collection[Holder], Holder | None]:
        """The attempts that hold the places, and the borrower of the loan, if it is lent."""
        return list(self.crowd.holders), None if self.loan is None else self.loan.borrower


@contextmanager
def waiting(attempt: Holder, wait: Wait, around: Collection[Holder], tool: str, call_id: str | None) -> Generator[None]:
    """A block in which an attempt waits for a place.

    Args:
        attempt: that waits.
        wait: for what.
        around: the attempts that it runs within; all of them wait for it.
        tool: the name of its tool, for errors.
        call_id: of its call.

    Raises:
        DeadlockError: if it would wait for itself.
    """
    attempt.waits_for = wait
    for one in around:
        if one.stalled is None:
            one.stalled = {}
        one.stalled[attempt] = None
    try:
        # Registered first: of two attempts in two threads that close a circle at once, at least one finds it.
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
    """The attempts that would wait for each other, the first one again last; `None` if there is no circle."""
    if not _all_wait(attempt):
        return None
    stuck = _stuck(attempt)
    return _chain(attempt, around, stuck) if attempt in stuck else None


def _all_wait(attempt: Holder) -> bool:
    """Return whether everybody waits from whom the attempt could get a place: a quick look, before the search."""
    return attempt.waits_for is not None and _is_stuck(
        attempt.waits_for, lambda one: bool(one.stalled) or one.waits_for is not None
    )


def _is_stuck(wait: Wait, is_stuck: Callable[[Holder], bool]) -> bool:
    """Return whether a wait has no end, given which attempts have none."""
    holders, borrower = wait.may_end_by()
    concurrency, loan = wait.crowd.concurrency, wait.loan
    if concurrency is None or len(holders) < concurrency:
        return False  # a place is free, or is held by an attempt of another process or by other work
    if loan is not None and not loan.is_closed and (borrower is None or not is_stuck(borrower)):
        return False
    return all(is_stuck(one) for one in holders)


def _waits_of(one: Holder) -> Iterator[Holder]:
    """The attempts that have to get their places before this one ends."""
    yield from [] if one.stalled is None else list(one.stalled)
    if one.waits_for is not None:
        yield one


def _stuck(attempt: Holder) -> set[Holder]:
    """The waiting attempts, of those that this one depends on, that never get a place."""
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
    """Follow the waits from an attempt back to itself."""
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
