"""`ActorUnit`: one actor as child of a supervisor, with its incarnations and snapshots. `Draining`: drain of actors.

A drain refuses new calls, and finishes or ends the accepted ones.
"""

import logging
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, TypeVar

from anyio import Lock, sleep
from anyio.lowlevel import checkpoint

from callboard._calls._draining import report_drain
from callboard._calls._observers import log_failure, numbers
from callboard._loops._current import current_loop, run_there
from callboard._loops._deadline import TimeLimit
from callboard._loops._protocol import EventLoop, Scope, Spawned
from callboard._records._events import ActorPhase
from callboard._records._fleets import KeyMovedError, Snapshots
from callboard._records._policies import check_duration
from callboard._records._reports import Drained, UnknownCall
from callboard.actors._actor import Actor, instance_of, keeps_snapshots
from callboard.actors._cell import Cell
from callboard.actors._child import ChildSpec
from callboard.actors._engine_runner import EngineRunner
from callboard.actors._incarnation import Incarnation
from callboard.actors._mailbox import Mailbox, Message, Poison
from callboard.actors._reference import reference_to
from callboard.actors._restarts import Restart
from callboard.actors._runner import (
    ActorRunner,
    End,
    LeasedRunner,
    LocalRunner,
    OnLost,
    TakeSnapshot,
    snapshot_or_none,
    start_error,
)
from callboard.actors._snapshots import JOURNAL, InMemorySnapshots, JournalSnapshots, own_key
from callboard.exceptions import ActorDiedError, ActorGoneError, ActorStartError, SnapshotError

_log = logging.getLogger("callboard")

_state_numbers = count(1)
"""Counter for the numbers in `Cell.state_since`; shared by all actors of the process."""


OnUnitEnd = Callable[["ActorUnit", End], None]
"""Callback that gets a child and its `End`, if the child has ended although its supervisor did not stop it."""


C = TypeVar("C", bound=Cell)


def cell_for(spec: ChildSpec[Any], kind: type[C]) -> C:
    """Return a new cell for the actor of a spec, as an instance of `kind` (`Cell` or a subclass of it)."""
    mailbox = Mailbox(spec.mailbox, spec.when_full, spec.kind.groups)
    return kind(spec.name, spec.kind, mailbox, Poison(spec.poison))


