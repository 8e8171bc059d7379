"""Engine runner: runs an actor's code in a worker of an engine. Mailbox and supervisor stay in this process."""

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
from callboard._records._policies import Body, Engine, Seat
from callboard.actors import _hosted
from callboard.actors._actor import Actor
from callboard.actors._code import OnLost
from callboard.actors._ends import Lifespan
from callboard.actors._message import Message
from callboard.actors._resources import Resources
from callboard.exceptions import ActorStartError, EngineError

_FOR_THE_KILL = 0.1
"""Part of the grace in seconds that is reserved for the engine to kill a body that did not end."""


def grace_there(grace: float) -> float:
    """Return the grace of a body on an engine in seconds, for the grace of its call in this process."""
    return max(0.0, grace - _FOR_THE_KILL)


class _SeatLostError(EngineError):
    """Error: the worker of an actor has ended, or the actor in it."""

    @classmethod
    def like(cls, error: EngineError) -> "_SeatLostError":
        """Copy an engine's error into this type, by which `is_lost` recognises the end of this actor's own worker."""
        ended: Any = error.ended
        return cls(error.tool, error.call_id, error.reason, ended=ended, recurs=error.recurs)


class CodeElsewhere:
    """Runner of one incarnation's code in a worker of its own.

    Args:
        engine: provides the worker.
        actor: describes the actor that is made in the worker.
        name: of the actor.
        lifespan: time limits of the actor.
        on_lost: called with the reason when the worker ends.
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
        # Key of this incarnation in the worker's table of actors.
        self._ident = uuid4().hex
        self._seat: Seat | None = None
        self._deferred: Nursery | None = None
        # Either flag keeps `on_lost` from being called: the end is reported once, and not at all during `stop`.
        self._is_lost = self._is_stopping = False
        # Calls in the worker. Each learns more about its end than the watchers, so they are heard first.
        self._asked = 0
        self._ended: str | None = None
        """Reason why the worker, or the actor in it, has ended; `None` while both run."""

    async def start(self, resources: Resources, snapshot: object) -> None:
        # The order is the reverse of closing: watchers and deferred replies end before the worker is released.
        await resources.enter(self._engine)
        self._seat = await resources.enter(self._engine.seat(self._name))
        self._deferred = await resources.enter(current_loop().nursery())
        await resources.enter(beside(self._watch))
        actor = self._actor
        try:
            description = _hosted.Description(self._name, type(actor), *actor._made_with, key=actor.key)
            await self._run(_hosted.start, "start", description, self._lifespan, snapshot)
        except TypeError as error:
            # Arguments that cannot be pickled will fail next time, too.
            raise ActorStartError(self._name, f"{error}", never=True) from error
        # Not earlier: the worker knows the actor only after `_hosted.start`.
        await resources.enter(beside(self._watch_life))

    async def _watch(self) -> None:
        """Wait for the end of the worker, and note its reason."""
        assert self._seat is not None
        self._note_end(await self._seat.until_ended())

    async def _watch_life(self) -> None:
        """Wait for the actor in the worker to end: for example, its thread did not stop after a cancelled call."""
        body = Body(fn=_hosted.until_ended, args=(self._ident,), title=self._name, grace=_FOR_THE_KILL)
        with suppress(EngineError):  # the end of the worker is noted by `_watch`
            self._note_end(await self._sent(body))

    def _note_end(self, reason: str) -> None:
        self._ended = self._ended or reason
        self._lose_if_quiet()

    def _lose_if_quiet(self) -> None:
        """Report the loss, unless a call is in progress: its own error is more precise, and is reported instead."""
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
            # The body has ended and only its result was lost in transport: the worker and the actor are intact.
            if error.ended == "finished":
                raise
            self._is_lost = True  # the failed call reports the loss: see `is_lost`
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
            # Also after a cancellation: the worker may have ended in the meantime.
            self._asked -= 1
            self._lose_if_quiet()

    async def _begun(self, message: Message) -> None:
        """Run a deferred handler; wait for its reply in a separate task, so that the mailbox moves on."""
        assert self._deferred is not None
        ticket = uuid4().hex
        # Cancelled here, the handler has not returned, and the worker drops the ticket.
        await self._ask(message, _hosted.begin, ticket)
        self._deferred.start(partial(self._reply, message, ticket), message.grace)

    async def _reply(self, message: Message, ticket: str, scope: Scope) -> None:
        """Wait for a deferred reply from the worker, and settle its message."""
        body = Body(fn=_hosted.reply, args=(self._ident, ticket), title=message.title, call_id=message.call_id)
        with scope:
            try:
                value = await self._sent(body)
            except BodyRaisedError as raised:
                message.settle(None, raised.error)
            except Exception as error:
                if isinstance(error, EngineError) and error.ended != "finished":
                    self._note_end(error.reason)  # the end of the incarnation settles all owed replies
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
            # Before `stop`: these tasks wait in the worker for replies that may never be sent.
            self._deferred.cancel()
        if not self._is_lost:
            await self._run(_hosted.stop, "stop")

    def close(self) -> None:
        """Do nothing: the worker is released with the resources."""
