"""`RayEngine`: runs tools and actors on a Ray cluster.

`Crew` has the Ray actors of an engine in one event loop.
"""

import itertools
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio
from anyio.abc import TaskGroup
from anyio.to_thread import run_sync

from callboard import ActorGoneError, ActorStartError
from callboard.extend import Body, EngineError
from callboard_actors._engine._lifecycle import OpenedEngine
from callboard_actors._util._backoff import Backoff
from callboard_actors.ray._connection import connect, disconnect, missing_resources
from callboard_actors.ray._host_proxy import HostProxy, NoRoomError, NotBegunError
from callboard_actors.ray._options import RayOptions
from callboard_actors.ray._places import Places
from callboard_actors.ray._transfer import check_picklable, is_sync_body

_logger = logging.getLogger("callboard_actors.ray")
_ENGINE_NAME = "RayEngine"
_PAUSE = 0.5
"""Seconds before a Ray actor that cannot be started is tried again; doubled each time."""
_FIRST_STARTS = 3
"""Maximum number of attempts to start a Ray actor while the engine opens; on a busy machine Ray may lose a process."""
_LONGEST_PAUSE = 10.0
"""Maximum seconds between two attempts, after the pause was doubled several times."""
_SHORTEST_PAUSE = 0.1
"""Minimum seconds between two checks of the Ray actors, even if the engine's `patience` is shorter."""
_MAKE_ROOM = "an actor has a Ray actor beside the engine's `workers`: ask for fewer of those, or for fewer `cpus`"