@dataclass(eq=False, repr=False, slots=True)
class ActorUnit:
    """Child of a supervisor: one actor. All methods run in the supervisor's loop."""

    spec: ChildSpec[Any]
    _on_end: OnUnitEnd
    cell: Cell
    number: int = field(default=0, init=False)
    """Number of the current incarnation, or of the last one, for events."""
    _snapshots: Snapshots | JournalSnapshots | None = field(default=None, init=False)
    """Snapshot store for all incarnations: with `InMemorySnapshots` the state survives restarts of this child."""
    _loop: EventLoop = field(default_factory=current_loop, init=False)
    _incarnation: Incarnation | None = field(default=None, init=False)
    _task: Spawned | None = field(default=None, init=False)
    _is_stopped: bool = field(default=False, init=False)
    _last: End | None = field(default=None, init=False)
    """End of the last incarnation; `None` before the first."""

    def __post_init__(self) -> None:
        if keeps_snapshots(self.spec.kind):
            assert self.spec.snapshots != JOURNAL
            self._snapshots = InMemorySnapshots() if self.spec.snapshots is None else self.spec.snapshots

    @property
    def reference(self) -> Any:
        """New reference to the actor."""
        return reference_to(self.cell, self.spec.kind)

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def restart(self) -> Restart:
        return self.spec.restart

    @property
    def is_alive(self) -> bool:
        return self._incarnation is not None

    @property
    def _is_in_journal(self) -> bool:
        return isinstance(self._snapshots, JournalSnapshots)

    async def start(self) -> None:
        ownership = self.cell.ownership
        # After the key was lost the actor may only be restarted by the process that owns the key now.
        if ownership is not None and not ownership.is_current:
            raise ActorStartError(self.cell.name, "its process owns its key no more", is_permanent=True)
        self._is_stopped, self.number = False, next(numbers)
        # From here on calls wait in the mailbox. Set before the await, because a restart may take a while.
        self.cell.gone_reason = None
        snapshot = await self._load_snapshot()
        if self._is_stopped:
            return  # stopped during the await; there is no task yet that `stop()` could end
        # In a journal, the absence of a snapshot is the state of that place in the thread, not a loss.
        if (snapshot is None and not self._is_in_journal) or self.cell.has_lost_state:
            self.cell.state_since = next(_state_numbers)
        self.cell.has_lost_state = False
        try:
            actor: Actor = instance_of(self.spec.actor)
        except Exception as exc:
            raise start_error(self.name, exc) from exc
        object.__setattr__(actor, "key", own_key(self.cell.key))
        keeps_each = self._snapshots is not None and self.spec.save == "each_call"
        # A lock for each incarnation: one that hangs in a save must not block the next.
        keep = partial(self._keep, Lock(fast_acquire=True)) if keeps_each else None
        code: Callable[[OnLost], ActorRunner]
        if ownership is not None:
            clean_up = math.inf if self.spec.fleet is None else self.spec.fleet.clean_up
            code = partial(LeasedRunner, actor, self.cell.name, ownership=ownership, clean_up=clean_up)
        elif self.spec.runs_in is not None:
            code = partial(EngineRunner, self.spec.runs_in, actor, self.cell.name, self.spec.lifespan)
        else:
            code = partial(LocalRunner, actor, self.cell.name)
        incarnation = self._incarnation = Incarnation(
            self.cell, actor, self.spec.lifespan, self._has_started, snapshot, keep=keep, code=code
        )
        self._task = self._loop.spawn(self._run_incarnation, self.spec.lifespan.stop)
        try:
            await incarnation.has_started(self._task)
        except self._loop.cancelled_class:
            raise
        except BaseException as failed:
            self._tell("failed", failed)
            raise

    def _has_started(self) -> None:
        # The last incarnation is known until this one ends.
        if self._last is None:
            self._tell("started")
        else:
            self._tell("restarted", self._last.error)

    def _tell(self, phase: ActorPhase, error: BaseException | None = None) -> None:
        self.cell.report_life(phase, self.number, error=error)

    async def _run_incarnation(self, scope: Scope) -> None:
        """Run one incarnation in its task, save its state, and report its end."""
        incarnation = self._incarnation
        assert incarnation is not None
        with scope:
            # The order below matters: the incarnation is not alive any more, then its state is saved, then its end is
            # reported. The supervisor restarts only after the report, so the next incarnation loads the saved state.
            end = await incarnation.run()
            self._incarnation = None
            if isinstance(self._snapshots, JournalSnapshots):
                self._snapshots.forget(self.cell.key)
            if end.kind not in ("not_started", "never_starts"):
                self._last = end
                self._tell("died" if end.kind == "crashed" else "stopped", end.error)
            # A snapshot that could not be taken is lost state, as after a crash.
            saves = self._snapshots is not None and not self._is_in_journal
            self.cell.has_lost_state |= end.kind == "crashed" or (saves and end.snapshot is None)
            if saves and end.snapshot is not None:
                await self._save(end.snapshot)
            # Two kinds of end need no report: `stop()` waits for the end, and a failed `start()` raises its error.
            if not self._is_stopped and end.kind not in ("not_started", "never_starts"):
                self._on_end(self, end)

    async def _load_snapshot(self) -> object:
        """Load the saved state for the next incarnation; return `None` if there is none."""
        if self._snapshots is None:
            return None
        name, seconds = self.cell.name, self.spec.lifespan.start
        try:
            with (limit := self._time_limit(seconds)):
                return await self._snapshots.load(self.spec.name, self.cell.key)
        except Exception as error:
            raise ActorStartError(name, f"its snapshot could not be read: {error!r}") from error
        # Reached only if the time limit has cancelled the load: a store that hangs must not block the supervisor.
        raise ActorStartError(name, f"its snapshot was not read within {seconds:g} s") from limit.cause

    def _time_limit(self, seconds: float) -> TimeLimit:
        return TimeLimit(self._loop.scope(self._loop.now() + seconds, 0.0))

    async def _keep(self, lock: Lock, take_snapshot: TakeSnapshot, call_id: str | None) -> Exception | None:
        """Save the state after a call. If the call must fail because the save failed, return the error, else `None`."""
        # No parallel handler may overwrite a newer state by an older one. The snapshot is taken inside the lock, too:
        # otherwise it could be older than the last saved one.
        async with lock:
            if not isinstance(self._snapshots, JournalSnapshots):
                if (snapshot := await snapshot_or_none(self.cell.name, take_snapshot)) is not None:
                    await self._save(snapshot)
                # A failed save is logged and the result kept, unless another process owns the key and goes on without
                # this state.
                ownership = self.cell.ownership
                if not self.cell.has_lost_state or ownership is None or ownership.is_current:
                    return None
                reason = "its process lost its key, and the state after it was not kept"
                return ActorDiedError(self.cell.name, call_id, reason)
            try:
                await self._snapshots.keep(self.spec.name, self.cell.key, take_snapshot, call_id)
            except Exception as error:
                failed = SnapshotError(self.cell.name, f"{error}" or repr(error))
                failed.__cause__ = error
                return failed
        return None

    async def _save(self, snapshot: object) -> None:
        """Save the state within `stop_timeout`. A failure is logged, and does not change the result of any call."""
        assert self._snapshots is not None
        assert not isinstance(self._snapshots, JournalSnapshots)
        seconds, ownership = self.spec.lifespan.stop, self.cell.ownership
        try:
            # The fleet's store writes with the newest token of this process. It may own the key again, while a handler
            # that swallowed its cancellation goes on under an older ownership: the state of the owner in between is
            # newer than this one.
            if ownership is not None and not ownership.is_current:
                raise KeyMovedError("its process lost its key")
            with self._time_limit(seconds):
                await self._snapshots.save(self.spec.name, self.cell.key, snapshot)
                self.cell.has_lost_state = False
                return
            # Reached only after the time limit.
            _log.warning("the state of the actor %r was not saved within %g s", self.cell.name, seconds)
        except Exception as error:
            log_failure(
                logging.ERROR, f"the state of the actor {self.cell.name!r} could not be saved", error, shows_text=True
            )
        # The store has an older state now: the next incarnation counts as one that has lost state.
        self.cell.has_lost_state = True

    async def stop(self, *, has_time_limit: bool = True) -> None:
        """Stop the actor after its running handlers; `has_time_limit=False` waits for them without limit."""
        self._is_stopped = True
        if self._incarnation is not None:
            self._incarnation.end(has_time_limit=has_time_limit)
        if self._task is not None:
            await self._task.wait()

    def limit_stop_time(self) -> None:
        """Apply `stop_timeout` to a stop that is in progress."""
        if self._is_stopped and self._incarnation is not None:
            self._incarnation.end()

    def end(self, reason: str, seconds: float) -> None:
        """Cancel all handlers, with `seconds` seconds for their clean-up, and prevent a restart of the actor."""
        self._is_stopped = True
        self.kill(reason, seconds)

    def kill(self, reason: str, seconds: float = math.inf) -> None:
        """Cancel all handlers, with `seconds` seconds for their clean-up; the supervisor handles this as a crash."""
        if self._incarnation is not None:
            self._incarnation.kill(reason, seconds)

    def finish(self, reason: str) -> None:
        self.cell.finish(reason)


