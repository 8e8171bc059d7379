"""Actors by key whose keys are owned by one process of a fleet each: asks go to the owner, or are done here."""

from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping
from contextvars import Context
from functools import partial
from typing import Any, Protocol

from callboard._calls._call import SupervisedCall
from callboard._fleets import Fleet, FleetAsk, FleetSnapshots, KeyMovedError, Ownership, Posting
from callboard._loops._current import run_there
from callboard._loops._deadline import DEFAULT_GRACE, current_timed
from callboard._loops._protocol import EventLoop, Scope, Spawned
from callboard.actors._actor import Handler
from callboard.actors._cell import Cell
from callboard.actors._child import ChildSpec
from callboard.actors._message import Message
from callboard.actors._owned_code import Begin, beginning
from callboard.exceptions import ActorDiedError

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
        """Give a key back of which nothing lives here, and that nobody asks; from any thread."""
        ...

    def context(self) -> Context:
        """The variables with which what nobody has asked for here begins."""
        ...


class FleetCell(Cell):
    """An actor of a fleet, as this process knows it: what it is asked goes to the owner of its key."""

    __slots__ = ("_posted", "tenancy")

    tenancy: "Tenancy"

    def __init__(self, *args: Any, **terms: Any) -> None:
        super().__init__(*args, **terms)
        self._posted: Posting | None = None

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
    ) -> Any:
        timed = current_timed.get()
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
        here = partial(
            super().ask, handler, args, kwargs, title=title, call=call, passes=_or_moved(passes), on_begin=on_begin
        )
        while True:
            posting = self.tenancy.membership.post(ask)
            try:
                if not await posting.is_here():
                    return _called(posting, ask)
                self._posted = posting
                return await here()
            except KeyMovedError:
                continue
            finally:
                posting.taken()
                self.tenancy.landlord.rests(self.key)

    async def answer(self, handler: Handler, ask: FleetAsk) -> Any:
        """Do an ask of another process."""
        try:
            return await super().ask(
                handler, ask.args, ask.kwargs, title=ask.title, passes=_or_moved(None), on_begin=ask.on_begin
            )
        finally:
            self.tenancy.landlord.rests(self.key)

    def _put(self, message: Message) -> None:
        posted, self._posted = self._posted, None
        super()._put(message)
        if posted is not None:
            posted.taken()

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
        self.membership = fleet.join(self)

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
        """That this process owns a key."""
        return self.membership.owned(key)

    def serve(self, work: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], object] | None:
        """Have something run beside the actors; see `FleetHost`."""
        served = _Served(self.landlord.loop, work)
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
        beginning.set(begin)
        return await cell.answer(handler, ask)

    def lost(self, key: Hashable, reason: str) -> None:
        """Have the actor of a key end at once."""
        self.landlord.lose(key, reason)


class _Served:
    """Something that runs in a task of nobody's, and may be cancelled from any thread."""

    def __init__(self, loop: EventLoop, work: Callable[[], Awaitable[None]]) -> None:
        self._loop = loop
        self._work = work
        self._task: Spawned | None = None

    def start(self) -> None:
        self._task = self._loop.spawn(self._run, _LONG)

    async def _run(self, scope: Scope) -> None:
        with scope:
            await self._work()

    def cancel(self) -> None:
        run_there(self._loop, self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
