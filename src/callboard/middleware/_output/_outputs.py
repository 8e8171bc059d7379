"""Where texts go that are too long to show: to a LangGraph store, or into memory."""

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
"""Seconds that a store has to take a text."""

_NOT_FOR_STORES = re.compile("[\\0\ud800-\udfff]")

_ID_BYTES = 12
"""Enough that nobody guesses one, and few enough for a model to write it down without a slip."""


class Outputs:
    """Texts by id. Those of one conversation thread cannot be found from another.

    Args:
        store: goes before the store of the graph.
        namespace: where in the store; the thread's name is added.
        memory: characters kept in this process where no store takes them; the longest unread go first.
    """

    def __init__(self, store: BaseStore | None, namespace: tuple[str, ...], memory: int) -> None:
        from cachetools import LRUCache  # an extra

        self._store = store
        self._namespace = namespace
        self._memory: LRUCache[tuple[str, str], str] = LRUCache(memory, getsizeof=len)
        self._lock = threading.Lock()
        self._door = StoreDoor()

    async def keep(self, text: str, runtime: Runtime) -> str | None:
        """Put a text away and return its id, or `None` if nothing takes it."""
        output_id, thread = secrets.token_urlsafe(_ID_BYTES), _thread(runtime.config)
        store = self._store_for(runtime)
        if store is not None and await self._stored(store, thread, output_id, text):
            return output_id
        return output_id if self._remember((thread, output_id), text) else None

    async def find(self, output_id: str, runtime: Runtime) -> str | None:
        """The text, or `None` if there is none of this id in this thread.

        Raises:
            Exception: whatever the store raises.
        """
        thread = _thread(runtime.config)
        with self._lock:
            text = self._memory.get((thread, output_id))
        if text is not None or (store := self._store_for(runtime)) is None:
            return text
        value = await self._door.get(store, (*self._namespace, thread), output_id)
        return None if value is None else _unpacked(value)

    async def _stored(self, store: BaseStore, thread: str, output_id: str, text: str) -> bool:
        """Whether the store has taken a text, and left the call enough of its time to end well."""
        try:
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
        except ValueError:  # larger than the whole memory
            return False
        return True


def _thread(config: RunnableConfig) -> str:
    """The label of a conversation thread; labels must not be empty, nor contain a period."""
    thread_id = config.get("configurable", {}).get("thread_id")
    if thread_id is None:
        return "no thread"
    return f"thread {thread_id}".replace("%", "%25").replace(".", "%2E")


def _packed(text: str) -> dict[str, str]:
    """A text as a store can take it: PostgreSQL's JSON has no NUL, and UTF-8 no half of a surrogate pair."""
    if _NOT_FOR_STORES.search(text):
        return {"json": json.dumps(text)}
    return {"text": text}


def _unpacked(value: dict[str, Any]) -> str:
    return str(value["text"]) if "text" in value else str(json.loads(value["json"]))
