"""Keyed actors in many processes. One process owns each key, and receives its calls."""

import threading
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any

from anyio import sleep

from callboard._calls._call import SupervisedCall
from callboard._loops._current import run_there
from callboard._loops._deadline import DEFAULT_GRACE, current_timed
from callboard._loops._protocol import EventLoop, Scope, Spawned, Wakeup
from callboard._records._fleets import Delivery, FleetAsk, KeyMovedError
from callboard._records._reports import Drained
from callboard.actors._actor import Handler
from callboard.actors._cell import Cell
from callboard.actors._child import ChildSpec
from callboard.actors._keyed import KeyedActors
from callboard.actors._mailbox import Message
from callboard.actors._runner import Begin, beginning
from callboard.actors._supervised import cell_for
from callboard.exceptions import ActorDiedError

_PAUSE = 0.01
"""Seconds before a call that did not begin is posted again."""
_LONG = 3600.0
"""Grace of the task that serves a remote call; the handler's own, shorter grace is enforced in the actor."""
_MOVED = "its key belongs to another process now"


class FleetCell(Cell):
    """Cell of a fleet's actor in this process: it sends each call to the process that owns the key."""

    __slots__ = ("_served", "fleet_host")

    fleet_host: "FleetActors"

    def __init__(self, *args: Any, **terms: Any) -> None:
        super().__init__(*args, **terms)
        self._served: set[Message] = set()
        """Messages from other processes. If they do not begin here, they are sent to the next owner."""

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
        timed = current_timed.get()
        # A posted call may begin in another process, move, and begin here: `on_begin` must run once.
        on_begin = None if on_begin is None else _once(on_begin)
        ask = FleetAsk(
            key=self.key,
            handler=handler.name,
            args=args,
            kwargs=kwargs,
            title=title or handler.title,
            call_id=None if call is None else call.id,
            grace=DEFAULT_GRACE if timed is None else timed.grace,
            on_begin=on_begin,
        )
        here = partial(super().ask, handler, args, kwargs, title=title, call=call, named_by=named_by)
        here = partial(here, passes=_or_moved(passes), on_begin=on_begin)
        # Repeated until the call begins: a key may move several times while its call waits.
        while True:
            posting = self.fleet_host.membership.post(ask)
            try:
                # If this await is cancelled, a call that has not begun is withdrawn. A begun call is cancelled in the
                # process that runs it.
                if not await posting.is_here():
                    return _called(posting, ask)
                _handed_on.posting = posting
                return await here()
            except KeyMovedError:
                await sleep(_PAUSE)  # the actor that lost the key may still be ending here
            finally:
                # Always, or the fleet holds back the next call of this key.
                posting.taken()
                # The call may have been the last reason to own the key.
                self.fleet_host.rests(self.key)

    async def answer(self, handler: Handler, ask: FleetAsk, served: "_Served") -> Any:
        """Run a call from another process on a key that this process owns."""
        try:
            _handed_on.posting = served
            return await super().ask(
                handler, ask.args, ask.kwargs, title=ask.title, passes=_or_moved(None), on_begin=ask.on_begin
            )
        finally:
            self._served = {one for one in self._served if not one.has_ended}
            self.fleet_host.rests(self.key)

    def _put(self, message: Message) -> None:
        """Put a message into the mailbox, and let the fleet deliver the next call of the key."""
        posted, _handed_on.posting = _handed_on.posting, None
        # Not an error for the caller: another process can serve the key, if it is lost here or this process closes.
        if self.gone is not None and (self._is_stale or isinstance(posted, _Served)):
            raise KeyMovedError(_MOVED)
        if isinstance(posted, _Served):
            # Before `super()._put`, in which `refused_by_drain` looks it up.
            self._served.add(message)
        # A handler must have ended before another process may own the key.
        message.grace = min(message.grace, self.fleet_host.clean_up)
        super()._put(message)
        if posted is not None:
            # Only now: the message stands in the mailbox, so the next call of the key cannot overtake it.
            posted.taken()

    def refused_by_drain(self, message: Message) -> Exception:
        return KeyMovedError(_MOVED) if message in self._served else super().refused_by_drain(message)

    @property
    def _is_stale(self) -> bool:
        return self.ownership is not None and not self.ownership.is_current

    def finish(self, reason: str) -> None:
        if self._is_stale:
            self.move()  # the actor has ended here only; the next owner can run the waiting calls
        super().finish(reason)

    def move(self) -> None:
        """Send all waiting calls to the owner of the key."""
        with self.lock:
            waiting = [*self.mailbox.waiting, *self.urgent]
            self.mailbox.waiting.clear()
            self.urgent.clear()
        # `FleetCell.ask` catches the error and posts the call again; a remote caller's fleet does the same.
        for message in waiting:
            self.settle(message, None, KeyMovedError(_MOVED))


