"""Engine runner: runs an actor's code in a worker of an engine. Mailbox and supervisor stay in this process.

The first part of this file runs in the worker, where engines call its functions.
"""

from collections.abc import Awaitable, Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import uuid4

from anyio import Event

from callboard._calls._call_context import BodyRaisedError, wrap_call_errors
from callboard._loops._current import current_loop
from callboard._loops._protocol import Nursery, Scope, Spawned
from callboard._loops._side_tasks import SideTask
from callboard._records._policies import Body, Engine, Seat
from callboard.actors._actor import Actor, Handler, Lifespan, Reply, Resources
from callboard.actors._cell import Cell
from callboard.actors._incarnation import Incarnation
from callboard.actors._mailbox import Mailbox, Message, Poison
from callboard.actors._runner import LocalRunner, OnLost, SeatLostError
from callboard.exceptions import ActorDiedError, ActorGoneError, ActorStartError, EngineError

# In the worker


_NO_LIMIT = 1_000_000
"""Mailbox size and poison limit in the worker, too high to apply: the supervising process applies the real limits."""


@dataclass(frozen=True, slots=True)
class Description:
    """Picklable description of an actor (name, class, arguments and key), from which a worker makes the actor."""

    name: str
    kind: type[Actor]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    key: Hashable


class _Owed:
    """Deferred reply of an actor that runs in a worker; the actor's code may send the reply from any thread."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._wakeup = current_loop().wakeup()
        self._outcome: tuple[Any, BaseException | None] | None = None

    def settle(self, value: Any, error: BaseException | None) -> bool:
        """Set the outcome of the reply; return False if it was set before."""
        if self._outcome is not None:
            return False
        self._outcome = value, error
        self._wakeup.set()  # after the outcome: the waiter reads it at once
        return True

    async def outcome(self) -> Any:
        """Wait until the reply is sent; return its value or raise its error."""
        await self._wakeup.wait()
        assert self._outcome is not None
        value, error = self._outcome
        if error is not None:
            raise error
        return value


class _HostedActor:
    """Actor that runs in this worker, with its incarnation and its deferred replies."""

    def __init__(self, description: Description, lifespan: Lifespan, state: object) -> None:
        mailbox = Mailbox(_NO_LIMIT, "wait", description.kind.groups)
        self.cell = Cell(description.name, description.kind, mailbox, Poison(_NO_LIMIT))
        # No supervisor here starts the actor, so it accepts calls from the beginning.
        self.cell.gone_reason = None
        self.owed: dict[str, _Owed] = {}
        """Deferred replies that the supervising process has not fetched, by ticket."""
        self.end = "its task there was cancelled"
        """Reason of the actor's end, for errors. The initial text is kept if the actor's task was cancelled."""
        self.over = Event()
        actor = description.kind(*description.args, **description.kwargs)
        object.__setattr__(actor, "key", description.key)
        code = partial(LocalRunner, actor, description.name)
        self.incarnation = Incarnation(self.cell, actor, lifespan, lambda: None, state, code=code)
        # No nursery owns this task: the body that starts the actor ends long before it.
        self.task: Spawned = current_loop().spawn(self._live, lifespan.stop)

    async def _live(self, scope: Scope) -> None:
        with scope:
            end = await self.incarnation.run()
            self.end = f"its code there ended: {end.error!r}" if end.error is not None else "its code there has ended"
            self.cell.finish(self.end)  # no restart here: the supervisor starts a new worker
        self.over.set()

    async def ask(self, handler: Handler, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call a handler and return its result; raise `EngineError` if this actor has died."""
        try:
            with wrap_call_errors():
                # The supervising process decides which errors are fatal.
                return await self.cell.ask(handler, args, kwargs, passes=lambda error: isinstance(error, Exception))
        except BodyRaisedError as raised:
            error = raised.error
            # A handler may raise the same error for another actor; only `has_broken` tells them apart.
            if isinstance(error, ActorDiedError) and self.incarnation.has_broken:
                raise EngineError(error.tool, error.call_id, error.reason, ended="unknown") from error
            raise


