"""Actors whose supervisor is in another process: what an engine's worker is asked to run."""

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
"""Of messages: how many may wait is decided where the mailbox is."""


@dataclass(frozen=True, slots=True)
class Description:
    """An actor, as it is made there."""

    name: str
    kind: type[Actor]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    key: Hashable

    def made(self) -> Actor:
        """The actor; which errors break it is decided by its supervisor, who is told of them."""
        actor = self.kind(*self.args, **self.kwargs)
        object.__setattr__(actor, "key", self.key)
        object.__setattr__(actor, "fatal", ())
        return actor


class _Owed:
    """A reply that somebody here will send, from any thread."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._wakeup = current_loop().wakeup()
        self._outcome: tuple[Any, BaseException | None] | None = None

    def settle(self, value: Any, error: BaseException | None) -> bool:
        """End the wait; False if it has ended."""
        if self._outcome is not None:
            return False
        self._outcome = value, error
        self._wakeup.set()
        return True

    async def outcome(self) -> Any:
        """Wait until it has been sent."""
        await self._wakeup.wait()
        assert self._outcome is not None
        value, error = self._outcome
        if error is not None:
            raise error
        return value


class _Hosted:
    """An actor that lives here."""

    def __init__(self, description: Description, lifespan: Lifespan, state: object) -> None:
        self.cell = Cell(description.name, description.kind, size=_ANY_NUMBER, when_full="wait", poison=_ANY_NUMBER)
        self.cell.gone = None
        self.owed: dict[str, _Owed] = {}
        """By their tickets, the replies that handlers have taken along."""
        self._failed: BaseException | None = None
        self.end = "its task there was cancelled"
        """How it has ended, in words."""
        self._started, self._over = current_loop().wakeup(), Event()
        self.life = Life(self.cell, description.made(), lifespan, self._on_start, state)
        self._task: Spawned = current_loop().spawn(self._live, lifespan.stop)

    def _on_start(self, failed: BaseException | None) -> None:
        self._failed = failed
        self._started.set()

    async def _live(self, scope: Scope) -> None:
        with scope:
            end = await self.life.run()
            self.end = f"its code there ended: {end.error!r}" if end.error is not None else "its code there has ended"
            self.cell.finish(self.end)
        self._over.set()

    async def has_started(self) -> None:
        try:
            await self._started.wait()
        except BaseException:
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
        """Ask the actor, and tell its own death from what its handler has raised."""
        try:
            with marked():
                return await self.cell.ask(handler, args, kwargs)
        except BodyRaisedError as raised:
            error = raised.error
            if isinstance(error, ActorDiedError) and self.life.has_broken:
                raise EngineError(error.tool, error.call_id, error.reason, ended="unknown") from error
            raise

    async def until_over(self) -> str:
        await self._over.wait()
        return self.end


_hosted: dict[str, _Hosted] = {}


def _found(ident: str, title: str) -> _Hosted:
    try:
        return _hosted[ident]
    except KeyError:
        raise ActorGoneError(title, None, "it does not live in this worker") from None


async def start(ident: str, description: Description, lifespan: Lifespan, state: object) -> None:
    """Make an actor and start it, from a snapshot unless that is `None`.

    Raises:
        ActorStartError: if it does not start.
    """
    hosted = _hosted[ident] = _Hosted(description, lifespan, state)
    try:
        await hosted.has_started()
    except BaseException:
        del _hosted[ident]
        raise


async def call(ident: str, name: str, /, *args: Any, **kwargs: Any) -> Any:
    """Run a handler, and return what it returns.

    Raises:
        EngineError: if the actor has died here of it; `BodyRaisedError` has what the handler raised that looks so.
        BaseException: what the handler raises.
    """
    hosted = _found(ident, name)
    return await hosted.ask(hosted.cell.kind._handlers[name], args, kwargs)


async def begin(ident: str, name: str, ticket: str, /, *args: Any, **kwargs: Any) -> None:
    """Run a handler that takes its reply along; `reply` has that, by the ticket. Raises what `call` does."""
    hosted = _found(ident, name)
    owed = hosted.owed[ticket] = _Owed(f"{hosted.cell.kind.__name__}.{name}")
    handler = hosted.cell.kind._handlers[name]

    async def with_reply(actor: Actor, *args: Any, **kwargs: Any) -> None:
        await handler.fn(actor, Reply(owed), *args, **kwargs)

    try:
        await hosted.ask(replace(handler, deferred=False, fn=with_reply), args, kwargs)
    except BaseException:
        del hosted.owed[ticket]
        raise


async def reply(ident: str, ticket: str) -> Any:
    """Wait for the reply of a handler that has taken it along."""
    hosted = _found(ident, "reply")
    with marked():
        try:
            return await hosted.owed[ticket].outcome()
        finally:
            del hosted.owed[ticket]


async def snapshot(ident: str) -> object:
    """Take the snapshot of an actor that lives here, to be sent to its supervisor."""
    return await _found(ident, "snapshot").life.code.snapshot()


async def until_ended(ident: str) -> str:
    """Wait until an actor has ended; says how, in words."""
    return await _found(ident, "until_ended").until_over()


async def stop(ident: str) -> None:
    """Stop an actor, and return when it has ended."""
    hosted = _hosted.pop(ident, None)
    if hosted is not None:
        hosted.life.end()
        await hosted.has_ended()
