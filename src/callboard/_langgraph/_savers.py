"""Access to a LangGraph checkpointer from asyncio and trio; callboard uses checkpointers only through this module.

For LangGraph's PostgreSQL savers, the module adds the deletion of single values and the server's clock.
"""

import asyncio
import copy
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import cache, partial
from typing import Any, TypeVar

from anyio import to_thread
from langchain_core.messages import AIMessage
from langgraph.checkpoint.base import ChannelVersions, Checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer, _create_msgpack_ext_hook

from callboard._loops._bridge import run_on_asyncio, stands_still
from callboard._loops._current import current_loop
from callboard._loops._entry_mode import is_sync_entry
from callboard._loops._side_tasks import CutOffError, run_in_shielded_thread, shielded
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
        self._from_sync = is_sync_entry() and getattr(saver, "loop", None) is None

    async def call(self, name: str, sync_call: Callable[[Any], T], async_call: Callable[[Any], Awaitable[T]]) -> T:
        """Call a checkpointer's method by its `sync_call` or `async_call`; return the result."""
        saver = self._saver
        if type(saver) is InMemorySaver:
            return sync_call(saver)
        if self._lacks_async or self._prefers_sync(name):
            try:
                return await to_thread.run_sync(sync_call, saver)
            except NotImplementedError:
                if self._lacks_async:
                    raise
                self._lacks_sync = True
        try:
            return await _await_on_home_loop(saver, async_call)
        except NotImplementedError:
            if self._lacks_sync:
                raise
            self._lacks_async = True
        return await to_thread.run_sync(sync_call, saver)

    async def store(self, name: str, sync_call: Callable[[Any], T], async_call: Callable[[Any], Awaitable[T]]) -> T:
        """Call a method that stores something, like `call`, but shielded from cancellation."""
        # A result of a call that has happened must be stored even if the run is cancelled.
        saver = self._saver
        if type(saver) is InMemorySaver:
            return sync_call(saver)
        if is_known(saver) and (self._lacks_async or self._prefers_sync(name)):
            return await _await_write(saver, run_in_shielded_thread(partial(sync_call, saver)))
        return await store_shielded(saver, partial(self.call, name, sync_call, async_call))

    def _prefers_sync(self, name: str) -> bool:
        kind: Any = type(self._saver)  # mypy takes a `type[Any]` for unhashable
        # Nearer in the MRO than the async method: the class implements the sync one itself.
        return not self._lacks_sync and (self._from_sync or _depth(kind, name) < _depth(kind, f"a{name}"))


async def store_shielded(saver: object, write: Callable[[], Awaitable[T]]) -> T:
    """Run a function that stores something in a checkpointer, shielded from cancellation."""
    return await _await_write(saver, shielded(write))


async def _await_write(saver: object, write: Awaitable[T]) -> T:
    try:
        return await write
    except CutOffError as error:
        raise StorageError(
            f"The checkpointer, of type {type(saver).__name__},",
            "had not stored what it was given when the run had been cancelled and its grace was over. The thread "
            "may not know the last calls of that run: look what they have done before they are done again",
        ) from error


def is_known(saver: object) -> bool:
    """Return whether a saver may be copied: its class is one of LangGraph's or callboard's."""
    return type(saver).__module__.partition(".")[0] in ("langgraph", "callboard")


@cache
def _depth(kind: type, name: str) -> int:
    """Return the position in a class's MRO of the first class that defines a name; 0 if no class does."""
    return next((depth for depth, base in enumerate(kind.__mro__) if name in vars(base)), 0)


async def _await_on_home_loop(saver: Any, async_call: Callable[[Any], Awaitable[T]]) -> T:
    home_loop = getattr(saver, "loop", None)
    if home_loop is None or (current_loop().name == "asyncio" and home_loop is asyncio.get_running_loop()):
        return await run_on_asyncio(partial(async_call, saver))
    if stands_still(home_loop):  # waiting for that loop would be a deadlock
        raise asyncio.InvalidStateError(
            f"{type(saver).__name__} belongs to the event loop that waits for this sync call, and cannot work "
            "meanwhile. Await the agent's async method instead, such as `await agent.ainvoke(...)` or "
            "`await agent.aget_state(...)`"
        )

    async def coroutine() -> T:
        return await async_call(saver)

    return await to_thread.run_sync(lambda: asyncio.run_coroutine_threadsafe(coroutine(), home_loop).result())


