"""Asks that would wait for each other in a circle: given time where it may be none, and refused."""

from collections.abc import Callable, Container
from contextlib import AbstractContextManager
from typing import Protocol, cast

from callboard._loops._bridge import stands_still
from callboard._loops._protocol import EventLoop
from callboard.actors._deadlock import NOTHING, Needs, circle, room_wanted
from callboard.actors._mailbox import Mailbox, is_awaited_here
from callboard.actors._message import Message
from callboard.exceptions import DeadlockError

_REMEDY = (
    "Have one of them take its reply along (@handler(deferred=True)), or let it be "
    "re-entered (@handler(reentrant=True))."
)
_PATIENCE = 5.0
"""Seconds in which a handler may show that it does not wait for a task that it has begun, by ending before it."""


class _Life(Protocol):
    """A life, as far as it says whether its actor takes more asks."""

    @property
    def takes_no_more(self) -> bool: ...


class _Place(Protocol):
    """The actor that a message waits for, as far as a search for circles looks at it."""

    @property
    def lock(self) -> AbstractContextManager[object]: ...

    @property
    def mailbox(self) -> Mailbox: ...

    @property
    def urgent(self) -> Container[Message]: ...

    @property
    def life(self) -> _Life | None: ...

    @property
    def room(self) -> Callable[[], Needs] | None: ...

    def in_hand(self) -> tuple[Message, ...]: ...

    def withdraw(self, message: Message) -> bool: ...


async def refuse_circle(message: Message) -> None:
    """Return at once if a message may be waited for.

    Raises:
        DeadlockError: if it would be waited for by itself; then it never begins.
    """
    found = circle(message, _needs)
    if found is not None and any(one.is_beside for one in found[1:]):
        await _wait_a_while(message)
        found = circle(message, _needs)
    if found is None:
        return
    room = room_wanted(found, _needs)
    remedy = f"{room}; raise the cap, or have nobody ask another of its kind and wait for it." if room else _REMEDY
    if _place_of(message).withdraw(message):
        raise DeadlockError(message.title, message.call_id, tuple(one.title for one in found), remedy=remedy)


async def _wait_a_while(message: Message) -> None:
    """Let handlers end that do not wait for what they have begun beside them: then nobody waits for himself."""
    with message.loop.scope(message.loop.now() + _PATIENCE, 0.0):
        await message.wakeup.wait()
    with _place_of(message).lock:
        if not message.has_ended:
            message.wakeup = message.loop.wakeup()


def _needs(message: Message) -> Needs:
    """What has to end before a message does, or begins; from any thread."""
    place = _place_of(message)
    with place.lock:
        if message.state != "waiting":
            return Needs((tuple(message.asks),))
        if place.life is not None and place.life.takes_no_more and not is_awaited_here(message):
            return Needs((place.in_hand(),))
        if place.life is not None or place.room is None:
            return NOTHING if message in place.urgent else place.mailbox.needs(message)
    return place.room()  # without our lock: it takes those of others


def _place_of(message: Message) -> _Place:
    return cast("_Place", message.target)


def refuse_standstill(message: Message, actor: str, home: EventLoop | None) -> None:
    """Refuse what would never begin, because its actor's event loop waits for the sync code that asks.

    Args:
        message: that is about to be sent.
        actor: the name of the one that it is for.
        home: where that lives, as far as is known.

    Raises:
        RuntimeError: if so.
    """
    if home is not None and home is not message.loop and stands_still(home):
        raise RuntimeError(
            f"{message.title} would never begin: the event loop of {actor} waits for the sync code that asks. "
            "Await it there (ainvoke), or run the sync code in a thread (anyio.to_thread.run_sync)"
        )
