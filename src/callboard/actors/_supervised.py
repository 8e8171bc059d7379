"""Child of a supervisor: one actor, its incarnations and its snapshots."""

import logging
import math
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, Protocol

from anyio import Lock

from callboard._calls._observers import numbers
from callboard._loops._deadline import TimeLimit
from callboard._loops._protocol import EventLoop, Scope, Spawned
from callboard._records._events import ActorPhase
from callboard.actors._actor import Actor, keeps_snapshots, made_again
from callboard.actors._cell import Cell
from callboard.actors._child import ChildSpec
from callboard.actors._engine_runner import EngineRunner
from callboard.actors._events import tell_of_life
from callboard.actors._incarnation import Incarnation
from callboard.actors._restarts import RestartOptions
from callboard.actors._runner import (
    ActorRunner,
    End,
    Keep,
    LeasedRunner,
    LocalRunner,
    OnLost,
    Taken,
    snapshot_or_none,
    start_failed,
    traced,
)
from callboard.actors._snapshots import JOURNAL, InMemorySnapshots, JournalSnapshots, Snapshots, own_key
from callboard.exceptions import ActorDiedError, ActorStartError, SnapshotError


class Unit(Protocol):
    """Child of a supervisor: an actor, or another supervisor."""

    terms: RestartOptions

    @property
    def is_alive(self) -> bool:
        """Return whether the child has started and not ended."""
        ...

    async def start(self) -> None:
        """Start the child, and return when it runs.

        Raises:
            ActorStartError: if it does not start.
        """
        ...

    async def stop(self) -> None:
        """Stop the child, and return when it has ended; at once if it does not run."""
        ...

    def finish(self, reason: str) -> None:
        """Settle all waiting calls, because the child will not run again."""
        ...


class Manager(Protocol):
    """Supervisor, as its children see it."""

    loop: EventLoop

    def child_ended(self, unit: Unit, end: End) -> None:
        """Handle the end of a child that was not stopped by its supervisor."""
        ...


_log = logging.getLogger("callboard")

_lives = count(1)
"""Numbers of fresh states, over all actors of the process."""


def cell_for(spec: ChildSpec[Any]) -> Cell:
    """Return a new cell for an actor."""
    return Cell(spec.name, spec.kind, size=spec.mailbox, when_full=spec.when_full, poison=spec.poison)


