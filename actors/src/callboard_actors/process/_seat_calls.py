"""Calls of a dedicated worker process: a connection with a send queue, and the calls that wait for their replies.

Of each call, `SeatCalls` receives events and one reply, or knows why there is no reply.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import anyio
from anyio import BrokenResourceError, BusyResourceError, ClosedResourceError

from callboard.extend import NonsenseError, dispatch_event
from callboard_actors._engine._frames import OUTCOMES, FrameReader, GarbageError, Header, Kind, frame, from_json

# Open calls.

_MAX_EVENTS: Final = 1_000
"""Largest number of undelivered events of one call; when there are more, the oldest are dropped."""


class OpenCall:
    """Call that is queued or sent, and has no reply yet; collects its events and its reply."""

    def __init__(self) -> None:
        # Set before the first byte is written. From then on, a lost connection leaves the outcome unknown.
        self.is_sent = False
        # Set by a cancelled caller while the frame is still queued: it is then skipped.
        self.is_withdrawn = False
        self.reply: tuple[Kind, bytes | bytearray] | None = None
        self.loss_reason: str | None = None
        """Reason why the call will have no reply; `None` as long as a reply may come."""
        self._events = deque[bytes | bytearray](maxlen=_MAX_EVENTS)
        self._change = anyio.Event()

    @property
    def is_over(self) -> bool:
        """`True` if the reply has arrived or the connection has ended; nothing more will come."""
        return self.reply is not None or self.loss_reason is not None

    def receive(self, header: Header, payload: bytes | bytearray) -> None:
        """Process an event or the reply of this call; raise `GarbageError` for a frame that is not allowed."""
        if self.is_over or not self.is_sent:
            raise GarbageError("it is for a call that has had its reply, or was never sent")
        if header.kind is Kind.EVENT:
            self._events.append(payload)
        elif header.kind in OUTCOMES:
            self.reply = header.kind, payload
        else:
            raise GarbageError(f"a {header.kind.name} of a call")
        self._change.set()

    def lose(self, reason: str) -> None:
        """End the call without a reply; `reason` says why no reply will come."""
        if not self.is_over:
            self.loss_reason = reason
            self._change.set()

    async def until_over(self) -> None:
        """Wait until the call is over, and deliver its events; raise `GarbageError` for an invalid event."""
        while True:
            await self._change.wait()
            self._change = anyio.Event()
            # Also when the call is over: events that came before the reply are delivered first.
            while self._events:
                deliver_event(self._events.popleft(), dispatch_event)
            if self.is_over:
                return

    async def until_ended(self) -> None:
        """Wait until the call is over, without delivering events: its caller has been cancelled."""
        while not self.is_over:
            self._change = anyio.Event()
            await self._change.wait()


def deliver_event(payload: bytes | bytearray, deliver: Callable[[Any], None]) -> None:
    """Decode an event of a call and pass it to `deliver`; raise `GarbageError` if the event is invalid."""
    event = from_json(payload)
    try:
        deliver(event)
    except NonsenseError as error:  # only this one: another ValueError may come from an observer
        raise GarbageError(str(error)) from error


# Connection.

_LONGEST_WRITE = 256 * 1024
"""Number of bytes after which no further frame is joined to a write."""


class SeatCalls:
    """Unanswered calls of a dedicated worker process by their numbers, and the queue of frames to the process.

    Args:
        write: function that sends bytes to the process; it raises `OSError` if the process has ended.
        reader: reader of the frames that the process sends.
    """

    def __init__(self, write: Callable[[bytes], Awaitable[None]], reader: FrameReader) -> None:
        self._write_bytes = write
        self._reader = reader
        self._calls: dict[int, OpenCall] = {}
        self._queue = deque[tuple[bytes, OpenCall | None]]()
        self._has_frames = anyio.Event()

    def send(self, number: int, data: bytes) -> OpenCall:
        """Register a call, queue its frame, and return the open call at once."""
        # A number is never reused, so a late frame cannot reach another call.
        self._calls[number] = call = OpenCall()
        self._enqueue(data, call)
        return call

    def lose(self, reason: str) -> None:
        """End all unanswered calls, because the connection has ended; `reason` is the text for their errors."""
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.lose(reason)

    async def end(self, number: int, seconds: float) -> bool:
        """Cancel a call and wait at most `seconds` for its end, shielded from cancellation; return whether it ended."""
        call = self._calls.get(number)
        if call is None:
            return True
        if not call.is_sent:
            # Still queued: the worker will never see it, so there is nothing to wait for.
            call.is_withdrawn = True
            del self._calls[number]
            return True
        # In the same queue as calls: the worker never reads a cancellation before its call.
        self._enqueue(frame(Kind.CANCEL, number))
        with anyio.move_on_after(seconds, shield=True):
            await call.until_ended()
        return call.is_over

    async def run(self) -> str | None:
        """Read and write frames until the process closes its socket; return what it has sent that is no valid frame."""
        mistake: str | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(self._write)
            mistake = await self._read()
            group.cancel_scope.cancel()
        return mistake

    def _enqueue(self, data: bytes, call: OpenCall | None = None) -> None:
        self._queue.append((data, call))
        self._has_frames.set()

    async def _read(self) -> str | None:
        try:
            while True:
                header, payload = await self._reader.next()
                call = self._calls.get(header.number)
                if call is None:
                    # A cancelled call stays in the table until its reply, so this is no late frame but a protocol
                    # error.
                    raise GarbageError("it is for no call")
                call.receive(header, payload)
                if call.is_over:
                    del self._calls[header.number]
        # One wrong frame ends the connection: the bytes after it cannot be trusted to be frames.
        except GarbageError as error:
            return f"its worker process sent what is no reply: {error}"
        except _LOSS_ERRORS:
            return None

    async def _write(self) -> None:
        # After the end of the process, the replies that it sent before are still read.
        with suppress(*_LOSS_ERRORS):
            while True:
                while self._queue:
                    await self._write_bytes(self._portion())
                self._has_frames = anyio.Event()
                await self._has_frames.wait()

    def _portion(self) -> bytes:
        """Remove the next frames from the send queue, and return their bytes, joined for one write."""
        frames: list[bytes] = []
        size = 0
        while self._queue and size < _LONGEST_WRITE:
            data, call = self._queue.popleft()
            if call is not None:
                if call.is_withdrawn:
                    continue
                # Before the write: a cancelled or failed write may have transferred any part of the frame.
                call.is_sent = True
            frames.append(data)
            size += len(data)
        return frames[0] if len(frames) == 1 else b"".join(frames)


_LOSS_ERRORS = (BrokenResourceError, ClosedResourceError, BusyResourceError, OSError)
