"""Savers and stores from URLs, such as `checkpointer="sqlite:///agent.db"`."""

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import ensure_valid_checkpointer

from callboard._langgraph._serializers import StrictSerializer

T = TypeVar("T")

Types = Callable[[], Iterable[type]]
"""Function that collects the types that a database may contain."""

FORMS = (
    "sqlite:///relative.db, sqlite:////absolute/path.db, postgresql://user:password@host:port/database, "
    "or memory for nothing that lasts"
)


_FILE = re.compile(r"[^:?@]*([./\\])[^:?@]*")
"""Matches text that looks like a file path: it has a suffix or a folder, and no part of a URL."""


def saver_of(checkpointer: object, types: Types = tuple) -> "BaseCheckpointSaver[Any] | bool | None":
    """Return the saver for a URL; return any other value unchanged.

    Touches neither disk nor network: the database is opened on first use, in a worker thread. It is closed with the
    saver, at the latest when the saver is garbage-collected.

    Other values are those that LangGraph accepts: a saver, None, True or False. `types` is asked only for a URL; its
    types may be stored besides those of LangGraph and of LangChain's messages. Raises ImportError that names the extra
    to install, TypeError or ValueError.
    """
    if not isinstance(checkpointer, str):
        _check_made("checkpointer", checkpointer, BaseCheckpointSaver)
        return ensure_valid_checkpointer(cast("Any", checkpointer))
    kinds = {"memory": _memory_saver, "sqlite": _sqlite_saver, "postgresql": _postgres_saver}
    return _made(checkpointer, {kind: partial(make, types=types) for kind, make in kinds.items()})


def store_of(store: object) -> BaseStore | None:
    """Return the store for a URL; return any other value unchanged. Raises as `saver_of` does."""
    if isinstance(store, str):
        return _made(store, {"memory": _memory_store, "sqlite": _sqlite_store, "postgresql": _postgres_store})
    _check_made("store", store, BaseStore)
    if store is not None and not isinstance(store, BaseStore):
        raise TypeError(f"A store is one of LangGraph's or a URL ({FORMS}), got {type(store).__name__}")
    return store


def _check_made(option: str, given: object, kind: type) -> None:
    """Raise TypeError for a class, a path or a context manager in place of a saver or store."""
    if isinstance(given, type) and issubclass(given, kind):
        told = f"takes an object, and {given.__name__} is a class: write {given.__name__}(...)"
    elif isinstance(given, Path):
        told = f"takes a URL; for this file write {_url_of_file(str(given))!r}"
    elif isinstance(given, (AbstractContextManager, AbstractAsyncContextManager)) and not isinstance(
        given, (BaseCheckpointSaver, BaseStore)
    ):
        told = f"takes what `with` or `async with` gives: `async with ... as {option}:`, and {option}={option} inside"
    elif isinstance(given, (BaseCheckpointSaver, BaseStore)) and not isinstance(given, kind):
        other = "store" if option == "checkpointer" else "checkpointer"
        told = f"does not take a {other}: write {other}=..."
    else:
        return
    known = "Invalid checkpointer" if option == "checkpointer" else f"A store is one of LangGraph's or a URL ({FORMS})"
    raise TypeError(f"{known}: {option}=... {told}; got {given!r}")


def _url_of_file(path: str) -> str:
    return f"sqlite:///{path}"


def _made(url: str, makers: Mapping[str, Callable[[str], T]]) -> T:
    kind, rest = _kind_of(url)
    try:
        return makers[kind](rest)
    except ModuleNotFoundError as error:
        extra = "postgres" if kind == "postgresql" else kind
        raise ImportError(
            f"{masked(url)!r} needs {error.name}, which is not installed: pip install 'callboard[{extra}]'"
        ) from error


def _kind_of(url: str) -> tuple[str, str]:
    """Return the kind of database of a URL, and its path or URL."""
    scheme, separator, rest = url.partition("://")
    scheme = scheme.lower()
    if url.lower() in ("memory", "memory://", "sqlite://", "sqlite:///:memory:"):
        return "memory", ""
    if scheme == "sqlite" and separator:
        return "sqlite", _sqlite_path(url, rest)
    if scheme in ("postgresql", "postgres") and separator:
        return "postgresql", url
    path = url.removeprefix("sqlite:")
    hint = f"; for a file write {_url_of_file(path)!r}" if _FILE.fullmatch(path) else ""
    raise ValueError(f"There is no database {masked(url)!r}; known are {FORMS}{hint}")


def _sqlite_path(url: str, rest: str) -> str:
    """Return the absolute path of a SQLite file, relative to the current directory."""
    if not rest.startswith("/"):
        raise ValueError(
            f"{masked(url)!r} has a host, and SQLite has none; for a file write 'sqlite:///{masked(rest)}'"
        )
    if not (name := rest[1:]):
        raise ValueError(f"{masked(url)!r} names no file; 'sqlite:///agent.db' does, and 'memory' needs none")
    if "?" in name:
        raise ValueError(
            f"{masked(url)!r} has options, of which none is known; write 'sqlite:///{masked(name.partition('?')[0])}'"
        )
    # Now, not on first use: the process may change its directory in between.
    return str(Path(name).absolute())


def masked(url: str) -> str:
    """Return a URL, or text that was meant to be one, without its password."""
    without = re.sub(r"^([a-zA-Z][\w+.-]*:/{0,3}[^:/@]*|[^:/@]*):.*@", r"\1:***@", url, flags=re.DOTALL)
    return re.sub(r"(?i)(password\s*=\s*)('[^']*'|[^&\s]*)", r"\1***", without)


def _memory_saver(_: str, types: Types) -> "BaseCheckpointSaver[Any]":
    return InMemorySaver(serde=StrictSerializer("The database in memory", types()))


def _memory_store(_: str) -> BaseStore:
    return InMemoryStore()


# Imported on demand: these modules need database drivers, which are optional.


def _sqlite_saver(path: str, types: Types) -> "BaseCheckpointSaver[Any]":
    from callboard.conversations._sqlite import sqlite_saver

    return sqlite_saver(path, types())


def _sqlite_store(path: str) -> BaseStore:
    from callboard.conversations._sqlite import sqlite_store

    return sqlite_store(path)


def _postgres_saver(url: str, types: Types) -> "BaseCheckpointSaver[Any]":
    from callboard.conversations._postgresql import postgres_saver

    return postgres_saver(url, types())


def _postgres_store(url: str) -> BaseStore:
    from callboard.conversations._postgresql import postgres_store

    return postgres_store(url)
