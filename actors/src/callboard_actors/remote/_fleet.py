"""The workers of an engine in one event loop: which of them has the next call, and who waits for one."""

import random
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

import anyio

from callboard import ActorStartError
from callboard.engines import EngineError
from callboard_actors.remote._addresses import Address
from callboard_actors.remote._link import Link, Terms

_NAME: Final = "RemoteEngine"
_FOR_THE_OTHERS: Final = 1.0
"""Seconds that the first connection waits for those to the other workers, when an engine is opened."""
_LOOK: Final = 1.0
"""Seconds, at least, after which a call that waits for busy workers looks whether they are still there."""


def least_loaded(links: Iterable[Link]) -> Link | None:
    """Which of them has the next call: the one with the smallest share of its places taken, by chance among equals."""
    shares = [(one.load / one.offer.capacity, random.random(), one) for one in links if one.offer is not None]  # noqa: S311
    return min(shares, key=lambda share: share[:2])[2] if shares else None


class _Waiting:
    """A call that waits for a worker, and which it has been given."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.told = anyio.Event()
        self.link: Link | None = None


class Fleet:
    """Connections to all workers, and calls that wait for one, first come, first served.

    `keep` runs in a task of its own, which nobody cancels but `dismiss`, and the event loop when it ends.
    """

    def __init__(self, addresses: Sequence[Address], terms: Terms) -> None:
        self._terms = terms
        self.links = [Link(address, terms, self._deal) for address in addresses]
        self._waiting = deque[_Waiting]()
        self._keeping = anyio.CancelScope()
        self._over = anyio.Event()
        self.failure: ActorStartError | None = None
        """Why there never was a worker."""

    async def keep(self) -> None:
        """Keep all connections, until it is dismissed."""
        try:
            with self._keeping:
                async with anyio.create_task_group() as group:
                    for link in self.links:
                        group.start_soon(link.keep)
        finally:
            self._over.set()

    async def until_ready(self) -> None:
        """Wait for the first worker, and a moment for the others.

        Raises:
            ActorStartError: there is none in time.
        """
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
        """Wait for a worker that has room for a call of that; the place is kept.

        Raises:
            EngineError: there is none, and nobody knows when there will be.
        """
        if (link := None if self._waiting else self._free(subject)) is None:
            link = await self._wait(title, call_id, subject)
        return link

    def _free(self, subject: str) -> Link | None:
        link = least_loaded(one for one in self.links if one.has_room and one.serves(subject))
        if link is not None:
            link.reserve()
        return link

    async def _wait(self, title: str, call_id: str | None, subject: str) -> Link:
        one, since = _Waiting(subject), anyio.current_time()
        self._waiting.append(one)
        try:
            self._deal()
            while one.link is None:
                with anyio.move_on_after(self._patience_left(subject, since)):
                    self._check_served(title, call_id, subject)
                    await one.told.wait()
                if not one.told.is_set() and self._patience_left(subject, since) <= 0:
                    reason = f"none of its workers can be had: {self._troubles()}"
                    raise EngineError(title, call_id, reason, ended="unavailable")
        except BaseException:
            if one.link is not None:
                one.link.release()
            elif one in self._waiting:
                self._waiting.remove(one)
            raise
        return one.link

    def _patience_left(self, subject: str, since: float) -> float:
        """For how long a call that has waited since then waits on, as things are now."""
        if any(link.is_up and link.serves(subject) for link in self.links):
            return max(self._terms.patience, _LOOK)
        could = [link.gone_at for link in self.links if link.offer is None or link.serves(subject)]
        return max([since, *could]) + self._terms.patience - anyio.current_time()

    def _check_served(self, title: str, call_id: str | None, subject: str) -> None:
        """Refuse what no worker serves, as soon as all of them have said what they do."""
        if any(link.serves(subject) or not link.is_up for link in self.links):
            return
        served = sorted({name for link in self.links if link.offer is not None for name in link.offer.serves})
        shown = ", ".join(served[:20]) + (", ..." if len(served) > 20 else "")
        reason = f"none of its workers serves {subject}, only {shown}; name it in `callboard worker module:tools`"
        raise EngineError(title, call_id, reason, ended="unavailable", recurs=True)

    def _deal(self) -> None:
        """Give those who wait what there is, in their order; who wants what nobody free serves, waits on."""
        for one in list(self._waiting):
            if not any(link.has_room for link in self.links):
                return
            if (link := self._free(one.subject)) is not None:
                self._waiting.remove(one)
                one.link = link
                one.told.set()

    def seats_from(self) -> list[Link]:
        """Whom to ask for a seat, in this order."""
        return sorted((link for link in self.links if link.is_up), key=lambda link: (link.load, random.random()))  # noqa: S311

    async def dismiss(self) -> None:
        """End what runs, and all connections."""
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as group:
                for link in self.links:
                    group.start_soon(link.part)
            self._keeping.cancel()
            await self._over.wait()

    def abandon(self) -> None:
        """Nothing: connections end with their event loop, and workers see that."""
