"""Workers of an engine in one event loop: assigns calls to connections, and queues calls that wait for one."""

import random
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

import anyio

from callboard import ActorStartError
from callboard.extend import EngineError
from callboard_actors.remote._link import Link, LinkOptions
from callboard_actors.remote._tls import Address

_NAME: Final = "RemoteEngine"
_FOR_THE_OTHERS: Final = 1.0
"""Seconds that opening an engine waits for other workers after the first connection."""
_LOOK: Final = 1.0
"""Minimum of seconds after which a call that waits for busy workers checks that they are still connected."""


def least_loaded(links: Iterable[Link]) -> Link | None:
    """Return the link with the smallest share of its capacity in use; a random one among equals."""
    shares = [(one.load / one.offer.capacity, random.random(), one) for one in links if one.offer is not None]  # noqa: S311
    return min(shares, key=lambda share: share[:2])[2] if shares else None


class _Waiting:
    """Call that waits for a link."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.told = anyio.Event()
        self.link: Link | None = None


class RemoteWorkers:
    """Connections to all workers of an engine, and a FIFO queue of calls that wait for one."""

    def __init__(self, addresses: Sequence[Address], terms: LinkOptions) -> None:
        self._terms = terms
        self.links = [Link(address, terms, self._deal) for address in addresses]
        self._waiting = deque[_Waiting]()
        self._keeping = anyio.CancelScope()
        self._over = anyio.Event()
        self.failure: ActorStartError | None = None
        """Always `None`: workers that cannot be reached are tried again. The engine's lifecycle reads it."""

    async def keep(self) -> None:
        """Keep all connections open until dismissed."""
        try:
            with self._keeping:
                async with anyio.create_task_group() as group:
                    for link in self.links:
                        group.start_soon(link.keep)
        finally:
            self._over.set()

    async def until_ready(self) -> None:
        """Wait for the first connection, and briefly for the others; raise `ActorStartError` after `start_timeout`."""
        with anyio.move_on_after(self._terms.start_timeout):
            await self._any_up()
            with anyio.move_on_after(_FOR_THE_OTHERS):
                for link in self.links:
                    await link.settled.wait()
        if not any(link.is_up for link in self.links):
            never = all(link.is_refused for link in self.links)
            raise ActorStartError(_NAME, f"none of its workers can be had: {self._troubles()}", never=never)

    async def _any_up(self) -> None:
        while not any(link.is_up for link in self.links):
            if all(link.is_refused for link in self.links):
                return
            await anyio.sleep(0.005)

    def _troubles(self) -> str:
        return "; ".join(f"{link.address}: {link.trouble}" for link in self.links if not link.is_up) or "they are busy"

    async def take(self, title: str, call_id: str | None, subject: str) -> Link:
        """Wait for a worker that serves `subject` and has capacity; reserve a place on it."""
        # FIFO: a new call does not overtake waiting ones, even if a worker has room.
        if (link := None if self._waiting else self._free(subject)) is None:
            link = await self._wait(title, call_id, subject)
        return link

    def _free(self, subject: str) -> Link | None:
        link = least_loaded(one for one in self.links if one.has_room and one.serves(subject))
        if link is not None:
            # In the same step as the choice: without an await in between, the place cannot be taken twice.
            link.reserve()
        return link

    async def _wait(self, title: str, call_id: str | None, subject: str) -> Link:
        one, since = _Waiting(subject), anyio.current_time()
        self._waiting.append(one)
        try:
            # A worker may have room already, for this call but not for the ones before it in the queue.
            self._deal()
            while one.link is None:
                # `_deal` wakes a call only with a link. The loss of workers is noticed by looking again after this
                # time.
                with anyio.move_on_after(self._patience_left(subject, since)):
                    self._check_served(title, call_id, subject)
                    await one.told.wait()
                if not one.told.is_set() and self._patience_left(subject, since) <= 0:
                    reason = f"none of its workers can be had: {self._troubles()}"
                    raise EngineError(title, call_id, reason, ended="unavailable")
        except BaseException:
            # Cancelled after a link was assigned: give the reserved place to another call.
            if one.link is not None:
                one.link.release()
            elif one in self._waiting:
                self._waiting.remove(one)
            raise
        return one.link

    def _patience_left(self, subject: str, since: float) -> float:
        """Return the seconds that a call waiting since `since` waits on, in the present state of the workers."""
        # Busy but connected: wait on, and check again later.
        if any(link.is_up and link.serves(subject) for link in self.links):
            return max(self._terms.patience, _LOOK)
        # Patience counts from the loss of the last suitable worker. One that never connected might be suitable.
        could = [link.gone_at for link in self.links if link.offer is None or link.serves(subject)]
        return max([since, *could]) + self._terms.patience - anyio.current_time()

    def _check_served(self, title: str, call_id: str | None, subject: str) -> None:
        """Raise for a function that no worker serves, as soon as all workers are connected."""
        if any(link.serves(subject) or not link.is_up for link in self.links):
            return
        served = sorted({name for link in self.links if link.offer is not None for name in link.offer.serves})
        shown = ", ".join(served[:20]) + (", ..." if len(served) > 20 else "")
        reason = f"none of its workers serves {subject}, only {shown}; name it in `callboard worker module:tools`"
        raise EngineError(title, call_id, reason, ended="unavailable", recurs=True)

    def _deal(self) -> None:
        """Assign free workers to waiting calls in FIFO order; a call that no free worker serves stays queued."""
        for one in list(self._waiting):
            if not any(link.has_room for link in self.links):
                return
            if (link := self._free(one.subject)) is not None:
                self._waiting.remove(one)
                one.link = link
                one.told.set()

    def seats_from(self) -> list[Link]:
        """Return the links to ask for a dedicated worker, least loaded first."""
        return sorted((link for link in self.links if link.is_up), key=lambda link: (link.load, random.random()))  # noqa: S311

    async def dismiss(self) -> None:
        """Cancel running calls, and close all connections."""
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as group:
                for link in self.links:
                    group.start_soon(link.part)
            self._keeping.cancel()
            await self._over.wait()

    def abandon(self) -> None:
        """Do nothing: sockets close with their event loop, and workers notice."""
