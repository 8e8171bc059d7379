"""FIFO limits for calls: concurrency, rate of starts and queue length, on both event loops and across threads.

Decisions are plain functions under a lock that is never held across an `await`. Only the head of a queue is awake; a
call that gets a permit wakes the next one. So calls start in the order of their arrival even on trio, which runs
ready tasks in any order.
"""

import math
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Protocol
from weakref import ref

from anyio import sleep_until

from callboard._calls._nested_permits import Holder, LoanTurn, Turnstile
from callboard._loops._protocol import EventLoop, Wakeup
from callboard._records._policies import CallContext, Limit, Rate, ToolCallLike, key_function


class NoPlaceError(Exception):
    """The queue of a limit is full; the text names the limit."""


class NoKeyError(Exception):
    """The key function of a limit failed for a call; `__cause__` is its error."""


def without_key(error: Exception, title: str, call: ToolCallLike, option: str = "key") -> NoKeyError:
    """Add a note with the limit and the call to an error of a key function; return the error to raise from it."""
    error.add_note(
        f"Raised by Limit({option}=...) of {title.removeprefix('the queue of ')}, asked for the key of the tool call "
        f"{call['name']!r} (call {call.get('id')!r}). Return a key for every call, whatever its arguments are."
    )
    return NoKeyError()


class Window:
    """Sliding window of a rate: the times of the last `rate.calls` starts."""

    __slots__ = ("_per", "_starts")

    def __init__(self, rate: Rate) -> None:
        self._per = rate.per
        # Always full, so that the first entry is the start that has to be `per` seconds old before the next one.
        self._starts: deque[float] = deque([-math.inf] * rate.calls, maxlen=rate.calls)

    def opens_at(self) -> float:
        """Return the earliest time of the next start."""
        return self._starts[0] + self._per

    def stamp(self, now: float) -> None:
        self._starts.append(now)

    def forgotten(self, now: float) -> bool:
        return self._starts[-1] + self._per <= now


class _Waiter:
    """Call in the queue of a gate; `refused` is the reason if the queue rejects it."""

    __slots__ = ("awake", "refused", "wakeup")

    def __init__(self, wakeup: Wakeup) -> None:
        self.wakeup = wakeup
        self.awake = False
        self.refused: str | None = None


