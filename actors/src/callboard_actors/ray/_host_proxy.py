"""Options of a Ray engine, the connection of this process to Ray, and the engine's object for a Ray actor.

All engines share the connection; the last engine closes it if an engine opened it.

Ray's object references support asyncio only. `Bell` and `value_of` wait for them on trio, too.
"""

import itertools
import logging
import math
import re
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import ray
import sniffio
from anyio.lowlevel import current_token
from anyio.to_thread import run_sync
from ray.exceptions import RayError

from callboard import ActorStartError
from callboard.extend import Body, EngineError, dispatch_event, inject_context
from callboard_actors._engine._frames import versions
from callboard_actors._util._options import check_counts
from callboard_actors._util._own_task import finish
from callboard_actors.ray._host import Host, Reply, Word, opened, packed

# Options.


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """Validated options of an engine; `RayEngine` documents each of them."""

    workers: int
    most_workers: int
    idle_for: float
    cpus: float
    gpus: float
    memory: int | None
    resources: Mapping[str, float] = field(default_factory=dict[str, float])
    node: str | None = None
    runtime_env: Mapping[str, Any] | None = None
    grace: float
    max_result: int
    start_timeout: float
    patience: float
    kill_timeout: float = 10.0
    """Maximum seconds to wait until Ray reports the end of a killed Ray actor."""

    def __post_init__(self) -> None:
        check_counts("RayEngine", [("workers", self.workers, 1), ("max_result", self.max_result, 1)])
        check_counts("RayEngine", [("most_workers", self.most_workers, self.workers)])
        for name in ("idle_for", "cpus", "gpus", "grace", "start_timeout", "patience"):
            value = getattr(self, name)
            if not value >= 0:
                raise ValueError(f"RayEngine({name}={value!r}) has to be a number of at least 0")

    def ray_options(self) -> dict[str, Any]:
        """Return the keyword arguments with which Ray starts a Ray actor."""
        options: dict[str, Any] = {
            "num_cpus": self.cpus,
            "num_gpus": self.gpus,
            "resources": dict(self.resources) or None,
            "memory": self.memory,
            "runtime_env": None if self.runtime_env is None else dict(self.runtime_env),
        }
        if self.node is not None:
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(self.node, soft=False)
        return {name: value for name, value in options.items() if value is not None}


# Connection.

_PLACE = re.compile(r"(?P<host>[^/:]+):(?P<port>\d+)")
_TO_ANSWER = 10.0
"""Seconds for the cluster's head node to accept a TCP connection."""

# Ray has one connection per process. The lock guards the three variables: engines connect in worker threads.
_lock = threading.Lock()
_users = 0
_address: str | None = None
# False if the program itself called `ray.init`: then the connection is never closed here.
_is_ours = False


def connect(address: str | None) -> None:
    """Connect this process to Ray, or share the existing connection; block the thread until Ray is connected."""
    global _users, _address, _is_ours
    with _lock:
        if not ray.is_initialized():
            _begin(address)
            _is_ours, _address = True, address
        elif address not in (None, "auto", _address) and _is_ours:
            raise ActorStartError(
                "RayEngine", f"this process is connected to Ray at {_address!r} already, not at {address!r}", never=True
            )
        # Last: an engine that failed to connect must not call `disconnect`.
        _users += 1


def _begin(address: str | None) -> None:
    if address is not None and (place := _PLACE.fullmatch(address)):
        # `ray.init` would block for minutes if nothing listens there.
        try:
            socket.create_connection((place["host"], int(place["port"])), timeout=_TO_ANSWER).close()
        except OSError as error:
            raise ActorStartError("RayEngine", f"no Ray can be reached at {address!r}: {error}") from error
    # Without an address, start a local Ray: an instance that happens to run here belongs to another program.
    arguments: dict[str, Any] = {"address": address or "local", "log_to_driver": False, "logging_level": logging.ERROR}
    try:
        ray.init(**arguments)
    except Exception as error:
        where = "a Ray of its own cannot be started" if address is None else f"no Ray can be reached at {address!r}"
        raise ActorStartError("RayEngine", f"{where}: {type(error).__name__}: {error}") from error