class _HandedOn(threading.local):
    """Delivery that `ask` or `answer` hands on to the `_put` that follows without an await.

    No other task of the thread comes in between. Other threads, which may ask the same cell, have their own.
    """

    posting: "Delivery | _Served | None" = None


_handed_on = _HandedOn()


def _once(on_begin: Callable[[], object]) -> Callable[[], None]:
    """Return a callback that runs at most once, although a call may be about to begin in two processes."""
    pending = [on_begin]

    def begin() -> None:
        while pending:
            pending.pop()()

    return begin


def _or_moved(passes: Callable[[BaseException], bool] | None) -> Callable[[BaseException], bool]:
    return lambda error: isinstance(error, KeyMovedError) or (passes is not None and passes(error))


def _called(posting: Delivery, ask: FleetAsk) -> Any:
    try:
        return posting.outcome()
    except ActorDiedError as died:
        # The owner does not know the id of the tool call here: add it.
        if died.call_id is None and died.tool == ask.title:
            raise ActorDiedError(ask.title, ask.call_id, died.reason) from died.__cause__
        raise


class FleetActors(KeyedActors):
    """Keyed actors of a fleet, in one process; implements `FleetHost`. Any thread may call what the fleet calls."""

    def __init__(self, spec: ChildSpec[Any], on_interrupt: Callable[[BaseException], object]) -> None:
        assert spec.fleet is not None
        super().__init__(spec, on_interrupt)
        self.name = spec.name
        self._last: dict[Hashable, _Served] = {}
        """Last remote call of each key that may not be in the mailbox yet."""
        self.clean_up = spec.fleet.clean_up
        """Seconds in which a handler must end after its key was lost."""
        # Last: the fleet may call this object as soon as it is admitted.
        self.membership = spec.fleet.admit(self)
        if spec.snapshots is None:
            self.spec = spec.kept_in(self.membership.snapshots)

    def _new_cell(self) -> Cell:
        cell = cell_for(self.spec, FleetCell)
        cell.fleet_host = self
        return cell

    def serve(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], object] | None:
        """Start a task that answers a remote call; see `FleetHost`."""
        served = _Served(self.loop, work, self._last, key)
        context = self._context.copy()
        return served.cancel if run_there(self.loop, lambda: context.run(served.start)) else None

    async def answer(self, ask: FleetAsk, begin: Begin) -> Any:
        """Run a remote call; see `FleetHost`."""
        if self.membership.owned(ask.key) is None:
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
            await self._until_handed_over(ask.key)
        # `LeasedRunner.handle` reads it from the message's context, which is copied from the context of this task.
        beginning.set(begin)
        return await cell.answer(handler, ask, served)

    async def _until_handed_over(self, key: Hashable) -> None:
        """Hold a remote call until the drained key has been returned to the fleet, then send it to the next owner.

        The call waits here, because its sender would only find the same owner again.
        """
        while self.membership.owned(key) is not None:
            # Asked again and again: the key can be returned only after the actor and its last call have ended.
            self.rests(key)
            await sleep(_PAUSE)
        raise KeyMovedError(_MOVED)

    def lost(self, key: Hashable, reason: str) -> None:
        """End the actor of a key at once, because another process may own the key."""
        context = self._context.copy()
        run_there(self.loop, lambda: context.run(self._lose, key, reason))

    def _lose(self, key: Hashable, reason: str) -> None:
        queued, resident = self._queue.pop(key, None), self._alive.get(key)
        if isinstance(queued, FleetCell):
            queued.move()
        # The key may have been won again since: an actor with a current ownership stays.
        if resident is not None and not (resident.cell.ownership and resident.cell.ownership.is_current):
            resident.unit.end(reason, self.clean_up)
            self._leave(resident)

    def rests(self, key: Hashable) -> None:
        """Return an unused key to the fleet. Any thread may call this."""
        # A cheap test in the caller's thread; `_give_back` tests again in the loop's thread.
        if key not in self._alive:
            run_there(self.loop, partial(self._give_back, key))

    def _give_back(self, key: Hashable) -> None:
        cell = self._cells.get(key)
        if (cell is None or cell.is_idle) and key not in self._alive and key not in self._queue:
            self.membership.give_back(key)

    def _admit(self, cell: Cell) -> None:
        if self.membership.owned(cell.key) is None:
            self._turn_away(cell, _MOVED)
        else:
            super()._admit(cell)

    def _may_start(self, cell: Cell) -> bool:
        cell.ownership = self.membership.owned(cell.key)
        return cell.ownership is not None

    def _turn_away(self, cell: Cell, reason: str) -> None:
        """Send the calls of a cell to another process, unless its actor is still ending here."""
        if cell.key not in self._alive:
            assert isinstance(cell, FleetCell)
            # In this order: the moved calls are posted again, and must not find the old ownership.
            self.membership.give_back(cell.key)
            cell.move()

    def _rests(self, cell: Cell) -> None:
        super()._rests(cell)
        # A drain frees the key of each actor as soon as it is idle.
        if self._draining is not None and cell.is_idle and cell.key in self._alive:
            self._leave(self._alive[cell.key])

    async def drain(self, timeout: float) -> Drained:
        draining, context = self._start_drain(), self._context.copy()
        run_there(self.loop, lambda: context.run(self._hand_over))
        return await draining.run(timeout)

    def _hand_over(self) -> None:
        """Stop the idle actors, to free their keys; the busy ones stop when they become idle."""
        for resident in list(self._alive.values()):
            if resident.cell.life is not None and resident.cell.is_idle:
                self._leave(resident)

    async def close(self) -> None:
        await super().close()
        with self.loop.shield(float("inf")):
            await self.membership.leave()


