"""Actors of one kind, one for each key: they live when somebody asks them, and no more of them than may."""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from contextvars import Context, copy_context
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

from callboard._drained import Drained
from callboard._loops._current import current_loop, run_there
from callboard._loops._protocol import Scope, Spawned, Wakeup
from callboard._statistics import ActorStatistics
from callboard.actors._cell import Cell
from callboard.actors._child import ChildSpec
from callboard.actors._deadlock import NOTHING, Needs
from callboard.actors._drain import Draining
from callboard.actors._restarts import Backoff, Restarts, Terms
from callboard.actors._snapshot_store import InMemorySnapshots
from callboard.actors._tenancy import FleetCell, Tenancy
from callboard.actors._tree import Tree
from callboard.actors._unit import ActorUnit, Manager, Unit, cell_for
from callboard.actors._watch import tell_of_life
from callboard.exceptions import ActorStartError

_log = logging.getLogger("callboard")


_numbers = count(1)


class _Resident:
    """One actor of several that lives now, under a supervisor of its own: a crash is nobody else's."""

    def __init__(self, spec: ChildSpec[Any], cell: Cell, on_end: Callable[[BaseException | None], None]) -> None:
        self.name = f"the supervisor of {cell.name}"
        self.cell = cell
        self._spec = spec
        self.unit: ActorUnit
        self.tree = Tree(self, on_end)
        self.is_leaving = False
        self.has_left = self.tree.loop.wakeup()
        self.rests_since = self.tree.loop.now()
        """When it had nothing to do, the last time; on its loop's clock."""

    def units(self, manager: Manager) -> list[Unit]:
        self.unit = ActorUnit(self._spec, manager, self.cell)
        # If it is not started again, this place is free, and whoever asks next has it tried anew.
        self.unit.terms = replace(self.unit.terms, significant=True)
        return [self.unit]

    def restarts(self, children: list[Terms], chance: Callable[[], float]) -> Restarts:
        return Restarts(
            children,
            strategy="one_for_one",
            intensity=self._spec.intensity,
            period=self._spec.period,
            backoff=Backoff(),
            auto_shutdown="any_significant",
            chance=chance,
        )


