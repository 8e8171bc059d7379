"""Detection of deadlocks between nested calls that wait for permits of limits.

Lending of permits does not prevent every deadlock, because calls may hold permits at several limits. A call is stuck
if each permit that it waits for is held by a stuck call. A call that waits for a stuck nested call is stuck, too. Only
a call that begins to wait can complete such a cycle; a granted permit never makes a call wait. So a nested call, or a
call that holds a permit, searches for a cycle once, right before it waits. No other call needs a search.
"""

from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager
from typing import Protocol

from callboard.exceptions import DeadlockError


class PermitQueue(Protocol):
    """Protocol of the queue of a limit, of this process or shared, as deadlock detection sees it."""

    @property
    def title(self) -> str:
        """Name of the limit's queue, for errors."""
        ...

    @property
    def concurrency(self) -> int | None:
        """Number of permits; `None` if it is unlimited."""
        ...

    @property
    def holders(self) -> "Collection[Holder]":
        """Attempts that hold a permit; holders that are not attempts are not listed."""
        ...


class Holder(Protocol):
    """Protocol of the permits of an attempt, which may wait for a further permit."""

    tool: str
    call_id: str | None
    waits_for: PermitQueue | None
    """Queue in which the attempt waits for a permit; `None` while it does not wait."""
    stalled: "dict[Holder, None] | None"
    """Nested attempts that wait for a permit."""

    @property
    def title(self) -> str:
        """Name of the tool and id of the call, as text for errors."""
        ...


@contextmanager
def waiting(attempt: Holder, queue: PermitQueue, outer_attempts: Collection[Holder]) -> Generator[None]:
    """Register the wait of an attempt during a `with` block; raise `DeadlockError` if the wait completes a cycle."""
    attempt.waits_for = queue
    # The enclosing attempts all wait for this one.
    for outer in outer_attempts:
        if outer.stalled is None:
            outer.stalled = {}
        outer.stalled[attempt] = None
    try:
        # Registered before the search: if two threads complete a cycle at the same time, at least one of them finds it.
        # First a test that is cheap, and false for almost every wait: in a deadlock, every attempt that could free a
        # permit for this one is waiting too.
        all_wait = _is_stuck(queue, lambda holder: bool(holder.stalled) or holder.waits_for is not None)
        if all_wait and attempt in (stuck := _stuck(attempt)):
            chain = _chain(attempt, frozenset(outer_attempts), stuck)
            limit = queue.title.removeprefix("the queue of ")
            remedy = (
                f"Every place at the limit of {limit} is held by a call that waits for this one; raise its "
                "concurrency, or give the calls that run within others a limit of their own."
            )
            raise DeadlockError(attempt.tool, attempt.call_id, tuple(link.title for link in chain), remedy=remedy)
        yield
    finally:
        attempt.waits_for = None
        for outer in outer_attempts:
            if outer.stalled is not None:
                outer.stalled.pop(attempt, None)


def _is_stuck(queue: PermitQueue, is_stuck: Callable[[Holder], bool]) -> bool:
    """Return whether a wait for a permit can never end; `is_stuck` tells whether an attempt can never end."""
    holders, concurrency = list(queue.holders), queue.concurrency
    # A holder that is not listed counts as one that will end. So a deadlock across processes is not found, and a permit
    # of unknown work never causes a `DeadlockError`.
    if concurrency is None or len(holders) < concurrency:
        return False  # a permit is free, or is held by another process or by work that is no attempt
    return all(is_stuck(holder) for holder in holders)


def _waits_of(attempt: Holder) -> Iterator[Holder]:
    """Yield the waiting attempts on which the end of `attempt` depends: nested attempts, and itself."""
    yield from [] if attempt.stalled is None else list(attempt.stalled)
    if attempt.waits_for is not None:
        yield attempt


def _stuck(attempt: Holder) -> set[Holder]:
    """Return the waiting attempts that `attempt` depends on and that can never get a permit."""
    # First all that this attempt depends on, then remove those whose wait can end, until no more can be removed. What
    # remains is the largest set of attempts that wait only for each other.
    stuck: set[Holder] = set()
    todo = [attempt]
    while todo:
        waiter = todo.pop()
        if waiter in stuck or (queue := waiter.waits_for) is None:
            continue
        stuck.add(waiter)
        for holder in list(queue.holders):
            todo += _waits_of(holder)

    def is_stuck(holder: Holder) -> bool:
        return any(waiter in stuck for waiter in _waits_of(holder))

    while freed := {waiter for waiter in stuck if not (waiter.waits_for and _is_stuck(waiter.waits_for, is_stuck))}:
        stuck -= freed
    return stuck


def _chain(attempt: Holder, outer_attempts: Collection[Holder], stuck: Collection[Holder]) -> list[Holder]:
    """Return, for an error text, a list of attempts, each of which waits for the next; it ends with `attempt` again."""
    chain, waiter = [attempt], attempt
    while waiter.waits_for is not None:
        holders = list(waiter.waits_for.holders)
        holder = next((holder for holder in holders if holder in outer_attempts), None) or next(iter(holders))
        if holder is not waiter:
            chain.append(holder)
        if holder in outer_attempts or holder is attempt:
            break
        waiter = next((nested for nested in _waits_of(holder) if nested in stuck), attempt)
        if waiter in chain[:-1]:
            break
        if waiter is not holder:
            chain.append(waiter)
    return [*chain, attempt] if chain[-1] is not attempt or len(chain) == 1 else chain
