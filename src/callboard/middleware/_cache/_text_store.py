"""Access to a LangGraph cache as a store of short texts, within bounds of time and size.

The store is on the other side of a boundary: it may be slow, full or gone, and other programs may have written to it.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from anyio import fail_after
from langgraph.cache.base import BaseCache, FullKey
from langgraph.cache.memory import InMemoryCache
from langgraph.checkpoint.serde.base import SerializerProtocol

from callboard._calls._thread_pool import WorkerThreads
from callboard._loops._current import common_time
from callboard._loops._deadline import remaining
from callboard.exceptions import StorageError

T = TypeVar("T")

_log = logging.getLogger("callboard")

MAX_TEXT_BYTES = 1024 * 1024
"""Maximum size of a text in a store, in bytes. Parsing a larger one could block the event loop: it holds the GIL."""
_MAX_OPERATION_SECONDS = 1.0
"""Maximum seconds for one read or write of a call."""
_OUTAGE_PAUSE = 5.0
"""Seconds after a failure during which calls do not use the store: only the first one of an outage waits for it."""

_MAX_STORE_THREADS = 16

Texts = dict[FullKey, str]


class TextSerializer:
    """Serializer of a LangGraph cache that stores texts as bytes, and reads nothing else.

    LangGraph's own serializer imports and calls whatever the stored bytes name. `inner` gets bytes only, so it makes no
    objects, and one that encrypts still does: what it has not written itself is not passed to it.

    Args:
        inner: the serializer that the cache had.

    Raises:
        ValueError: if `inner` stores pickles.
    """

    def __init__(self, inner: SerializerProtocol) -> None:
        self._inner = inner
        self._kind = inner.dumps_typed(b"")[0]
        if "pickle" in self._kind:
            raise ValueError(
                f"Cache(store=...): reading a pickle runs the code in it, and the cache has the serializer {inner!r}. "
                "Make the cache without serde=..."
            )

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        if not isinstance(obj, str):
            raise TypeError(
                f"this LangGraph cache is the store of a callboard.middleware.Cache and takes texts, got {obj!r}. Give "
                "the graph a cache object of its own"
            )
        return self._inner.dumps_typed(obj.encode())

    def loads_typed(self, data: tuple[str, bytes]) -> str | None:
        """Return the text in stored data; `None` for data that no `TextSerializer` has written."""
        kind, stored = data
        if kind != self._kind or len(stored) > 2 * MAX_TEXT_BYTES:  # encrypted bytes are longer than the text
            return None
        try:
            return bytes(self._inner.loads_typed(data)).decode()
        except Exception:  # damaged, or encrypted with another key
            return None


class TextStore:
    """LangGraph cache as a store of texts; used from any thread and event loop.

    Only the sync methods of the cache are called, in worker threads: they work on every event loop, and of LangGraph's
    caches `RedisCache` blocks in its async methods.
    """

    def __init__(self, cache: BaseCache[Any]) -> None:
        if not isinstance(cache.serde, TextSerializer):
            cache.serde = TextSerializer(cache.serde)
        self._cache: BaseCache[str] = cache
        self._is_in_memory = type(cache) is InMemoryCache
        self._worker_threads = WorkerThreads("the store of a Cache", _MAX_STORE_THREADS)
        self._unavailable_until: float | None = None
        """Time until which calls do not use the store; `None` if its last use succeeded."""
        # Texts that must reach the store, and whether a thread writes them. Guarded by the lock.
        self._unwritten_texts: dict[FullKey, tuple[str, int | None]] = {}
        self._is_writing = False
        self._lock = threading.Lock()

    async def read(self, keys: Sequence[FullKey]) -> Texts | None:
        """Return the stored texts of keys; `None` if the store cannot be used now."""
        texts = await self._try_operation(partial(self._read_texts, keys))
        if texts is None:
            return None
        with self._lock:
            for key in self._unwritten_texts.keys() & set(keys):
                texts[key], _ttl = self._unwritten_texts[key]
            is_behind = bool(self._unwritten_texts)
        if is_behind:
            self._start_writing()
        return texts

    async def write(self, texts: Mapping[FullKey, tuple[str, int | None]]) -> bool:
        """Store texts, each with its time to live in seconds; return whether the store took them."""
        return await self._try_operation(partial(self._write_texts, texts)) is not None

    def write_later(self, key: FullKey, text: str) -> None:
        """Store a text for ever without waiting, from any thread; `read` returns it already.

        If the store cannot be used, a later `read` of any key tries again.
        """
        with self._lock:
            self._unwritten_texts[key] = text, None  # no time to live
        self._start_writing()

    async def _try_operation(self, operation: Callable[[], T]) -> T | None:
        """Return the result of `operation` on the cache; `None` if it fails, takes too long or must not be used."""
        if self._unavailable_until is not None:
            if common_time() < self._unavailable_until:
                return None
            self._unavailable_until = (
                common_time() + _OUTAGE_PAUSE
            )  # one call tries, the others go on without the store
        # At most half of the call's time: a slow store must not turn a finished result into a timeout.
        timeout = min(_MAX_OPERATION_SECONDS, remaining() / 2)
        try:
            with fail_after(timeout):
                result = operation() if self._is_in_memory else await self._worker_threads.run(operation)
        except NotImplementedError as error:
            raise StorageError(
                f"The cache of type {type(self._cache).__name__} in Cache(store=...)",
                "does not implement the sync methods get() and set(), which run in worker threads on every event loop.",
            ) from error
        except Exception as error:
            if not isinstance(error, TimeoutError) or timeout == _MAX_OPERATION_SECONDS:
                if self._unavailable_until is None:
                    _log.warning(
                        "the store of a Cache, of type %s, cannot be used (%s); calls run without it until it can",
                        type(self._cache).__name__,
                        str(error) or type(error).__name__,
                    )
                self._unavailable_until = common_time() + _OUTAGE_PAUSE
            return None
        if self._unavailable_until is not None:
            self._unavailable_until = None
            _log.warning("the store of a Cache, of type %s, works again", type(self._cache).__name__)
        return result

    def _read_texts(self, keys: Sequence[FullKey]) -> Texts:
        values = self._cache.get(keys)
        # A cache of the user may return anything.
        return {key: text for key in keys if type(text := values.get(key)) is str and len(text) <= MAX_TEXT_BYTES}

    def _write_texts(self, texts: Mapping[FullKey, tuple[str, int | None]]) -> bool:
        self._cache.set(texts)
        return True

    def _start_writing(self) -> None:
        if self._is_in_memory:
            self._write_unwritten()
            return
        with self._lock:
            # A single writer: a second one could overwrite a newer text of a key by an older one.
            if self._is_writing:
                return
            self._is_writing = True
        # A daemon: a cache that hangs must not keep the process alive.
        threading.Thread(target=self._write_in_thread, name="callboard cache", daemon=True).start()

    def _write_in_thread(self) -> None:
        try:
            self._write_unwritten()
        except Exception as error:  # the texts stay, and the next `read` tries again
            self._is_writing = False
            _log.warning("the store of a Cache, of type %s, refused a change (%s)", type(self._cache).__name__, error)

    def _write_unwritten(self) -> None:
        """Write the waiting texts until the store has all of them, or loses them."""
        while True:
            with self._lock:
                texts = dict(self._unwritten_texts)
                if not texts:
                    self._is_writing = False
                    return
            self._cache.set(texts)
            # Read again, because LangGraph's `RedisCache` hides an error of the server.
            stored = self._read_texts([*texts])
            with self._lock:
                written_keys = [key for key, (text, _) in texts.items() if stored.get(key) == text]
                for key in written_keys:
                    # Of a cache in memory, each thread writes by itself: another one may have been faster.
                    if self._unwritten_texts.get(key) == texts[key]:
                        del self._unwritten_texts[key]
            if not written_keys and not self._unwritten_texts.keys().isdisjoint(texts):
                raise StorageError("The cache", "does not return what it was given")
