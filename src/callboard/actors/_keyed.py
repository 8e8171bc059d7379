"""Keyed actors: one actor for each key, started by its first call. The number of running actors may be limited.

`KeyedActors` are those of one process, `FleetActors` those of many: there, one process owns each key and receives its
calls.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Hashable, Mapping, Sequence
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from anyio import sleep

from callboard._calls._call import SupervisedCall
from callboard._calls._observers import numbers
from callboard._loops._current import current_loop, run_there
from callboard._loops._deadline import DEFAULT_GRACE, active_time_limits
from callboard._loops._protocol import EventLoop, Scope, Spawned, Wakeup
from callboard._records._fleets import Delivery, FleetAsk, KeyMovedError
from callboard._records._reports import ActorStatistics, Drained
from callboard.actors._actor import Handler
from callboard.actors._cell import Cell
from callboard.actors._child import ChildSpec
from callboard.actors._mailbox import Message
from callboard.actors._restarts import Restarts
from callboard.actors._runner import Begin, End, beginning
from callboard.actors._snapshots import InMemorySnapshots
from callboard.actors._supervised import ActorUnit, Draining, cell_for
from callboard.actors._supervisor import OnEnd, Tree
from callboard.exceptions import ActorDiedError, ActorStartError

_log = logging.getLogger("callboard")


class _KeyedActor:
    """Running keyed actor under a supervisor of its own, so that its crashes affect no other key."""

    def __init__(self, spec: ChildSpec[Any], cell: Cell, on_end: OnEnd) -> None:
        self.cell = cell
        # If the actor is not restarted, its supervisor ends, the place is free, and the next call starts it anew.
        restarts = partial(Restarts, intensity=spec.intensity, period=spec.period, ends_with_child=True)
        self.tree = Tree(f"the supervisor of {cell.name}", restarts, on_end)
        self.unit = ActorUnit(spec, self.tree.child_ended, cell)
        self.tree.units.append(self.unit)
        self.is_stopping = False
        self.stop_ended = self.tree.loop.wakeup()
        self.idle_since = self.tree.loop.now()  # loop time at which the actor was last idle


class KeyedActors:
    """Keyed actors of one child spec in one event loop.

    At most one actor per key runs at a time. Calls of an actor that does not run wait until it does. All decisions are
    made in the loop's thread; only methods that say so may be called from other threads.
    """

    def __init__(self, spec: ChildSpec[Any], on_interrupt: Callable[[BaseException], object]) -> None:
        self.spec = spec
        self.number = next(numbers)
        """Number of this object, unique within the process."""
        self.loop = current_loop()
        self._context = copy_context()
        """Context of the owner. Actors start in copies of it, not in the context of their first caller."""
        self._on_interrupt = on_interrupt
        # Guards `_cells` and `_draining`: references are made in any thread.
        self._lock = threading.Lock()
        # Weak: a reference or a running actor keeps its cell alive, so a key never has two cells, and unused keys cost
        # no memory.
        self._cells: WeakValueDictionary[Hashable, Cell] = WeakValueDictionary()
        # Changed in the loop's thread only; other threads read it or copy it.
        self._alive: dict[Hashable, _KeyedActor] = {}
        self._queue: OrderedDict[Hashable, Cell] = OrderedDict()
        """Actors that have waiting calls and do not run, by key, in FIFO order."""
        self._tasks: set[Spawned] = set()
        self._is_closing = False
        self._draining: Draining | None = None
        self._restarts = self._evictions = 0
        """Number of restarts of actors that no longer run; `_evictions` is the number of all evictions."""
        self._wakeup: Wakeup | None = None
        if spec.snapshots is None:
            self.spec = spec.with_snapshots(InMemorySnapshots())
        if spec.idle is not None:
            self._start_task(self._evict_idle)

    def cell(self, key: Hashable) -> Cell:
        """Return the `Cell` of the actor with this key, whether the actor runs or not. Any thread may call this."""
        with self._lock:
            cell = self._cells.get(key)
            if cell is None:
                cell = self._cells[key] = self._new_cell()
                # Complete before the lock is released: another thread may call the actor right after.
                cell.key, cell.gone_reason, cell.activate = key, None, self._activate
                cell.home, cell.draining = self.loop, self._draining
                cell.find_blockers = None if self.spec.cap is None else partial(self._find_blockers, cell)
        return cell

    def _new_cell(self) -> Cell:
        return cell_for(self.spec, Cell)

    def statistics(self) -> ActorStatistics:
        """Return the numbers of running actors, calls, restarts and evictions."""
        actors = list(self._alive.values())
        mailboxes = [cell.mailbox for cell in {*(actor.cell for actor in actors), *self._queue.values()}]
        begun = sum(len(mailbox.running) for mailbox in mailboxes)
        return ActorStatistics(
            alive=len(actors),
            running=begun + sum(len(actor.cell.unanswered) for actor in actors),
            waiting=sum(len(mailbox.waiting) for mailbox in mailboxes),
            restarts=self._restarts + sum(actor.tree.restarts for actor in actors),
            evictions=self._evictions,
        )

    async def start(self, key: Hashable) -> None:
        """Start the actor of a key before its first call."""
        cell = self.cell(key)
        # Entered before the await: a call that comes meanwhile must not start a second actor.
        keyed_actor = self._alive[key] = self._new_keyed_actor(cell)
        try:
            await keyed_actor.tree.start()
        except BaseException:
            del self._alive[key]
            raise

    @property
    def alive(self) -> Collection[Hashable]:
        """Keys of the running actors. Any thread may read it."""
        return list(self._alive)

    async def dismiss(self, keys: Collection[Hashable]) -> None:
        """Stop the idle actors with these keys, and return when they have ended. Any event loop may call this."""
        all_ended = current_loop().wakeup()
        if keys and self._run_there(self._start_task, partial(self._dismiss, keys, all_ended.set)):
            await all_ended.wait()

    async def _dismiss(self, keys: Collection[Hashable], on_done: Callable[[], object]) -> None:
        try:
            for keyed_actor in [self._alive[key] for key in keys if key in self._alive]:
                if keyed_actor.is_stopping:
                    await keyed_actor.stop_ended.wait()
                else:
                    keyed_actor.is_stopping = True
                    await self._end(keyed_actor)
        finally:
            # Always: the caller waits for it, perhaps in another loop and without a timeout.
            on_done()

    async def drain(self, timeout: float) -> Drained:
        """Refuse new calls, wait up to `timeout` seconds for accepted calls, end unfinished ones; return a report."""
        return await self._start_drain().run(timeout)

    def _start_drain(self) -> Draining:
        with self._lock:
            # Under the lock: every cell either is in `_all_cells` below or is created with the drain set.
            self._draining = Draining(f"the actor {self.spec.name!r}", self._all_cells)
        return self._draining

    def _all_cells(self) -> list[Cell]:
        with self._lock:
            return list(self._cells.values())

    async def close(self) -> None:
        """Stop all actors, and save their states."""
        # First: from here on `_admit` starts nothing.
        self._is_closing = True
        queued, self._queue = self._queue, OrderedDict()
        for cell in queued.values():
            self._reject(cell, "it was ended before it had started")
        if self._wakeup is not None:
            self._wakeup.set()
        # A cancelled owner still waits: nothing may outlive the block.
        for keyed_actor in reversed(list(self._alive.values())):
            # An eviction in progress has no time limit; now `stop_timeout` applies to it.
            keyed_actor.unit.limit_stop_time()
            self._begin_stop(keyed_actor)
        try:
            await self.loop.outlast(self._wait_for_tasks)
        finally:
            # A call may have come after its actor ended. It would wait for ever, as nothing is started any more.
            for cell in self._all_cells():
                cell.finish("it was ended")

    def release_key_if_unused(self, key: Hashable) -> None:
        """Do nothing. `FleetActors` overrides this to give an ended actor's key back to the fleet. Thread-safe."""

    def _activate(self, cell: Cell) -> None:
        """Start the actor of a cell that has received a call. Any thread may call this; see `Cell.activate`."""
        if not self._run_there(self._admit, cell):
            cell.finish("its event loop has ended")

    def _run_there(self, function: Callable[..., object], *args: object) -> bool:
        """Run a function in the event loop's thread and in the stored `Context`; return False if the loop has ended."""
        # A copy for each use: a context cannot be entered twice at the same time.
        context = self._context.copy()
        return run_there(self.loop, lambda: context.run(function, *args))

    def _admit(self, cell: Cell) -> None:
        """Queue an actor for its start; if `close` has begun, settle the actor's calls with an error."""
        if self._is_closing:
            self._reject(cell, "it was ended")
        # An actor in `_alive` takes the call itself; if it is ending, `_end` admits the cell again.
        elif cell.key not in self._alive and cell.key not in self._queue:
            self._queue[cell.key] = cell
            self._make_room()

    def _reject(self, cell: Cell, reason: str) -> None:
        """Settle the waiting calls of an actor with an error, because the actor will not start in this process."""
        cell.finish(reason)

    def _may_start(self, cell: Cell) -> bool:
        """Return whether this process may start an actor; in a fleet, another process may own the actor's key."""
        return True

    def _make_room(self) -> None:
        """Start queued actors up to the limit `cap`; if some stay queued, evict the least recently used idle actor."""
        cap = self.spec.cap
        while self._queue and not self._is_closing and (cap is None or len(self._alive) < cap):
            key, cell = self._queue.popitem(last=False)
            if not self._may_start(cell):
                self._reject(cell, "")
                continue
            # Counted at once, though its task has not begun, so that `cap` holds.
            keyed_actor = self._alive[key] = self._new_keyed_actor(cell)
            self._start_task(partial(self._start_tree, keyed_actor))
        # One eviction at a time: each end calls `_make_room` again.
        if self._queue and not self._is_making_room() and (idle := self._idle_actors()):
            self._begin_stop(min(idle, key=lambda actor: actor.cell.last_ask))

    def _idle_actors(self) -> list[_KeyedActor]:
        """Return the running actors that have started, and have no call."""
        return [actor for actor in self._alive.values() if actor.cell.is_idle and actor.cell.incarnation is not None]

    def _is_making_room(self) -> bool:
        """Return whether an actor that has no running calls is being stopped, so that another actor can soon start."""
        # An ending actor with running calls does not count, because it may itself wait for another actor to start.
        return any(actor.is_stopping and not actor.cell.messages_in_hand() for actor in self._alive.values())

    def _find_blockers(self, cell: Cell) -> tuple[Sequence[Cell], str]:
        """Return the running actors, and why one of them must end before this one can start; `(), ""` if none must."""
        # Any thread may call this.
        alive, cap = list(self._alive.values()), self.spec.cap
        if cap is None or len(alive) < cap or any(actor.cell is cell for actor in alive):
            return (), ""
        reason = f"{cell.name} can live when another one goes, for cap={cap}; each of those that live has to end first"
        return [actor.cell for actor in alive], reason

    def _new_keyed_actor(self, cell: Cell) -> _KeyedActor:
        keyed_actor = _KeyedActor(self.spec, cell, partial(self._record_give_up, cell))
        cell.on_pause = partial(self._consider_eviction, cell)
        return keyed_actor

    def _consider_eviction(self, cell: Cell) -> None:
        """Evict an actor that is idle, or has been busy for long, if an actor with another key is queued to start."""
        keyed_actor = self._alive.get(cell.key)
        if keyed_actor is None:
            return
        keyed_actor.idle_since = self.loop.now()
        # Sending a deferred reply wakes the incarnation, which then calls this again.
        if self._queue and not cell.unanswered and not self._is_making_room():
            self._begin_stop(keyed_actor)

    async def _start_tree(self, keyed_actor: _KeyedActor) -> None:
        """Start the supervisor of a keyed actor; if the start fails, settle the waiting calls with an error."""
        if keyed_actor.is_stopping:
            return  # evicted before this task began: `_end` cleans up
        try:
            await keyed_actor.tree.start()
        except ActorStartError as failed:
            self._record_end(keyed_actor, f"{failed}")
        except (KeyboardInterrupt, SystemExit) as failed:  # nobody awaits this task, so the owner is told
            self._record_end(keyed_actor, f"its start was ended by {failed!r}")
            self._on_interrupt(failed)

    def _record_give_up(self, cell: Cell, _: Tree, end: End) -> None:
        """Handle the end of a keyed actor that its supervisor does not restart."""
        keyed_actor, error = self._alive.get(cell.key), end.error
        if keyed_actor is not None:
            self._record_end(keyed_actor, "it has ended" if error is None else f"{error}" or repr(error))
        if error is not None and not isinstance(error, Exception):
            self._on_interrupt(error)

    def _record_end(self, keyed_actor: _KeyedActor, reason: str) -> None:
        """Settle the waiting calls of an actor that has ended or did not start; the next call starts it again."""
        cell = keyed_actor.cell
        self._restarts += keyed_actor.tree.restarts
        self._alive.pop(cell.key, None)
        cell.finish(reason)
        if not self._is_closing:
            # `finish` has set it. Cleared, so that the next call is accepted and starts the actor.
            cell.gone_reason = None
        # In a task of its own: this may run in the supervisor's task, for which `stop` waits.
        self._start_task(keyed_actor.tree.stop)
        self.release_key_if_unused(cell.key)
        self._make_room()

    def _begin_stop(self, keyed_actor: _KeyedActor) -> None:
        """Begin to stop a keyed actor, unless the stop has begun already."""
        if not keyed_actor.is_stopping:
            keyed_actor.is_stopping = True
            # Ends by closing or draining are no evictions.
            if not (self._is_closing or self._draining):
                self._evictions += 1
                asks = [number for cell in self._queue.values() for number in cell.asks_with_observers()]
                keyed_actor.cell.report_life("evicted", keyed_actor.unit.number, asks=tuple(asks))
            self._start_task(partial(self._end, keyed_actor))

    async def _end(self, keyed_actor: _KeyedActor) -> None:
        """Stop a keyed actor, so that the actor of the next waiting key can start."""
        cell = keyed_actor.cell
        if not self._is_closing:
            await keyed_actor.unit.stop(has_time_limit=False)  # without a time limit: an eviction never cancels a call
        await keyed_actor.tree.stop()
        self._restarts += keyed_actor.tree.restarts
        # Removed before `_admit`, which ignores keys that are still here. The state has been saved by now.
        self._alive.pop(cell.key, None)
        if not cell.is_idle:
            self._admit(cell)  # a call came while the actor was ending
        self.release_key_if_unused(cell.key)
        self._make_room()
        keyed_actor.stop_ended.set()

    async def _evict_idle(self) -> None:
        """Evict each actor that was idle for `spec.idle` seconds, until `close` is called."""
        idle = self.spec.idle
        assert idle is not None
        while not self._is_closing:
            now = self.loop.now()
            # At most `idle` ahead, because actors may start meanwhile; at least a tenth of it, against a busy loop.
            wait = idle
            for actor in [actor for actor in self._alive.values() if actor.cell.incarnation is not None]:
                if actor.cell.is_idle and actor.idle_since + idle <= now:
                    self._begin_stop(actor)
                if not actor.is_stopping:
                    wait = min(wait, actor.idle_since + idle - now)
            self._wakeup = self.loop.wakeup()
            with self.loop.scope(self.loop.now() + max(wait, idle / 10), 0.0):
                await self._wakeup.wait()

    async def _wait_for_tasks(self) -> None:
        while self._tasks:
            task = next(iter(self._tasks))
            await task.wait()
            self._tasks.discard(task)  # a task that was cancelled before its first step has not removed itself

    def _start_task(self, function: Callable[[], Any]) -> None:
        """Start a task that runs the async function `function`; `close` waits for this task."""
        ended = False
        tasks: list[Spawned] = []

        async def child(scope: Scope) -> None:
            nonlocal ended
            try:
                with scope:
                    await function()
            except Exception:
                _log.exception("%s: %r failed", self.spec.name, function)
            finally:
                ended = True
                self._tasks.difference_update(tasks)

        tasks.append(self.loop.spawn(child, 0.0))
        if not ended:  # an eager asyncio task may have ended within `spawn`
            self._tasks.update(tasks)


