"""Mailbox of an actor: decides which message begins next, and refuses calls that would end in a deadlock.

A mailbox never waits; its cell holds its lock around each call. A call would end in a deadlock if it waited for itself
through other calls. It is refused only after a delay, in which the circle may dissolve.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol, cast, get_args

from callboard._loops._bridge import stands_still
from callboard._loops._protocol import EventLoop
from callboard._records._policies import check_count
from callboard.actors._actor import CONTROL
from callboard.actors._message import Message
from callboard.exceptions import DeadlockError

# Detection of circles


@dataclass(frozen=True, slots=True)
class Needs:
    """Alternatives of a message: it can go on as soon as all messages of one alternative have ended."""

    ways: tuple[tuple[Message, ...], ...]
    room: str = ""
    """Explanation for errors, if the message needs room for its actor."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages of all alternatives, in order."""
        return tuple(one for way in self.ways for one in way)

    @property
    def one_is_enough(self) -> bool:
        """Return whether there are several alternatives."""
        return len(self.ways) > 1

    def are_met(self, ended: Container[Message]) -> bool:
        """Return whether the message can go on after these messages have ended."""
        return any(all(one in ended for one in way) for way in self.ways)


NOTHING = Needs(((),))  # one alternative without messages: always met


NeedsOf = Callable[[Message], Needs]
"""Needs of a message: while it waits, the messages before it; while it runs, the calls that its handler awaits."""


def circle(asked: Message, needs_of: NeedsOf) -> list[Message] | None:
    """Return the messages that would wait for each other if this call were awaited; `None` if there is no circle.

    A caller registers its call before it searches. So if two calls close a circle at once, one of the searches finds
    it.
    """
    ancestors = asked.ancestors()
    if not ancestors:
        return None
    # The ancestors are left out: they cannot end before this call does. If it can end without them, there is no circle.
    found = _found(asked, frozenset(ancestors), needs_of)
    if asked in _go_on(found):
        return None
    way = _way(asked, frozenset(ancestors), found)
    # The chain for the error: from the ancestor at which the circle closes, down to the asker, and back to it.
    between = ancestors[: ancestors.index(way[-1])] if way[-1] in ancestors else []
    if way == [asked, ancestors[0]] and asked.target is ancestors[0].target:
        return [ancestors[0], asked]  # an actor that calls itself: show both messages
    return [way[-1], *reversed(between), *way]


def room_wanted(chain: Iterable[Message], needs_of: NeedsOf) -> str:
    """Return why one of the messages has no room for its actor, for errors; an empty text if all have."""
    return next((needs.room for one in chain if (needs := needs_of(one)).room), "")


def _found(asked: Message, ancestors: frozenset[Message], needs_of: NeedsOf) -> dict[Message, Needs]:
    """Collect the needs of all messages that this call would wait for, without its ancestors."""
    found: dict[Message, Needs] = {}
    todo = [asked]
    while todo:
        one = todo.pop()
        if one not in found and one not in ancestors:
            found[one] = needs_of(one)
            # Other threads go on during the search. A complete circle stays as it is unless one of its calls is
            # cancelled.
            todo += found[one].messages
    return found


def _go_on(found: Mapping[Message, Needs]) -> set[Message]:
    """Return the messages that can end without the ancestors: the least fixed point of `are_met`."""
    free: set[Message] = set()
    while more := {one for one, needs in found.items() if one not in free and needs.are_met(free)}:
        free |= more
    return free


def _way(asked: Message, ancestors: frozenset[Message], found: Mapping[Message, Needs]) -> list[Message]:
    """Return the shortest path from the call to a message that waits for it."""
    # Breadth first: the shortest chain is the easiest to understand in an error.
    ways = deque([[asked]])
    seen = {asked}
    while ways:
        way = ways.popleft()
        if way[-1] in ancestors:
            return way
        for one in found[way[-1]].messages:
            if one not in seen:
                seen.add(one)
                ways.append([*way, one])
    return [asked]


# Mailbox


WhenFull = Literal["wait", "reject", "drop_oldest"]
"""Policy for a call that comes when the mailbox is full: wait all the same, reject it, or drop the oldest call."""
_WHEN_FULL = get_args(WhenFull)


