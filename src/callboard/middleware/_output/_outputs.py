"""Storage of the full texts of shortened results: in a LangGraph store, or in memory.

A LangGraph store may have async methods, sync methods or both; it is used from any event loop.
"""

import asyncio
import json
import re
import secrets
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import sniffio
from anyio import fail_after
from langchain_core.runnables import RunnableConfig
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from callboard._calls._call import note
from callboard._calls._thread_pool import Threads
from callboard._loops._bridge import run_on_asyncio
from callboard._loops._deadline import remaining
from callboard._loops._entry_mode import is_sync_entry
from callboard.tools._vocabulary import ToolRuntime


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
    if is_sync_entry() or sniffio.current_async_library() != "asyncio":
        return False
    # A store with a connection of its own works only in the event loop that made it (AsyncBatchedBaseStore).
    home = getattr(store, "_loop", None)
    return home is None or home is asyncio.get_running_loop()


Runtime = ToolRuntime[Any, Any]

_PATIENCE = 10.0
"""Maximum seconds for storing one text."""

_NOT_FOR_STORES = re.compile("[\\0\ud800-\udfff]")
"""Characters that some stores reject: NUL and lone surrogates."""

_ID_BYTES = 12
"""96 bits: nobody can guess an id, and a model still copies it without mistakes."""


class Outputs:
    """Texts by id, separate for each conversation thread.

    Args:
        store: preferred to the graph's store.
        namespace: namespace in the store; the thread's name is appended.
        memory: maximum characters kept in this process when no store takes them.
    """

    def __init__(self, store: BaseStore | None, namespace: tuple[str, ...], memory: int) -> None:
        from cachetools import LRUCache  # an extra

        self._store = store
        self._namespace = namespace
        self._memory: LRUCache[tuple[str, str], str] = LRUCache(memory, getsizeof=len)
        # Calls of several event loops and threads share the memory, and reading reorders it.
        self._lock = threading.Lock()
        self._door = StoreDoor()

    async def keep(self, text: str, runtime: Runtime) -> str | None:
        """Store a text and return its id, or `None` if neither a store nor the memory takes it."""
        output_id, thread = secrets.token_urlsafe(_ID_BYTES), _thread(runtime.config)
        store = self._store_for(runtime)
        if store is not None and await self._stored(store, thread, output_id, text):
            return output_id
        return output_id if self._remember((thread, output_id), text) else None

    async def find(self, output_id: str, runtime: Runtime) -> str | None:
        """Return a text, or `None` if this thread has no text with this id. Raises any error of the store."""
        # The thread comes from the configuration, not from the model: an id of another thread finds nothing.
        thread = _thread(runtime.config)
        with self._lock:
            text = self._memory.get((thread, output_id))
        if text is not None or (store := self._store_for(runtime)) is None:
            return text
        value = await self._door.get(store, (*self._namespace, thread), output_id)
        return None if value is None else _unpacked(value)

    async def _stored(self, store: BaseStore, thread: str, output_id: str, text: str) -> bool:
        """Return whether the store took the text; use at most half of the call's time for it."""
        try:
            # A slow store must not turn a finished result into a timeout.
            with fail_after(min(_PATIENCE, remaining() / 2)):
                await self._door.put(store, (*self._namespace, thread), output_id, _packed(text))
        except Exception as error:
            note("store_failed", error=type(error).__name__)
            return False
        return True

    def _store_for(self, runtime: Runtime) -> BaseStore | None:
        return runtime.store if self._store is None else self._store

    def _remember(self, key: tuple[str, str], text: str) -> bool:
        try:
            with self._lock:
                self._memory[key] = text
        except ValueError:  # larger than the whole memory limit
            return False
        return True


def _thread(config: RunnableConfig) -> str:
    """Return the namespace label of a conversation thread: never empty and without a period, which stores reject."""
    thread_id = config.get("configurable", {}).get("thread_id")
    if thread_id is None:
        return "no thread"
    return f"thread {thread_id}".replace("%", "%25").replace(".", "%2E")


def _packed(text: str) -> dict[str, str]:
    """Return a form that every store takes: PostgreSQL rejects NUL in JSON, and UTF-8 rejects lone surrogates."""
    if _NOT_FOR_STORES.search(text):
        return {"json": json.dumps(text)}
    return {"text": text}


def _unpacked(value: dict[str, Any]) -> str:
    return str(value["text"]) if "text" in value else str(json.loads(value["json"]))
