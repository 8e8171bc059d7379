"""LangGraph savers and stores from URLs, such as `checkpointer="sqlite:///agent.db"`, and their connections.

A connection is opened on first use. The modules of the databases import this one.
"""

import importlib
import logging
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import wraps
from json import JSONDecodeError
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast

from anyio import to_thread
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import BaseStore, GetOp, ListNamespacesOp, Op, Result, SearchOp
from langgraph.store.memory import InMemoryStore
from langgraph.types import ensure_valid_checkpointer

from callboard._langgraph._savers import clock, keeps_values, with_serde
from callboard._langgraph._serializers import MEND, StrictSerializer, error_text
from callboard._loops._forks import after_fork_in_child
from callboard._util._extras import install_command
from callboard.exceptions import StorageError

T = TypeVar("T")
R = TypeVar("R")

_log = logging.getLogger("callboard")


class Connections(Protocol[T]):
    """Interface of a kind of database: opens and closes LangGraph's saver or store for one database."""

    def open(self) -> T:
        """Connect to the database, create missing tables, and return a saver or a store on the connection."""
        ...

    def close(self, opened: T) -> None:
        """Close the connection of a saver or store that `open` returned."""
        ...

    def join_writes(self, opened: T) -> AbstractContextManager[None]:
        """Commit all writes of the saver in the `with` block in one transaction, if the database can do that."""
        ...

    def is_lost(self, error: Exception) -> bool:
        """Return whether an error means that the connection was lost, so that a new connection may succeed."""
        ...

    def is_gone(self) -> bool:
        """Return whether the database that `open` has opened is no longer at its place, so that nobody can read it."""
        ...

    def explain_errors(self) -> AbstractContextManager[None]:
        """Raise `StorageError` in place of each error that the database driver raises in the `with` block."""
        ...


class _Connection(Generic[T]):
    """Saver or store on an open connection, which is closed when no thread uses it any more.

    SQLite ends the process if a connection is closed while another thread runs a statement on it.

    Args:
        resource: the open saver or store.
        close: function that closes the connection of `resource`.
        lock: lock that guards the fields, and the place where threads find this object.
    """

    def __init__(self, resource: T, close: Callable[[T], None], lock: threading.Lock) -> None:
        self.resource = resource
        self._close = close
        self._lock = lock
        # Threads that use the resource. A thread is added under the lock, and only until the object is retired.
        self.users = 0
        self._is_retired = False

    def give_back(self) -> None:
        """End one thread's use of the resource; the last user of a retired resource closes it."""
        with self._lock:
            self.users -= 1
            is_unused = self._is_retired and not self.users
        # Outside the lock: closing may block, and other threads can open a new connection meanwhile.
        if is_unused:
            self._close(self.resource)

    def retire(self, *, may_wait: bool = True) -> None:
        """Close the resource now, or when its last user gives it back; a second call does nothing."""
        # At the end of the program it does not wait: daemon threads may still run, and may hold the lock for ever.
        if not self._lock.acquire(blocking=may_wait):
            return
        is_unused = not self._is_retired and not self.users
        self._is_retired = True
        self._lock.release()
        if is_unused:
            self._close(self.resource)


class _Lazily(Generic[T]):
    """Wrapper of a saver or store that is opened on first use, and closed at the latest at garbage collection."""

    def __init__(self, database: Connections[T]) -> None:
        self._database = database
        # Guards the fields below. Worker threads share the saver, and none of them holds the lock while it uses it.
        self._lock = threading.Lock()
        self._opened: _Connection[T] | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None
        _LAZY_RESOURCES.add(self)

    def call(self, operation: Callable[[T], R]) -> R:
        """Call a function with the saver or store, which is opened if necessary. Blocks the thread."""
        with self._database.explain_errors():
            connection = self._borrow()
            try:
                return operation(connection.resource)
            except Exception as error:
                if not self._database.is_lost(error):
                    raise
                self._retire(connection)
            finally:
                connection.give_back()
            # A second call on a new connection, so `operation` has to be idempotent.
            connection = self._borrow()
            try:
                return operation(connection.resource)
            finally:
                connection.give_back()

    def _borrow(self) -> _Connection[T]:
        opened = self._opened
        if opened is not None and self._database.is_gone():
            _log.warning("%s was removed or replaced; what is there now is used from now on", self._database)
            self._retire(opened)
        with self._lock:
            if self._opened is None:
                # Under the lock: a second thread must wait for this connection and not open another.
                self._opened = _Connection(self._database.open(), self._database.close, self._lock)
                # The finalizer must not refer to `self`, or the object would never be collected.
                self._finalizer = weakref.finalize(self, self._opened.retire, may_wait=False)
            self._opened.users += 1
            return self._opened

    def close(self) -> None:
        if (opened := self._opened) is not None:
            self._retire(opened)

    def _retire(self, opened: _Connection[T]) -> None:
        with self._lock:
            if opened is self._opened:  # otherwise, another thread has already replaced the lost connection
                self._opened = None
                if self._finalizer is not None:
                    self._finalizer.detach()
        opened.retire()

    def forget_inherited(self) -> None:
        """Leave the connection to the parent process, and open a new one on next use; called in a forked child."""
        # The child shares the socket or the file with its parent: to use it would mix up the statements of both, and to
        # close it would end it for the parent. So it is kept open, unused, for as long as the child lives.
        if self._opened is not None:
            _INHERITED.append(self._opened)
        if self._finalizer is not None:
            self._finalizer.detach()
        self._opened = self._finalizer = None
        self._lock = threading.Lock()  # another thread of the parent may have held it


