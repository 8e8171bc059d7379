"""Incarnation of an actor: the task that runs it from `start` to `stop`."""

import logging
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from enum import IntEnum, auto
from functools import partial
from typing import Any

from anyio import sleep_forever
from anyio.lowlevel import checkpoint

from callboard._calls._observers import log_failure
from callboard._loops._context import InContext
from callboard._loops._current import current_loop
from callboard._loops._protocol import Nursery, Scope, Spawned, Wakeup
from callboard._loops._watchdog import mark
from callboard.actors._actor import CONTROL, Actor, Lifespan, Resources, current_actor, keeps_snapshots
from callboard.actors._cell import Cell
from callboard.actors._mailbox import Message, current_message
from callboard.actors._runner import (
    ActorRunner,
    End,
    Keep,
    OnLost,
    SeatLostError,
    death_of,
    snapshot_or_none,
    start_error,
    unwrap_group,
)
from callboard.exceptions import ActorDiedError, ActorStartError, CallCancelledError

_log = logging.getLogger("callboard")

_MAX_STEPS_WITHOUT_PAUSE = 32
"""Number of messages handled before the task yields: a handler that waits for nothing would block the event loop."""

_LATER = 1 / 20
"""Fraction of the time for clean-up after which a shielded clean-up is cut off on asyncio, after the end of that time.

The shield of `cleanup()` counts its time from the beginning of the clean-up, which is a moment after the cancellation.
So it ends first, and the code after the clean-up runs, as on trio.
"""

Call = tuple[str, tuple[Any, ...], Mapping[str, Any]]
"""Handler name and arguments of a call, stored apart: the message drops its arguments when its reply is sent."""


class State(IntEnum):
    """State of an incarnation, which decides which messages may begin. Each state is entered once, or left out."""

    STARTING = auto()
    """`start` runs; messages wait."""
    SERVING = auto()
    """Every message may begin."""
    DUE = auto()
    """It has reached `max_age` or `max_calls`: only messages that a running handler awaits may begin, or any while the
    actor owes a reply, which may depend on a later message."""
    ENDING = auto()
    """It stops when its handlers have ended and its replies were sent, whatever their time; messages as when due."""
    HURRIED = auto()
    """It stops when its handlers have ended, which have a time limit; no message begins."""
    STOPPING = auto()
    """All handlers have ended; its state is saved, and `stop` runs."""


