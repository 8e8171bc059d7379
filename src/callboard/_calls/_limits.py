"""Places for calls: how many may run, start and wait; first in, first out, on both loops and across threads.

Decisions are plain functions under a lock that no `await` ever sees. Only the head of a queue is ever
awake: whoever takes a place wakes the next one, so calls start in the order in which they came even
where the event loop runs ready tasks in an order of its own, as trio does.
"""

import math
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Protocol

from anyio import sleep_until

from callboard._calls._nested_places import Holder, LoanTurn, Turnstile
from callboard._loops._protocol import EventLoop, Wakeup
from callboard._types import CallContext, Limit, Rate, ToolCallLike, key_function


class NoPlaceError(Exception):
    """The queue is full; carries the sentence that says which."""


class NoKeyError(Exception):
    """A limit's key function failed on a call; its cause says how."""


def without_key(error: Exception, title: str, call: ToolCallLike, option: str = "key") -> NoKeyError:
    """Note on an error of a key function whose it is; returns what to raise from it."""
    error.add_note(
        f"Raised by Limit({option}=...) of {title.removeprefix('the queue of ')}, asked for the key of the tool call "
        f"{call['name']!r} (call {call.get('id')!r}). Return a key for every call, whatever its arguments are."
    )
    return NoKeyError()


class Window:
    """The starts within the last `rate.per` seconds, at most `rate.calls` of them."""

    __slots__ = ("_per", "_starts")

    def __init__(self, rate: Rate) -> None:
        self._per = rate.per
        self._starts: deque[float] = deque([-math.inf] * rate.calls, maxlen=rate.calls)

    def opens_at(self) -> float:
        """The first moment at which one more may start."""
        return self._starts[0] + self._per

    def stamp(self, now: float) -> None:
        self._starts.append(now)

    def forgotten(self, now: float) -> bool:
        return self._starts[-1] + self._per <= now


class _Waiter:
    """A call in the queue of a gate: how it is woken, and why it is refused if it is."""

    __slots__ = ("awake", "refused", "wakeup")

    def __init__(self, wakeup: Wakeup) -> None:
        self.wakeup = wakeup
        self.awake = False
        self.refused: str | None = None