# Draining


_CHECK_INTERVAL = 0.01
"""Seconds between two checks for unfinished calls during a drain."""


class Draining:
    """Drain of several actors: accepted calls finish, and new calls are refused, except calls between these actors."""

    def __init__(self, title: str, cells: Callable[[], Collection[Cell]]) -> None:
        self._title = title
        self._cells = cells
        self._report = Drained()
        self._moved = 0
        """Number of messages that another process of the fleet will run."""

    async def run(self, timeout: float) -> Drained:
        """Refuse new calls, wait up to `timeout` seconds for accepted calls, end unfinished ones; return a report."""
        check_duration("drain(timeout=...)", timeout)
        for cell in self._cells():
            # Before the first count: from here on the number of messages can only grow by calls inside the drain.
            cell.draining = self
        first, loop = len(self._open_messages()), current_loop()
        try:
            await checkpoint()
            with loop.scope(loop.now() + timeout, 0.0):
                await self._until_idle()
        finally:
            # Also if the task that drains is cancelled: then the running calls are ended at once.
            if open_messages := self._open_messages():
                for cell, message in open_messages:
                    incarnation = cell.incarnation
                    # Handlers are cancelled in their loop's thread. If that loop has ended, this thread settles the
                    # messages.
                    if incarnation is None or not run_there(incarnation.loop, partial(self._end, cell, message)):
                        self._end(cell, message)
                # Without a limit: each handler was cancelled and has its own grace.
                await loop.outlast(self._until_idle)
        # An estimate: calls inside the drain that were added later are not in `first`.
        report = self._report + Drained(finished=max(0, first - self._report.ended - self._moved))
        report_drain(self._title, report)
        return report

    def _open_messages(self) -> list[tuple[Cell, Message]]:
        return [(cell, message) for cell in self._cells() for message in cell.messages()]

    async def _until_idle(self) -> None:
        while self._open_messages():
            await sleep(_CHECK_INTERVAL)

    def _end(self, cell: Cell, message: Message) -> None:
        """Settle an unfinished message, or cancel its handler. Runs in the thread of the actor's loop if possible."""
        reason = f"{cell.name} was drained"
        with cell.lock:
            if message.state == "ended":
                return
            # A message from another process of the fleet is sent back, so that the next owner of the key runs it.
            refused = cell.drain_refusal(message)
            is_moved = isinstance(refused, KeyMovedError)
            if cell.withdraw(message, refused if is_moved else ActorGoneError(message.title, message.call_id, reason)):
                self._moved += is_moved
                self._report += Drained(ended=not is_moved)
                return
            self._report += Drained(ended=1, unknown=(UnknownCall(tool=message.title, call_id=message.call_id),))
            # The caller was not cancelled and needs an error; `Incarnation._body` raises this one.
            message.kill_error = ActorDiedError(message.title, message.call_id, reason)
            message.cancel_asked = True
            if message.state == "deferred" or cell.incarnation is None:
                cell.settle(message, None, message.kill_error)
            elif message.scope is not None:
                message.scope.cancel()
