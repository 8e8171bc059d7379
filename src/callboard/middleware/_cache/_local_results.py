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


class Turn(Enum):
    """Instruction that a waiting call must run: `LEAD` on behalf of all waiting calls, `ALONE` for itself only."""

    LEAD = "the leader ended for reasons of its own: run, for all who wait"
    ALONE = "the result cannot be shared: run for yourself"


class Hit(NamedTuple, Generic[T]):
    """Cached result of an earlier call, and its age in seconds."""

    result: T
    age: float


@dataclass(slots=True, eq=False)
class Flight(Generic[K, T]):
    """Running call, and the identical calls (followers) that wait for its result in FIFO order."""

    key: K
    followers: "dict[Follower[K, T], None]" = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Follower(Generic[K, T]):
    """Call that waits for the result of an identical running call (a `Flight`)."""

    flight: Flight[K, T]
    wakeup: Wakeup
    turn: T | Exception | Turn = Turn.ALONE

    def notify(self, turn: T | Exception | Turn) -> None:
        self.turn = turn
        self.wakeup.set()

    def take_turn(self) -> T | Exception | Turn:
        """Remove and return the result, error or instruction that this waiting call got."""
        # It is removed from the follower, because the traceback of an error may refer back to it.
        turn, self.turn = self.turn, Turn.ALONE
        return turn


class LocalResults(Generic[K, T]):
    """Results of finished calls by key, and the running call of each key that has one.

    Invariant: a registered `Flight` always has exactly one leader, running or just instructed, until `land()`. If the
    leader is gone and nobody was instructed, all followers would wait for ever.
    """

    def __init__(self, ttl: float, size: int) -> None:
        from cachetools import TTLCache  # an extra

        self._now = 0.0
        # The cache's time moves only in `_read_clock()`: `forget()` must work in threads without an event loop.
        self._results: TTLCache[K, tuple[T, float]] = TTLCache(size, ttl, timer=lambda: self._now)
        self._flights: dict[K, Flight[K, T]] = {}
        self._lock = threading.Lock()

    def enter(self, key: K) -> Hit[T] | Flight[K, T] | Follower[K, T]:
        """Return the key's cached result, or a `Flight` (call that must run), or a `Follower` (call that must wait)."""
        with self._lock:
            self._read_clock()
            entry = self._results.get(key)
            if entry is not None:
                return Hit(entry[0], self._now - entry[1])
            flight = self._flights.get(key)
            if flight is None:
                flight = self._flights[key] = Flight(key)
                return flight
            follower = Follower(flight, wakeup())
            flight.followers[follower] = None
            return follower

    async def turn(self, follower: Follower[K, T]) -> T | Exception | Turn:
        """Wait for the running call; return its result or error, or the instruction to run."""
        # After `Turn.LEAD`, the caller runs its own call for all that wait, and passes the outcome to `land()`.
        try:
            with waiting():
                await follower.wakeup.wait()
        except BaseException:
            # Cancelled, maybe just after it was made the leader: `leave()` then makes the next follower the leader.
            self.leave(follower)
            raise
        return follower.take_turn()

    def leave(self, follower: Follower[K, T]) -> None:
        """Remove a call that no longer waits for the identical running call."""
        # If it was already made the leader, the next follower becomes the leader.
        with self._lock:
            # Absent from `followers` means that it was told something; only a lead has to be passed on.
            if follower.flight.followers.pop(follower, self) is self and follower.turn is Turn.LEAD:
                self._pass_lead(follower.flight)

    def land(self, flight: Flight[K, T], turn: T | Exception | Turn, *, keep: bool, key: K) -> None:
        """Record that a running call has ended; give its result, an error or an instruction to the waiting calls."""
        # `Turn.LEAD` goes to the first follower only, while the others keep waiting; any other value goes to all. With
        # `keep`, the result is kept for later calls with the key `key`.
        with self._lock:
            if turn is Turn.LEAD:
                self._pass_lead(flight)
                return
            # `_end()` is false after an invalidation. The followers still get the result: they asked before it.
            if self._end(flight) and keep and not isinstance(turn, (Exception, Turn)):
                self._read_clock()
                self._results[key] = turn, self._now
            if key != flight.key:
                # The outcome is not for the followers: each of them runs its own call.
                turn = Turn.ALONE
            followers, flight.followers = flight.followers, {}
            for follower in followers:
                follower.notify(turn)

    def forget(self, is_forgotten: Callable[[K], bool]) -> None:
        """Drop the cached results of the keys for which `is_forgotten` is true; may be called from any thread."""
        with self._lock:
            for key in [key for key in self._results if is_forgotten(key)]:
                del self._results[key]
            # Results of running calls are not kept, and these calls get no new followers.
            for key in [key for key in self._flights if is_forgotten(key)]:
                del self._flights[key]

    def _read_clock(self) -> None:
        # The clocks of two event loops may differ slightly. Time must not go back, or expired results would return.
        self._now = max(self._now, common_time())

    def _pass_lead(self, flight: Flight[K, T]) -> None:
        next_follower = next(iter(flight.followers), None)
        if next_follower is None:
            self._end(flight)
        else:
            del flight.followers[next_follower]
            next_follower.notify(Turn.LEAD)

    def _end(self, flight: Flight[K, T]) -> bool:
        """Remove a call from the running calls; return `False` if an invalidation has removed it before."""
        if self._flights.get(flight.key) is not flight:
            return False
        del self._flights[flight.key]
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