# SQLite savers


def create_tables(saver: Any) -> None:
    """Create the tables of a LangGraph `SqliteSaver`, unless the saver has created them; ignore other savers."""
    module = sys.modules.get("langgraph.checkpoint.sqlite")
    if module is not None and type(saver) is module.SqliteSaver and not saver.is_setup:
        # Each copy of a saver without tables would create them again, with each reading.
        with saver.lock:
            saver.setup()


async def acreate_tables(saver: Any) -> None:
    """Create the tables of an `AsyncSqliteSaver`, unless the saver has created them; ignore other savers."""
    module = sys.modules.get("langgraph.checkpoint.sqlite.aio")
    if module is not None and type(saver) is module.AsyncSqliteSaver and not saver.is_setup:
        await saver.setup()


# PostgreSQL savers


# These savers keep each version of a value as long as its thread. If a checkpoint is stored again without its messages,
# the old messages remain. The size of a thread would grow with the square of its turns.
_FORGET = """
DELETE FROM checkpoint_blobs WHERE thread_id = %s AND checkpoint_ns = %s AND channel = %s AND version = %s
"""

_CLOCK = "SELECT extract(epoch FROM clock_timestamp())::float8 AS now"

_CLASSES = (
    ("langgraph.checkpoint.postgres", "PostgresSaver"),
    ("langgraph.checkpoint.postgres.aio", "AsyncPostgresSaver"),
)

Value = tuple[str, str, str, str]
"""Key of a stored value: thread, namespace, channel and version."""


def keeps_values(saver: object) -> bool:
    """Return whether a saver is one of LangGraph's PostgreSQL savers, which do not delete old versions of values."""
    # Looked up in `sys.modules`, not imported: the packages are optional, and an existing saver has loaded its module.
    loaded = [getattr(sys.modules[module], name) for module, name in _CLASSES if module in sys.modules]
    return isinstance(saver, tuple(loaded))


def keys_of_removed_values(
    thread_id: str, namespace: str, checkpoint: Checkpoint, versions: ChannelVersions
) -> list[Value]:
    """Return the database keys of removed values: one for each changed channel without a value in the checkpoint."""
    channels = [name for name in versions if name not in checkpoint["channel_values"]]
    return [(thread_id, namespace, name, str(checkpoint["channel_versions"][name])) for name in channels]


def forget(saver: Any, values: Sequence[Value]) -> None:
    with saver._cursor() as cursor:
        cursor.executemany(_FORGET, values)


async def aforget(saver: Any, values: Sequence[Value]) -> None:
    async with saver._cursor() as cursor:
        await cursor.executemany(_FORGET, values)


def clock(saver: Any) -> float:
    with saver._cursor() as cursor:
        return float(cursor.execute(_CLOCK).fetchone()["now"])


async def aclock(saver: Any) -> float:
    async with saver._cursor() as cursor:
        await cursor.execute(_CLOCK)
        return float((await cursor.fetchone())["now"])


_MESSAGE = AIMessage("")


def with_serde(saver: Any, serde: Any) -> Any:
    """Return a saver that uses the serializer `serde`: the given saver, or a copy of it."""
    if saver.serde is serde:
        return saver
    saver_copy = copy.copy(saver)
    saver_copy.serde = serde
    return saver_copy


def reading_objects(saver: Any) -> Any:
    """Return a checkpointer that parses stored values into objects instead of dicts."""
    # LangGraph's server uses one that returns dicts, because it only displays threads. An agent needs message objects,
    # to tell which calls are open.
    serde = getattr(saver, "serde", None)
    if not isinstance(serde, JsonPlusSerializer) or not serde._custom_unpack_ext_hook:
        return saver
    if isinstance(serde.loads_typed(serde.dumps_typed(_MESSAGE)), AIMessage):
        return saver
    plain = copy.copy(serde)
    allowed: Any = plain._allowed_msgpack_modules
    plain._unpack_ext_hook = _create_msgpack_ext_hook(allowed)
    plain._custom_unpack_ext_hook = False
    return with_serde(saver, plain)
