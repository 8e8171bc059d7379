"""FIFO limits for calls: concurrency, rate of starts and queue length, on asyncio, on trio and across threads.

Decisions are plain functions under a lock that is never held across an `await`. Only the head of a queue is awake; a
call that gets a permit wakes the next one. So calls start in the order of their arrival even on trio, which runs
ready tasks in any order.

A limit is one of this process, with gates, or one that many processes share, in a `SharedLimits` store. The store
receives only digests of keys and tenants, which may contain confidential arguments of calls.

A call that runs an agent, or another node, only waits for the calls inside. So it lends each of its permits to these
nested calls, one at a time. The limit still holds: the innermost bodies that run are never more than the permits.
"""

import math
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Protocol
from weakref import ref

from anyio import sleep_until

from callboard._loops._protocol import EventLoop, Wakeup
from callboard._records._policies import (
    CallContext,
    Limit,
    Permit,
    PermitRequest,
    Rate,
    SharedLimits,
    ToolCallLike,
    key_function,
)
from callboard._util._canonical import digest


class NoPlaceError(Exception):
    """Raised if the queue of a limit is full; the text names the limit."""


class NoKeyError(Exception):
    """Raised if the key function of a limit failed for a call; `__cause__` is the error of the function."""


def without_key(error: Exception, title: str, call: ToolCallLike, option: str = "key") -> NoKeyError:
    """Add a note to an error of a limit's key function, and return the `NoKeyError` to raise from this error."""
    error.add_note(
        f"Raised by Limit({option}=...) of {title.removeprefix('the queue of ')}, asked for the key of the tool call "
        f"{call['name']!r} (call {call.get('id')!r}). Return a key for every call, whatever its arguments are."
    )
    return NoKeyError()


# Loans of permits to nested calls


class Holder(Protocol):
    """Protocol of an attempt that holds permits and may wait for a further permit; used by deadlock detection."""

    waits_for: "Gate | SharedPermit | None"
    """Queue in which the attempt waits for a permit; `None` while it does not wait."""
    stalled: "dict[Holder, None] | None"
    """Nested attempts that wait for a permit."""

    @property
    def title(self) -> str:
        """Name of the tool and id of the call, as text for errors."""
        ...


class Loan:
    """Permit that an attempt lends to its nested attempts, one at a time.

    It is released when neither the lender nor a nested attempt needs it any more.
    """

    __slots__ = ("_give_back", "_lock", "_permit", "_users", "borrower_queue")

    def __init__(self, permit: "Gate | SharedPermit | Loan", title: str, give_back: Callable[[], None]) -> None:
        self.borrower_queue = Gate(Limit(concurrency=1), title)
        """Queue of the nested attempts; its holder has the permit."""
        self._permit = permit
        self._give_back = give_back
        self._users = 1  # the lender, and each nested attempt that has the permit or waits for it
        self._lock = threading.Lock()

    @property
    def identity(self) -> Hashable:
        """Identity of the lent permit; equal for permits that are interchangeable."""
        return self._permit.identity

    @property
    def start_rate_gate(self) -> "Gate | None":
        """Rate limit of this process that must count the borrower's start; `None` if there is none."""
        return self._permit.start_rate_gate

    @property
    def token(self) -> int | None:
        """Fencing token of the lent permit; `None` if the permit is not shared."""
        return None if isinstance(self._permit, Gate) else self._permit.token

    @property
    def is_lost(self) -> bool:
        """True if the store of a shared limit may have given the permit to another process."""
        return not isinstance(self._permit, Gate) and self._permit.is_lost

    def join(self) -> None:
        """Keep the permit for one more nested attempt, until this attempt withdraws. The lender must not have left."""
        with self._lock:
            self._users += 1

    def withdraw(self) -> None:
        """End the use of the permit by the lender or by one nested attempt; the last one releases the permit."""
        with self._lock:
            self._users -= 1
            is_over = not self._users
        if is_over:
            self._give_back()


# Limits of this process


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


@dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class Gate:
    """Permits and queue of one limit, or of one key of a limit.

    Invariant: only the head of the queue takes a permit, or a new call if the queue is empty. So if the queue is not
    empty and a permit is free, the head is awake. Each method that frees a permit or removes a waiter wakes the head.
    """

    _limit: Limit
    title: str
    is_last: InitVar[bool] = False
    holders: set[Holder] = field(default_factory=set["Holder"], init=False)
    """Attempts that hold a permit, for deadlock detection; holders that are not attempts are not listed."""
    # The next four and the fields of waiters change only under `_lock`: threads and loops share a gate.
    _free_permits: float = field(default=math.inf, init=False)
    _queue: OrderedDict[_Waiter, None] = field(default_factory=OrderedDict[_Waiter, None], init=False)
    """Ordered, with removal of a cancelled waiter in constant time."""
    _window: Window | None = field(default=None, init=False)
    start_rate_gate: "Gate | None" = field(default=None, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self, is_last: bool) -> None:
        if self._limit.concurrency is not None:
            self._free_permits = self._limit.concurrency
        if self._limit.rate is not None:
            self._window = Window(self._limit.rate)
            # A call that passed this gate may wait at other gates before it starts, but the rate limits starts. So it
            # is applied twice: here, so that calls pass in FIFO order, and at a second gate right before the start.
            if not is_last:
                self.start_rate_gate = Gate(Limit(rate=self._limit.rate), self.title, is_last=True)

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

    def is_unused(self, loop: EventLoop) -> bool:
        """Return whether the limit has no taken permits, no queue and no recent starts, so that it can be removed."""
        concurrency = self._limit.concurrency
        if self._queue or self._free_permits != (math.inf if concurrency is None else concurrency):
            return False
        if self._window is not None and not self._window.is_expired(_common_time(loop)):
            return False
        return self.start_rate_gate is None or self.start_rate_gate.is_unused(loop)

    def try_enter(self, loop: EventLoop) -> bool:
        """Take a permit without waiting, and return `True`; return `False` if none is free or calls are queued."""
        with self._lock:
            return not self._queue and self._try_take(loop)

    async def enter(self, loop: EventLoop) -> None:
        """Wait in FIFO order for a permit."""
        waiter = self._join_queue(loop)
        if waiter is None:
            return
        try:
            while True:
                if not waiter.is_awake:
                    await waiter.wakeup.wait()
                if waiter.refusal is not None:
                    raise NoPlaceError(waiter.refusal)
                if self._window is not None and (wait := self._window.opens_at() - _common_time(loop)) > 0:
                    await sleep_until(loop.now() + wait)  # only the head sleeps here, the others wait for their wakeup
                with self._lock:
                    if self._try_take(loop):
                        del self._queue[waiter]
                        self._wake_head()
                        return
                    # A wakeup serves once. Replaced under the lock, so that the next `leave` sets the new one.
                    if self._free_permits < 1:
                        waiter.is_awake, waiter.wakeup = False, loop.wakeup()
        except BaseException:
            # Cancelled or rejected. If this was the head and a permit is free, the next waiter must be woken.
            with self._lock:
                if waiter in self._queue:
                    del self._queue[waiter]
                    self._wake_head()
            raise

    async def pass_through(self, loop: EventLoop) -> None:
        """Wait in FIFO order until the rate limit allows one more start; keep no permit."""
        if not self.try_enter(loop):
            await self.enter(loop)
        self.leave()

    def leave(self) -> None:
        """Release a permit; may be called from any thread."""
        with self._lock:
            self._free_permits += 1
            self._wake_head()

    def _join_queue(self, loop: EventLoop) -> _Waiter | None:
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
            self._queue[waiter] = None
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
        if self._free_permits < 1:
            return False
        if self._window is not None:
            now = _common_time(loop)
            if self._window.opens_at() > now:
                return False
            self._window.record_start(now)
        self._free_permits -= 1
        return True

    def _wake_head(self) -> None:
        # Under the lock. `is_awake` prevents a second `set()` of a wakeup that serves once.
        if self._queue and self._free_permits >= 1:
            head = next(iter(self._queue))
            if not head.is_awake:
                head.is_awake = True
                head.wakeup.set()


