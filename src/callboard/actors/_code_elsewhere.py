"""The code of an actor in a worker of an engine; its life, its mailbox and its supervisor are here."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

from callboard._calls._of_body import BodyRaisedError
from callboard._loops._background import beside
from callboard._loops._current import current_loop
from callboard._loops._protocol import Nursery, Scope
from callboard._types import Body, Engine, Seat
from callboard.actors import _hosted
from callboard.actors._actor import Actor
from callboard.actors._ends import Lifespan
from callboard.actors._message import Message
from callboard.actors._own_code import OnLost
from callboard.actors._resources import Resources
from callboard.exceptions import ActorStartError, EngineError

_FOR_THE_KILL = 0.1
"""Seconds of a grace that are left for an engine to kill what did not end within the rest."""


def grace_there(grace: float) -> float:
    """The grace that a body has on an engine, if its call has that one here."""
    return max(0.0, grace - _FOR_THE_KILL)


class _SeatLostError(EngineError):
    """The worker of an actor has ended, or what lived there."""

    @classmethod
    def like(cls, error: EngineError) -> "_SeatLostError":
        """Repeat an error of an engine as one of the actor's."""
        ended: Any = error.ended
        return cls(error.tool, error.call_id, error.reason, ended=ended, recurs=error.recurs)


class CodeElsewhere:
    """The code of one life that runs in a worker of its own.

    Args:
        engine: has the worker.
        actor: describes the one that is made there.
        name: of the actor.
        lifespan: its limits.
        on_lost: told why the actor is of no more use, if its worker ends.
    """

    def __init__(
        self,
        engine: Engine,
        actor: Actor,
        name: str,
        lifespan: Lifespan,
        on_lost: OnLost,
    ) -> None:
        self._engine = engine
        self._actor = actor
        self._name = name
        self._lifespan = lifespan
        self._on_lost = on_lost
        self._ident = uuid4().hex
        self._seat: Seat | None = None
        self._deferred: Nursery | None = None
        self._is_lost = self._is_stopping = False
        self._asked = 0
        self._ended: str | None = None
        """How its worker has ended, or what it had there, as soon as that is known."""

    async def start(self, resources: Resources, snapshot: object) -> None:
        await resources.enter(self._engine)
        self._seat = await resources.enter(self._engine.seat(self._name))
        self._deferred = await resources.enter(current_loop().nursery())
        await resources.enter(beside(self._watch))
        actor = self._actor
        try:
            description = _hosted.Description(self._name, type(actor), *actor._made_with, key=actor.key)
            await self._run(_hosted.start, "start", description, self._lifespan, snapshot)
        except TypeError as error:
            # What cannot cross will not cross the next time.
            raise ActorStartError(self._name, f"{error}", never=True) from error
        await resources.enter(beside(self._watch_life))

    async def _watch(self) -> None:
        """Say so when the worker has ended."""
        assert self._seat is not None
        self._note_end(await self._seat.until_ended())

    async def _watch_life(self) -> None:
        """Say so when what lives in the worker has ended, such as for a thread that went on after its call."""
        body = Body(fn=_hosted.until_ended, args=(self._ident,), title=self._name, grace=_FOR_THE_KILL)
        with suppress(EngineError):  # that the worker has ended is seen by the other one
            self._note_end(await self._sent(body))

    def _note_end(self, reason: str) -> None:
        self._ended = self._ended or reason
        self._lose_if_quiet()

    def _lose_if_quiet(self) -> None:
        """Have the life here end; whoever asks knows more about how, and goes first."""
        if self._ended is not None and not (self._asked or self._is_lost or self._is_stopping):
            self._is_lost = True
            self._on_lost(EngineError(self._name, None, self._ended, ended="unknown"))

    def _run(self, fn: Callable[..., Awaitable[Any]], what: str, *args: object) -> Awaitable[Any]:
        title = f"{self._actor.__class__.__name__}.{what}"
        return self._run_body(Body(fn=fn, args=(self._ident, *args), title=title, grace=self._lifespan.stop))

    async def _run_body(self, body: Body) -> Any:
        try:
            return await self._sent(body)
        except BodyRaisedError as raised:
            raise raised.error from raised.error.__cause__
        except EngineError as error:
            if error.ended == "finished":
                raise
            self._is_lost = True  # who asked will say so
            raise _SeatLostError.like(error) from error

    def _sent(self, body: Body) -> Awaitable[Any]:
        assert self._seat is not None
        return self._seat.run_body(replace(body, subject=type(self._actor)))

    def handle(self, message: Message) -> Awaitable[object]:
        return self._begun(message) if message.handler.deferred else self._ask(message, _hosted.call)

    async def _ask(self, message: Message, fn: Callable[..., Awaitable[Any]], *more: str) -> Any:
        body = Body(
            fn=fn,
            args=(self._ident, message.handler.name, *more, *message.args),
            kwargs=message.kwargs,
            title=message.title,
            call_id=message.call_id,
            grace=grace_there(message.grace),
        )
        self._asked += 1
        try:
            return await self._run_body(body)
        finally:
            self._asked -= 1
            self._lose_if_quiet()

    async def _begun(self, message: Message) -> None:
        """Have a handler run that takes its reply along; that is waited for when the mailbox has moved on."""
        assert self._deferred is not None
        ticket = uuid4().hex
        await self._ask(message, _hosted.begin, ticket)
        self._deferred.start(partial(self._reply, message, ticket), message.grace)

    async def _reply(self, message: Message, ticket: str, scope: Scope) -> None:
        body = Body(fn=_hosted.reply, args=(self._ident, ticket), title=message.title, call_id=message.call_id)
        with scope:
            try:
                value = await self._sent(body)
            except BodyRaisedError as raised:
                message.settle(None, raised.error)
            except Exception as error:
                if isinstance(error, EngineError) and error.ended != "finished":
                    self._note_end(error.reason)  # when the life here ends, whoever is owed a reply is told
                else:
                    message.settle(None, error)
            else:
                message.settle(value, None)

    def is_lost(self, error: BaseException) -> bool:
        return isinstance(error, _SeatLostError)

    def never_began(self, error: BaseException) -> bool:
        return isinstance(error, _SeatLostError) and error.ended == "unavailable"

    async def snapshot(self) -> object:
        return await self._run(_hosted.snapshot, "snapshot")

    async def stop(self) -> None:
        self._is_stopping = True
        if self._deferred is not None:
            self._deferred.cancel()
        if not self._is_lost:
            await self._run(_hosted.stop, "stop")

    def close(self) -> None:
        """Nothing: the worker is left with the resources."""