def disconnect() -> None:
    """End one engine's use of the Ray connection; the last user closes a connection that an engine opened."""
    global _users, _is_ours
    with _lock:
        _users -= 1
        if not _users and _is_ours:
            _is_ours = False
            # Blocks the thread.
            ray.shutdown()


def what_lacks(terms: RayOptions) -> str | None:
    """Return a text that names the resources which a new Ray actor lacks; `None` if all are free. Blocks the thread."""
    free: Mapping[str, Any] = ray.available_resources()  # type: ignore[no-untyped-call]
    total: Mapping[str, Any] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    needs = {"CPU": terms.cpus, "GPU": terms.gpus, "memory": terms.memory or 0, **terms.resources}
    lacking = [
        f"{name}: it needs {amount:g}, and {free.get(name, 0):g} of {total.get(name, 0):g} are free"
        for name, amount in needs.items()
        if amount > free.get(name, 0)
    ]
    return ", ".join(lacking) or None


# Waiting for object references.


class Bell:
    """Signal that wakes one waiting task whenever Ray has resolved one of the watched object references."""

    def __init__(self) -> None:
        self._loop: Any = current_token().native_token
        self._is_trio = sniffio.current_async_library() == "trio"
        self._rung = anyio.Event()

    def watch(self, ref: Any) -> Future[Any]:
        """Wake the waiting task when an object reference is resolved; return a future with the reference's value."""
        future: Future[Any] = ref.future()
        future.add_done_callback(lambda _: self._post(self.ring))
        return future

    def ring(self) -> None:
        """Wake the waiting task; call this in its event loop."""
        self._rung.set()

    def _post(self, fn: Callable[[], object]) -> None:
        """Run a function in the event loop; called in Ray's threads, so it must not block."""
        with suppress(RuntimeError):  # the loop is closed, so no task waits
            (self._loop.run_sync_soon if self._is_trio else self._loop.call_soon_threadsafe)(fn)

    async def wait(self) -> None:
        """Wait for the next signal; return at once if there was a signal since the last wait."""
        await self._rung.wait()
        # Replaced after each wait. Callers check their futures afterwards, since one ring may stand for several.
        self._rung = anyio.Event()


async def value_of(ref: Any) -> Any:
    """Wait for an object reference of Ray and return its value; raise the error that Ray stored instead."""
    bell = Bell()
    future = bell.watch(ref)
    await bell.wait()
    return future.result()


_QUIET = 0.02
"""Seconds after which the engine asks a running call for its events; a shorter call sends them with its reply."""
_AT_ONCE = 10_000
"""Maximum number of concurrent method calls of a Ray actor; a function call may need several, such as for events."""


_LOOKS = 10
"""Number of checks for free resources in the cluster before the start of a Ray actor is given up."""
# The Ray actor.

_TO_LEAVE = 0.5
"""Seconds that a Ray actor has to end by itself; then it is killed, for instance if a call blocks its event loop."""


class NoRoomError(Exception):
    """Raised if the cluster lacks free resources for a Ray actor; the text names these resources."""


class _LostError(Exception):
    """Raised if a Ray actor has ended before it answered."""