# Keyed actors of many processes


_PAUSE = 0.01
"""Seconds to wait before a call is sent again because its key has moved to another process."""
_LONG_GRACE = 3600.0
"""Clean-up time of the task that serves a remote call, in seconds; the actor enforces the handler's shorter time."""
_MOVED = "its key belongs to another process now"


class FleetCell(Cell):
    """Cell of an actor in a fleet of processes: it sends each call to the process that owns the actor's key."""

    __slots__ = ("fleet_host",)

    fleet_host: "FleetActors"

    async def ask(
        self,
        handler: Handler,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        title: str | None = None,
        call: SupervisedCall[Any] | None = None,
        passes: Callable[[BaseException], bool] | None = None,
        on_begin: Callable[[], object] | None = None,
        named_by: Mapping[str, Any] | None = None,
    ) -> Any:
        limits = active_time_limits.get()
        # A posted call may begin in another process, move, and begin here: `on_begin` must run once.
        on_begin = None if on_begin is None else _once(on_begin)
        ask = FleetAsk(
            key=self.key,
            handler=handler.name,
            args=args,
            kwargs=kwargs,
            title=title or handler.title,
            call_id=None if call is None else call.id,
            grace=DEFAULT_GRACE if limits is None else limits.grace,
            on_begin=on_begin,
        )
        ask_here = partial(super().ask, handler, args, kwargs, title=title, call=call, named_by=named_by)
        ask_here = partial(ask_here, passes=_or_moved(passes), on_begin=on_begin)
        # Repeated until the call begins: a key may move several times while its call waits.
        while True:
            delivery = self.fleet_host.membership.post(ask)
            try:
                # If this await is cancelled, a call that has not begun is withdrawn. A begun call is cancelled in the
                # process that runs it.
                if not await delivery.is_here():
                    return _outcome_of(delivery, ask)
                _handover.delivery = delivery
                return await ask_here()
            except KeyMovedError:
                await sleep(_PAUSE)  # the actor that lost the key may still be ending here
            finally:
                # Always, or the fleet holds back the next call of this key.
                delivery.release_turn()
                # The call may have been the last reason to own the key.
                self.fleet_host.release_key_if_unused(self.key)

    async def answer(self, handler: Handler, ask: FleetAsk, served: "_Served") -> Any:
        """Run a call from another process on an actor whose key this process owns."""
        try:
            _handover.delivery = served
            return await super().ask(
                handler, ask.args, ask.kwargs, title=ask.title, passes=_or_moved(None), on_begin=ask.on_begin
            )
        finally:
            self.fleet_host.release_key_if_unused(self.key)

    def _put(self, message: Message) -> None:
        """Put a message into the mailbox, and let the fleet deliver the next call of the key."""
        delivery, _handover.delivery = _handover.delivery, None
        # Not an error for the caller: another process can serve the key, if it is lost here or this process closes.
        if self.gone_reason is not None and (self._is_stale or isinstance(delivery, _Served)):
            raise KeyMovedError(_MOVED)
        if isinstance(delivery, _Served):
            message.is_served = True  # before `super()._put`, in which `drain_refusal` reads it
        # A handler must have ended before another process may own the key.
        message.grace = min(message.grace, self.fleet_host.clean_up)
        super()._put(message)
        if delivery is not None:
            # Only now: the message stands in the mailbox, so the next call of the key cannot overtake it.
            delivery.release_turn()

    def drain_refusal(self, message: Message) -> Exception:
        return KeyMovedError(_MOVED) if message.is_served else super().drain_refusal(message)

    @property
    def _is_stale(self) -> bool:
        return self.ownership is not None and not self.ownership.is_current

    def finish(self, reason: str) -> None:
        if self._is_stale:
            self.redirect_waiting_calls()  # the actor has ended here only; the next owner can run the waiting calls
        super().finish(reason)

    def redirect_waiting_calls(self) -> None:
        """Settle all waiting calls with `KeyMovedError`, so that the callers send the calls to the key's new owner."""
        with self.lock:
            waiting = self.take_waiting()
        # `FleetCell.ask` catches the error and posts the call again; a remote caller's fleet does the same.
        for message in waiting:
            self.settle(message, None, KeyMovedError(_MOVED))


