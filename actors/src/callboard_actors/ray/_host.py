"""Code inside a Ray actor: runs async functions on its event loop, and sync functions in threads.

Function calls and replies are transferred by Ray's cloudpickle: functions and classes of importable modules by name,
definitions of a script, a notebook or another function by value.
"""

import asyncio
import io
import os
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from inspect import iscoroutinefunction
from types import FunctionType
from typing import Any, cast

from ray import cloudpickle

from callboard.extend import Body, attached_context
from callboard_actors._engine import _codec
from callboard_actors._engine._codec import refusal
from callboard_actors._engine._frames import Kind, versions
from callboard_actors._engine._main_module import NAMES
from callboard_actors._engine._pickles import found_behind, loads, way_to
from callboard_actors._engine._replies import bounded, raised, returned

# Transfer of bodies and replies.


class _Pickler(cast("type[Any]", cloudpickle.Pickler)):  # type: ignore[misc]
    """Pickler that stores a decorated function of an importable module by its name, not by its code."""

    def reducer_override(self, obj: Any) -> Any:
        # By value, it would be sent with all globals that it refers to.
        if isinstance(obj, FunctionType) and obj.__module__ not in NAMES and (way := way_to(obj)):
            return found_behind, (obj.__module__, obj.__qualname__, way)
        return super().reducer_override(obj)


def dumps(value: object) -> bytes:
    """Return a value as a pickle, made by cloudpickle."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


def packed(body: Body) -> bytes:
    """Pickle a function with its arguments; if this fails, raise a `TypeError` that names the unpicklable part."""
    return _codec.packed(body, {}, dumps, "on Ray", "function")


def check(fn: Callable[..., Any], title: str) -> None:
    """Raise `TypeError` for a function or class that cannot be pickled; `title` names it in the error."""
    try:
        dumps(fn)
    except Exception as error:
        what = "class" if isinstance(fn, type) else "function"
        hint = "; move it into a module that the cluster has" if getattr(fn, "__module__", None) in NAMES else ""
        raise TypeError(refusal(title, what, error, "on Ray") + hint) from error


def opened(kind: Kind, data: bytes, body: Body) -> Any:
    """Decode the reply of a Ray actor to a function call: return the call's result, or raise its exception."""
    if kind is Kind.REFUSE:
        raise TypeError(
            f"{body.title!r} cannot run on Ray: its workers cannot load it: {data.decode(errors='replace')}; "
            "install it on the cluster, or have Ray do so by RayEngine(runtime_env={'working_dir': ..., 'pip': [...]})"
        )
    return _codec.opened(kind, data, body, output="")  # the cluster is trusted: it runs our code


# Ray actor.

_WORDS = 1_000
"""Maximum number of events that are kept for one call until the engine fetches them; the oldest are dropped first."""
_THREADS = 64
"""Number of threads for sync functions; a dedicated Ray actor may run several calls at once."""

Word = dict[str, Any]
Reply = tuple[Kind, bytes]
"""Encoded outcome of a function call: a pickle, or the reason why there is none."""


class Host:
    """Ray actor that runs function calls, each identified by a number, until the Ray actor is killed."""

    def __init__(self) -> None:
        self._calls: dict[int, _Call] = {}
        self._threads = ThreadPoolExecutor(_THREADS, "callboard")

    async def hello(self) -> dict[str, str]:
        """Return the versions of callboard and Python; the answer also shows that the Ray actor has started."""
        return versions()

    async def watch(self) -> None:
        """Wait for ever: when this Ray actor's process ends, Ray fails this call, and so the engine notices the end."""
        await asyncio.Event().wait()

    async def leave(self) -> None:
        """End this process at once, with every function call that runs in it."""
        os._exit(0)

    async def run(self, number: int, given: dict[str, Any], data: bytes, most: int) -> tuple[Reply, list[Word]]:
        """Run a function call; return its reply, and the call's events that `words` has not returned yet."""
        call = self._calls[number] = _Call(self._threads, most)
        try:
            reply = await call.run(given, data)
        finally:
            del self._calls[number]
            # Wakes a pending `words` call, which would otherwise never return.
            call.end()
        return reply, call.taken_words()

    async def words(self, number: int) -> list[Word]:
        """Wait for events of a running function call and return them; return an empty list if the call has ended."""
        call = self._calls.get(number)
        return [] if call is None else await call.next_words()

    async def cancel(self, number: int) -> None:
        """Cancel the call of an async function; a sync function runs in a thread and cannot be cancelled."""
        call = self._calls.get(number)
        if call is not None:
            call.cancel()


class _Call:
    """Function call that runs in this Ray actor: its task and its events."""

    def __init__(self, threads: ThreadPoolExecutor, most: int) -> None:
        self._threads = threads
        self._most = most
        self._loop = asyncio.get_running_loop()
        self._words = deque[Word](maxlen=_WORDS)
        self._news = asyncio.Event()
        self._is_over = False
        self._task: asyncio.Task[Reply] | None = None
        # While true, cancelling the task would abandon the thread, and report an end that has not happened.
        self._in_thread = False

    async def run(self, given: dict[str, Any], data: bytes) -> Reply:
        self._task = asyncio.create_task(self._outcome(given, data))
        # A task of its own: `cancel` ends the body, but not the method call that returns its reply.
        await asyncio.wait([self._task])
        if self._task.cancelled():
            return Kind.LOST, b"it was cancelled"
        return self._task.result()

    def cancel(self) -> None:
        if self._task is not None and not self._in_thread:
            # After the task's first step, which is already scheduled: a task that is cancelled before its first step
            # never runs.
            self._loop.call_soon(self._task.cancel)

    async def _outcome(self, given: dict[str, Any], data: bytes) -> Reply:
        try:
            fn, args, kwargs, _ = loads(data)  # users of the cluster may run code on it anyway
        except Exception as error:
            return Kind.REFUSE, f"{type(error).__name__}: {error}".encode(errors="replace")
        try:
            with attached_context(given, self._tell):
                value = await self._value(partial(fn, *args, **kwargs), iscoroutinefunction(fn))
        except Exception as error:
            return bounded(*raised(error, "Ray's worker process", dumps), self._most)
        return bounded(*returned(value, dumps), self._most)

    async def _value(self, fn: Callable[[], Any], is_async: bool) -> Any:
        if is_async:
            return await fn()
        self._in_thread = True
        value = await self._loop.run_in_executor(self._threads, copy_context().run, fn)
        self._in_thread = False
        return await value if isinstance(value, Coroutine) else value

    def _tell(self, word: Word) -> None:
        # From any thread of the body; only the event loop touches the queue.
        self._loop.call_soon_threadsafe(self._note, word)

    def _note(self, word: Word) -> None:
        self._words.append(word)
        self._news.set()

    def end(self) -> None:
        self._is_over = True
        self._news.set()

    async def next_words(self) -> list[Word]:
        await self._news.wait()
        # Once it is over, the event stays set, so that no later call can wait for ever.
        if not self._is_over:
            self._news.clear()
        return self.taken_words()

    def taken_words(self) -> list[Word]:
        words = list(self._words)
        self._words.clear()
        return words
