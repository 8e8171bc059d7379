"""Permits at limits that many processes share, as an attempt sees them; a `SharedLimits` store keeps the limits.

The store receives only digests of keys and tenants, which may contain confidential arguments of calls.
"""

import threading
from collections.abc import Callable, Hashable, Sequence

from callboard._calls._limits import GatePermit, Gates, Limiter, NoPlaceError, Seeing, without_key
from callboard._calls._nested_permits import Holder, Loan, LoanTurn
from callboard._loops._protocol import EventLoop
from callboard._records._policies import (
    CallContext,
    KeyFunction,
    Limit,
    Permit,
    PermitRequest,
    SharedLimits,
    ToolCallLike,
    key_function,
)
from callboard._util._canonical import digest


def limiter_of(limit: Limit, name: str, title: str) -> "Limiter | SharedLimiter":
    """Return the limiter of a limit: of this process, or of the store that `limit.shared` names.

    `name` must be equal in all processes that share the limit; `title` names the queue in rejections.
    """
    return Limiter(limit, title) if limit.shared is None else SharedLimiter(limit, limit.shared, name, title)


class SharedLimiter:
    """Limit in a shared store."""

    __slots__ = ("_key", "_limit", "_name", "_shared", "_tenant", "_title")

    def __init__(self, limit: Limit, shared: SharedLimits, name: str, title: str) -> None:
        shared.check(limit)
        self._limit = limit
        self._shared = shared
        self._name = name
        self._title = title
        self._key = None if limit.key is None else key_function("Limit(key=...)", limit.key)
        self._tenant = None if limit.tenant is None else key_function("Limit(tenant=...)", limit.tenant)

    @property
    def takes_context(self) -> bool:
        """True if the key or tenant function takes a context in addition to the call."""
        return any(one is not None and one.takes_context for one in (self._key, self._tenant))

    def seeing(self, context: Callable[[], CallContext]) -> Gates:
        """Return a view of the limiter that passes a context to its functions, if one of them takes it."""
        return Seeing(self, context) if self.takes_context else self

    def gate(
        self, call: ToolCallLike, loop: EventLoop, context: Callable[[], CallContext] = CallContext
    ) -> "SharedPermit":
        """Return the gate for a call; `context` creates the context for the key and tenant functions.

        Raises:
            NoKeyError: if a key function fails, or returns an invalid key.
        """
        # A new object for each attempt: it holds the attempt's own request at the store.
        key, tenant = (_text_of(one, call, context, self._title) for one in (self._key, self._tenant))
        title = f"{self._title} for calls like this one" if key else self._title
        wanted = PermitRequest(limit=self._limit, name=self._name, key=key, tenant=tenant, title=title)
        return SharedPermit(self._shared, wanted)


def _text_of(function: KeyFunction | None, call: ToolCallLike, context: Callable[[], CallContext], title: str) -> str:
    if function is None:
        return ""
    try:
        return digest(function.of(call, context))[:32]
    except Exception as error:
        option = "tenant" if "tenant" in function.name else "key"
        raise without_key(error, title, call, option) from error


_holders: dict[Hashable, set[Holder]] = {}
"""Attempts of this process that hold a permit at a shared limit, by the identity of the permit."""
_lock = threading.Lock()  # guards changes of `_holders`: an empty set is removed, and another thread may add to it


class SharedPermit:
    """Permit of one attempt at a shared limit, from the request to the release."""

    __slots__ = ("_shared", "_stay", "_wanted")

    def __init__(self, shared: SharedLimits, wanted: PermitRequest) -> None:
        self._shared = shared
        self._wanted = wanted
        self._stay: Permit | None = None

    @property
    def identity(self) -> Hashable:
        """Store, name of the limit in the store, and key."""
        # Without the tenant, which affects only the order of the queue: permits are interchangeable between tenants.
        return (id(self._shared), getattr(self._shared, "name", None) or self._wanted.name, self._wanted.key)

    @property
    def concurrency(self) -> int | None:
        """Number of permits of all processes together; `None` for no limit."""
        return self._wanted.limit.concurrency

    @property
    def is_lendable(self) -> bool:
        """True if a call may lend the permit to a nested call; false with a rate: the store counts no nested starts."""
        return self.concurrency is not None and self._wanted.limit.rate is None

    @property
    def holders(self) -> set[Holder]:
        """Copy of the set of this process's attempts that hold such a permit."""
        return set(_holders.get(self.identity, ()))

    @property
    def title(self) -> str:
        """Name of the queue, for errors."""
        return self._wanted.title

    def note_holder(self, holder: Holder, *, has: bool) -> None:
        """Register or unregister an attempt as holder of such a permit."""
        identity = self.identity
        with _lock:
            holders = _holders.setdefault(identity, set())
            (holders.add if has else holders.discard)(holder)
            if not holders:
                del _holders[identity]

    @property
    def starts(self) -> None:
        """No gate for starts: the store grants a permit together with a start, which `begin` counts."""
        return

    @property
    def token(self) -> int | None:
        """Fencing token of the permit, while it is held."""
        return None if self._stay is None else self._stay.token

    def try_enter(self, loop: EventLoop) -> bool:
        """Return `False`: only the store knows whether a permit is free."""
        return False

    async def enter(self, loop: EventLoop, turn: LoanTurn | None = None) -> bool:
        """Request a permit and wait for it; return `False` without one if `turn` is granted first.

        Raises:
            NoPlaceError: if no permit is free and the queue is full.
            StorageError: if the store cannot be used.
        """
        # Stored at once: `leave` must withdraw the request even if this wait is cancelled.
        wakeup = loop.wakeup()
        stay = self._stay = self._shared.ask(self._wanted, wakeup.set)
        if turn is not None:
            turn.when_granted(wakeup.set)
        try:
            await wakeup.wait()
        except BaseException:  # cancelled, perhaps after the store has granted the permit: release it
            self.leave()
            raise
        if turn is not None and turn.is_granted:
            self.leave()
            return False
        failure = stay.failure
        if failure is not None:
            self.leave()
            raise NoPlaceError(failure) if isinstance(failure, str) else failure
        return True

    @property
    def is_lost(self) -> bool:
        """True if the store may have given the permit to another process."""
        return self._stay is not None and self._stay.is_lost

    def begin(self) -> None:
        """Count the start of the body at the store; its rate counts from this moment."""
        if self._stay is not None:
            self._stay.begin()

    def leave(self) -> None:
        """Release the permit, or withdraw the request; from any thread."""
        stay, self._stay = self._stay, None  # so that a second call does nothing
        if stay is not None:
            stay.leave()


async def count_start(places: Sequence[GatePermit | Loan], loop: EventLoop) -> bool:
    """Wait until all rates allow a start, and count it; return `False` if a shared permit was lost meanwhile."""
    # A permit is lost if this process was suspended longer than its lease. Then the caller must release all permits and
    # acquire them again in order: a call that holds a later one and waits for an earlier one could wait for ever.
    for place in places:
        if place.starts is not None:
            await place.starts.pass_through(loop)
    if any(place.is_lost for place in places if isinstance(place, (SharedPermit, Loan))):
        return False
    # Last, and without an `await`: between the start that other processes count and the body, nothing may wait.
    for place in places:
        if isinstance(place, SharedPermit):
            place.begin()
    return True
