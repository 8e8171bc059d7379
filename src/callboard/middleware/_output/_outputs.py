"""Storage of the full texts of shortened results: in a LangGraph store, or in memory."""

import json
import re
import secrets
import threading
from typing import Any

from anyio import fail_after
from langchain_core.runnables import RunnableConfig
from langgraph.store.base import BaseStore

from callboard._calls._call import note
from callboard._loops._deadline import remaining
from callboard.middleware._output._stores import StoreDoor
from callboard.tools._vocabulary import ToolRuntime

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
