"""The code of an actor in a worker of an engine; its life, its mailbox and its supervisor are here."""

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

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
from callboard.exceptions import ActorDiedError, ActorStartError, EngineError


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
        self._is_lost = False
        self._asked = 0

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

    async def _watch(self) -> None:
        """Say so when the worker has ended while nobody asks it; who does knows more."""
        assert self._seat is not None
        reason = await self._seat.until_ended()
        if not self._asked:
            self._lose(EngineError(self._name, None, reason, ended="unknown"))

    def _lose(self, error: EngineError) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._on_lost(error)

    def _run(self, fn: Callable[..., Awaitable[Any]], what: str, *args: object) -> Awaitable[Any]:
        title = f"{self._actor.__class__.__name__}.{what}"
        return self._run_body(Body(fn=fn, args=(self._ident, *args), title=title, grace=self._lifespan.stop))

    async def _run_body(self, body: Body) -> Any:
        assert self._seat is not None
        try:
            return await self._seat.run_body(body)
        except EngineError as error:
            if error.ended != "finished":
                self._is_lost = True  # who asked will say so
            raise

    def handle(self, message: Message) -> Awaitable[object]:
        body = Body(
            fn=_hosted.call,
            args=(self._ident, message.handler.name, *message.args),
            kwargs=message.kwargs,
            title=message.title,
            call_id=message.call_id,
            grace=message.grace,
        )
        return self._owing(message, body) if message.handler.deferred else self._ask(body)

    async def _ask(self, body: Body) -> Any:
        self._asked += 1
        try:
            return await self._run_body(body)
        finally:
            self._asked -= 1

    async def _owing(self, message: Message, body: Body) -> None:
        """Have a handler run that takes its reply along: the next message does not wait for that here, but there."""
        assert self._deferred is not None

        async def reply(scope: Scope) -> None:
            with scope:
                try:
                    value = await self._run_body(body)
                except Exception as error:
                    message.settle(None, error)
                else:
                    message.settle(value, None)

        self._deferred.start(reply, message.grace)

    def is_lost(self, error: BaseException) -> bool:
        return isinstance(error, ActorDiedError) or (isinstance(error, EngineError) and error.ended != "finished")

    def never_began(self, error: BaseException) -> bool:
        return isinstance(error, EngineError) and error.ended == "unavailable"

    async def snapshot(self) -> object:
        return await self._run(_hosted.snapshot, "snapshot")

    async def stop(self) -> None:
        if self._deferred is not None:
            self._deferred.cancel()
        if not self._is_lost:
            await self._run(_hosted.stop, "stop")

    def close(self) -> None:
        """Nothing: the worker is left with the resources."""
