"""Places for bodies in the Ray actors of an engine: which Ray actor runs a body, and which bodies wait.

A Ray actor has room for `concurrency` async bodies, or for one sync body. A sync body shares its Ray actor with no
other body, because only the death of the process ends it.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import anyio

from callboard_actors._engine._lifecycle import WaitingCall


class _RayActor(Protocol):
    @property
    def is_alive(self) -> bool: ...


HostT = TypeVar("HostT", bound=_RayActor)


@dataclass(eq=False, slots=True)
class _WaitingBody(WaitingCall[HostT]):
    is_sync: bool = False


class Places(Generic[HostT]):
    """FIFO queue that gives bodies places in Ray actors, in the one with the fewest bodies first.

    If the first waiting body is a sync one, a Ray actor is kept free for it: no further async body begins there. Async
    bodies behind it use the other Ray actors meanwhile.

    Args:
        concurrency: number of async bodies in one Ray actor.
    """

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._loads_by_host: dict[HostT, int] = {}
        self._waiting_bodies = deque[_WaitingBody[HostT]]()
        self._reserved_hosts = set[HostT]()
        """Ray actors in which no body begins: sync bodies at the head of the queue wait until they are empty."""

    def add(self, host: HostT) -> None:
        """Offer the places of a Ray actor that has started."""
        self._loads_by_host[host] = 0
        self._assign_places()

    def remove(self, host: HostT) -> None:
        """Withdraw the places of a Ray actor that has ended, or is about to end."""
        self._loads_by_host.pop(host, None)
        self._assign_places()

    def take_nowait(self, *, is_sync: bool) -> HostT | None:
        """Return a Ray actor with a free place, which is then taken; return `None` if there is none, or bodies wait."""
        return None if self._waiting_bodies else self._take_host(is_sync=is_sync)

    async def take(self, *, is_sync: bool, patience: float, is_hopeless: Callable[[], bool]) -> HostT | None:
        """Wait for a place and return its Ray actor; return `None` if `fail_waiting_bodies()` is called meanwhile.

        Args:
            is_sync: kind of the body that needs the place.
            patience: seconds between two checks of `is_hopeless`.
            is_hopeless: returns whether no Ray actor lives or starts.

        Raises:
            TimeoutError: the wait was hopeless in two checks, one after the other.
        """
        body = _WaitingBody[HostT](is_sync=is_sync)
        self._waiting_bodies.append(body)
        self._assign_places()
        was_hopeless = is_hopeless()
        try:
            while not body.has_answer.is_set():
                with anyio.move_on_after(patience):
                    await body.has_answer.wait()
                    break
                if was_hopeless and is_hopeless():
                    raise TimeoutError
                was_hopeless = is_hopeless()
        except BaseException:
            # After a place was assigned, pass it on, or it would stay taken for ever.
            if body.worker is not None:
                self.give_back(body.worker, is_sync=is_sync)
            elif not body.has_answer.is_set():
                self._waiting_bodies.remove(body)
                self._assign_places()  # the body may have kept a Ray actor free
            raise
        return body.worker

    def give_back(self, host: HostT, *, is_sync: bool) -> None:
        """Release the place of a body that has ended."""
        if host in self._loads_by_host:
            self._loads_by_host[host] -= self._load_of_body(is_sync=is_sync)
            self._assign_places()

    def fail_waiting_bodies(self) -> None:
        """Answer all waiting bodies that they get no place, and withdraw all places."""
        self._loads_by_host.clear()
        while self._waiting_bodies:
            self._waiting_bodies.popleft().answer(None)

    def _load_of_body(self, *, is_sync: bool) -> int:
        return self._concurrency if is_sync else 1

    def _assign_places(self) -> None:
        previously_reserved, self._reserved_hosts = self._reserved_hosts, set()
        index = 0
        while self._loads_by_host and index < len(self._waiting_bodies):
            body = self._waiting_bodies[index]
            host = self._take_host(is_sync=body.is_sync)
            if host is not None:
                del self._waiting_bodies[index]
                body.answer(host)
                continue
            candidates = [host for host in self._loads_by_host if host.is_alive and host not in self._reserved_hosts]
            if not body.is_sync or not candidates:
                return
            # The Ray actor with the fewest bodies, and of these one that was reserved before: so the sync body that
            # waits for it gets nearer with each body that ends there.
            reserved_host = min(
                candidates, key=lambda host: (self._loads_by_host[host], host not in previously_reserved)
            )
            self._reserved_hosts.add(reserved_host)
            index += 1

    def _take_host(self, *, is_sync: bool) -> HostT | None:
        body_load = self._load_of_body(is_sync=is_sync)
        max_load = self._concurrency - body_load
        hosts = (
            host
            for host, load in self._loads_by_host.items()
            if load <= max_load and host.is_alive and host not in self._reserved_hosts
        )
        host = min(hosts, key=self._loads_by_host.__getitem__, default=None)
        if host is not None:
            self._loads_by_host[host] += body_load
        return host
