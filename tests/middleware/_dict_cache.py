"""LangGraph cache in memory, which a test can read, slow down, break and let lie."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from langgraph.cache.base import BaseCache, FullKey


class DictCache(BaseCache[Any]):
    """Cache without a serializer and without expiry; each object stands for a server that processes share."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[FullKey, Any] = {}
        self.lifetimes: dict[FullKey, int | None] = {}
        self.reads = 0
        self.error: Exception | None = None
        """Error that every method raises."""
        self.loses_writes = False
        self.reply: Any = None
        """Reply of `get` in place of the stored values."""
        self.gate = threading.Event()
        """Event for which every method waits."""
        self.gate.set()

    def get(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
        self.reads += 1
        self._work()
        return {key: self.values[key] for key in keys if key in self.values} if self.reply is None else self.reply

    def set(self, pairs: Mapping[FullKey, tuple[Any, int | None]]) -> None:
        self._work()
        if self.loses_writes:
            return
        for key, (value, ttl) in pairs.items():
            self.values[key], self.lifetimes[key] = value, ttl

    def _work(self) -> None:
        self.gate.wait(30)
        if self.error is not None:
            raise self.error

    def results(self) -> dict[FullKey, str]:
        """Return the stored results, without the marks."""
        return {key: text for key, text in self.values.items() if key[1].startswith("result-")}

    async def aget(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
        raise AssertionError("the sync methods are used")

    async def aset(self, pairs: Mapping[FullKey, tuple[Any, int | None]]) -> None:
        raise AssertionError("the sync methods are used")

    def clear(self, namespaces: Any = None) -> None:
        raise AssertionError("never called: other applications may use the cache")

    async def aclear(self, namespaces: Any = None) -> None:
        raise AssertionError("never called: other applications may use the cache")
