"""Engine host: actors in a worker, supervised by another process. Engines run these functions there."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from anyio import Event

from callboard._calls._of_body import BodyRaisedError, marked
from callboard._loops._current import current_loop
from callboard._loops._protocol import Scope, Spawned
from callboard.actors._actor import Actor, Handler
from callboard.actors._cell import Cell
from callboard.actors._ends import Lifespan
from callboard.actors._life import Life
from callboard.actors._reply import Reply
from callboard.exceptions import ActorDiedError, ActorGoneError, EngineError

_ANY_NUMBER = 1_000_000
"""Limits that never apply: the supervising process has the mailbox, and counts poison."""


@dataclass(frozen=True, slots=True)
class Description:
    """Picklable description of an actor."""

    name: str
    kind: type[Actor]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    key: Hashable

    def made(self) -> Actor:
        """Make the actor. It has no fatal errors here: the supervising process decides about them."""
        actor = self.kind(*self.args, **self.kwargs)
        object.__setattr__(actor, "key", self.key)
        object.__setattr__(actor, "fatal", ())
        return actor


class _Owed:
    """Deferred reply that the actor's code will send, from any thread."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._wakeup = current_loop().wakeup()
        self._outcome: tuple[Any, BaseException | None] | None = None

    def settle(self, value: Any, error: BaseException | None) -> bool:
        """Set the outcome; return False if it was set before."""
        if self._outcome is not None:
            return False
        self._outcome = value, error
        self._wakeup.set()  # after the outcome: the waiter reads it at once
        return True

    async def outcome(self) -> Any:
        """Wait for the reply; return its value or raise its error."""
        await self._wakeup.wait()
        assert self._outcome is not None
        value, error = self._outcome
        if error is not None:
            raise error
        return value


class _Hosted:
    """Actor in this worker, with its incarnation and its deferred replies."""

    def __init__(self, description: Description, lifespan: Lifespan, state: object) -> None:
        self.cell = Cell(description.name, description.kind, size=_ANY_NUMBER, when_full="wait", poison=_ANY_NUMBER)
        # No supervisor here starts the actor, so it accepts calls from the beginning.
        self.cell.gone = None
        self.owed: dict[str, _Owed] = {}
        """Deferred replies, by ticket."""
        self._failed: BaseException | None = None
        self.end = "its task there was cancelled"
        """Reason of its end, for errors; this value remains if the task was cancelled."""
        self._started, self._over = current_loop().wakeup(), Event()
        self.life = Life(self.cell, description.made(), lifespan, self._on_start, state)
        # No nursery owns this task: the body that starts the actor ends long before it.
        self._task: Spawned = current_loop().spawn(self._live, lifespan.stop)

    def _on_start(self, failed: BaseException | None) -> None:
        self._failed = failed
        self._started.set()

    async def _live(self, scope: Scope) -> None:
        with scope:
            end = await self.life.run()
            self.end = f"its code there ended: {end.error!r}" if end.error is not None else "its code there has ended"
            self.cell.finish(self.end)  # no restart here: the supervisor starts a new worker
        self._over.set()

    async def has_started(self) -> None:
        try:
            await self._started.wait()
        except BaseException:
            # A cancelled start leaves nothing in the worker.
            self.life.kill("its start was cancelled")
            await self.has_ended()
            raise
        if self._failed is not None:
            await self.has_ended()
            raise self._failed

    async def has_ended(self) -> None:
        with current_loop().shield(float("inf")):
            await self._task.wait()

    async def ask(self, handler: Handler, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call a handler; raise `EngineError` if this actor has died, but not for an actor that the handler called."""
        try:
            with marked():
                return await self.cell.ask(handler, args, kwargs)
        except BodyRaisedError as raised:
            error = raised.error
            # A handler may raise the same error for another actor; only `has_broken` tells them apart.
            if isinstance(error, ActorDiedError) and self.life.has_broken:
                raise EngineError(error.tool, error.call_id, error.reason, ended="unknown") from error
            raise

    async def until_over(self) -> str:
        await self._over.wait()
        return self.end


_hosted: dict[str, _Hosted] = {}
"""Actors in this worker, by the identity that their supervising process has chosen."""


def _found(ident: str, title: str) -> _Hosted:
    try:
        return _hosted[ident]
    except KeyError:
        raise ActorGoneError(title, None, "it does not live in this worker") from None


async def start(ident: str, description: Description, lifespan: Lifespan, state: object) -> None:
    """Make and start an actor, from a snapshot unless that is `None`.

    Raises:
        ActorStartError: if it does not start.
    """
    hosted = _hosted[ident] = _Hosted(description, lifespan, state)
    try:
        await hosted.has_started()
    except BaseException:
        _hosted.pop(ident, None)  # `stop` may have removed it meanwhile; a KeyError would hide the real error
        raise


async def call(ident: str, name: str, /, *args: Any, **kwargs: Any) -> Any:
    """Run a handler, and return its result.

    Raises:
        EngineError: if the actor died of the call. A similar error of the handler itself arrives as `BodyRaisedError`.
        BaseException: any other error of the handler.
    """
    hosted = _found(ident, name)
    return await hosted.ask(hosted.cell.kind._handlers[name], args, kwargs)


async def begin(ident: str, name: str, ticket: str, /, *args: Any, **kwargs: Any) -> None:
    """Run a deferred handler; its reply is awaited with `reply(ticket)`. Raises the same errors as `call`."""
    hosted = _found(ident, name)
    owed = hosted.owed[ticket] = _Owed(f"{hosted.cell.kind.__name__}.{name}")
    handler = hosted.cell.kind._handlers[name]

    async def with_reply(actor: Actor, *args: Any, **kwargs: Any) -> None:
        await handler.fn(actor, Reply(owed), *args, **kwargs)

    try:
        # Not deferred here: the cell would otherwise owe the reply, too, and the call would not end.
        await hosted.ask(replace(handler, deferred=False, fn=with_reply), args, kwargs)
    except BaseException:
        del hosted.owed[ticket]
        raise


async def reply(ident: str, ticket: str) -> Any:
    """Wait for a deferred reply."""
    hosted = _found(ident, "reply")
    with marked():
        try:
            return await hosted.owed[ticket].outcome()
        finally:
            del hosted.owed[ticket]


async def snapshot(ident: str) -> object:
    """Take the snapshot of an actor, for its supervisor."""
    return await _found(ident, "snapshot").life.code.snapshot()


async def until_ended(ident: str) -> str:
    """Wait for the end of an actor; return the reason."""
    return await _found(ident, "until_ended").until_over()


async def stop(ident: str) -> None:
    """Stop an actor, and return when it has ended; do nothing if it is not known."""
    hosted = _hosted.pop(ident, None)
    if hosted is not None:
        hosted.life.end()
        await hosted.has_ended()
