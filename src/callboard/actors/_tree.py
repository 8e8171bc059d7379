"""Supervisor task: starts children in order, restarts them after an end, and stops them in reverse."""

import logging
import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from callboard._loops._current import current_loop
from callboard._loops._protocol import Scope, Spawned, Wakeup
from callboard.actors._ends import End
from callboard.actors._restarts import Decision, Ended, Forget, GiveUp, Restarts, ShutDown, StartAgain, Terms
from callboard.actors._supervised import Manager, Unit
from callboard.exceptions import ActorStartError, SupervisorError

_log = logging.getLogger("callboard")

_HOW: dict[str, Ended] = {"stopped": "normal", "never_starts": "never_starts"}


class Plan(Protocol):
    """Configuration of a supervisor."""

    name: str

    def units(self, manager: Manager) -> list[Unit]:
        """Return the children of a supervisor, not started."""
        ...

    def restarts(self, children: list[Terms], chance: Callable[[], float]) -> Restarts:
        """Return the restart policy for these children."""
        ...


OnEnd = Callable[[BaseException | None], None]
"""Callback for a supervisor that has ended by itself: `None` after an orderly end, or the error."""


class Tree:
    """Running supervisor with its children. All methods run in its loop's thread.

    Args:
        plan: configuration of the supervisor.
        on_end: called once, when it has ended by itself and all children have ended.
    """

    def __init__(self, plan: Plan, on_end: OnEnd) -> None:
        self.loop = current_loop()
        self.name = plan.name
        self.units = plan.units(self)
        self._plan = plan
        self._on_end = on_end
        # Children append here; only the task `_manage` acts on it, so restarts never overlap.
        self._ends: deque[tuple[Unit, End]] = deque()
        self._wakeup: Wakeup | None = None
        # Set before the first await of a stop: from then on no child is started.
        self._is_stopping = False
        self.restarts = 0
        """Number of restarts so far."""
        self._task: Spawned | None = None
        self._due: list[tuple[float, StartAgain]] = []
        """Delayed restarts of single children, by loop time. The delay of one child must not delay the others."""

    def child_ended(self, unit: Unit, end: End) -> None:
        self._ends.append((unit, end))
        self._wake()

    def _wake(self) -> None:
        if self._wakeup is not None:
            self._wakeup.set()

    async def start(self) -> None:
        """Start the children in order. If one fails, stop the others again.

        Raises:
            ActorStartError: the error of that child.
        """
        self._is_stopping = False
        self._ends.clear()
        self._due.clear()
        self._restarts = self._plan.restarts([unit.terms for unit in self.units], random.random)
        for number, unit in enumerate(self.units):
            try:
                await unit.start()
            except BaseException:
                self._is_stopping = True
                # Shielded: if the start was cancelled, the children that run must still be stopped.
                with self.loop.shield(float("inf")):
                    await self._stop_units(self.units[:number])
                raise
            if self._is_stopping:
                return  # `stop()` was called during the await, and has stopped all children that run
        self._task = self.loop.spawn(self._manage, 0.0)

    async def stop(self) -> None:
        """Stop the children in reverse order, and return when all have ended, even if the caller is cancelled."""
        self._is_stopping = True
        self._wake()
        with self.loop.shield(float("inf")):
            await self._stop_units(self.units)
            # The task may be in the middle of a restart; it checks `_is_stopping` before each start.
            if self._task is not None:
                await self._task.wait()

    async def _stop_units(self, units: list[Unit]) -> None:
        for unit in reversed(units):
            await unit.stop()

    def finish(self, reason: str) -> None:
        """Settle the waiting calls of all children, because they will not run again."""
        for unit in self.units:
            unit.finish(reason)

    async def _manage(self, scope: Scope) -> None:
        """Task of the supervisor: handle the ends of children and delayed restarts until the stop."""
        with scope:
            while not self._is_stopping:
                if self._ends:
                    unit, end = self._ends.popleft()
                    if not unit.is_alive:  # otherwise it was restarted together with another child meanwhile
                        await self._child_has_ended(unit, end)
                elif (again := self._next_due()) is not None:
                    await self._start_again(again)
                else:
                    await self._wait(min((when for when, _ in self._due), default=float("inf")))

    def _next_due(self) -> StartAgain | None:
        """Return a delayed restart that is due, and drop the restarts of children that run again."""
        self._due = [one for one in self._due if not any(self.units[index].is_alive for index in one[1].starts)]
        first = min(self._due, key=lambda one: one[0], default=None)
        if first is None or first[0] > self.loop.now():
            return None
        self._due.remove(first)
        return replace(first[1], delay=0.0)  # the delay is over

    async def _wait(self, until: float = float("inf")) -> None:
        # No await lies between the check of `_ends` and this line, so an end cannot be missed.
        wakeup = self._wakeup = self.loop.wakeup()
        with self.loop.scope(until, 0.0):
            await wakeup.wait()

    async def _child_has_ended(self, unit: Unit, end: End) -> None:
        """Decide about a child that has ended by itself, and act."""
        if end.error is not None and not isinstance(end.error, Exception):
            await self._end_all(end.error)  # KeyboardInterrupt and SystemExit are raised by the owner
            return
        # A replacement by age or number of calls is no failure: it does not count against the intensity.
        if end.how == "replaced":
            await self._start_again(StartAgain((), (self.units.index(unit),), 0.0))
            return
        await self._act(self._decision(unit, end), end)

    def _decision(self, unit: Unit, end: End) -> Decision:
        how, now = _HOW.get(end.how, "abnormal"), self.loop.now()
        if end.error is not None:
            # The type only: the text may contain data that `Redact` removes from results but not from logs.
            kind = type(end.error).__qualname__
            _log.warning("%s: the actor %r has ended: %s", self.name, unit.terms.name, kind)
        index = self.units.index(unit)
        return self._restarts.ended(index, how, now, cause=end.culprit, is_refused=end.is_refused)

    async def _act(self, decision: Decision, end: End) -> None:
        """Carry out a decision of the restart policy."""
        if isinstance(decision, StartAgain):
            await self._start_again(decision)
            return
        unit = self.units[decision.index]
        why = "it ended in order" if end.error is None else f"it ended: {end.error!r}"
        if isinstance(decision, Forget):
            unit.finish(f"{why}, and is not restarted")
        elif isinstance(decision, ShutDown):
            await self._end_all(None)
        elif isinstance(decision, GiveUp):
            often = f"{unit.terms.name} ended {decision.restarts} times within {self._restarts.period:g} s"
            error = SupervisorError(self.name, f"{often}, the last time of {end.error!r}")
            error.__cause__ = end.error
            await self._end_all(error)

    async def _start_again(self, again: StartAgain) -> None:
        """Carry out a restart, or delay it; repeat while children do not start."""
        next_one: StartAgain | None = again
        while next_one is not None:
            # No other child is stopped, so the delay runs in `_due` while this task serves the other children.
            if next_one.delay and not next_one.stops:
                self._due.append((self.loop.now() + next_one.delay, next_one))
                return
            next_one = await self._try_again(next_one)

    async def _try_again(self, again: StartAgain) -> StartAgain | None:
        """Stop and start children; return the next restart if one of them does not start."""
        await self._stop_units([self.units[index] for index in again.stops])
        for index in set(again.stops) - set(again.starts):
            self.units[index].finish("it was stopped with another one, and is not restarted")
        # Here other children are stopped, too: this task may pause, since the whole group waits.
        await self._pause(again.delay)
        for index in again.starts:
            unit = self.units[index]
            if self._is_stopping:
                return None  # a child started after `stop()` would never be stopped
            # If the start fails, its new delay counts, not that of an earlier end.
            self._due = [one for one in self._due if index not in one[1].starts]
            try:
                self.restarts += 1
                await unit.start()
            except ActorStartError as failed:
                end = End("never_starts" if failed.never else "not_started", failed)
                decision = self._decision(unit, end)
                if isinstance(decision, StartAgain):
                    return decision  # it includes the children of this restart that were not started yet
                await self._act(decision, end)
                if not isinstance(decision, Forget):
                    return None
            except BaseException as error:
                if isinstance(error, (Exception, self.loop.cancelled_class)):
                    raise
                # KeyboardInterrupt in `start`: end the tree here, since nobody awaits this task's result.
                await self._end_all(error)
                return None
        return None

    async def _pause(self, seconds: float) -> None:
        until = self.loop.now() + seconds
        while not self._is_stopping and self.loop.now() < until:
            # Ends of other children wake this task; they stay in `_ends` until the pause is over.
            await self._wait(until)

    async def _end_all(self, error: BaseException | None) -> None:
        """End the supervisor from within its own task, and report it to the owner."""
        if self._is_stopping:
            return
        # Not `stop()`: it waits for `_manage`, the task in which this runs.
        self._is_stopping = True
        await self._stop_units(self.units)
        self._on_end(error)
