"""Background client of one fleet member (renews the lease, sends requests), and the interface of its connections.

The client's thread renews the lease and receives replies even while the event loops of the process, asyncio or trio,
are busy.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from callboard import StorageError
from callboard.extend import wakeup
from callboard_actors._server._client import BackgroundClient, Connection, UnreachableError
from callboard_actors._server.fleet._lease import HEARTBEATS_PER_LEASE, Lease
from callboard_actors._util._boot_clock import now

# The protocol of a server that records the owner of each key, and carries asks and replies between members.


@dataclass(frozen=True, slots=True)
class KeyOwner:
    """Present owner of a key, as the server reports it."""

    owner_id: str = ""
    """Id of the member that owns the key; "" if no member does."""
    token: int = 0  # of fencing: each owner of a key has a higher one than those before it


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerAddress:
    """Actor key, and the owner to which a call is sent; the server rejects the call if another member owns the key."""

    server_key: str
    owner_id: str
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """Settings that must be equal in all members of a fleet.

    Args:
        lease_us: length of the lease in microseconds.
        fingerprint: hash of the secret; see `fingerprint` in `_messages`.
    """

    # Checked by the server at each heartbeat: a member with a shorter lease would break the argument in `_lease`.
    lease_us: int
    fingerprint: str

    @property
    def text(self) -> str:
        """Text of these settings, which the server stores to compare the settings of members."""
        return f"{self.lease_us}:{self.fingerprint}"

    def refusal_error(self, server_address: str, text: str) -> StorageError:
        """Return the error for a member whose settings differ from `text`, the text that the server has stored."""
        lease_us = int(text.partition(":")[0])
        if lease_us == self.lease_us:
            return StorageError(
                server_address, "has other processes of this fleet with another secret. Give all the same one."
            )
        return StorageError(
            server_address,
            f"has other processes of this fleet with lease={lease_us / 1e6:g}, "
            f"and this one has {self.lease_us / 1e6:g}. Give all of them the same, or another prefix.",
        )


class FleetTransport(Connection, Protocol):
    """Connections of one member of a fleet to its server: PostgreSQL, or the server in memory of the tests.

    Every operation may be repeated if its answer was lost, and does no harm when it arrives twice.
    All operations raise `UnreachableError` if the server cannot be reached, and `StorageError` if it refuses.
    """

    async def send_heartbeat(self) -> bool:
        """Send a heartbeat, which renews the membership of this process; return False if it was no member before."""
        ...

    async def acquire_key(self, server_key: str) -> KeyOwner:
        """Acquire an actor key if it has no owner; return the owner of the key, which may be another member."""
        ...

    async def are_owners(self, addresses: Sequence[OwnerAddress]) -> Sequence[bool]:
        """Return for each address (key, member, fencing token) whether the member still owns the key with the token."""
        ...

    async def send_ask(self, address: OwnerAddress, ask_number: int, ask_id: str, frame: bytes) -> bool:
        """Send an ask (actor call) to the owner at `address`; return False if that member does not own the key.

        `ask_number` counts this member's asks to that owner: an ask with a number that has arrived is not stored again.
        """
        ...

    async def begin_ask(self, server_key: str, token: int, ask_id: str) -> bool:
        """Record at the server that this member begins an ask (actor call); return False if it must not begin."""
        ...

    async def recall_ask(self, owner_id: str, ask_id: str, marker: bytes) -> bool:
        """Ensure that a sent ask (actor call) never begins; return False if it may have begun.

        In that case the marker is put into the asker's own mail, behind any reply to the ask that is already there.
        """
        ...

    async def put_messages(self, messages: Sequence[tuple[str, bytes, str]]) -> None:
        """Put messages into the mailboxes of their receivers at the server.

        Each message is its receiver, its signed frame, and the id of the ask that it ends, or "".
        """
        ...

    async def release_key(self, server_key: str, token: int) -> None:
        """Give up an actor key, so that another process may own it."""
        ...

    async def save_state(self, server_key: str, token: int, state: bytes) -> bool:
        """Save the state of a key's actor; return False if another process has become the owner of the key."""
        ...

    async def load_state(self, server_key: str) -> bytes | None:
        """Return the state of a key's actor that the last owner saved; `None` if no state was saved."""
        ...

    def mail_batches(self) -> AsyncIterator[Sequence[bytes]]:
        """Yield batches of messages to this member, in order; a batch is deleted when the next one is requested."""
        ...

    async def leave_fleet(self) -> None:
        """Stop being a member, so that this member's keys count as free."""
        ...