class _Served:
    """Task that answers one remote call. Any thread may cancel it."""

    def __init__(
        self, loop: EventLoop, work: Callable[[], Awaitable[None]], last: "dict[Hashable, _Served]", key: Hashable
    ) -> None:
        self._loop = loop
        self._work = work
        self._last = last  # last call of each key; it gives the order, because trio starts tasks in any order
        self._key = key
        self._is_taken: Wakeup
        # Changed in the loop's thread only: `cancel` posts there.
        self._has_begun = self._is_withdrawn = False
        self._before: _Served | None = None
        self._task: Spawned | None = None

    def start(self) -> None:
        self._is_taken = self._loop.wakeup()
        # Here and not in `_run`: this runs in delivery order, tasks begin in any order on trio.
        self._before = self._last.get(self._key)
        self._last[self._key] = self
        self._task = self._loop.spawn(self._run, _LONG)

    async def _run(self, scope: Scope) -> None:
        _serving.set(self)
        self._has_begun = True
        try:
            with scope:
                if self._is_withdrawn:
                    scope.cancel()  # inside the scope: `_work` must still answer the caller
                await self._work()
        finally:
            self.taken()

    async def until_its_turn(self) -> None:
        """Wait until the previous call of the key is in the mailbox, or never will be."""
        before, self._before = self._before, None  # drops the chain of earlier calls
        if before is not None:
            await before._is_taken.wait()

    def taken(self) -> None:
        """Report that this call is in the mailbox, or never will be. May be called again."""
        self._is_taken.set()
        if self._last.get(self._key) is self:
            del self._last[self._key]

    def cancel(self) -> None:
        run_there(self._loop, self._cancel)

    def _cancel(self) -> None:
        # A spawned task that is cancelled before it begins never runs, and would answer nobody.
        if self._has_begun and self._task is not None:
            self._task.cancel()
        self._is_withdrawn = True


_serving: ContextVar[_Served | None] = ContextVar("callboard_serving", default=None)
"""Remote call that the current task answers."""
