"""Results shared by identical calls in one process; of identical calls at the same time, only one runs.

This module knows nothing of tools. All decisions are plain functions under a thread lock, and no `await` happens while
the lock is held. Calls that wait for one running call may wait in different event loops and threads.
"""

import copy
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from callboard._calls._call import waiting
from callboard._loops._current import common_time, wakeup
from callboard._loops._protocol import Wakeup

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class Instruction(Enum):
    """Instruction that a waiting call must run: `LEAD` on behalf of all waiting calls, `ALONE` for itself only."""

    LEAD = "the leader ended for reasons of its own: run, for all who wait"
    ALONE = "the result cannot be shared: run for yourself"


class Hit(NamedTuple, Generic[T]):
    """Cached result of an earlier call, and its age in seconds."""

    result: T
    age: float


@dataclass(slots=True, eq=False)
class SharedCall(Generic[K, T]):
    """Running call, and the identical calls (followers) that wait for its result in FIFO order."""

    key: K
    followers: "dict[Follower[K, T], None]" = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Follower(Generic[K, T]):
    """Call that waits for the result of an identical running call (a `SharedCall`)."""

    shared_call: SharedCall[K, T]
    wakeup: Wakeup
    outcome: T | Exception | Instruction = Instruction.ALONE

    def notify(self, outcome: T | Exception | Instruction) -> None:
        self.outcome = outcome
        self.wakeup.set()

    def take_outcome(self) -> T | Exception | Instruction:
        """Remove and return the result, error or instruction that this waiting call got."""
        # It is removed from the follower, because the traceback of an error may refer back to it.
        outcome, self.outcome = self.outcome, Instruction.ALONE
        return outcome


class LocalResults(Generic[K, T]):
    """Results of finished calls by key, and the running call of each key that has one.

    Invariant: a registered `SharedCall` always has exactly one leader, running or just instructed, until
    `end_shared_call()`. If the leader is gone and nobody was instructed, all followers would wait for ever.
    """

    def __init__(self, ttl: float, size: int) -> None:
        from cachetools import TTLCache  # an extra

        self._now = 0.0
        # The cache's time moves only in `_read_clock()`: `forget()` must work in threads without an event loop.
        self._results: TTLCache[K, tuple[T, float]] = TTLCache(size, ttl, timer=lambda: self._now)
        self._shared_calls: dict[K, SharedCall[K, T]] = {}
        self._lock = threading.Lock()

    def find_or_join(self, key: K) -> Hit[T] | SharedCall[K, T] | Follower[K, T]:
        """Return the key's cached result, a `SharedCall` (the call must run), or a `Follower` (the call must wait)."""
        with self._lock:
            self._read_clock()
            entry = self._results.get(key)
            if entry is not None:
                result, stored_at = entry
                return Hit(result, age=self._now - stored_at)
            shared_call = self._shared_calls.get(key)
            if shared_call is None:
                shared_call = self._shared_calls[key] = SharedCall(key)
                return shared_call
            follower = Follower(shared_call, wakeup())
            shared_call.followers[follower] = None
            return follower

    async def wait_for_outcome(self, follower: Follower[K, T]) -> T | Exception | Instruction:
        """Wait for the running call; return its result or error, or the instruction to run."""
        # After `Instruction.LEAD`, the caller runs its own call for all that wait, and passes the outcome to
        # `end_shared_call()`.
        try:
            with waiting():
                await follower.wakeup.wait()
        except BaseException:
            # Cancelled, maybe just after it was made the leader: the next follower then becomes the leader.
            self.remove_follower(follower)
            raise
        return follower.take_outcome()

    def remove_follower(self, follower: Follower[K, T]) -> None:
        """Remove a call that no longer waits for the identical running call."""
        # If it was already made the leader, the next follower becomes the leader.
        with self._lock:
            # Of what it was told, only the instruction to lead has to be passed on.
            was_notified = follower not in follower.shared_call.followers
            follower.shared_call.followers.pop(follower, None)
            if was_notified and follower.outcome is Instruction.LEAD:
                self._pass_lead_on(follower.shared_call)

    def end_shared_call(
        self, shared_call: SharedCall[K, T], outcome: T | Exception | Instruction, *, is_kept: bool, key: K
    ) -> None:
        """Record that a running call has ended; give its result, an error or an instruction to the waiting calls."""
        # `Instruction.LEAD` goes to the first follower only, while the others keep waiting; any other value goes to
        # all. With `is_kept`, the result is kept for later calls with the key `key`.
        with self._lock:
            if outcome is Instruction.LEAD:
                self._pass_lead_on(shared_call)
                return
            # False after an invalidation. The followers still get the result: they asked before it.
            is_valid = self._remove_shared_call(shared_call)
            if is_valid and is_kept and not isinstance(outcome, (Exception, Instruction)):
                self._read_clock()
                self._results[key] = outcome, self._now
            if key != shared_call.key:
                # The outcome is not for the followers: each of them runs its own call.
                outcome = Instruction.ALONE
            followers, shared_call.followers = shared_call.followers, {}
            for follower in followers:
                follower.notify(outcome)

    def forget(self, is_forgotten: Callable[[K], bool]) -> None:
        """Drop the cached results of the keys for which `is_forgotten` is true; may be called from any thread."""
        with self._lock:
            for key in [key for key in self._results if is_forgotten(key)]:
                del self._results[key]
            # Results of running calls are not kept, and these calls get no new followers.
            for key in [key for key in self._shared_calls if is_forgotten(key)]:
                del self._shared_calls[key]

    def _read_clock(self) -> None:
        # The clocks of two event loops may differ slightly. Time must not go back, or expired results would return.
        self._now = max(self._now, common_time())

    def _pass_lead_on(self, shared_call: SharedCall[K, T]) -> None:
        next_follower = next(iter(shared_call.followers), None)
        if next_follower is None:
            self._remove_shared_call(shared_call)
        else:
            del shared_call.followers[next_follower]
            next_follower.notify(Instruction.LEAD)

    def _remove_shared_call(self, shared_call: SharedCall[K, T]) -> bool:
        """Remove a call from the running calls; return `False` if an invalidation has removed it before."""
        if self._shared_calls.get(shared_call.key) is not shared_call:
            return False
        del self._shared_calls[shared_call.key]
        return True


def copy_error(error: Exception) -> Exception:
    """Return a copy of an error that another call can raise, so that each call has its own notes and traceback."""
    try:
        try:
            error_copy = copy.copy(error)
        except Exception:  # copying calls the constructor with `args`, which this constructor does not take
            error_copy = type(error).__new__(type(error), *error.args)
            error_copy.__dict__.update(error.__dict__)
        error_copy.args = error.args  # the constructor may have changed them
    except Exception:
        return error  # a type that cannot be copied: sharing it is better than losing it
    error_copy.__cause__, error_copy.__context__ = error.__cause__, error.__context__
    error_copy.__suppress_context__ = error.__suppress_context__
    if hasattr(error, "__notes__"):
        error_copy.__notes__ = list(error.__notes__)
    return error_copy.with_traceback(error.__traceback__)
