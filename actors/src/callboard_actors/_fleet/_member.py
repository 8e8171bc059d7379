"""One member of a fleet: the `Membership` of one kind of actors in one process."""

import logging
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import TypeVar
from uuid import uuid4

import anyio

from callboard import StorageError
from callboard.fleets import FleetAsk, FleetHost
from callboard_actors._fleet._answers import Answers
from callboard_actors._fleet._crossing import Answer
from callboard_actors._fleet._desk import Desk, Terms
from callboard_actors._fleet._letters import ForgedError, Letter, Seal, gate_of
from callboard_actors._fleet._line import FleetLine
from callboard_actors._fleet._post import Post
from callboard_actors._fleet._posted import PostedAsk
from callboard_actors._fleet._route import HeldKey

T = TypeVar("T")

_logger = logging.getLogger("callboard_actors.fleet")

_TO_LEAVE = 5.0
"""Seconds to send the last replies."""


class Member:
    """Takes part in a fleet with the actors of one kind.

    Args:
        host: has them.
        line: makes a connection to the server.
        terms: on which it takes part.
        seal: of the fleet.
    """

    def __init__(self, host: FleetHost, line: Callable[[], FleetLine], terms: Terms, seal: Seal) -> None:
        self._seal = seal
        self._where = terms.where
        member = uuid4().hex[:16]
        self._member = member
        self._post = Post(host.name, member, seal, host.lost)
        self._answers = Answers(host, self._post)
        self.snapshots = KeptStates(self._post, seal, terms.where)
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
        """Returns how this process owns a key; `None` if it does not."""
        return self._post.held(key)

    def post(self, ask: FleetAsk) -> PostedAsk:
        """Have an ask done by whoever owns its key."""
        return self._post.post(ask)

    def give_back(self, key: Hashable) -> None:
        """Give a key up, so that another process may own it."""
        self._post.give_back(key)

    async def leave(self) -> None:
        """Own nothing any more, and ask nobody."""
        self._post.is_left = True
        with anyio.move_on_after(_TO_LEAVE):
            while self._desk.is_up and not (self._answers.is_quiet and self._post.is_quiet):
                await anyio.sleep(0.005)
        self._desk.close()
        with anyio.move_on_after(_TO_LEAVE):
            while not self._desk.has_ended:
                await anyio.sleep(0.005)

    def _hear(self, frame: bytes) -> None:
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
    """The states of actors that do not live, at the server; of one key, only its last owner writes it.

    Args:
        post: of a member.
        seal: of the fleet.
        where: the server, for errors.
    """

    def __init__(self, post: Post, seal: Seal, where: str) -> None:
        self._post = post
        self._seal = seal
        self._where = where

    async def load(self, actor: str, key: Hashable) -> object:
        """The state that was saved last; `None` for none."""
        gate = gate_of(actor, key)
        found = await self._at_desk(partial(_load, gate))
        return None if found is None else self._seal.opened(gate, found)

    async def save(self, actor: str, key: Hashable, snapshot: object) -> None:
        """Keep a state in place of the one before.

        Raises:
            StorageError: if this process owns the key no more.
        """
        gate, held = gate_of(actor, key), self._post.held(key)
        if held is None:
            raise StorageError(self._where, f"keeps no state of {actor}[{key!r}]: this process owns its key no more.")
        kept = await self._at_desk(partial(_save, gate, held.token, self._seal.sealed(gate, snapshot)))
        if not kept:
            self._post.lose(key, held, "another process owns its key now")
            raise StorageError(self._where, f"keeps no state of {actor}[{key!r}]: another process owns its key now.")

    async def _at_desk(self, work: Callable[[FleetLine], Awaitable[T]]) -> T:
        answer = Answer[T]()

        async def ask() -> None:
            try:
                answer.give(await self._post.desk.on_line(work))
            except BaseException as error:
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
