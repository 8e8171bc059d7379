"""Protocols of a fleet: several processes that share keyed actors, so that each key has one owner process.

This module imports no other module of the package.
"""

from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


class KeyMovedError(Exception):
    """Raised for an ask (actor request) that did not start because its key has moved to another process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAsk:
    """Ask (request with a reply) to a keyed actor, as it is sent to the process that owns the key.

    Args:
        key: key of the actor.
        handler: name of the handler.
        args: positional arguments of the handler.
        kwargs: keyword arguments of the handler.
        title: name of the ask in errors.
        call_id: id of the tool call behind the ask, for errors.
        grace: seconds that the handler has for clean-up after a cancel.
        on_begin: called when the handler starts, in any thread.
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
    """Exclusive right of this process to run the actor with one key. The attributes may be read from any thread."""

    token: int
    """Fencing token: each later owner of the key has a higher one."""

    @property
    def is_current(self) -> bool:
        """`True` while this process owns the key and no other process can own it."""
        ...


class Delivery(Protocol):
    """Handle of one ask (a request to a keyed actor) while the fleet sends it to the process that owns the key."""

    async def is_here(self) -> bool:
        """Wait until it is known which process runs the actor request; return `True` if it is this process.

        `True`: this process owns the key, and must run the ask. `False`: another process has run it; see `outcome`.

        If the caller is cancelled while it waits, an ask that has not started is withdrawn. An ask that runs at another
        process is cancelled there.

        Raises:
            ActorGoneError: if this process is leaving the fleet.
            StorageError: if the store of keys refuses to be used.
        """
        ...

    def release_turn(self) -> None:
        """Tell the fleet that this ask (request to an actor) needs no more: it is in the actor's mailbox, or given up.

        The fleet sends the next ask of the key only after this.
        """
        ...

    def outcome(self) -> Any:
        """Return the result that the handler had in another process, or raise the handler's error.

        Raises:
            ActorDiedError: if the outcome is unknown, because the owner died or was unresponsive for too long during
                the ask.
        """
        ...


class FleetHost(Protocol):
    """Actors of one name in this process, as a fleet uses them. The methods may be called from any thread."""

    name: str
    """Name of the actor, the same in all processes."""

    def serve(self, key: Hashable, function: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], object] | None:
        """Start a task for `function`, and return a function that cancels the task; `None` if the host has stopped.

        Asks of one key enter the mailbox in the order of these calls.

        Args:
            key: key of the actor.
            function: the coroutine function to run; it must not raise.

        Returns:
            A function that cancels the task; `None` if the host has stopped and starts no more tasks.
        """
        ...

    async def answer(self, ask: FleetAsk, begin: Callable[[], Awaitable[bool]]) -> Any:
        """Run an actor request of another process, and return the handler's result; called in a task of `serve`.

        Args:
            ask: the ask to run.
            begin: called when the ask has its turn; if it returns `False`, the handler does not run.

        Raises:
            KeyMovedError: if the handler did not start because this process does not own the key.
            BaseException: any error of the handler.
        """
        ...

    def revoke(self, key: Hashable, reason: str) -> None:
        """Stop the actor of a key at once, because another process may own the key soon.

        Args:
            key: key of the actor.
            reason: description for errors of running asks.
        """
        ...


class Snapshots(Protocol):
    """Store of the snapshots of actors, by actor name and key."""

    async def load(self, actor: str, key: Hashable) -> object:
        """Return the last saved snapshot of an actor; `None` if there is none."""
        ...

    async def save(self, actor: str, key: Hashable, snapshot: object) -> None:
        """Store a snapshot of an actor in place of the previous one."""
        ...


class Membership(Protocol):
    """Membership of one `FleetHost` in a fleet. All methods except `leave` are thread-safe and do not wait."""

    @property
    def snapshots(self) -> Snapshots:
        """Store of the actors' snapshots. Only the process that owns the key of an actor can save its snapshot."""
        ...

    def ownership_of(self, key: Hashable) -> Ownership | None:
        """Return this process's ownership of a key; `None` if it does not own the key."""
        ...

    def post(self, ask: FleetAsk) -> Delivery:
        """Send an ask (actor request) to the process that owns its key; return a `Delivery` to follow the ask.

        If the key has no owner, this process becomes the owner.

        Asks of one key keep their order.
        """
        ...

    def give_back(self, key: Hashable) -> None:
        """Release a key after its actor has ended and its snapshot has been saved."""
        ...

    async def leave(self) -> None:
        """Leave the fleet: release all keys, and send no further requests to actors."""
        ...


@runtime_checkable
class Fleet(Protocol):
    """Processes that share keyed actors: each key has one actor, in one of the processes."""

    @property
    def lease(self) -> float:
        """Seconds without a heartbeat after which the fleet considers a process dead."""
        ...

    @property
    def clean_up(self) -> float:
        """Seconds that running handlers have to end after their process has lost or released a key.

        Only then may another process own the key.
        """
        ...

    def admit(self, host: FleetHost, /) -> Membership:
        """Register the actors of one name in this process, and return their membership; does not wait.

        Args:
            host: the actors of this process.
        """
        ...
