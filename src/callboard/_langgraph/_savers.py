"""Access to a LangGraph checkpointer from asyncio and trio; callboard uses checkpointers only through this module.

For LangGraph's PostgreSQL savers, the module adds the deletion of single values and the server's clock.
"""

import asyncio
import copy
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from functools import cache, partial
from types import FunctionType
from typing import Any, Self, TypeVar

from anyio import to_thread
from langchain_core.messages import AIMessage
from langgraph.checkpoint.base import ChannelVersions, Checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer, _create_msgpack_ext_hook

from callboard._loops._bridge import run_on_asyncio, stands_still
from callboard._loops._current import current_loop
from callboard._loops._entry_mode import is_sync_entry
from callboard._loops._side_tasks import CutOffError, shielded, shielded_thread
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

    async def call(self, name: str, work: Callable[[Any], T], awork: Callable[[Any], Awaitable[T]]) -> T:
        """Call a checkpointer's method by its sync version (`work`) or async version (`awork`); return the result."""
        saver = self._saver
        if type(saver) is InMemorySaver:
            return work(saver)
        if self._lacks_async or self._prefers_sync(name):
            try:
                return await to_thread.run_sync(work, saver)
            except NotImplementedError:
                if self._lacks_async:
                    raise
                self._lacks_sync = True
        try:
            return await _awaited(saver, awork)
        except NotImplementedError:
            if self._lacks_sync:
                raise
            self._lacks_async = True
        return await to_thread.run_sync(work, saver)

    async def store(self, name: str, work: Callable[[Any], T], awork: Callable[[Any], Awaitable[T]]) -> T:
        """Call a method that stores something, like `call`, but shielded from cancellation."""
        # A result of a call that has happened must be stored even if the run is cancelled.
        saver = self._saver
        if type(saver) is InMemorySaver:
            return work(saver)
        if is_known(saver) and (self._lacks_async or self._prefers_sync(name)):
            return await _whole(saver, shielded_thread(partial(work, saver)))
        return await stored(saver, partial(self.call, name, work, awork))

    def _prefers_sync(self, name: str) -> bool:
        kind: Any = type(self._saver)  # mypy takes a `type[Any]` for unhashable
        # Nearer in the MRO than the async method: the class implements the sync one itself.
        return not self._lacks_sync and (self._from_sync or _depth(kind, name) < _depth(kind, f"a{name}"))


async def stored(saver: object, work: Callable[[], Awaitable[T]]) -> T:
    """Run a function that stores something in a checkpointer, shielded from cancellation."""
    return await _whole(saver, shielded(work))


async def _whole(saver: object, work: Awaitable[T]) -> T:
    try:
        return await work
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


async def _awaited(saver: Any, awork: Callable[[Any], Awaitable[T]]) -> T:
    home = getattr(saver, "loop", None)
    if home is None or (current_loop().name == "asyncio" and home is asyncio.get_running_loop()):
        return await run_on_asyncio(partial(awork, saver))
    if stands_still(home):  # waiting for that loop would be a deadlock
        raise asyncio.InvalidStateError(
            f"{type(saver).__name__} belongs to the event loop that waits for this sync call, and cannot work "
            "meanwhile. Await the agent's async method instead, such as `await agent.ainvoke(...)` or "
            "`await agent.aget_state(...)`"
        )
    return await to_thread.run_sync(_on_loop, home, awork, saver)


def _on_loop(home: asyncio.AbstractEventLoop, awork: Callable[[Any], Awaitable[T]], saver: Any) -> T:
    """Await a method of a saver on the event loop to which the saver belongs; called in a worker thread."""

    async def coroutine() -> T:
        return await awork(saver)

    return asyncio.run_coroutine_threadsafe(coroutine(), home).result()


# SQLite savers


def create_tables(saver: Any) -> None:
    """Create the tables of a LangGraph `SqliteSaver`, unless the saver has created them; ignore other savers."""
    module = sys.modules.get("langgraph.checkpoint.sqlite")
    if module is not None and type(saver) is module.SqliteSaver and not saver.is_setup:
        # Each copy of a saver without tables would create them again, with each change.
        with saver.lock:
            saver.setup()


async def acreate_tables(saver: Any) -> None:
    """Create the tables of an `AsyncSqliteSaver`, unless the saver has created them; ignore other savers."""
    module = sys.modules.get("langgraph.checkpoint.sqlite.aio")
    if module is not None and type(saver) is module.AsyncSqliteSaver and not saver.is_setup:
        await saver.setup()


