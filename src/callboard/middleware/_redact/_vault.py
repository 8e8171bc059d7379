"""Where the values of tokens are kept: in memory, or in a LangGraph store."""

import hashlib
import threading
from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol

from anyio import to_thread
from langgraph.store.base import BaseStore, GetOp, Item, PutOp

from callboard._extras import require
from callboard._loops._bridge import run_on_asyncio
from callboard._loops._door import from_sync

if TYPE_CHECKING:
    from cachetools import LRUCache

LONGEST = 65_536
"""Characters; a longer secret is hidden, and not kept."""


class Vault(Protocol):
    """Keeps what tokens stand for, each conversation by itself. Several tasks may use it at once."""

    async def put(self, thread_id: str, values: Mapping[str, str]) -> None:
        """Keep values by their tokens; one that is known already has the same value."""
        ...

    async def get(self, thread_id: str, tokens: Collection[str]) -> Mapping[str, str]:
        """The values of those tokens that this conversation has."""
        ...


class MemoryVault:
    """A vault in memory, of bounded size; what was not used for the longest time is forgotten first.

    Args:
        threads: the most conversations, at least 1.
        values: the most values of each, at least 1.

    Raises:
        ValueError: for a number out of range.
        ImportError: without the extra `redact` or `middleware`.
    """

    def __init__(self, *, threads: int = 1_000, values: int = 10_000) -> None:
        for name, number in (("threads", threads), ("values", values)):
            if number < 1:
                raise ValueError(f"MemoryVault({name}=...) must be 1 or more, got {number!r}")
        require("MemoryVault(...)", "cachetools", extra="redact", instead="Redact(vault=StoreVault(store))")
        from cachetools import LRUCache

        self._values = values
        self._kept: LRUCache[str, LRUCache[str, str]] = LRUCache(threads)
        self._lock = threading.Lock()

    async def put(self, thread_id: str, values: Mapping[str, str]) -> None:
        """Keep values by their tokens."""
        with self._lock:
            self._of(thread_id).update(values)

    async def get(self, thread_id: str, tokens: Collection[str]) -> Mapping[str, str]:
        """The values of those tokens that are kept."""
        with self._lock:
            kept = self._of(thread_id)
            return {token: kept[token] for token in tokens if token in kept}

    def _of(self, thread_id: str) -> "LRUCache[str, str]":
        from cachetools import LRUCache

        if thread_id not in self._kept:
            self._kept[thread_id] = LRUCache(self._values)
        return self._kept[thread_id]


class StoreVault:
    """A vault in a LangGraph store, so that tokens can be opened after a restart.

    The store holds the values in the clear and is never asked to index them; whoever may read it, knows them.

    Args:
        store: any store; on trio it is used on asyncio, across the bridge.
        namespace: where in the store; each conversation has a place below.
    """

    def __init__(self, store: BaseStore, *, namespace: tuple[str, ...] = ("callboard", "vault")) -> None:
        self._store = store
        self._namespace = namespace

    async def put(self, thread_id: str, values: Mapping[str, str]) -> None:
        """Keep values by their tokens."""
        place = self._place(thread_id)
        await self._batch([PutOp(place, token, {"value": value}, index=False) for token, value in values.items()])

    async def get(self, thread_id: str, tokens: Collection[str]) -> Mapping[str, str]:
        """The values of those tokens that are kept."""
        place = self._place(thread_id)
        items = await self._batch([GetOp(place, token) for token in tokens])
        return {item.key: str(item.value["value"]) for item in items if isinstance(item, Item)}

    def _place(self, thread_id: str) -> tuple[str, ...]:
        # An id may hold what a namespace must not, such as a full stop.
        return (*self._namespace, hashlib.sha256(thread_id.encode("utf-8", "surrogatepass")).hexdigest())

    async def _batch(self, ops: list[PutOp] | list[GetOp]) -> list[object]:
        if not ops:
            return []
        if from_sync():
            return list(await to_thread.run_sync(self._store.batch, ops))
        return list(await run_on_asyncio(partial(self._store.abatch, ops)))
