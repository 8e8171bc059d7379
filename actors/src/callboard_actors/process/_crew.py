"""The workers of a pool, kept at full strength: one task for the zygote, one for each place."""

import logging
import os
from collections.abc import Callable, Coroutine
from contextvars import Context
from dataclasses import replace
from typing import Any

import anyio
import sniffio
from anyio.abc import TaskGroup

from callboard import ActorGoneError, ActorStartError
from callboard.engines import Body
from callboard_actors.process._commands import Command
from callboard_actors.process._confine import INIT
from callboard_actors.process._errors import WorkerDiedError
from callboard_actors.process._held_worker import HeldWorker
from callboard_actors.process._held_zygote import HeldZygote, UnloadableError
from callboard_actors.process._idle import Idle
from callboard_actors.process._main_module import HERE, main_module
from callboard_actors.process._settings import Settings, Terms

_NAME = "Processes"
_logger = logging.getLogger("callboard_actors.process")

_PAUSE = 0.05
"""Seconds before a place is filled again whose workers keep ending without a call, or a zygote started; doubled."""
_LONGEST_PAUSE = 5.0
_UNHEARD = 5.0
"""Seconds beyond the grace of a worker after which a zygote that does not report its end is killed."""
_HURRIED = 0.5
"""The same for a zygote whose pool is being closed by somebody who was cancelled."""


