"""`RemoteEngine`: runs tools and actors on other machines, where `callboard worker` serves them."""

import os
import random
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio

from callboard import ActorStartError
from callboard.extend import Body, EngineError
from callboard_actors._engine import _codec
from callboard_actors._engine._lifecycle import OpenedEngine
from callboard_actors._engine._main_module import NAMES
from callboard_actors._engine._pickles import Variables
from callboard_actors._engine._session import NotBegunError
from callboard_actors._util._options import check_durations
from callboard_actors._util._secret import checked, secret_from
from callboard_actors.remote._handshake import Address, ClientTLS, Wishes, address, client_context
from callboard_actors.remote._in_worker import name_of
from callboard_actors.remote._link import Link, LinkOptions, RemoteSeat

# Workers of an engine in one event loop: assigns calls to connections, and queues calls that wait for one.

_NAME: Final = "RemoteEngine"
_FOR_THE_OTHERS: Final = 1.0
"""Seconds that the opening of an engine waits for further workers after the first worker is connected."""
_LOOK: Final = 1.0
"""Minimum seconds between two checks whether the busy workers for which a call waits are still connected."""


class _Waiting:
    """Call that waits for a link to a worker with free capacity."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.told = anyio.Event()
        self.link: Link | None = None


class RemoteWorkers:
    """Connections to all workers of an engine, and a FIFO queue of calls that wait for a free worker."""

    def __init__(self, addresses: Sequence[Address], terms: LinkOptions) -> None:
        self._terms = terms
        self.links = [Link(address, terms, self._deal) for address in addresses]
        self._waiting = deque[_Waiting]()
        self._keeping = anyio.CancelScope()
        self._over = anyio.Event()
        self.failure: ActorStartError | None = None
        """Always `None`, because unreachable workers are tried again; `OpenedEngine` reads this attribute."""

    async def keep(self) -> None:
        """Keep the connections to all workers open, until `dismiss` is called."""
        try:
            with self._keeping:
                async with anyio.create_task_group() as group:
                    for link in self.links:
                        group.start_soon(link.keep)
        finally:
            self._over.set()

    async def until_ready(self) -> None:
        """Wait until one worker is connected, and then briefly for the other workers."""
        with anyio.move_on_after(self._terms.start_timeout):
            while not (any(link.is_up for link in self.links) or all(link.is_refused for link in self.links)):
                await anyio.sleep(0.005)
            with anyio.move_on_after(_FOR_THE_OTHERS):
                for link in self.links:
                    await link.settled.wait()
        if not any(link.is_up for link in self.links):
            never = all(link.is_refused for link in self.links)
            raise ActorStartError(_NAME, f"none of its workers can be had: {self._troubles()}", never=never)

    def _troubles(self) -> str:
        return "; ".join(f"{link.address}: {link.trouble}" for link in self.links if not link.is_up) or "they are busy"

    async def take(self, title: str, call_id: str | None, subject: str) -> Link:
        """Wait for a worker that serves `subject` and has free capacity; reserve capacity and return its link."""
        # FIFO: a new call does not overtake waiting ones, even if a worker has room.
        link = None if self._waiting else self._free(subject)
        return await self._wait(title, call_id, subject) if link is None else link

    def _free(self, subject: str) -> Link | None:
        """Reserve capacity at the worker whose capacity is used least; return `None` if no worker has room."""
        links = [one for one in self.links if one.has_room and one.serves(subject)]
        # Among equal shares, the choice is random.
        link = min(links, key=lambda one: (one.share, random.random()), default=None)  # noqa: S311
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
        """Return how many more seconds a call may wait for a worker, if it has waited since the time `since`."""
        # Busy but connected: wait on, and check again later.
        if any(link.is_up and link.serves(subject) for link in self.links):
            return max(self._terms.patience, _LOOK)
        # Patience counts from the loss of the last suitable worker. One that never connected might be suitable.
        could = [link.gone_at for link in self.links if link.offer is None or link.serves(subject)]
        return max([since, *could]) + self._terms.patience - anyio.current_time()

    def _check_served(self, title: str, call_id: str | None, subject: str) -> None:
        """Raise `EngineError` if all workers are connected and none of them serves the function or actor `subject`."""
        if any(link.serves(subject) or not link.is_up for link in self.links):
            return
        served = sorted({name for link in self.links if link.offer is not None for name in link.offer.serves})
        shown = ", ".join(served[:20]) + (", ..." if len(served) > 20 else "")
        reason = f"none of its workers serves {subject}, only {shown}; name it in `callboard worker module:tools`"
        raise EngineError(title, call_id, reason, ended="unavailable", recurs=True)

    def _deal(self) -> None:
        """Assign free workers to waiting calls in FIFO order; calls for which no worker is free stay queued."""
        for one in list(self._waiting):
            if not any(link.has_room for link in self.links):
                return
            if (link := self._free(one.subject)) is not None:
                self._waiting.remove(one)
                one.link = link
                one.told.set()

    def seats_from(self) -> list[Link]:
        """Return the links of the connected workers in the order to request a dedicated process: least loaded first."""
        return sorted((link for link in self.links if link.is_up), key=lambda link: (link.load, random.random()))  # noqa: S311

    async def dismiss(self) -> None:
        """Cancel running calls, wait for their ends, and close all connections."""
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as group:
                for link in self.links:
                    group.start_soon(link.part)
            self._keeping.cancel()
            await self._over.wait()

    def abandon(self) -> None:
        """Do nothing: the sockets close with their event loop, and the workers notice the closed connections."""


# The engine.

_ATTEMPTS: Final = 3
"""Minimum number of attempts to start a call on a worker; with several workers, two attempts per worker are made."""


class RemoteEngine(OpenedEngine[RemoteWorkers]):
    """Engine that runs tools and actors on other machines, in workers started by `callboard worker module:tools`.

        engine = RemoteEngine(["worker-1:7000", "worker-2:7000"], tls="ca.pem")
        node = ToolNode([render], policies={"render": CallPolicy(runs_in=engine)})

    On each machine, start `callboard worker module:tools --listen host:port`.

    A call goes to the worker with the smallest share of its capacity in use. If all are busy, the call waits here. If a
    worker is lost, calls that it had begun end as unknown; others go to another worker. The engine reconnects to lost
    workers with growing pauses. It can be opened several times, in any number of event loops.

    Args:
        workers: addresses of the workers, "host:port".
        secret: secret that both sides share, at least 16 bytes; `None` to read `secret_file`, or the environment
            variable `CALLBOARD_WORKER_SECRET`.
        secret_file: file that contains the secret.
        tls: file of the certificate authority that signed the workers' certificates, an `ssl.SSLContext`, or `True` for
            the system's authorities. Without TLS, only workers on this machine are allowed.
        insecure: allow workers on other machines without TLS. Anyone in between can read everything, and run code on
            both sides.
        grace: seconds for a cancelled body to end, unless its own grace is shorter.
        heartbeat: seconds between two pings, in both directions.
        silence: seconds without received data after which either side considers the other one lost.
        connect_timeout: seconds for a connection and its handshake.
        start_timeout: seconds for the first connection when the engine is opened.
        patience: seconds that a call waits while no suitable worker is connected. For busy workers it waits without
            limit.
        max_result: bytes of an encoded result at most.
        carries: your context variables that are sent with each call, as `"package.module:variable"`.

    Raises:
        TypeError: if an option has the wrong type.
        ValueError: if an address, the secret or a number cannot be used, or TLS is missing.
    """

    def __init__(
        self,
        workers: Sequence[str],
        *,
        secret: str | bytes | None = None,
        secret_file: str | os.PathLike[str] | None = None,
        tls: ClientTLS = None,
        insecure: bool = False,
        grace: float = 5.0,
        heartbeat: float = 5.0,
        silence: float = 15.0,
        connect_timeout: float = 5.0,
        start_timeout: float = 10.0,
        patience: float = 5.0,
        max_result: int = 64 * 1024 * 1024,
        carries: Sequence[str] = (),
    ) -> None:
        if isinstance(workers, str):
            raise TypeError(f"RemoteEngine({workers!r}) takes a list of addresses: RemoteEngine([{workers!r}])")
        self._addresses = [address(one) for one in workers]
        if not self._addresses:
            raise ValueError("RemoteEngine([]) has no worker; give it addresses, such as 'worker-1:7000'")
        context = client_context(tls)
        # Without TLS a go-between can run code on both sides, so other machines require an explicit `insecure`.
        far = [str(one) for one in self._addresses if not one.is_loopback]
        if far and context is None and not insecure:
            raise ValueError(
                f"RemoteEngine({far}) would speak without TLS to other machines; give it tls='ca.pem', or "
                "insecure=True where nobody else is on the network"
            )
        seconds = {"grace": grace, "connect_timeout": connect_timeout, "start_timeout": start_timeout}
        check_durations("RemoteEngine", may_be_zero=True, **seconds, patience=patience)
        self._terms = LinkOptions(
            secret=_secret(secret, secret_file),
            tls=context,
            wishes=Wishes(heartbeat=heartbeat, silence=silence, max_result=max_result),
            grace=grace,
            connect_timeout=connect_timeout,
            start_timeout=start_timeout,
            patience=patience,
            variables=Variables(carries),
        )
        super().__init__(
            lambda: RemoteWorkers(self._addresses, self._terms), noun="remote engine", task="callboard_actors.remote"
        )

    def check(self, fn: Callable[..., Any], /, *, title: str) -> None:
        """Raise `TypeError` if workers on other machines cannot find the function; `title` names it in the error."""
        _check_name(name_of(fn), title)
        _codec.check(fn, title)

    async def run_body(self, body: Body, /) -> Any:
        """Run one function call (`body`) of a tool or actor on a remote worker; see `callboard.Engine`.

        Raises:
            TypeError: the body cannot be sent.
            callboard.EngineError: the body has no result; `ended` tells whether it had begun.
            callboard.ActorGoneError: the engine is not open.
        """
        subject = name_of(body.fn if body.subject is None else body.subject)
        _check_name(subject, body.title)
        pickled = _codec.packed(body, self._terms.variables.values())
        with self._bodies.running(body, grace=self._terms.grace) as noted:
            for left in reversed(range(max(_ATTEMPTS, 2 * len(self._addresses)))):
                fleet = self._here(noted.title, noted.call_id)
                link = await fleet.take(noted.title, noted.call_id, subject)
                try:
                    return await link.run_reserved(noted, pickled)
                except NotBegunError as error:
                    # It certainly did not begin there. `recurs`: all workers would refuse it for the same reason.
                    if not left or error.recurs:
                        raise
        raise AssertionError("the last attempt returns or raises")

    @asynccontextmanager
    async def seat(self, title: str, /) -> AsyncGenerator[RemoteSeat]:
        """Reserve a dedicated process on a remote worker until the `async with` block ends; see `callboard.Engine`.

        Raises:
            callboard.EngineError: no worker has one available.
        """
        self._bodies.check_open(title)
        fleet = self._here(title)
        reason = "none of its workers can be had"
        for link in fleet.seats_from():
            seat = await link.have_seat(title)
            # A refusal is not final: the next worker is asked.
            if seat is not None and not seat.gone.is_set():
                try:
                    yield seat
                finally:
                    await link.leave_seat(seat)
                return
            reason = reason if seat is None else seat.reason
        raise EngineError(title, None, reason, ended="unavailable")


def _secret(secret: str | bytes | None, file: str | os.PathLike[str] | None) -> bytes:
    if secret is None:
        return secret_from(file)
    if file is not None:
        raise ValueError("RemoteEngine(secret=..., secret_file=...): give it one of both")
    return checked(secret.encode() if isinstance(secret, str) else secret, "RemoteEngine(secret=...)")


def _check_name(subject: str, title: str) -> None:
    if subject.partition(":")[0] in NAMES:
        raise TypeError(
            f"{title!r} cannot run on another machine: it is defined in __main__, which is another program there; move "
            "it into a module"
        )
