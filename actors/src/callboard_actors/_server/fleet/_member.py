"""Base class of `PostgresFleet`, and the membership of one process in a fleet.

`AskReceiver` runs asks of other members in the actors of this process. `FleetSnapshots` saves states of actors.
"""

import logging
import math
import os
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import TypeVar, cast
from uuid import uuid4

import anyio

from callboard import StorageError
from callboard.extend import FleetAsk, FleetHost, KeyMovedError, attach_context
from callboard_actors._engine import _replies
from callboard_actors._engine._frames import Kind
from callboard_actors._engine._pickles import loads
from callboard_actors._server._client import ServerStore
from callboard_actors._server.fleet._client import FleetClient, FleetSettings, FleetTransport
from callboard_actors._server.fleet._lease import CLEAN_UP_FRACTION, SHORTEST_LEASE
from callboard_actors._server.fleet._messages import (
    AskContents,
    ForgedError,
    Message,
    MessageKind,
    Signer,
    check_secret,
    fingerprint,
    server_key_of,
)
from callboard_actors._server.fleet._router import Router
from callboard_actors._util._options import check_seconds

# Asks of other members.

_MESSAGE_KINDS: dict[Kind, MessageKind] = {Kind.VALUE: "value", Kind.RAISED: "raised", Kind.LOST: "lost"}


class AskReceiver:
    """Receiver of asks (actor calls) from other members: runs them in the actors of this process, and sends replies."""

    def __init__(self, host: FleetHost, router: Router) -> None:
        self._host = host
        self._router = router
        # By id of each ask that runs here. The entry is removed when the reply is made.
        self._cancel_functions: dict[str, Callable[[], object]] = {}
        # Number of the last ask, by sender. A message with this or a lower number is a replay, and is ignored.
        self._last_numbers: dict[str, int] = {}

    def receive_message(self, message: Message) -> None:
        """Handle a message of another member, which is an ask or the cancellation of an ask."""
        if message.kind == "cancel":
            if (cancel := self._cancel_functions.get(message.ask_id)) is not None:
                cancel()
            return
        contents: AskContents = message.payload
        # The sender counts up, and the server delivers in order.
        if contents.ask_number <= self._last_numbers.get(message.sender_id, 0):
            return
        self._last_numbers[message.sender_id] = contents.ask_number
        try:
            key = loads(contents.pickled_key)
        except Exception as error:  # such as of a class that only another version of the program has
            frame_kind, reply = _replies.encode_error(error, "process")
            kind = _MESSAGE_KINDS[frame_kind]
            self._router.queue_message(message.sender_id, kind, message.ask_id, reply, is_last=True)
            return
        ownership = self._router.ownership_of(key)
        cancel = None
        # The ask names the token that its sender knows: an ask for an earlier ownership of the key must not run.
        if ownership is not None and ownership.token == contents.token:
            cancel = self._host.serve(key, partial(self._run_ask, message, contents, key))
            if cancel is None:
                # `serve` found the event loop of the actors closed without `leave()`: this member can answer nothing.
                self._router.client.dismiss()
        if cancel is None:
            self._router.client.start_task(partial(self._send_ask_back, message, contents))
        else:
            # `_queue_reply` runs in this thread, too, so it cannot run before the entry is here.
            self._cancel_functions[message.ask_id] = cancel

    async def _send_ask_back(self, message: Message, contents: AskContents) -> None:
        """Tell the sender of an ask to find the key's owner again, because the ask did not begin in this process."""
        # "moved" is sent before the key is freed. An asker that finds the key without this owner treats an ask that may
        # have begun as unknown. An asker that repeats too early still finds this owner, and gets "moved" again.
        self._router.queue_message(message.sender_id, "moved", message.ask_id, is_last=True)
        ownership = self._router.ownership_of(loads(contents.pickled_key))
        if ownership is None or ownership.token != contents.token:
            # The server may still name this process as the owner under that token.
            await self._router.free_key(contents.server_key, contents.token)

    async def _run_ask(self, message: Message, contents: AskContents, key: Hashable) -> None:
        """Run an ask in the event loop of the actors, and post its reply to the client's thread."""
        # The outcome of a cancelled ask: every ask gets exactly one reply, in the `finally` below.
        kind: MessageKind = "cancelled"
        reply = b""
        send_event = partial(self._send_event, message)
        try:
            # Within the `try`: an argument that cannot be unpickled here becomes the reply to this ask.
            args, kwargs = loads(contents.pickled_arguments)
            ask = FleetAsk(
                key=key,
                handler=contents.handler,
                args=args,
                kwargs=kwargs,
                title=contents.title,
                call_id=None,
                grace=contents.grace,
            )
            with attach_context(contents.context, send_event, logs=False):
                value = await self._host.answer(ask, partial(self._request_permission, message, contents))
            frame_kind, reply = _replies.encode_result(value)
            kind = _MESSAGE_KINDS[frame_kind]
        except KeyMovedError:  # the handler did not begin, so the asker may send the ask to the next owner
            kind = "moved"
        except Exception as error:
            frame_kind, reply = _replies.encode_error(error, "process")
            kind = _MESSAGE_KINDS[frame_kind]
        finally:
            self._router.client.post(partial(self._queue_reply, message, contents, kind, reply))

    async def _request_permission(self, message: Message, contents: AskContents) -> bool:
        """Request the server's permission to begin an ask in this process; return whether the server has given it."""
        # The server allows this to one process only, and to no process after the sender has recalled the ask.
        try:
            return await self._router.client.run_in_thread(partial(self._begin_at_server, message, contents))
        except StorageError:
            if self._router.client.is_closing:
                raise KeyMovedError("this process has left the fleet") from None
            raise

    async def _begin_at_server(self, message: Message, contents: AskContents) -> bool:
        # Noted before the server is asked: from then on it may count the ask as begun, and `free_key` must wait for it.
        if message.ask_id in self._cancel_functions:  # otherwise it was cancelled meanwhile, and has its reply
            self._router.note_begun(contents.server_key, contents.token, message.ask_id)
        # Repeated until answered; the server answers a repeated "begin" like the first one.
        may_begin = await self._router.client.request_until_answered(
            lambda connection: connection.begin_ask(contents.server_key, contents.token, message.ask_id)
        )
        if may_begin:
            self._router.queue_message(message.sender_id, "begun", message.ask_id)
        return may_begin

    def _send_event(self, message: Message, event: object) -> None:
        self._router.client.post(lambda: self._router.queue_message(message.sender_id, "told", message.ask_id, event))

    def _queue_reply(self, message: Message, contents: AskContents, kind: MessageKind, reply: bytes) -> None:
        # Runs in the client's thread, after every "told" that the handler posted.
        self._cancel_functions.pop(message.ask_id, None)
        if kind == "moved":
            self._router.client.start_task(partial(self._send_ask_back, message, contents))
        else:
            self._router.queue_message(message.sender_id, kind, message.ask_id, reply, is_last=True)
        # Last: a key is freed only after the reply to each begun ask is in the outbox.
        self._router.note_answered(message.ask_id)

    @property
    def has_answered_all(self) -> bool:
        """Return whether every ask (actor call) that has arrived at this process has been answered."""
        return not self._cancel_functions


