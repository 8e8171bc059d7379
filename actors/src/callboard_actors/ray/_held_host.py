"""A host as its engine holds it: bodies there, what they say, and how it ended."""

import itertools
import math
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import ray
from anyio.to_thread import run_sync
from ray.exceptions import RayError

from callboard import ActorStartError
from callboard.engines import Body, EngineError, carried, deliver
from callboard_actors._own_task import finish
from callboard_actors.ray._crossing import Reply, opened, packed
from callboard_actors.ray._host import Hello, Host, Word, here
from callboard_actors.ray._refs import Bell, value_of
from callboard_actors.ray._room import what_lacks
from callboard_actors.ray._terms import Terms

_QUIET = 0.02
"""Seconds in which a body that ends says what it has said with its end; of longer ones it is asked for."""
_AT_ONCE = 10_000
"""Calls of a Ray actor that are under way at the same time; each body may be asked for its words, too."""


_LOOKS = 10
"""How often the cluster is asked for room within the patience."""
_TO_LEAVE = 0.5
"""Seconds that a host has to end by itself; one whose body lets nothing else run is killed then."""


class NoRoomError(Exception):
    """The cluster lacks what a host needs; the text names it."""


class _LostError(Exception):
    """A host has ended that had something to answer."""


class HeldHost:
    """A Ray actor of one engine, in one event loop."""

    def __init__(self, title: str, terms: Terms) -> None:
        self._title = title
        self._terms = terms
        self._numbers = itertools.count(1)
        self._reason: str | None = None
        self._bells: set[Bell] = set()
        self._actor: Any = None
        self._watch: Any = None
        self._ending = 0
        """Bodies that are being ended; their callers may have gone."""
        self._when_free = list[Callable[[], object]]()
        self._began = -math.inf
        """When its start began, by the clock of the event loop."""
        self.has_started = False
        self.idle_since = math.inf
        """By the clock of the event loop, while it has nothing to do."""

    async def start(self, patience: float | None = None) -> None:
        """Have it started by Ray, where there is room for it.

        Args:
            patience: seconds to wait for room; `None` for any time.

        Raises:
            ActorStartError: it cannot be used.
            NoRoomError: the cluster has had no room for it all the time.
        """
        make = ray.remote(Host).options(
            max_restarts=0, max_task_retries=0, max_concurrency=_AT_ONCE, **self._terms.ray_options()
        )
        lacked = patience is not None and await run_sync(what_lacks, self._terms) is not None
        self._began = anyio.current_time()
        self._actor = await run_sync(make.remote)
        try:
            _check_versions(self._title, await self._hello(patience if lacked else None))
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

    async def _hello(self, patience: float | None) -> Hello:
        """Wait until it lives, and no longer than the patience while the cluster has no room for it.

        Raises:
            NoRoomError: it never had room.
        """
        bell = Bell()
        future = bell.watch(self._actor.hello.remote())
        since = anyio.current_time()
        while not future.done():
            with anyio.move_on_after(math.inf if patience is None else patience / _LOOKS):
                await bell.wait()
            if patience is None or future.done():
                continue
            if (lacking := await run_sync(what_lacks, self._terms)) is None:
                patience = None  # there is room now; that it takes it looks the same as that others do
            elif anyio.current_time() - since >= patience:
                raise NoRoomError(lacking)
        hello: Hello = future.result()
        return hello

    @property
    def is_alive(self) -> bool:
        """Nothing is known that has ended it."""
        return self._reason is None

    @property
    def is_expected(self) -> bool:
        """It lives, or has a place on the cluster and time left to start."""
        is_starting = anyio.current_time() - self._began < self._terms.start_timeout
        return self.is_alive and (self.has_started or is_starting)

    async def until_ended(self) -> str:
        """Wait until it has ended by itself, was killed, or cannot be reached; says how."""
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
        """Run a body there; see `callboard.Seat`."""
        data = packed(body)
        if self._reason is not None:
            raise EngineError(body.title, body.call_id, self._reason, ended="unavailable")
        number = next(self._numbers)
        if body.on_begin is not None:
            body.on_begin()  # first, because its deadline, which is carried along, runs from now
        ref = self._actor.run.remote(number, carried(), data, self._terms.max_result)
        try:
            reply, words = await self._reply(ref, number)
        except (RayError, _LostError) as error:
            # Nobody knows whether it has begun, nor whether it goes on: it is ended, so that it does not.
            self.kill(f"its Ray actor is lost: {said(error)}")
            raise EngineError(body.title, body.call_id, str(self._reason), ended="unknown") from error
        except BaseException:
            self._ending += 1
            await finish(partial(self._end, ref, number, body), "callboard_actors.ray ending")
            raise
        for word in words:
            deliver(word)
        return opened(reply, body)

    async def _reply(self, ref: Any, number: int) -> tuple[Reply, list[Word]]:
        bell = Bell()
        self._bells.add(bell)
        try:
            reply = bell.watch(ref)
            with anyio.move_on_after(_QUIET):
                await bell.wait()
            while not reply.done():
                news = bell.watch(self._actor.words.remote(number))
                # Behind the reply too, for words that are on their way; a host answers when the body has ended.
                await self._until_done(news, bell)
                if news.exception() is not None:
                    await self._until_done(reply, bell)  # which tells of it
                    break
                for word in news.result():
                    deliver(word)
            found: tuple[Reply, list[Word]] = reply.result()
            return found
        finally:
            self._bells.discard(bell)

    async def _until_done(self, future: Future[Any], bell: Bell) -> None:
        """Wait until Ray has answered, or is known to have lost the host: what was sent it then, it may never answer.

        Raises:
            _LostError: the latter.
        """
        while not future.done():
            if self._reason is not None:
                raise _LostError(self._reason)
            await bell.wait()

    def when_free(self, fn: Callable[[], object]) -> None:
        """Call a function when no body runs here any more: now, or when those that are being ended have ended."""
        self._when_free.append(fn)
        self._tell_free()

    def _tell_free(self) -> None:
        if not self._ending:
            told, self._when_free = self._when_free, []
            for fn in told:
                fn()

    async def _end(self, ref: Any, number: int, body: Body) -> None:
        """End a body whose caller has gone, if need be with its host; does not raise."""
        grace = self._terms.grace if body.grace is None else min(body.grace, self._terms.grace)
        has_ended = False
        try:
            with suppress(Exception), anyio.move_on_after(grace):  # such as Ray having been left meanwhile
                self._actor.cancel.remote(number)
                await value_of(ref)
                has_ended = True
            if not has_ended:
                await self.end(f"{body.title!r} had been cancelled there and did not end within its grace")
        finally:
            self._ending -= 1
            self._tell_free()

    async def end(self, reason: str) -> None:
        """Have it end and wait until it has, whoever is cancelled meanwhile."""
        self._lose(reason)
        if self._watch is None:
            self.kill()
        else:
            await finish(self._leave, "callboard_actors.ray leaving")

    async def _leave(self) -> None:
        try:
            # By itself, if it can: Ray tells of one that it kills before that has ended, and its body goes on.
            if ray.is_initialized():
                with suppress(Exception):
                    self._actor.leave.remote()
            with anyio.move_on_after(_TO_LEAVE):
                await self.until_ended()
        finally:
            self.kill()
        with anyio.move_on_after(self._terms.kill_timeout):
            await self.until_ended()

    def kill(self, reason: str = "it was ended") -> None:
        """End it at once, with all that runs there; Ray starts no other in its place."""
        self._lose(reason)
        if self._actor is not None and ray.is_initialized():
            with suppress(Exception):  # whatever Ray says, it is of no more use
                ray.kill(self._actor, no_restart=True)


def _check_versions(title: str, there: Hello) -> None:
    for name in ("python", "callboard"):
        own, other = getattr(here(), name), getattr(there, name)
        if own != other:
            raise ActorStartError(
                title, f"the cluster has {name} {other}, and here it is {own}; both have to be the same", never=True
            )


def said(error: Exception) -> str:
    """Returns an error of Ray's as one line, cut off: Ray goes on for pages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join([type(error).__name__ + ":", *lines])[:400]
