"""`RemoteEngine`: runs tools and actors on other machines, where `callboard worker` serves them."""

import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from callboard.extend import Body, EngineError
from callboard_actors._engine import _codec
from callboard_actors._engine._lifecycle import EngineLifecycle, OpenedEngine
from callboard_actors._engine._main_module import NAMES
from callboard_actors._engine._pickles import Variables
from callboard_actors._engine._session import NotBegunError
from callboard_actors._util._secret import checked, secret_from
from callboard_actors.remote._handshake import Wishes
from callboard_actors.remote._in_worker import name_of
from callboard_actors.remote._link import LinkOptions, RemoteSeat
from callboard_actors.remote._tls import ClientTLS, address, client_context
from callboard_actors.remote._workers import RemoteWorkers

_ATTEMPTS: Final = 3
"""Attempts of a call at least, while workers cannot begin it; there are two per worker if that is more."""


class RemoteEngine(OpenedEngine[RemoteWorkers]):
    """Engine on other machines, in workers started by `callboard worker module:tools --listen host:port`.

        engine = RemoteEngine(["worker-1:7000", "worker-2:7000"], tls="ca.pem")
        node = ToolNode([render], policies={"render": CallPolicy(runs_in=engine)})

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
        _check_seconds(grace=grace, connect_timeout=connect_timeout, start_timeout=start_timeout, patience=patience)
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
        self._lifecycle = EngineLifecycle(
            lambda: RemoteWorkers(self._addresses, self._terms), noun="remote engine", task="callboard_actors.remote"
        )

    def check(self, fn: Callable[..., Any], /, *, title: str) -> None:
        """Reject a function that a worker on another machine cannot find.

        Args:
            fn: the function to check.
            title: name of the function in the error.

        Raises:
            TypeError: the function cannot be sent; the text says why.
        """
        _check_name(name_of(fn), title)
        _codec.check(fn, title)

    async def run_body(self, body: Body, /) -> Any:
        """Run a body on a worker; see `callboard.Engine`.

        Raises:
            TypeError: the body cannot be sent.
            callboard.EngineError: the body has no result; `ended` tells whether it had begun.
            callboard.ActorGoneError: the engine is not open.
        """
        subject = name_of(body.fn if body.subject is None else body.subject)
        _check_name(subject, body.title)
        pickled = _codec.packed(body, self._terms.variables.values())
        with self._lifecycle.bodies.running(body, grace=self._terms.grace) as noted:
            return await self._run(noted, pickled, subject)

    async def _run(self, body: Body, pickled: bytes, subject: str) -> Any:
        """Run a body on one worker after another, until one has begun it."""
        for left in reversed(range(max(_ATTEMPTS, 2 * len(self._addresses)))):
            fleet = self._lifecycle.here(body.title, body.call_id)
            link = await fleet.take(body.title, body.call_id, subject)
            try:
                return await link.run_reserved(body, pickled)
            except NotBegunError as error:
                # `recurs`: every other worker would refuse it for the same reason.
                if not left or error.recurs:
                    raise
        raise AssertionError("the last attempt returns or raises")

    @asynccontextmanager
    async def seat(self, title: str, /) -> AsyncGenerator[RemoteSeat]:
        """Reserve a dedicated worker process on a worker for the duration of the block; see `callboard.Engine`.

        Args:
            title: name of the owner in errors.

        Raises:
            callboard.EngineError: no worker has one available.
            callboard.ActorGoneError: the engine is not open.
        """
        self._lifecycle.bodies.check_open(title)
        fleet = self._lifecycle.here(title)
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


def _check_seconds(**given: float) -> None:
    for name, seconds in given.items():
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"{name}={seconds!r} is no number of seconds")


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
