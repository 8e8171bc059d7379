"""Where an actor's own code runs: what is async in its task, all that is not in one thread of its own."""

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
"""Told why an actor is of no more use."""


class Code(Protocol):
    """The code of one life, wherever it runs."""

    async def start(self, resources: Resources, snapshot: object) -> None:
        """Start the actor, from a snapshot unless that is `None`; what it enters is left with the resources.

        Raises:
            ActorStartError: if it does not take the snapshot, or has no place to run.
        """
        ...

    def handle(self, message: Message) -> Awaitable[object]:
        """Run the handler of a message."""
        ...

    def is_lost(self, error: BaseException) -> bool:
        """Whether that error of a handler means that the actor is no more."""
        ...

    def never_began(self, error: BaseException) -> bool:
        """Whether it means that besides, and that the handler did not begin."""
        ...

    async def snapshot(self) -> object:
        """What the actor gives as its state."""
        ...

    async def stop(self) -> None:
        """Run `stop` of the actor, after its last handler."""
        ...

    def close(self) -> None:
        """Let go of where it ran."""
        ...


class OwnCode:
    """The code of one life that runs here.

    Args:
        actor: whose code it is.
        name: of the thread, which is started when there is something for it.
        on_lost: told why the actor is of no more use, if the thread does not end a job that was cancelled.
    """

    __slots__ = ("_actor", "_is_lost", "_name", "_on_lost", "_thread")

    def __init__(self, actor: Actor, name: str, on_lost: OnLost) -> None:
        self._actor = actor
        self._name = name
        self._on_lost = on_lost
        self._thread: OwnThread | None = None
        self._is_lost = False

    async def start(self, resources: Resources, snapshot: object) -> None:
        actor = self._actor
        object.__setattr__(actor, "_resources", resources)
        object.__setattr__(actor, "_own_code", self)
        await self._run(actor.start)
        if snapshot is not None:
            await restored(self._name, partial(self._run, partial(actor.restore, snapshot)))
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
        """Run a method of the actor, perhaps with arguments."""
        inner = fn.func if isinstance(fn, partial) else fn
        if inspect.iscoroutinefunction(inner) or getattr(inner, "__func__", None) in _DOES_NOTHING:
            found = fn()
        else:
            found = await self.in_thread(fn, inner.__qualname__)
        return await found if inspect.isawaitable(found) else found

    async def in_thread(self, fn: Callable[[], object], name: str, grace: float = DEFAULT_GRACE) -> object:
        """Run what is not async; when it is cancelled, it has its grace to end, for the actor's state is at stake.

        Raises:
            RuntimeError: if the thread was lost; what belongs to it can be used in no other.
        """
        if self._is_lost:
            raise RuntimeError(f"{name} was not called, because the actor's thread is lost")
        if self._thread is None:
            self._thread = OwnThread(f"callboard actor {self._name}")
        return await run_in_thread(current_loop(), fn, name, self, self._thread, patience=grace)

    async def stop(self) -> None:
        """Run `stop`; if the thread is lost, there, once it is free, because what it closes belongs to that thread."""
        fn = self._actor.stop
        if self._is_lost and self._thread is not None and not inspect.iscoroutinefunction(fn):
            self._thread.close(fn)
            self._thread = None
        else:
            await self._run(fn)

    def close(self) -> None:
        """Have the thread end when it has done its jobs."""
        if self._thread is not None:
            self._thread.close()
        self._thread = None

    def thread_abandoned(self) -> None:
        """Give up the actor with the thread that does not end: nothing can be done there until it does."""
        self._is_lost = True
        self._on_lost(RuntimeError("its thread went on after the call that it was for had been cancelled"))

    def thread_ended(self) -> None:
        """Nothing: the actor that the thread belonged to is gone."""
