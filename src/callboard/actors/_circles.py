"""Deadlock prevention: refuses a call that would wait for itself, after a delay where the circle may dissolve."""

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
"""Seconds to wait for a circle to dissolve, if a call in it was made by a task that its handler may not await."""


class _Life(Protocol):
    """Incarnation, as far as deadlock detection reads it."""

    @property
    def takes_no_more(self) -> bool: ...


class _Place(Protocol):
    """Cell of an actor, as far as deadlock detection reads it."""

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
    """Return if a message may be awaited, at once in most cases.

    Raises:
        DeadlockError: if the call would wait for itself. It never begins then.
    """
    found = circle(message, _needs)
    # A handler may never await a call that its own task makes; then the handler ends first, and there is no circle.
    if found is not None and any(one.is_beside for one in found[1:]):
        await _wait_a_while(message)
        found = circle(message, _needs)
    if found is None:
        return
    room = room_wanted(found, _needs)
    remedy = f"{room}; raise the cap, or have nobody ask another of its kind and wait for it." if room else _REMEDY
    # If it has begun meanwhile there was no circle, or it dissolved: then the caller simply waits.
    if _place_of(message).withdraw(message):
        raise DeadlockError(message.title, message.call_id, tuple(one.title for one in found), remedy=remedy)


async def _wait_a_while(message: Message) -> None:
    """Wait for handlers to end that do not await the calls of their tasks, or for the message to be settled."""
    with message.loop.scope(message.loop.now() + _PATIENCE, 0.0):
        await message.wakeup.wait()
    with _place_of(message).lock:
        if not message.has_ended:
            # A wakeup serves one wait, and the timeout has ended this one. Under the lock, so that `end()` sets the new
            # one.
            message.wakeup = message.loop.wakeup()


def _needs(message: Message) -> Needs:
    """Return the messages that must end before this one ends or begins. Any thread may call this."""
    place = _place_of(message)
    with place.lock:
        # A begun message needs the calls that its handler awaits, all of them.
        if message.state != "waiting":
            return Needs((tuple(message.asks),))
        if place.life is not None and place.life.takes_no_more and not is_awaited_here(message):
            # The message waits for the next incarnation, which begins when the current one has nothing in hand.
            return Needs((place.in_hand(),))
        if place.life is not None or place.room is None:
            return NOTHING if message in place.urgent else place.mailbox.needs(message)
    return place.room()  # outside the lock: it takes the locks of other cells, and two threads could deadlock


def _place_of(message: Message) -> _Place:
    return cast("_Place", message.target)


def refuse_standstill(message: Message, actor: str, home: EventLoop | None) -> None:
    """Refuse a call if the sync code that makes it blocks the actor's event loop.

    Args:
        message: the call that is about to be sent.
        actor: name of the actor, for the error.
        home: event loop of the actor; `None` if it is not known.

    Raises:
        RuntimeError: if the call would never begin.
    """
    if home is not None and home is not message.loop and stands_still(home):
        raise RuntimeError(
            f"{message.title} would never begin: the event loop of {actor} waits for the sync code that asks. "
            "Await it there (ainvoke), or run the sync code in a thread (anyio.to_thread.run_sync)"
        )
