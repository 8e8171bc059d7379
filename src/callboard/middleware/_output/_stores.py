"""LangGraph stores of any kind, from any event loop."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from callboard._calls._thread_pool import Threads
from callboard._loops._bridge import run_on_asyncio
from callboard._loops._current import current_loop
from callboard._loops._door import from_sync


class StoreDoor:
    """Asks stores: async where a store is at home, sync in a thread elsewhere; some have one kind only.

    Args:
        threads: for sync methods, at most.
    """

    def __init__(self, threads: int = 16) -> None:
        self._threads = Threads("a store", threads)

    async def put(self, store: BaseStore, namespace: tuple[str, ...], key: str, value: dict[str, Any]) -> None:
        """Store a value that nobody searches for: it is not indexed."""
        await self._ask(store, "put", namespace, key, value, index=False)

    async def get(self, store: BaseStore, namespace: tuple[str, ...], key: str) -> dict[str, Any] | None:
        """The value, or `None` if there is none."""
        item = await self._ask(store, "get", namespace, key)
        return None if item is None else item.value

    async def _ask(self, store: BaseStore, method: str, *args: Any, **kwargs: Any) -> Any:
        sync = partial(getattr(store, method), *args, **kwargs)
        native = partial(getattr(store, f"a{method}"), *args, **kwargs)
        if isinstance(store, InMemoryStore):
            return sync()
        ways: list[Callable[[], Awaitable[Any]]] = [partial(run_on_asyncio, native), partial(self._threads.run, sync)]
        first, second = ways if _is_at_home(store) else reversed(ways)
        try:
            return await first()
        except NotImplementedError:
            return await second()


def _is_at_home(store: BaseStore) -> bool:
    """Whether to await the store: sync code gave its sync methods, and the async ones work in some loops only."""
    if from_sync() or current_loop().name != "asyncio":
        return False
    # Those with a connection of their own belong to the loop that made them (AsyncBatchedBaseStore).
    home = getattr(store, "_loop", None)
    return home is None or home is asyncio.get_running_loop()
