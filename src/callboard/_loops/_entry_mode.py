"""Entry mode of a run: whether sync code or async code has started the run.

Users' code may have a sync and an async version, each with its own client, connection or lock. A run that sync code
started uses the sync version in a worker thread; an awaited run uses the async version. A single version serves both.
"""

from contextvars import ContextVar, Token
from typing import Any, Literal

EntryMode = Literal["sync", "async"]

entry_mode: ContextVar[EntryMode] = ContextVar("callboard_entry_mode", default="async")


class entered_from:  # noqa: N801 (used as a function, in `with`; a generator would cost a call of a node too much)
    """Context manager that records whether sync or async code has started the run in its block (the entry mode)."""

    __slots__ = ("_mode", "_token")

    _token: Token[EntryMode]

    def __init__(self, mode: EntryMode) -> None:
        self._mode: EntryMode = mode

    def __enter__(self) -> None:
        self._token = entry_mode.set(self._mode)

    def __exit__(self, *exc: object) -> None:
        entry_mode.reset(self._token)


def is_sync_entry() -> bool:
    """Return whether the running code belongs to a run that sync code has started."""
    return entry_mode.get() == "sync"


def is_missing(half: Any) -> bool:
    """Return whether a function only raises `NotImplementedError`, in place of a missing sync or async version."""
    # By its code, because nothing else tells: a class with an async version often has a sync one that only raises, such
    # as `_run` of a tool or `wrap_tool_call` of LangChain's middleware. A call to find out would run users' code twice.
    code = getattr(half, "__code__", None)
    # A function that uses any other name than that of the error does more than raise it.
    return code is not None and code.co_names == ("NotImplementedError",)