class _Handover(threading.local):
    """Thread-local variable by which `ask` and `answer` pass a call's `Delivery` or `_Served` object to `_put`."""

    # No other task runs in the thread between `ask` or `answer` and `_put`.

    delivery: "Delivery | _Served | None" = None


_handover = _Handover()


def _once(on_begin: Callable[[], object]) -> Callable[[], None]:
    """Return a callback that runs `on_begin` at most once, even if the call is about to begin in several processes."""
    pending = [on_begin]

    def begin() -> None:
        while pending:
            pending.pop()()

    return begin


def _or_moved(passes: Callable[[BaseException], bool] | None) -> Callable[[BaseException], bool]:
    return lambda error: isinstance(error, KeyMovedError) or (passes is not None and passes(error))


def _outcome_of(delivery: Delivery, ask: FleetAsk) -> Any:
    try:
        return delivery.outcome()
    except ActorDiedError as died:
        # The owner does not know the id of the tool call here: add it.
        if died.call_id is None and died.tool == ask.title:
            raise ActorDiedError(ask.title, ask.call_id, died.reason) from died.__cause__
        raise


class FleetActors(KeyedActors):
    """Keyed actors in one process of a fleet. Any thread may call the methods that implement `FleetHost`."""

    def __init__(self, spec: ChildSpec[Any], on_interrupt: Callable[[BaseException], object]) -> None:
        assert spec.fleet is not None
        super().__init__(spec, on_interrupt)
        self.name = spec.name
        self._last_served: dict[Hashable, _Served] = {}
        """Latest remote call of each key, until this call is in the mailbox or will never be."""
        self.clean_up = spec.fleet.clean_up
        """Seconds in which a handler must end after its key was lost."""
        # Last: the fleet may call this object as soon as it is admitted.
        try:
            self.membership = spec.fleet.admit(self)
        except BaseException:
            self._is_closing = True  # ends `_evict_idle`: nobody will have this object, and so nobody could close it
            raise
        if spec.snapshots is None:
            self.spec = spec.with_snapshots(self.membership.snapshots)

    def _new_cell(self) -> Cell:
        cell = cell_for(self.spec, FleetCell)
        cell.fleet_host = self
        return cell

    def serve(self, key: Hashable, function: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], object] | None:
        """Start a task for a remote call, and return a function that cancels the task; `None` if the loop has ended."""
        served = _Served(self.loop, function, self._last_served, key)
        return served.cancel if self._run_there(served.start) else None

    async def answer(self, ask: FleetAsk, begin: Begin) -> Any:
        """Run a call from another process, and return its result; see `FleetHost`."""
        if self.membership.ownership_of(ask.key) is None:
            raise KeyMovedError(_MOVED)
        cell = self.cell(ask.key)
        assert isinstance(cell, FleetCell)
        handler = cell.kind._handlers.get(ask.handler)
        if handler is None:
            raise AttributeError(f"{ask.title}: the {self.name} of the process that owns its key has no such handler")
        served = _serving.get()
        assert served is not None
        # Calls of one key enter the mailbox in the order in which the fleet delivered them.
        await served.until_its_turn()
        if cell.draining is not None:
            # Until the key is given back, the caller would find this process as the owner again.
            while self.membership.ownership_of(ask.key) is not None:
                # Asked again and again: the key can be returned only after the actor and its last call have ended.
                self.release_key_if_unused(ask.key)
                await sleep(_PAUSE)
            raise KeyMovedError(_MOVED)
        # `LeasedRunner.handle` reads it from the message's context, which is copied from the context of this task.
        beginning.set(begin)
        return await cell.answer(handler, ask, served)

    def revoke(self, key: Hashable, reason: str) -> None:
        """End the actor of a key at once, because another process may own the key."""
        self._run_there(self._stop_without_ownership, key, reason)

    def _stop_without_ownership(self, key: Hashable, reason: str) -> None:
        queued, keyed_actor = self._queue.pop(key, None), self._alive.get(key)
        if isinstance(queued, FleetCell):
            queued.redirect_waiting_calls()
        # The key may have been won again since: an actor with a current ownership stays.
        if keyed_actor is not None and not (keyed_actor.cell.ownership and keyed_actor.cell.ownership.is_current):
            keyed_actor.unit.end(reason, self.clean_up)
            self._begin_stop(keyed_actor)

    def release_key_if_unused(self, key: Hashable) -> None:
        """Give a key back to the fleet if this process has no actor and no calls for it. Any thread may call this."""
        # A cheap test in the caller's thread; `_give_back` tests again in the loop's thread.
        if key not in self._alive:
            run_there(self.loop, partial(self._give_back, key))

    def _give_back(self, key: Hashable) -> None:
        cell = self._cells.get(key)
        if (cell is None or cell.is_idle) and key not in self._alive and key not in self._queue:
            self.membership.give_back(key)

    def _admit(self, cell: Cell) -> None:
        if self.membership.ownership_of(cell.key) is None:
            self._reject(cell, _MOVED)
        else:
            super()._admit(cell)

    def _may_start(self, cell: Cell) -> bool:
        cell.ownership = self.membership.ownership_of(cell.key)
        return cell.ownership is not None

    def _reject(self, cell: Cell, reason: str) -> None:
        """Give back an actor's key and send its calls to the next owner; do nothing if the actor still runs here."""
        if cell.key not in self._alive:
            assert isinstance(cell, FleetCell)
            # In this order: the moved calls are posted again, and must not find the old ownership.
            self.membership.give_back(cell.key)
            cell.redirect_waiting_calls()

    def _consider_eviction(self, cell: Cell) -> None:
        super()._consider_eviction(cell)
        # A drain frees the key of each actor as soon as it is idle.
        if self._draining is not None and cell.is_idle and cell.key in self._alive:
            self._begin_stop(self._alive[cell.key])

    async def drain(self, timeout: float) -> Drained:
        draining = self._start_drain()
        self._run_there(self._hand_over)
        return await draining.run(timeout)

    def _hand_over(self) -> None:
        """Stop the idle actors, so that the fleet gets their keys; busy actors stop when they become idle."""
        for keyed_actor in self._idle_actors():
            self._begin_stop(keyed_actor)

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            await self.loop.outlast(self.membership.leave)


