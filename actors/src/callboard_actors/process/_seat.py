"""Dedicated worker, from within: one event loop on which the owner's async functions run concurrently."""

import os
import traceback
from collections.abc import Callable, Coroutine
from os import _exit  # bound at import: user code may replace attributes of `os`
from socket import socket
from typing import Any, Protocol

from callboard.extend import attached_context
from callboard_actors._engine._frames import BEGUN_COUNTER, Kind, parts_of
from callboard_actors._engine._pickles import loads
from callboard_actors._engine._variables import set_all
from callboard_actors.process._exits import exit_code, flush
from callboard_actors.process._reply_writer import ReplyWriter
from callboard_actors.process._settings import Settings
from callboard_actors.process._worker import Replies, bounded, prepare, replies_of, without_own_frame

_MOST = 2**40
"""Bytes of a call at most: practically unlimited, since workers trust their pool."""


def serve(sock: socket, begun_counter: int, settings: Settings) -> None:
    """Answer calls until the pool closes the socket; this ends the process."""
    import anyio

    prepare(settings)
    anyio.run(_Seat(sock, begun_counter, settings).live, backend=settings.backend)


class _Starts(Protocol):
    """Starts a call as a task; returns a function that cancels the task."""

    def __call__(self, work: Callable[[], Coroutine[Any, Any, None]], /) -> Callable[[], object]: ...


class _Seat:
    """Concurrent calls of one owner on one event loop, until the socket is closed."""

    def __init__(self, sock: socket, begun_counter: int, settings: Settings) -> None:
        self._sock = sock
        self._reply_writer = ReplyWriter(sock)
        self._begun_counter = begun_counter
        self._max_result = settings.terms.max_result
        self._replies = replies_of(settings)
        self._is_trio = settings.backend == "trio"
        self._calls: dict[int, _Call] = {}

    async def live(self) -> None:
        """Start and cancel calls as the pool requests."""
        if self._is_trio:
            import trio

            async with trio.open_nursery() as nursery:
                await self._listen(_starts_on_trio(nursery))
        else:
            await self._listen(_starts_on_asyncio())

    async def _listen(self, start: _Starts) -> None:
        from callboard_actors._engine._frames import FrameReader
        from callboard_actors._engine._socket_reader import incoming

        reader = FrameReader(incoming(self._sock).receive, _MOST)
        while True:
            try:
                header, body = await reader.next()
            except ConnectionError:
                flush()
                os._exit(0)  # the pool is gone, so running calls have no caller
            if header.kind is Kind.CANCEL:
                if (call := self._calls.get(header.number)) is not None:
                    call.end()
                continue
            # Before any code of the call runs. From here on, the pool treats the call as begun.
            os.pwrite(self._begun_counter, BEGUN_COUNTER.pack(header.number), 0)
            call = _Call(header.number, body, self._answer, self._reply_writer, self._replies)
            self._calls[header.number] = call
            call.cancel = start(call.run)

    def _answer(self, number: int, kind: Kind, body: bytes) -> None:
        # First: a cancellation that arrives after the reply finds no call.
        del self._calls[number]
        flush()
        self._reply_writer.reply(number, *bounded(kind, body, self._max_result))


_CANCELLED = Kind.LOST, b"it was cancelled"


def _nothing() -> None:
    pass


class _Call:
    """Call, in its own task."""

    def __init__(
        self,
        number: int,
        call: bytes | bytearray,
        answer: Callable[[int, Kind, bytes], None],
        reply_writer: ReplyWriter,
        replies: Replies,
    ) -> None:
        self._number = number
        self._call = call
        self._answer = answer
        self._tell = reply_writer.begin(number)
        self._replies = replies
        # Tells a requested cancellation from one that ends this whole process.
        self._is_to_end = False
        self.cancel: Callable[[], object] = _nothing
        """Cancels the call's task; replaced as soon as the task exists."""

    def end(self) -> None:
        """Cancel the call; its caller has been cancelled."""
        self._is_to_end = True
        self.cancel()

    async def run(self) -> None:
        """Run the call and send exactly one reply, also after a cancellation."""
        reply = _CANCELLED
        try:
            if not self._is_to_end:
                reply = await self._outcome()
        except SystemExit as end:
            code = exit_code(end)
            flush()
            os._exit(code)
        except BaseException:
            # Without a request of the owner: the event loop is about to end, or the call raised KeyboardInterrupt or
            # the like. End the process as such an exception would.
            if not self._is_to_end:
                traceback.print_exc()
                flush()
                os._exit(1)
            raise
        finally:
            self._send(*reply)

    def _send(self, kind: Kind, body: bytes) -> None:
        """Send the reply; exit if that fails, since the caller would wait for ever."""
        try:
            self._answer(self._number, kind, body)
        except BaseException:
            _exit(1)

    async def _outcome(self) -> tuple[Kind, bytes]:
        given, pickled = parts_of(self._call)
        try:
            with attached_context(given, self._tell):
                fn, args, kwargs, variables = loads(pickled)
                set_all(variables)
                value = fn(*args, **kwargs)
                if isinstance(value, Coroutine):
                    value = await value
        except Exception as error:
            return self._replies.raised(without_own_frame(error))
        return self._replies.returned(value)


def _starts_on_asyncio() -> _Starts:
    import asyncio

    tasks: set[asyncio.Task[None]] = set()

    def start(work: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], object]:
        # A plain task, not in a task group: it is cancelled once, so that it can await its clean-up.
        loop = asyncio.get_running_loop()
        task = loop.create_task(work())
        # The loop keeps weak references only; without this one, a task may be garbage-collected.
        tasks.add(task)
        task.add_done_callback(tasks.discard)

        def cancel() -> object:
            # After the task's first step, which is already scheduled. A task that is cancelled before its first step
            # never runs, and would never reply.
            return loop.call_soon(task.cancel)

        return cancel

    return start


def _starts_on_trio(nursery: Any) -> _Starts:
    import trio

    def start(work: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], object]:
        scope = trio.CancelScope()

        async def within() -> None:
            with scope:
                await work()

        nursery.start_soon(within)
        return scope.cancel

    return start
