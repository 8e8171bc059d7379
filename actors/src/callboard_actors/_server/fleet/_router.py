"""Router of a fleet member: sends each ask (call of a keyed actor) to the process that owns the key.

Other threads may call `post`, `give_back`, `ownership_of`, `withdraw` and `lose_key`. All else runs in the client's
thread.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Literal

import anyio

from callboard import ActorDiedError, ActorGoneError, StorageError
from callboard.extend import Body, FleetAsk, dispatch_event, inject_context, wakeup
from callboard_actors._engine._codec import decode_reply
from callboard_actors._engine._frames import Kind
from callboard_actors._server.fleet._client import FleetClient, FleetTransport, OwnerAddress
from callboard_actors._server.fleet._messages import (
    AskContents,
    Message,
    MessageKind,
    Signer,
    pickle_ask,
    server_key_of,
)

# Asks and routes.

_KINDS = {"value": Kind.VALUE, "raised": Kind.RAISED, "lost": Kind.LOST}
_CANCEL_TIMEOUT = 1.0
"""Seconds, in addition to its grace, that a cancelled ask waits for the message that its handler has ended."""

# queued -> sent -> done: at another process. queued -> here -> taken: in this one. sent -> queued: after a recall.
State = Literal["queued", "sent", "here", "taken", "done"]


class RoutedAsk:
    """Call of a keyed actor (an ask) to be sent to the key's owner; created in the task that waits for the result.

    Its state belongs to the client's thread.
    """

    def __init__(self, ask: FleetAsk, route: "Route", order_number: int, router: "Router") -> None:
        self.ask = ask
        self.route = route
        self.order_number = order_number
        """Number of the ask in the order of all asks of this process."""
        self.context = inject_context()  # the context of the asking task, so read in that task
        self.state: State = "queued"
        self.ask_id = ""
        """Id of the last attempt to send the ask."""
        self.sent_to: OwnerAddress | None = None
        # Written in the client's thread only.
        self.is_withdrawn = self.is_delivered = False
        self.has_left_queue = asyncio.Event()
        """Set when the ask, granted here, is in the actor's mailbox, or never will be."""
        self._router = router
        # From here on: written in the client's thread, read in the asking task after a wake-up by `_wake_up`.
        self._events = deque[Any]()
        self._reply: tuple[str, bytes] | None = None
        self._error: Exception | None = None
        self._wake_up = wakeup()

    def grant(self) -> None:
        """Let the ask run in this process, which owns the key."""
        self.state = "here"
        self._wake_up.set()

    def add_event(self, event: object) -> None:
        """Pass an event of the running handler to the waiting task; `None` means that the handler has begun."""
        self._events.append(event)
        self._wake_up.set()

    def settle(self, kind: str, reply: bytes) -> None:
        """Finish the ask with the reply of the key's owner."""
        # The reply is set before `set`, which wakes the task that reads it.
        self._reply, self.state = (kind, reply), "done"
        self._wake_up.set()

    def fail(self, error: Exception) -> None:
        """Finish the ask with an error that arose in this process."""
        self._error, self.state = error, "done"
        self._wake_up.set()

    async def is_here(self) -> bool:
        """Wait until the ask may run in this process, or has an outcome; return whether it may run in this process."""
        try:
            await self._until_settled()
        except BaseException:
            # Also if the ask has begun: its handler must have ended before the cancelled caller goes on.
            self._router.withdraw(self)
            # The outcome is dropped: the caller gets the error that ended the wait.
            with anyio.move_on_after(self.ask.grace + _CANCEL_TIMEOUT, shield=True), suppress(Exception):
                await self._until_settled()
            # If the grant came meanwhile: the router waits for this call before it goes on with the key's queue.
            self.release_turn()
            raise
        if self._error is not None:
            raise self._error
        return self.state != "done"

    async def _until_settled(self) -> None:
        while True:
            # Before state and words are read: the client's thread changes them, and then sets the wake-up.
            wake_up = self._wake_up = wakeup()
            # Events first: the owner sent them before the outcome.
            while self._events:
                event = self._events.popleft()
                if event is not None:
                    dispatch_event(event)
                elif self.ask.on_begin is not None:
                    self.ask.on_begin()
            if self.state not in ("queued", "sent"):
                return
            await wake_up.wait()

    def release_turn(self) -> None:
        """Let the router handle the key's next ask: this ask is in the actor's mailbox now, or never will be."""
        if self.state == "here":
            self.state = "taken"
            self._router.client.post(self.has_left_queue.set)

    def outcome(self) -> Any:
        """Return the result, or raise the exception, that another process has sent for the ask; see `Delivery`."""
        assert self._reply is not None
        kind, reply = self._reply
        body = Body(fn=lambda: None, title=self.ask.title, call_id=self.ask.call_id)
        return decode_reply(_KINDS[kind], reply, body, output="")


