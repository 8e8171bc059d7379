"""Session with a worker or an agent: a connection with a send queue, and the calls that wait for their replies.

`Connection` is used on either side. `OpenCalls` is the side that has sent the calls: of each call, it receives events
and one reply, or knows why there is no reply.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

import anyio
from anyio import BrokenResourceError, BusyResourceError, ClosedResourceError, EndOfStream
from anyio.abc import ByteSendStream

from callboard.extend import Body, EngineError, NonsenseError, dispatch_event
from callboard_actors._engine._frames import REPLIES, FrameReader, GarbageError, Header, Kind, frame, from_json
from callboard_actors._engine._plain_codec import opened_reply

# Open calls.

_WORDS: Final = 1_000
"""Largest number of undelivered events of one call; when there are more, the oldest are dropped."""


class NotBegunError(EngineError):
    """Raised for a call whose function certainly did not begin, so that another worker may run it."""


class OpenCall:
    """Call that is queued or sent, and has no reply yet; collects its events and its reply."""

    def __init__(self) -> None:
        # Set before the first byte is written. From then on, a lost connection leaves the outcome unknown.
        self.is_sent = False
        # Set by a cancelled caller while the frame is still queued: it is then skipped.
        self.is_withdrawn = False
        self.reply: tuple[Kind, bytes | bytearray] | None = None
        self.lost: str | None = None
        """Reason why the call will have no reply; `None` as long as a reply may come."""
        self._words = deque[bytes | bytearray](maxlen=_WORDS)
        self._news = anyio.Event()

    @property
    def is_over(self) -> bool:
        """`True` if the reply has arrived or the connection has ended; nothing more will come."""
        return self.reply is not None or self.lost is not None

    def take_in(self, header: Header, said: bytes | bytearray) -> None:
        """Process an event or the reply of this call; raise `GarbageError` for a frame that is not allowed."""
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
        """End the call without a reply; `reason` says why no reply will come."""
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


class OpenCalls:
    """Unanswered calls on a connection, by their numbers."""

    def __init__(self, on_over: Callable[[int], object]) -> None:
        self._on_over = on_over
        self._calls: dict[int, OpenCall] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[int]:
        return iter(self._calls)

    def send(self, connection: "Connection", number: int, data: bytes) -> OpenCall:
        """Register a call, queue its frame on the connection, and return the open call."""
        # A number is never reused, so a late frame cannot reach another call.
        self._calls[number] = one = OpenCall()
        connection.send(data, one)
        return one

    def take_in(self, header: Header, said: bytes | bytearray) -> None:
        """Process a frame that the worker sent for one of these calls; raise `GarbageError` if it is not allowed."""
        one = self._calls.get(header.number)
        if one is None:
            # A cancelled call stays in the table until its reply, so this is no late frame but a protocol error.
            raise GarbageError("it is for no call")
        one.take_in(header, said)
        if one.is_over:
            self._remove(header.number)

    def _remove(self, number: int) -> None:
        del self._calls[number]
        self._on_over(number)

    def lose(self, reason: str) -> None:
        """End all unanswered calls, because the connection has ended; `reason` is the text for their errors."""
        calls, self._calls = self._calls, {}
        for one in calls.values():
            one.lose(reason)

    async def end(self, connection: "Connection", number: int, seconds: float) -> bool:
        """Cancel a call and wait at most `seconds` for its end, shielded from cancellation; return whether it ended."""
        one = self._calls.get(number)
        if one is None:
            return True
        if not one.is_sent:
            # Still queued: the worker will never see it, so there is nothing to wait for.
            one.is_withdrawn = True
            self._remove(number)
            return True
        # In the same queue as calls: the worker never reads a cancellation before its call.
        connection.send(frame(Kind.CANCEL, number))
        with anyio.move_on_after(seconds, shield=True):
            await one.until_ended()
        return one.is_over


async def outcome(one: OpenCall, body: Body, *, is_plain: bool) -> Any:
    """Return the result of a call that is over, or raise its exception."""
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
    """Decode an event of a call and pass it to `deliver`; raise `GarbageError` if the event is invalid."""
    told = from_json(said)
    try:
        deliver(told)
    except NonsenseError as error:  # only this one: another ValueError may come from an observer
        raise GarbageError(str(error)) from error


# Connection.

_PIECE = 256 * 1024
"""Largest size of one write, in bytes; small, so that slow progress in sending a large frame is noticed."""
_LOST = (EndOfStream, BrokenResourceError, ClosedResourceError, BusyResourceError, OSError)


class Connection:
    """Connection to a worker or an agent, with a send queue. It runs until it is closed or the other side is lost.

    Args:
        stream: stream to the other side; closed at the end.
        reader: reader of the stream; it may hold bytes that arrived with the handshake.
        heartbeat: seconds between two pings; `None` for a process of this program, of whose end it is told otherwise.
        silence: seconds without received bytes, or without progress in writing, after which the other side is lost.
    """

    def __init__(
        self,
        stream: ByteSendStream,
        reader: FrameReader,
        *,
        heartbeat: float | None,
        silence: float = math.inf,
    ) -> None:
        self._stream = stream
        self._reader = reader
        self._heartbeat = math.inf if heartbeat is None else heartbeat
        self._is_own = heartbeat is None
        self._silence = silence
        # Unbounded, because `send` never waits. Senders of events look at `backlog` first.
        self._due = deque[tuple[bytes, OpenCall | None]]()
        self._more = anyio.Event()
        self._written = 0
        self._scope = anyio.CancelScope()
        # True from the moment a piece leaves the queue until the queue is empty and written; see `flush`.
        self._is_writing = False
        self.reason: str | None = None
        """Why the connection has ended or is ending; `None` while it is usable."""
        self.is_garbled = False
        """`True` if the other side has sent something that it must not send."""

    @property
    def backlog(self) -> int:
        """Number of frames that wait in the queue to be written to the connection."""
        return len(self._due)

    def send(self, data: bytes, waits: OpenCall | None = None) -> None:
        """Queue a frame and return at once; `waits` is the call that the frame starts, if any."""
        self._due.append((data, waits))
        self._more.set()

    def close(self, reason: str) -> None:
        """End the connection at once; queued frames are dropped."""
        self.reason = self.reason or reason
        self._scope.cancel()

    async def flush(self) -> None:
        """Wait until all queued frames are written, or the connection ends."""
        while (self._due or self._is_writing) and self.reason is None:
            await anyio.sleep(0.002)

    async def run(self, on_frame: Callable[[Header, bytes | bytearray], None]) -> str:
        """Read and write frames until the connection ends; return the reason of its end."""
        try:
            # Around reading, writing and the heartbeat, so that `close` ends all three at their next await.
            with self._scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._write)
                    if not self._is_own:
                        group.start_soon(self._beat)
                    await self._read(on_frame)
        finally:
            # Forcefully, without a farewell: the other side may be lost.
            with anyio.CancelScope(shield=True):
                await anyio.aclose_forcefully(self._stream)
        return self.reason or "it was closed"

    async def _read(self, on_frame: Callable[[Header, bytes | bytearray], None]) -> None:
        try:
            while True:
                header, body = await self._reader.next()
                if header.kind is not Kind.PING:
                    on_frame(header, body)
        # One wrong frame ends the connection: the bytes after it cannot be trusted to be frames.
        except GarbageError as error:
            self.is_garbled = True
            wrong = "its worker process sent what is no reply"
            await self._refuse(f"{wrong if self._is_own else 'the other side sent what it should not have'}: {error}")
        except _LOST:
            self.close("its connection was lost")

    async def _refuse(self, reason: str) -> None:
        """Close the connection; if the other side is an agent or a remote worker, first send the reason to it."""
        if not self._is_own:
            self.send(frame(Kind.REFUSE, 0, reason.encode()[:1000]))
            with anyio.move_on_after(0.5):
                await self.flush()
        self.close(reason)

    async def _write(self) -> None:
        try:
            while True:
                while self._due:
                    self._is_writing = True
                    data = self._portion()
                    for begin in range(0, len(data), _PIECE):
                        await self._stream.send(data[begin : begin + _PIECE])
                        self._written += 1
                self._is_writing = False
                self._more = anyio.Event()
                await self._more.wait()
        except _LOST:
            # Of a process of this program, the replies that it sent before its end are still to be read.
            if not self._is_own:
                self.close("its connection was lost")

    def _portion(self) -> bytes:
        """Remove the next frames from the send queue, and return their bytes, joined for one write."""
        taken: list[bytes] = []
        size = 0
        while self._due and size < _PIECE:
            data, waits = self._due.popleft()
            if waits is not None:
                if waits.is_withdrawn:
                    continue
                # Before the write: a cancelled or failed write may have transferred any part of the frame.
                waits.is_sent = True
            taken.append(data)
            size += len(data)
        return taken[0] if len(taken) == 1 else b"".join(taken)

    async def _beat(self) -> None:
        """Send pings; close the connection if the other side sends or reads nothing for `silence` seconds."""
        heard = wrote = (-1, anyio.current_time())
        expected = math.inf
        while True:
            now = anyio.current_time()
            if now - expected > self._heartbeat:  # this process was suspended or blocked: it could not receive
                heard, wrote = (heard[0], now), (wrote[0], now)
            if self._reader.bytes_seen != heard[0]:
                heard = self._reader.bytes_seen, now
            if self._written != wrote[0] or not self._is_writing:
                wrote = self._written, now
            if now - heard[1] > self._silence:
                return self.close(f"it was silent for {self._silence:g} s")
            # A peer that pings but does not read would let the queue grow without limit.
            if now - wrote[1] > self._silence:
                return self.close(f"it took nothing for {self._silence:g} s")
            if not self._due:  # any queued frame is a sign of life, too
                self.send(frame(Kind.PING))
            expected = now + self._heartbeat
            await anyio.sleep(self._heartbeat)
