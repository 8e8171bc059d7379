"""What identical calls share: results that are kept for a while, and calls in flight. Knows neither tools nor messages.

Decisions are plain functions under a lock that no `await` ever sees. Keys may be of any event loop and thread.
"""

import copy
import threading
from collections.abc import Callable, Hashable
from enum import Enum
from typing import Generic, TypeVar

from callboard._calls._call import waiting
from callboard._calls._limits import _common_time
from callboard._loops._protocol import EventLoop, Wakeup

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class Turn(Enum):
    """What a follower is told, where that is no result."""

    LEAD = "the leader ended for reasons of its own: run, for all who wait"
    ALONE = "the result cannot be shared: run for yourself"


class Hit(Generic[T]):
    """A result that is kept, and how many seconds ago it was found out."""

    __slots__ = ("age", "result")

    def __init__(self, result: T, age: float) -> None:
        self.result = result
        self.age = age


class Flight(Generic[K, T]):
    """A call that runs for all who ask the same; the others wait, first come, first served."""

    __slots__ = ("followers", "key")

    def __init__(self, key: K) -> None:
        self.key = key
        self.followers: dict[Follower[K, T], None] = {}


class Follower(Generic[K, T]):
    """A call that waits for what becomes of a flight."""

    __slots__ = ("flight", "turn", "wakeup")

    def __init__(self, flight: Flight[K, T], wakeup: Wakeup) -> None:
        self.flight = flight
        self.wakeup = wakeup
        self.turn: T | Exception | Turn = Turn.ALONE

    def told(self, turn: T | Exception | Turn) -> None:
        self.turn = turn
        self.wakeup.set()

    def take_turn(self) -> T | Exception | Turn:
        """What to do now; kept nowhere else, because an error's traceback leads back here."""
        turn, self.turn = self.turn, Turn.ALONE
        return turn


class SharedResults(Generic[K, T]):
    """Results by key, and a flight for each key that somebody is finding out.

    Invariant: a flight has a leader, which runs or has been told to, until it is landed.

    Args:
        ttl: seconds for which a result is kept.
        size: how many are; the least recently used goes first.
    """

    def __init__(self, ttl: float, size: int) -> None:
        from cachetools import TTLCache  # an extra

        self._now = 0.0
        # Time stands still between two calls, so that one may forget results where no event loop runs.
        self._kept: TTLCache[K, tuple[T, float]] = TTLCache(size, ttl, timer=lambda: self._now)
        self._flights: dict[K, Flight[K, T]] = {}
        self._lock = threading.Lock()

    def enter(self, key: K, loop: EventLoop) -> Hit[T] | Flight[K, T] | Follower[K, T]:
        """The result that is kept, else a flight to lead, else a place among those who wait for one."""
        with self._lock:
            self._read_clock(loop)
            kept = self._kept.get(key)
            if kept is not None:
                return Hit(kept[0], self._now - kept[1])
            flight = self._flights.get(key)
            if flight is None:
                flight = self._flights[key] = Flight(key)
                return flight
            follower = Follower(flight, loop.wakeup())
            flight.followers[follower] = None
            return follower

    async def turn(self, follower: Follower[K, T]) -> T | Exception | Turn:
        """Wait for what becomes of the flight. Whoever is told to lead has to land it."""
        try:
            with waiting():
                await follower.wakeup.wait()
        except BaseException:
            self.leave(follower)
            raise
        return follower.take_turn()

    def leave(self, follower: Follower[K, T]) -> None:
        """Wait no longer; a lead that was given goes to the next."""
        with self._lock:
            if follower.flight.followers.pop(follower, self) is self and follower.turn is Turn.LEAD:
                self._pass_on(follower.flight)

    def land(self, flight: Flight[K, T], turn: T | Exception | Turn, loop: EventLoop, *, keep: bool) -> None:
        """Tell the followers what became of a flight.

        Args:
            flight: led by the caller.
            turn: for all of them; `Turn.LEAD` is for the first, and the others go on waiting.
            loop: where the leader ran.
            keep: keep the result, unless it has been invalidated before it was there.
        """
        with self._lock:
            if turn is Turn.LEAD:
                self._pass_on(flight)
                return
            if self._end(flight) and keep and not isinstance(turn, (Exception, Turn)):
                self._read_clock(loop)
                self._kept[flight.key] = turn, self._now
            followers, flight.followers = flight.followers, {}
            for follower in followers:
                follower.told(turn)

    def forget(self, which: Callable[[K], bool]) -> None:
        """Drop results; what is in flight is not kept, and nobody joins it any more. From any thread."""
        with self._lock:
            for key in [key for key in self._kept if which(key)]:
                del self._kept[key]
            for key in [key for key in self._flights if which(key)]:
                del self._flights[key]

    def _read_clock(self, loop: EventLoop) -> None:
        # Two loops may differ in the last digits; what has expired must not come back.
        self._now = max(self._now, _common_time(loop))

    def _pass_on(self, flight: Flight[K, T]) -> None:
        first = next(iter(flight.followers), None)
        if first is None:
            self._end(flight)
        else:
            del flight.followers[first]
            first.told(Turn.LEAD)

    def _end(self, flight: Flight[K, T]) -> bool:
        """Whether the flight was still the one of its key."""
        if self._flights.get(flight.key) is not flight:
            return False
        del self._flights[flight.key]
        return True


def raised_again(error: Exception) -> Exception:
    """An error for one more call to raise: what each adds to its notes and its traceback is its own."""
    try:
        again = _copied(error)
    except Exception:
        return error  # nobody but its maker can make one
    again.__cause__, again.__context__ = error.__cause__, error.__context__
    again.__suppress_context__ = error.__suppress_context__
    if hasattr(error, "__notes__"):
        again.__notes__ = list(error.__notes__)
    return again.with_traceback(error.__traceback__)


def _copied(error: Exception) -> Exception:
    try:
        again = copy.copy(error)
    except Exception:  # its constructor takes something else than its `args`
        again = type(error).__new__(type(error), *error.args)
        again.__dict__.update(error.__dict__)
    again.args = error.args  # of which the constructor may have made something else
    return again
