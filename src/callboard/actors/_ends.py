"""How an actor's life ends, how long its ends may take, and what is kept of it."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from callboard.exceptions import ActorStartError, EngineError

How = Literal["stopped", "replaced", "crashed", "not_started", "never_starts"]
"""`stopped`: somebody asked it to. `replaced`: it has lived for as long as it may. `never_starts`: something that it
needs is not there, and will not be."""

_NEVER = (FileNotFoundError, NotADirectoryError, PermissionError, ImportError)
"""What says that something is not there which `start` needs: a program, a module. It will not be there next time."""


@dataclass(frozen=True, slots=True)
class End:
    """How a life of an actor ended, and what is known of the call that ended it."""

    how: How
    error: BaseException | None = None
    culprit: str | None = None
    """The call that ended it, if that can be told from others."""
    is_refused: bool = False
    """Whether that call cannot end it again."""
    snapshot: object = None
    """Its state, if it ended in order and keeps it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifespan:
    """How long the ends of a life may take, in seconds, and after what an idle actor is replaced."""

    start: float = 30.0
    stop: float = 10.0
    max_age: float | None = None
    """Seconds."""
    max_calls: int | None = None

    def cut_short(self, killed: str | None) -> str:
        """Return why an actor was cancelled before it had stopped: because it was killed, or took too long."""
        if killed is None:
            return f"did not stop within {self.stop:g} s, and was cancelled"
        return f"was cancelled before it had stopped: {killed}"


OnStart = Callable[[BaseException | None], None]
"""Told once that a life has begun to serve, or why it never will: an `ActorStartError`, or Ctrl-C and the like."""


Taken = Callable[[], Awaitable[object]]
"""Takes the snapshot of an actor."""

Keep = Callable[[Taken, str | None], Awaitable[Exception | None]]
"""Keeps the state of an actor after a call, which may have an id; returns why the call does not count, if it could not
and has to."""

_log = logging.getLogger("callboard")


def traced() -> bool:
    """Return whether tracebacks, which show the texts of errors, are logged: at the level DEBUG only."""
    return _log.isEnabledFor(logging.DEBUG)


async def snapshot_or_none(name: str, taken: Taken) -> object:
    """The snapshot of an actor; that it could not be had is said, and costs nobody a result."""
    try:
        return await taken()
    except Exception as error:
        kind = type(error).__qualname__
        _log.error("the state of the actor %r could not be had for its snapshot: %s", name, kind, exc_info=traced())
        return None


async def restored(name: str, restore: Callable[[], Awaitable[object]]) -> None:
    """Have an actor go on from its snapshot.

    Raises:
        ActorStartError: if it does not take it.
    """
    try:
        await restore()
    except Exception as error:
        what = f"`restore` failed with the snapshot that is kept: {error!r}; have it take what earlier versions saved"
        raise ActorStartError(name, what) from error


def start_failed(name: str, error: BaseException) -> ActorStartError:
    """What is told of an actor that did not start."""
    failed = ActorStartError(name, repr(error), never=isinstance(error, _NEVER))
    failed.__cause__ = error
    return failed


def death_of(name: str, error: BaseException) -> str:
    """What an actor died of, in words."""
    if not isinstance(error, EngineError):
        return f"{name} died of {error!r}"
    # What it died of in a worker is told from there, with its name.
    return error.reason if error.reason.startswith(f"{name} died") else f"{name} died: {error.reason}"


def bare(error: BaseException) -> BaseException:
    """An error without the groups of one that task groups put around it."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
