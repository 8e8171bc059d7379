"""`RemoteEngine`: bodies on other machines, where `callboard worker` serves them."""

import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from callboard.engines import Body, EngineError
from callboard_actors._lost_cleanup import warn_of_lost_cleanup
from callboard_actors._openings import OpenedEngine, Openings
from callboard_actors.process import _crossing
from callboard_actors.process._main_module import NAMES
from callboard_actors.process._variables import Variables
from callboard_actors.remote._addresses import address
from callboard_actors.remote._call import NotBegunError
from callboard_actors.remote._fleet import Fleet
from callboard_actors.remote._handshake import Wishes
from callboard_actors.remote._held_seat import RemoteSeat
from callboard_actors.remote._link import Terms
from callboard_actors.remote._secret import checked, secret_from
from callboard_actors.remote._there import name_of
from callboard_actors.remote._tls import ClientTLS, client_context

_ATTEMPTS: Final = 3
"""Workers that a call is given, at least, if they cannot begin it; each of them has two."""


class RemoteEngine(OpenedEngine[Openings[Fleet]]):
    """Runs bodies on other machines, at workers that `callboard worker module:tools --listen host:port` has started.

        engine = RemoteEngine(["worker-1:7000", "worker-2:7000"], tls="ca.pem")
        node = ToolNode([render], policies={"render": CallPolicy(runs_in=engine)})

    A call goes to the worker with the smallest share of its places taken; where all are taken, it waits here. What a
    worker runs when it is lost is unknown, what it had not begun goes to another one. Lost workers are looked for
    again, with growing pauses. It may be opened by several at once, in any number of event loops.

    Args:
        workers: their addresses, "host:port".
        secret: what both sides have, 16 bytes or more; `None` for `secret_file`, or the environment's
            `CALLBOARD_WORKER_SECRET`.
        secret_file: a file that has it.
        tls: the file of the authority by which the certificates of workers are checked, an `ssl.SSLContext`, or True
            for the system's authorities. Without it, only workers on this machine are spoken to.
        insecure: speak to others without TLS all the same. Whoever is in between reads everything, and may run
            anything on both sides.
        grace: seconds that a cancelled body has to end, if its own are not fewer.
        heartbeat: seconds between signs of life, of either side.
        silence: seconds without one after which a worker is lost, or an agent for it.
        connect_timeout: seconds for a connection, with its handshake.
        start_timeout: seconds for the first one, when the engine is opened.
        patience: seconds that a call waits if no worker can be had; if they are busy, it waits as long as it may.
        max_result: bytes that a result may have.
        carries: context variables of yours that go with each call, as `"package.module:variable"`.
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
        far = [str(one) for one in self._addresses if not one.is_loopback]
        if far and context is None and not insecure:
            raise ValueError(
                f"RemoteEngine({far}) would speak without TLS to other machines; give it tls='ca.pem', or "
                "insecure=True where nobody else is on the network"
            )
        _check_seconds(grace=grace, connect_timeout=connect_timeout, start_timeout=start_timeout, patience=patience)
        self._terms = Terms(
            secret=_secret(secret, secret_file),
            tls=context,
            wishes=Wishes(heartbeat=heartbeat, silence=silence, max_result=max_result),
            grace=grace,
            connect_timeout=connect_timeout,
            start_timeout=start_timeout,
            patience=patience,
            variables=Variables(carries),
        )
        self._openings = Openings(
            lambda: Fleet(self._addresses, self._terms), noun="remote engine", task="callboard_actors.remote"
        )

    def check(self, fn: Callable[..., Any], /, *, title: str) -> None:
        """Refuse a function that could not be found on another machine.

        Raises:
            TypeError: says why it could not; `title` is what to call it.
        """
        _check_name(name_of(fn), title)
        _crossing.check(fn, title)
        warn_of_lost_cleanup(fn, title)

    async def run_body(self, body: Body, /) -> Any:
        """Run a body at a worker; see `callboard.Engine`.

        Raises:
            TypeError: it cannot be sent.
            callboard.EngineError: it has no result.
            callboard.ActorGoneError: the engine is not open.
        """
        subject = name_of(body.fn if body.subject is None else body.subject)
        _check_name(subject, body.title)
        pickled = _crossing.packed(body, self._terms.variables.values())
        with self._openings.bodies.running(body, grace=self._terms.grace) as noted:
            return await self._run(noted, pickled, subject)

    async def _run(self, body: Body, pickled: bytes, subject: str) -> Any:
        """Run a body at one worker after the other, until one can begin it."""
        for left in reversed(range(max(_ATTEMPTS, 2 * len(self._addresses)))):
            fleet = self._openings.here(body.title, body.call_id)
            link = await fleet.take(body.title, body.call_id, subject)
            try:
                return await link.run_reserved(body, pickled)
            except NotBegunError as error:
                if not left or error.recurs:
                    raise
        raise AssertionError("the last attempt returns or raises")

    @asynccontextmanager
    async def seat(self, title: str, /) -> AsyncGenerator[RemoteSeat]:
        """Have a worker of a worker for oneself; see `callboard.Engine`.

        Raises:
            callboard.EngineError: there is none.
            callboard.ActorGoneError: the engine is not open.
        """
        self._openings.bodies.check_open(title)
        fleet = self._openings.here(title)
        reason = "none of its workers can be had"
        for link in fleet.seats_from():
            seat = await link.have_seat(title)
            if seat is not None and seat.is_there:
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