# The member.

T = TypeVar("T")

_logger = logging.getLogger("callboard_actors.fleet")

_LEAVE_TIMEOUT = 5.0
"""Seconds to wait for the last replies to be sent, and then again for the client to end."""


class Member:
    """Membership of this process in a fleet, for the actors of one kind."""

    def __init__(
        self,
        host: FleetHost,
        make_connection: Callable[[], FleetTransport],
        server_address: str,
        signer: Signer,
        **seconds: float,
    ) -> None:
        self._signer = signer
        member_id = uuid4().hex[:16]  # new for each membership, so that no message for an earlier one is taken for it
        self._member_id = member_id
        self._router = Router(host.name, member_id, signer, host.revoke)
        self._ask_receiver = AskReceiver(host, self._router)
        # The asking side of `callboard.extend.Membership`.
        self.ownership_of, self.post, self.give_back = (
            self._router.ownership_of,
            self._router.post,
            self._router.give_back,
        )
        self.snapshots = FleetSnapshots(self._router, signer)
        # Last: the client's thread starts here, and its callbacks use the fields above.
        self._client = self._router.client = FleetClient(
            member_id,
            make_connection,
            server_address,
            **seconds,
            on_message=self._receive_message,
            on_keys_lost=self._router.lose_all_keys,
            on_heartbeat=self._router.check_owners_soon,
            on_failure=self._router.fail_waiting_asks,
        )

    async def leave(self) -> None:
        """Leave the fleet: refuse new asks, send the last replies, and give up all keys."""
        self._router.has_left = True  # new asks fail from here on, while those that run may still be answered
        with anyio.move_on_after(_LEAVE_TIMEOUT):
            # Replies that are still to be sent need the server; without it, waiting is of no use.
            while self._client.is_up and not (self._ask_receiver.has_answered_all and self._router.has_sent_all):
                await anyio.sleep(0.005)
        self._client.dismiss()
        with anyio.move_on_after(_LEAVE_TIMEOUT):
            while not self._client.has_ended:
                await anyio.sleep(0.005)

    def _receive_message(self, frame: bytes) -> None:
        # Anyone with access to the server may have written this frame: it is unpickled only if its signature is valid.
        try:
            message: Message = self._signer.load_signed(self._member_id, frame)
        except ForgedError as error:
            _logger.warning("%s: %s; is its secret another one?", self._client.server_address, error)
            return
        if message.kind in ("ask", "cancel"):
            self._ask_receiver.receive_message(message)
        else:
            self._router.receive_message(message)


