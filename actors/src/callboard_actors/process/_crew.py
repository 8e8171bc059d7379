"""The workers of a pool, kept at full strength: one task for the zygote, one for each place."""

import math
import os

import anyio
import sniffio
from anyio.lowlevel import current_token

from callboard import ActorGoneError, ActorStartError
from callboard.engines import Body
from callboard_actors.process._held_worker import HeldWorker
from callboard_actors.process._held_zygote import HeldZygote
from callboard_actors.process._settings import Settings, Terms

_PAUSE = 0.05
"""Seconds before a place is filled again whose workers keep ending without a call; doubled each time."""
_LONGEST_PAUSE = 5.0


class Crew:
    """Workers that live, and those among them that have nothing to do.

    `keep` has to run in a task all the while; it heeds no cancellation but that by `dismiss`, because calls that are
    cancelled wait for what it is told.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._settings = Settings(parent=os.getpid(), backend=sniffio.current_async_library(), terms=terms)
        self._zygote: HeldZygote | None = None
        self._members: set[HeldWorker] = set()
        self._idle_in, self._idle = anyio.create_memory_object_stream[HeldWorker](math.inf)
        self._full = anyio.Event()
        self._keeping = anyio.CancelScope(shield=True)
        self._home = current_token()
        self.is_dismissed = False

    async def start(self) -> None:
        """Start the zygote.

        Raises:
            ActorStartError: it could not load what it should, or not in time.
        """
        with anyio.move_on_after(self._terms.start_timeout) as scope:
            self._zygote = await HeldZygote.start(self._settings)
        if scope.cancelled_caught:
            raise self._late()

    async def until_full(self) -> None:
        """Wait for the first worker in each place.

        Raises:
            ActorStartError: they did not come in time.
        """
        with anyio.move_on_after(self._terms.start_timeout):
            await self._full.wait()
        if not self._full.is_set():
            raise self._late()

    def _late(self) -> ActorStartError:
        return ActorStartError("Processes", f"it was not ready within {self._terms.start_timeout:g} s")

    async def keep(self) -> None:
        """Fill each place whenever it is empty, with a new zygote if the old one has died."""
        with self._keeping:
            while self._zygote is not None:
                began = anyio.current_time()
                try:
                    await self._live(self._zygote)
                finally:
                    with anyio.CancelScope(shield=True):
                        await self._zygote.close()
                        self._zygote = None
                if anyio.current_time() - began < 1:
                    await anyio.sleep(_PAUSE)
                self._zygote = await HeldZygote.start(self._settings)

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
                worker = HeldWorker(self._terms.max_output)
            except OSError:  # as many files are open as may be; calls wait until there are fewer
                in_vain += 1
            else:
                await self._employ(worker, zygote)
                in_vain = 0 if worker.calls else in_vain + 1
            if in_vain > 1:
                await anyio.sleep(min(_LONGEST_PAUSE, _PAUSE * 2.0 ** (in_vain - 2)))

    async def _employ(self, worker: HeldWorker, zygote: HeldZygote) -> None:
        """Have a worker forked and let others have it, until it has ended."""
        self._members.add(worker)
        try:
            await zygote.fork(worker)
            await worker.settled.wait()
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

    def pids(self) -> list[int]:
        """The process ids of the workers that live and are to go on."""
        return sorted(worker.pid for worker in self._members if worker.is_alive and worker.pid is not None)

    async def take(self, body: Body) -> HeldWorker:
        """Wait for a worker that has nothing to do.

        Raises:
            ActorGoneError: there will be none.
            RuntimeError: this is another event loop than that of the pool.
        """
        if current_token() != self._home:
            raise RuntimeError(
                f"{body.title!r} was called in another event loop than that of its pool; open a pool for each"
            )
        while True:
            try:
                worker = self._idle.receive_nowait()
            except anyio.WouldBlock:
                worker = await self._receive(body)
            except (anyio.EndOfStream, anyio.ClosedResourceError):
                raise self._gone(body) from None
            if worker.is_alive and worker.is_silent():
                return worker
            # It has ended, or talks without being asked: another one comes in its place.
            with anyio.CancelScope(shield=True):
                await self.ask_to_end(worker)

    async def _receive(self, body: Body) -> HeldWorker:
        try:
            return await self._idle.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            raise self._gone(body) from None

    def _gone(self, body: Body) -> ActorGoneError:
        return ActorGoneError(body.title, body.call_id, "its pool of processes is closed")

    def give_back(self, worker: HeldWorker) -> None:
        """Let others have it."""
        if not self.is_dismissed:
            self._idle_in.send_nowait(worker)

    async def ask_to_end(self, worker: HeldWorker, grace: float | None = None) -> None:
        """Have it ended, and all that it has started, unless that is going on; the pool's grace is the longest."""
        if self._zygote is not None:
            longest = self._terms.grace
            await self._zygote.end(worker, longest if grace is None else min(grace, longest))

    async def end(self, worker: HeldWorker, grace: float | None = None) -> None:
        """End it and wait until it has, whoever is cancelled meanwhile."""
        with anyio.CancelScope(shield=True):
            await self.ask_to_end(worker, grace)
            await worker.ended.wait()

    async def dismiss(self) -> None:
        """End all workers, then the zygote; whoever waits for a worker is told that there is none."""
        self.is_dismissed = True
        self._idle_in.close()
        with anyio.CancelScope(shield=True):
            members = list(self._members)
            for worker in members:
                await self.ask_to_end(worker)
            for worker in members:
                await worker.ended.wait()
        self._keeping.cancel()
        while True:  # nobody is left to take them
            try:
                self._idle.receive_nowait()
            except (anyio.WouldBlock, anyio.EndOfStream):
                break
        self._idle.close()