class Crew:
    """Supervisor of the Ray actors of an engine in one event loop.

    `run_until_dismissed` runs in its own task, which ends by `dismiss` only, or with the event loop.
    """

    def __init__(self, options: RayOptions, connect: Callable[[], None]) -> None:
        self._options = options
        self._connect = connect
        self._host_places = Places[HostProxy](options.concurrency)
        # Ray actors of the pool, from the request to their end. Dedicated ones are not in it: their owners end them.
        self._hosts: set[HostProxy] = set()
        self._background_group: TaskGroup | None = None
        self._keeper_scope = anyio.CancelScope()
        # Set when all places have a Ray actor for the first time, or when one has failed for good.
        self._first_start_settled = anyio.Event()
        self._has_ended = anyio.Event()
        self.is_dismissed = False
        self.failure: ActorStartError | None = None
        """Reason why the engine has no Ray actors, such as a failed connection to Ray; `None` if there is none."""

    async def run_until_dismissed(self) -> None:
        """Connect to Ray, and keep as many Ray actors running as the engine's `workers`, until `dismiss` is called."""
        try:
            await run_sync(self._connect)
        except Exception as error:  # whatever it is: the caller of `async with` waits for this task
            reason = f"Ray cannot be reached: {error!r}"
            self.failure = error if isinstance(error, ActorStartError) else ActorStartError(_ENGINE_NAME, reason)
            self._mark_ended()
            return
        try:
            with self._keeper_scope:
                async with anyio.create_task_group() as self._background_group:
                    for _ in range(self._options.workers):
                        self._background_group.start_soon(self._keep_host_running)
                    await anyio.sleep_forever()
        finally:
            # Not skipped by a cancellation: the number of users of the process's connection must stay correct.
            with anyio.CancelScope(shield=True):
                await run_sync(disconnect)
            self._mark_ended()

    def _mark_ended(self) -> None:
        self.is_dismissed = True
        self._host_places.fail_waiting_bodies()
        self._first_start_settled.set()
        self._has_ended.set()

    async def until_ready(self) -> None:
        """Wait until all Ray actors have started, or one has failed; raise `ActorStartError` after `start_timeout`."""
        with anyio.move_on_after(self._options.start_timeout):
            await self._first_start_settled.wait()
        if not self._first_start_settled.is_set():
            missing_resource = (
                None if self._background_group is None else await run_sync(missing_resources, self._options)
            )
            raise ActorStartError(
                _ENGINE_NAME,
                f"Ray did not start {self._options.workers} actors within {self._options.start_timeout:g} s; "
                f"each needs {self._options.ray_options()} on one node"
                + (f"; not free is {missing_resource}" if missing_resource else ""),
            )

    async def _keep_host_running(self) -> None:
        backoff = Backoff(_PAUSE, _LONGEST_PAUSE)
        for attempt in itertools.count(1):
            if self.is_dismissed:
                return
            host = HostProxy(_ENGINE_NAME, self._options)
            try:
                await self._run_host(host)
                backoff.reset()
            except ActorStartError as error:
                # Until the engine is open the attempts are few, because the caller of `async with` waits for them, and
                # other versions or a broken `runtime_env` do not change. Later ones have no limit.
                if not self._first_start_settled.is_set() and (error.is_permanent or attempt >= _FIRST_STARTS):
                    self.failure = error
                    self._first_start_settled.set()
                    return
                _logger.warning("a Ray actor cannot be started; it is tried again until it can: %s", error)
                await anyio.sleep(backoff.next_pause())

    async def _run_host(self, host: HostProxy) -> None:
        """Start a Ray actor, make it available to calls, and wait until it has ended."""
        self._hosts.add(host)
        try:
            await host.start()
            if not self.is_dismissed:
                self._host_places.add(host)
            if len(self._hosts) >= self._options.workers and all(host.has_started for host in self._hosts):
                self._first_start_settled.set()
            await host.until_ended()
        finally:
            self._hosts.discard(host)
            self._host_places.remove(host)
            # On every path: a Ray actor that is not ended would occupy the cluster until this process exits.
            await host.end("its engine on Ray is closed")

    async def take_host(self, body: Body, *, is_sync: bool) -> HostProxy:
        """Wait for a place in a Ray actor and return the Ray actor; `body` is the function call that needs it."""
        while not self.is_dismissed:
            host = self._host_places.take_nowait(is_sync=is_sync)
            if host is None:
                # While a Ray actor lives or starts, the wait has no limit. Otherwise it ends after the patience.
                patience = max(self._options.patience, _SHORTEST_PAUSE)
                try:
                    host = await self._host_places.take(
                        is_sync=is_sync,
                        patience=patience,
                        is_hopeless=lambda: not any(host.is_expected for host in self._hosts),
                    )
                except TimeoutError:
                    reason = f"no Ray actor lives, and none came within {self._options.patience:g} s"
                    raise EngineError(body.title, body.call_id, reason, ended="unavailable") from None
            # It may have been lost since it was assigned; then wait for the next one.
            if host is not None and host.is_alive:
                return host
        raise ActorGoneError(body.title, body.call_id, "its engine on Ray is closed")

    async def run_body(self, body: Body) -> Any:
        """Run a function call in a Ray actor with a free place; return the call's result."""
        runs_sync = is_sync_body(body)
        while True:
            host = await self.take_host(body, is_sync=runs_sync)
            with suppress(NotBegunError):  # its Ray actor was lost before anything was sent: another one takes it
                return await host.run_body(body, partial(self._host_places.give_back, host, is_sync=runs_sync))

    async def start_dedicated_host(self, title: str) -> HostProxy:
        """Start and return a dedicated Ray actor, which the caller must end; raise `EngineError` if it cannot start."""
        host = HostProxy(title, self._options)
        try:
            with anyio.move_on_after(self._options.start_timeout):
                await host.start(self._options.patience)
                assert self._background_group is not None
                # A task of the engine notices its loss, even if its owner never waits for that.
                self._background_group.start_soon(host.until_ended)
                return host
        except NoRoomError as error:
            reason = f"the cluster has no room for its Ray actor ({error}); {_MAKE_ROOM}"
            raise EngineError(title, None, reason, ended="unavailable") from None
        reason = f"Ray did not start an actor for it within {self._options.start_timeout:g} s"
        raise EngineError(title, None, reason, ended="unavailable")

    def abandon(self) -> None:
        """Kill all Ray actors without waiting. Called after the event loop was closed."""
        for host in self._hosts:
            host.kill()
        disconnect()

    async def dismiss(self) -> None:
        """End all Ray actors, and wait for their ends; calls that wait for a Ray actor fail."""
        self.is_dismissed = True
        self._keeper_scope.cancel()
        with anyio.CancelScope(shield=True):
            await self._has_ended.wait()


