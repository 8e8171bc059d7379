"""Ends of incarnations: kinds, time limits, and the final snapshot."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from callboard.exceptions import ActorStartError, EngineError

How = Literal["stopped", "replaced", "crashed", "not_started", "never_starts"]
"""`stopped`: on request. `replaced`: after `max_age` or `max_calls`. `never_starts`: trying again would not help."""

_NEVER = (FileNotFoundError, NotADirectoryError, PermissionError, ImportError)
"""Errors of `start` that another attempt would raise again: a missing program, module or permission."""


@dataclass(frozen=True, slots=True)
class End:
    """End of one incarnation."""

    how: How
    error: BaseException | None = None
    culprit: str | None = None
    """Identity of the call that crashed it, if known."""
    is_refused: bool = False
    """Flag: this call is refused from now on, so it cannot crash the actor again."""
    snapshot: object = None
    """Final state, if it ended in order and keeps snapshots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifespan:
    """Time limits of an incarnation, in seconds, and the number of calls after which it is replaced."""

    start: float = 30.0
    stop: float = 10.0
    max_age: float | None = None
    """Age in seconds at which an idle actor is replaced."""
    max_calls: int | None = None

    def cut_short(self, killed: str | None) -> str:
        """Return why an actor was cancelled before it had stopped: because it was killed, or took too long."""
        if killed is None:
            return f"did not stop within {self.stop:g} s, and was cancelled"
        return f"was cancelled before it had stopped: {killed}"


OnStart = Callable[[BaseException | None], None]
"""Callback with the result of a start: `None`, an `ActorStartError`, or a `KeyboardInterrupt` and the like."""


Taken = Callable[[], Awaitable[object]]
"""Function that takes the snapshot of an actor."""

Keep = Callable[[Taken, str | None], Awaitable[Exception | None]]
"""Function that saves the state after a call with an optional id.

Returns an error if the call must fail because its state was not saved.
"""

_log = logging.getLogger("callboard")


def traced() -> bool:
    """Return whether tracebacks, which show the texts of errors, are logged: at the level DEBUG only."""
    return _log.isEnabledFor(logging.DEBUG)


async def snapshot_or_none(name: str, taken: Taken) -> object:
    """Return the snapshot of an actor, or `None` if it fails. A failure is logged, and calls keep their results."""
    try:
        return await taken()
    except Exception as error:
        kind = type(error).__qualname__
        _log.error("the state of the actor %r could not be had for its snapshot: %s", name, kind, exc_info=traced())
        return None


async def restored(name: str, restore: Callable[[], Awaitable[object]]) -> None:
    """Restore an actor from its snapshot.

    Raises:
        ActorStartError: if `restore` fails.
    """
    try:
        await restore()
    except Exception as error:
        what = f"`restore` failed with the snapshot that is kept: {error!r}; have it take what earlier versions saved"
        raise ActorStartError(name, what) from error


def start_failed(name: str, error: BaseException) -> ActorStartError:
    """Return the error for an actor that failed to start."""
    failed = ActorStartError(name, repr(error), never=isinstance(error, _NEVER))
    failed.__cause__ = error
    return failed


def death_of(name: str, error: BaseException) -> str:
    """Return the reason of a crash, for errors."""
    if not isinstance(error, EngineError):
        return f"{name} died of {error!r}"
    # A worker reports the crash with the actor's name already.
    return error.reason if error.reason.startswith(f"{name} died") else f"{name} died: {error.reason}"


def bare(error: BaseException) -> BaseException:
    """Return an error without the exception groups of one member around it."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
