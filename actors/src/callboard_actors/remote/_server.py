"""Server of `callboard worker`: accepts agents, runs a session for each, and drains before it ends."""

import logging
import ssl
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketListener, SocketStream
from anyio.streams.stapled import MultiListener

from callboard import Drained
from callboard.extend import Engine
from callboard_actors._engine._frames import GarbageError
from callboard_actors._engine._session import Connection
from callboard_actors._engine._wire import LONGEST_GREETING, FrameReader
from callboard_actors.remote import _tls
from callboard_actors.remote._addresses import Address
from callboard_actors.remote._guest import Guest, House
from callboard_actors.remote._handshake import Offer, RefusedError, Wishes, admit

_logger = logging.getLogger("callboard_actors.remote")
_STRANGERS: Final = 64
"""Connections that have not finished the handshake; further ones are closed at once."""
_BACKLOG: Final = 128
_LAST_WORDS: Final = 1.0
"""Seconds beyond the grace for agents to be told of calls that were ended by force."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """Address, secret and TLS of a worker."""

    address: Address
    secret: bytes = field(repr=False)
    tls: ssl.SSLContext | None = None
    certificate: bytes | None = None
    """Certificate of the worker in DER form, if there is TLS; proofs are bound to it."""
    handshake_timeout: float = 10.0
    """Seconds for a whole handshake, TLS included."""


class Server:
    """Server that runs the calls of agents in an open engine.

    Args:
        door: address, secret and TLS.
        engine: engine that runs the bodies.
        offer: terms sent to each agent.
        grace: seconds that the engine may need to end a body.
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
        # Bounds memory and file descriptors that a client without the secret can use.
        self._strangers = 0
        self._seats_left = offer.seats
        self._is_draining = False
        self._drained = Drained()
        """Results of the drain for agents that have disconnected."""
        self._multi: MultiListener[SocketStream] | None = None
        # Around the wait for running calls, cancelled by `hurry`; around accepting, cancelled first by `drain`; around
        # all sessions, cancelled last by `drain`.
        self._patience = anyio.CancelScope()
        self._listening = anyio.CancelScope()
        self._serving = anyio.CancelScope()

    def take_seat(self) -> bool:
        """Reserve a dedicated worker; return `False` if all are taken."""
        if self._seats_left < 1:
            return False
        self._seats_left -= 1
        return True

    def give_seat(self) -> None:
        """Give back a reservation."""
        self._seats_left += 1

    async def listen(self) -> Address:
        """Start to listen; return the address with the actual port, or raise `OSError` if it cannot be used."""
        host, port = self._door.address
        self._multi = await anyio.create_tcp_listener(local_host=host, local_port=port, backlog=_BACKLOG)
        found: int = self._multi.extra(SocketAttribute.local_port)  # noqa: S610 - no Django
        return Address(host, found)

    async def serve(self) -> None:
        """Accept agents until drained."""
        assert self._multi is not None
        multi = self._multi
        with self._serving:
            async with anyio.create_task_group() as group:
                # Inner scope: a drain stops accepting, while sessions in the outer group continue.
                with self._listening:
                    async with multi, anyio.create_task_group() as listening:
                        for one in multi.listeners:
                            listening.start_soon(self._accept, one, group)

    async def _accept(self, listener: Any, group: Any) -> None:
        assert isinstance(listener, SocketListener)
        await listener.serve(self._receive_safely, task_group=group)

    async def _receive_safely(self, stream: SocketStream) -> None:
        """Handle one connection; log an unexpected error, so that other agents are still served."""
        try:
            await self._receive(stream)
        except Exception:
            _logger.exception("a connection was ended by an error of this worker")

    async def _receive(self, stream: SocketStream) -> None:
        """Perform the handshake with a client, and serve it."""
        # Before the handshake, since a TLS key exchange costs processor time.
        if self._strangers >= _STRANGERS:
            _logger.warning("a connection is closed, because %d have not proved yet who they are", _STRANGERS)
            return await anyio.aclose_forcefully(stream)
        whence = _whence(stream)
        # Released when the handshake is over, whatever its outcome; a session does not count any more.
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
            # Around all of it: a client that sends one byte now and then occupies its place no longer than this.
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
            # Large frames are accepted only now, from an agent that has the secret.
            reader.longest = self._offer.max_call
            return inner, reader, wishes
        return None

    async def _entertain(self, whence: str, stream: ByteStream, reader: FrameReader, wishes: Wishes) -> None:
        connection = Connection(stream, reader, heartbeat=wishes.heartbeat, silence=wishes.silence)
        guest = Guest(self._house, connection, wishes.max_result)
        self._guests.add(guest)
        # Its handshake began before the drain: tell it, as the others were told.
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
        """Refuse new calls, wait up to `timeout` seconds for running ones, and end the rest; return the results."""
        # Before accepting stops: a handshake that is in progress sees it when it finishes.
        self._is_draining = True
        self._listening.cancel()
        _logger.info("drains: %s", self._left())
        for guest in self._guests:
            guest.drain()
        # Agents disconnect by themselves when their calls have ended.
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
        """End the wait for running calls; they are ended by force."""
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
    """Return the client's address for the log; a client that has disconnected has none."""
    found = stream.extra(SocketAttribute.remote_address, None)  # noqa: S610 - no Django
    return "somebody" if found is None else "{}:{}".format(*found[:2])