_hosted: dict[str, _HostedActor] = {}
"""Actors in this worker, by the identity that their supervising process has chosen."""


def _actor_of(ident: str, title: str) -> _HostedActor:
    try:
        return _hosted[ident]
    except KeyError:
        raise ActorGoneError(title, None, "it does not live in this worker") from None


async def start(ident: str, description: Description, lifespan: Lifespan, state: object) -> None:
    """Make and start an actor in this worker; `state` is the snapshot to restore, or `None`."""
    hosted = _hosted[ident] = _HostedActor(description, lifespan, state)
    try:
        await hosted.incarnation.has_started(hosted.task)
    except BaseException:
        _hosted.pop(ident, None)  # `stop` may have removed it meanwhile; a KeyError would hide the real error
        raise


async def call(ident: str, name: str, /, *args: Any, **kwargs: Any) -> Any:
    """Run a handler of an actor in this worker, and return its result."""
    hosted = _actor_of(ident, name)
    return await hosted.ask(hosted.cell.kind._handlers[name], args, kwargs)


async def begin(ident: str, name: str, ticket: str, /, *args: Any, **kwargs: Any) -> None:
    """Run a deferred handler in this worker. `reply()` with the same `ticket` (an id) waits for the handler's reply."""
    hosted = _actor_of(ident, name)
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
    """Wait for the reply of the handler that `begin` ran under the id `ticket`; return its value or raise its error."""
    hosted = _actor_of(ident, "reply")
    with wrap_call_errors():
        try:
            return await hosted.owed[ticket].outcome()
        finally:
            del hosted.owed[ticket]


async def snapshot(ident: str) -> object:
    """Return the snapshot of an actor in this worker, for its supervisor."""
    return await _actor_of(ident, "snapshot").incarnation.code.snapshot()


async def until_ended(ident: str) -> str:
    """Wait for the end of an actor in this worker; return the reason as text."""
    hosted = _actor_of(ident, "until_ended")
    await hosted.over.wait()
    return hosted.end


async def stop(ident: str) -> None:
    """Stop an actor in this worker, and return when it has ended; do nothing for an unknown actor."""
    hosted = _hosted.pop(ident, None)
    if hosted is not None:
        hosted.incarnation.end()
        await hosted.task.wait()


_KILL_TIME = 0.1
"""Seconds of a call's clean-up time that are reserved for the engine, to kill a handler that did not end."""


def worker_grace(grace: float) -> float:
    """Return the clean-up time of a handler in a worker, in seconds: `grace` less the time that a kill takes."""
    return max(0.0, grace - _KILL_TIME)


# In the supervisor's process