def _common_time(loop: EventLoop) -> float:
    """Return the time on the clock that all event loops of the process share."""
    # Loops with different clocks may share a limit.
    return loop.now() + loop.offset


class Limiter:
    """Limit within this process: permits and a queue (a `Gate`), or one `Gate` for each key in use."""

    __slots__ = ("_by_key", "_gate", "_key", "_limit", "_lock", "_name", "_prune_at")

    def __init__(self, limit: Limit, name: str) -> None:
        self._limit = limit
        self._name = name
        self._key = None if limit.key is None else key_function("Limit(key=...)", limit.key)
        self._gate = Gate(limit, name) if limit.key is None else None
        self._by_key: dict[Hashable, Gate] = {}
        self._lock = threading.Lock()
        self._prune_at = 64  # number of gates at which idle ones are removed

    def gate(self, call: ToolCallLike, loop: EventLoop, context: Callable[[], CallContext] = CallContext) -> Gate:
        """Return the permits and queue (a `Gate`) of the call's key; `context` creates the key function's context."""
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
                # The model reads the name in a rejection. A key of the call's arguments came from the model itself; a
                # key from the context, such as a user or a tenant, must not be shown to it.
                calls = "calls like this one" if self._key.takes_context else repr(key)
                gate = self._by_key[key] = Gate(self._limit, f"{self._name} for {calls}")
            return gate

    def _prune(self, loop: EventLoop) -> None:
        # Keys come from the model, in any number. Doubling the threshold keeps the average cost of a check constant.
        if len(self._by_key) >= self._prune_at:
            for key in [*self._by_key]:
                if self._by_key[key].is_unused(loop):
                    pruned_gate = ref(self._by_key.pop(key))
                    # Still referenced: another thread got the gate from `gate` and has not entered it yet. A second
                    # gate of the key would double its limit.
                    if (in_use := pruned_gate()) is not None:
                        self._by_key[key] = in_use
            self._prune_at = max(64, 2 * len(self._by_key))


# Limits that processes share


def limiter_of(limit: Limit, name: str, title: str) -> "Limiter | SharedLimiter":
    """Return a `Limiter` for a limit of this process, or a `SharedLimiter` if `limit.shared` is a store."""
    return Limiter(limit, title) if limit.shared is None else SharedLimiter(limit, limit.shared, name, title)


class SharedLimiter:
    """Limit that many processes share: a store grants its permits."""

    __slots__ = ("_key", "_limit", "_name", "_shared", "_tenant", "_title")

    def __init__(self, limit: Limit, shared: SharedLimits, name: str, title: str) -> None:
        shared.check(limit)
        self._limit = limit
        self._shared = shared
        self._name = name
        self._title = title
        self._key = None if limit.key is None else key_function("Limit(key=...)", limit.key)
        self._tenant = None if limit.tenant is None else key_function("Limit(tenant=...)", limit.tenant)

    def gate(
        self, call: ToolCallLike, loop: EventLoop, context: Callable[[], CallContext] = CallContext
    ) -> "SharedPermit":
        """Return a new `SharedPermit` for one attempt; `context` creates the context of the key functions."""
        # A new object for each attempt: it holds the attempt's own request at the store.
        texts: list[str] = []
        for option, function in (("key", self._key), ("tenant", self._tenant)):
            try:
                texts.append("" if function is None else digest(function.of(call, context))[:32])
            except Exception as error:
                raise without_key(error, self._title, call, option) from error
        key, tenant = texts
        title = f"{self._title} for calls like this one" if key else self._title
        request = PermitRequest(limit=self._limit, name=self._name, key=key, tenant=tenant, title=title)
        return SharedPermit(self._shared, request)


_holders: dict[Hashable, set[Holder]] = {}
"""Attempts of this process that hold a permit at a shared limit, by the identity of the permit."""
# Guards changes of `_holders`: an empty set is removed, and another thread may add to it.
_holders_lock = threading.Lock()