class Incarnation:
    """Run of an actor from `start` to `stop`, in its own task. All methods except `wake` run in the loop's thread.

    Three cancel scopes are nested. The outer scope has the deadlines of `start` and `stop`. The middle scope surrounds
    the handlers, so that they can be cancelled and `stop` still runs. A shield around `stop` would not do: it would be
    entered inside the context managers that `start` has entered, and left after them. The inner scope surrounds one
    handler.
    """

    def __init__(
        self,
        cell: Cell,
        actor: Actor,
        lifespan: Lifespan,
        on_start: Callable[[], object],
        snapshot: object,
        *,
        keep: Keep | None = None,
        code: Callable[[OnLost], ActorRunner],
    ) -> None:
        self.loop = current_loop()
        self.actor = actor
        self._cell = cell
        self._lifespan = lifespan
        # Called before the first handler of an actor that has started.
        self._on_start: Callable[[], object] | None = on_start
        self._started, self._failed = self.loop.wakeup(), list[BaseException]()
        self._snapshot = snapshot
        # Saves the state after each call, before the caller is answered; `None` to save it at the end only.
        self._keep = keep
        # Entered by `run()`. Its deadline is moved by the phase: `start`, then none, then `stop`.
        self._outer_scope = self.loop.scope(math.inf, lifespan.stop)
        # Set from the end of `start` to the last handler. `end()` and `kill()` cancel the outer scope if it is None.
        self._handler_scope: Scope | None = None
        self._nursery: Nursery | None = None
        # Replaced under the cell's lock, in the same block that finds the mailbox empty. Senders put messages under
        # that lock and call `wake()` after it, so no message is missed.
        self._wakeup: Wakeup = self.loop.wakeup()
        self.code = code(self._break)
        self._state = State.STARTING
        # Reasons, no states: an incarnation may be killed or crash in each state, and tells why after its end.
        self._killed: str | None = None
        # The first cause wins: errors that follow from it must not replace it.
        self._crash: BaseException | None = None
        self._culprit: tuple[str | None, bool] = (None, False)
        # `_ends_by`: loop time by which an actor that lost its key must have ended.
        self._calls, self._ends_by = 0, math.inf
        # Loop time at which it is due by its age, counted from the end of `start`: a slow start must not use it up.
        self._retires_at = math.inf
        self._max_calls = math.inf if lifespan.max_calls is None else lifespan.max_calls
        # It was due, and ended when nothing ran or was owed: the next incarnation replaces it.
        self._is_retired = False

    def wake(self) -> None:
        """Wake the actor's task, so that it looks into the mailbox. Any thread may call this."""
        self._wakeup.set()

    def start_urgent_handlers(self) -> None:
        """Start the handlers of messages that bypass the queue."""
        while self._nursery is not None and not self._is_broken():
            # While the actor ends, the handler that awaits the message still runs inside the nursery's block. So the
            # nursery is still open.
            with self._cell.lock:
                message = self._cell.next_urgent(only_awaited_here=self._is_ending and self.takes_no_more)
            if message is None:
                return
            self._nursery.start(partial(self._run_concurrently, message), message.grace)

    @property
    def takes_no_more(self) -> bool:
        is_patient = self._state < State.HURRIED
        return self._state > State.SERVING and not (is_patient and self._cell.owes_reply)

    @property
    def _is_ending(self) -> bool:
        return self._state >= State.ENDING

    def _enter(self, state: State) -> bool:
        """Enter a state, unless the incarnation has reached it or a later one; return whether it was entered."""
        if self._state >= state:
            return False
        self._state = state
        return True

    @property
    def has_broken(self) -> bool:
        """Return whether the actor has crashed or was killed."""
        return self._crash is not None or self._killed is not None

    def _is_broken(self) -> bool:
        """Return whether no handler may begin any more, not even one that another handler awaits."""
        return self._crash is not None or self._handler_scope is None or self._handler_scope.cancel_called

    def end(self, *, has_time_limit: bool = True) -> None:
        """Stop the actor after its running handlers; `has_time_limit` cancels them after `lifespan.stop` seconds."""
        if self._enter(State.HURRIED if has_time_limit else State.ENDING):
            if has_time_limit:
                # Before the first handler this bounds `start`: an actor that is stopped while it starts need not start.
                (self._handler_scope or self._outer_scope).move(self.loop.now() + self._lifespan.stop)
            self.wake()

    def kill(self, reason: str, seconds: float = math.inf) -> None:
        """Cancel all handlers, and cancel `stop` after `seconds` seconds; the outcome of running calls is unknown."""
        self._killed = self._killed or reason
        self._enter(State.HURRIED)
        if seconds < math.inf:
            # While handlers run, the outer scope stays open until `_ends_by`, so that `stop` can run, and then cuts it
            # off. In `start` and `stop` the outer scope is cancelled now, and its grace is the time for clean-up.
            self._ends_by = self.loop.now() + seconds
            until, grace = (math.inf, seconds) if self._handler_scope is None else (self._ends_by, seconds * _LATER)
            self._outer_scope.move(until, grace=grace)
        (self._handler_scope or self._outer_scope).cancel()
        if self._nursery is not None:
            # On asyncio, the scope cancels the nursery only after the handler in the actor's own task has cleaned up.
            self._nursery.cancel()

    async def has_started(self, task: Spawned) -> None:
        """Wait until `start` has ended, and raise its error if it failed. `task` is the task of this incarnation."""
        try:
            await self._started.wait()
        except BaseException:
            # A cancelled start leaves no task behind: wait until the incarnation has ended.
            self.kill("its start was cancelled")
            await task.wait()
            raise
        if self._failed:
            await task.wait()
            raise self._failed.pop()  # dropped here: its traceback refers to this frame

    async def run(self) -> End:
        """Start the actor, handle messages and stop it; return how it ended. Never raises."""
        current_actor.set(self.actor)
        started, error = False, None
        try:
            # The outer scope surrounds the resources: leaving what `start` has entered is bounded by its deadline, too.
            with self._outer_scope:
                async with Resources() as resources:
                    if self._killed is None:
                        # A kill between the spawn of the task and its first step must not start the actor.
                        self._outer_scope.move(self.loop.now() + self._lifespan.start)
                        await self.code.start(resources, self._snapshot)
                        self._outer_scope.move(math.inf)
                        # From here on the field holds the final state; the old one must not be saved as the final one.
                        self._snapshot = None
                        started = True
                        await self._serve()
                        await self._stop()
        except BaseException as exc:
            error = unwrap_group(exc)
        # Only now: `stop` and the resources may still need the thread or the worker.
        self.code.close()
        return self._end_of_service(error) if started else self._end_of_start(error)

    async def _serve(self) -> None:
        """Handle messages until the actor ends. Store errors in `_crash` and raise none: `stop` must still run."""
        try:
            # Two graces: on asyncio, the handlers in the nursery are cancelled only after the handler in the actor's
            # own task has cleaned up.
            self._handler_scope = self.loop.scope(math.inf, 2 * self._lifespan.stop)
            with self._handler_scope:
                if self._killed is not None:
                    self._handler_scope.cancel()  # killed during `start`, which completed all the same
                self._enter(State.SERVING)
                if self._lifespan.max_age is not None:
                    self._retires_at = self.loop.now() + self._lifespan.max_age
                # From here on, senders in any thread wake this incarnation. Earlier messages wait in the mailbox.
                with self._cell.lock:
                    self._cell.incarnation = self
                # Before the first handler, so that observers see the start before its calls.
                self._report_start(None)
                await self._take_messages()
        except BaseException as exc:
            self._crash = self._crash or unwrap_group(exc)
        if (
            self._handler_scope is not None
            and self._handler_scope.cancel_called
            and self._killed is None
            and self._crash is None
        ):
            late = "handlers of the actor %r did not end within %g s, and were cancelled"
            _log.warning(late, self._cell.name, self._lifespan.stop)
        # No handler may begin after this line: `_is_broken()` is true from now on.
        self._enter(State.STOPPING)
        self._handler_scope = None
        # This deadline covers the snapshot, `stop` and the resources.
        self._outer_scope.move(min(self.loop.now() + self._lifespan.stop, self._ends_by))
        # After a crash the state cannot be trusted. Taken before `stop`, which may close what `snapshot` reads.
        if self._crash is None and self._killed is None and keeps_snapshots(type(self.actor)):
            self._snapshot = await snapshot_or_none(self._cell.name, self.code.snapshot)

    async def _stop(self) -> None:
        """Settle the calls that did not finish, and run the actor's `stop`."""
        # All handlers have ended, so callers are answered now and need not wait for `stop`. If other code has cancelled
        # the task, the reason is known only after the resources are closed; `_end_of_service` answers then.
        if not self._is_cancelled():
            self._cell.die(self._end_reason())
        try:
            await self.code.stop()
        except Exception as error:
            log_failure(logging.WARNING, f"stopping the actor {self._cell.name!r} failed", error, shows_text=True)

    async def _take_messages(self) -> None:
        """Handle messages until the actor ends, in a nursery if handlers may run side by side."""
        handlers = self._cell.kind._handlers.values()
        # Only these handlers run outside the actor's own task and need a nursery.
        if not any(handler.group is not None or handler.reentrant for handler in handlers):
            return await self._run_message_loop()
        async with self.loop.nursery() as self._nursery:
            self.start_urgent_handlers()  # messages that came before the nursery was open
            try:
                await self._run_message_loop()
            finally:
                # A message that no running handler awaits might find the nursery closed.
                self._enter(State.ENDING)
        return None

    async def _run_message_loop(self) -> None:
        """Take messages from the mailbox in order until the actor ends; raise the error of a crash."""
        cell, steps_without_pause = self._cell, 0
        while self._crash is None and self._state is not State.HURRIED:
            with cell.lock:
                if self._calls >= self._max_calls or self.loop.now() >= self._retires_at:
                    self._enter(State.DUE)
                if self._state > State.SERVING and not (cell.mailbox.running or cell.unanswered):
                    self._is_retired = self._state is State.DUE
                    break  # nothing runs here, or is owed, that could depend on a message
                message = cell.next(only_awaited_here=self.takes_no_more)
                wakeup = self._wakeup
                if message is None:
                    wakeup = self._wakeup = self.loop.wakeup()
            if message is None:
                steps_without_pause = 0
                # The callback may make this keyed actor leave, to free its place for a waiting key.
                cell.on_pause()
                # After `max_age` a scope with this deadline would end at once, and the task would never wait.
                until = self._retires_at if self._state is State.SERVING else math.inf
                with nullcontext() if until == math.inf else self.loop.scope(until, self._lifespan.stop):
                    await wakeup.wait()
            else:
                self._calls += 1
                if message.handler.group is None:
                    await self._handle(message)
                else:
                    assert self._nursery is not None
                    self._nursery.start(partial(self._run_concurrently, message), message.grace)
            steps_without_pause += 1
            if steps_without_pause == _MAX_STEPS_WITHOUT_PAUSE:
                steps_without_pause = 0
                # A busy actor never becomes idle: without this, waiting keys would never get its place.
                cell.on_pause()
                await checkpoint()
        if self._crash is not None:
            raise self._crash

    async def _run_concurrently(self, message: Message, scope: Scope) -> None:
        """Handle a message in a task of the nursery, side by side with other messages."""
        with scope:
            if self._is_broken():
                return  # its state is still "taken only", so `Cell.die` puts it back for the next incarnation
            await self._handle(message)
            if self._crash is not None and self._handler_scope is not None:
                self._handler_scope.cancel()  # cancelling the nursery does not cancel the handler in its owner's task
        self.wake()

    async def _handle(self, message: Message) -> None:
        """Run the handler of a message in the context of the caller, and settle the message."""
        # Read before the handler runs: the message drops its arguments when its reply is sent.
        call = message.identity
        scope = self.loop.scope(math.inf, message.grace)
        # Sets `message.scope` under the lock. From then on a cancelled caller cancels the handler.
        if not self._cell.may_begin(message, scope):
            return
        try:
            value = await InContext(self.loop, message.context, partial(self._body, message, scope))
        except BaseException as exc:
            if isinstance(exc, self.loop.cancelled_class) and not self.loop.has_cancelled_itself(exc):
                # The actor's task or nursery is cancelled; only its own scope may swallow that. The call is not settled
                # while the reason of the end is unknown, unless the actor itself awaits it and could not end before.
                if self._is_broken() or message.cancel_asked or message.is_awaited_here:
                    died = ActorDiedError(message.title, message.call_id, self._end_reason())
                    self._cell.record_result(message, None, died)
                raise
            await self._end_with(message, call, scope, exc)
            return
        if message.ends_actor(scope):
            self._break_by(message, call, CallCancelledError(message.title, message.call_id))
            return
        # The caller is answered only after its state was saved, so a killed process loses no answered call.
        failed = None if self._keep is None else await self._save_after_call(message)
        self._cell.poison.forget(*call)
        self._cell.record_result(message, value, failed)

    async def _end_with(self, message: Message, call: Call, scope: Scope, error: BaseException) -> None:
        """Settle a message whose handler has raised an error: the caller gets it, or the actor crashes with it."""
        if self.loop.has_cancelled_itself(error):
            # The handler raised a cancellation that nobody asked for. This ends its call, not the actor.
            error = CallCancelledError(message.title, message.call_id)
        elif isinstance(error, SeatLostError) and error.never_began and self._cell.put_back(message):
            # The worker was gone before the handler began: the next incarnation may run the message safely.
            self._break(error)
            return
        elif self._is_broken_by(error, message) or message.ends_actor(scope):
            self._break_by(message, call, error)
            return
        self._cell.record_result(message, None, await self._save_after_call(message, error))

    async def _save_after_call(self, message: Message, error: BaseException | None = None) -> BaseException | None:
        """Save the actor's state after a call; return the error of the call or the save, `None` if both succeeded."""
        if self._keep is None or message.handler.group == CONTROL or (error is not None and self._crash is not None):
            return error
        if (failed := await self._keep(self.code.snapshot, message.call_id)) is not None:
            self._break(failed)  # the next incarnation starts from the last state that was saved
        return error or failed

    def _is_killed_at(self, message: Message, point: str) -> bool:
        """Kill the actor if the test hook wants it at this point of a call; return whether it was killed."""
        fault = self._cell.fault
        if fault is None or not fault(message, point):
            return False
        self.kill("it was killed by a test")
        return True

    def _is_broken_by(self, error: BaseException, message: Message) -> bool:
        """Return whether a handler's error crashes the actor, instead of going to the caller only."""
        if message.passes is not None and message.passes(error):
            return False
        if isinstance(error, SeatLostError):
            return True
        return isinstance(unwrap_group(error), self.actor.fatal) or not isinstance(error, Exception)

    async def _body(self, message: Message, scope: Scope) -> object:
        """Run a message's handler in the cancel scope `scope` and in the context of the caller; see `InContext`."""
        current_message.set(message)
        current_actor.set(self.actor)
        if message.on_begin is not None:
            message.on_begin()
        with scope:
            # The caller may have given up in another thread after `may_begin`, before this scope was entered.
            if message.cancel_asked:
                scope.cancel()
            if self._is_killed_at(message, "begun"):
                await sleep_forever()
            # Deadlock detection needs it: the handler may not await the calls of tasks that it has started.
            message.task = None if message.handler.is_sync else self.loop.task()
            value = await self.code.handle(message)
            if self._is_killed_at(message, "done"):
                await sleep_forever()
            return value
        if message.kill_error is not None:
            raise message.kill_error
        return None  # cancelled by its caller, which does not use a result

    def _break_by(self, message: Message, call: Call, error: BaseException) -> None:
        """Crash the actor with a handler's error; count the crash for this call, unless its caller had cancelled it."""
        if not message.cancel_asked:
            self._culprit = self._cell.poison.count_crash(*call)
        died = ActorDiedError(message.title, message.call_id, death_of(self._cell.name, error))
        died.__cause__ = error
        # The caller gets this error with its cause; `die()` would give it the general reason of the crash.
        self._cell.record_result(message, None, died)
        self._break(error)

    def _break(self, error: BaseException) -> None:
        """Crash the actor with an error: cancel its parallel handlers, and end the mailbox loop."""
        self._crash = self._crash or error
        if self._nursery is not None:
            self._nursery.cancel()
        self.wake()

    def _end_reason(self) -> str:
        """Return the reason of the actor's end as text, for the errors of its callers."""
        name = self._cell.name
        if self._killed is not None:
            return f"{name} was ended: {self._killed}"
        return f"{name} was stopped" if self._crash is None else death_of(name, self._crash)

    def _end_of_start(self, error: BaseException | None) -> End:
        """Report a failed start to `has_started`, and return the `End` of the incarnation."""
        name = self._cell.name
        # KeyboardInterrupt and SystemExit reach the owner unchanged.
        if error is not None and not isinstance(error, (Exception, self.loop.cancelled_class)):
            self._report_start(error)
            return End("not_started", error)
        if isinstance(error, ActorStartError):
            failed = error
        elif error is not None:
            failed = start_error(name, error)
        else:
            # No error, and not started: the outer scope has swallowed its own cancellation.
            late = f"`start` took longer than {self._lifespan.start:g} s, and was cancelled"
            failed = ActorStartError(name, self._killed or late)
        self._report_start(failed)
        return End("never_starts" if failed.is_permanent else "not_started", failed)

    def _end_of_service(self, error: BaseException | None) -> End:
        """Settle the remaining calls, and return the `End` of an incarnation that had started."""
        name = self._cell.name
        # `stop` was cut off, perhaps before `_stop` answered the running calls; `die()` may be called twice.
        if error is None and self._outer_scope.cancel_called:
            reason = f"did not stop within {self._lifespan.stop:g} s, and was cancelled"
            if self._killed is not None:
                reason = f"was cancelled before it had stopped: {self._killed}"
            _log.warning("the actor %r %s", name, reason)
            self._cell.die(self._end_reason())
        elif error is not None:
            if not self._is_cancelled():
                log_failure(
                    logging.WARNING, f"closing what the actor {name!r} has entered failed", error, shows_text=True
                )
            # A task group that `start` has entered cancels this task first, and raises the reason when it is left.
            self._crash = error if self._is_cancelled() else self._crash or error
        if self._is_cancelled():
            self._crash = RuntimeError(f"the task of {name} was cancelled, perhaps by a scope that `start` has entered")
        self._cell.die(self._end_reason())
        if self._killed is not None:
            return End("crashed", ActorDiedError(name, None, self._end_reason()))
        if self._crash is not None:
            return End("crashed", self._crash, *self._culprit)
        return End("replaced" if self._is_retired else "stopped", snapshot=self._snapshot)

    def _is_cancelled(self) -> bool:
        """Return whether the user's code has cancelled the actor's task, for example by a scope entered in `start`."""
        return isinstance(self._crash, self.loop.cancelled_class)

    def _report_start(self, failed: BaseException | None) -> None:
        """Report to `has_started` that the start has succeeded, or failed with an error."""
        on_start, self._on_start = self._on_start, None
        if failed is not None:
            self._failed.append(failed)
        elif on_start is not None:
            on_start()
        self._started.set()


mark(Incarnation._body, Message)