class Crew:
    """Workers that live, and those among them that have nothing to do.

    `keep` runs in a task of its own, which nobody cancels but `dismiss`, and the event loop when it ends: calls that
    are cancelled wait for what it is told. What goes wrong in it, those are told who wait.
    """

    def __init__(self, terms: Terms, wanted: dict[str, None]) -> None:
        self._terms = terms
        parent = os.getpid() if terms.confine is None or not terms.confine.in_bubblewrap else INIT
        self._settings = Settings(
            parent=parent, backend=sniffio.current_async_library(), terms=terms, main=main_module()
        )
        self._wanted = wanted
        self._zygote: HeldZygote | None = None
        self._members: set[HeldWorker] = set()
        self._seats: set[HeldWorker] = set()
        self._group: TaskGroup | None = None
        self._idle = Idle[HeldWorker]()
        self._trouble: Exception | None = None
        self._started = anyio.Event()
        self._full = anyio.Event()
        self._dismissed = anyio.Event()
        self._over = anyio.Event()
        self._keeping = anyio.CancelScope()
        self._ending = anyio.CancelScope()
        """Around the wait for the end of all workers."""
        self._patience = _UNHEARD
        self.failure: ActorStartError | None = None
        """Why there never were any workers."""

    @property
    def is_dismissed(self) -> bool:
        """Whether it was told to end, so that it takes no new call."""
        return self._dismissed.is_set()

    async def until_ready(self) -> None:
        """Wait for the first worker in each place, or for the failure.

        Raises:
            ActorStartError: they did not come in time.
        """
        await self._started.wait()
        with anyio.move_on_after(self._terms.start_timeout):
            await self._full.wait()
        if not self._full.is_set():
            raise self._late()

    def _late(self) -> ActorStartError:
        reason = f"it was not ready within {self._terms.start_timeout:g} s"
        if HERE in self._wanted:
            reason += '; it loads __main__, which may run for ever unless that is below `if __name__ == "__main__":`'
        return ActorStartError(_NAME, reason)

    async def keep(self) -> None:
        """Fill each place whenever it is empty, with a new zygote if the old one has died, until it is dismissed."""
        try:
            with self._keeping:
                async with anyio.create_task_group() as group:
                    self._group = group
                    group.start_soon(self._end_all_when_dismissed)
                    await self._live_on()
                    group.cancel_scope.cancel()
        finally:
            self._dismissed.set()
            self._idle.turn_away()
            self._started.set()
            self._full.set()
            self._over.set()

    async def _live_on(self) -> None:
        pause = _PAUSE
        while self.failure is None:
            began = anyio.current_time()
            try:
                await self._live_with_a_zygote()
            except Exception as error:
                self._suffer(error)
            pause = _PAUSE if anyio.current_time() - began > 1 else min(_LONGEST_PAUSE, pause * 2)
            if self.failure is None:
                await anyio.sleep(pause)

    async def _live_with_a_zygote(self) -> None:
        with anyio.move_on_after(self._terms.start_timeout) as scope:
            self._zygote = await self._new_zygote()
        if scope.cancelled_caught or self._zygote is None:
            raise self._late()
        self._trouble = None
        self._started.set()
        try:
            await self._live(self._zygote)
        finally:
            with anyio.CancelScope(shield=True):
                await self._zygote.close()
                self._zygote = None

    async def _new_zygote(self) -> HeldZygote:
        while True:
            names = tuple(name for name in self._wanted if name not in self._terms.preload)
            try:
                return await HeldZygote.start(replace(self._settings, wanted=names))
            except UnloadableError as error:
                self._wanted.pop(error.module, None)
                _logger.info("%s starts threads or ends its process, so each worker loads it by itself", error.module)

    def _suffer(self, error: Exception) -> None:
        """Tell those who wait that there are no workers, and why."""
        if not self._started.is_set():
            reason = f"its zygote process cannot be started: {error!r}"
            self.failure = error if isinstance(error, ActorStartError) else ActorStartError(_NAME, reason)
            return
        if self._trouble is None:
            _logger.error("a pool of processes has no workers, and tries again: %r", error)
        self._trouble = error
        self._idle.turn_away()

    async def _live(self, zygote: HeldZygote) -> None:
        async with anyio.create_task_group() as places:
            for _ in range(self._terms.workers):
                places.start_soon(self._fill, zygote)
            await zygote.listen()
            places.cancel_scope.cancel()

    async def _fill(self, zygote: HeldZygote) -> None:
        in_vain = 0
        while not self.is_dismissed:
            try:
                worker = self._new_worker()
                await self._employ(worker, zygote)
            except OSError as error:  # as many files are open as may be, or processes; calls wait until there are fewer
                if not in_vain:
                    _logger.warning("a worker process cannot be started; it is tried again until it can: %s", error)
                in_vain += 1
            else:
                in_vain = 0 if worker.calls else in_vain + 1
            if in_vain > 1:
                await anyio.sleep(min(_LONGEST_PAUSE, _PAUSE * 2.0 ** min(in_vain - 2, 10)))

    def _new_worker(self) -> HeldWorker:
        return HeldWorker(self._terms.max_output, is_trusted=self._terms.confine is None)

    async def _employ(self, worker: HeldWorker, zygote: HeldZygote) -> None:
        """Have a worker forked and let others have it, until it has ended.

        Raises:
            OSError: it cannot be forked.
        """
        self._members.add(worker)
        try:
            await zygote.fork(worker)
            if worker.is_alive:
                self.give_back(worker)
                if len(self.pids()) == self._terms.workers:
                    self._full.set()
            async with anyio.create_task_group() as group:
                group.start_soon(worker.collect_output)
                await worker.ended.wait()
                group.cancel_scope.cancel()
        finally:
            self._members.discard(worker)
            worker.close()

    async def hire(self, title: str) -> HeldWorker:
        """Have a worker forked for one owner, which is to let it go.

        Raises:
            WorkerDiedError: there is none.
        """
        while self._zygote is None and self._trouble is None and not self.is_dismissed:
            await anyio.sleep(_PAUSE / 10)  # another one is being started
        try:
            if self._zygote is None:
                raise OSError("its pool of processes is closed" if self._trouble is None else f"{self._trouble}")
            worker = self._new_worker()
            self._seats.add(worker)
            try:
                await self._zygote.fork(worker, Command.SEAT)
                if not worker.is_alive:
                    raise OSError("its zygote process has ended")
            except BaseException:
                await self.let_go(worker)
                raise
        except OSError as error:
            raise WorkerDiedError(title, f"a worker process cannot be started: {error}", begun=False) from error
        return worker

    async def let_go(self, worker: HeldWorker) -> None:
        """End a worker that was hired, and close it."""
        await self.end(worker)
        self._seats.discard(worker)
        worker.close()

    def look_after(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run something as long as it takes, or as the crew lives."""
        assert self._group is not None
        Context().run(self._group.start_soon, work)

    def pids(self) -> list[int]:
        """The process ids of the workers that live and are to go on."""
        return sorted(worker.pid for worker in self._members if worker.is_alive and worker.pid is not None)

    async def take(self, body: Body) -> HeldWorker:
        """Wait for a worker that has nothing to do.

        Raises:
            ActorGoneError: there will be none.
            WorkerDiedError: nobody knows when there will be one.
        """
        while True:
            if self._trouble is not None or self.is_dismissed:
                raise self._gone(body)
            worker = await self._idle.take()
            if worker is None:
                raise self._gone(body)
            if worker.is_alive and worker.is_silent():
                return worker
            # It has ended, or talks without being asked: another one comes in its place.
            with anyio.CancelScope(shield=True):
                await self.ask_to_end(worker, self._terms.last_grace)

    def _gone(self, body: Body) -> ActorGoneError | WorkerDiedError:
        if self._trouble is None or self.is_dismissed:
            return ActorGoneError(body.title, body.call_id, "its pool of processes is closed")
        reason = f"its pool of processes has no workers, and tries to start some: {self._trouble}"
        return WorkerDiedError(body.title, reason, begun=False, call_id=body.call_id)

    def give_back(self, worker: HeldWorker) -> None:
        """Let other calls have a worker that is done with its call."""
        if not self.is_dismissed:
            self._idle.put(worker)

    async def ask_to_end(self, worker: HeldWorker, grace: float | None = None) -> None:
        """Have it ended, and all that it has started, unless that is going on; the pool's grace is the longest."""
        if self._zygote is not None:
            longest = self._terms.grace
            await self._zygote.end(worker, longest if grace is None else min(grace, longest))

    async def end(self, worker: HeldWorker, grace: float | None = None) -> None:
        """End it and wait until it has, whoever is cancelled meanwhile; a zygote that does not do it is killed."""
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(self._terms.grace + _UNHEARD):
                await self.ask_to_end(worker, grace)
                await worker.ended.wait()
            if not worker.ended.is_set():
                self._break_off_zygote()
                await worker.ended.wait()

    def _break_off_zygote(self) -> None:
        if self._zygote is not None:
            _logger.error("the zygote of a pool of processes does not end its workers, and is killed with all of them")
            self._zygote.break_off()

    async def dismiss(self) -> None:
        """End all workers, then the zygote; whoever waits for a worker is told that there is none.

        It takes the grace and `_UNHEARD` at most, and less if the caller is cancelled; then all is killed.
        """
        self._dismissed.set()
        self._idle.turn_away()
        try:
            await self._over.wait()
        except BaseException:
            self._hurry()
            with anyio.CancelScope(shield=True):
                await self._over.wait()
            raise

    def _hurry(self) -> None:
        self._patience = _HURRIED
        self._ending.deadline = min(self._ending.deadline, anyio.current_time() + self._terms.grace + _HURRIED)

    async def _end_all_when_dismissed(self) -> None:
        await self._dismissed.wait()
        if self._zygote is not None:
            self._zygote.go_on()
        self._ending.deadline = anyio.current_time() + self._terms.grace + self._patience
        with self._ending:
            members = [*self._members, *self._seats]
            for worker in members:
                await self.ask_to_end(worker)
            for worker in members:
                await worker.ended.wait()
        if self._ending.cancelled_caught:
            self._break_off_zygote()
        self._keeping.cancel()

    def abandon(self) -> None:
        """End everything at once, where the event loop has been closed, and nobody can wait any more."""
        if self._zygote is not None:
            self._zygote.kill()
        for worker in self._members | self._seats:
            worker.abandon()