class HostProxy:
    """Engine's object for one Ray actor: starts it, runs function calls in it, and ends it; used in one event loop."""

    def __init__(self, title: str, terms: RayOptions) -> None:
        self._title = title
        self._terms = terms
        self._numbers = itertools.count(1)
        # Why it has ended or is being ended; set once, and never cleared.
        self._reason: str | None = None
        # Bells of waiting calls, rung when the Ray actor is lost: Ray may never answer them.
        self._bells: set[Bell] = set()
        self._actor: Any = None
        # Reference to a call that never returns: it fails when the Ray actor ends.
        self._watch: Any = None
        self._ending = 0
        """Number of cancelled function calls that have not ended yet; their callers may already have ended."""
        self._when_free = list[Callable[[], object]]()
        self._began = -math.inf
        """Time of the event loop at which the start of the Ray actor was requested."""
        self.has_started = False
        self.idle_since = math.inf
        """Time of the event loop since which the Ray actor is idle; infinite while it is not idle."""

    async def start(self, patience: float | None = None) -> None:
        """Let Ray start the Ray actor, and wait until it answers; raise `NoRoomError` if the cluster has no room."""
        # Without Ray's retries: it cannot know whether a body may run twice.
        make = ray.remote(Host).options(
            max_restarts=0, max_task_retries=0, max_concurrency=_AT_ONCE, **self._terms.ray_options()
        )
        lacked = patience is not None and await run_sync(what_lacks, self._terms) is not None
        self._began = anyio.current_time()
        self._actor = await run_sync(make.remote)
        try:
            _check_versions(self._title, await self._hello(patience if lacked else None))
            # Before any body: a Ray actor in use is always watched.
            self._watch = self._actor.watch.remote()
            self.has_started = True
        except NoRoomError:
            self.kill()
            raise
        except RayError as error:
            raise ActorStartError(self._title, f"Ray cannot start its actor: {said(error)}") from error
        except BaseException:
            self.kill()
            raise

    async def _hello(self, patience: float | None) -> dict[str, str]:
        """Wait until the Ray actor answers; raise `NoRoomError` if the cluster has no room after `patience` seconds."""
        bell = Bell()
        future = bell.watch(self._actor.hello.remote())
        since = anyio.current_time()
        while not future.done():
            with anyio.move_on_after(math.inf if patience is None else patience / _LOOKS):
                await bell.wait()
            if patience is None or future.done():
                continue
            if (lacking := await run_sync(what_lacks, self._terms)) is None:
                patience = None  # room was seen; whether this actor or another one took it is unknown
            elif anyio.current_time() - since >= patience:
                raise NoRoomError(lacking)
        hello: dict[str, str] = future.result()
        return hello

    @property
    def is_alive(self) -> bool:
        """`True` if the Ray actor has not ended, is not being ended and was not lost, as far as the engine knows."""
        return self._reason is None

    @property
    def is_expected(self) -> bool:
        """`True` if the Ray actor lives and has started, or may still start within `start_timeout`."""
        is_starting = anyio.current_time() - self._began < self._terms.start_timeout
        return self.is_alive and (self.has_started or is_starting)

    async def until_ended(self) -> str:
        """Wait until the Ray actor has ended, was killed, or cannot be reached; return the reason."""
        try:
            await value_of(self._watch)
        except RayError as error:
            self._lose(f"its Ray actor is lost: {said(error)}")
        assert self._reason is not None, "it is watched until it ends"
        return self._reason

    def _lose(self, reason: str) -> None:
        self._reason = self._reason or reason
        for bell in self._bells:
            bell.ring()

    async def run_body(self, body: Body, /) -> Any:
        """Run a function call in the Ray actor; see `callboard.extend.Seat`."""
        data = packed(body)
        if self._reason is not None:
            raise EngineError(body.title, body.call_id, self._reason, ended="unavailable")
        number = next(self._numbers)
        if body.on_begin is not None:
            body.on_begin()  # first: it starts the deadline that `inject_context()` sends along
        ref = self._actor.run.remote(number, inject_context(), data, self._terms.max_result)
        try:
            reply, words = await self._reply(ref, number)
        except (RayError, _LostError) as error:
            # It may have begun, and may still run in a partitioned cluster, so the Ray actor is killed before the error
            # is raised.
            self.kill(f"its Ray actor is lost: {said(error)}")
            raise EngineError(body.title, body.call_id, str(self._reason), ended="unknown") from error
        except BaseException:
            # Before the await, and so before `when_free` of the caller: the Ray actor must not look idle in between.
            self._ending += 1
            # In a task of its own: the body is ended even if this task is cancelled by force.
            await finish(partial(self._end, ref, number, body), "callboard_actors.ray ending")
            raise
        for word in words:
            dispatch_event(word)
        return opened(*reply, body)

    async def _reply(self, ref: Any, number: int) -> tuple[Reply, list[Word]]:
        bell = Bell()
        self._bells.add(bell)
        try:
            reply = bell.watch(ref)
            with anyio.move_on_after(_QUIET):
                await bell.wait()
            while not reply.done():
                news = bell.watch(self._actor.words.remote(number))
                # Awaited even if the reply arrives first, since it may carry the last events. The Ray actor answers it
                # when the body ends.
                await self._until_done(news, bell)
                if news.exception() is not None:
                    await self._until_done(reply, bell)  # raises the same error below
                    break
                for word in news.result():
                    dispatch_event(word)
            found: tuple[Reply, list[Word]] = reply.result()
            return found
        finally:
            self._bells.discard(bell)

    async def _until_done(self, future: Future[Any], bell: Bell) -> None:
        """Wait until Ray has resolved `future`; raise `_LostError` if the Ray actor is lost meanwhile."""
        # Raise `_LostError` if the Ray actor is lost, because Ray may never resolve the future then.
        while not future.done():
            if self._reason is not None:
                raise _LostError(self._reason)
            await bell.wait()

    def when_free(self, fn: Callable[[], object]) -> None:
        """Call `fn` as soon as no cancelled function call is still running in this Ray actor."""
        self._when_free.append(fn)
        self._tell_free()

    def _tell_free(self) -> None:
        if not self._ending:
            told, self._when_free = self._when_free, []
            for fn in told:
                fn()

    async def _end(self, ref: Any, number: int, body: Body) -> None:
        """Cancel a function call; if the call does not end within its grace, end the Ray actor. Never raises."""
        grace = self._terms.grace if body.grace is None else min(body.grace, self._terms.grace)
        has_ended = False
        try:
            with suppress(Exception), anyio.move_on_after(grace):  # for instance, Ray was disconnected
                self._actor.cancel.remote(number)
                await value_of(ref)
                has_ended = True
            if not has_ended:
                await self.end(f"{body.title!r} had been cancelled there and did not end within its grace")
        finally:
            # On every path, or the Ray actor would never be offered to a call again.
            self._ending -= 1
            self._tell_free()

    async def end(self, reason: str) -> None:
        """End the Ray actor and wait until it has ended, also if the caller is cancelled."""
        self._lose(reason)
        if self._watch is None:
            self.kill()
        else:
            await finish(self._leave, "callboard_actors.ray leaving")

    async def _leave(self) -> None:
        try:
            # First ask it to exit: Ray reports an actor as killed before its process has ended, so its body could go
            # on.
            if ray.is_initialized():
                with suppress(Exception):
                    self._actor.leave.remote()
            with anyio.move_on_after(_TO_LEAVE):
                await self.until_ended()
        finally:
            self.kill()
        # Bounded: of a node that cannot be reached, Ray may not report the end for minutes.
        with anyio.move_on_after(self._terms.kill_timeout):
            await self.until_ended()

    def kill(self, reason: str = "it was ended") -> None:
        """Kill the Ray actor at once, without restart."""
        self._lose(reason)
        if self._actor is not None and ray.is_initialized():
            with suppress(Exception):  # an actor that is unknown to Ray has ended
                ray.kill(self._actor, no_restart=True)


def _check_versions(title: str, there: Mapping[str, str]) -> None:
    for name, own in versions().items():
        if own != there[name]:
            raise ActorStartError(
                title,
                f"the cluster has {name} {there[name]}, and here it is {own}; both have to be the same",
                never=True,
            )


def said(error: Exception) -> str:
    """Return the text of an error of Ray as one line of at most 400 characters, because Ray's own texts are long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join([type(error).__name__ + ":", *lines])[:400]
