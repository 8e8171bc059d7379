"""Membership of one process in a fleet, for the actors of one kind.

`Answers` runs asks of other members in the actors of this process. `KeptStates` saves states of actors at the server.
"""

import logging
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import anyio

from callboard import StorageError
from callboard.extend import FleetAsk, FleetHost, KeyMovedError, attached_context
from callboard_actors._engine import _replies
from callboard_actors._engine._frames import Kind
from callboard_actors._engine._pickles import loads
from callboard_actors._server.fleet._client import FleetClient, FleetOptions
from callboard_actors._server.fleet._messages import AskContents, ForgedError, Message, Signer, What, gate_of
from callboard_actors._server.fleet._route import HeldKey
from callboard_actors._server.fleet._routed_ask import RoutedAsk
from callboard_actors._server.fleet._router import Router
from callboard_actors._server.fleet._thread_bridge import ThreadResult
from callboard_actors._server.fleet._transport import FleetTransport

# Asks of other members.

_WHAT: dict[Kind, What] = {Kind.VALUE: "value", Kind.RAISED: "raised", Kind.LOST: "lost"}


class Answers:
    """Server side of remote asks: runs them in the actors of this process. Belongs to the fleet client's thread.

    Args:
        host: the actors of this process.
        post: router of this member.
    """

    def __init__(self, host: FleetHost, post: Router) -> None:
        self._host = host
        self._post = post
        # By id of each ask that runs here. The entry is removed when the reply is made.
        self._cancels: dict[str, Callable[[], object]] = {}
        # Number of the last ask, by sender. A message with this or a lower number is a replay, and is ignored.
        self._heard: dict[str, int] = {}

    def hear(self, message: Message) -> None:
        """Handle an ask, or the cancellation of one."""
        if message.what == "cancel":
            if (cancel := self._cancels.get(message.ask)) is not None:
                cancel()
            return
        asked: AskContents = message.said
        if asked.number <= self._heard.get(message.sender, 0):  # the sender counts up, and the server delivers in order
            return
        self._heard[message.sender] = asked.number
        key = loads(asked.key)
        held = self._post.held(key)
        cancel = None
        # The ask names the token that its sender knows: an ask for an earlier ownership of the key must not run.
        if held is not None and held.token == asked.token:
            cancel = self._host.serve(key, partial(self._answer, message, asked, key))
            if cancel is None:
                # `serve` found the event loop of the actors closed without `leave()`: this member can answer nothing.
                self._post.client.close()
        if cancel is None:
            self._post.client.start(partial(self._send_back, message, asked))
        else:
            # `_reply` runs in this thread, too, so it cannot run before the entry is here.
            self._cancels[message.ask] = cancel

    async def _send_back(self, message: Message, asked: AskContents) -> None:
        """Send an ask back: its sender must look for the owner again, because the ask's token is not valid here."""
        # "moved" is sent before the key is freed. An asker that finds the key without this owner treats an ask that may
        # have begun as unknown. An asker that repeats too early still finds this owner, and gets "moved" again.
        self._post.tell(message.sender, "moved", message.ask, ends=True)
        held = self._post.held(loads(asked.key))
        if held is None or held.token != asked.token:
            # The server may still name this process as the owner under that token.
            await self._post.free(asked.gate, asked.token)

    async def _answer(self, message: Message, asked: AskContents, key: Hashable) -> None:
        """Run an ask in the event loop of the actors, and post its reply to the client's thread."""
        # The outcome if `_done` is cancelled: every ask gets exactly one reply, in the `finally` below.
        what, said = "cancelled", b""
        try:
            what, said = await self._done(message, asked, key)
        finally:
            self._do(partial(self._reply, message, asked, what, said))

    async def _done(self, message: Message, asked: AskContents, key: Hashable) -> tuple[str, bytes]:
        tell = partial(self._tell, message, "told")
        try:
            # Within the `try`: an argument that cannot be unpickled here becomes the reply to this ask.
            args, kwargs = loads(asked.arguments)
            ask = FleetAsk(
                key=key,
                handler=asked.handler,
                args=args,
                kwargs=kwargs,
                title=asked.title,
                call_id=None,
                grace=asked.grace,
            )
            with attached_context(asked.carried, tell, logs=False):
                value = await self._host.answer(ask, partial(self._begin, message, asked))
        except KeyMovedError:  # the handler did not begin, so the asker may send the ask to the next owner
            return "moved", b""
        except Exception as error:
            kind, said = _replies.raised(error, "process")
        else:
            kind, said = _replies.returned(value)
        return _WHAT[kind], said

    def _begin(self, message: Message, asked: AskContents) -> Awaitable[bool]:
        """Ask the server for permission to begin; the server gives it to one process, or to none after a recall."""
        answer = ThreadResult[bool]()
        self._do(lambda: self._post.client.start(partial(self._ask_to_begin, message, asked, answer)))
        return answer.wait()

    async def _ask_to_begin(self, message: Message, asked: AskContents, answer: ThreadResult[bool]) -> None:
        try:
            begin = partial(_begin, asked.gate, asked.token, message.ask)
            # Noted before the server is asked: from then on it may count the ask as begun, and `free` must wait for it.
            if message.ask in self._cancels:  # otherwise it was cancelled meanwhile, and has its reply
                self._post.note_begun(asked.gate, asked.token, message.ask)
            # Repeated until answered; the server answers a repeated "begin" like the first one.
            if may_begin := await self._post.client.on_transport(begin):
                self._post.tell(message.sender, "begun", message.ask)
            answer.give(may_begin)
        except BaseException as error:
            # Also when this task is cancelled, as the client ends: the actor's task must not wait for ever.
            answer.fail(error if isinstance(error, Exception) else KeyMovedError("this process has left the fleet"))
            raise

    def _tell(self, message: Message, what: What, said: object = None) -> None:
        self._do(lambda: self._post.tell(message.sender, what, message.ask, said))

    def _reply(self, message: Message, asked: AskContents, what: Any, said: bytes) -> None:
        # Runs in the client's thread, after every "told" that the handler posted.
        self._cancels.pop(message.ask, None)
        if what == "moved":
            self._post.client.start(partial(self._send_back, message, asked))
        else:
            self._post.tell(message.sender, what, message.ask, said, ends=True)
        # Last: a key is freed only after the reply to each begun ask is in the outbox.
        self._post.note_answered(asked.gate, asked.token, message.ask)

    def _do(self, what: Callable[[], object]) -> None:
        self._post.client.do(what)

    @property
    def is_quiet(self) -> bool:
        """Return whether every ask that arrived here has its reply."""
        return not self._cancels


