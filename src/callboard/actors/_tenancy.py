"""Actors by key whose keys are owned by one process of a fleet each: asks go to the owner, or are done here."""

from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping
from contextvars import Context, ContextVar
from functools import partial
from typing import Any, Protocol

from anyio import sleep

from callboard._calls._call import SupervisedCall
from callboard._fleets import Fleet, FleetAsk, FleetSnapshots, KeyMovedError, Ownership, Posting
from callboard._loops._current import run_there
from callboard._loops._deadline import DEFAULT_GRACE, current_timed
from callboard._loops._protocol import EventLoop, Scope, Spawned, Wakeup
from callboard.actors._actor import Handler
from callboard.actors._cell import Cell
from callboard.actors._child import ChildSpec
from callboard.actors._message import Message
from callboard.actors._owned_code import Begin, beginning
from callboard.exceptions import ActorDiedError

_PAUSE = 0.01
"""Seconds before an ask that did not begin here is posted anew."""
_LONG = 3600.0
"""Seconds that an ask which was cancelled may wait for its handler, whose own grace is enforced there."""
_MOVED = "its key belongs to another process now"


class Landlord(Protocol):
    """Who has the actors that live in this process."""

    spec: ChildSpec[Any]
    loop: EventLoop

    def cell(self, key: Hashable) -> Cell:
        """The actor of a key, whether it lives or not; from any thread."""
        ...

    def lose(self, key: Hashable, reason: str) -> None:
        """End one at once; from any thread."""
        ...

    def rests(self, key: Hashable) -> None:
        """Give the key back if no actor of it lives here and no call waits for one; from any thread."""
        ...

    def context(self) -> Context:
        """The variables with which what nobody has asked for here begins."""
        ...


class FleetCell(Cell):
    """An actor of a fleet, as this process knows it: what it is asked goes to the owner of its key."""

    __slots__ = ("_posted", "_served", "tenancy")

    tenancy: "Tenancy"

    def __init__(self, *args: Any, **terms: Any) -> None:
        super().__init__(*args, **terms)
        self._posted: _Taken | None = None
        self._served: set[Message] = set()
        """Messages of other processes: the next owner answers those that do not begin here."""

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
        on_begin = None if on_begin is None else _Once(on_begin)
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
        while True:
            posting = self.tenancy.membership.post(ask)
            try:
                if not await posting.is_here():
                    return _called(posting, ask)
                self._posted = posting
                return await here()
            except KeyMovedError:
                await sleep(_PAUSE)  # what has lost the key here may still be ending
            finally:
                posting.taken()
                self.tenancy.landlord.rests(self.key)

    async def answer(self, handler: Handler, ask: FleetAsk, served: "_Served") -> Any:
        """Do here what another process asks of a key that this one owns."""
        try:
            self._posted = served
            return await super().ask(
                handler, ask.args, ask.kwargs, title=ask.title, passes=_or_moved(None), on_begin=ask.on_begin
            )
        finally:
            self._served = {one for one in self._served if not one.has_ended}
            self.tenancy.landlord.rests(self.key)

    def _put(self, message: Message) -> None:
        posted, self._posted = self._posted, None
        if self.gone is not None and (self._is_stale or isinstance(posted, _Served)):
            raise KeyMovedError(_MOVED)
        if isinstance(posted, _Served):
            self._served.add(message)
        message.grace = min(message.grace, self.tenancy.clean_up)
        super()._put(message)
        if posted is not None:
            posted.taken()

    def refused_by_drain(self, message: Message) -> Exception:
        return KeyMovedError(_MOVED) if message in self._served else super().refused_by_drain(message)

    @property
    def _is_stale(self) -> bool:
        return self.ownership is not None and not self.ownership.is_current

    def finish(self, reason: str) -> None:
        if self._is_stale:
            self.move()  # that it has ended here says nothing of its next owner
        super().finish(reason)

    def is_owned(self) -> bool:
        """Whether this process owns its key; the life that begins now ends with that."""
        self.ownership = self.tenancy.owned(self.key)
        return self.ownership is not None

    def move(self) -> None:
        """Have what waits here be asked of the owner of the key."""
        with self.lock:
            waiting = [*self.mailbox.waiting, *self.urgent]
            self.mailbox.waiting.clear()
            self.urgent.clear()
        for message in waiting:
            self.settle(message, None, KeyMovedError(_MOVED))


def _or_moved(passes: Callable[[BaseException], bool] | None) -> Callable[[BaseException], bool]:
    return lambda error: isinstance(error, KeyMovedError) or (passes is not None and passes(error))


def _called(posting: Posting, ask: FleetAsk) -> Any:
    try:
        return posting.outcome()
    except ActorDiedError as died:
        if died.call_id is None and died.tool == ask.title:
            raise ActorDiedError(ask.title, ask.call_id, died.reason) from died.__cause__
        raise


