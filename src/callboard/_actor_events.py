"""Events of actors for observers: each ask of an actor, and the life cycle of each actor."""

from collections.abc import Callable, Hashable
from typing import Literal, NamedTuple

AskPhase = Literal["begun", "taken", "ended"]
"""Phase of an ask. `begun`: the ask is in the mailbox. `taken`: its handler starts. `ended`: the caller has the reply,
or an error."""

ActorPhase = Literal["started", "restarted", "failed", "died", "stopped", "evicted"]
"""Phase of an actor's life cycle. `started`: the actor runs. `restarted`: it runs again, after it died or was replaced.
`failed`: it did not start. `died`: it ended by itself. `stopped`: it was shut down in order. `evicted`: it is removed,
because it was idle or because another actor needs its place."""


class AskEvent(NamedTuple):
    """Event of one ask of an actor.

    Observers are called in the event loop of the caller; times are seconds on that loop's clock. Construct it with
    keyword arguments only: fields may be added.
    """

    phase: AskPhase
    actor: str
    """Name of the child. All keyed actors of one child share it."""
    handler: str
    time: float
    number: int
    """Number of the ask, unique among asks and calls of this process."""
    key: Hashable = None
    """Key of a keyed actor. It may contain an argument of the call: by default, exporters must not send it out of the
    process."""
    call: int | None = None
    """Number of the tool call that asks, directly or from nested code; `None` outside of a call."""
    ahead: int = 0
    """Number of asks that the actor had before this one when it began: queued and running."""
    waited: float = 0.0
    """Seconds between `begun` and the start of the handler, or the end of the ask if it never started; set in `taken`
    and `ended`."""
    error: BaseException | None = None
    """Reason for the missing reply; set in `ended`."""


class ActorEvent(NamedTuple):
    """Event in the life cycle of one actor.

    Observers are called in the event loop of the actor; times are seconds on that loop's clock. Construct it with
    keyword arguments only: fields may be added.
    """

    phase: ActorPhase
    actor: str
    """Name of the child. All keyed actors of one child share it."""
    time: float
    number: int = 0
    """Number of the incarnation (one life between two restarts), unique in this process."""
    key: Hashable = None
    """Key of a keyed actor. It may contain an argument of a call: by default, exporters must not send it out of the
    process."""
    error: BaseException | None = None
    """Cause of the death or of the failed start. In `restarted`, the cause of the death of the previous incarnation."""
    asks: tuple[int, ...] = ()
    """Numbers of the asks that wait for this actor, or for a free place to start it. Asks without an observer are not
    listed."""


ActorObserver = Callable[[AskEvent | ActorEvent], None]
"""Callback for events of actors. It runs synchronously in the event loop's thread, so it must return quickly."""