class Gate:
    """One limit, or one key of a limit.

    Invariant: a place is taken by the head of the queue only, or directly when the queue is empty; so
    whenever the queue is not empty and there is a place, the head is awake.
    """

    __slots__ = ("_free", "_limit", "_lock", "_queue", "_window", "holders", "starts", "title")

    def __init__(self, limit: Limit, name: str, *, is_last: bool = False) -> None:
        self._limit = limit
        self.title = name
        self.holders: set[Holder] = set()
        """The attempts that have a place, for the search for circles; places that other work has are not in it."""
        self._free = math.inf if limit.concurrency is None else limit.concurrency
        self._queue: OrderedDict[_Waiter, None] = OrderedDict()
        self._lock = threading.Lock()
        self._window = None if limit.rate is None else Window(limit.rate)
        # A call that passed here may wait at other gates before it starts, and the rate is one of starts.
        # So it is kept twice: here, to let calls through in good order, and at a gate right before the start.
        self.starts = None if limit.rate is None or is_last else Gate(Limit(rate=limit.rate), name, is_last=True)

    @property
    def identity(self) -> Hashable:
        """The gate itself: one of its places will do as well as another."""
        return self

    @property
    def concurrency(self) -> int | None:
        """How many places there are; `None` for any number."""
        return self._limit.concurrency

    @property
    def is_lendable(self) -> bool:
        """Whether a call may lend its place to a call within it; starts are counted at another gate."""
        return self._limit.concurrency is not None

    def idle(self, loop: EventLoop) -> bool:
        """Whether forgetting this gate would lose nothing."""
        concurrency = self._limit.concurrency
        if self._queue or self._free != (math.inf if concurrency is None else concurrency):
            return False
        if self._window is not None and not self._window.forgotten(_common_time(loop)):
            return False
        return self.starts is None or self.starts.idle(loop)

    def try_enter(self, loop: EventLoop) -> bool:
        """Take a place if there is one and nobody was here before."""
        with self._lock:
            return not self._queue and self._take(loop)

    async def enter(self, loop: EventLoop, turn: LoanTurn | None = None) -> bool:
        """Take a place, after everybody who came before; return False without one if `turn` is granted first.

        Raises:
            NoPlaceError: if the queue is full.
        """
        waiter = self._join_queue(loop)
        if waiter is None:
            return True
        if turn is not None:
            turn.when_granted(lambda: self._wake(waiter))
        try:
            while True:
                # `awake` is for the head of the queue only; a turn may be granted to any waiter.
                if not waiter.awake and not (turn is not None and turn.is_granted):
                    await waiter.wakeup.wait()
                if waiter.refused is not None:
                    raise NoPlaceError(waiter.refused)
                if turn is not None and turn.is_granted:
                    self._leave_queue(waiter)
                    return False
                if self._window is not None and (wait := self._window.opens_at() - _common_time(loop)) > 0:
                    await sleep_until(loop.now() + wait)
                with self._lock:
                    if self._take(loop):
                        del self._queue[waiter]
                        self._wake_head()
                        return True
                    if self._free < 1:
                        waiter.awake, waiter.wakeup = False, loop.wakeup()
        except BaseException:
            self._leave_queue(waiter)
            raise

    async def pass_through(self, loop: EventLoop) -> None:
        """Wait for a turn, and leave the place to the next at once."""
        if not self.try_enter(loop):
            await self.enter(loop)
        self.leave()

    def leave(self) -> None:
        """Give the place back; from any thread."""
        with self._lock:
            self._free += 1
            self._wake_head()

    def _join_queue(self, loop: EventLoop) -> _Waiter | None:
        limit = self._limit
        with self._lock:
            if not self._queue and self._take(loop):
                return None
            if limit.queue is not None and len(self._queue) >= limit.queue:
                raise NoPlaceError(f"{self.title} is full: {self._running()}, {len(self._queue)} wait, and no more may")
            waiter = _Waiter(loop.wakeup())
            self._queue[waiter] = None
            self._wake_head()
            return waiter

    def _leave_queue(self, waiter: _Waiter) -> None:
        with self._lock:
            if waiter in self._queue:
                del self._queue[waiter]
                self._wake_head()

    def _wake(self, waiter: _Waiter) -> None:
        with self._lock:  # the waiter replaces its wakeup under this lock
            waiter.wakeup.set()

    def refuse_waiting(self, reason: str) -> None:
        """Reject every call that waits here; from any thread."""
        with self._lock:
            for waiter in self._queue:
                waiter.refused = reason
                waiter.wakeup.set()

    def _take(self, loop: EventLoop) -> bool:
        if self._free < 1:
            return False
        if self._window is not None:
            now = _common_time(loop)
            if self._window.opens_at() > now:
                return False
            self._window.stamp(now)
        self._free -= 1
        return True

    def _wake_head(self) -> None:
        if self._queue and self._free >= 1:
            head = next(iter(self._queue))
            if not head.awake:
                head.awake = True
                head.wakeup.set()

    def _running(self) -> str:
        concurrency = self._limit.concurrency
        return "the rate is used up" if concurrency is None else f"{concurrency - int(self._free)} of {concurrency} run"


def _common_time(loop: EventLoop) -> float:
    """The loop's clock, moved to where all loops agree, because a gate may be shared between them."""
    return loop.now() + loop.offset