class KeyOwnership:
    """Ownership of a key by this process, an implementation of `callboard.extend.Ownership`."""

    __slots__ = ("_is_over", "_is_safe", "token")

    def __init__(self, token: int, is_safe: Callable[[], bool]) -> None:
        self.token = token
        self._is_safe = is_safe  # any thread may call it
        self._is_over = False  # only ever set to True, so it needs no lock

    @property
    def is_current(self) -> bool:
        return not self._is_over and self._is_safe()

    def end(self) -> None:
        """Give up the ownership: code that still runs for the key may no longer write."""
        self._is_over = True


class Route:
    """Route of this process's asks to the owner of one key: the owner (if known), and the queued asks.

    `ownership`, `queue`, `is_unwanted` and `is_busy` change under the router's lock; the rest in the client's thread.
    """

    def __init__(self, key: Hashable, server_key: str) -> None:
        self.key = key
        self.server_key = server_key
        self.ownership: KeyOwnership | None = None
        """This process's ownership of the key; `None` if it does not own the key."""
        # May be out of date: the server checks it when an ask is sent.
        self.owner: OwnerAddress | None = None
        """Other process that owns the key, if this process knows one."""
        self.queue = deque[RoutedAsk]()
        """Asks that wait to be sent to the owner, or to run in this process."""
        self.is_suspect = False
        """True if the owner may be gone, so that sent asks must be recalled."""
        self.is_sent_back = False
        """True if an owner has just sent an ask back, so that the next attempt must wait `_PAUSE` seconds."""
        self.is_unwanted = False
        """True if the key is to be given up when the route is no longer busy."""
        self.is_busy = False
        """True while a task processes the queue; at most one does."""


# The router.

_MAX_ROUTES = 1_000
"""Number of keys without asks for which the known owner is remembered."""
_PAUSE = 0.02
"""Seconds to wait after an owner has sent an ask back, before the ask is sent again."""
_CHECK_INTERVAL = 0.005
"""Seconds between two checks for replies that are still to be sent."""
_OWNER_DIED = "the process that owned its key died, or stood still for too long"


