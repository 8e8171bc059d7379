"""Queue of the permits of one limit, on asyncio, on trio and across threads: concurrency, rate, length and tenants.

Decisions are plain functions under a lock that is never held across an `await`. Only the head of a queue is awake; a
call that gets a permit wakes the next one. So calls start in the order of their arrival even on trio, which runs
ready tasks in any order.
"""

import math
import threading
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator
from dataclasses import InitVar, dataclass, field

from anyio import sleep_until

from callboard._calls._deadlocks import Holder
from callboard._loops._forks import forget_tasks_after_fork
from callboard._loops._protocol import EventLoop, Wakeup
from callboard._records._policies import Limit, Rate

_SHOWN_OWNERS = 3


class NoPlaceError(Exception):
    """Raised if the queue of a limit is full; the text names the limit."""


class LimitTitle:
    """Name of a limit's queue in errors: the tools and nodes that have the limit."""

    __slots__ = ("_owners",)

    def __init__(self, owner: str) -> None:
        self._owners = [owner]

    def add(self, owner: str) -> None:
        # A program may make a node for each request: more names than the text shows are not needed.
        if owner not in self._owners and len(self._owners) <= _SHOWN_OWNERS:
            self._owners.append(owner)

    def __str__(self) -> str:
        has_more = len(self._owners) > _SHOWN_OWNERS
        return f"the queue of {', '.join(self._owners[:_SHOWN_OWNERS])}{' and others' if has_more else ''}"


class Window:
    """Sliding window of a rate limit: the times of the last `rate.calls` starts."""

    __slots__ = ("_per", "_starts")

    def __init__(self, rate: Rate) -> None:
        self._per = rate.per
        # Always full, so that the first entry is the start that has to be `per` seconds old before the next one.
        self._starts: deque[float] = deque([-math.inf] * rate.calls, maxlen=rate.calls)

    def opens_at(self) -> float:
        """Return the earliest time at which the rate limit allows the next start."""
        return self._starts[0] + self._per

    def record_start(self, now: float) -> None:
        self._starts.append(now)

    def is_expired(self, now: float) -> bool:
        return self._starts[-1] + self._per <= now


@dataclass(eq=False, slots=True)
class _Waiter:
    """Call in the queue of a limit; `refusal` is the reason if the queue rejects the call."""

    wakeup: Wakeup
    is_awake: bool = False
    refusal: str | None = None


class _Queue:
    """Waiting calls: in the order of their arrival within each tenant, and tenants in turns.

    A call that arrives never becomes the head of a queue that is not empty.
    """

    __slots__ = ("_by_tenant", "_length")

    def __init__(self) -> None:
        # Ordered, with removal of a cancelled waiter in constant time. A limit without tenants has the tenant `None`.
        self._by_tenant: OrderedDict[Hashable, OrderedDict[_Waiter, None]] = OrderedDict()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[_Waiter]:
        return (waiter for waiters in self._by_tenant.values() for waiter in waiters)

    @property
    def head(self) -> _Waiter:
        return next(iter(self))

    def append(self, waiter: _Waiter, tenant: Hashable) -> None:
        self._by_tenant.setdefault(tenant, OrderedDict())[waiter] = None
        self._length += 1

    def remove(self, waiter: _Waiter, tenant: Hashable) -> None:
        """Remove a waiter, if it is in the queue."""
        waiters = self._by_tenant.get(tenant)
        if waiters and waiter in waiters:
            del waiters[waiter]
            self._length -= 1
            if not waiters:
                del self._by_tenant[tenant]

    def end_turn(self, tenant: Hashable) -> None:
        """Let all other tenants have their turn before this one, whose call has just got a permit."""
        if tenant in self._by_tenant:
            self._by_tenant.move_to_end(tenant)


@dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class Gate:
    """Permits and queue of one limit, or of one key of a limit.

    Invariant: only the head of the queue takes a permit, or a new call if the queue is empty. So if the queue is not
    empty and a permit is free, the head is awake. Each method that frees a permit or removes a waiter wakes the head.
    """

    _limit: Limit
    _title: "LimitTitle | str"
    _calls: str = ""
    """End of the title with the key of the gate, such as " for 'example.org'"; empty for a limit without keys."""
    is_last: InitVar[bool] = False
    holders: set[Holder] = field(default_factory=set[Holder], init=False)
    """Attempts that hold a permit, for deadlock detection; holders that are not attempts are not listed."""
    # The next four and the fields of waiters change only under `_lock`: threads and loops share a gate.
    _free_permits: float = field(init=False)
    _queue: _Queue = field(init=False)
    _window: Window | None = field(default=None, init=False)
    _paused_until: float | None = field(default=None, init=False)
    """Time before which no call takes a permit, on the common clock; `None` without a pause."""
    start_rate_gate: "Gate | None" = field(default=None, init=False)
    _lock: threading.Lock = field(init=False)

    def __post_init__(self, is_last: bool) -> None:
        self.forget_tasks()
        forget_tasks_after_fork(self)
        if self._limit.rate is not None:
            self._window = Window(self._limit.rate)
            # A call that passed this gate may wait at other gates before it starts, but the rate limits starts. So it
            # is applied twice: here, so that calls pass in FIFO order, and at a second gate right before the start.
            if not is_last:
                self.start_rate_gate = Gate(Limit(rate=self._limit.rate), self._title, is_last=True)

    def forget_tasks(self) -> None:
        """Forget permits and waiting calls: a forked child process has this object, and none of the calls."""
        self._lock = threading.Lock()  # another thread of the parent may have held the lock
        self._queue = _Queue()
        self._free_permits = math.inf if self._limit.concurrency is None else self._limit.concurrency
        self.holders.clear()

    @property
    def title(self) -> str:
        """Name of the queue, for errors."""
        return f"{self._title}{self._calls}"

    @property
    def identity(self) -> Hashable:
        """Key by which a loan of a permit is found: this object itself, because its permits are interchangeable."""
        return self

    @property
    def concurrency(self) -> int | None:
        """Number of permits; `None` if it is unlimited."""
        return self._limit.concurrency

    @property
    def is_lendable(self) -> bool:
        """True if a permit may be lent to a nested call; false if only the rate of starts is limited."""
        return self._limit.concurrency is not None

    def add_holder(self, holder: Holder) -> None:
        """Add an attempt to the holders of permits."""
        if self._limit.concurrency is not None:
            self.holders.add(holder)

    def remove_holder(self, holder: Holder) -> None:
        """Remove an attempt from the holders of permits, if it is one."""
        self.holders.discard(holder)

    def is_unused(self, loop: EventLoop) -> bool:
        """Return whether the limit has no taken permits, no queue and no recent starts, so that it can be removed."""
        concurrency = self._limit.concurrency
        if self._queue or self._free_permits != (math.inf if concurrency is None else concurrency):
            return False
        if self._paused_until is not None and self._paused_until > _common_time(loop):
            return False
        if self._window is not None and not self._window.is_expired(_common_time(loop)):
            return False
        return self.start_rate_gate is None or self.start_rate_gate.is_unused(loop)

    def try_enter(self, loop: EventLoop) -> bool:
        """Take a permit without waiting, and return `True`; return `False` if none is free or calls are queued."""
        with self._lock:
            return not self._queue and self._try_take(loop)

    async def enter(self, loop: EventLoop, tenant: Hashable = None) -> None:
        """Wait for a permit: in FIFO order within the tenant, and in turns with other tenants."""
        waiter = self._join_queue(loop, tenant)
        if waiter is None:
            return
        try:
            while True:
                if not waiter.is_awake:
                    await waiter.wakeup.wait()
                if waiter.refusal is not None:
                    raise NoPlaceError(waiter.refusal)
                if (wait := self._seconds_until_open(loop)) > 0:
                    await sleep_until(loop.now() + wait)  # only the head sleeps here, the others wait for their wakeup
                with self._lock:
                    if self._try_take(loop):
                        self._queue.remove(waiter, tenant)
                        self._queue.end_turn(tenant)
                        self._wake_head()
                        return
                    # A wakeup serves once. Replaced under the lock, so that the next `leave` sets the new one.
                    if self._free_permits < 1:
                        waiter.is_awake, waiter.wakeup = False, loop.wakeup()
        except BaseException:
            # Cancelled or rejected. If this was the head and a permit is free, the next waiter must be woken.
            with self._lock:
                self._queue.remove(waiter, tenant)
                self._wake_head()
            raise

    async def pass_through(self, loop: EventLoop) -> None:
        """Wait in FIFO order until the rate limit allows one more start; keep no permit."""
        if not self.try_enter(loop):
            await self.enter(loop)
        self.leave()

    def pause(self, loop: EventLoop, seconds: float) -> None:
        """Give no permit for some seconds; may be called from any thread, and extends a pause that ends earlier."""
        with self._lock:
            until = _common_time(loop) + seconds
            self._paused_until = until if self._paused_until is None else max(self._paused_until, until)

    def leave(self) -> None:
        """Release a permit; may be called from any thread."""
        with self._lock:
            self._free_permits += 1
            self._wake_head()

    def _join_queue(self, loop: EventLoop, tenant: Hashable) -> _Waiter | None:
        limit = self._limit
        with self._lock:
            if not self._queue and self._try_take(loop):
                return None
            if limit.queue is not None and len(self._queue) >= limit.queue:
                usage = "the rate is used up"
                if limit.concurrency is not None:
                    usage = f"{limit.concurrency - int(self._free_permits)} of {limit.concurrency} run"
                raise NoPlaceError(f"{self.title} is full: {usage}, {len(self._queue)} wait, and no more may")
            waiter = _Waiter(loop.wakeup())
            self._queue.append(waiter, tenant)
            self._wake_head()
            return waiter

    def refuse_waiting(self, reason: str) -> None:
        """Reject every queued call; may be called from any thread."""
        with self._lock:
            for waiter in self._queue:
                waiter.refusal = reason
                waiter.wakeup.set()

    def _try_take(self, loop: EventLoop) -> bool:
        # Under the lock. The rate is stamped and the permit taken together, or neither.
        if self._free_permits < 1 or self._seconds_until_open(loop) > 0:
            return False
        if self._window is not None:
            self._window.record_start(_common_time(loop))
        self._free_permits -= 1
        return True

    def _seconds_until_open(self, loop: EventLoop) -> float:
        """Return how long the rate or a pause lets no call start; 0 or less if one may start now."""
        window, paused_until = self._window, self._paused_until
        if window is None and paused_until is None:
            return 0.0
        opens_at = -math.inf if window is None else window.opens_at()
        return max(opens_at, -math.inf if paused_until is None else paused_until) - _common_time(loop)

    def _wake_head(self) -> None:
        # Under the lock. `is_awake` prevents a second `set()` of a wakeup that serves once.
        if self._queue and self._free_permits >= 1:
            head = self._queue.head
            if not head.is_awake:
                head.is_awake = True
                head.wakeup.set()


def _common_time(loop: EventLoop) -> float:
    """Return the time on the clock that all event loops of the process share."""
    # Loops with different clocks may share a limit.
    return loop.now() + loop.offset