class _OneJob:
    """SQLite connection that makes a whole change, with the commit, in one job of its thread; for `AsyncSqliteSaver`.

    With its own connection, the saver waits for four jobs of this thread. It still packs the values and holds its lock,
    and like it, this connection rolls nothing back: a transaction that the user has begun there ends with the commit.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._statements: list[tuple[str, Sequence[Any]]] = []
        """SQL statements of the change in progress, each with the parameters of all its executions."""

    def cursor(self) -> Self:
        self._statements = []  # a change that was cancelled may have left some
        return self

    def execute(self, sql: str, parameters: Any) -> Self:
        self._statements = [(sql, [parameters])]
        return self

    async def executemany(self, sql: str, parameters: Sequence[Any]) -> None:
        self._statements.append((sql, parameters))

    async def commit(self) -> None:
        statements, self._statements = self._statements, []
        await self._connection._execute(_committed, self._connection._connection, statements)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...


def _committed(connection: Any, statements: Sequence[tuple[str, Sequence[Any]]]) -> None:
    with closing(connection.cursor()) as cursor:
        for sql, parameters in statements:
            cursor.executemany(sql, parameters)
        connection.commit()


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


def gone_values(thread_id: str, namespace: str, checkpoint: Checkpoint, versions: ChannelVersions) -> list[Value]:
    """Return the database keys of removed values: one for each changed channel without a value in the checkpoint."""
    gone = [name for name in versions if name not in checkpoint["channel_values"]]
    return [(thread_id, namespace, name, str(checkpoint["channel_versions"][name])) for name in gone]


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
    copied = copy.copy(saver)
    copied.serde = serde
    return copied


def for_storing(saver: Any, serde: Any) -> Any:
    """Return a saver with the serializer `serde`, only for calls of `put`, `put_writes`, `aput` and `aput_writes`."""
    copied = with_serde(saver, serde)
    if _has_plain_connection(saver):
        copied = copy.copy(saver) if copied is saver else copied
        copied.conn = _OneJob(saver.conn)
    return copied


def _has_plain_connection(saver: Any) -> bool:
    """Return whether a saver is LangGraph's `AsyncSqliteSaver`, with a connection of aiosqlite's own class."""
    module = sys.modules.get("langgraph.checkpoint.sqlite.aio")
    if module is None or type(saver) is not module.AsyncSqliteSaver:
        return False
    connection = saver.conn
    # A subclass may do more in its methods, and so may what an instrumentation or a test puts in place of them.
    if type(connection) is not module.aiosqlite.Connection or not _LEFT_OUT.isdisjoint(vars(connection)):
        return False
    if type(vars(connection).get("_connection")) is not sys.modules["sqlite3"].Connection:
        return False
    methods = _methods_for_storing(module)
    # Other releases of the saver may use more of the connection than `_OneJob` has.
    names = set(_STORING.split())
    return all(map(_is_theirs, methods)) and all(names.issuperset(one.__code__.co_names) for one in methods[:2])


def _methods_for_storing(module: Any) -> list[Any]:
    """Return the methods with which `AsyncSqliteSaver` stores something: `aput`, `aput_writes`, and all they call."""
    return [
        *map(vars(module.AsyncSqliteSaver).get, ("aput", "aput_writes", "setup")),
        *map(vars(module.aiosqlite.Connection).get, _LEFT_OUT),
        *map(vars(module.aiosqlite.Cursor).get, ("executemany", "_execute")),
    ]


def _is_theirs(method: Any) -> bool:
    """Return whether a method, with what it wraps, is a function that LangGraph or aiosqlite defines."""
    # The type first: a mock or another callable has no code. The globals, because `wraps` copies a function's names.
    if type(method) is not FunctionType:
        return False
    if method.__globals__.get("__name__", "").partition(".")[0] not in ("langgraph", "aiosqlite"):
        return False
    wrapped = vars(method).get("__wrapped__")
    return wrapped is None or _is_theirs(wrapped)


def parts_of(saver: Any) -> list[Any]:
    """Return all on which the result of `for_storing` depends, for a comparison by identity."""
    parts = [*vars(saver), *vars(saver).values()]
    module = sys.modules.get("langgraph.checkpoint.sqlite.aio")
    if module is None or type(saver) is not module.AsyncSqliteSaver:
        return parts
    if type(saver.conn) is module.aiosqlite.Connection:
        parts += [*vars(saver.conn), *vars(saver.conn).values(), *_methods_for_storing(module)]
    return parts


_LEFT_OUT = frozenset(("commit", "cursor", "execute", "_execute"))
"""Methods of a connection that `AsyncSqliteSaver` uses to store something, and that `_OneJob` calls less or not."""

_STORING = """
    WRITES_IDX_MAP all commit conn cursor dumps dumps_typed encode enumerate execute executemany get
    get_checkpoint_metadata json lock serde setup str
"""
"""Names in the methods of `AsyncSqliteSaver` that store something, in the releases that were read, on all Pythons."""


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
