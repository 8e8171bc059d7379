"""Fleet membership of one kind of actors in one process."""

import logging
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import TypeVar
from uuid import uuid4

import anyio

from callboard import StorageError
from callboard.fleets import FleetAsk, FleetHost
from callboard_actors._server.fleet._answers import Answers
from callboard_actors._server.fleet._crossing import Answer
from callboard_actors._server.fleet._desk import Desk, Terms
from callboard_actors._server.fleet._letters import ForgedError, Letter, Seal, gate_of
from callboard_actors._server.fleet._line import FleetLine
from callboard_actors._server.fleet._post import Post
from callboard_actors._server.fleet._posted import PostedAsk
from callboard_actors._server.fleet._route import HeldKey

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

    def __init__(self, host: FleetHost, line: Callable[[], FleetLine], terms: Terms, seal: Seal) -> None:
        self._seal = seal
        self._where = terms.where
        member = uuid4().hex[:16]  # new for each membership, so that no message for an earlier one is taken for it
        self._member = member
        self._post = Post(host.name, member, seal, host.lost)
        self._answers = Answers(host, self._post)
        self.snapshots = KeptStates(self._post, seal, terms.where)
        # Last: the client's thread starts here, and its callbacks use the fields above.
        self._desk = self._post.desk = Desk(
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

    def post(self, ask: FleetAsk) -> PostedAsk:
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
            while self._desk.is_up and not (self._answers.is_quiet and self._post.is_quiet):
                await anyio.sleep(0.005)
        self._desk.close()
        with anyio.move_on_after(_TO_LEAVE):
            while not self._desk.has_ended:
                await anyio.sleep(0.005)

    def _hear(self, frame: bytes) -> None:
        # Anyone with access to the server may have written this frame: it is unpickled only if its signature is valid.
        try:
            letter: Letter = self._seal.opened(self._member, frame)
        except ForgedError as error:
            _logger.warning("%s: %s; is its secret another one?", self._where, error)
            return
        if letter.what in ("ask", "cancel"):
            self._answers.hear(letter)
        else:
            self._post.hear(letter)


class KeptStates:
    """Saved states of actors at the server; only the last owner of a key may write the key's state.

    Args:
        post: router of the member.
        seal: signer of the fleet.
        where: address of the server, for errors.
    """

    def __init__(self, post: Post, seal: Seal, where: str) -> None:
        self._post = post
        self._seal = seal
        self._where = where

    async def load(self, actor: str, key: Hashable) -> object:
        """Return the state that was saved last; `None` if there is none."""
        gate = gate_of(actor, key)
        found = await self._at_desk(partial(_load, gate))
        return None if found is None else self._seal.opened(gate, found)

    async def save(self, actor: str, key: Hashable, snapshot: object) -> None:
        """Save a state in place of the one before; raise StorageError if this process no longer owns the key."""
        gate, held = gate_of(actor, key), self._post.held(key)
        if held is None:
            raise StorageError(self._where, f"keeps no state of {actor}[{key!r}]: this process owns its key no more.")
        # The server compares tokens: a write that was under way while the lease ended is refused there.
        kept = await self._at_desk(partial(_save, gate, held.token, self._seal.sealed(gate, snapshot)))
        if not kept:
            self._post.lose(key, held, "another process owns its key now")
            raise StorageError(self._where, f"keeps no state of {actor}[{key!r}]: another process owns its key now.")

    async def _at_desk(self, work: Callable[[FleetLine], Awaitable[T]]) -> T:
        answer = Answer[T]()

        # Runs in the client's thread, because only that thread may use the connection.
        async def ask() -> None:
            try:
                answer.give(await self._post.desk.on_line(work))
            except BaseException as error:
                # Also for a cancellation, as the client ends: the actor's task must not wait for ever.
                answer.fail(error)
                if not isinstance(error, Exception):
                    raise

        if not self._post.desk.do(lambda: self._post.desk.start(ask)):
            raise StorageError(self._where, "is asked no more: this process has left the fleet.")
        return await answer.wait()


def _load(gate: str, line: FleetLine) -> Awaitable[bytes | None]:
    return line.load(gate)


def _save(gate: str, token: int, state: bytes, line: FleetLine) -> Awaitable[bool]:
    return line.save(gate, token, state)
