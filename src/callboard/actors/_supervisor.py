"""Supervision of actors: `Supervisor` and `running`, and the task that starts, restarts and stops children.

Children are started in order, restarted after an end, and stopped in reverse.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Self, cast, overload

from anyio import get_current_task

from callboard._calls._draining import PATIENCE
from callboard._calls._observers import log_failure
from callboard._loops._current import current_loop, is_over
from callboard._loops._deadline import DEFAULT_GRACE
from callboard._loops._owner_task import Openable
from callboard._loops._protocol import Scope, Spawned, Wakeup
from callboard._records._policies import check_count, check_seconds
from callboard._records._reports import Drained
from callboard._util._suggestions import did_you_mean, suggests_keywords
from callboard.actors._actor import Actor
from callboard.actors._cell import Cell
from callboard.actors._child import INTENSITY, PERIOD, A, ChildSpec, check_fleet, check_store, spec_of
from callboard.actors._restarts import (
    STRATEGIES,
    Backoff,
    Decision,
    Restart,
    Restarts,
    StartAgain,
    Strategy,
)
from callboard.actors._runner import End
from callboard.actors._supervised import ActorUnit, Draining, cell_for
from callboard.exceptions import ActorStartError, SupervisorError

OnEnd = Callable[["Tree", End], None]
"""Callback for a supervisor that has ended by itself: "stopped" after an orderly end, or "crashed" with the error."""


class Tree:
    """Running supervisor with its children; may be a child itself. All methods run in its loop's thread."""

    def __init__(self, name: str, make_restarts: Callable[[list[Restart]], Restarts], on_end: OnEnd) -> None:
        self.loop = current_loop()
        self.name = name
        # OTP's default for a supervisor that is a child: it is restarted even after an orderly end.
        self.restart: Restart = "permanent"
        self.units: list[ActorUnit | Tree] = []
        """Children in the order of their start; filled before `start()`."""
        self.is_alive = False
        self._make_restarts = make_restarts
        self._on_end = on_end
        # Children append here; only the task `_manage` acts on it, so restarts never overlap.
        self._ends: deque[tuple[ActorUnit | Tree, End]] = deque()
        self._wakeup: Wakeup | None = None
        # Set before the first await of a stop: from then on no child is started.
        self._is_stopping = False
        self.restarts = 0
        """Number of restarts of children so far."""
        self._task: Spawned | None = None
        self._due: list[tuple[float, StartAgain]] = []
        """Delayed restarts of single children, by loop time. The delay of one child must not delay the others."""

    def child_ended(self, unit: "ActorUnit | Tree", end: End) -> None:
        """Handle the end of a child that this supervisor did not stop."""
        self._ends.append((unit, end))
        self._wake()

    def _wake(self) -> None:
        if self._wakeup is not None:
            self._wakeup.set()

    async def start(self) -> None:
        """Start the children in order. If one child fails, stop the children that have started."""
        self._is_stopping = False
        self._ends.clear()
        self._due.clear()
        self._restarts = self._make_restarts([unit.restart for unit in self.units])
        for number, unit in enumerate(self.units):
            try:
                await unit.start()
            except BaseException:
                self._is_stopping = True
                # If the start was cancelled, the children that run must still be stopped.
                await self.loop.outlast(partial(self._stop_units, self.units[:number]))
                raise
            if self._is_stopping:
                return  # `stop()` was called during the await, and has stopped all children that run
        self.is_alive = True
        self._task = self.loop.spawn(self._manage, 0.0)

    async def stop(self) -> None:
        """Stop the children in reverse order, and return when all have ended, even if the caller is cancelled."""
        self._is_stopping, self.is_alive = True, False
        self._wake()
        await self.loop.outlast(self._stop_all)

    async def _stop_all(self) -> None:
        await self._stop_units(self.units)
        # The task may be in the middle of a restart; it checks `_is_stopping` before each start.
        if self._task is not None:
            await self._task.wait()

    async def _stop_units(self, units: "list[ActorUnit | Tree]") -> None:
        for unit in reversed(units):
            await unit.stop()

    def finish(self, reason: str) -> None:
        """End all children for good; their waiting calls fail with an error."""
        for unit in self.units:
            unit.finish(reason)

    async def _manage(self, scope: Scope) -> None:
        """Handle the ends of children and delayed restarts until `stop` is called; runs in the supervisor's task."""
        with scope:
            while not self._is_stopping:
                if self._ends:
                    unit, end = self._ends.popleft()
                    if not unit.is_alive:  # otherwise it was restarted together with another child meanwhile
                        await self._child_has_ended(unit, end)
                elif (restart := self._next_due()) is not None:
                    await self._restart(restart)
                else:
                    await self._wait(min((when for when, _ in self._due), default=float("inf")))

    def _next_due(self) -> StartAgain | None:
        """Return a delayed restart that is due, or `None`; drop the restarts of children that run again."""
        self._due = [due for due in self._due if not any(self.units[index].is_alive for index in due[1].starts)]
        first = min(self._due, key=lambda due: due[0], default=None)
        if first is None or first[0] > self.loop.now():
            return None
        self._due.remove(first)
        return replace(first[1], delay=0.0)  # the delay is over

    async def _wait(self, until: float = float("inf")) -> None:
        # No await lies between the check of `_ends` and this line, so an end cannot be missed.
        wakeup = self._wakeup = self.loop.wakeup()
        with self.loop.scope(until, 0.0):
            await wakeup.wait()

    async def _child_has_ended(self, unit: "ActorUnit | Tree", end: End) -> None:
        """Apply the restart policy to a child that has ended by itself."""
        # A replacement by age or number of calls is no failure: it does not count against the intensity.
        if end.kind == "replaced":
            await self._restart(StartAgain((), (self.units.index(unit),), 0.0))
        elif isinstance(end.error, Exception):
            await self._act(unit, self._decision(unit, end), end)
        else:
            await self._end_all(end.error)  # KeyboardInterrupt and SystemExit are raised by the owner

    def _decision(self, unit: "ActorUnit | Tree", end: End) -> Decision:
        assert end.error is not None, "only its supervisor ends a child in order"
        log_failure(logging.WARNING, f"{self.name}: the actor {unit.name!r} has ended", end.error, shows_text=True)
        return self._restarts.decide(
            self.units.index(unit),
            self.loop.now(),
            never_starts=end.kind == "never_starts",
            cause=end.culprit,
            is_refused=end.is_refused,
        )

    async def _act(self, unit: "ActorUnit | Tree", decision: Decision, end: End) -> None:
        """Carry out a decision of the restart policy."""
        if isinstance(decision, StartAgain):
            await self._restart(decision)
            return
        if decision == "forget":
            unit.finish(f"it ended: {end.error!r}, and is not restarted")
        elif decision == "shut_down":
            await self._end_all(None)
        else:
            often = f"{unit.name} ended {decision.restarts} times within {self._restarts.period:g} s"
            error = SupervisorError(self.name, f"{often}, the last time of {end.error!r}")
            error.__cause__ = end.error
            await self._end_all(error)

    async def _restart(self, restart: StartAgain) -> None:
        """Carry out a restart, now or after its delay; if a child does not start, continue with the next restart."""
        next_restart: StartAgain | None = restart
        while next_restart is not None:
            # No other child is stopped, so the delay runs in `_due` while this task serves the other children.
            if next_restart.delay and not next_restart.stops:
                self._due.append((self.loop.now() + next_restart.delay, next_restart))
                return
            next_restart = await self._try_restart(next_restart)

    async def _try_restart(self, restart: StartAgain) -> StartAgain | None:
        """Stop and start children once; return the next restart if one of them does not start, else `None`."""
        await self._stop_units([self.units[index] for index in restart.stops])
        for index in set(restart.stops) - set(restart.starts):
            self.units[index].finish("it was stopped with another one, and is not restarted")
        # Here other children are stopped, too: this task may pause, since the whole group waits.
        until = self.loop.now() + restart.delay
        while not self._is_stopping and self.loop.now() < until:
            # Ends of other children wake this task; they stay in `_ends` until the pause is over.
            await self._wait(until)
        for index in restart.starts:
            unit = self.units[index]
            if self._is_stopping:
                return None  # a child started after `stop()` would never be stopped
            # If the start fails, its new delay counts, not that of an earlier end.
            self._due = [due for due in self._due if index not in due[1].starts]
            try:
                self.restarts += 1
                await unit.start()
            except ActorStartError as failed:
                end = End("never_starts" if failed.is_permanent else "not_started", failed)
                decision = self._decision(unit, end)
                if isinstance(decision, StartAgain):
                    return decision  # it includes the children of this restart that were not started yet
                await self._act(unit, decision, end)
                if decision != "forget":
                    return None
            except BaseException as error:
                if isinstance(error, (Exception, self.loop.cancelled_class)):
                    raise
                # KeyboardInterrupt in `start`: end the tree here, since nobody awaits this task's result.
                await self._end_all(error)
                return None
        return None

    async def _end_all(self, error: BaseException | None) -> None:
        """End the supervisor from within its own task, and report the end through the callback `on_end`."""
        if self._is_stopping:
            return
        # Not `stop()`: it waits for `_manage`, the task in which this runs.
        self._is_stopping = True
        await self._stop_units(self.units)
        # Before the report: the supervisor around this one restarts only children that are not alive.
        self.is_alive = False
        self._on_end(self, End("stopped" if error is None else "crashed", error))