async def _begin(gate: str, token: int, ask: str, line: Any) -> bool:
    return bool(await line.begin(gate, token, ask))


# The member.

T = TypeVar("T")

_logger = logging.getLogger("callboard_actors.fleet")

_TO_LEAVE = 5.0
"""Seconds to send the last replies, and then to end the client."""


class Member:
    """Member of a fleet, for the actors of one kind.

    Args:
        host: the actors of this process.
        line: makes a connection to the server.
        terms: options of the member.
        seal: signer of the fleet.
    """

    def __init__(self, host: FleetHost, line: Callable[[], FleetTransport], terms: FleetOptions, seal: Signer) -> None:
        self._signer = seal
        self._where = terms.where
        member = uuid4().hex[:16]  # new for each membership, so that no message for an earlier one is taken for it
        self._member = member
        self._post = Router(host.name, member, seal, host.lost)
        self._answers = Answers(host, self._post)
        self.snapshots = KeptStates(self._post, seal, terms.where)
        # Last: the client's thread starts here, and its callbacks use the fields above.
        self._client = self._post.client = FleetClient(
            member,
            line,
            terms,
            on_mail=self._hear,
            on_lost=self._post.lose_all,
            on_beat=self._post.look_after_sent,
            on_failure=self._post.fail_all,
        )

    def owned(self, key: Hashable) -> HeldKey | None:
        """Return how this process owns a key; `None` if it does not."""
        return self._post.held(key)

    def post(self, ask: FleetAsk) -> RoutedAsk:
        """Queue an ask for the owner of its key."""
        return self._post.post(ask)

    def give_back(self, key: Hashable) -> None:
        """Give up a key, so that another process may own it."""
        self._post.give_back(key)

    async def leave(self) -> None:
        """Leave the fleet: own no key any more, and send no asks."""
        self._post.is_left = True  # new asks fail from here on, while those that run may still be answered
        with anyio.move_on_after(_TO_LEAVE):
            # Replies that are still to be sent need the server; without it, waiting is of no use.
            while self._client.is_up and not (self._answers.is_quiet and self._post.is_quiet):
                await anyio.sleep(0.005)
        self._client.close()
        with anyio.move_on_after(_TO_LEAVE):
            while not self._client.has_ended:
                await anyio.sleep(0.005)

    def _hear(self, frame: bytes) -> None:
        # Anyone with access to the server may have written this frame: it is unpickled only if its signature is valid.
        try:
            message: Message = self._signer.opened(self._member, frame)
        except ForgedError as error:
            _logger.warning("%s: %s; is its secret another one?", self._where, error)
            return
        if message.what in ("ask", "cancel"):
            self._answers.hear(message)
        else:
            self._post.hear(message)


class KeptStates:
    """Saved states of actors at the server; only the last owner of a key may write the key's state.

    Args:
        post: router of the member.
        seal: signer of the fleet.
        where: address of the server, for errors.
    """

    def __init__(self, post: Router, seal: Signer, where: str) -> None:
        self._post = post
        self._signer = seal
        self._where = where

    async def load(self, actor: str, key: Hashable) -> object:
        """Return the state that was saved last; `None` if there is none."""
        gate = gate_of(actor, key)
        found = await self._at_desk(partial(_load, gate))
        return None if found is None else self._signer.opened(gate, found)

    async def save(self, actor: str, key: Hashable, snapshot: object) -> None:
        """Save a state in place of the one before; raise StorageError if this process no longer owns the key."""
        gate, held = gate_of(actor, key), self._post.held(key)
        if held is None:
            raise StorageError(self._where, f"keeps no state of {actor}[{key!r}]: this process owns its key no more.")
        # The server compares tokens: a write that was under way while the lease ended is refused there.
        kept = await self._at_desk(partial(_save, gate, held.token, self._signer.sealed(gate, snapshot)))
        if not kept:
            self._post.lose(key, held, "another process owns its key now")
            raise StorageError(self._where, f"keeps no state of {actor}[{key!r}]: another process owns its key now.")

    async def _at_desk(self, work: Callable[[FleetTransport], Awaitable[T]]) -> T:
        answer = ThreadResult[T]()

        # Runs in the client's thread, because only that thread may use the connection.
        async def ask() -> None:
            try:
                answer.give(await self._post.client.on_transport(work))
            except BaseException as error:
                # Also for a cancellation, as the client ends: the actor's task must not wait for ever.
                answer.fail(error)
                if not isinstance(error, Exception):
                    raise

        if not self._post.client.do(lambda: self._post.client.start(ask)):
            raise StorageError(self._where, "is asked no more: this process has left the fleet.")
        return await answer.wait()


def _load(gate: str, line: FleetTransport) -> Awaitable[bytes | None]:
    return line.load(gate)


def _save(gate: str, token: int, state: bytes, line: FleetTransport) -> Awaitable[bool]:
    return line.save(gate, token, state)
