"""What observers are told of actors: of each ask, and of their lives."""

from collections.abc import Callable, Hashable
from typing import Literal, NamedTuple

AskPhase = Literal["begun", "taken", "ended"]
"""`begun`: it is in the mailbox. `taken`: its handler begins. `ended`: whoever asked has the reply, or none."""

ActorPhase = Literal["started", "restarted", "failed", "died", "stopped", "evicted"]
"""`started`: it lives. `restarted`: again, after it had died or was replaced. `failed`: it did not start. `died`: a
life ended by itself. `stopped`: a life ended in order. `evicted`: it has to go, as nobody asked it, or for another."""


class AskEvent(NamedTuple):
    """One thing that happened to one ask of an actor.

    It is told where somebody asks, and times are seconds on the clock of the event loop there. To be made by name:
    fields may be added.
    """

    phase: AskPhase
    actor: str
    """The name of the child; all that differ in their keys only have the same."""
    handler: str
    time: float
    number: int
    """Tells asks apart from each other and from calls, in this process."""
    key: Hashable = None
    """Which of several it is. It may be an argument, and is not for what leaves the process."""
    call: int | None = None
    """The number of the tool call that asks, or within which somebody does."""
    ahead: int = 0
    """How many asks the actor had before this one when it began: in its mailbox, and in hand."""
    waited: float = 0.0
    """Seconds until the handler began, or in vain; in `taken` and `ended`."""
    error: BaseException | None = None
    """In `ended`: why there is no reply."""


class ActorEvent(NamedTuple):
    """One thing that happened in the life of an actor.

    It is told where the actor lives, and times are seconds on the clock of the event loop there. To be made by name:
    fields may be added.
    """

    phase: ActorPhase
    actor: str
    """The name of the child; all that differ in their keys only have the same."""
    time: float
    number: int = 0
    """Tells lives apart, in this process."""
    key: Hashable = None
    """Which of several it is. It may be an argument, and is not for what leaves the process."""
    error: BaseException | None = None
    """What it died of, or why it did not start; in `restarted`, what the life before died of."""
    asks: tuple[int, ...] = ()
    """The numbers of the asks that wait for it now, or for its room, as far as somebody is told of them."""


ActorObserver = Callable[[AskEvent | ActorEvent], None]
"""Called with what happens to actors, in the event loop's thread, at once: it must be quick."""
