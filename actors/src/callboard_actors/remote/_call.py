"""A call that was given to a worker, from this side: its words, its reply, and what becomes of it without one."""

from collections import deque
from typing import Any, Final, Literal

import anyio

from callboard.engines import Body, EngineError, deliver
from callboard_actors.process import _frames as inner
from callboard_actors.process._frames import GarbageError
from callboard_actors.process._held_worker import hand_on
from callboard_actors.process._plain_crossing import opener
from callboard_actors.remote._wire import REPLIES, Header, Kind, from_json

_WORDS: Final = 1_000
"""Of one call, that wait to be delivered; of more, the newest."""
_INNER: Final = {Kind.VALUE: inner.Kind.VALUE, Kind.RAISED: inner.Kind.RAISED, Kind.LOST: inner.Kind.LOST}


class NotBegunError(EngineError):
    """A body was not begun; it may be given to another worker."""


class OpenCall:
    """A call that was sent to a worker, and has no reply yet."""

    def __init__(self) -> None:
        self.is_sent = False
        self.is_withdrawn = False
        self.reply: tuple[Kind, bytearray] | None = None
        self.lost: str | None = None
        """Why there will be no reply."""
        self._words = deque[bytearray](maxlen=_WORDS)
        self._news = anyio.Event()

    @property
    def is_over(self) -> bool:
        """Whether its end was heard, after which nothing more will come."""
        return self.reply is not None or self.lost is not None

    def take_in(self, header: Header, said: bytearray) -> None:
        """Take in a frame that the worker has sent about this call.

        Raises:
            GarbageError: it is nothing that is said of a call.
        """
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
        """End the call because the connection to its worker has ended."""
        if not self.is_over:
            self.lost = reason
            self._news.set()

    async def until_over(self) -> None:
        """Wait for the reply, or for the end of the connection; deliver what is told meanwhile.

        Raises:
            GarbageError: what was told says nothing.
        """
        while True:
            await self._news.wait()
            self._news = anyio.Event()
            while self._words:
                hand_on(self._words.popleft(), deliver)
            if self.is_over:
                return

    async def until_ended(self) -> None:
        """Wait for the same, and deliver nothing, because nobody listens any more."""
        while not self.is_over:
            self._news = anyio.Event()
            await self._news.wait()


async def outcome(one: OpenCall, body: Body, *, is_plain: bool) -> Any:
    """Return what a body has returned, or raise what it has raised.

    Raises:
        EngineError: it has no result.
    """
    if one.reply is None:
        raise _error(body, "unknown" if one.is_sent else "unavailable", one.lost or "it was cancelled")
    kind, said = one.reply
    if kind is Kind.ENDED:
        raise _ended(said, body)
    return await opener(is_plain=is_plain)(_INNER[kind], said, body, output="")


def _ended(said: bytearray, body: Body) -> EngineError:
    try:
        found = from_json(said)
        ended, reason, recurs = found["ended"], str(found["reason"])[:10_000], bool(found["recurs"])
    except (GarbageError, KeyError):
        return _error(body, "unknown", "its worker said of its end what nobody can understand")
    return _error(body, "unavailable" if ended == "unavailable" else "unknown", reason, recurs=recurs)


def _error(body: Body, ended: Literal["unknown", "unavailable"], reason: str, *, recurs: bool = False) -> EngineError:
    kind = NotBegunError if ended == "unavailable" else EngineError
    return kind(body.title, body.call_id, reason, ended=ended, recurs=recurs)