class FleetSnapshots:
    """Saved states of actors at the server; only the last owner of a key may write the key's state."""

    def __init__(self, router: Router, signer: Signer) -> None:
        self._router = router
        self._signer = signer

    async def load(self, actor: str, key: Hashable) -> object:
        """Return the last saved state of an actor; `None` if no state was saved."""
        server_key = server_key_of(actor, key)
        frame = await self._request(lambda connection: connection.load_state(server_key))
        return None if frame is None else self._signer.load_signed(server_key, frame)

    async def save(self, actor: str, key: Hashable, snapshot: object) -> None:
        """Save the state of an actor in place of the former state."""
        server_key, ownership = server_key_of(actor, key), self._router.ownership_of(key)
        if ownership is None:
            raise self._save_error(actor, key, "this process owns its key no more")
        # The server compares tokens: a write that was under way while the lease ended is refused there.
        frame = self._signer.sign_value(server_key, snapshot)
        if not await self._request(lambda connection: connection.save_state(server_key, ownership.token, frame)):
            self._router.lose_key(key, ownership, "another process owns its key now")
            raise self._save_error(actor, key, "another process owns its key now")

    def _save_error(self, actor: str, key: Hashable, reason: str) -> StorageError:
        return StorageError(self._router.client.server_address, f"keeps no state of {actor}[{key!r}]: {reason}.")

    def _request(self, operation: Callable[[FleetTransport], Awaitable[T]]) -> Awaitable[T]:
        # In the client's thread, because only that thread may use the connection.
        return self._router.client.run_in_thread(partial(self._router.client.request_until_answered, operation))


# The store.

_MAX_SECONDS = 86_400.0
"""Largest lease or patience, in seconds."""
VARIABLE = "CALLBOARD_FLEET_SECRET"


class FleetStore(ServerStore):
    """Base class of `PostgresFleet`, by which a process joins a fleet of processes; see there for the options."""

    def __init__(
        self,
        url: str,
        *,
        secret: str | bytes | None = None,
        prefix: str = "callboard-fleet",
        lease: float = 15.0,
        patience: float | None = 30.0,
    ) -> None:
        super().__init__(url, prefix)
        check_seconds(self._store_name, least=SHORTEST_LEASE, longest=_MAX_SECONDS, lease=lease)
        if patience is not None:
            check_seconds(self._store_name, least=0.0, longest=_MAX_SECONDS, patience=patience)
        if secret is None:
            secret = os.environ.get(VARIABLE, "")
            if not secret:
                raise ValueError(
                    f"{self._store_name} has no secret: give it secret=..., or set {VARIABLE}, to the same in all "
                    "processes: what they send each other is signed with it"
                )
        if not isinstance(cast("object", secret), (str, bytes)):
            kind = type(secret).__qualname__
            raise TypeError(f"{self._store_name}(secret=...) is a text or bytes, got one of type {kind}")
        self._secret = secret.encode() if isinstance(secret, str) else secret
        check_secret(self._secret, f"{self._store_name}(secret=...)")
        # The server compares lease and fingerprint of all members: a fleet with two leases could have two owners.
        self._fleet_settings = FleetSettings(lease_us=round(lease * 1e6), fingerprint=fingerprint(self._secret))
        self._settings = (self._fleet_settings,)
        self._lease, self._patience = lease, math.inf if patience is None else patience

    @property
    def lease(self) -> float:
        """Seconds without a heartbeat after which a process counts as dead."""
        return self._lease

    @property
    def clean_up(self) -> float:
        """Seconds for which code of a key's actor may continue to run when the owner has given up the key."""
        return self._lease * CLEAN_UP_FRACTION

    def admit(self, host: FleetHost, /) -> Member:
        """Make this process a member of the fleet, for the actors of one kind; return at once."""
        # The actor's name is part of what is signed: a message for one kind of actors is invalid for another.
        signer = Signer(self._secret, f"{self._prefix}/{host.name}")
        return Member(
            host, self._connection_factory(), self._server_address, signer, lease=self._lease, patience=self._patience
        )