class Router:
    """Router of one member: queues its asks by key, finds the owners, sends the asks, and handles the replies."""

    def __init__(self, name: str, member_id: str, signer: Signer, on_lost: Callable[[Hashable, str], object]) -> None:
        self.client: FleetClient
        self._name, self._member_id, self._signer = name, member_id, signer
        self._on_lost = on_lost
        # Guards `_routes` and, of each route, `ownership`, `queue`, `is_unwanted`, `is_busy`. Not held over an await.
        self._lock = threading.Lock()
        self._routes: dict[Hashable, Route] = {}
        self._ask_numbers, self._ask_ids = count(1), count(1)
        # Number of asks sent to each member. The server ignores an ask with a number that it has had, so repeating a
        # send is harmless.
        self._last_ask_numbers: dict[str, int] = {}
        # By receiver. Sends to one owner must not overtake each other; see `_send_first_ask`.
        self._send_locks: dict[str, asyncio.Lock] = {}
        # Sent asks without an outcome, by id, in the order of sending. A message about another id is late, and ignored.
        self._sent_asks: dict[str, RoutedAsk] = {}
        # Messages that the server does not have yet, in the order of `queue_message`.
        self._outbox: list[tuple[str, bytes, str]] = []
        # Number of messages put into the outbox so far, and number of those that the server has.
        self._outbox_count = self._sent_count = 0
        # Asks of other processes that have begun here and have no reply in the outbox, with their keys and tokens.
        self._unanswered_asks: dict[str, tuple[str, int]] = {}
        self._is_sending_outbox = False  # at most one task sends from the outbox, which keeps the order
        self._is_checking_owners = False  # at most one task checks the owners of sent asks
        # Set by `Member.leave`: new asks fail.
        self.has_left = False

    def post(self, ask: FleetAsk) -> RoutedAsk:
        """Queue an ask for the owner of its key, and return the ask as a `RoutedAsk`."""
        with self._lock:
            if self.has_left:
                raise ActorGoneError(ask.title, ask.call_id, "its process is leaving the fleet, or has left it")
            route = self._route_of(ask.key)
            routed_ask = RoutedAsk(ask, route, next(self._ask_numbers), self)
            ownership = route.ownership
            # Fast path without the client's thread. Not while the route is busy: an earlier ask may be on its way here.
            if ownership is not None and ownership.is_current and not route.is_busy:
                routed_ask.state = "taken"
                return routed_ask
            route.queue.append(routed_ask)
        self.client.post(lambda: self.process_queue(route))
        return routed_ask

    def _route_of(self, key: Hashable) -> Route:
        route = self._routes.get(key)
        if route is None:
            route = self._routes[key] = Route(key, server_key_of(self._name, key))
        return route

    def ownership_of(self, key: Hashable) -> KeyOwnership | None:
        """Return this process's ownership of a key, or `None` without ownership; may be called from any thread."""
        route = self._routes.get(key)
        ownership = None if route is None else route.ownership
        return ownership if ownership is not None and ownership.is_current else None

    def give_back(self, key: Hashable) -> None:
        """Give up a key, so that another process may own it; may be called from any thread."""
        with self._lock:
            route = self._routes.get(key)
            if route is None or route.ownership is None:
                return
            # An ask may be about to be granted here under this ownership; `_process_route` gives the key up if none is.
            if route.is_busy:
                route.is_unwanted = True
                return
            ownership, route.ownership = route.ownership, None
            # Before the server hears of it: from here on, no handler or save under this token is allowed.
            ownership.end()
        self.client.post(lambda: self.client.start_task(lambda: self.free_key(route.server_key, ownership.token)))

    def note_begun(self, server_key: str, token: int, ask_id: str) -> None:
        """Record that this process begins to run an ask of another process; runs in the client's thread."""
        self._unanswered_asks[ask_id] = server_key, token

    def note_answered(self, ask_id: str) -> None:
        """Record that the reply to an ask of another process is in the outbox; runs in the client's thread."""
        self._unanswered_asks.pop(ask_id, None)

    async def free_key(self, server_key: str, token: int) -> None:
        """Wait until the server has the replies to all asks of a key that have begun here, then give up the key."""
        # An asker that finds its key without this owner counts an ask without a reply as unknown.
        while (server_key, token) in self._unanswered_asks.values():
            await asyncio.sleep(_CHECK_INTERVAL)
        # Now every reply is in the outbox; wait until the server has all that was written up to here.
        outbox_count = self._outbox_count
        while self._sent_count < outbox_count:
            await asyncio.sleep(_CHECK_INTERVAL)
        await self.client.request_until_answered(lambda connection: connection.release_key(server_key, token))

    def lose_all_keys(self, reason: str) -> None:
        """Give up all keys that this process owns, because another process may own them."""
        for route in list(self._routes.values()):
            if route.ownership is not None:
                self.lose_key(route.key, route.ownership, reason)

    def lose_key(self, key: Hashable, ownership: KeyOwnership, reason: str) -> None:
        """Give up a key because another process may own it; may be called from any thread."""
        # First, and without the lock: `is_current` is False before the actor hears of the loss.
        ownership.end()
        with self._lock:
            route = self._route_of(key)
            # The key may have been acquired again meanwhile, under a new token.
            if route.ownership is ownership:
                route.ownership = None
        self._on_lost(key, reason)

    def fail_waiting_asks(self, error: StorageError) -> None:
        """Fail the queued asks (actor calls); if this member has left the fleet, fail the sent asks, too."""
        with self._lock:
            waiting = [routed_ask for route in self._routes.values() for routed_ask in route.queue]
            for route in self._routes.values():
                route.queue.clear()
            # Otherwise a sent ask keeps waiting: it may have begun, and its reply may still come.
            if self.has_left:
                waiting += self._sent_asks.values()
        for routed_ask in waiting:
            # An exception of its own for each ask: tracebacks of several tasks must not mix in one object.
            routed_ask.fail(StorageError(error.database, error.reason))

    def process_queue(self, route: Route) -> None:
        """Start the task that processes the queued asks (actor calls) of one key, unless it runs already."""
        with self._lock:
            if route.is_busy or not (route.queue or route.is_suspect):
                return
            # At most one task processes a route, so the asks of one key are sent or granted in their order.
            route.is_busy = True
        self.client.start_task(lambda: self._process_route(route))

    async def _process_route(self, route: Route) -> None:
        try:
            # Other threads only add to the queue.
            while route.queue or route.is_suspect:
                await self._advance(route)
        except StorageError as error:
            self.fail_waiting_asks(error)
        finally:
            with self._lock:
                route.is_busy = False
                # `give_back` came while the route was busy. A queued ask wants the key here, so the key is kept then.
                is_unwanted, route.is_unwanted = route.is_unwanted and not route.queue, False
                if len(self._routes) > _MAX_ROUTES:
                    self._forget_idle_routes()
            if is_unwanted:
                self.give_back(route.key)
            self.process_queue(route)  # an ask may have been queued after the last check and before `is_busy` was reset

    async def _advance(self, route: Route) -> None:
        """Pause, recall the sent asks, grant or send the first queued ask, or find the owner: what the route needs."""
        # The owner draining or losing the key needs a moment; without a pause, asker and owner would spin.
        if route.is_sent_back:
            route.is_sent_back = False
            await asyncio.sleep(_PAUSE)
        # Before any ask is sent to the next owner: asks that did not begin go first, in their original order.
        elif route.is_suspect:
            # Before the awaits: a new suspicion while asks are recalled must not be lost.
            route.is_suspect = False
            sent_asks = self._sent_asks_of(route)
            self._requeue_asks(route, [routed_ask for routed_ask in sent_asks if await self._recall_ask(routed_ask)])
        elif route.ownership is not None and route.ownership.is_current:
            await self._grant_here(route, route.queue[0])
        elif route.owner is not None:
            await self._send_first_ask(route, route.owner, route.queue[0])
        else:
            await self._find_owner(route)

    def _forget_idle_routes(self) -> None:
        """Forget the routes that have no asks and no ownership; called under the lock, in the client's thread."""
        # They know an owner at most, and the server knows it, too.
        sending = {routed_ask.route for routed_ask in self._sent_asks.values()}
        self._routes = {
            key: route
            for key, route in self._routes.items()
            if route.ownership or route.queue or route.is_busy or route in sending
        }

    async def _grant_here(self, route: Route, ask: RoutedAsk) -> None:
        with self._lock:
            if ask not in route.queue:
                return  # cancelled meanwhile
            route.queue.remove(ask)
            route.is_unwanted = False
        ask.grant()
        # The next ask follows only when this one is in the actor's mailbox, which keeps the order of asks.
        await ask.has_left_queue.wait()

    async def _find_owner(self, route: Route) -> None:
        # Read before the request: if all keys are lost while it is under way, the answer belongs to the old era.
        era = self.client.lease.era
        answer = await self.client.request_until_answered(lambda connection: connection.acquire_key(route.server_key))
        if answer.owner_id == self._member_id:
            ownership = KeyOwnership(answer.token, lambda: self.client.lease.is_safe(era))
            with self._lock:
                route.ownership = ownership if ownership.is_current else None
            # The lease was lost meanwhile; try again as soon as this process may be a member again.
            if route.ownership is None:
                await asyncio.sleep(_PAUSE)
        elif answer.owner_id:
            route.owner = OwnerAddress(server_key=route.server_key, owner_id=answer.owner_id, token=answer.token)
        else:
            await asyncio.sleep(_PAUSE)  # this process is no member at the moment, so the server gives it no key

    async def _send_first_ask(self, route: Route, address: OwnerAddress, routed_ask: RoutedAsk) -> None:
        # One at a time: the server takes an ask with a lower number than the last one for a repetition.
        async with self._send_locks.setdefault(address.owner_id, asyncio.Lock()):
            # A new id for each attempt to send: a late reply to an earlier attempt finds no ask.
            routed_ask.ask_id, fleet_ask = f"{self._member_id}.{next(self._ask_ids)}", routed_ask.ask
            try:
                key, arguments = pickle_ask(fleet_ask)
            except TypeError as error:
                self._remove_queued(routed_ask)
                routed_ask.fail(error)
                return
            ask_number = self._last_ask_numbers[address.owner_id] = self._last_ask_numbers.get(address.owner_id, 0) + 1
            contents = AskContents(
                address.server_key,
                address.token,
                ask_number,
                key,
                fleet_ask.handler,
                fleet_ask.title,
                fleet_ask.grace,
                routed_ask.context,
                arguments,
            )
            frame = self.sign_message(address.owner_id, "ask", routed_ask.ask_id, contents)
            with self._lock:
                if routed_ask not in route.queue:
                    return  # cancelled meanwhile
                route.queue.remove(routed_ask)
                routed_ask.state, routed_ask.sent_to, routed_ask.is_delivered = "sent", address, False
                # Noted before it is sent: the reply may arrive before `send_ask` returns.
                self._sent_asks[routed_ask.ask_id] = routed_ask
            connections = list[FleetTransport]()

            def send_on(connection: FleetTransport) -> Awaitable[bool]:
                connections.append(
                    connection
                )  # `request_until_answered` repeats the request on another connection if its answer was lost
                return connection.send_ask(address, ask_number, routed_ask.ask_id, frame)

            if await self.client.request_until_answered(send_on):
                routed_ask.is_delivered = True
                # Withdrawn while the send was under way: a "cancel" before the ask would have been ignored.
                if routed_ask.is_withdrawn:
                    self.queue_message(address.owner_id, "cancel", routed_ask.ask_id)
            else:
                # Refused at the first try: the owner never had the ask. After a repetition, only a recall can tell.
                if len(connections) == 1:
                    self._requeue_asks(route, [routed_ask])
                self._suspect_owner(route)

    def _suspect_owner(self, route: Route) -> None:
        route.is_suspect, route.owner = True, None

    async def _recall_ask(self, routed_ask: RoutedAsk) -> bool:
        """Ensure that a sent ask never begins at its owner; return `False` if it may have begun."""
        ask_id, address = routed_ask.ask_id, routed_ask.sent_to
        assert address is not None
        # If the ask may have begun, the server puts this into the own mail, behind any reply: it becomes "unknown".
        marker = self.sign_message(self._member_id, "unknown", ask_id)
        return await self.client.request_until_answered(
            lambda connection: connection.recall_ask(address.owner_id, ask_id, marker)
        )

    def _sent_asks_of(self, route: Route) -> list[RoutedAsk]:
        return [routed_ask for routed_ask in self._sent_asks.values() if routed_ask.route is route]

    def _requeue_asks(self, route: Route, sent_asks: Sequence[RoutedAsk]) -> None:
        # Forgotten first: a late "moved" or reply under the old id finds nothing.
        asks = [routed_ask for routed_ask in sent_asks if self._sent_asks.pop(routed_ask.ask_id, None) is not None]
        with self._lock:
            for routed_ask in asks:
                if not routed_ask.is_withdrawn:
                    routed_ask.state = "queued"
                    route.queue.append(routed_ask)
            # In the order in which the asks were made.
            route.queue = deque(sorted(route.queue, key=lambda routed_ask: routed_ask.order_number))
        for routed_ask in asks:
            if routed_ask.is_withdrawn:
                routed_ask.fail(_withdrawn_error(routed_ask))

    def check_owners_soon(self) -> None:
        """Start to check whether the receivers of sent asks still own the keys; called after each heartbeat."""
        # Do nothing if the last check is still running.
        if not self._is_checking_owners:
            self._is_checking_owners = True
            self.client.start_task(self._check_owners)

    async def _check_owners(self) -> None:
        try:
            # One question for each route and owner, however many asks were sent.
            routes_and_owners = [
                (route, owner)
                for route, owner in {(routed_ask.route, routed_ask.sent_to) for routed_ask in self._sent_asks.values()}
                if owner
            ]
            if not routes_and_owners:
                return
            owners = [owner for _, owner in routes_and_owners]
            answers = await self.client.request_until_answered(lambda connection: connection.are_owners(owners))
            for (route, owner), still_owns in zip(routes_and_owners, answers, strict=True):
                # Asks may have moved to another member while the question was on its way.
                if not still_owns and any(routed_ask.sent_to == owner for routed_ask in self._sent_asks_of(route)):
                    self._suspect_owner(route)
                    self.process_queue(route)
        except StorageError as error:
            self.fail_waiting_asks(error)
        finally:
            self._is_checking_owners = False

    def receive_message(self, message: Message) -> None:
        """Handle a message of another member about an ask (actor call) that this process has sent."""
        routed_ask = self._sent_asks.get(message.ask_id)
        if routed_ask is None:
            return  # late: the ask has had its outcome
        route = routed_ask.route
        if message.kind not in ("begun", "told", "moved"):
            del self._sent_asks[message.ask_id]  # before the outcome is given, so that nothing can give a second one
        match message.kind:
            case "begun":
                routed_ask.add_event(None)
            case "told":
                routed_ask.add_event(message.payload)
            case "moved":
                self._requeue_asks(route, [routed_ask])
                route.is_sent_back = True
                self._suspect_owner(route)
                self.process_queue(route)
            case "cancelled" if routed_ask.is_withdrawn:
                routed_ask.fail(_withdrawn_error(routed_ask))
            case "unknown" | "cancelled":  # the owner's side ended the handler, such as when it lost the key
                routed_ask.fail(ActorDiedError(routed_ask.ask.title, routed_ask.ask.call_id, _OWNER_DIED))
            case _:
                routed_ask.settle(message.kind, message.payload)

    def withdraw(self, ask: RoutedAsk) -> None:
        """End an ask whose caller has been cancelled; may be called from any thread."""
        if not self.client.post(lambda: self._cancel_withdrawn(ask)):
            ask.fail(_withdrawn_error(ask))

    def _cancel_withdrawn(self, ask: RoutedAsk) -> None:
        ask.is_withdrawn = True
        if self._remove_queued(ask):
            ask.fail(_withdrawn_error(ask))
        # An ask that is not delivered yet is cancelled by `_send_first_ask` when it is.
        elif ask.ask_id in self._sent_asks and ask.sent_to is not None and ask.is_delivered:
            self.queue_message(ask.sent_to.owner_id, "cancel", ask.ask_id)

    def queue_message(
        self, receiver_id: str, kind: MessageKind, ask_id: str, payload: object = None, *, is_last: bool = False
    ) -> None:
        """Queue a message to another member; queued messages are sent in FIFO order. Called in the client's thread."""
        self._outbox.append(
            (receiver_id, self.sign_message(receiver_id, kind, ask_id, payload), ask_id if is_last else "")
        )
        self._outbox_count += 1
        if not self._is_sending_outbox:
            self._is_sending_outbox = True
            self.client.start_task(self._send_outbox)

    async def _send_outbox(self) -> None:
        try:
            while self._outbox:
                messages = list(self._outbox)
                # A broken connection repeats the batch. A receiver ignores a repeated reply: the ask has its outcome.
                await self.client.request_until_answered(lambda connection: connection.put_messages(messages))  # noqa: B023 (awaited at once)
                # Not all of it: `queue_message` may have added messages during the await.
                del self._outbox[: len(messages)]
                self._sent_count += len(messages)
        finally:
            self._is_sending_outbox = False

    @property
    def has_sent_all(self) -> bool:
        """Return whether the server has received all messages of this member."""
        return not self._outbox

    def sign_message(self, receiver_id: str, kind: MessageKind, ask_id: str, payload: object = None) -> bytes:
        """Return the signed bytes of a message to another member."""
        return self._signer.sign_value(receiver_id, Message(kind, self._member_id, ask_id, payload))

    def _remove_queued(self, ask: RoutedAsk) -> bool:
        with self._lock:
            if ask not in ask.route.queue:
                return False
            ask.route.queue.remove(ask)
            return True


def _withdrawn_error(ask: RoutedAsk) -> ActorGoneError:
    return ActorGoneError(ask.ask.title, ask.ask.call_id, "nobody waits for it")