# The client.

T = TypeVar("T")

_logger = logging.getLogger("callboard_actors.fleet")

_MAX_REQUESTS = 16
"""Largest number of concurrent requests to the server, without heartbeats; each may need its own connection."""


class FleetClient(BackgroundClient[FleetTransport]):
    """Client that keeps a fleet member registered at the server, and sends the member's requests to the server.

    Args:
        member: the member's id.
        make_connection: makes a connection that is not open yet.
        server_address: the server's address for errors and logs.
        lease: seconds without a heartbeat after which the server considers this member dead.
        patience: seconds of outage after which asks fail.
        on_message: called with each message to this member.
        on_keys_lost: called with the reason when this member no longer owns any key.
        on_heartbeat: called after each heartbeat.
        on_failure: called with the error when the server cannot be used.
    """

    outage_behaviour = "asks of other processes wait"
    leave_timeout = 2.0

    def __init__(
        self,
        member: str,
        make_connection: Callable[[], FleetTransport],
        server_address: str,
        *,
        lease: float,
        patience: float,
        on_message: Callable[[bytes], None],
        on_keys_lost: Callable[[str], None],
        on_heartbeat: Callable[[], None],
        on_failure: Callable[[StorageError], None],
    ) -> None:
        self._on_message, self._on_keys_lost, self._on_heartbeat, self._on_failure = (
            on_message,
            on_keys_lost,
            on_heartbeat,
            on_failure,
        )
        # Written in the client's thread only; `is_up` may read it in another one.
        self._connection: FleetTransport | None = None
        # Set while `_connection` may be used. `_request_error`: error of a request, which ends the connection.
        self._is_usable = asyncio.Event()
        self._request_error: UnreachableError | None = None
        self.lease = Lease(lease)  # changed in the client's thread; `is_safe` may read it in any thread
        self._next_heartbeat_at = 0.0  # loop time of the next heartbeat
        self._request_slots = asyncio.Semaphore(_MAX_REQUESTS)
        # Strong references: the loop itself keeps only weak ones to its tasks.
        self._tasks: set[asyncio.Task[Any]] = set()
        # Last: the thread starts here, and uses the fields above.
        super().__init__(make_connection, server_address, patience, _logger, client_id=member)

    @property
    def is_up(self) -> bool:
        """Return whether the client is connected, and no request has failed on this connection."""
        return self._connection is not None and self._is_usable.is_set()

    def start_task(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start a task in the client's event loop; called in the client's thread."""
        self._start_tracked_task(work).add_done_callback(self._log_bug)

    def _start_tracked_task(self, work: Callable[[], Coroutine[Any, Any, T]]) -> "asyncio.Task[T]":
        task = asyncio.get_running_loop().create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _log_bug(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            _logger.error("%s: a bug of callboard", self.server_address, exc_info=error)

    async def run_in_thread(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run an async function in the client's thread, from any event loop; raise StorageError if the client ends."""
        end_event = wakeup()
        ended_tasks: list[asyncio.Task[T]] = []

        # Not in the work itself: a task that is cancelled before its first step runs no line of it.
        def note_end(task: "asyncio.Task[T]") -> None:
            ended_tasks.append(task)
            end_event.set()

        if not self.post(lambda: self._start_tracked_task(work).add_done_callback(note_end)):
            raise self.closing_error()
        await end_event.wait()
        [task] = ended_tasks
        if task.cancelled():
            raise self.closing_error()
        return task.result()

    async def request_until_answered(self, work: Callable[[FleetTransport], Awaitable[T]]) -> T:
        """Send a request, repeat it until the server answers, and return the answer; called in the client's thread."""
        while True:
            # A repeated request may arrive more than once: each operation of `FleetTransport` tolerates that.
            await self._is_usable.wait()
            connection = None
            try:
                async with self._request_slots:
                    # Waiting for the semaphore may take long: by now the connection may be closed, or another one.
                    if (connection := self._connection) is not None:
                        return await work(connection)
            except UnreachableError as error:
                # A late error of an earlier connection must not end the current one.
                if connection is self._connection:
                    self._is_usable.clear()
                    self._request_error = error
                    self.note_outage(error)
                    self.wake_up.set()  # wakes `exchange_messages`

    def closing_error(self) -> StorageError:
        return StorageError(self.server_address, "is asked no more: this process has left the fleet.")

    async def _run_client(self) -> None:
        # A task of its own: keys are given up in time also while a connection attempt hangs.
        self.start_task(self._watch_lease)
        await super()._run_client()

    def handle_end(self) -> None:
        """Give up all keys, and fail the asks (actor calls) that still wait."""
        # First: from here on no key is safe, and the actors of all keys are told to end.
        self._lose_all_keys("it has left its fleet")
        for task in self._tasks:
            task.cancel()
        # Last: no reply will be received any more.
        super().handle_end()

    async def connect(self, connection: FleetTransport) -> None:
        await connection.open(self.client_id)
        await self._send_heartbeat(connection)  # registers the member: before that, the server would give it no key

    async def exchange_messages(self, connection: FleetTransport) -> None:
        self._connection = connection
        self._is_usable.set()  # only now may `request_until_answered` use the connection
        await super().exchange_messages(connection)
        # This process leaves. That frees all keys at once; without it they stay owned until the lease ends. So they are
        # given up here before the server hears of it.
        self._lose_all_keys("it has left its fleet")
        with suppress(TimeoutError):
            await asyncio.wait_for(connection.leave_fleet(), self.leave_timeout)

    async def receive_notifications(self, connection: FleetTransport) -> None:
        async for messages in connection.mail_batches():
            for message in messages:
                self._on_message(message)
        raise UnreachableError("it says no more")

    async def send_due_messages(self, connection: FleetTransport) -> float:
        if self._request_error is not None:
            raise self._request_error
        if self.loop.time() >= self._next_heartbeat_at:
            await self._send_heartbeat(connection)
            self._on_heartbeat()
        return self._next_heartbeat_at

    async def _send_heartbeat(self, connection: FleetTransport) -> None:
        self._next_heartbeat_at = self.loop.time() + self.lease.seconds / HEARTBEATS_PER_LEASE
        # Read before sending: the server counts the lease from a later moment, so this side ends earlier.
        sent_at = now()
        # A heartbeat that hangs is given up with its connection, so that another attempt can still save the lease.
        try:
            was_member = await asyncio.wait_for(connection.send_heartbeat(), self.lease.seconds / HEARTBEATS_PER_LEASE)
        except TimeoutError as error:
            raise UnreachableError("it does not answer") from error
        if not self.lease.renew(sent_at, was_member=was_member):
            self._on_keys_lost("the server has not heard of this process for too long")

    def forget_connection(self) -> None:
        self._is_usable.clear()  # before `disconnect` waits, so that no new request begins on this connection
        self._connection = self._request_error = None

    async def disconnect(self, connection: FleetTransport) -> None:
        """Wait until no request is running, then close the connection."""
        # All slots acquired means that no request is running, which would get an error of a closed connection.
        for _ in range(_MAX_REQUESTS):
            await self._request_slots.acquire()
        for _ in range(_MAX_REQUESTS):
            self._request_slots.release()
        await connection.close()

    async def _watch_lease(self) -> None:
        """Watch the lease while the client runs; give up all keys before the lease ends if no heartbeat renews it."""
        while True:
            if self.lease.is_lost():
                self._lose_all_keys(f"{self.server_address} could not be reached for too long")
            # Wakes when the safe time ends. L / 20 bounds the delay of the patience check, 10 ms the rate of checks.
            await asyncio.sleep(max(0.01, min(self.lease.seconds_until_unsafe(), self.lease.seconds / 20)))
            if self.is_out_of_patience:
                self.answer_waiting_callers()

    def _lose_all_keys(self, reason: str) -> None:
        # First: from here on `is_safe` denies every write, whatever the callback below takes.
        self.lease.lose_all_keys()
        self._on_keys_lost(reason)

    def answer_waiting_callers(self) -> None:
        # Asks that were already sent keep waiting: their outcome is decided when the server is back.
        self.fail_all_callers(StorageError(self.server_address, f"could not be reached for {self.patience:g} s."))

    def fail_all_callers(self, error: StorageError) -> None:
        self._on_failure(error)

    def has_work(self) -> bool:
        return True