class Mailbox:
    """FIFO mailbox of one actor, with groups of handlers that run side by side.

    Only the first message may begin, so that none is overtaken for ever. Messages of one group run side by side, all
    others alone. Messages that bypass the queue are kept by the cell: control calls, and reentrant calls that the actor
    itself awaits.

    Args:
        size: maximum number of waiting messages; see `when_full`.
        when_full: policy for a message that exceeds `size`.
        groups: maximum number of running messages, by group; a group that is missing is unlimited.
    """

    __slots__ = ("_group", "_groups", "_size", "_when_full", "running", "waiting")

    def __init__(self, size: int, when_full: WhenFull, groups: Mapping[str, int]) -> None:
        self._size = size
        self._when_full = when_full
        self._groups = groups
        self.waiting: OrderedDict[Message, None] = OrderedDict()  # cancelled callers withdraw from the middle
        self.running: dict[Message, None] = {}
        """Messages taken from the queue that have not ended; without messages that bypassed the queue."""
        # Group of the message taken last; valid only while `running` is not empty.
        self._group: str | None = None

    def put(self, message: Message) -> tuple[bool, Message | None]:
        """Add a message; return whether it was accepted, and the message dropped for it, if any."""
        dropped: Message | None = None
        if len(self.waiting) >= self._size:
            if self._when_full == "reject":
                return False, None
            if self._when_full == "drop_oldest":
                dropped = self.waiting.popitem(last=False)[0]
        self.waiting[message] = None
        return True, dropped

    def withdraw(self, message: Message) -> None:
        """Remove a message that has not begun, whether it waits or was taken."""
        self.waiting.pop(message, None)
        self.running.pop(message, None)

    def next(self, *, only_awaited_here: bool = False) -> Message | None:
        """Take the message that may begin now; optionally the first that a handler of this actor awaits."""
        waiting = filter(is_awaited_here, self.waiting) if only_awaited_here else iter(self.waiting)
        if (message := next(waiting, None)) is None:
            return None
        group = message.handler.group
        # Only the head is considered: a later message of the running group must not overtake a waiting exclusive one.
        if self.running and (group is None or group != self._group or self._is_full(group)):
            return None
        del self.waiting[message]
        self.running[message] = None
        self._group = group
        return message

    def ended(self, message: Message) -> None:
        """Free the place of a message after its handler has ended."""
        self.running.pop(message, None)

    def take_back(self, message: Message) -> None:
        """Put a taken message back to the front of the queue."""
        del self.running[message]
        self.waiting[message] = None
        self.waiting.move_to_end(message, last=False)

    def needs(self, message: Message) -> Needs:
        """Return the messages that must end before a waiting message can begin."""
        running = tuple(self.running)
        for one in self.waiting:
            if one.handler.group is None or one.handler.group != self._group:
                # This message, or one before it in the queue, runs alone: it begins when nothing runs.
                return Needs((running,))
            if one is message:
                break
        # All messages up to this one join the running group, so any end that frees a place is enough.
        full = self._group is not None and self._is_full(self._group)
        return Needs(tuple((one,) for one in running)) if full else NOTHING

    def _is_full(self, group: str) -> bool:
        limit = self._groups.get(group)
        return limit is not None and len(self.running) >= limit


def jumps_queue(message: Message) -> bool:
    """Return whether a message bypasses the queue: it is a control call, or reentrant and awaited here."""
    if message.handler.group == CONTROL:
        return True
    return message.handler.reentrant and is_awaited_here(message)


def is_awaited_here(message: Message) -> bool:
    """Return whether a running handler of the target actor awaits this message, directly or through other actors."""
    return any(one.target is message.target for one in message.ancestors())


def check_mailbox(owner: str, size: object, when_full: object) -> None:
    """Raise an error unless these are valid options of a mailbox."""
    check_count(f"{owner}: mailbox", size, least=1)
    if when_full not in _WHEN_FULL:
        raise ValueError(f"{owner}: when_full is one of {_WHEN_FULL}, got {when_full!r}")


# Refusal of circles


_REMEDY = (
    "Have one of them take its reply along (@handler(deferred=True)), or let it be "
    "re-entered (@handler(reentrant=True))."
)
_PATIENCE = 5.0
"""Seconds to wait for a circle to dissolve, if a call in it was made by a task that its handler may not await."""


class _Incarnation(Protocol):
    """Incarnation, as far as deadlock detection reads it."""

    @property
    def takes_no_more(self) -> bool: ...


class _Mailbox(Protocol):
    """Cell of an actor, as far as deadlock detection reads it."""

    @property
    def lock(self) -> AbstractContextManager[object]: ...

    @property
    def mailbox(self) -> Mailbox: ...

    @property
    def urgent(self) -> Container[Message]: ...

    @property
    def life(self) -> _Incarnation | None: ...

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


def _place_of(message: Message) -> _Mailbox:
    return cast("_Mailbox", message.target)


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
