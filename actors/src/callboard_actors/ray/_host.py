"""A Ray actor in which bodies run, from within: on its event loop if they are async, else in threads of it."""

import asyncio
import os
import platform
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from importlib.metadata import version
from inspect import iscoroutinefunction
from typing import Any, NamedTuple

from callboard.engines import arrived
from callboard_actors.process._pickles import loads
from callboard_actors.ray._crossing import Reply, raised, returned, unread

_WORDS = 1_000
"""Of one body, that wait to be asked for; of more, the newest."""
_THREADS = 64

Word = dict[str, Any]


class Hello(NamedTuple):
    """Who a host is: its versions, which have to be ours, and its process id."""

    python: str
    callboard: str
    pid: int


def here() -> Hello:
    """What this process is, which a host has to be as well."""
    return Hello(".".join(platform.python_version_tuple()[:2]), version("callboard"), os.getpid())


class Host:
    """Runs bodies, each by its number, until it is killed."""

    def __init__(self) -> None:
        self._calls: dict[int, _Call] = {}
        self._threads = ThreadPoolExecutor(_THREADS, "callboard")

    async def hello(self) -> Hello:
        """Say who it is; the first call, so that whoever waits for it knows that it lives."""
        return here()

    async def watch(self) -> None:
        """Never return: who waits for it hears of the end."""
        await asyncio.Event().wait()

    async def leave(self) -> None:
        """End at once, with all that runs here."""
        os._exit(0)

    async def run(self, number: int, given: dict[str, Any], data: bytes, most: int) -> tuple[Reply, list[Word]]:
        """Run a body; what it ends with, and what it has said that nobody has asked for."""
        call = self._calls[number] = _Call(self._threads, most)
        try:
            reply = await call.run(given, data)
        finally:
            del self._calls[number]
            call.end()
        return reply, call.taken_words()

    async def words(self, number: int) -> list[Word]:
        """Wait for what a body says; nothing if it has ended."""
        call = self._calls.get(number)
        return [] if call is None else await call.next_words()

    async def cancel(self, number: int) -> None:
        """Have a body end, if it is one that can be cancelled; one in a thread cannot."""
        call = self._calls.get(number)
        if call is not None:
            call.cancel()


class _Call:
    """One body that runs here: its task, what it says, and whether it can be cancelled."""

    def __init__(self, threads: ThreadPoolExecutor, most: int) -> None:
        self._threads = threads
        self._most = most
        self._loop = asyncio.get_running_loop()
        self._words = deque[Word](maxlen=_WORDS)
        self._news = asyncio.Event()
        self._is_over = False
        self._task: asyncio.Task[Reply] | None = None
        self._in_thread = False

    async def run(self, given: dict[str, Any], data: bytes) -> Reply:
        self._task = asyncio.create_task(self._outcome(given, data))
        await asyncio.wait([self._task])
        if self._task.cancelled():
            return "lost", b"it was cancelled"
        return self._task.result()

    def cancel(self) -> None:
        if self._task is not None and not self._in_thread:
            # Behind its first step: a task that is cancelled before never runs.
            self._loop.call_soon(self._task.cancel)

    async def _outcome(self, given: dict[str, Any], data: bytes) -> Reply:
        try:
            fn, args, kwargs = loads(data)  # whoever has the cluster may run code on it
        except Exception as error:
            return unread(error)
        try:
            with arrived(given, self._tell):
                value = await self._value(partial(fn, *args, **kwargs), iscoroutinefunction(fn))
        except Exception as error:
            return raised(error, self._most)
        return returned(value, self._most)

    async def _value(self, fn: Callable[[], Any], is_async: bool) -> Any:
        if is_async:
            return await fn()
        self._in_thread = True
        value = await self._loop.run_in_executor(self._threads, copy_context().run, fn)
        self._in_thread = False
        return await value if isinstance(value, Coroutine) else value

    def _tell(self, word: Word) -> None:
        self._loop.call_soon_threadsafe(self._note, word)

    def _note(self, word: Word) -> None:
        self._words.append(word)
        self._news.set()

    def end(self) -> None:
        self._is_over = True
        self._news.set()

    async def next_words(self) -> list[Word]:
        await self._news.wait()
        if not self._is_over:
            self._news.clear()
        return self.taken_words()

    def taken_words(self) -> list[Word]:
        words = list(self._words)
        self._words.clear()
        return words