class _Served:
    """Task that answers one call from another process. Any thread may cancel it."""

    def __init__(
        self,
        loop: EventLoop,
        function: Callable[[], Awaitable[None]],
        last_served: "dict[Hashable, _Served]",
        key: Hashable,
    ) -> None:
        self._loop = loop
        self._function = function
        # Last call of each key. It gives the order, because trio starts tasks in any order.
        self._last_served = last_served
        self._key = key
        self._turn_released: Wakeup
        # Changed in the loop's thread only: `cancel` posts there.
        self._has_begun = self._is_withdrawn = False
        self._previous: _Served | None = None
        self._task: Spawned | None = None

    def start(self) -> None:
        self._turn_released = self._loop.wakeup()
        # Here and not in `_run`: this runs in delivery order, tasks begin in any order on trio.
        self._previous = self._last_served.get(self._key)
        self._last_served[self._key] = self
        self._task = self._loop.spawn(self._run, _LONG_GRACE)

    async def _run(self, scope: Scope) -> None:
        _serving.set(self)
        self._has_begun = True
        try:
            with scope:
                if self._is_withdrawn:
                    scope.cancel()  # inside the scope: `_function` must still answer the caller
                await self._function()
        finally:
            self.release_turn()

    async def until_its_turn(self) -> None:
        """Wait until the previous remote call of the key is in the mailbox or was given up."""
        previous, self._previous = self._previous, None  # drops the chain of earlier calls
        if previous is not None:
            await previous._turn_released.wait()

    def release_turn(self) -> None:
        """Let the next remote call of the key go on, because this call is in the mailbox or was given up."""
        self._turn_released.set()
        if self._last_served.get(self._key) is self:
            del self._last_served[self._key]

    def cancel(self) -> None:
        run_there(self._loop, self._cancel)

    def _cancel(self) -> None:
        # A spawned task that is cancelled before it begins never runs, and would answer nobody.
        if self._has_begun and self._task is not None:
            self._task.cancel()
        self._is_withdrawn = True


_serving: ContextVar[_Served | None] = ContextVar("callboard_serving", default=None)
"""Remote call that the current task answers; `None` in any other task."""
