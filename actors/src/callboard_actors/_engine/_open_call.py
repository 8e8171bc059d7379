"""Call sent to a worker, on the agent's side: its events, its reply, or the reason why there is no reply."""

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Literal

import anyio

from callboard.extend import Body, EngineError, NonsenseError, dispatch_event
from callboard_actors._engine._frames import REPLIES, GarbageError, Header, Kind, from_json
from callboard_actors._engine._plain_codec import opened_reply

_WORDS: Final = 1_000
"""Undelivered events kept for one call; when there are more, the oldest are dropped."""


class NotBegunError(EngineError):
    """Raised if the body certainly did not begin, so that another worker may run it."""


class OpenCall:
    """Call without a reply."""

    def __init__(self) -> None:
        # Set before the first byte is written. From then on, a lost connection leaves the outcome unknown.
        self.is_sent = False
        # Set by a cancelled caller while the frame is still queued: it is then skipped.
        self.is_withdrawn = False
        self.reply: tuple[Kind, bytes | bytearray] | None = None
        self.lost: str | None = None
        """Reason why there will be no reply."""
        self._words = deque[bytes | bytearray](maxlen=_WORDS)
        self._news = anyio.Event()

    @property
    def is_over(self) -> bool:
        """`True` if the reply has arrived or the connection has ended; nothing more will come."""
        return self.reply is not None or self.lost is not None

    def take_in(self, header: Header, said: bytes | bytearray) -> None:
        """Process a frame of the worker for this call; raise `GarbageError` if it is not allowed."""
        if self.is_over or not self.is_sent:
            raise GarbageError("it is for a call that has had its reply, or was never sent")
        if header.kind is Kind.TOLD:
            self._words.append(said)
        elif header.kind in REPLIES:
            self.reply = header.kind, said
        else:
            raise GarbageError(f"a {header.kind.name} of a call")
        self._news.set()

    def lose(self, reason: str) -> None:
        """End the call without a reply."""
        if not self.is_over:
            self.lost = reason
            self._news.set()

    async def until_over(self) -> None:
        """Wait until the call is over, and deliver its events; raise `GarbageError` for an invalid event."""
        while True:
            await self._news.wait()
            self._news = anyio.Event()
            # Also when the call is over: events that came before the reply are delivered first.
            while self._words:
                hand_on(self._words.popleft(), dispatch_event)
            if self.is_over:
                return

    async def until_ended(self) -> None:
        """Wait until the call is over, without delivering events: its caller has been cancelled."""
        while not self.is_over:
            self._news = anyio.Event()
            await self._news.wait()


async def outcome(one: OpenCall, body: Body, *, is_plain: bool) -> Any:
    """Return the result of a call that is over, or raise its exception; raise `EngineError` if it has neither."""
    if one.reply is None:
        # The decision on retries: unsent is safe to repeat, sent may have had side effects.
        raise _error(body, "unknown" if one.is_sent else "unavailable", one.lost or "it was cancelled")
    kind, said = one.reply
    if kind is Kind.ENDED:
        raise _ended(said, body)
    return await opened_reply(kind, said, body, is_plain=is_plain)


def _ended(said: bytes | bytearray, body: Body) -> EngineError:
    try:
        found = from_json(said)
        ended, reason, recurs = found["ended"], str(found["reason"])[:10_000], bool(found["recurs"])
    except (GarbageError, KeyError):
        # An unreadable end is taken for the worst case.
        return _error(body, "unknown", "its worker said of its end what nobody can understand")
    return _error(body, "unavailable" if ended == "unavailable" else "unknown", reason, recurs=recurs)


def _error(body: Body, ended: Literal["unknown", "unavailable"], reason: str, *, recurs: bool = False) -> EngineError:
    kind = NotBegunError if ended == "unavailable" else EngineError
    return kind(body.title, body.call_id, reason, ended=ended, recurs=recurs)


def hand_on(said: bytes | bytearray, deliver: Callable[[Any], None]) -> None:
    """Decode an event of a call and deliver it; raise `GarbageError` if it is invalid."""
    told = from_json(said)
    try:
        deliver(told)
    except NonsenseError as error:  # only this one: another ValueError may come from an observer
        raise GarbageError(str(error)) from error
