"""Limits for calls: a limiter finds the gate, or makes the shared permit, of a call's key.

A limit is one of this process, with gates, or one that many processes share, in a `SharedLimits` store. The store
receives only digests of keys and tenants, which may contain confidential arguments of calls.
"""

import threading
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial
from weakref import ref

from callboard._calls._gate import Gate, LimitTitle
from callboard._calls._shared_permits import SharedPermit
from callboard._loops._protocol import EventLoop
from callboard._records._policies import CallContext, Limit, PermitRequest, SharedLimits, ToolCallLike, key_function
from callboard._util._canonical import digest


class NoKeyError(Exception):
    """Raised if the key function of a limit failed for a call; `__cause__` is the error of the function."""


def without_key(error: Exception, title: str, call: ToolCallLike, option: str = "key") -> NoKeyError:
    """Add a note to an error of a limit's key function, and return the `NoKeyError` to raise from this error."""
    error.add_note(
        f"Raised by Limit({option}=...) of {title.removeprefix('the queue of ')}, asked for the key of the tool call "
        f"{call['name']!r} (call {call.get('id')!r}). Return a key for every call, whatever its arguments are."
    )
    return NoKeyError()


class Limiter:
    """Limit within this process: permits and a queue (a `Gate`), or one `Gate` for each key in use."""

    __slots__ = ("_by_key", "_gate", "_key", "_limit", "_lock", "_prune_at", "_tenant", "title")

    def __init__(self, limit: Limit, title: LimitTitle | str) -> None:
        self._limit = limit
        self.title = title
        self._key = None if limit.key is None else key_function("Limit(key=...)", limit.key)
        self._tenant = None if limit.tenant is None else key_function("Limit(tenant=...)", limit.tenant)
        self._gate = Gate(limit, title) if limit.key is None else None
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
            raise without_key(error, str(self.title), call) from error
        with self._lock:
            gate = self._by_key.get(key)
            if gate is None:
                self._prune(loop)
                # The model reads the name in a rejection. A key of the call's arguments came from the model itself; a
                # key from the context, such as a user or a tenant, must not be shown to it.
                calls = "calls like this one" if self._key.takes_context else repr(key)
                gate = self._by_key[key] = Gate(self._limit, self.title, f" for {calls}")
            return gate

    def tenant_of(self, call: ToolCallLike, context: Callable[[], CallContext] = CallContext) -> Hashable:
        """Return the tenant of a call that has to wait; `None` for a limit without tenants."""
        if self._tenant is None:
            return None
        try:
            tenant = self._tenant.of(call, context)
            hash(tenant)
        except Exception as error:
            raise without_key(error, str(self.title), call, "tenant") from error
        return tenant

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


class SharedLimiter:
    """Limit that many processes share: a store grants its permits."""

    __slots__ = ("_key", "_limit", "_name", "_shared", "_tenant", "title")

    def __init__(self, limit: Limit, shared: SharedLimits, name: str, title: LimitTitle) -> None:
        shared.check(limit)
        self._limit = limit
        self._shared = shared
        self._name = name
        self.title = title
        self._key = None if limit.key is None else key_function("Limit(key=...)", limit.key)
        self._tenant = None if limit.tenant is None else key_function("Limit(tenant=...)", limit.tenant)

    def gate(
        self, call: ToolCallLike, loop: EventLoop, context: Callable[[], CallContext] = CallContext
    ) -> SharedPermit:
        """Return a new `SharedPermit` for one attempt; `context` creates the context of the key functions."""
        # A new object for each attempt: it holds the attempt's own request at the store.
        texts: list[str] = []
        title = str(self.title)
        for option, function in (("key", self._key), ("tenant", self._tenant)):
            try:
                texts.append("" if function is None else digest(function.of(call, context))[:32])
            except Exception as error:
                raise without_key(error, title, call, option) from error
        key, tenant = texts
        title = f"{title} for calls like this one" if key else title
        request = PermitRequest(limit=self._limit, name=self._name, key=key, tenant=tenant, title=title)
        return SharedPermit(self._shared, request)

    def tenant_of(self, call: ToolCallLike, context: Callable[[], CallContext] = CallContext) -> None:
        """Return `None`: the store has the tenant of each request."""

    def check_name(self, name: str) -> None:
        """Raise ValueError if a tool or node of another name has the limit, and the store knows limits by names."""
        # Under two names, the store would let twice as many calls run. The first name is no name for both: another
        # process may build its tools in another order.
        if getattr(self._shared, "name", None) is None and name != self._name:
            store = type(self._shared).__name__
            raise ValueError(
                f"one Limit(shared={store}(...)) has the name {self._name!r} in its store, and would be a second limit "
                f"there under the name {name!r}. Give the store one name for all of them, such as "
                f"{store}(..., name='api.example.com'), or give each tool and node a Limit of its own"
            )


AnyGate = Gate | SharedPermit
"""Gate of a limit of this process, or the permit of one attempt at a shared limit."""

AnyLimiter = Limiter | SharedLimiter


# By the identity of the limit: one object is one limit, wherever it is given, and two equal ones are two. A limiter
# lasts as long as its `Limit`, also without nodes: a rate looks back beyond the node that was made for one request.
_limiters: dict[int, tuple[ref[Limit], AnyLimiter]] = {}
_limiters_lock = threading.Lock()


def limiter_of(limit: Limit, name: str, owner: str) -> AnyLimiter:
    """Return the limiter of a limit: the one that the same object has in this process, or a new one.

    `owner` is the tool or node that has the limit, for errors. `name` is the name of the limit in a store that
    processes share; raise ValueError if the same object has another name there.
    """
    with _limiters_lock:
        entry = _limiters.get(id(limit))
        if entry is not None and entry[0]() is limit:
            limiter = entry[1]
            if isinstance(limiter, SharedLimiter):
                limiter.check_name(name)
            if isinstance(limiter.title, LimitTitle):
                limiter.title.add(owner)
            return limiter
        # With a copy, which does not keep the limit alive.
        copy, title = replace(limit), LimitTitle(owner)
        limiter = Limiter(copy, title) if limit.shared is None else SharedLimiter(copy, limit.shared, name, title)
        _limiters[id(limit)] = ref(limit, partial(_forget, id(limit))), limiter
        return limiter


def _forget(limit_id: int, dead_ref: "ref[Limit]") -> None:
    # Without the lock, which the thread may hold that collects garbage: one operation of a dict is atomic.
    entry = _limiters.get(limit_id)
    if entry is not None and entry[0] is dead_ref:
        del _limiters[limit_id]