class Residents:
    """The actors of one kind that live in one place, by key. Belongs to the event loop in which it is made.

    Only one with a key lives at a time. What they are asked while they do not live waits until they do. All decisions
    are made in the loop's thread; `cell` may be called in any.

    Args:
        spec: the terms of each.
        on_interrupt: told of Ctrl-C and the like in an actor, which is for whoever owns them all.
    """

    def __init__(self, spec: ChildSpec[Any], on_interrupt: Callable[[BaseException], object]) -> None:
        self.spec = spec
        self.number = next(_numbers)
        """Tells it apart from others, in this process."""
        self.loop = current_loop()
        self._tenancy = None if spec.fleet is None else Tenancy(self, spec.fleet)
        if spec.snapshots is None:
            self.spec = spec.kept_in(InMemorySnapshots() if self._tenancy is None else self._tenancy.snapshots)
        self._context = copy_context()
        """In a copy of which actors start: what the first caller has in its variables is none of theirs."""
        self._on_interrupt = on_interrupt
        self._lock = threading.Lock()
        # Whoever holds a reference holds the cell: there is no second one with the same key meanwhile.
        self._cells: WeakValueDictionary[Hashable, Cell] = WeakValueDictionary()
        self._alive: dict[Hashable, _Resident] = {}
        self._queue: OrderedDict[Hashable, Cell] = OrderedDict()
        """Those that are asked and do not live."""
        self._tasks: set[Spawned] = set()
        self._is_closing = False
        self._draining: Draining | None = None
        self._restarts = self._evictions = 0
        """Of those that live no more; and of all."""
        self._wakeup: Wakeup | None = None
        if spec.idle is not None:
            self._start_task(self._evict_idle)

    def cell(self, key: Hashable) -> Cell:
        """The actor of a key, whether it lives or not; from any thread."""
        with self._lock:
            found = self._cells.get(key)
            if found is None:
                found = self._cells[key] = cell_for(self.spec) if self._tenancy is None else self._tenancy.cell()
                found.key, found.gone, found.activate = key, None, self._asked
                found.home, found.draining = self.loop, self._draining
                found.room = None if self.spec.cap is None else partial(self._room_for, found)
                if key is not None:
                    found.name = f"{self.spec.name}[{key!r}]"
        return found

    def statistics(self) -> ActorStatistics:
        """How many live now, and what they do."""
        here = list(self._alive.values())
        boxes = [cell.mailbox for cell in {*(one.cell for one in here), *self._queue.values()}]
        return ActorStatistics(
            alive=len(here),
            running=sum(len(box.running) for box in boxes) + sum(len(one.cell.owed) for one in here),
            waiting=sum(len(box.waiting) for box in boxes),
            restarts=self._restarts + sum(one.tree.restarts for one in here),
            evictions=self._evictions,
        )

    async def start(self, key: Hashable) -> None:
        """Have the actor of a key live before anybody asks it.

        Raises:
            ActorStartError: if it does not start.
        """
        cell = self.cell(key)
        resident = self._alive[key] = self._resident(cell)
        try:
            await resident.tree.start()
        except BaseException:
            del self._alive[key]
            raise

    @property
    def alive(self) -> Collection[Hashable]:
        """The keys of those that live now; from any thread."""
        return list(self._alive)

    async def dismiss(self, keys: Collection[Hashable]) -> None:
        """Have some of them end that nobody asks; returns when they have. From any event loop."""
        gone, context = current_loop().wakeup(), self._context.copy()
        work = partial(self._start_task, partial(self._dismiss, keys, gone.set))
        if keys and run_there(self.loop, lambda: context.run(work)):
            await gone.wait()

    async def _dismiss(self, keys: Collection[Hashable], then: Callable[[], object]) -> None:
        try:
            for resident in [self._alive[key] for key in keys if key in self._alive]:
                if resident.is_leaving:
                    await resident.has_left.wait()
                else:
                    resident.is_leaving = True
                    await self._end(resident)
        finally:
            then()

    async def drain(self, timeout: float) -> Drained:
        """Have them answer what they have been asked, and nothing else."""
        with self._lock:
            draining = self._draining = Draining(f"the actor {self.spec.name!r}", self._all_cells)
        if self._tenancy is not None:
            context = self._context.copy()
            run_there(self.loop, lambda: context.run(self._hand_over))
        return await draining.run(timeout)

    def _hand_over(self) -> None:
        """Have the actors of a fleet leave that are idle; those that are busy leave when they rest."""
        for resident in list(self._alive.values()):
            if resident.cell.life is not None and resident.cell.is_idle:
                self._leave(resident)

    def _all_cells(self) -> list[Cell]:
        with self._lock:
            return list(self._cells.values())

    async def close(self) -> None:
        """Stop all of them, and save what they keep."""
        self._is_closing = True
        queued, self._queue = self._queue, OrderedDict()
        for cell in queued.values():
            if isinstance(cell, FleetCell):
                self._turn_away(cell)
            else:
                cell.finish("it was ended before it had started")
        if self._wakeup is not None:
            self._wakeup.set()
        with self.loop.shield(float("inf")):
            for resident in reversed(list(self._alive.values())):
                resident.unit.hurry()
                self._leave(resident)
            while self._tasks:
                await next(iter(self._tasks)).wait()
        for cell in list(self._cells.values()):
            cell.finish("it was ended")
        if self._tenancy is not None:
            with self.loop.shield(float("inf")):
                await self._tenancy.membership.leave()

    def context(self) -> Context:
        """The variables with which what nobody has asked for here begins."""
        return self._context.copy()

    def lose(self, key: Hashable, reason: str) -> None:
        """End the actor of a key at once, as another process may own the key; from any thread."""
        context = self._context.copy()
        run_there(self.loop, lambda: context.run(self._lose, key, reason))

    def _lose(self, key: Hashable, reason: str) -> None:
        queued, resident = self._queue.pop(key, None), self._alive.get(key)
        if isinstance(queued, FleetCell):
            queued.move()
        if resident is not None and not (resident.cell.ownership and resident.cell.ownership.is_current):
            assert self.spec.fleet is not None
            resident.unit.end(reason, self.spec.fleet.clean_up)
            self._leave(resident)

    def rests(self, key: Hashable) -> None:
        """Give the key back to the fleet of which nothing lives here, and that nobody asks; from any thread."""
        if key not in self._alive:
            run_there(self.loop, partial(self._give_back, key))

    def _give_back(self, key: Hashable) -> None:
        cell = self._cells.get(key)
        is_idle = cell is None or cell.is_idle
        if self._tenancy is not None and is_idle and key not in self._alive and key not in self._queue:
            self._tenancy.membership.give_back(key)

    def _asked(self, cell: Cell) -> None:
        context = self._context.copy()
        if not run_there(self.loop, lambda: context.run(self._admit, cell)):
            cell.finish("its event loop has ended")

    def _admit(self, cell: Cell) -> None:
        """Have an actor live when there is room for it."""
        if isinstance(cell, FleetCell) and (self._is_closing or cell.tenancy.owned(cell.key) is None):
            self._turn_away(cell)
        elif self._is_closing:
            cell.finish("it was ended")
        elif cell.key not in self._alive and cell.key not in self._queue:
            self._queue[cell.key] = cell
            self._make_room()

    def _turn_away(self, cell: FleetCell) -> None:
        """Have another process do what an actor is asked; not while it ends here, for there is never a second one."""
        if cell.key not in self._alive:
            cell.tenancy.membership.give_back(cell.key)
            cell.move()

    def _make_room(self) -> None:
        cap = self.spec.cap
        while self._queue and not self._is_closing and (cap is None or len(self._alive) < cap):
            key, cell = self._queue.popitem(last=False)
            if isinstance(cell, FleetCell) and not cell.is_owned():
                self._turn_away(cell)
                continue
            resident = self._alive[key] = self._resident(cell)
            self._start_task(partial(self._live, resident))
        if self._queue and not self._makes_room():
            idle = [one for one in self._alive.values() if one.cell.is_idle and one.cell.life is not None]
            if idle:
                self._leave(min(idle, key=lambda one: one.cell.asked))

    def _makes_room(self) -> bool:
        """Whether one is going; not one that waits for its handlers, for they may wait for who wants the room."""
        return any(one.is_leaving and not one.cell.in_hand() for one in self._alive.values())

    def _room_for(self, cell: Cell) -> Needs:
        """What has to end before an actor that does not live can: of one of those that do, all that it has in hand."""
        alive, cap = list(self._alive.values()), self.spec.cap
        if cap is None or len(alive) < cap or any(one.cell is cell for one in alive):
            return NOTHING
        reason = f"{cell.name} can live when another one goes, for cap={cap}; each of those that live has to end first"
        return Needs(tuple(one.cell.in_hand() for one in alive), reason)

    def _resident(self, cell: Cell) -> _Resident:
        resident = _Resident(self.spec, cell, partial(self._gave_up, cell))
        cell.on_rest = partial(self._rests, cell)
        return resident

    def _rests(self, cell: Cell) -> None:
        """Let those who wait for room have the place of one that has had its turn."""
        resident = self._alive.get(cell.key)
        if resident is None:
            return
        resident.rests_since = self.loop.now()
        if self._tenancy is not None and self._draining is not None and cell.is_idle:
            self._leave(resident)
        # A reply that somebody has taken along wakes the life when it is sent, and this is asked again.
        if self._queue and not cell.owed and not self._makes_room():
            self._leave(resident)

    async def _live(self, resident: _Resident) -> None:
        if resident.is_leaving:
            return  # before it had begun; whoever has it leave sees to the rest
        try:
            await resident.tree.start()
        except ActorStartError as failed:
            self._is_away(resident, f"{failed}")
        except (KeyboardInterrupt, SystemExit) as failed:  # a task of the loop's own has nobody to raise it for
            self._is_away(resident, f"its start was ended by {failed!r}")
            self._on_interrupt(failed)

    def _gave_up(self, cell: Cell, error: BaseException | None) -> None:
        resident = self._alive.get(cell.key)
        if resident is not None:
            self._is_away(resident, "it has ended" if error is None else f"{error}" or repr(error))
        if error is not None and not isinstance(error, Exception):
            self._on_interrupt(error)

    def _is_away(self, resident: _Resident, reason: str) -> None:
        """Tell those who wait why it does not live; whoever asks next has it tried again."""
        cell = resident.cell
        self._restarts += resident.tree.restarts
        self._alive.pop(cell.key, None)
        cell.finish(reason)
        if not self._is_closing:
            cell.gone = None
        self._start_task(resident.tree.stop)  # its task is about to end
        self.rests(cell.key)
        self._make_room()

    def _leave(self, resident: _Resident) -> None:
        if not resident.is_leaving:
            resident.is_leaving = True
            if not (self._is_closing or self._draining):
                self._evictions += 1
                asks = [number for cell in self._queue.values() for number in cell.watched_asks()]
                tell_of_life("evicted", self.spec.name, resident.cell.key, resident.unit.number, asks=tuple(asks))
            self._start_task(partial(self._end, resident))

    async def _end(self, resident: _Resident) -> None:
        cell = resident.cell
        if not self._is_closing:
            await resident.unit.rest()  # what runs has all its time: nobody's call ends because others want room
        await resident.tree.stop()
        self._restarts += resident.tree.restarts
        self._alive.pop(cell.key, None)
        if not cell.is_idle:
            self._admit(cell)  # somebody has asked meanwhile
        self.rests(cell.key)
        self._make_room()
        resident.has_left.set()

    async def _evict_idle(self) -> None:
        idle = self.spec.idle
        assert idle is not None
        while not self._is_closing:
            now = self.loop.now()
            here = [one for one in self._alive.values() if not one.is_leaving and one.cell.life is not None]
            for one in here:
                if one.cell.is_idle and one.rests_since + idle <= now:
                    self._leave(one)
            wait = min([idle, *(one.rests_since + idle - now for one in here if not one.is_leaving)])
            self._wakeup = self.loop.wakeup()
            with self.loop.scope(self.loop.now() + max(wait, idle / 10), 0.0):
                await self._wakeup.wait()

    def _start_task(self, work: Callable[[], Any]) -> None:
        ended = False
        tasks: list[Spawned] = []

        async def child(scope: Scope) -> None:
            nonlocal ended
            try:
                with scope:
                    await work()
            except Exception:
                _log.exception("%s: %r failed", self.spec.name, work)
            finally:
                ended = True
                self._tasks.difference_update(tasks)

        tasks.append(self.loop.spawn(child, 0.0))
        if not ended:  # an eager task may have
            self._tasks.update(tasks)
