"""Where an actor's own code runs: what is async in its task, all that is not in one thread of its own."""

import inspect
from collections.abc import Callable
from functools import partial

from callboard._loops._current import current_loop
from callboard._loops._deadline import DEFAULT_GRACE
from callboard._loops._own_thread import OwnThread
from callboard._loops._threads import run_in_thread
from callboard.actors._actor import Actor

_DOES_NOTHING = (Actor.start, Actor.stop)


class OwnCode:
    """The code of one life.

    Args:
        name: of the thread, which is started when there is something for it.
        on_lost: told why the actor is of no more use, if the thread does not end a job that was cancelled.
    """

    __slots__ = ("_is_lost", "_name", "_on_lost", "_thread")

    def __init__(self, name: str, on_lost: Callable[[RuntimeError], None]) -> None:
        self._name = name
        self._on_lost = on_lost
        self._thread: OwnThread | None = None
        self._is_lost = False

    async def run(self, fn: Callable[[], object]) -> object:
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
            self._thread = OwnThread(self._name)
        return await run_in_thread(current_loop(), fn, name, self, self._thread, patience=grace)

    async def run_last(self, fn: Callable[[], object]) -> None:
        """Run `stop`; if the thread is lost, there, once it is free, because what it closes belongs to that thread."""
        if self._is_lost and self._thread is not None and not inspect.iscoroutinefunction(fn):
            self._thread.close(fn)
            self._thread = None
        else:
            await self.run(fn)

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
