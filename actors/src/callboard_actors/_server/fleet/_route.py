"""Asks on their way to the owner of their key: the ask, and the route to the key with all its asks."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from typing import Any, Literal

import anyio

from callboard.extend import Body, FleetAsk, dispatch_event, inject_context
from callboard_actors._engine._codec import opened
from callboard_actors._engine._frames import Kind
from callboard_actors._server.fleet._messages import arguments_of
from callboard_actors._server.fleet._thread_bridge import ThreadSignal
from callboard_actors._server.fleet._transport import Address

_KINDS = {"value": Kind.VALUE, "raised": Kind.RAISED, "lost": Kind.LOST}
_TO_HEAR = 1.0
"""Seconds beyond its grace that a cancelled ask waits for the message that it has ended."""

# queued -> sent -> done: at another process. queued -> here -> taken: in this one. sent -> queued: after a recall.
State = Literal["queued", "sent", "here", "taken", "done"]


class RoutedAsk:
    """Ask of this process, created in the task that waits for it. Its state belongs to the client's thread."""

    def __init__(
        self,
        ask: FleetAsk,
        withdraw: "Callable[[RoutedAsk], object]",
        on_taken: "Callable[[RoutedAsk], object]",
    ) -> None:
        self.ask = ask
        self.carried = inject_context()  # the context of the asking task, so read in that task
        self.state: State = "queued"
        self.id = ""
        """Id of the last attempt to send it."""
        self.sent_to: Address | None = None
        # Written in the client's thread only.
        self.is_withdrawn = self.is_delivered = False
        self.order = 0
        """Position among all asks of this process."""
        self._arguments: bytes | None = None
        self._withdraw = withdraw  # any thread may call it
        self._on_taken = on_taken
        # From here on: written in the client's thread, read in the asking task after a wake-up by `_news`.
        self._words = deque[Any]()
        self._reply: tuple[str, bytes] | None = None
        self._failed: Exception | None = None
        self._news = ThreadSignal()

    @property
    def arguments(self) -> bytes:
        """Pickled arguments, for another process; pickled once. Raises TypeError if an argument cannot be pickled."""
        if self._arguments is None:
            self._arguments = arguments_of(self.ask)
        return self._arguments

    def grant(self) -> None:
        """Let the ask run in this process, which owns the key."""
        self.state = "here"
        self._news.tell()

    def say(self, word: object) -> None:
        """Pass on an event of the running handler; `None` means that the handler has begun."""
        self._words.append(word)
        self._news.tell()

    def settle(self, kind: str, reply: bytes) -> None:
        """Finish the ask with the owner's reply."""
        # The reply is set before `tell`, which wakes the task that reads it.
        self._reply, self.state = (kind, reply), "done"
        self._news.tell()

    def fail(self, error: Exception) -> None:
        """Finish the ask with an error of this process."""
        self._failed, self.state = error, "done"
        self._news.tell()

    async def is_here(self) -> bool:
        """Wait until the ask may run here, or has an outcome from another process; see `Delivery`."""
        try:
            await self._until_settled()
        except BaseException:
            # Also if the ask has begun: its handler must have ended before the cancelled caller goes on.
            self._withdraw(self)
            # The outcome is dropped: the caller gets the error that ended the wait.
            with anyio.move_on_after(self.ask.grace + _TO_HEAR, shield=True), suppress(Exception):
                await self._until_settled()
            # If the grant came meanwhile: the router waits for this call before it goes on with the key's queue.
            self.taken()
            raise
        if self._failed is not None:
            raise self._failed
        return self.state != "done"

    async def _until_settled(self) -> None:
        while True:
            # Events first: the owner sent them before the outcome.
            while self._words:
                self._hear(self._words.popleft())
            if self.state not in ("queued", "sent"):
                return
            await self._news.wait()

    def _hear(self, word: Any) -> None:
        if word is not None:
            dispatch_event(word)
        elif self.ask.on_begin is not None:
            self.ask.on_begin()

    def taken(self) -> None:
        """Confirm that the ask is in the actor's mailbox here, or never will be. The router then takes the next ask."""
        if self.state == "here":
            self.state = "taken"
            self._on_taken(self)

    def outcome(self) -> Any:
        """Return or raise the outcome at the other process; see `Delivery`."""
        assert self._reply is not None
        kind, reply = self._reply
        body = Body(fn=_nothing, title=self.ask.title, call_id=self.ask.call_id)
        return opened(_KINDS[kind], reply, body, output="")


def _nothing() -> None: ...


class HeldKey:
    """Ownership of a key by this process, an implementation of `callboard.extend.Ownership`."""

    __slots__ = ("_is_over", "_is_safe", "token")

    def __init__(self, token: int, is_safe: Callable[[], bool]) -> None:
        self.token = token
        self._is_safe = is_safe  # any thread may call it
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
        self.queue = deque[RoutedAsk]()
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

    def queue_again(self, asks: Iterable[RoutedAsk]) -> None:
        """Put asks back into the queue; all asks then wait in the order in which they were made."""
        for one in asks:
            one.state = "queued"
        self.queue = deque(sorted([*asks, *self.queue], key=lambda one: one.order))