class Supervisor(Openable):
    """Supervisor of actors that run during an `async with` block and are restarted when they end.

    The terms are OTP's. Children start in order and stop in reverse order. If they end too often, all are stopped, the
    block is cancelled, and a `SupervisorError` is raised at its end. A supervisor around this one restarts it instead.

    Args:
        children: actor classes, objects of them, results of `child`, and supervisors.
        name: name in errors and log lines.
        strategy: children that are restarted with one that ended: "one_for_one" none, "one_for_all" all, "rest_for_one"
            all that were started after it.
        intensity: maximum number of restarts within a period; after one more, the supervisor gives up.
        period: length of the sliding period in seconds.
        backoff: delays before restarts; `Backoff()` by default.

    Raises:
        TypeError: for a child or an option of the wrong type.
        ValueError: for two children with one name, or an option out of range.
    """

    @suggests_keywords
    def __init__(
        self,
        children: "Sequence[ChildSpec[Any] | Actor | type[Actor] | Supervisor]",
        *,
        name: str = "supervisor",
        strategy: Strategy = "one_for_one",
        intensity: int = INTENSITY,
        period: float = PERIOD,
        backoff: Backoff | None = None,
    ) -> None:
        if not isinstance(name, str):
            raise TypeError(f"Supervisor(name=...) is a text, got {name!r}")
        if strategy not in STRATEGIES:
            raise ValueError(f"Supervisor(strategy=...) is one of {STRATEGIES}, got {strategy!r}")
        check_count("Supervisor(intensity=...)", intensity, least=0)
        if cast("object", period) is None:
            raise TypeError("Supervisor(period=...) is a number of seconds, got None")
        check_seconds("Supervisor(period=...)", period, zero=False)
        if backoff is not None and not isinstance(backoff, Backoff):
            raise TypeError(f"Supervisor(backoff=...) takes a Backoff, such as Backoff(first=0.5); got {backoff!r}")
        self.name = name
        self._children = _check_children(children)
        backoff = backoff or Backoff()
        self._make_restarts = partial(Restarts, strategy=strategy, intensity=intensity, period=period, backoff=backoff)
        self._tree: Tree | None = None
        self._scope: Scope | None = None
        # Number of the task that entered the block: only that task may leave its cancel scope.
        self._owner: int | None = None
        self._failed: BaseException | None = None

    def __repr__(self) -> str:
        return f"Supervisor([{', '.join(child.name for child in self._children)}], name={self.name!r})"

    async def __aenter__(self) -> Self:
        if self._tree is not None and not is_over(self._tree.loop):
            raise RuntimeError(f"{self!r} is running already; one block at a time")
        loop = current_loop()
        self._failed, self._owner, self._scope = None, get_current_task().id, None
        tree = self._tree = self.tree(self._record_end)
        try:
            await tree.start()
        except BaseException:
            # References to children may exist already, and calls may wait in their mailboxes.
            tree.finish("it did not start")
            self._tree = None
            raise
        # Entered last: a failed start must not leave an open scope behind.
        self._scope = loop.scope(float("inf"), DEFAULT_GRACE)
        self._scope.__enter__()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        scope = self._scope
        if scope is None:
            raise RuntimeError(f"{self!r} is left twice, or was not entered")
        # The scope cannot be left here, but the actors can be stopped: nothing is orphaned.
        if get_current_task().id != self._owner:
            await self._stop()
            raise RuntimeError(
                f"{self!r} was left in another task than the one that entered it; its actors were stopped. Keep the "
                "`async with` in one task, and give references to the others"
            )
        swallowed = False
        try:
            # Left before the children stop, so that a cancellation by `_record_end` does not hit `_stop`.
            swallowed = scope.__exit__(kind, error, traceback)
        finally:
            self._scope = None
            await self._stop()
        failed, self._failed = self._failed, None
        # An error of the block itself goes first; only the scope's own cancellation is replaced by the reason for it.
        if failed is not None and (error is None or swallowed):
            raise failed
        return swallowed

    async def _stop(self) -> None:
        tree = self._tree
        if tree is not None:  # None if the block was left in another task before
            try:
                await tree.stop()
            finally:
                tree.finish("its supervisor has ended" if self._failed is None else f"{self._failed}")
                self._tree = None

    def _record_end(self, _: Tree, end: End) -> None:
        # Called by the tree after its children have stopped. The block is cancelled, and `__aexit__` raises the error.
        self._failed = end.error
        if self._scope is not None:
            self._scope.cancel()

    @overload
    def __getitem__(self, actor: type[A]) -> A: ...

    @overload
    def __getitem__(self, actor: str) -> Any: ...

    def __getitem__(self, actor: Any) -> Any:
        """Return a reference to a child, by class or name. Children of nested supervisors are found, too.

        Raises KeyError if no child matches, or more than one, and RuntimeError outside the block.
        """
        if self._tree is None:
            raise RuntimeError(f"{self!r} is not running: async with Supervisor([...]) as tree")
        units = list(_actors_in(self._tree))
        matches = [unit for unit in units if actor in (unit.name, unit.spec.kind)]
        if not matches and isinstance(actor, type):
            # An exact class goes first: a subclass beside it must not make the lookup ambiguous.
            matches = [unit for unit in units if issubclass(unit.spec.kind, actor)]
        if len(matches) == 1:
            return matches[0].reference
        names = [unit.name for unit in units]
        actor_name = actor.__name__ if isinstance(actor, type) else actor
        if matches:
            matching_names = [unit.name for unit in matches]
            is_distinct = len({*matching_names}) == len(matches)
            remedy = f": {matching_names}; ask by name" if is_distinct else "; give one another name"
            raise KeyError(f"{actor_name} is there {len(matches)} times{remedy}")
        hint = did_you_mean(actor_name, names) if isinstance(actor_name, str) else ""
        raise KeyError(f"there is no actor {actor_name!r}, only {names}{hint}")

    async def drain(self, timeout: float = PATIENCE) -> Drained:
        """Refuse new calls, wait up to `timeout` seconds for accepted calls, end unfinished ones; return a report.

        New calls fail with an `ActorGoneError`, except calls between the drained actors. A call that does not finish in
        time is ended: with an `ActorGoneError` if it had not begun, otherwise its handler is cancelled, and the call
        fails with an `ActorDiedError`. The actors run until the block is left.
        """
        if self._tree is None:
            raise RuntimeError(f"{self!r} is not running: async with Supervisor([...]) as tree")
        cells = [unit.cell for unit in _actors_in(self._tree)]
        return await Draining(f"the supervisor {self.name!r}", lambda: cells).run(timeout)

    def tree(self, on_end: OnEnd) -> Tree:
        """Return a new `Tree` with new children, not yet started; `on_end` is called if the tree ends by itself."""
        tree = Tree(self.name, self._make_restarts, on_end)
        for child in self._children:
            if isinstance(child, Supervisor):
                tree.units.append(child.tree(tree.child_ended))
            else:
                tree.units.append(ActorUnit(child, tree.child_ended, cell_for(child, Cell)))
        return tree


