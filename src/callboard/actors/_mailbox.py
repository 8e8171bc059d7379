"""Which message of an actor begins next. Decides, and never waits; its owner holds a lock around each call."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Literal, get_args

from callboard._types import check_count
from callboard.actors._actor import CONTROL
from callboard.actors._deadlock import NOTHING, Needs
from callboard.actors._message import Message

WhenFull = Literal["wait", "reject", "drop_oldest"]
"""What becomes of a call for which there is no room: it waits for it, it is refused, or the oldest one is."""
_WHEN_FULL = get_args(WhenFull)


class Mailbox:
    """Messages in the order in which they came; the first one only may begin, so that none is overtaken for ever.

    Messages of one group run side by side, all others alone. Those that jump the queue, because they are for control
    or come back to an actor that waits for them, run beside any of them.

    Args:
        size: how many may wait.
        when_full: what becomes of one more.
        groups: how many of a group may run; of one that is not here, any number.
    """

    __slots__ = ("_group", "_groups", "_size", "_when_full", "running", "waiting")

    def __init__(self, size: int, when_full: WhenFull, groups: Mapping[str, int]) -> None:
        self._size = size
        self._when_full = when_full
        self._groups = groups
        self.waiting: OrderedDict[Message, None] = OrderedDict()
        self.running: dict[Message, None] = {}
        """Those that were taken out of the queue and have not ended, without those that jumped it."""
        self._group: str | None = None

    def put(self, message: Message) -> tuple[bool, Message | None]:
        """Have a message wait for its turn, if there is room, or room is made for it.

        Returns:
            Whether it may, and which other one is dropped for it.
        """
        dropped: Message | None = None
        if len(self.waiting) >= self._size:
            if self._when_full == "reject":
                return False, None
            if self._when_full == "drop_oldest":
                dropped = self.waiting.popitem(last=False)[0]
        self.waiting[message] = None
        return True, dropped

    def withdraw(self, message: Message) -> None:
        """Forget a message that has not begun, whether it waits or was taken."""
        self.waiting.pop(message, None)
        self.running.pop(message, None)

    def next(self, *, only_awaited_here: bool = False) -> Message | None:
        """Take the message that may begin now; perhaps of those only that a handler of the actor waits for."""
        waiting = filter(is_awaited_here, self.waiting) if only_awaited_here else iter(self.waiting)
        if (message := next(waiting, None)) is None:
            return None
        group = message.handler.group
        if self.running and (group is None or group != self._group or self._is_full(group)):
            return None
        del self.waiting[message]
        self.running[message] = None
        self._group = group
        return message

    def ended(self, message: Message) -> None:
        """Note that a message runs no more."""
        self.running.pop(message, None)

    def take_back(self, message: Message) -> None:
        """Let one that was taken wait again, in front of all others."""
        del self.running[message]
        self.waiting[message] = None
        self.waiting.move_to_end(message, last=False)

    def needs(self, message: Message) -> Needs:
        """What has to end before this one, which waits, begins."""
        running = tuple(self.running)
        for one in self.waiting:
            if one.handler.group is None or one.handler.group != self._group:
                return Needs((running,))  # this one, or one that it does not overtake, begins when nothing runs
            if one is message:
                break
        full = self._group is not None and self._is_full(self._group)
        return Needs(tuple((one,) for one in running)) if full else NOTHING

    def _is_full(self, group: str) -> bool:
        limit = self._groups.get(group)
        return limit is not None and len(self.running) >= limit


def jumps_queue(message: Message) -> bool:
    """Whether it does not wait for those that came before."""
    if message.handler.group == CONTROL:
        return True
    return message.handler.reentrant and is_awaited_here(message)


def is_awaited_here(message: Message) -> bool:
    """Whether a handler of the actor that it is for waits for it."""
    return any(one.target is message.target for one in message.ancestors())


def check_mailbox(owner: str, size: object, when_full: object) -> None:
    """Raise unless these are options of a mailbox."""
    check_count(f"{owner}: mailbox", size, least=1)
    if when_full not in _WHEN_FULL:
        raise ValueError(f"{owner}: when_full is one of {_WHEN_FULL}, got {when_full!r}")
