"""Local runner: runs an actor's async code in its task, and its sync code in one thread of its own."""

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, cast

from callboard._loops._current import current_loop
from callboard._loops._deadline import DEFAULT_GRACE
from callboard._loops._own_thread import OwnThread
from callboard._loops._threads import run_in_thread
from callboard.actors._actor import Actor
from callboard.actors._ends import restored
from callboard.actors._message import Message
from callboard.actors._reply import Reply
from callboard.actors._resources import Resources

_DOES_NOTHING = (Actor.start, Actor.stop)


OnLost = Callable[[Exception], None]
"""Callback with the reason why an actor can no longer be used."""


class Code(Protocol):
    """Runner of one incarnation's code."""

    async def start(self, resources: Resources, snapshot: object) -> None:
        """Start the actor, from a snapshot unless that is `None`. Opened resources are added to `resources`.

        Raises:
            ActorStartError: if the snapshot is not accepted, or the code cannot run.
        """
        ...

    def handle(self, message: Message) -> Awaitable[object]:
        """Return an awaitable that runs the handler of a message."""
        ...

    def is_lost(self, error: BaseException) -> bool:
        """Return whether a handler's error means that the actor is lost."""
        ...

    def never_began(self, error: BaseException) -> bool:
        """Return whether the error also means that the handler did not begin."""
        ...

    async def snapshot(self) -> object:
        """Return the actor's snapshot."""
        ...

    async def stop(self) -> None:
        """Run the actor's `stop`, after its last handler."""
        ...

    def close(self) -> None:
        """Release the place where the code ran."""
        ...


class OwnCode:
    """Runner of one incarnation's code in this process.

    Args:
        actor: the actor.
        name: name of the thread, which is started at first use.
        on_lost: called if the thread does not end a job after its cancellation and grace.
    """

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
        object.__setattr__(actor, "_own_code", self)
        await self._run(actor.start)
        if snapshot is not None:
            await restored(self._name, partial(self._run, partial(actor.restore, snapshot)))
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

    def is_lost(self, error: BaseException) -> bool:
        return False

    def never_began(self, error: BaseException) -> bool:
        return False

    async def snapshot(self) -> object:
        return await self._run(self._actor.snapshot)

    async def _run(self, fn: Callable[[], object]) -> object:
        """Run a method of the actor, async in this task, or sync in the thread."""
        # The default `start` and `stop` do nothing and must not start a thread.
        inner = fn.func if isinstance(fn, partial) else fn
        if inspect.iscoroutinefunction(inner) or getattr(inner, "__func__", None) in _DOES_NOTHING:
            found = fn()
        else:
            found = await self.in_thread(fn, inner.__qualname__)
        return await found if inspect.isawaitable(found) else found

    async def in_thread(self, fn: Callable[[], object], name: str, grace: float = DEFAULT_GRACE) -> object:
        """Run sync code in the actor's thread; after a cancellation, wait up to `grace` seconds for it to end.

        Raises:
            RuntimeError: if the thread was lost; the actor's objects may be used in no other thread.
        """
        if self._is_lost:
            raise RuntimeError(f"{name} was not called, because the actor's thread is lost")
        if self._thread is None:
            self._thread = OwnThread(f"callboard actor {self._name}")
        # Cancelled here, the code still runs and may change the state: hence the wait for the grace.
        return await run_in_thread(current_loop(), fn, name, self, self._thread, patience=grace)

    async def stop(self) -> None:
        """Run `stop`. If the thread is lost, queue a sync `stop` there, because it closes objects of that thread."""
        fn = self._actor.stop
        if self._is_lost and self._thread is not None and not inspect.iscoroutinefunction(fn):
            self._thread.close(fn)
            self._thread = None
        else:
            await self._run(fn)

    def close(self) -> None:
        """End the thread after its queued jobs; do not wait for it."""
        if self._thread is not None:
            self._thread.close()
        self._thread = None

    def thread_abandoned(self) -> None:
        """Report the actor as lost, because nothing can run in its thread until the job there ends."""
        self._is_lost = True
        self._on_lost(RuntimeError("its thread went on after the call that it was for had been cancelled"))

    def thread_ended(self) -> None:
        """Do nothing: the thread's actor has ended already."""