class EngineRunner:
    """Runner of one incarnation's code in a worker of an engine; no other incarnation uses this worker."""

    def __init__(self, engine: Engine, actor: Actor, name: str, lifespan: Lifespan, on_lost: OnLost) -> None:
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
        self._open_calls = 0
        self._ended: str | None = None
        """Reason why the worker, or the actor in it, has ended; `None` while both run."""

    async def start(self, resources: Resources, snapshot: object) -> None:
        # The order is the reverse of closing: watchers and deferred replies end before the worker is released.
        await resources.enter(self._engine)
        seat = self._seat = await resources.enter(self._engine.seat(self._name))
        self._deferred = await resources.enter(current_loop().nursery())

        async def watch_worker() -> None:
            self._note_end(await seat.until_ended())

        await resources.enter(SideTask(watch_worker))
        actor = self._actor
        try:
            description = Description(self._name, type(actor), *actor._made_with, key=actor.key)
            await self._run(start, "start", description, self._lifespan, snapshot)
        except TypeError as error:
            # Arguments that cannot be pickled will fail next time, too.
            raise ActorStartError(self._name, f"{error}", is_permanent=True) from error
        # Not earlier: the worker knows the actor only after `start`.
        await resources.enter(SideTask(self._watch_life))

    async def _watch_life(self) -> None:
        """Wait for the end of the actor, which may end before its worker does, and record the reason."""
        body = Body(fn=until_ended, args=(self._ident,), title=self._name, grace=_KILL_TIME)
        with suppress(EngineError):  # the end of the worker is noted by `watch_worker`
            self._note_end(await self._run_in_seat(body))

    def _note_end(self, reason: str) -> None:
        self._ended = self._ended or reason
        self._report_loss_if_no_calls()

    def _report_loss_if_no_calls(self) -> None:
        """Report the actor as lost, unless a call is in progress, whose own error reports the loss in more detail."""
        if self._ended is not None and not (self._open_calls or self._is_lost or self._is_stopping):
            self._is_lost = True
            self._on_lost(EngineError(self._name, None, self._ended, ended="unknown"))

    def _run(self, fn: Callable[..., Awaitable[Any]], name: str, *args: object) -> Awaitable[Any]:
        title = f"{self._actor.__class__.__name__}.{name}"
        return self._run_body(Body(fn=fn, args=(self._ident, *args), title=title, grace=self._lifespan.stop))

    async def _run_body(self, body: Body) -> Any:
        try:
            return await self._run_in_seat(body)
        except BodyRaisedError as raised:
            raise raised.error from raised.error.__cause__
        except EngineError as error:
            # The body has ended and only its result was lost in transport: the worker and the actor are intact.
            if error.ended == "finished":
                raise
            self._is_lost = True  # the failed call reports the loss
            ended: Any = error.ended
            raise SeatLostError(error.tool, error.call_id, error.reason, ended=ended, recurs=error.recurs) from error

    def _run_in_seat(self, body: Body) -> Awaitable[Any]:
        assert self._seat is not None
        return self._seat.run_body(replace(body, subject=type(self._actor)))

    async def handle(self, message: Message) -> object:
        if not message.handler.deferred:
            return await self._run_message(message, call)
        # Its reply comes later: another task waits for the reply, so that the next message can begin.
        assert self._deferred is not None
        ticket = uuid4().hex
        # Cancelled here, the handler has not returned, and the worker drops the ticket.
        await self._run_message(message, begin, ticket)
        self._deferred.start(partial(self._reply, message, ticket), message.grace)
        return None

    async def _run_message(self, message: Message, fn: Callable[..., Awaitable[Any]], *extra_args: str) -> Any:
        body = Body(
            fn=fn,
            args=(self._ident, message.handler.name, *extra_args, *message.args),
            kwargs=message.kwargs,
            title=message.title,
            call_id=message.call_id,
            grace=worker_grace(message.grace),
        )
        self._open_calls += 1
        try:
            return await self._run_body(body)
        finally:
            # Also after a cancellation: the worker may have ended in the meantime.
            self._open_calls -= 1
            self._report_loss_if_no_calls()

    async def _reply(self, message: Message, ticket: str, scope: Scope) -> None:
        """Wait for a deferred reply from the worker, and settle the message that the reply answers."""
        body = Body(fn=reply, args=(self._ident, ticket), title=message.title, call_id=message.call_id)
        with scope:
            try:
                value = await self._run_in_seat(body)
            except BodyRaisedError as raised:
                message.settle(None, raised.error)
            except Exception as error:
                if isinstance(error, EngineError) and error.ended != "finished":
                    self._note_end(error.reason)  # the end of the incarnation settles all owed replies
                else:
                    message.settle(None, error)
            else:
                message.settle(value, None)

    async def snapshot(self) -> object:
        return await self._run(snapshot, "snapshot")

    async def stop(self) -> None:
        self._is_stopping = True
        if self._deferred is not None:
            # Before `stop`: these tasks wait in the worker for replies that may never be sent.
            self._deferred.cancel()
        if not self._is_lost:
            await self._run(stop, "stop")

    def close(self) -> None:
        """Do nothing: the worker is released when the incarnation's resources are closed."""
