"""The hosts of an engine in one event loop: as many as it was asked for, and more while calls wait."""

import logging
import math
from collections.abc import Callable
from typing import Any

import anyio
from anyio.abc import TaskGroup
from anyio.to_thread import run_sync

from callboard import ActorGoneError, ActorStartError
from callboard.engines import Body, EngineError
from callboard_actors.process._idle import Idle
from callboard_actors.ray._cluster import disconnect
from callboard_actors.ray._held_host import HeldHost, NoRoomError
from callboard_actors.ray._room import what_lacks
from callboard_actors.ray._terms import Terms

_logger = logging.getLogger("callboard_actors.ray")
_NAME = "RayEngine"
_PAUSE = 0.5
"""Seconds before a host is tried again that cannot be started; doubled."""
_LONGEST_PAUSE = 10.0
_LEAST_PAUSE = 0.1
"""Seconds between two looks whether a Ray actor lives, with the shortest patience."""
_MAKE_ROOM = "an actor has a Ray actor beside the engine's `workers`: ask for fewer of those, or for fewer `cpus`"


class Crew:
    """Hosts that live, and those among them that have nothing to do.

    `keep` runs in a task of its own, which nobody cancels but `dismiss`, and the event loop when it ends.
    """

    def __init__(self, terms: Terms, connect: Callable[[], None]) -> None:
        self._terms = terms
        self._connect = connect
        self._idle = Idle[HeldHost]()
        self._hosts: set[HeldHost] = set()
        self._more = 0
        self._group: TaskGroup | None = None
        self._keeping = anyio.CancelScope()
        self._full = anyio.Event()
        self._over = anyio.Event()
        self.is_dismissed = False
        self.failure: ActorStartError | None = None
        """Why there are no hosts."""

    async def keep(self) -> None:
        """Connect with Ray and fill each place whenever it is empty, until it is dismissed."""
        try:
            await run_sync(self._connect)
        except ActorStartError as error:
            self.failure = error
            self._end()
            return
        try:
            with self._keeping:
                async with anyio.create_task_group() as self._group:
                    for _ in range(self._terms.workers):
                        self._group.start_soon(self._fill)
                    await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await run_sync(disconnect)
            self._end()

    def _end(self) -> None:
        self.is_dismissed = True
        self._idle.turn_away()
        self._full.set()
        self._over.set()

    async def until_ready(self) -> None:
        """Wait for the first host in each place.

        Raises:
            ActorStartError: they did not come in time.
        """
        with anyio.move_on_after(self._terms.start_timeout):
            await self._full.wait()
        if not self._full.is_set():
            lacking = None if self._group is None else await run_sync(what_lacks, self._terms)
            raise ActorStartError(
                _NAME,
                f"Ray did not start {self._terms.workers} actors within {self._terms.start_timeout:g} s; each needs "
                f"{self._terms.ray_options()} on one node" + (f"; not free is {lacking}" if lacking else ""),
            )

    async def _fill(self) -> None:
        pause = _PAUSE
        while not self.is_dismissed:
            host = HeldHost(_NAME, self._terms)
            try:
                await self._employ(host)
                pause = _PAUSE
            except ActorStartError as error:
                if not self._full.is_set():
                    self.failure = error
                    self._full.set()
                    return
                _logger.warning("a Ray actor cannot be started; it is tried again until it can: %s", error)
                await anyio.sleep(pause)
                pause = min(_LONGEST_PAUSE, pause * 2)

    async def _employ(self, host: HeldHost) -> None:
        """Have a host started and let others have it, until it has ended."""
        self._hosts.add(host)
        try:
            await host.start()
            self.give_back(host)
            if len(self._hosts) >= self._terms.workers and all(one.has_started for one in self._hosts):
                self._full.set()
            await host.until_ended()
        finally:
            self._hosts.discard(host)
            self._idle.forget(host)
            await host.end("its engine on Ray is closed")

    async def _help_out(self) -> None:
        """Have one more host while calls wait, and until it has had nothing to do for a while."""
        host = HeldHost(_NAME, self._terms)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._employ, host)
                while anyio.current_time() - host.idle_since < self._terms.idle_for or host not in self._idle:
                    await anyio.sleep(self._terms.idle_for / 4)
                self._idle.forget(host)
                group.cancel_scope.cancel()
        except* ActorStartError as errors:
            _logger.info("no more Ray actors can be had: %s", errors.exceptions[0])
        finally:
            self._more -= 1

    async def take(self, body: Body) -> HeldHost:
        """Wait for a host that has nothing to do.

        Raises:
            ActorGoneError: there will be none.
        """
        while not self.is_dismissed:
            if not self._idle and self._terms.workers + self._more < self._terms.most_workers:
                assert self._group is not None
                self._more += 1
                self._group.start_soon(self._help_out)
            host = await self._next(body)
            if host is not None and host.is_alive:
                host.idle_since = math.inf
                return host
        raise ActorGoneError(body.title, body.call_id, "its engine on Ray is closed")

    async def _next(self, body: Body) -> HeldHost | None:
        """Wait for an idle host: as long as it takes while one lives or starts, and for the patience while none does.

        Raises:
            EngineError: none lives, and none came.
        """
        async with anyio.create_task_group() as group:
            group.start_soon(self._lose_patience, group.cancel_scope)
            host = await self._idle.take()
            group.cancel_scope.cancel()
            return host
        reason = f"no Ray actor lives, and none came within {self._terms.patience:g} s"
        raise EngineError(body.title, body.call_id, reason, ended="unavailable")

    async def _lose_patience(self, wait: anyio.CancelScope) -> None:
        was_alone = False
        while True:
            is_alone = not any(host.is_expected for host in self._hosts)
            if was_alone and is_alone:
                wait.cancel()
                return
            was_alone = is_alone
            await anyio.sleep(max(self._terms.patience, _LEAST_PAUSE))

    def give_back(self, host: HeldHost) -> None:
        """Let others have it, if it lives."""
        if host.is_alive and not self.is_dismissed:
            host.idle_since = anyio.current_time()
            self._idle.put(host)

    async def run_body(self, body: Body) -> Any:
        """Run a body on a host that has nothing else to do."""
        host = await self.take(body)
        try:
            return await host.run_body(body)
        finally:
            host.when_free(lambda: self.give_back(host))

    async def hire(self, title: str) -> HeldHost:
        """Have a host started for one owner, which kills it.

        Raises:
            EngineError: there is none.
        """
        host = HeldHost(title, self._terms)
        try:
            with anyio.move_on_after(self._terms.start_timeout):
                await host.start(self._terms.patience)
                assert self._group is not None
                self._group.start_soon(host.until_ended)
                return host
        except NoRoomError as error:
            reason = f"the cluster has no room for its Ray actor ({error}); {_MAKE_ROOM}"
            raise EngineError(title, None, reason, ended="unavailable") from None
        reason = f"Ray did not start an actor for it within {self._terms.start_timeout:g} s"
        raise EngineError(title, None, reason, ended="unavailable")

    def abandon(self) -> None:
        """End all hosts at once, where the event loop has been closed, and nobody can wait any more."""
        for host in self._hosts:
            host.kill()
        disconnect()

    async def dismiss(self) -> None:
        """End all hosts; whoever waits for one is told that there is none."""
        self.is_dismissed = True
        self._keeping.cancel()
        with anyio.CancelScope(shield=True):
            await self._over.wait()
