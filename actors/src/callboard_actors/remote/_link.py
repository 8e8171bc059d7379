"""Link to one remote worker, on the agent's side: keeps a connection, sends calls, and counts the used capacity.

`RemoteSeat` is a dedicated worker process on that machine.
"""

import itertools
import logging
import math
import os
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from anyio.abc import ByteStream, SocketStream

from callboard.extend import Body, EngineError, inject_context
from callboard_actors._engine._codec import packed
from callboard_actors._engine._frames import (
    FrameReader,
    GarbageError,
    Header,
    Kind,
    as_json,
    call_of,
    frame,
    from_json,
)
from callboard_actors._engine._lifecycle import Backoff
from callboard_actors._engine._pickles import Variables
from callboard_actors._engine._session import Connection, OpenCall, OpenCalls, outcome
from callboard_actors.remote._handshake import (
    LONGEST_GREETING,
    LONGEST_WELCOME,
    Address,
    Offer,
    RefusedError,
    Wishes,
    as_client,
    greet,
)
from callboard_actors.remote._in_worker import name_of

_logger = logging.getLogger("callboard_actors.remote")
_PAUSE: Final = 0.05
"""Seconds before the next attempt to connect; doubled after each attempt."""
_LONGEST_PAUSE: Final = 5.0
"""Maximum seconds between two attempts to connect, after the pause was doubled several times."""
_LONG_ENOUGH: Final = 1.0
"""Minimum seconds that a connection has to last so that the next pause is `_PAUSE` again."""
_TO_ACKNOWLEDGE: Final = 1.0
"""Seconds after the grace of a cancelled call within which the worker must report the end of the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOptions:
    """Validated options of an engine; `RemoteEngine` documents each of them."""

    secret: bytes = field(repr=False)
    tls: ssl.SSLContext | None
    wishes: Wishes
    grace: float
    connect_timeout: float
    start_timeout: float
    patience: float
    variables: Variables


class RemoteSeat:
    """Dedicated worker process on another machine, reserved for one owner, such as an actor."""

    def __init__(self, title: str, number: int, link: "Link", variables: Variables) -> None:
        self.number = number
        self._title = title
        self._link = link
        self._variables = variables
        # Set in this order: `settled` (granted or refused), `_useless` (no new bodies), `gone` (nothing of it is
        # left). A drain sets the second one long before the third.
        self.settled = anyio.Event()
        self.gone = anyio.Event()
        self._useless = anyio.Event()
        self._reason: str | None = None

    @property
    def reason(self) -> str:
        """Reason why the dedicated worker cannot be used any more."""
        return self._reason or "it was left"

    def drain(self, reason: str) -> None:
        """Refuse new function calls from now on, for this reason; running calls continue."""
        self._reason = self._reason or reason
        self._useless.set()

    def end(self, reason: str) -> None:
        """Record that the dedicated worker has ended, or was refused, for this reason."""
        # Keeps an earlier reason: after a drain, that is why it ended.
        self.drain(reason)
        self.settled.set()
        self.gone.set()

    async def until_ended(self) -> str:
        """Wait until the dedicated worker has ended, is lost, or is being drained; return the reason."""
        await self._useless.wait()
        return self.reason

    async def run_body(self, body: Body, /) -> Any:
        """Run an async function in the dedicated worker, concurrently with other calls; see `callboard.extend.Seat`."""
        if self._useless.is_set():
            raise EngineError(body.title, body.call_id, self.reason, ended="unavailable")
        return await self._link.run_body(body, packed(body, self._variables.values()), self.number)


class Link:
    """Connection to one worker; a lost connection is restored."""

    def __init__(self, address: Address, terms: LinkOptions, on_change: Callable[[], None]) -> None:
        self.address = address
        self._terms = terms
        self._on_change = on_change
        self._numbers = itertools.count(1)
        self._calls = OpenCalls(self._forget)
        # Calls in dedicated workers, which do not count against the worker's capacity.
        self._in_seats: set[int] = set()
        self._seats: dict[int, RemoteSeat] = {}
        # Places of calls that were assigned to this link but not yet sent.
        self._reserved = 0
        # `None` between connections. Cleared before the calls are failed, so that none is added meanwhile.
        self._connection: Connection | None = None
        self._is_draining = False
        self.offer: Offer | None = None
        """Terms that the worker sent when it last accepted a connection; `None` before the first connection."""
        self.trouble = "it was not asked yet"
        """Reason why there is no connection to the worker, as text for errors."""
        self.gone_at = -math.inf
        """Time of the event loop at which the worker was last lost or began to drain."""
        self.is_refused = False
        """`True` if the last attempt to connect failed for a lasting reason, such as a wrong secret."""
        self.settled = anyio.Event()
        """Event that is set when the first attempt to connect has succeeded or failed."""

    @property
    def is_up(self) -> bool:
        """`True` if the worker is connected and accepts new calls."""
        return self._connection is not None and self._connection.reason is None and not self._is_draining

    @property
    def load(self) -> int:
        """Number of calls (running or reserved) and dedicated workers that this engine has on the remote worker."""
        return len(self._calls) - len(self._in_seats) + len(self._seats) + self._reserved

    @property
    def share(self) -> float:
        """Share of the worker's capacity that this engine uses."""
        return math.inf if self.offer is None else self.load / self.offer.capacity

    @property
    def has_room(self) -> bool:
        """`True` if the worker can run one more call now."""
        running = len(self._calls) - len(self._in_seats) + self._reserved
        return self.is_up and self.offer is not None and running < self.offer.capacity

    def serves(self, subject: str | None) -> bool:
        """Return whether the worker serves the function or actor named `subject`; `None` matches every worker."""
        return subject is None or (self.offer is not None and subject in self.offer.serves)

    def reserve(self) -> None:
        """Reserve capacity on the worker for a call that is about to be sent."""
        self._reserved += 1

    def release(self) -> None:
        """Release the reserved capacity of a call that will not be sent."""
        self._reserved -= 1
        self._changed()

    def _changed(self) -> None:
        if self._is_draining and self._connection is not None and not (self._calls or self._seats or self._reserved):
            self._connection.close("its worker was drained")  # the draining worker waits for that
        self._on_change()

    async def keep(self) -> None:
        """Stay connected to the worker, and reconnect after each loss, until cancelled."""
        backoff = Backoff(_PAUSE, _LONGEST_PAUSE)
        while True:
            began = anyio.current_time()
            try:
                self.trouble = await self._live()
            except (RefusedError, GarbageError) as error:
                self._suffer(f"{error}", for_good=not isinstance(error, RefusedError) or error.for_good)
            except TimeoutError:
                self._suffer(f"it did not answer within {self._terms.connect_timeout:g} s")
            except (OSError, ssl.SSLError, anyio.EndOfStream, anyio.BrokenResourceError) as error:
                self._suffer(_told(error), for_good=isinstance(error, ssl.SSLError))
            self.settled.set()
            self._changed()
            if anyio.current_time() - began > _LONG_ENOUGH:
                backoff.reset()
            await anyio.sleep(backoff.next() * random.uniform(0.5, 1.0))  # noqa: S311 - spreads the agents of a restarted worker

    def _suffer(self, reason: str, *, for_good: bool = False) -> None:
        # Logged once per cause, not at each attempt.
        if reason != self.trouble:
            log = _logger.error if for_good else _logger.info
            log("the worker at %s cannot be had, and is tried again: %s", self.address, reason)
        self.trouble, self.is_refused = reason, for_good

    async def _live(self) -> str:
        """Connect to the worker, and process frames until the connection ends; return the reason of its end."""
        stream, reader = await self._connected()
        wishes = self._terms.wishes
        connection = Connection(stream, reader, heartbeat=wishes.heartbeat, silence=wishes.silence)
        self._connection, self._is_draining, self.is_refused = connection, False, False
        reason = "it was closed"
        try:
            self.settled.set()
            self._changed()
            reason = await connection.run(self._take_in)
        finally:
            self._connection = None
            # A draining worker was already counted as gone when it said so.
            if not self._is_draining:
                self.gone_at = anyio.current_time()
            self._lose_all(f"{connection.reason or reason} (worker at {self.address})")
        return reason

    async def _connected(self) -> tuple[ByteStream, FrameReader]:
        with anyio.fail_after(self._terms.connect_timeout):
            stream = await anyio.connect_tcp(*self.address)
            try:
                return await self._greeted(stream)
            except BaseException:
                with anyio.CancelScope(shield=True):
                    # Also after a timeout in the middle of the handshake; `Connection` would close it only from then
                    # on.
                    await anyio.aclose_forcefully(stream)
                raise

    async def _greeted(self, stream: SocketStream) -> tuple[ByteStream, FrameReader]:
        inner: ByteStream = stream
        binding, wishes = "", self._terms.wishes
        if self._terms.tls is not None:
            inner, binding = await as_client(stream, self._terms.tls, self.address.host)
        reader = FrameReader(inner.receive, LONGEST_GREETING)
        self.offer = await greet(inner, reader, self._terms.secret, binding, wishes)
        reader.longest = max(wishes.max_result, LONGEST_WELCOME)  # an ENDED reply is not limited by `max_result`
        return inner, reader

    def _lose_all(self, reason: str) -> None:
        # Unsent calls go to another worker, sent ones end as unknown; see `outcome`.
        self._calls.lose(reason)
        self._in_seats.clear()
        for seat in list(self._seats.values()):
            seat.end(reason)
        self._seats.clear()

    def _take_in(self, header: Header, body: bytes | bytearray) -> None:
        kind, number, _ = header
        if kind is Kind.DRAIN:
            # Running calls continue; only new ones go to other workers.
            self._is_draining, self.gone_at = True, anyio.current_time()
            for seat in self._seats.values():
                seat.drain(f"its worker at {self.address} is being drained")
            self._changed()
        elif kind is Kind.REFUSE and self._connection is not None:
            self._connection.close(f"its worker has ended the connection: {body.decode(errors='replace')}")
        elif kind in (Kind.SEATED, Kind.UNSEATED):
            self._take_in_of_seat(kind, number, body)
        else:
            self._calls.take_in(header, body)

    def _take_in_of_seat(self, kind: Kind, number: int, body: bytes | bytearray) -> None:
        seat = self._seats.get(number)
        if seat is None:
            raise GarbageError("it is for no seat")
        if kind is Kind.SEATED:
            seat.settled.set()
        else:
            reason = str(from_json(body).get("reason"))
            del self._seats[number]
            seat.end(reason)
            self._changed()

    def _forget(self, number: int) -> None:
        self._in_seats.discard(number)
        self._changed()

    async def run_reserved(self, body: Body, pickled: bytes) -> Any:
        """Run a function call for which `reserve` has reserved capacity on the worker; see `run_body`."""
        # No await until `run_body` has registered the call: the place is counted either here or there.
        self._reserved -= 1
        try:
            return await self.run_body(body, pickled)
        finally:
            self._changed()

    async def run_body(self, body: Body, pickled: bytes, seat: int | None = None) -> Any:
        """Run a call on the worker, or in dedicated worker number `seat`; return its result or raise its exception."""
        offer, connection = self.offer, self._connection
        if connection is None or connection.reason is not None or offer is None:
            # Nothing was sent: `outcome` raises NotBegunError, and the engine tries another worker.
            unsent = OpenCall()
            unsent.lose(self.trouble)
            return await outcome(unsent, body, is_plain=False)
        # Only a call that will be sent begins: the engine tries another worker after the error above.
        if body.on_begin is not None:
            body.on_begin()  # before `_framed`: it starts the deadline that `inject_context()` sends along
        number, data = self._framed(body, pickled, seat, offer)
        if seat is not None:
            self._in_seats.add(number)
        one = self._calls.send(connection, number, data)
        try:
            await one.until_over()
        except GarbageError as error:
            # An event that cannot be delivered: the worker is not to be trusted with this call, but others may go on.
            await self._end(number, body, connection)
            one.reply, one.lost = None, f"its worker told what nobody can understand: {error}"
        except BaseException:
            await self._end(number, body, connection)
            raise
        # Decoded in the caller's task; the reading task never unpickles.
        return await outcome(one, body, is_plain=offer.is_plain)

    def _framed(self, body: Body, pickled: bytes, seat: int | None, offer: Offer) -> tuple[int, bytes]:
        """Encode a call; return its number and frame, or raise `TypeError` if it is larger than the worker accepts."""
        along: dict[str, Any] = {
            "carried": inject_context(),
            "subject": name_of(body.fn if body.subject is None else body.subject),
            "title": body.title,
            "call_id": body.call_id,
            "grace": body.grace,
        }
        if seat is not None:
            along["seat"] = seat
        said = call_of(along, pickled)
        if len(said) > offer.max_call:
            raise TypeError(
                f"{body.title!r} cannot run on another machine: it has {len(said)} bytes with its arguments, and its "
                f"worker takes {offer.max_call}"
            )
        number = next(self._numbers)
        return number, frame(Kind.CALL, number, said)

    async def _end(self, number: int, body: Body, connection: Connection) -> None:
        """Cancel a call on the worker, and wait for a limited time until it has ended, shielded from cancellation."""
        grace = self._terms.grace if body.grace is None else min(body.grace, self._terms.grace)
        # Otherwise its place stays taken until its end is reported or the connection ends.
        if not await self._calls.end(connection, number, grace + _TO_ACKNOWLEDGE):
            _logger.warning("%r was cancelled, and its worker at %s has not ended it yet", body.title, self.address)

    async def have_seat(self, title: str) -> RemoteSeat | None:
        """Request a dedicated process on the worker, and return its proxy; return `None` if there is no connection."""
        if self._connection is None:
            return None
        number = next(self._numbers)
        self._seats[number] = seat = RemoteSeat(title, number, self, self._terms.variables)
        self._connection.send(frame(Kind.SEAT, number, as_json({"title": title})))
        try:
            await seat.settled.wait()
        except BaseException:
            # The request may already have been granted: its process must not run without an owner.
            await self.leave_seat(seat)
            raise
        # If the worker has refused, this proxy has ended already.
        return seat

    async def leave_seat(self, seat: RemoteSeat) -> None:
        """End a dedicated worker, and wait for its end; the wait is shielded from cancellation and limited in time."""
        if seat.number not in self._seats or self._connection is None:
            return
        self._connection.send(frame(Kind.LEAVE, seat.number))
        with anyio.move_on_after(self._terms.grace + _TO_ACKNOWLEDGE, shield=True):
            await seat.gone.wait()

    async def part(self) -> None:
        """Cancel all calls, end the dedicated workers, wait for a limited time until these end, and disconnect."""
        connection = self._connection
        if connection is None:
            return
        for number in self._calls:
            connection.send(frame(Kind.CANCEL, number))
        for number in self._seats:
            connection.send(frame(Kind.LEAVE, number))
        with anyio.move_on_after(self._terms.grace + _TO_ACKNOWLEDGE):
            while (self._calls or self._seats) and connection.reason is None:
                await anyio.sleep(0.005)
        connection.close("its engine was closed")


def _told(error: BaseException) -> str:
    """Return the part of an error text that explains why an attempt to connect has failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS with it failed ({error.reason or error}); do both sides use it?"
    if isinstance(error, anyio.EndOfStream):
        return "it closed the connection before it was made; does it use TLS, and this side not?"
    cause: BaseException = error.__cause__ or error
    if isinstance(cause, BaseExceptionGroup):  # one error per address of the host
        cause = cause.exceptions[0]
    if isinstance(cause, OSError) and cause.errno is not None and cause.errno > 0:
        return os.strerror(cause.errno).lower()
    return f"{cause}" or repr(cause)
