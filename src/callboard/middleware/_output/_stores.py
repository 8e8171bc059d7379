"""Access to LangGraph stores of any kind from any event loop."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from callboard._calls._thread_pool import Threads
from callboard._loops._bridge import run_on_asyncio
from callboard._loops._current import current_loop
from callboard._loops._entry_mode import from_sync


class StoreDoor:
    """Accesses stores with their async methods where possible, else with sync methods in at most `threads` threads."""

    def __init__(self, threads: int = 16) -> None:
        self._threads = Threads("a store", threads)

    async def put(self, store: BaseStore, namespace: tuple[str, ...], key: str, value: dict[str, Any]) -> None:
        """Store a value without indexing it for search."""
        await self._ask(store, "put", namespace, key, value, index=False)

    async def get(self, store: BaseStore, namespace: tuple[str, ...], key: str) -> dict[str, Any] | None:
        """Return a value, or `None` if there is none."""
        item = await self._ask(store, "get", namespace, key)
        return None if item is None else item.value

    async def _ask(self, store: BaseStore, method: str, *args: Any, **kwargs: Any) -> Any:
        sync = partial(getattr(store, method), *args, **kwargs)
        native = partial(getattr(store, f"a{method}"), *args, **kwargs)
        if isinstance(store, InMemoryStore):
            # Never blocks, so neither a thread nor another event loop is needed.
            return sync()
        ways: list[Callable[[], Awaitable[Any]]] = [partial(run_on_asyncio, native), partial(self._threads.run, sync)]
        first, second = ways if _is_at_home(store) else reversed(ways)
        try:
            # Some stores implement only their async or only their sync methods.
            return await first()
        except NotImplementedError:
            return await second()


def _is_at_home(store: BaseStore) -> bool:
    """Return whether this event loop may await the store. Sync code expects the sync methods to be used."""
    if from_sync() or current_loop().name != "asyncio":
        return False
    # A store with a connection of its own works only in the event loop that made it (AsyncBatchedBaseStore).
    home = getattr(store, "_loop", None)
    return home is None or home is asyncio.get_running_loop()