class Tenancy:
    """The part that the actors of one kind in this process have in a fleet; its `FleetHost`.

    Args:
        landlord: has the actors.
        fleet: that they are part of.
    """

    def __init__(self, landlord: Landlord, fleet: Fleet) -> None:
        self.landlord = landlord
        self.name = landlord.spec.name
        self._last: dict[Hashable, _Served] = {}
        """By key, what came last and may not be in the mailbox yet."""
        self.clean_up = fleet.clean_up
        """Seconds that a handler has to end, once its key is lost."""
        self.membership = fleet.admit(self)

    def cell(self) -> FleetCell:
        """A place for an actor to live."""
        spec = self.landlord.spec
        found = FleetCell(spec.name, spec.kind, size=spec.mailbox, when_full=spec.when_full, poison=spec.poison)
        found.tenancy = self
        return found

    @property
    def snapshots(self) -> FleetSnapshots:
        """Keeps the states of the actors for the whole fleet."""
        return self.membership.snapshots

    def owned(self, key: Hashable) -> Ownership | None:
        """Returns how this process owns a key; `None` if it does not."""
        return self.membership.owned(key)

    def serve(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], object] | None:
        """Have something run that answers an ask; see `FleetHost`."""
        served = _Served(self.landlord.loop, work, self._last, key)
        context = self.landlord.context()
        return served.cancel if run_there(self.landlord.loop, lambda: context.run(served.start)) else None

    async def answer(self, ask: FleetAsk, begin: Begin) -> Any:
        """Do an ask of another process; see `FleetHost`."""
        if self.owned(ask.key) is None:
            raise KeyMovedError(_MOVED)
        cell = self.landlord.cell(ask.key)
        assert isinstance(cell, FleetCell)
        handler = cell.kind._handlers.get(ask.handler)
        if handler is None:
            raise AttributeError(f"{ask.title}: the {self.name} of the process that owns its key has no such handler")
        served = _serving.get()
        assert served is not None
        await served.until_its_turn()
        if cell.draining is not None:
            await self._until_handed_over(ask.key)
        beginning.set(begin)
        return await cell.answer(handler, ask, served)

    async def _until_handed_over(self, key: Hashable) -> None:
        """Hold an ask of another process until the drained key has been given back, then send it to the next owner.

        The ask waits here, because its sender would only find the same owner again.

        Raises:
            KeyMovedError: always.
        """
        while self.owned(key) is not None:
            self.landlord.rests(key)
            await sleep(_PAUSE)
        raise KeyMovedError(_MOVED)

    def lost(self, key: Hashable, reason: str) -> None:
        """Have the actor of a key end at once."""
        self.landlord.lose(key, reason)


class _Once:
    """A beginning that counts once: an ask may be about to begin here, and begin elsewhere."""

    def __init__(self, on_begin: Callable[[], object]) -> None:
        self._on_begin: Callable[[], object] | None = on_begin

    def __call__(self) -> None:
        on_begin, self._on_begin = self._on_begin, None
        if on_begin is not None:
            on_begin()


class _Taken(Protocol):
    """Who is told that an ask stands in the mailbox."""

    def taken(self) -> None: ...


class _Served:
    """Something that answers an ask in a task of nobody's, and may be cancelled from any thread.

    Args:
        loop: of the actors.
        work: to be done.
        last: of each key, what was before it; trio begins tasks in any order.
        key: of the ask.
    """

    def __init__(
        self, loop: EventLoop, work: Callable[[], Awaitable[None]], last: "dict[Hashable, _Served]", key: Hashable
    ) -> None:
        self._loop = loop
        self._work = work
        self._last = last
        self._key = key
        self._is_taken: Wakeup
        self._has_begun = self._is_withdrawn = False
        self._before: _Served | None = None
        self._task: Spawned | None = None

    def start(self) -> None:
        self._is_taken = self._loop.wakeup()
        self._before = self._last.get(self._key)
        self._last[self._key] = self
        self._task = self._loop.spawn(self._run, _LONG)

    async def _run(self, scope: Scope) -> None:
        _serving.set(self)
        self._has_begun = True
        try:
            with scope:
                if self._is_withdrawn:
                    scope.cancel()  # in here, for whoever asks is to be told
                await self._work()
        finally:
            self.taken()

    async def until_its_turn(self) -> None:
        """Wait until the ask before it stands in the mailbox, or never will."""
        before, self._before = self._before, None
        if before is not None:
            await before._is_taken.wait()

    def taken(self) -> None:
        """Say that it stands in the mailbox, or never will."""
        self._is_taken.set()
        if self._last.get(self._key) is self:
            del self._last[self._key]

    def cancel(self) -> None:
        run_there(self._loop, self._cancel)

    def _cancel(self) -> None:
        if self._has_begun and self._task is not None:
            self._task.cancel()
        self._is_withdrawn = True


_serving: ContextVar[_Served | None] = ContextVar("callboard_serving", default=None)