class Gate:
    """Permits and queue of one limit, or of one key of a limit.

    Invariant: only the head of the queue takes a permit, or a new call if the queue is empty. So if the queue is not
    empty and a permit is free, the head is awake. Each method that frees a permit or removes a waiter wakes the head.
    """

    __slots__ = ("__weakref__", "_free", "_limit", "_lock", "_queue", "_window", "holders", "starts", "title")

    def __init__(self, limit: Limit, name: str, *, is_last: bool = False) -> None:
        self._limit = limit
        self.title = name
        self.holders: set[Holder] = set()
        """Attempts that hold a permit, for deadlock detection; holders that are not attempts are not listed."""
        # The next two, the window and the fields of waiters change only under `_lock`: threads and loops share a gate.
        self._free = math.inf if limit.concurrency is None else limit.concurrency
        self._queue: OrderedDict[_Waiter, None] = OrderedDict()  # ordered, with O(1) removal of a cancelled waiter
        self._lock = threading.Lock()
        self._window = None if limit.rate is None else Window(limit.rate)
        # A call that passed this gate may wait at other gates before it starts, but the rate limits starts. So the
        # rate is applied twice: here, so that calls pass in FIFO order, and at a second gate right before the start.
        self.starts = None if limit.rate is None or is_last else Gate(Limit(rate=limit.rate), name, is_last=True)

    @property
    def identity(self) -> Hashable:
        """Identity for loans: the gate itself, because its permits are interchangeable."""
        return self

    @property
    def concurrency(self) -> int | None:
        """Number of permits; `None` for no limit."""
        return self._limit.concurrency

    @property
    def is_lendable(self) -> bool:
        """True if a call may lend its permit to a nested call; starts are counted at another gate."""
        return self._limit.concurrency is not None

    def idle(self, loop: EventLoop) -> bool:
        """Return whether the gate has no state, so that a new one could replace it."""
        concurrency = self._limit.concurrency
        if self._queue or self._free != (math.inf if concurrency is None else concurrency):
            return False
        if self._window is not None and not self._window.forgotten(_common_time(loop)):
            return False
        return self.starts is None or self.starts.idle(loop)

    def try_enter(self, loop: EventLoop) -> bool:
        """Take a permit without waiting; return `False` if none is free or calls are queued."""
        with self._lock:
            return not self._queue and self._take(loop)

    async def enter(self, loop: EventLoop, turn: LoanTurn | None = None) -> bool:
        """Take a permit in FIFO order; return `False` without one if `turn` is granted first.

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
                # `awake` concerns the head of the queue only; a loan may be granted to any waiter.
                if not waiter.awake and not (turn is not None and turn.is_granted):
                    await waiter.wakeup.wait()
                if waiter.refused is not None:
                    raise NoPlaceError(waiter.refused)
                if turn is not None and turn.is_granted:
                    self._leave_queue(waiter)
                    return False
                if self._window is not None and (wait := self._window.opens_at() - _common_time(loop)) > 0:
                    await sleep_until(loop.now() + wait)  # only the head sleeps here, the others wait for their wakeup
                with self._lock:
                    if self._take(loop):
                        del self._queue[waiter]
                        self._wake_head()
                        return True
                    # A wakeup serves once. Replaced under the lock, so that the next `leave` sets the new one.
                    if self._free < 1:
                        waiter.awake, waiter.wakeup = False, loop.wakeup()
        except BaseException:
            # Cancelled or rejected. If this was the head and a permit is free, the next waiter must be woken.
            self._leave_queue(waiter)
            raise

    async def pass_through(self, loop: EventLoop) -> None:
        """Wait in FIFO order until the rate allows a start; keep no permit."""
        if not self.try_enter(loop):
            await self.enter(loop)
        self.leave()

    def leave(self) -> None:
        """Release a permit; from any thread."""
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
        with self._lock:  # the waiter replaces its wakeup under this lock: the old one would wake no task
            waiter.wakeup.set()

    def refuse_waiting(self, reason: str) -> None:
        """Reject every queued call; from any thread."""
        with self._lock:
            for waiter in self._queue:
                waiter.refused = reason
                waiter.wakeup.set()

    def _take(self, loop: EventLoop) -> bool:
        # Under the lock. The rate is stamped and the permit taken together, or neither.
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
        # Under the lock. `awake` prevents a second `set()` of a wakeup that serves once.
        if self._queue and self._free >= 1:
            head = next(iter(self._queue))
            if not head.awake:
                head.awake = True
                head.wakeup.set()

    def _running(self) -> str:
        concurrency = self._limit.concurrency
        return "the rate is used up" if concurrency is None else f"{concurrency - int(self._free)} of {concurrency} run"


def _common_time(loop: EventLoop) -> float:
    """Return the time on the clock that all loops share, because loops with different clocks may share a gate."""
    return loop.now() + loop.offset


class GatePermit(Protocol):
    """Gate of a limit, as one attempt sees it."""

    @property
    def identity(self) -> Hashable:
        """Key that is equal for gates with interchangeable permits."""
        ...

    @property
    def concurrency(self) -> int | None:
        """Number of permits; `None` for no limit."""
        ...

    @property
    def is_lendable(self) -> bool:
        """True if a call may lend its permit to a nested call."""
        ...

    @property
    def holders(self) -> set[Holder]:
        """Attempts of this process that hold such a permit."""
        ...

    @property
    def title(self) -> str:
        """Name of the queue, for errors."""
        ...

    @property
    def starts(self) -> Turnstile | None:
        """Gate that counts starts, if there is a rate."""
        ...

    def try_enter(self, loop: EventLoop) -> bool:
        """Take a permit without waiting; return `False` if none is free or calls are queued."""
        ...

    async def enter(self, loop: EventLoop, turn: LoanTurn | None = None) -> bool:
        """Take a permit in FIFO order; return `False` without one if `turn` is granted first.

        Raises:
            NoPlaceError: if no permit is free and the queue is full.
        """
        ...

    def leave(self) -> None:
        """Release the permit; from any thread."""
        ...


class Gates(Protocol):
    """Limiter, as an attempt sees it."""

    def gate(self, call: ToolCallLike, loop: EventLoop) -> GatePermit:
        """Return the gate for a call; create it if there is none yet.

        Raises:
            NoKeyError: if the key function fails, or returns an invalid key.
        """
        ...


class Limiter:
    """Limit of this process with its gates: one gate, or one for each key in use."""

    __slots__ = ("_by_key", "_gate", "_key", "_limit", "_lock", "_name", "_prune_at")

    def __init__(self, limit: Limit, name: str) -> None:
        self._limit = limit
        self._name = name
        self._key = None if limit.key is None else key_function("Limit(key=...)", limit.key)
        self._gate = Gate(limit, name) if limit.key is None else None
        self._by_key: dict[Hashable, Gate] = {}
        self._lock = threading.Lock()
        self._prune_at = 64  # number of gates at which idle ones are removed

    @property
    def takes_context(self) -> bool:
        """True if the key function takes a context in addition to the call."""
        return self._key is not None and self._key.takes_context

    def seeing(self, context: Callable[[], CallContext]) -> Gates:
        """Return a view of the limiter that passes a context to the key function, if the function takes one."""
        return Seeing(self, context) if self.takes_context else self

    def gate(self, call: ToolCallLike, loop: EventLoop, context: Callable[[], CallContext] = CallContext) -> Gate:
        """Return the gate for a call; `context` creates the context for the key function.

        Raises:
            NoKeyError: if the key function fails, or returns an invalid key.
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
        # The model reads the name in a rejection. A key of the call's arguments came from the model itself; a key from
        # the context, such as a user or a tenant, must not be shown to it.
        return f"{self._name} for calls like this one" if self.takes_context else f"{self._name} for {key!r}"

    def _prune(self, loop: EventLoop) -> None:
        # Keys come from the model, in any number. Doubling the threshold keeps the average cost of a check constant.
        if len(self._by_key) >= self._prune_at:
            for key in [*self._by_key]:
                if self._by_key[key].idle(loop):
                    pruned = ref(self._by_key.pop(key))
                    # Still referenced: another thread got the gate from `gate` and has not entered it yet. A second
                    # gate of the key would double its limit.
                    if (in_use := pruned()) is not None:
                        self._by_key[key] = in_use
            self._prune_at = max(64, 2 * len(self._by_key))


class SeeingGates(Protocol):
    """Limiter whose key function may take a context."""

    def gate(self, call: ToolCallLike, loop: EventLoop, context: Callable[[], CallContext]) -> GatePermit:
        """Return the gate for a call; `context` creates the context for the key function."""
        ...


class Seeing:
    """Limiter together with the context that its key function takes."""

    __slots__ = ("_context", "_limiter")

    def __init__(self, limiter: SeeingGates, context: Callable[[], CallContext]) -> None:
        self._limiter = limiter
        self._context = context

    def gate(self, call: ToolCallLike, loop: EventLoop) -> GatePermit:
        return self._limiter.gate(call, loop, self._context)
