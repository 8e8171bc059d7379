"""One life of an actor: the task that owns it, from `start` to `stop`."""

import logging
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from anyio import sleep_forever
from anyio.lowlevel import checkpoint

from callboard._loops._borrowed_context import InContext
from callboard._loops._current import current_loop
from callboard._loops._protocol import Nursery, Scope, Wakeup
from callboard._loops._watchdog import Holder, marks
from callboard.actors._actor import CONTROL, Actor, keeps_snapshots, living
from callboard.actors._cell import Cell
from callboard.actors._ends import End, Keep, Lifespan, OnStart, bare, death_of, snapshot_or_none, start_failed
from callboard.actors._mailbox import is_awaited_here
from callboard.actors._message import Message, current_message
from callboard.actors._own_code import Code, OnLost, OwnCode
from callboard.actors._resources import Resources
from callboard.exceptions import ActorDiedError, ActorStartError, CallCancelledError

_log = logging.getLogger("callboard")

_TURNS = 32
"""Messages without a pause; then it is the others' turn, for a handler need not wait for anything."""

Call = tuple[str, tuple[Any, ...], Mapping[str, Any]]
"""A handler's name, and its arguments; the message lets go of them when somebody sends its reply."""


class Life:
    """One life of an actor, in a task that nobody else cancels. All of it happens in its loop's thread.

    Three scopes lie in one another. The outer one has the deadlines of `start` and `stop`. The middle one is around
    the work between them, so that work can be cancelled and `stop` still run: a shield around `stop` would be
    entered within what `start` has entered, and left after it. The inner one is a handler's.

    Args:
        cell: where it lives.
        actor: made for this life.
        lifespan: its limits.
        on_start: told once.
        snapshot: the state to go on from; `None` for none.
        keep: keeps the state after each call, before its caller is answered; `None` to keep it at the end only.
        code: runs its code, if that is not to be run here; takes who is to be told when it cannot any more.
    """

    def __init__(
        self,
        cell: Cell,
        actor: Actor,
        lifespan: Lifespan,
        on_start: OnStart,
        snapshot: object,
        *,
        keep: Keep | None = None,
        code: Callable[[OnLost], Code] | None = None,
    ) -> None:
        self.loop = current_loop()
        self.actor = actor
        self._cell = cell
        self._lifespan = lifespan
        self._on_start: OnStart | None = on_start
        self._snapshot = snapshot
        self._keep = keep
        self._outer = self.loop.scope(math.inf, lifespan.stop)
        self._work: Scope | None = None
        self._nursery: Nursery | None = None
        self._wakeup: Wakeup = self.loop.wakeup()
        self.code: Code = OwnCode(actor, cell.name, self._break) if code is None else code(self._break)
        self._is_ending = self._is_hurried = False
        self._killed: str | None = None
        self._crash: BaseException | None = None
        self._culprit: tuple[str | None, bool] = (None, False)
        self._calls, self._ends_by = 0, math.inf  # on the loop's clock: when a life that lost its key has to have ended
        self._retires_at = math.inf if lifespan.max_age is None else self.loop.now() + lifespan.max_age
        self._may_retire = (lifespan.max_age, lifespan.max_calls) != (None, None)
        self._is_due = self._is_retired = False

    def wake(self) -> None:
        """Have it look into the mailbox; from any thread."""
        self._wakeup.set()

    def begin_urgent(self) -> None:
        """Run what jumps the queue, beside whatever runs; of one that ends, only what its own handlers wait for."""
        while self._nursery is not None and not self._is_broken():
            with self._cell.lock:
                message = self._cell.next_urgent(only_awaited_here=self._is_ending)
            if message is None:
                return
            self._nursery.start(partial(self._run_beside, message), message.grace)

    @property
    def takes_no_more(self) -> bool:
        return self._is_ending or self._is_due

    @property
    def has_broken(self) -> bool:
        """Whether something has broken it, or somebody has killed it."""
        return self._crash is not None or self._killed is not None

    def _is_over(self) -> bool:
        """Whether nothing is taken any more; if there is no hurry, what its own handlers wait for still is."""
        return self._is_ending and (self._is_hurried or not self._cell.mailbox.running)

    def _is_broken(self) -> bool:
        """Whether no handler may begin any more, whoever waits for it."""
        return self._crash is not None or self._work is None or self._work.cancel_called

    def end(self, *, hurry: bool = True) -> None:
        """Have it stop when the handlers that run have ended; in a hurry, they are cancelled after a while."""
        if not self._is_ending or (hurry and not self._is_hurried):
            self._is_ending, self._is_hurried = True, hurry
            if hurry:
                (self._work or self._outer).move(self.loop.now() + self._lifespan.stop)
            self.wake()

    def kill(self, reason: str, within: float = math.inf) -> None:
        """Cancel whatever runs, and after so many seconds clean-up and `stop`; calls that had begun are unknown."""
        self._killed = self._killed or reason
        self._is_ending = True
        if within < math.inf:
            self._ends_by = self.loop.now() + within
            until, grace = (math.inf, within) if self._work is None else (self._ends_by, 0.0)
            self._outer.move(until, grace=grace)
        (self._work or self._outer).cancel()
        if self._nursery is not None:
            self._nursery.cancel()  # now, and not when the handler in the actor's own task has cleaned up

    async def run(self) -> End:
        """Start, handle messages and stop; says how it ended, and raises nothing."""
        living.set(self.actor)
        started, error = False, None
        try:
            with self._outer:
                async with Resources() as resources:
                    if self._killed is None:
                        await self._start(resources)
                        started = True
                        await self._serve()
                        await self._stop()
        except BaseException as exc:
            error = bare(exc)
        self.code.close()
        return self._end_of_service(error) if started else self._failed_start(error)

    async def _start(self, resources: Resources) -> None:
        self._outer.move(self.loop.now() + self._lifespan.start)
        await self.code.start(resources, self._snapshot)
        self._outer.move(math.inf)
        self._snapshot = None

    async def _serve(self) -> None:
        """Handle messages until the end; what ends it early is noted, for there is still `stop`."""
        try:
            # Twice: on asyncio, the handlers beside the actor's task are cancelled when the one in it has cleaned up.
            self._work = self.loop.scope(math.inf, 2 * self._lifespan.stop)
            with self._work:
                if self._killed is not None:
                    self._work.cancel()
                with self._cell.lock:
                    self._cell.life = self
                self._tell_start(None)
                await self._take_messages()
        except BaseException as exc:
            self._crash = self._crash or bare(exc)
        if self._work is not None and self._work.cancel_called and self._killed is None and self._crash is None:
            late = "handlers of the actor %r did not end within %g s, and were cancelled"
            _log.warning(late, self._cell.name, self._lifespan.stop)
        self._is_ending, self._work = True, None
        self._outer.move(min(self.loop.now() + self._lifespan.stop, self._ends_by))
        if self._crash is None and self._killed is None and keeps_snapshots(type(self.actor)):
            self._snapshot = await snapshot_or_none(self._cell.name, self.code.snapshot)

    async def _stop(self) -> None:
        if not self._is_cancelled():  # else its reason is known when what `start` has entered is left
            self._cell.die(self._why())  # nothing of the calls that had begun runs any more
        try:
            await self.code.stop()
        except Exception as error:
            _log.warning("stopping the actor %r failed: %s", self._cell.name, type(error).__qualname__)

    async def _take_messages(self) -> None:
        handlers = self._cell.kind._handlers.values()
        if not any(one.group is not None or one.reentrant for one in handlers):
            return await self._take_turns()
        async with self.loop.nursery() as self._nursery:
            self.begin_urgent()
            try:
                await self._take_turns()
            finally:
                self._is_ending = True  # what is started from now on might find the nursery closed
        return None

    async def _take_turns(self) -> None:
        cell, turns = self._cell, 0
        while self._crash is None and not self._is_over():
            with cell.lock:
                message = cell.next(only_awaited_here=self._is_ending or (self._may_retire and self._retires()))
                wakeup = self._wakeup
                if message is None:
                    wakeup = self._wakeup = self.loop.wakeup()
            if self._is_retired:
                self._is_ending = True
            elif message is None:
                turns = 0
                cell.rest()
                await self._wait(wakeup)
            else:
                self._calls += 1
                await self._begin(message)
            turns += 1
            if turns == _TURNS:
                turns = 0
                cell.rest()
                await checkpoint()
        if self._crash is not None:
            raise self._crash

    async def _begin(self, message: Message) -> None:
        if message.handler.group is None:
            await self._handle(message)
        else:
            assert self._nursery is not None
            self._nursery.start(partial(self._run_beside, message), message.grace)

    async def _wait(self, wakeup: Wakeup) -> None:
        if self._retires_at == math.inf or self._is_due:
            await wakeup.wait()
        else:
            with self.loop.scope(self._retires_at, self._lifespan.stop):
                await wakeup.wait()

    def _retires(self) -> bool:
        """Whether it takes no more, because it has lived for as long as it may; under the lock."""
        limit = self._lifespan.max_calls
        self._is_due = (limit is not None and self._calls >= limit) or self.loop.now() >= self._retires_at
        self._is_retired = self._is_due and not self._cell.mailbox.running and not self._cell.owed
        return self._is_due

    async def _run_beside(self, message: Message, scope: Scope) -> None:
        with scope:
            if self._is_broken():
                return  # it never began, and waits for the next life
            await self._handle(message)
            if self._crash is not None and self._work is not None:
                self._work.cancel()  # a nursery does not cancel what its owner's task does
        self.wake()

    async def _handle(self, message: Message) -> None:
        """Run the handler of a message, with the variables of its caller, and answer."""
        call = message.named
        scope = self.loop.scope(math.inf, message.grace)
        if not self._cell.may_begin(message, scope):
            return
        try:
            value = await InContext(self.loop, message.context, partial(self._body, message, scope))
        except BaseException as exc:
            if self.loop.cancelled_itself(exc):
                error = CallCancelledError(message.title, message.call_id)
                self._cell.handled(message, None, await self._kept(message, error))
            elif isinstance(exc, self.loop.cancelled_class):
                self._end_with_actor(message)
                raise
            elif self.code.never_began(exc) and self._cell.put_back(message):
                self._break(exc)
            elif self._is_broken_by(exc, message) or message.ends_actor(scope):
                self._break_by(message, call, exc)
            else:
                self._cell.handled(message, None, await self._kept(message, exc))
        else:
            if message.ends_actor(scope):
                self._break_by(message, call, CallCancelledError(message.title, message.call_id))
            else:
                failed = None if self._keep is None else await self._kept(message)
                self._cell.handled(message, value, failed)

    async def _kept(self, message: Message, error: BaseException | None = None) -> BaseException | None:
        """Keep the state after a call, however it went; returns what its caller is told."""
        if self._keep is None or message.handler.group == CONTROL or (error is not None and self._crash is not None):
            return error
        if (failed := await self._keep(self.code.snapshot, message.call_id)) is not None:
            self._break(failed)  # it comes back with the state that is kept
        return error or failed

    def _dies_at(self, message: Message, point: str) -> bool:
        fault = self._cell.fault
        if fault is None or not fault(message, point):
            return False
        self.kill("it was killed by a test")
        return True

    def _is_broken_by(self, error: BaseException, message: Message) -> bool:
        if message.passes is not None and message.passes(error):
            return False
        if self.code.is_lost(error):
            return True
        return isinstance(bare(error), self.actor.fatal) or not isinstance(error, Exception)

    def _end_with_actor(self, message: Message) -> None:
        """Say what became of a call whose handler was cancelled because the actor ends, as soon as that is known.

        At once, if the actor waits for it itself: it could not end before it had its answer.
        """
        if self._is_broken() or message.cancel_asked or is_awaited_here(message):
            self._cell.handled(message, None, ActorDiedError(message.title, message.call_id, self._why()))

    async def _body(self, message: Message, scope: Scope) -> object:
        current_message.set(message)
        living.set(self.actor)
        if message.on_begin is not None:
            message.on_begin()
        with scope:
            if message.cancel_asked:
                scope.cancel()
            if self._dies_at(message, "begun"):
                await sleep_forever()
            message.task = None if message.handler.is_sync else self.loop.task()
            value = await self.code.handle(message)
            if self._dies_at(message, "done"):
                await sleep_forever()
            return value
        if message.fate is not None:
            raise message.fate
        return None  # cancelled: nobody waits for it

    def _break_by(self, message: Message, call: Call, error: BaseException) -> None:
        """Have the actor die of what a handler raised; that it was cancelled is not the call's fault."""
        if not message.cancel_asked:
            self._culprit = self._cell.poison.has_ended(*call)
        died = ActorDiedError(message.title, message.call_id, death_of(self._cell.name, error))
        died.__cause__ = error
        self._cell.handled(message, None, died)
        self._break(error)

    def _break(self, error: BaseException) -> None:
        self._crash = self._crash or error
        if self._nursery is not None:
            self._nursery.cancel()
        self.wake()

    def _why(self) -> str:
        name = self._cell.name
        if self._killed is not None:
            return f"{name} was ended: {self._killed}"
        return f"{name} was stopped" if self._crash is None else death_of(name, self._crash)

    def _failed_start(self, error: BaseException | None) -> End:
        name = self._cell.name
        if error is not None and not isinstance(error, (Exception, self.loop.cancelled_class)):
            self._tell_start(error)
            return End("not_started", error)
        if isinstance(error, ActorStartError):
            failed = error
        elif error is not None:
            failed = start_failed(name, error)
        else:
            late = f"`start` took longer than {self._lifespan.start:g} s, and was cancelled"
            failed = ActorStartError(name, self._killed or late)
        self._tell_start(failed)
        return End("never_starts" if failed.never else "not_started", failed)

    def _end_of_service(self, error: BaseException | None) -> End:
        name = self._cell.name
        if error is None and self._outer.cancel_called:
            _log.warning("the actor %r %s", name, self._lifespan.cut_short(self._killed))
            self._cell.die(self._why())
        elif error is not None:
            if not self._is_cancelled():
                _log.warning("closing what the actor %r has entered failed: %s", name, type(error).__qualname__)
            # A task group that `start` has entered cancels its host first, and says why when it is left.
            self._crash = error if self._is_cancelled() else self._crash or error
        if self._is_cancelled():
            self._crash = RuntimeError(f"the task of {name} was cancelled, perhaps by a scope that `start` has entered")
        self._cell.die(self._why())
        if self._killed is not None:
            return End("crashed", ActorDiedError(name, None, self._why()))
        if self._crash is not None:
            return End("crashed", self._crash, *self._culprit)
        return End("replaced" if self._is_retired else "stopped", snapshot=self._snapshot)

    def _is_cancelled(self) -> bool:
        """Whether somebody has cancelled the actor's task who had no business to."""
        return isinstance(self._crash, self.loop.cancelled_class)

    def _tell_start(self, failed: BaseException | None) -> None:
        on_start, self._on_start = self._on_start, None
        if on_start is not None:
            on_start(failed)


def _of_handler(variables: Mapping[str, Any]) -> Holder:
    message = variables["message"]
    return Holder(message.handler.title, f"the handler {message.handler.title}")


marks[Life._body.__code__] = _of_handler
