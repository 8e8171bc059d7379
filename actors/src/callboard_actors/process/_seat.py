"""A seat, from within: a worker with one event loop, on which its owner's async functions run side by side."""

import os
import traceback
from collections.abc import Callable, Coroutine
from os import _exit  # now: a body may put something else into `os`
from socket import socket
from typing import Any, Protocol

from callboard.engines import arrived
from callboard_actors.process._exits import exit_code, flush
from callboard_actors.process._frames import NOTEBOOK, Kind, parts_of
from callboard_actors.process._pickles import loads
from callboard_actors.process._settings import Settings
from callboard_actors.process._variables import set_all
from callboard_actors.process._voice import Voice
from callboard_actors.process._worker import Replies, bounded, prepare, replies_of, without_own_frame

_MOST = 2**40
"""Bytes that a call may have; the pool is believed."""


def serve(sock: socket, notebook: int, settings: Settings) -> None:
    """Answer calls until nobody is left who would make one."""
    import anyio

    prepare(settings)
    anyio.run(_Seat(sock, notebook, settings).live, backend=settings.backend)


class _Starts(Protocol):
    """Starts a call as a task; returns by what it is cancelled."""

    def __call__(self, work: Callable[[], Coroutine[Any, Any, None]], /) -> Callable[[], object]: ...


class _Seat:
    """A worker of one owner: calls that run at once on one event loop, until its socket is closed."""

    def __init__(self, sock: socket, notebook: int, settings: Settings) -> None:
        self._sock = sock
        self._voice = Voice(sock)
        self._notebook = notebook
        self._max_result = settings.terms.max_result
        self._replies = replies_of(settings)
        self._is_trio = settings.backend == "trio"
        self._calls: dict[int, _Call] = {}

    async def live(self) -> None:
        """Start calls and cancel them, as they come."""
        if self._is_trio:
            import trio

            async with trio.open_nursery() as nursery:
                await self._listen(_starts_on_trio(nursery))
        else:
            await self._listen(_starts_on_asyncio())

    async def _listen(self, start: _Starts) -> None:
        from callboard_actors.process._incoming import incoming
        from callboard_actors.process._reader import FrameReader

        reader = FrameReader(incoming(self._sock), _MOST)
        while True:
            try:
                header, body = await reader.next()
            except ConnectionError:
                flush()
                os._exit(0)  # the pool is gone; whatever still runs here is for nobody
            if header.kind is Kind.CANCEL:
                if (call := self._calls.get(header.number)) is not None:
                    call.end()
                continue
            os.pwrite(self._notebook, NOTEBOOK.pack(header.number), 0)
            call = _Call(header.number, body, self._answer, self._voice, self._replies)
            self._calls[header.number] = call
            call.cancel = start(call.run)

    def _answer(self, number: int, kind: Kind, body: bytes) -> None:
        del self._calls[number]
        flush()
        self._voice.reply(number, *bounded(kind, body, self._max_result))


_CANCELLED = Kind.LOST, b"it was cancelled"


def _nothing() -> None:
    pass


class _Call:
    """One call, in a task of its own."""

    def __init__(
        self,
        number: int,
        call: bytes | bytearray,
        answer: Callable[[int, Kind, bytes], None],
        voice: Voice,
        replies: Replies,
    ) -> None:
        self._number = number
        self._call = call
        self._answer = answer
        self._tell = voice.begin(number)
        self._replies = replies
        self._is_to_end = False
        self.cancel: Callable[[], object] = _nothing
        """Cancels its task."""

    def end(self) -> None:
        """Have it end, because whoever made it has gone."""
        self._is_to_end = True
        self.cancel()

    async def run(self) -> None:
        """Run it; whatever it ends with is its answer, be it that it was cancelled by whoever made it."""
        reply = _CANCELLED
        try:
            if not self._is_to_end:
                reply = await self._outcome()
        except SystemExit as end:
            code = exit_code(end)
            flush()
            os._exit(code)
        except BaseException:
            # If nobody asked for it, all that runs here is about to end, or its own code wants the process to.
            if not self._is_to_end:
                traceback.print_exc()
                flush()
                os._exit(1)
            raise
        finally:
            self._send(*reply)

    def _send(self, kind: Kind, body: bytes) -> None:
        """Answer; a worker in which that fails ends, because whoever waits would wait for ever."""
        try:
            self._answer(self._number, kind, body)
        except BaseException:
            _exit(1)

    async def _outcome(self) -> tuple[Kind, bytes]:
        given, pickled = parts_of(self._call)
        try:
            with arrived(given, self._tell):
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
        # By itself, and not in a group: its cancellation comes once, so that it can clean up.
        loop = asyncio.get_running_loop()
        task = loop.create_task(work())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

        def cancel() -> object:
            # Behind its first step, which is due already: one that is cancelled before never runs, and never answers.
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