class _Running(AbstractAsyncContextManager[A]):
    """Context manager that `running()` returns. It has no handlers: calling one raises an error about `async with`."""

    def __init__(self, spec: ChildSpec[A]) -> None:
        self._spec = spec
        alone = replace(spec, intensity=INTENSITY, period=PERIOD)  # the supervisor has them
        self._supervisor = Supervisor([alone], name=spec.name, intensity=spec.intensity, period=spec.period)

    async def __aenter__(self) -> A:
        tree = await self._supervisor.__aenter__()
        return cast("A", tree[self._spec.name])

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        return await self._supervisor.__aexit__(kind, error, traceback)

    if not TYPE_CHECKING:  # type checkers refuse `with`, and go on to do so

        def __enter__(self) -> NoReturn:
            raise TypeError(f"{self!r} is an async block: write `async with {self!r} as actor:` in an async function")

        def __exit__(self, *_: object) -> NoReturn:
            """Exist: without it, `with` does not call `__enter__`."""
            raise AssertionError("no block was entered")

    def __repr__(self) -> str:
        return f"running({self._spec.kind.__name__})"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(
            f"{self!r} is a block, and nothing runs before it is entered; it has no {name!r}. Write "
            f"`async with {self!r} as actor: await actor.{name}(...)`"
        )


