"""Permits at a limit that many processes share, in a `SharedLimits` store."""

import threading
from collections.abc import Hashable
from typing import ClassVar

from callboard._calls._deadlocks import Holder
from callboard._calls._gate import NoPlaceError
from callboard._loops._protocol import EventLoop
from callboard._records._policies import Permit, PermitRequest, SharedLimits

_holders: dict[Hashable, set[Holder]] = {}
"""Attempts of this process that hold a permit at a shared limit, by the identity of the permit."""
# Guards changes of `_holders`: an empty set is removed, and another thread may add to it.
_holders_lock = threading.Lock()


class SharedPermit:
    """Permit that one attempt of a call requests, holds and releases, from a limit that many processes share."""

    __slots__ = ("_permit", "_request", "_shared")

    start_rate_gate: ClassVar[None] = None
    """No rate limit of this process counts the call's starts: the server does."""

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

    def add_holder(self, holder: Holder) -> None:
        """Add an attempt to the holders of permits of this limit and key."""
        with _holders_lock:
            _holders.setdefault(self.identity, set()).add(holder)

    def remove_holder(self, holder: Holder) -> None:
        """Remove an attempt from the holders of permits of this limit and key, if it is one."""
        identity = self.identity
        with _holders_lock:
            holders = _holders.get(identity, set())
            holders.discard(holder)
            if not holders:
                _holders.pop(identity, None)

    @property
    def token(self) -> int | None:
        """Fencing token of the permit; `None` while no permit is held."""
        return None if self._permit is None else self._permit.token

    def try_enter(self, loop: EventLoop) -> bool:
        """Always return `False`, so that the caller uses `enter()`: only the store knows whether a permit is free."""
        return False

    def pause(self, loop: EventLoop, seconds: float) -> None:
        """Do nothing: the store of a shared limit knows no pauses."""

    async def enter(self, loop: EventLoop, tenant: Hashable = None) -> None:
        """Request a permit and wait for it; the request has the tenant."""
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
