"""Mailbox of an actor: decides which message begins next. Never waits; the cell holds its lock around each call."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Literal, get_args

from callboard._records._policies import check_count
from callboard.actors._actor import CONTROL
from callboard.actors._deadlock import NOTHING, Needs
from callboard.actors._message import Message

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
