"""Route to one key of a fleet: its owner as far as known, and the asks of this process to it."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING

from callboard_actors._server.fleet._transport import Address

if TYPE_CHECKING:
    from callboard_actors._server.fleet._routed_ask import RoutedAsk


class HeldKey:
    """Ownership of a key by this process, an implementation of `callboard.extend.Ownership`.

    Args:
        token: fencing token.
        is_safe: whether this process's lease still lasts; may be called from any thread.
    """

    __slots__ = ("_is_over", "_is_safe", "token")

    def __init__(self, token: int, is_safe: Callable[[], bool]) -> None:
        self.token = token
        self._is_safe = is_safe
        self._is_over = False  # only ever set to True, so it needs no lock

    @property
    def is_current(self) -> bool:
        return not self._is_over and self._is_safe()

    def end(self) -> None:
        """Give up the ownership: code that still runs for the key may no longer write."""
        self._is_over = True


class Route:
    """Route of asks to one key.

    `held`, `queue`, `is_unwanted` and `is_busy` change under the router's lock; the rest in the client's thread.
    """

    def __init__(self, key: Hashable, gate: str) -> None:
        self.key = key
        self.gate = gate
        self.held: HeldKey | None = None
        """Ownership by this process, if it owns the key."""
        # May be out of date: the server checks it when an ask is sent.
        self.owner: Address | None = None
        """Owner in another process, as far as known."""
        self.queue = deque["RoutedAsk"]()
        """Asks that wait to be sent, or to run here."""
        # A dict keeps insertion order, in which recalled asks are looked at.
        self.sent: dict[str, RoutedAsk] = {}
        """Sent asks without a reply, by id, in order."""
        self.is_suspect = False
        """True if the owner may be gone, so that sent asks must be recalled."""
        self.is_sent_back = False
        """True if an owner has just sent an ask back."""
        self.is_unwanted = False
        """True if the key is to be given up when the route is no longer busy."""
        self.is_busy = False
        """True while a task processes the queue; at most one does."""

    @property
    def is_idle(self) -> bool:
        """Return whether the route can be dropped without losing anything."""
        return not (self.held or self.queue or self.sent or self.is_busy)

    def queue_again(self, asks: "Iterable[RoutedAsk]") -> None:
        """Put asks back into the queue; all asks then wait in the order in which they were made."""
        for one in asks:
            one.state = "queued"
        self.queue = deque(sorted([*asks, *self.queue], key=lambda one: one.order))