_LAZY_RESOURCES: weakref.WeakSet[_Lazily[Any]] = weakref.WeakSet()
_INHERITED: list[_Connection[Any]] = []
"""Connections that a forked child has in common with its parent."""


@after_fork_in_child
def _forget_inherited_connections() -> None:
    for lazy in list(_LAZY_RESOURCES):
        lazy.forget_inherited()


class LazySaver(BaseCheckpointSaver[str]):
    """LangGraph saver with sync methods only, on a database that is opened on first use.

    Any number of threads may use it. Every operation is idempotent.
    """

    def __init__(
        self, database: Connections[Any], next_version: Callable[[str | None, None], str], types: Iterable[type] = ()
    ) -> None:
        super().__init__(serde=StrictSerializer(str(database), types))
        self.database = database
        self._next_version = next_version
        self._lazily = _Lazily(database)

    @property
    def where(self) -> str:
        """Description of the database for errors and logs, without its password."""
        return str(self.database)

    def close(self) -> None:
        self._lazily.close()

    def _call(self, operation: Callable[[BaseCheckpointSaver[str]], R]) -> R:
        # With this saver's serializer: `with_allowlist` makes copies with another one.
        return self._lazily.call(lambda saver: operation(with_serde(saver, self.serde)))

    def _read(self, operation: Callable[[BaseCheckpointSaver[str]], R]) -> R:
        """Call a function that reads from the saver, and return its result; report damaged data as `StorageError`."""
        try:
            return self._call(operation)
        except StorageError:
            raise
        except Exception as error:
            reason = f"holds what is no conversation: {error_text(error)}. {MEND}"
            raise StorageError(str(self.database), reason) from error

    def now(self) -> float | None:
        """Return the time of the database server in seconds since 1970; `None` without a server. Blocks the thread."""
        return self._read(lambda saver: clock(saver) if keeps_values(saver) else None)

    def write_in_transaction(self, operation: Callable[[], None]) -> None:
        """Call `operation`, which writes with this saver, in one transaction if the database can do that."""

        def join_writes(saver: Any) -> None:
            with self.database.join_writes(saver):
                operation()

        self._lazily.call(join_writes)

    def get_next_version(self, current: str | None, channel: None) -> str:
        return self._next_version(current, channel)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        _ = config["configurable"]["thread_id"]  # a missing key is the caller's error, not damaged data
        return self._read(lambda saver: saver.get_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        call = self._call if filter else self._read  # with a filter, an error may be the caller's
        return iter(call(lambda saver: [*saver.list(config, filter=filter, before=before, limit=limit)]))


def _delegate(name: str) -> Callable[..., Any]:
    @wraps(getattr(BaseCheckpointSaver, name))
    def method(self: Any, *args: Any, **options: Any) -> Any:
        call = self._read if name.startswith("get") else self._call
        return call(lambda saver: getattr(saver, name)(*args, **options))

    return method


# Type checkers read the signatures in the base class.
for _name in (
    "put",
    "put_writes",
    "delete_thread",
    "delete_for_runs",
    "copy_thread",
    "prune",
    "get_delta_channel_history",
):
    setattr(LazySaver, _name, _delegate(_name))


class LazyStore(BaseStore):
    """LangGraph store on a database that is opened on first use.

    Its async methods run in worker threads, on asyncio and on trio.
    """

    supports_ttl = True

    def __init__(self, database: Connections[Any]) -> None:
        self._database = database
        self._lazily = _Lazily(database)

    def close(self) -> None:
        self._lazily.close()

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        operations = list(ops)
        try:
            return self._lazily.call(lambda store: store.batch(operations))
        except StorageError:
            raise
        except Exception as error:
            # Operations that read without filter or query have no values of the caller that may be the cause.
            only_read = all(
                isinstance(operation, (GetOp, ListNamespacesOp))
                or (isinstance(operation, SearchOp) and not operation.filter and not operation.query)
                for operation in operations
            )
            if not isinstance(error, JSONDecodeError) and not only_read:
                raise
            reason = f"holds what no store has written: {error_text(error)}. {MEND}"
            raise StorageError(str(self._database), reason) from error

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        return await to_thread.run_sync(self.batch, list(ops))


async def close(*resources: object) -> None:
    """Close the savers and stores that were opened for a URL, in a worker thread; leave other objects open."""
    for resource in resources:
        if isinstance(resource, (LazySaver, LazyStore)):
            await to_thread.run_sync(resource.close)


# Databases by URL


ReadTypes = Callable[[], Iterable[type]]
"""Function that returns the types of values that a database may contain."""

FORMS = (
    "sqlite:///relative.db, sqlite:////absolute/path.db, postgresql://user:password@host:port/database, "
    "or memory for nothing that lasts"
)

_FILE = re.compile(r"[^:?@]*([./\\])[^:?@]*")
"""Pattern of a text that looks like a file path: it has a dot or a path separator, and none of `:`, `?` and `@`."""


def saver_of(checkpointer: object, read_types: ReadTypes = lambda: ()) -> "BaseCheckpointSaver[Any] | bool | None":
    """Return the saver for the URL of a database; return any other value of `checkpointer` unchanged."""
    if not isinstance(checkpointer, str):
        _check_option("checkpointer", checkpointer, BaseCheckpointSaver)
        return ensure_valid_checkpointer(cast("Any", checkpointer))
    kind, location = _kind_of(checkpointer)
    if kind == "memory":
        return InMemorySaver(serde=StrictSerializer("The database in memory", read_types()))
    saver: LazySaver = _driver(kind, checkpointer).open_saver(location, read_types())
    return saver


def store_of(store: object) -> BaseStore | None:
    """Return the store for the URL of a database; return a store, or `None`, unchanged."""
    if isinstance(store, str):
        kind, location = _kind_of(store)
        opened: BaseStore = InMemoryStore() if kind == "memory" else _driver(kind, store).open_store(location)
        return opened
    _check_option("store", store, BaseStore)
    if store is not None and not isinstance(store, BaseStore):
        raise TypeError(f"A store is one of LangGraph's or a URL ({FORMS}), got {type(store).__name__}")
    return store


def _driver(kind: str, url: str) -> Any:
    """Return callboard's module for a kind of database, such as "sqlite"; raise ImportError without its driver."""
    try:
        return importlib.import_module(f"callboard.conversations._{kind}")
    except ModuleNotFoundError as error:
        extra = "postgres" if kind == "postgresql" else kind
        raise ImportError(
            f"{masked(url)!r} needs {error.name}, which is not installed: {install_command('callboard', extra)}"
        ) from error


def _check_option(option: str, value: object, kind: type) -> None:
    if isinstance(value, type) and issubclass(value, kind):
        reason = f"takes an object, and {value.__name__} is a class: write {value.__name__}(...)"
    elif isinstance(value, Path):
        reason = f"takes a URL; for this file write {f'sqlite:///{value}'!r}"
    elif isinstance(value, (AbstractContextManager, AbstractAsyncContextManager)) and not isinstance(
        value, (BaseCheckpointSaver, BaseStore)
    ):
        reason = f"takes what `with` or `async with` gives: `async with ... as {option}:`, and {option}={option} inside"
    elif isinstance(value, (BaseCheckpointSaver, BaseStore)) and not isinstance(value, kind):
        right_option = "store" if option == "checkpointer" else "checkpointer"
        reason = f"does not take a {right_option}: write {right_option}=..."
    else:
        return
    subject = (
        "Invalid checkpointer" if option == "checkpointer" else f"A store is one of LangGraph's or a URL ({FORMS})"
    )
    raise TypeError(f"{subject}: {option}=... {reason}; got {value!r}")


def _kind_of(url: str) -> tuple[str, str]:
    """Return the kind of database that a URL names, and its location: a path, a URL, or "" for "memory"."""
    scheme, separator, location = url.partition("://")
    scheme = scheme.lower()
    if url.lower() in ("memory", "memory://", "sqlite://", "sqlite:///:memory:"):
        return "memory", ""
    if scheme == "sqlite" and separator:
        return "sqlite", _sqlite_path(url, location)
    if scheme in ("postgresql", "postgres") and separator:
        return "postgresql", url
    path = url.removeprefix("sqlite:")
    hint = f"; for a file write {f'sqlite:///{path}'!r}" if _FILE.fullmatch(path) else ""
    raise ValueError(f"There is no database {masked(url)!r}; known are {FORMS}{hint}")


def _sqlite_path(url: str, location: str) -> str:
    """Return the absolute path of a SQLite file; raise ValueError for a URL without a file name."""
    if not location.startswith("/"):
        raise ValueError(
            f"{masked(url)!r} has a host, and SQLite has none; for a file write 'sqlite:///{masked(location)}'"
        )
    if not (name := location[1:]):
        raise ValueError(f"{masked(url)!r} names no file; 'sqlite:///agent.db' does, and 'memory' needs none")
    if "?" in name:
        raise ValueError(
            f"{masked(url)!r} has options, of which none is known; write 'sqlite:///{masked(name.partition('?')[0])}'"
        )
    # Now, not on first use: the process may change its directory in between.
    return str(Path(name).absolute())


def masked(url: str) -> str:
    """Return a URL with its password replaced by `***`.

    Args:
        url: a URL, or a text that is no valid URL.
    """
    url_without_password = re.sub(r"^([a-zA-Z][\w+.-]*:/{0,3}[^:/@]*|[^:/@]*):.*@", r"\1:***@", url, flags=re.DOTALL)
    return re.sub(r"(?i)(password\s*=\s*)('[^']*'|[^&\s]*)", r"\1***", url_without_password)
