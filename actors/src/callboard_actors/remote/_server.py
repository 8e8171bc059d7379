"""`callboard worker`, when it runs: who may come in, and how it ends."""

import logging
import ssl
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketListener, SocketStream
from anyio.streams.stapled import MultiListener

from callboard import Drained
from callboard.engines import Engine
from callboard_actors.process._frames import GarbageError
from callboard_actors.remote import _tls
from callboard_actors.remote._addresses import Address
from callboard_actors.remote._connection import Connection
from callboard_actors.remote._guest import Guest, House
from callboard_actors.remote._handshake import Offer, RefusedError, Wishes, admit
from callboard_actors.remote._wire import LONGEST_GREETING, FrameReader

_logger = logging.getLogger("callboard_actors.remote")
_STRANGERS: Final = 64
"""Connections that have not proved who they are, at once; more are closed."""
_BACKLOG: Final = 128
_LAST_WORDS: Final = 1.0
"""Seconds for agents to hear of the end of what was ended by force, beyond its grace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """Where a worker listens, and whom it lets in."""

    address: Address
    secret: bytes = field(repr=False)
    tls: ssl.SSLContext | None = None
    certificate: bytes | None = None
    """The worker's own, if there is TLS."""
    handshake_timeout: float = 10.0
    """Seconds for all of a handshake."""


class Server:
    """Serves agents with bodies in an engine, which is open.

    Args:
        door: where they come in.
        engine: runs the bodies.
        offer: what is promised to each.
        grace: seconds that an engine may take to end a body.
    """

    def __init__(self, door: Door, engine: Engine, offer: Offer, *, grace: float) -> None:
        self._door = door
        self._offer = offer
        self._grace = grace
        self._house = House(
            engine=engine,
            is_plain=offer.is_plain,
            served=frozenset(offer.serves),
            places=self,
            max_call=offer.max_call,
        )
        self._guests: set[Guest] = set()
        self._strangers = 0
        self._seats_left = offer.seats
        self._is_draining = False
        self._drained = Drained()
        """What became of what ran, for agents that have gone."""
        self._multi: MultiListener[SocketStream] | None = None
        self._patience = anyio.CancelScope()
        self._listening = anyio.CancelScope()
        self._serving = anyio.CancelScope()

    def take_seat(self) -> bool:
        """Have room for one more seat, if there is."""
        if self._seats_left < 1:
            return False
        self._seats_left -= 1
        return True

    def give_seat(self) -> None:
        """Give back a seat that a guest has left."""
        self._seats_left += 1

    async def listen(self) -> Address:
        """Begin to listen; returns where.

        Raises:
            OSError: it cannot listen there.
        """
        host, port = self._door.address
        self._multi = await anyio.create_tcp_listener(local_host=host, local_port=port, backlog=_BACKLOG)
        found: int = self._multi.extra(SocketAttribute.local_port)  # noqa: S610 - no Django
        return Address(host, found)

    async def serve(self) -> None:
        """Let agents in, until it is drained."""
        assert self._multi is not None
        multi = self._multi
        with self._serving:
            async with anyio.create_task_group() as group:
                with self._listening:
                    async with multi, anyio.create_task_group() as listening:
                        for one in multi.listeners:
                            listening.start_soon(self._accept, one, group)

    async def _accept(self, listener: Any, group: Any) -> None:
        assert isinstance(listener, SocketListener)
        await listener.serve(self._receive_safely, task_group=group)

    async def _receive_safely(self, stream: SocketStream) -> None:
        """Whatever goes wrong with one who comes in, the others are served."""
        try:
            await self._receive(stream)
        except Exception:
            _logger.exception("a connection was ended by an error of this worker")

    async def _receive(self, stream: SocketStream) -> None:
        """Let somebody in, if that is an agent, and serve it."""
        if self._strangers >= _STRANGERS:
            _logger.warning("a connection is closed, because %d have not proved yet who they are", _STRANGERS)
            return await anyio.aclose_forcefully(stream)
        whence = _whence(stream)
        self._strangers += 1
        found: tuple[ByteStream, FrameReader, Wishes] | None = None
        try:
            found = await self._admitted(stream, whence)
        finally:
            self._strangers -= 1
            if found is None:
                with anyio.CancelScope(shield=True):
                    await anyio.aclose_forcefully(stream)
        if found is None:
            return None
        await self._entertain(whence, *found)
        return None

    async def _admitted(self, stream: SocketStream, whence: str) -> tuple[ByteStream, FrameReader, Wishes] | None:
        try:
            with anyio.fail_after(self._door.handshake_timeout):
                inner: ByteStream = stream
                if self._door.tls is not None:
                    inner = await _tls.as_server(stream, self._door.tls)
                reader = FrameReader(inner, LONGEST_GREETING)
                binding = _tls.binding_of(self._door.certificate)
                wishes = await admit(inner, reader, self._door.secret, binding, self._offer)
        except TimeoutError:
            _logger.warning("%s did not end its handshake within %g s", whence, self._door.handshake_timeout)
        except (RefusedError, GarbageError) as error:
            _logger.warning("%s was refused: %s", whence, error)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            _logger.info("%s has gone before it was let in: %r", whence, error)
        else:
            reader.longest = self._offer.max_call
            return inner, reader, wishes
        return None

    async def _entertain(self, whence: str, stream: ByteStream, reader: FrameReader, wishes: Wishes) -> None:
        connection = Connection(stream, reader, heartbeat=wishes.heartbeat, silence=wishes.silence)
        guest = Guest(self._house, connection, wishes.max_result)
        self._guests.add(guest)
        if self._is_draining:
            guest.drain()
        _logger.info("%s is served", whence)
        reason = "it was ended"
        try:
            reason = await guest.stay()
        finally:
            self._guests.discard(guest)
            self._drained += guest.drained
            _logger.info("%s has gone: %s", whence, reason)

    async def drain(self, timeout: float) -> Drained:
        """Begin nothing new, let what runs finish within so many seconds, and end the rest; what became of it."""
        self._is_draining = True
        self._listening.cancel()
        _logger.info("drains: %s", self._left())
        for guest in self._guests:
            guest.drain()
        with self._patience, anyio.move_on_after(timeout):
            while self._guests:
                await anyio.sleep(0.01)
        if any(guest.is_busy for guest in self._guests):
            _logger.warning("ends by force what did not finish: %s", self._left())
            await self._end_by_force()
        for guest in list(self._guests):
            await guest.see_off()
        self._serving.cancel()
        report = sum((guest.drained for guest in self._guests), self._drained)
        _logger.log(logging.WARNING if report.ended else logging.INFO, "was drained: %s", report)
        return report

    def hurry(self) -> None:
        """End what still runs at once, with no more patience."""
        self._patience.cancel()

    async def _end_by_force(self) -> None:
        for guest in self._guests:
            guest.stop()
        with anyio.move_on_after(self._grace + _LAST_WORDS):
            while any(guest.is_busy for guest in self._guests):
                await anyio.sleep(0.01)

    def _left(self) -> str:
        busy = sum(guest.is_busy for guest in self._guests)
        return f"{len(self._guests)} agents are connected, {busy} have something running"


def _whence(stream: SocketStream) -> str:
    """Where somebody comes from, to be logged; who has gone already has no address any more."""
    found = stream.extra(SocketAttribute.remote_address, None)  # noqa: S610 - no Django
    return "somebody" if found is None else "{}:{}".format(*found[:2])
