"""Runners, which call the methods of an actor in this process for one incarnation; `End`, the result of an incarnation.

A local runner runs async code in the actor's task, and sync code in one thread of its own. A leased runner
also checks before each handler that this process owns the actor's key.
"""

import inspect
import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol, cast

from callboard._calls._call_keys import set_fencing_token
from callboard._calls._observers import log_failure
from callboard._loops._current import current_loop
from callboard._loops._deadline import DEFAULT_GRACE, cap_grace
from callboard._loops._threads import OwnThread, run_in_thread
from callboard._records._fleets import KeyMovedError, Ownership
from callboard.actors._actor import Actor, Reply, Resources
from callboard.actors._mailbox import Message
from callboard.exceptions import ActorStartError, EngineError

# Starts and ends of incarnations


EndKind = Literal["stopped", "replaced", "crashed", "not_started", "never_starts"]
"""Way in which an incarnation ended.

`stopped`: on request. `replaced`: after `max_age` or `max_calls`. `never_starts`: trying again would not help.
"""

_FINAL_ERRORS = (FileNotFoundError, NotADirectoryError, PermissionError, ImportError)
"""Errors of `start` that another attempt would raise again: a missing program, module or permission."""


@dataclass(frozen=True, slots=True)
class End:
    """Result of one incarnation: how it ended, with its error and its final state."""

    kind: EndKind
    error: BaseException | None = None
    culprit: str | None = None
    """Identity of the call that crashed the actor, if known."""
    is_refused: bool = False
    """True if the `culprit` call is refused from now on, so that it cannot crash the actor again."""
    snapshot: object = None
    """Final state of the actor, if it ended in order and keeps snapshots."""


TakeSnapshot = Callable[[], Awaitable[object]]
"""Function that takes the snapshot of an actor."""

Keep = Callable[[TakeSnapshot, str | None], Awaitable[Exception | None]]
"""Function that saves the state of an actor after a call; it takes a snapshot function and the id of the call.

Returns an error if the call must fail because its state was not saved.
"""


async def snapshot_or_none(name: str, take_snapshot: TakeSnapshot) -> object:
    """Return the snapshot of an actor; if that fails, log the error and return `None`, so that no call fails."""
    try:
        return await take_snapshot()
    except Exception as error:
        log_failure(
            logging.ERROR, f"the state of the actor {name!r} could not be had for its snapshot", error, shows_text=True
        )
        return None


async def restore_actor(name: str, restore: Callable[[], Awaitable[object]]) -> None:
    """Restore an actor from its snapshot; raise `ActorStartError` if that fails."""
    try:
        await restore()
    except Exception as error:
        reason = f"`restore` failed with the snapshot that is kept: {error!r}; have it take what earlier versions saved"
        raise ActorStartError(name, reason) from error


def start_error(name: str, error: BaseException) -> ActorStartError:
    """Return the `ActorStartError` for an error that an actor's start has raised."""
    failed = ActorStartError(name, repr(error), is_permanent=isinstance(error, _FINAL_ERRORS))
    failed.__cause__ = error
    return failed


def death_of(name: str, error: BaseException) -> str:
    """Return a text that says by which error an actor died, for the errors of its callers."""
    if not isinstance(error, EngineError):
        return f"{name} died of {error!r}"
    # A worker reports the crash with the actor's name already.
    return error.reason if error.reason.startswith(f"{name} died") else f"{name} died: {error.reason}"


def unwrap_group(error: BaseException) -> BaseException:
    """Return the single error inside of an exception group, even of nested groups; return any other error unchanged."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


_DOES_NOTHING = (Actor.start, Actor.stop)


OnLost = Callable[[Exception], None]
"""Callback with the reason why an actor can no longer be used."""


# Runners


class SeatLostError(EngineError):
    """Raised if a handler cannot finish because the worker of its actor, or the actor in the worker, has ended."""

    @property
    def never_began(self) -> bool:
        """True if the handler did not begin, so that the next incarnation can run it."""
        return self.ended == "unavailable"


class ActorRunner(Protocol):
    """Runner of one incarnation's code. A handler may raise `SeatLostError`, which means that the actor is lost."""

    async def start(self, resources: Resources, snapshot: object) -> None:
        """Start the actor, from a snapshot if it is not `None`; add the resources that are opened to `resources`."""
        ...

    def handle(self, message: Message) -> Awaitable[object]:
        """Return an awaitable that runs the handler of a message."""
        ...

    async def snapshot(self) -> object:
        """Return a new snapshot of the actor."""
        ...

    async def stop(self) -> None:
        """Run the actor's `stop`, after its last handler."""
        ...

    def close(self) -> None:
        """Release the thread or the worker in which the actor's code ran."""
        ...


