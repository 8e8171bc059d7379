"""Somebody else's checkpointer, awaited on asyncio and on trio. Nobody else awaits one."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from anyio import to_thread
from langgraph.checkpoint.memory import InMemorySaver

from callboard._loops._bridge import run_on_asyncio, stands_still
from callboard._loops._current import current_loop
from callboard._loops._door import from_sync
from callboard._loops._to_the_end import CutOffError, to_the_end
from callboard.exceptions import StorageError

T = TypeVar("T")


class AwaitedSaver:
    """A checkpointer whose methods are awaited, whichever of them its author has written.

    LangGraph's own in memory is called where we are. Where a class has the sync method from itself and the async
    one only from a base, the sync one is meant, and works in a thread. So it does for what was entered from sync
    code, unless the saver keeps an event loop, for which its sync methods could wait while it stands still. Else
    the async one is awaited: on the saver's own event loop if it keeps one, or on asyncio, here or over the bridge.
    A saver that lacks the half which is asked for says so, and the other one is used from then on.

    Args:
        saver: any.
    """

    def __init__(self, saver: Any) -> None:
        self._saver = saver
        self._lacks_async = self._lacks_sync = False
        # By now: whoever made it was entered by that door, and may go on after the block that says so.
        self._from_sync = from_sync() and getattr(saver, "loop", None) is None

    async def call(self, name: str, work: Callable[[Any], T], awork: Callable[[Any], Awaitable[T]]) -> T:
        """Have the saver do something.

        Args:
            name: of its sync method; the async one has an `a` before it.
            work: uses the sync method.
            awork: uses the async one.
        """
        saver = self._saver
        if type(saver) is InMemorySaver:
            return work(saver)
        if self._lacks_async or self._prefers_sync(name):
            try:
                return await to_thread.run_sync(work, saver)
            except NotImplementedError:
                if self._lacks_async:
                    raise
                self._lacks_sync = True
        try:
            return await _awaited(saver, awork)
        except NotImplementedError:
            if self._lacks_sync:
                raise
            self._lacks_async = True
        return await to_thread.run_sync(work, saver)

    async def store(self, name: str, work: Callable[[Any], T], awork: Callable[[Any], Awaitable[T]]) -> T:
        """Have the saver store something, also while the caller is being cancelled, for what is true has to be stored.

        Args:
            name: of its sync method; the async one has an `a` before it.
            work: uses the sync method.
            awork: uses the async one.

        Raises:
            StorageError: if the caller was cancelled, and the saver had not stored it when the grace was over.
        """
        saver = self._saver
        if type(saver) is InMemorySaver:
            return work(saver)
        try:
            return await to_the_end(partial(self.call, name, work, awork))
        except CutOffError as error:
            raise StorageError(
                f"The checkpointer, of type {type(saver).__name__},",
                "had not stored what it was given when the run had been cancelled and its grace was over. The thread "
                "may not know the last calls of that run: look what they have done before they are done again",
            ) from error

    def _prefers_sync(self, name: str) -> bool:
        return not self._lacks_sync and (self._from_sync or _is_sync(type(self._saver), name))


def _is_sync(kind: type, name: str) -> bool:
    """Whether a class wrote a method, or overrode it, and left the async one to its bases."""
    return _depth(kind, name) < _depth(kind, f"a{name}")


def _depth(kind: type, name: str) -> int:
    """How many classes have to be asked for a name."""
    return next((depth for depth, base in enumerate(kind.__mro__) if name in vars(base)), 0)


async def _awaited(saver: Any, awork: Callable[[Any], Awaitable[T]]) -> T:
    home = getattr(saver, "loop", None)
    if home is None or (current_loop().name == "asyncio" and home is asyncio.get_running_loop()):
        return await run_on_asyncio(partial(awork, saver))
    if stands_still(home):
        raise asyncio.InvalidStateError(
            f"{type(saver).__name__} belongs to the event loop that waits for this sync call, and cannot work "
            "meanwhile. Await the agent's async method instead, such as `await agent.ainvoke(...)` or "
            "`await agent.aget_state(...)`"
        )
    return await to_thread.run_sync(_on_loop, home, awork, saver)


def _on_loop(home: asyncio.AbstractEventLoop, awork: Callable[[Any], Awaitable[T]], saver: Any) -> T:
    """Have a saver do something on the event loop that it belongs to; in a worker thread."""
    return asyncio.run_coroutine_threadsafe(_coroutine(awork, saver), home).result()


async def _coroutine(awork: Callable[[Any], Awaitable[T]], saver: Any) -> T:
    return await awork(saver)