class SharedPermit:
    """Permit that one attempt of a call requests, holds and releases, from a limit that many processes share."""

    __slots__ = ("_permit", "_request", "_shared")

    def __init__(self, shared: SharedLimits, request: PermitRequest) -> None:
        self._shared = shared
        self._request = request
        self._permit: Permit | None = None

    @property
    def identity(self) -> Hashable:
        """Identity of the permit: store, name of the limit in the store, and key."""
        # Without the tenant, which affects only the order of the queue: permits are interchangeable between tenants.
        return (id(self._shared), getattr(self._shared, "name", None) or self._request.name, self._request.key)

    @property
    def concurrency(self) -> int | None:
        """Number of permits that all processes together may hold; `None` if it is unlimited."""
        return self._request.limit.concurrency

    @property
    def is_lendable(self) -> bool:
        """True if the permit may be lent to nested calls: if the limit has a concurrency and no rate."""
        # The store does not count the starts of nested calls, so a rate limit would be exceeded.
        return self.concurrency is not None and self._request.limit.rate is None

    @property
    def holders(self) -> set[Holder]:
        """Attempts of this process that hold a permit of the same limit and key, as a new set."""
        return set(_holders.get(self.identity, ()))

    @property
    def title(self) -> str:
        """Name of the limit's queue, for errors."""
        return self._request.title

    def note_holder(self, holder: Holder, *, has: bool) -> None:
        """Add `holder` (an attempt) to the holders of permits of this limit and key, or remove it (`has=False`)."""
        identity = self.identity
        with _holders_lock:
            holders = _holders.setdefault(identity, set())
            (holders.add if has else holders.discard)(holder)
            if not holders:
                del _holders[identity]

    @property
    def start_rate_gate(self) -> None:
        """Always `None`, because no rate limit of this process counts the call's starts: the server does."""
        return

    @property
    def token(self) -> int | None:
        """Fencing token of the permit; `None` while no permit is held."""
        return None if self._permit is None else self._permit.token

    def try_enter(self, loop: EventLoop) -> bool:
        """Always return `False`, so that the caller uses `enter()`: only the store knows whether a permit is free."""
        return False

    async def enter(self, loop: EventLoop) -> None:
        """Request a permit and wait for it."""
        # Stored at once: `leave` must withdraw the request even if this wait is cancelled.
        wakeup = loop.wakeup()
        permit = self._permit = self._shared.ask(self._request, wakeup.set)
        try:
            await wakeup.wait()
        except BaseException:  # cancelled, perhaps after the store has granted the permit: release it
            self.leave()
            raise
        failure = permit.failure
        if failure is not None:
            self.leave()
            raise NoPlaceError(failure) if isinstance(failure, str) else failure

    @property
    def is_lost(self) -> bool:
        """True if the store may have given the permit to another process."""
        return self._permit is not None and self._permit.is_lost

    def begin(self) -> None:
        """Report to the store that the attempt starts now; the rate limit counts the start from this moment."""
        if self._permit is not None:
            self._permit.begin()

    def leave(self) -> None:
        """Release the permit, or withdraw the request for it; may be called from any thread."""
        permit, self._permit = self._permit, None  # so that a second call does nothing
        if permit is not None:
            permit.leave()


# All limits


AnyGate = Gate | SharedPermit
"""Gate of a limit of this process, or the permit of one attempt at a shared limit."""


AnyLimiter = Limiter | SharedLimiter


async def count_start(permits: Sequence[Gate | SharedPermit | Loan], loop: EventLoop) -> bool:
    """Wait until all rate limits allow one more start, and count the start; return `False` if a permit was lost."""
    # A permit is lost if this process was suspended longer than its lease. Then the caller must release all permits and
    # acquire them again in order: a call that holds a later one and waits for an earlier one could wait for ever.
    for permit in permits:
        if permit.start_rate_gate is not None:
            await permit.start_rate_gate.pass_through(loop)
    if any(permit.is_lost for permit in permits if isinstance(permit, (SharedPermit, Loan))):
        return False
    # Last, and without an `await`: between the start that other processes count and the body, nothing may wait.
    for permit in permits:
        if isinstance(permit, SharedPermit):
            permit.begin()
    return True