class ActorUnit:
    """Child of a supervisor: one actor. All methods run in the supervisor's loop."""

    __slots__ = ("_is_stopped", "_last", "_life", "_manager", "_snapshots", "_task", "cell", "number", "spec", "terms")

    def __init__(self, spec: ChildSpec[Any], manager: Manager, cell: Cell | None = None) -> None:
        self.terms = RestartOptions(spec.name, spec.restart, spec.significant)
        self.spec = spec
        self.cell = cell_for(spec) if cell is None else cell
        # One store for all incarnations: with `InMemorySnapshots` the state survives restarts of this child.
        self._snapshots: Snapshots | JournalSnapshots | None = None
        if keeps_snapshots(spec.kind):
            assert spec.snapshots != JOURNAL
            self._snapshots = InMemorySnapshots() if spec.snapshots is None else spec.snapshots
        self._manager = manager
        self._life: Incarnation | None = None
        self._task: Spawned | None = None
        self._is_stopped = False
        self.number = 0
        """Number of the current incarnation, or of the last one, for events."""
        self._last: End | None = None
        """End of the last incarnation; `None` before the first."""

    @property
    def is_alive(self) -> bool:
        return self._life is not None

    @property
    def _is_in_journal(self) -> bool:
        return isinstance(self._snapshots, JournalSnapshots)

    async def start(self) -> None:
        loop, last = self._manager.loop, self._last
        told, outcome = loop.wakeup(), list[BaseException | None]()

        def on_start(failed: BaseException | None) -> None:
            if failed is None:  # reported here, before the first waiting call begins
                self._tell("started" if last is None else "restarted", None if last is None else last.error)
            outcome.append(failed)
            told.set()

        ownership = self.cell.ownership
        # After the key was lost the actor may only be restarted by the process that owns the key now.
        if ownership is not None and not ownership.is_current:
            raise ActorStartError(self.cell.name, "its process owns its key no more", never=True)
        self._is_stopped, self.number = False, next(numbers)
        # From here on calls wait in the mailbox. Set before the await, because a restart may take a while.
        self.cell.gone = None
        snapshot = await self._loaded()
        if self._is_stopped:
            return  # stopped during the await; there is no task yet that `stop()` could end
        # In a journal, the absence of a snapshot is the state of that place in the thread, not a loss.
        if (snapshot is None and not self._is_in_journal) or self.cell.has_lost_state:
            self.cell.state_since = next(_lives)
        self.cell.has_lost_state = False
        actor = self._made()
        object.__setattr__(actor, "key", own_key(self.cell.key))
        keeps_each = self._snapshots is not None and self.spec.save == "each_call"
        keep = _Turns(self._keep).keep if keeps_each else None
        life = self._life = Incarnation(
            self.cell, actor, self.spec.lifespan, on_start, snapshot, keep=keep, code=self._code(actor)
        )
        self._task = loop.spawn(self._live, self.spec.lifespan.stop)
        try:
            await told.wait()
        except BaseException:
            # A cancelled start leaves no task behind: wait until the incarnation has ended.
            life.kill("its start was cancelled")
            await self._has_ended()
            raise
        if (failed := outcome.pop()) is not None:  # popped, so that the closure keeps no traceback
            await self._has_ended()
            self._tell("failed", failed)
            raise failed

    def _tell(self, phase: ActorPhase, error: BaseException | None = None) -> None:
        tell_of_life(phase, self.spec.name, self.cell.key, self.number, error=error, asks=self.cell.watched_asks())

    def _code(self, actor: Actor) -> Callable[[OnLost], ActorRunner] | None:
        """Return a factory for the code runner; `None` to run the code in the incarnation's own task."""
        engine, ownership = self.spec.runs_in, self.cell.ownership
        if ownership is not None:
            clean_up = math.inf if self.spec.fleet is None else self.spec.fleet.clean_up
            return lambda on_lost: LeasedRunner(LocalRunner(actor, self.cell.name, on_lost), ownership, clean_up)
        return None if engine is None else partial(EngineRunner, engine, actor, self.cell.name, self.spec.lifespan)

    def _made(self) -> Actor:
        try:
            actor: Actor = made_again(self.spec.actor)
        except Exception as exc:
            raise start_failed(self.terms.name, exc) from exc
        return actor

    async def _live(self, scope: Scope) -> None:
        """Task of one incarnation: run it, save its state, and report its end."""
        life = self._life
        assert life is not None
        with scope:
            # The order below matters: the incarnation is not alive any more, then its state is saved, then its end is
            # reported. The supervisor restarts only after the report, so the next incarnation loads the saved state.
            end = await life.run()
            self._life = None
            if isinstance(self._snapshots, JournalSnapshots):
                self._snapshots.forget(self.cell.key)
            if end.how not in ("not_started", "never_starts"):
                self._last = end
                self._tell("died" if end.how == "crashed" else "stopped", end.error)
            # A snapshot that could not be taken is lost state, as after a crash.
            saves = self._snapshots is not None and not self._is_in_journal
            self.cell.has_lost_state |= end.how == "crashed" or (saves and end.snapshot is None)
            if saves and end.snapshot is not None:
                await self._save(end.snapshot)
            # Two kinds of end need no report: `stop()` waits for the end, and a failed `start()` raises its error.
            if not self._is_stopped and end.how not in ("not_started", "never_starts"):
                self._manager.child_ended(self, end)

    async def _loaded(self) -> object:
        """Load the state for the next incarnation; return `None` for none."""
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
        loop = self._manager.loop
        return TimeLimit(loop.scope(loop.now() + seconds, 0.0))

    async def _keep(self, taken: Taken, call_id: str | None) -> Exception | None:
        """Save the state after a call; return an error if the call must fail because its state was not saved."""
        if not isinstance(self._snapshots, JournalSnapshots):
            if (snapshot := await snapshot_or_none(self.cell.name, taken)) is not None:
                await self._save(snapshot)
            # A failed save is logged and the result kept, unless another process owns the key and goes on without this
            # state.
            return self._lost_with_key(call_id) if self.cell.has_lost_state else None
        try:
            await self._snapshots.keep(self.spec.name, self.cell.key, taken, call_id)
        except Exception as error:
            failed = SnapshotError(self.cell.name, f"{error}" or repr(error))
            failed.__cause__ = error
            return failed
        return None

    def _lost_with_key(self, call_id: str | None) -> Exception | None:
        """Return an error for a call if its state was not saved because the key was lost."""
        ownership = self.cell.ownership
        if ownership is None or ownership.is_current:
            return None
        return ActorDiedError(self.cell.name, call_id, "its process lost its key, and the state after it was not kept")

    async def _save(self, snapshot: object) -> None:
        """Save the state within `stop_timeout`. A failure is logged, and the call keeps its result."""
        assert self._snapshots is not None
        assert not isinstance(self._snapshots, JournalSnapshots)
        seconds = self.spec.lifespan.stop
        try:
            with self._time_limit(seconds):
                await self._snapshots.save(self.spec.name, self.cell.key, snapshot)
                self.cell.has_lost_state = False
                return
            # Reached only after the time limit.
            _log.warning("the state of the actor %r was not saved within %g s", self.cell.name, seconds)
        except Exception as error:
            kind = type(error).__qualname__
            _log.error("the state of the actor %r could not be saved: %s", self.cell.name, kind, exc_info=traced())
        # The store has an older state now: the next incarnation counts as one that has lost state.
        self.cell.has_lost_state = True

    async def stop(self) -> None:
        self._is_stopped = True
        if self._life is not None:
            self._life.end()
        await self._has_ended()

    async def rest(self) -> None:
        """Stop after all running handlers have ended, without a time limit unless `hurry` is called meanwhile."""
        self._is_stopped = True
        if self._life is not None:
            self._life.end(hurry=False)
        await self._has_ended()

    def hurry(self) -> None:
        """Apply `stop_timeout` to a stop that is in progress."""
        if self._is_stopped and self._life is not None:
            self._life.end()

    async def _has_ended(self) -> None:
        """Wait for the end of the current incarnation, if there is one."""
        if self._task is not None:
            # Shielded: the caller may be cancelled, and still nothing may outlive it.
            with self._manager.loop.shield(float("inf")):
                await self._task.wait()

    def end(self, reason: str, within: float) -> None:
        """Cancel all handlers, clean-up within `within` seconds, and prevent a restart."""
        self._is_stopped = True
        self.kill(reason, within)

    def kill(self, reason: str, within: float = math.inf) -> None:
        """Cancel all handlers; the supervisor handles this as a crash."""
        if self._life is not None:
            self._life.kill(reason, within)

    def finish(self, reason: str) -> None:
        self.cell.finish(reason)


class _Turns:
    """Lock around the saves of one incarnation: parallel handlers must not overwrite a newer state by an older one.

    Args:
        keep: saves a state.
    """

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self._lock = Lock(fast_acquire=True)

    async def keep(self, taken: Taken, call_id: str | None) -> Exception | None:
        """Take the state and save it, both under the lock."""
        # The snapshot must be taken inside the lock, too: otherwise it could be older than the last saved one.
        async with self._lock:
            return await self._keep(taken, call_id)