def running(actor: type[A] | A | ChildSpec[A], **terms: Any) -> AbstractAsyncContextManager[A]:
    """Run one actor for the duration of an `async with` block, which receives a reference to it.

    Args:
        actor: an actor class, an object of it, or a result of `child`.
        terms: options for `child`.

    Raises:
        ActorStartError: if the actor does not start.
        SupervisorError: at the end of the block, which is cancelled, if the actor ends too often.
    """
    return _Running(spec_of(actor, "running", **terms))


def _check_children(children: object) -> "list[ChildSpec[Any] | Supervisor]":
    if isinstance(children, (str, bytes, ChildSpec, Actor, Supervisor)) or not isinstance(children, Sequence):
        raise TypeError(f"Supervisor takes a list of actors, such as Supervisor([Notebook(path)]); got {children!r}")
    checked: list[ChildSpec[Any] | Supervisor] = []
    for child in children:
        spec = child if isinstance(child, Supervisor) else spec_of(child)
        if isinstance(spec, ChildSpec):
            # Options that only keyed actors, nodes, agents or fleets support.
            if (spec.key, spec.cap, spec.idle) != (None, None, None):
                raise ValueError(f"child({spec.name}): key, cap and idle are for a node, or for keyed(...)")
            if (spec.intensity, spec.period) != (INTENSITY, PERIOD):
                raise ValueError(f"child({spec.name}): here its supervisor has them for all: Supervisor(intensity=...)")
            if spec.prefix:
                raise ValueError(
                    f"child({spec.name}): prefix is for the names of tools, in a node; got {spec.prefix!r}"
                )
            check_store(spec, "a supervisor of its own")
            check_fleet(spec, "a supervisor of its own")
        if any(spec.name == earlier_child.name for earlier_child in checked):
            raise ValueError(f"two children are named {spec.name!r}; give one a name: child({spec.name}, name='other')")
        checked.append(spec)
    return checked


def _actors_in(tree: Tree) -> "list[ActorUnit]":
    actors: list[ActorUnit] = []
    for unit in tree.units:
        actors += _actors_in(unit) if isinstance(unit, Tree) else [unit]
    return actors