# The engine.


class RayEngine(OpenedEngine[Crew]):
    """Engine that runs tools and actors in Ray actors, on a Ray cluster or on this machine; see `callboard.Engine`.

        async with RayEngine("auto", workers=8) as engine:
            policy = CallPolicy(runs_in=engine, timeout=60)
            node = ToolNode(tools, policies={"crunch": policy})

    callboard stays the supervisor: timeouts, retries, limits and events work as elsewhere, and Ray's own retries are
    disabled. A body (function call) whose Ray actor is lost ends as unknown, and only its own policy can repeat it.
    A Ray actor runs one body at a time, or with `concurrency` several async bodies in one event loop. A cancelled async
    body has its grace. If a body does not end within its grace, because it is a sync body or holds the event loop, its
    Ray actor is killed and replaced, and other bodies of this Ray actor end as unknown.

    Use a separate engine on the same cluster for tools with other resources.

    Args:
        address: address of the cluster for `ray.init`; `"auto"` for the one that runs here; `None` to start a local
            Ray. An address that is not loopback needs Ray's token authentication.
        workers: number of Ray actors. If all are busy, further bodies wait here.
        concurrency: number of async bodies that share a Ray actor. A sync body never shares its Ray actor.
        cpus: CPUs that each Ray actor reserves on its node.
        gpus: GPUs that each reserves.
        memory: bytes that each reserves; Ray uses them for placement only.
        resources: other resources that each reserves, by their names in the cluster.
        node: id of the node on which all of them must run.
        runtime_env: software to install for them; see Ray's manual.
        grace: seconds for a cancelled body to end, unless its call has a shorter grace.
        max_result: bytes of a pickled result at most.
        start_timeout: seconds for the start of Ray and of the Ray actors.
        patience: seconds that a call waits while no Ray actor lives, and that an actor waits for room in the cluster.
            For busy Ray actors, a call waits without limit.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        workers: int = 2,
        concurrency: int = 1,
        cpus: float = 1.0,
        gpus: float = 0.0,
        memory: int | None = None,
        resources: Mapping[str, float] | None = None,
        node: str | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        grace: float = 5.0,
        max_result: int = 64 * 1024 * 1024,
        start_timeout: float = 120.0,
        patience: float = 5.0,
    ) -> None:
        self._options = RayOptions(
            workers=workers,
            concurrency=concurrency,
            cpus=cpus,
            gpus=gpus,
            memory=memory,
            resources=dict(resources or {}),
            node=node,
            runtime_env=runtime_env,
            grace=grace,
            max_result=max_result,
            start_timeout=start_timeout,
            patience=patience,
        )
        connect_to_cluster = partial(connect, address)
        super().__init__(
            lambda: Crew(self._options, connect_to_cluster), noun="engine on Ray", task_name="callboard_actors.ray"
        )

    def check(self, fn: Callable[..., Any], /, *, title: str) -> None:
        """Raise `TypeError` for a function that cannot be pickled; `title` names it in the error."""
        check_picklable(fn, title)

    async def run_body(self, body: Body, /) -> Any:
        """Run one function call (`body`) of a tool or actor in a Ray actor; see `callboard.Engine`."""
        with self._operations.running(body, grace=self._options.grace) as running_body:
            return await self._current_resources(body.title, body.call_id).run_body(running_body)

    @asynccontextmanager
    async def seat(self, title: str, /) -> AsyncGenerator[HostProxy]:
        """Start a dedicated Ray actor in addition to the engine's `workers`; end it after the `async with` block."""
        self._operations.check_open(title)
        host = await self._current_resources(title).start_dedicated_host(title)
        try:
            yield host
        finally:
            await host.end(f"the Ray actor of {title!r} is ended")
