"""Detection of deadlocks between nested calls that wait for permits of limits.

Lending of permits does not prevent every deadlock, because calls may hold permits at several limits. A call is stuck
if each permit that it waits for is held by a stuck call. A call that waits for a stuck nested call is stuck, too. Only
a call that begins to wait can complete such a cycle; a granted permit never makes a call wait. So a nested call, or a
call that holds a permit, searches for a cycle once, right before it waits. No other call needs a search.
"""

from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager

from callboard._calls._limits import AnyGate, Holder, Wait
from callboard.exceptions import DeadlockError


@contextmanager
def waiting(attempt: Holder, wait: Wait, around: Collection[Holder], tool: str, call_id: str | None) -> Generator[None]:
    """Register the wait of an attempt during a `with` block; raise `DeadlockError` if the wait completes a cycle."""
    attempt.waits_for = wait
    # The enclosing attempts all wait for this one.
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


def _remedy(crowd: AnyGate) -> str:
    limit = crowd.title.removeprefix("the queue of ")
    return (
        f"Every place at the limit of {limit} is held by a call that waits for this one; raise its concurrency, or "
        "give the calls that run within others a limit of their own."
    )


def _circle(attempt: Holder, around: Collection[Holder]) -> list[Holder] | None:
    """Return a cycle of waiting attempts that begins and ends with `attempt`; `None` if there is no cycle."""
    if not _all_wait(attempt):  # cheap, and false for almost every wait
        return None
    stuck = _stuck(attempt)
    return _chain(attempt, around, stuck) if attempt in stuck else None


def _all_wait(attempt: Holder) -> bool:
    """Return whether every attempt that could free a permit for `attempt` is waiting too, as in each deadlock."""
    return attempt.waits_for is not None and _is_stuck(
        attempt.waits_for, lambda one: bool(one.stalled) or one.waits_for is not None
    )


def _is_stuck(wait: Wait, is_stuck: Callable[[Holder], bool]) -> bool:
    """Return whether a wait for a permit can never end; `is_stuck` tells whether an attempt can never end."""
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
    """Yield the waiting attempts on which the end of attempt `one` depends: nested attempts, and `one` itself."""
    yield from [] if one.stalled is None else list(one.stalled)
    if one.waits_for is not None:
        yield one


def _stuck(attempt: Holder) -> set[Holder]:
    """Return the waiting attempts that `attempt` depends on and that can never get a permit."""
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
    """Return, for an error text, a list of attempts, each of which waits for the next; it ends with `attempt` again."""
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
