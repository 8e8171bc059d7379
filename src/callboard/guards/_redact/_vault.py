"""Storage for the values of tokens: in memory, or in a LangGraph store."""

import hashlib
import threading
from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol

from anyio import to_thread
from langgraph.store.base import BaseStore, GetOp, Item, PutOp

from callboard._loops._bridge import run_on_asyncio
from callboard._loops._entry_mode import is_sync_entry
from callboard._util._extras import require

if TYPE_CHECKING:
    from cachetools import LRUCache

LONGEST = 65_536
"""Maximum characters of a stored value; a longer secret is hidden but cannot be restored."""


class Vault(Protocol):
    """Storage for the values of tokens, separate for each conversation. Several tasks may use it at once."""

    async def put(self, thread_id: str, values: Mapping[str, str]) -> None:
        """Store values by token; a known token always has the same value."""
        ...

    async def get(self, thread_id: str, tokens: Collection[str]) -> Mapping[str, str]:
        """Return the values of the given tokens that this conversation has."""
        ...


class MemoryVault:
    """Vault in memory, of bounded size; the least recently used entry is evicted.

    Args:
        threads: maximum number of conversations, at least 1.
        values: maximum number of values per conversation, at least 1.

    Raises:
        ValueError: if a number is out of range.
        ImportError: if neither the extra `redact` nor `middleware` is installed.
    """

    def __init__(self, *, threads: int = 1_000, values: int = 10_000) -> None:
        for name, number in (("threads", threads), ("values", values)):
            if number < 1:
                raise ValueError(f"MemoryVault({name}=...) must be 1 or more, got {number!r}")
        require("MemoryVault(...)", "cachetools", extra="redact", instead="Redact(vault=StoreVault(store))")
        from cachetools import LRUCache

        self._values = values
        self._kept: LRUCache[str, LRUCache[str, str]] = LRUCache(threads)
        # Even reading reorders an LRU cache, and calls of several threads use the vault.
        self._lock = threading.Lock()

    async def put(self, thread_id: str, values: Mapping[str, str]) -> None:
        """Store values by token."""
        with self._lock:
            self._of(thread_id).update(values)

    async def get(self, thread_id: str, tokens: Collection[str]) -> Mapping[str, str]:
        """Return the values of the given tokens that are stored."""
        with self._lock:
            kept = self._of(thread_id)
            return {token: kept[token] for token in tokens if token in kept}

    def _of(self, thread_id: str) -> "LRUCache[str, str]":
        from cachetools import LRUCache

        if thread_id not in self._kept:
            self._kept[thread_id] = LRUCache(self._values)
        return self._kept[thread_id]


class StoreVault:
    """Vault in a LangGraph store, so that tokens can be opened after a restart.

    The store holds the values in plain text, without an index. Everybody who can read the store can read the values.

    Args:
        store: any LangGraph store; under trio it is used through an asyncio bridge.
        namespace: namespace in the store; one more label is added for each conversation.
    """

    def __init__(self, store: BaseStore, *, namespace: tuple[str, ...] = ("callboard", "vault")) -> None:
        self._store = store
        self._namespace = namespace

    async def put(self, thread_id: str, values: Mapping[str, str]) -> None:
        """Store values by token."""
        place = self._place(thread_id)
        await self._batch([PutOp(place, token, {"value": value}, index=False) for token, value in values.items()])

    async def get(self, thread_id: str, tokens: Collection[str]) -> Mapping[str, str]:
        """Return the values of the given tokens that are stored."""
        place = self._place(thread_id)
        items = await self._batch([GetOp(place, token) for token in tokens])
        return {item.key: str(item.value["value"]) for item in items if isinstance(item, Item)}

    def _place(self, thread_id: str) -> tuple[str, ...]:
        # A digest, because a thread id may contain characters that a namespace must not, such as a period.
        return (*self._namespace, hashlib.sha256(thread_id.encode("utf-8", "surrogatepass")).hexdigest())

    async def _batch(self, ops: list[PutOp] | list[GetOp]) -> list[object]:
        if not ops:
            return []
        if is_sync_entry():
            return list(await to_thread.run_sync(self._store.batch, ops))
        return list(await run_on_asyncio(partial(self._store.abatch, ops)))