class LocalRunner:
    """Runner of one incarnation's code in this process."""

    __slots__ = ("_actor", "_is_lost", "_name", "_on_lost", "_thread")

    def __init__(self, actor: Actor, name: str, on_lost: OnLost) -> None:
        self._actor = actor
        self._name = name
        self._on_lost = on_lost
        self._thread: OwnThread | None = None
        # Lost: the thread is busy with a cancelled job, and may be for ever; no job is sent to it but a last `stop`.
        self._is_lost = False

    async def start(self, resources: Resources, snapshot: object) -> None:
        actor = self._actor
        # `object.__setattr__`, because a subclass may restrict the setting of attributes.
        object.__setattr__(actor, "_resources", resources)
        object.__setattr__(actor, "_in_thread", self.in_thread)
        await self._run(actor.start)
        if snapshot is not None:
            await restore_actor(self._name, partial(self._run, partial(actor.restore, snapshot)))
        # Closes `Actor.enter`: later context managers could not be left in the right order.
        object.__setattr__(actor, "_resources", None)

    def handle(self, message: Message) -> Awaitable[object]:
        handler, args, kwargs = message.handler, message.args, message.kwargs
        if handler.is_sync:
            fn = partial(handler.fn, self._actor, *args, **kwargs)
            return self.in_thread(fn, handler.title, message.grace)
        if handler.deferred:
            args = (Reply(message), *args)
        return cast("Awaitable[object]", handler.fn(self._actor, *args, **kwargs))

    async def snapshot(self) -> object:
        return await self._run(self._actor.snapshot)

    async def _run(self, fn: Callable[[], object]) -> object:
        """Run a method of the actor: an async method in this task, a sync method in the actor's thread."""
        # The default `start` and `stop` do nothing and must not start a thread.
        inner = fn.func if isinstance(fn, partial) else fn
        if inspect.iscoroutinefunction(inner) or getattr(inner, "__func__", None) in _DOES_NOTHING:
            result = fn()
        else:
            result = await self.in_thread(fn, inner.__qualname__)
        return await result if inspect.isawaitable(result) else result

    async def in_thread(self, fn: Callable[[], object], name: str, grace: float = DEFAULT_GRACE) -> object:
        """Run sync code in the actor's thread; after a cancellation, wait up to `grace` seconds until the code ends."""
        if self._is_lost:
            raise RuntimeError(f"{name} was not called, because the actor's thread is lost")
        if self._thread is None:
            self._thread = OwnThread(f"callboard actor {self._name}")
        # Cancelled here, the code still runs and may change the state: hence the wait for the grace.
        return await run_in_thread(current_loop(), fn, name, self, self._thread, patience=grace)

    async def stop(self) -> None:
        """Run the actor's `stop`."""
        # A lost thread still gets a sync `stop`, because it closes objects of that thread.
        fn = self._actor.stop
        if self._is_lost and self._thread is not None and not inspect.iscoroutinefunction(fn):
            self._thread.close(fn)
            self._thread = None
        else:
            await self._run(fn)

    def close(self) -> None:
        """End the actor's thread after its queued jobs; do not wait for it."""
        if self._thread is not None:
            self._thread.close()
        self._thread = None

    def thread_abandoned(self) -> None:
        """Report the actor as lost: the code of a cancelled call still blocks the actor's thread."""
        self._is_lost = True
        self._on_lost(RuntimeError("its thread went on after the call that it was for had been cancelled"))

    def thread_ended(self) -> None:
        """Do nothing: the thread's actor has ended already."""


Begin = Callable[[], Awaitable[bool]]

beginning: ContextVar[Begin | None] = ContextVar("callboard_beginning", default=None)
"""Async callback of a remote call, awaited before the handler begins; it returns whether the call may still begin."""


class LeasedRunner(LocalRunner):
    """Local runner that, before each handler, checks the ownership of the actor's key and sets the fencing token."""

    __slots__ = ("_clean_up", "_ownership")

    def __init__(self, actor: Actor, name: str, on_lost: OnLost, *, ownership: Ownership, clean_up: float) -> None:
        super().__init__(actor, name, on_lost)
        self._ownership = ownership
        self._clean_up = clean_up

    async def start(self, resources: Resources, snapshot: object) -> None:
        # The lease may have expired while the state was loaded. `start` may write its token to a resource.
        if not self._ownership.is_current:
            raise KeyMovedError("an actor would start in a process that owns its key no more")
        set_fencing_token(self._ownership.token)  # in the incarnation's task, so `snapshot` and `stop` have it, too
        cap_grace(current_loop(), self._clean_up)
        await super().start(resources, snapshot)

    async def handle(self, message: Message) -> object:
        begin = beginning.get()
        # Calls that the handler makes inherit the context, and must not ask again for this call.
        beginning.set(None)
        if begin is not None and not await begin():
            raise KeyMovedError(f"{message.title} was taken back before it began")
        # After the await above, not before it: the lease may have expired meanwhile.
        if not self._ownership.is_current:
            raise KeyMovedError(f"{message.title} would begin in a process that owns its key no more")
        set_fencing_token(self._ownership.token)
        # Again: the handler runs in the caller's context, with the caller's grace.
        cap_grace(current_loop(), self._clean_up)
        return await super().handle(message)
