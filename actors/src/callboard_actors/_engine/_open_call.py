"""Call that an engine has given to a worker process or a Ray actor, and that waits for its reply."""

from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import anyio

from callboard_actors._engine._frames import Kind

MAX_EVENTS: Final = 1_000
"""Largest number of undelivered events of one call; when there are more, the oldest are dropped."""

E = TypeVar("E")


class OpenCall(Generic[E]):
    """Call that is queued or sent, and has no reply yet; collects its events and its reply."""

    def __init__(self) -> None:
        self.is_sent = False
        """`True` before the first byte is written: from then on, a lost connection leaves the outcome unknown."""
        self.reply: tuple[Kind, bytes] | None = None
        self.loss_reason: str | None = None
        """Reason why the call will have no reply; `None` as long as a reply may come."""
        self._events = deque[E](maxlen=MAX_EVENTS)
        self._has_news = anyio.Event()

    @property
    def is_over(self) -> bool:
        """`True` if the reply has arrived or the connection has ended; nothing more will come."""
        return self.reply is not None or self.loss_reason is not None

    def add_event(self, event: E) -> None:
        """Store an event until the call's own task delivers it."""
        self._events.append(event)
        self._has_news.set()

    def end(self, reply: tuple[Kind, bytes]) -> None:
        """End the call with its reply."""
        self.reply = reply
        self._has_news.set()

    def lose(self, reason: str) -> None:
        """End the call without a reply; `reason` says why no reply will come."""
        if not self.is_over:
            self.loss_reason = reason
            self._has_news.set()

    async def deliver_events_until_over(self, deliver: Callable[[E], object]) -> None:
        """Wait until the call is over, and pass its events to `deliver`, in the caller's task."""
        while True:
            await self._has_news.wait()
            self._has_news = anyio.Event()  # an event that was set cannot be reset
            # Also when the call is over: events that came before the reply are delivered first.
            while self._events:
                deliver(self._events.popleft())
            if self.is_over:
                return

    async def until_over(self) -> None:
        """Wait until the call is over, without delivering events: its caller has been cancelled."""
        while not self.is_over:
            # The event may be set by an older event of the call.
            self._has_news = anyio.Event()
            await self._has_news.wait()
