"""Places at limits that many processes share: what an attempt sees of them. Where they are kept is another's business.

What is kept elsewhere of keys and tenants are digests, for they may be made of what a model wrote.
"""

import threading
from collections.abc import Callable, Hashable, Sequence

from callboard._calls._limits import Gates, Limiter, NoPlaceError, Place, Seeing, without_key
from callboard._calls._nested_places import Holder, Loan, LoanTurn
from callboard._canonical import digest
from callboard._loops._protocol import EventLoop
from callboard._types import CallContext, KeyFunction, Limit, SharedLimits, Stay, ToolCallLike, Wanted, key_function


def limiter_of(limit: Limit, name: str, title: str) -> "Limiter | SharedLimiter":
    """A limit and its gates: in this process, or where it says that it is shared.

    Args:
        limit: its numbers.
        name: of what is limited, in all processes alike.
        title: whose queue it is, for rejections.

    Raises:
        ValueError: if it cannot be kept where it is to be.
    """
    return Limiter(limit, title) if limit.shared is None else SharedLimiter(limit, limit.shared, name, title)


class SharedLimiter:
    """A limit that is kept elsewhere, and its places."""

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
        """Whether its key or its tenant looks at more than the call."""
        return any(one is not None and one.takes_context for one in (self._key, self._tenant))

    def seeing(self, context: Callable[[], CallContext]) -> Gates:
        """The gates for calls of which the key sees a context besides, if it looks at one."""
        return Seeing(self, context) if self.takes_context else self

    def gate(
        self, call: ToolCallLike, loop: EventLoop, context: Callable[[], CallContext] = CallContext
    ) -> "SharedPlace":
        """The place of this call; `context` makes what keys may look at besides the call.

        Raises:
            NoKeyError: if a key function fails, or returns what cannot be a key.
        """
        key, tenant = (_text_of(one, call, context, self._title) for one in (self._key, self._tenant))
        title = f"{self._title} for calls like this one" if key else self._title
        wanted = Wanted(limit=self._limit, name=self._name, key=key, tenant=tenant, title=title)
        return SharedPlace(self._shared, wanted)


def _text_of(function: KeyFunction | None, call: ToolCallLike, context: Callable[[], CallContext], title: str) -> str:
    if function is None:
        return ""
    try:
        return digest(function.of(call, context))[:32]
    except Exception as error:
        option = "tenant" if "tenant" in function.name else "key"
        raise without_key(error, title, call, option) from error


_holders: dict[Hashable, set[Holder]] = {}
"""The attempts of this process that have a place at a shared limit, by the identity of the place."""
_lock = threading.Lock()


class SharedPlace:
    """The place of one attempt, which waits for it, has it, and gives it back."""

    __slots__ = ("_shared", "_stay", "_wanted")

    def __init__(self, shared: SharedLimits, wanted: Wanted) -> None:
        self._shared = shared
        self._wanted = wanted
        self._stay: Stay | None = None

    @property
    def identity(self) -> Hashable:
        """The store, the name that the limit has there, and the key."""
        return (id(self._shared), getattr(self._shared, "name", None) or self._wanted.name, self._wanted.key)

    @property
    def concurrency(self) -> int | None:
        """How many places all processes have together; `None` for any number."""
        return self._wanted.limit.concurrency

    @property
    def is_lendable(self) -> bool:
        """Whether a call may lend the place to a call within it: the store would not count the start of that call."""
        return self.concurrency is not None and self._wanted.limit.rate is None

    @property
    def holders(self) -> set[Holder]:
        """The attempts of this process that have such a place, in a copy."""
        return set(_holders.get(self.identity, ()))

    @property
    def title(self) -> str:
        """The name of the queue, for errors."""
        return self._wanted.title

    def note_holder(self, holder: Holder, *, has: bool) -> None:
        """Note that an attempt has such a place, or no longer has it."""
        identity = self.identity
        with _lock:
            holders = _holders.setdefault(identity, set())
            (holders.add if has else holders.discard)(holder)
            if not holders:
                del _holders[identity]

    @property
    def starts(self) -> None:
        """Nothing to wait for: the place is given with room for a start, which `begin` counts."""
        return

    @property
    def token(self) -> int | None:
        """The fencing token of the place, while there is one."""
        return None if self._stay is None else self._stay.token

    def try_enter(self, loop: EventLoop) -> bool:
        """Never: whether there is a place is known elsewhere."""
        return False

    async def enter(self, loop: EventLoop, turn: LoanTurn | None = None) -> bool:
        """Take a place, after everybody who came before; return False without one if `turn` is granted first.

        Raises:
            NoPlaceError: if there is none, and no room to wait.
            StorageError: if where it is kept cannot be used.
        """
        wakeup = loop.wakeup()
        stay = self._stay = self._shared.ask(self._wanted, wakeup.set)
        if turn is not None:
            turn.when_granted(wakeup.set)
        try:
            await wakeup.wait()
        except BaseException:
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
        """Whether another process may have the place by now."""
        return self._stay is not None and self._stay.is_lost

    def begin(self) -> None:
        """Note that the body begins; not before, for the rate of starts counts from here."""
        if self._stay is not None:
            self._stay.begin()

    def leave(self) -> None:
        """Give the place back, or leave the queue; from any thread."""
        stay, self._stay = self._stay, None
        if stay is not None:
            stay.leave()


async def count_start(places: Sequence[Place | Loan], loop: EventLoop) -> bool:
    """Count a start at all of the places that a call has; wait until their rates allow it.

    Returns:
        False if one of the places was lost, because the process stood still: all of them have to be taken anew, in
        their order, as a call that holds a later one and waits for an earlier one could wait for ever.
    """
    for place in places:
        if place.starts is not None:
            await place.starts.pass_through(loop)
    if any(place.is_lost for place in places if isinstance(place, (SharedPlace, Loan))):
        return False
    for place in places:  # last, so that nothing comes between the start that others count and the body
        if isinstance(place, SharedPlace):
            place.begin()
    return True
