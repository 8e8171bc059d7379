"""Access to a LangGraph checkpointer from asyncio and trio; all of callboard uses checkpointers only through it."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from anyio import to_thread
from langgraph.checkpoint.memory import InMemorySaver

from callboard._loops._bridge import run_on_asyncio, stands_still
from callboard._loops._current import current_loop
from callboard._loops._entry_mode import from_sync
from callboard._loops._shielded import CutOffError, to_the_end
from callboard.exceptions import StorageError

T = TypeVar("T")


class AwaitedSaver:
    """Checkpointer with async access, whether its class implements the sync methods, the async methods, or both.

    - `InMemorySaver` is called directly.
    - The sync method runs in a thread if the class implements it and inherits the async one. It also does in runs that
      sync code started, unless the saver belongs to an event loop: its sync methods might wait for the blocked loop.
    - Otherwise the async method is awaited, on the saver's event loop if it belongs to one, else on asyncio.
    - After a `NotImplementedError` of one version, the other is used from then on.
    """

    def __init__(self, saver: Any) -> None:
        self._saver = saver
        self._lacks_async = self._lacks_sync = False
        # Read once, here: the saver may be used after the block that sets the entry mode.
        self._from_sync = from_sync() and getattr(saver, "loop", None) is None

    async def call(self, name: str, work: Callable[[Any], T], awork: Callable[[Any], Awaitable[T]]) -> T:
        """Call a method of the saver: `name` is the sync method, `work` calls it, `awork` awaits the async one."""
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
        """Call a storing method of the saver, shielded from cancellation; arguments as for `call`.

        A result of a call that has happened must be stored even if the run is cancelled. Raises `StorageError` if the
        saver has not finished when the caller's grace is over.
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
    """Return whether a class implements the sync method nearer in its MRO than the async method."""
    return _depth(kind, name) < _depth(kind, f"a{name}")


def _depth(kind: type, name: str) -> int:
    """Return the position in the MRO of the class that defines a name."""
    return next((depth for depth, base in enumerate(kind.__mro__) if name in vars(base)), 0)


async def _awaited(saver: Any, awork: Callable[[Any], Awaitable[T]]) -> T:
    home = getattr(saver, "loop", None)
    if home is None or (current_loop().name == "asyncio" and home is asyncio.get_running_loop()):
        return await run_on_asyncio(partial(awork, saver))
    if stands_still(home):  # waiting for that loop would be a deadlock
        raise asyncio.InvalidStateError(
            f"{type(saver).__name__} belongs to the event loop that waits for this sync call, and cannot work "
            "meanwhile. Await the agent's async method instead, such as `await agent.ainvoke(...)` or "
            "`await agent.aget_state(...)`"
        )
    return await to_thread.run_sync(_on_loop, home, awork, saver)


def _on_loop(home: asyncio.AbstractEventLoop, awork: Callable[[Any], Awaitable[T]], saver: Any) -> T:
    """Await a saver's method on the event loop that it belongs to; called in a worker thread."""
    return asyncio.run_coroutine_threadsafe(_coroutine(awork, saver), home).result()


async def _coroutine(awork: Callable[[Any], Awaitable[T]], saver: Any) -> T:
    return await awork(saver)