class Place(Protocol):
    """A gate, as one attempt sees it."""

    @property
    def identity(self) -> Hashable:
        """Equal for all places of which one will do as well as another."""
        ...

    @property
    def concurrency(self) -> int | None:
        """How many places there are; `None` for any number."""
        ...

    @property
    def is_lendable(self) -> bool:
        """Whether a call may lend the place to a call within it."""
        ...

    @property
    def holders(self) -> set[Holder]:
        """The attempts of this process that have such a place."""
        ...

    @property
    def title(self) -> str:
        """The name of the queue, for errors."""
        ...

    @property
    def starts(self) -> Turnstile | None:
        """Where its start is counted, if there is a rate of starts."""
        ...

    def try_enter(self, loop: EventLoop) -> bool:
        """Take a place if there is one and nobody was here before."""
        ...

    async def enter(self, loop: EventLoop, turn: LoanTurn | None = None) -> bool:
        """Take a place, after everybody who came before; return False without one if `turn` is granted first.

        Raises:
            NoPlaceError: if there is none, and no room to wait.
        """
        ...

    def leave(self) -> None:
        """Give the place back; from any thread."""
        ...


class Gates(Protocol):
    """Knows which gate a call has to pass."""

    def gate(self, call: ToolCallLike, loop: EventLoop) -> Place:
        """Find the gate at which a call has to wait, and make it where there is none yet.

        Raises:
            NoKeyError: if the key function fails, or returns what cannot be a key.
        """
        ...


class Limiter:
    """A limit and its gates: one, or one for each key that is in use."""

    __slots__ = ("_by_key", "_gate", "_key", "_limit", "_lock", "_name", "_prune_at")

    def __init__(self, limit: Limit, name: str) -> None:
        self._limit = limit
        self._name = name
        self._key = None if limit.key is None else key_function("Limit(key=...)", limit.key)
        self._gate = Gate(limit, name) if limit.key is None else None
        self._by_key: dict[Hashable, Gate] = {}
        self._lock = threading.Lock()
        self._prune_at = 64

    @property
    def takes_context(self) -> bool:
        """Whether its key looks at more than the call."""
        return self._key is not None and self._key.takes_context

    def seeing(self, context: Callable[[], CallContext]) -> Gates:
        """The gates for calls of which the key sees a context besides, if it looks at one."""
        return Seeing(self, context) if self.takes_context else self

    def gate(self, call: ToolCallLike, loop: EventLoop, context: Callable[[], CallContext] = CallContext) -> Gate:
        """The gate that this call has to pass; `context` makes what the key may look at besides the call.

        Raises:
            NoKeyError: if the key function fails, or returns what cannot be a key.
        """
        if self._gate is not None:
            return self._gate
        assert self._key is not None
        try:
            key = self._key.of(call, context)
        except Exception as error:
            raise without_key(error, self._name, call) from error
        with self._lock:
            gate = self._by_key.get(key)
            if gate is None:
                self._prune(loop)
                gate = self._by_key[key] = Gate(self._limit, self._name_for(key))
            return gate

    def _name_for(self, key: Hashable) -> str:
        # The model reads it: a key of the call is made of what the model wrote, any other is none of its business.
        return f"{self._name} for calls like this one" if self.takes_context else f"{self._name} for {key!r}"

    def _prune(self, loop: EventLoop) -> None:
        # Keys come from the model and have no end; doubling the mark keeps the cost of looking constant.
        if len(self._by_key) >= self._prune_at:
            self._by_key = {key: gate for key, gate in self._by_key.items() if not gate.idle(loop)}
            self._prune_at = max(64, 2 * len(self._by_key))


class SeeingGates(Protocol):
    """Gates whose keys may look at what is around a call."""

    def gate(self, call: ToolCallLike, loop: EventLoop, context: Callable[[], CallContext]) -> Place:
        """The gate of this call; `context` makes what the key may look at besides."""
        ...


class Seeing:
    """A limiter whose key sees what is around a call; it stays out of the way of all other calls."""

    __slots__ = ("_context", "_limiter")

    def __init__(self, limiter: SeeingGates, context: Callable[[], CallContext]) -> None:
        self._limiter = limiter
        self._context = context

    def gate(self, call: ToolCallLike, loop: EventLoop) -> Place:
        return self._limiter.gate(call, loop, self._context)
