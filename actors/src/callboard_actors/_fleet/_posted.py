"""An ask on its way to the owner of its key: in the queue of that key, sent, or done."""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

import anyio

from callboard.engines import Body
from callboard.fleets import FleetAsk, carried, deliver
from callboard_actors._fleet._crossing import News
from callboard_actors._fleet._letters import arguments_of
from callboard_actors._fleet._line import Address
from callboard_actors.process._crossing import opened
from callboard_actors.process._frames import Kind

_KINDS = {"value": Kind.VALUE, "raised": Kind.RAISED, "lost": Kind.LOST}
_TO_HEAR = 1.0
"""Seconds beyond its grace that a cancelled ask waits to hear that it has ended."""

State = Literal["queued", "sent", "here", "taken", "done"]


class PostedAsk:
    """One ask of this process. Made in the task that waits for it; its state is its desk's.

    Args:
        ask: what is asked.
        withdraw: has it end that nobody waits for any more; from any thread.
        on_taken: told that the next one may come, if it is done here.
    """

    def __init__(
        self,
        ask: FleetAsk,
        withdraw: "Callable[[PostedAsk], object]",
        on_taken: "Callable[[PostedAsk], object]",
    ) -> None:
        self.ask = ask
        self.carried = carried()
        self.state: State = "queued"
        self.id = ""
        """That with which it was sent, the last time."""
        self.sent_to: Address | None = None
        self.is_withdrawn = self.is_delivered = False
        self.order = 0
        """Which of all of its process it is."""
        self._arguments: bytes | None = None
        self._withdraw = withdraw
        self._on_taken = on_taken
        self._words = deque[Any]()
        self._reply: tuple[str, bytes] | None = None
        self._failed: Exception | None = None
        self._news = News()

    @property
    def arguments(self) -> bytes:
        """What the ask takes along to another process, pickled once.

        Raises:
            TypeError: if it cannot be.
        """
        if self._arguments is None:
            self._arguments = arguments_of(self.ask)
        return self._arguments

    def grant(self) -> None:
        """Have the ask done in this process, which owns the key."""
        self.state = "here"
        self._news.tell()

    def say(self, word: object) -> None:
        """Hand on what its handler says while it runs; `None` says that it has begun."""
        self._words.append(word)
        self._news.tell()

    def settle(self, kind: str, reply: bytes) -> None:
        """End it with what its owner has answered."""
        self._reply, self.state = (kind, reply), "done"
        self._news.tell()

    def fail(self, error: Exception) -> None:
        """End it with an error of ours."""
        self._failed, self.state = error, "done"
        self._news.tell()

    async def is_here(self) -> bool:
        """Wait until it is to be done here, or has been done elsewhere; see `Posting`."""
        try:
            await self._until_settled()
        except BaseException:
            self._withdraw(self)
            # What comes of it now is for nobody: whoever asked is told of what has ended the wait.
            with anyio.move_on_after(self.ask.grace + _TO_HEAR, shield=True), suppress(Exception):
                await self._until_settled()
            self.taken()
            raise
        if self._failed is not None:
            raise self._failed
        return self.state != "done"

    async def _until_settled(self) -> None:
        while True:
            while self._words:
                self._hear(self._words.popleft())
            if self.state not in ("queued", "sent"):
                return
            await self._news.wait()

    def _hear(self, word: Any) -> None:
        if word is not None:
            deliver(word)
        elif self.ask.on_begin is not None:
            self.ask.on_begin()

    def taken(self) -> None:
        """Say that it stands in its queue here, or never will."""
        if self.state == "here":
            self.state = "taken"
            self._on_taken(self)

    def outcome(self) -> Any:
        """What it came to elsewhere; see `Posting`."""
        assert self._reply is not None
        kind, reply = self._reply
        body = Body(fn=_nothing, title=self.ask.title, call_id=self.ask.call_id)
        return opened(_KINDS[kind], reply, body, output="")


def _nothing() -> None: ...
