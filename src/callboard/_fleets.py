"""What a fleet is: processes that have actors together, each key at one of them. Imports no sibling."""

from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


class KeyMovedError(Exception):
    """An ask did not begin, because its key belongs to another process now; never seen by users."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAsk:
    """One ask of an actor, as it goes to the process that owns its key.

    Args:
        key: of the actor.
        handler: its name.
        args: for it.
        kwargs: for it.
        title: what to call it in errors.
        call_id: of the tool call that it is, for errors.
        grace: seconds that the handler has to end when it is cancelled.
        on_begin: called when the handler begins, in any thread.
    """

    key: Hashable
    handler: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    title: str
    call_id: str | None
    grace: float
    on_begin: Callable[[], object] | None = None


class Ownership(Protocol):
    """How a process owns a key: under which token, and whether it still does. May be asked from any thread."""

    token: int
    """The fencing token: who owns the key later has a higher one."""

    @property
    def is_current(self) -> bool:
        """Whether the process still owns the key, and no other one can."""
        ...


class Posting(Protocol):
    """An ask that is on its way to whoever owns its key."""

    async def is_here(self) -> bool:
        """Wait until the key is owned by this process, which is to do it, or there is an outcome from another one.

        Whoever is cancelled meanwhile takes it back if it has not begun, and otherwise has it cancelled there.

        Raises:
            ActorGoneError: if this process is leaving the fleet.
            StorageError: if where keys are kept refuses to be used.
        """
        ...

    def taken(self) -> None:
        """Say that it stands in its queue here, or never will: the next one may come."""
        ...

    def outcome(self) -> Any:
        """What it came to at the other process: what the handler returned; raises what it raised.

        Raises:
            ActorDiedError: if nobody knows, because the owner died, or stood still for too long, while it ran.
        """
        ...


class FleetHost(Protocol):
    """The actors of one kind in one process, as their fleet knows them. May be called from any thread."""

    name: str
    """Of the actor, in all processes alike."""

    def serve(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], object] | None:
        """Have something run that answers an ask; of one key, asks come into the mailbox in this order.

        It must not raise. Returns what cancels it, and `None` if nothing runs any more.
        """
        ...

    async def answer(self, ask: FleetAsk, begin: Callable[[], Awaitable[bool]]) -> Any:
        """Do an ask of another process; within `serve`.

        Args:
            ask: what to do.
            begin: asked when its turn has come; the handler does not run if that says False.

        Raises:
            KeyMovedError: if it did not begin, because this process does not own the key.
            BaseException: what the handler raises.
        """
        ...

    def lost(self, key: Hashable, reason: str) -> None:
        """Have the actor of a key end at once, because it may soon live elsewhere."""
        ...


class FleetSnapshots(Protocol):
    """Keeps what `snapshot` returns for the whole fleet, and refuses it from those who own the key no more."""

    async def load(self, actor: str, key: Hashable) -> object:
        """The snapshot that was saved last; `None` for none."""
        ...

    async def save(self, actor: str, key: Hashable, snapshot: object) -> None:
        """Keep a snapshot in place of the one before."""
        ...


class Membership(Protocol):
    """The part of one host in a fleet. All but `leave` may be called from any thread, and never waits."""

    @property
    def snapshots(self) -> FleetSnapshots:
        """Where the states of the actors are kept."""
        ...

    def owned(self, key: Hashable) -> Ownership | None:
        """How this process owns a key; `None` if it does not."""
        ...

    def post(self, ask: FleetAsk) -> Posting:
        """Have an ask done by whoever owns its key: this process, if nobody does; those of one key in their order."""
        ...

    def give_back(self, key: Hashable) -> None:
        """Own a key no more, whose actor has ended and has been saved."""
        ...

    async def leave(self) -> None:
        """Own nothing any more, and ask nobody."""
        ...


@runtime_checkable
class Fleet(Protocol):
    """Processes that have actors together: of each key one lives, in one of them."""

    @property
    def lease(self) -> float:
        """Seconds without a sign of life after which a process counts as dead."""
        ...

    @property
    def clean_up(self) -> float:
        """Seconds that an owner has to end what runs, once it has given up a key; then another one may own it."""
        ...

    def admit(self, host: FleetHost, /) -> Membership:
        """Have the actors of one kind in this process take part; waits for nothing."""
        ...
