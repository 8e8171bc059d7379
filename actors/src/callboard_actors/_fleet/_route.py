"""One key, as one member of a fleet knows it: who owns it, and what it is asked from here."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING

from callboard_actors._fleet._line import Address

if TYPE_CHECKING:
    from callboard_actors._fleet._posted import PostedAsk


class HeldKey:
    """How this process owns a key, and whether it still does: the `Ownership` of a `callboard.Fleet`.

    Args:
        token: of fencing.
        is_safe: whether the lease of this process lasts; from any thread.
    """

    __slots__ = ("_is_over", "_is_safe", "token")

    def __init__(self, token: int, is_safe: Callable[[], bool]) -> None:
        self.token = token
        self._is_safe = is_safe
        self._is_over = False

    @property
    def is_current(self) -> bool:
        return not self._is_over and self._is_safe()

    def end(self) -> None:
        """Own the key no more: what still runs for it has no right to."""
        self._is_over = True


class Route:
    """The way of asks to one key. Changes under the lock of its desk."""

    def __init__(self, key: Hashable, gate: str) -> None:
        self.key = key
        self.gate = gate
        self.held: HeldKey | None = None
        """That it is owned here."""
        self.owner: Address | None = None
        """Who owns it elsewhere, as far as is known."""
        self.queue = deque["PostedAsk"]()
        """What is to be sent, or done here."""
        self.sent: dict[str, PostedAsk] = {}
        """What has no reply yet, in order."""
        self.is_suspect = False
        """Whether what was sent may never be done there."""
        self.is_sent_back = False
        """Whether an owner has just sent an ask back."""
        self.is_unwanted = False
        """Whether nobody here wants to own it any more."""
        self.is_busy = False
        """Whether somebody sees to the queue."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is lost if it is forgotten."""
        return not (self.held or self.queue or self.sent or self.is_busy)

    def queue_again(self, asks: "Iterable[PostedAsk]") -> None:
        """Have asks wait again, all in the order in which they were asked."""
        for one in asks:
            one.state = "queued"
        self.queue = deque(sorted([*asks, *self.queue], key=lambda one: one.order))
