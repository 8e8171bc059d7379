"""The asks of one member, on their way to the owners of their keys.

Other threads may post, give back and look; all else happens in the thread of the desk.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Hashable, Sequence
from itertools import count

from callboard import ActorDiedError, ActorGoneError, StorageError
from callboard.fleets import FleetAsk
from callboard_actors._fleet._desk import Desk
from callboard_actors._fleet._letters import Asked, Letter, Seal, What, gate_of, key_of
from callboard_actors._fleet._line import Address, FleetLine
from callboard_actors._fleet._posted import PostedAsk
from callboard_actors._fleet._route import HeldKey, Route

_MOST_IDLE = 1_000
"""Keys of which it is remembered who owns them, though nobody asks."""
_PAUSE = 0.02
"""Seconds after an owner has sent an ask back, before somebody is asked again."""
_LOOK = 0.005
"""Seconds between two looks whether replies have been written."""
_DEAD = "the process that owned its key died, or stood still for too long"


class Post:
    """What a member asks, by key.

    Args:
        name: of the actor.
        member: the id of this member.
        seal: of the fleet.
        on_lost: told of a key that is owned here no more, and why.
    """

    def __init__(
        self,
        name: str,
        member: str,
        seal: Seal,
        on_lost: Callable[[Hashable, str], object],
    ) -> None:
        self.desk: Desk
        self._name, self._member, self._seal = name, member, seal
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._routes: dict[Hashable, Route] = {}
        self._orders, self._ids = count(1), count(1)
        self._numbers: dict[str, int] = {}
        """How many asks were sent to each member."""
        self._turns: dict[str, asyncio.Lock] = {}
        self._sent: dict[str, tuple[Route, PostedAsk]] = {}
        self._outbox: list[tuple[str, bytes, str]] = []
        self._written = self._told = 0
        """Number of letters that were put into the outbox, and that the server has."""
        self._unanswered: dict[tuple[str, int], set[str]] = {}
        """By key and token, the asks of other processes that have begun here and have no reply in the outbox."""
        self._is_posting = False
        self._grants: dict[PostedAsk, asyncio.Event] = {}
        self.is_left = False

    def post(self, ask: FleetAsk) -> PostedAsk:
        """Have an ask done by whoever owns its key; from any thread, in the task that waits for it."""
        posted = PostedAsk(ask, self._withdraw, self._note_taken)
        with self._lock:
            if self.is_left:
                raise ActorGoneError(ask.title, ask.call_id, "its process is leaving the fleet, or has left it")
            route = self._route(ask.key)
            posted.order = next(self._orders)
            held = route.held
            if held is not None and held.is_current and not route.is_busy:
                posted.state = "taken"  # nobody is before it
                return posted
            route.queue.append(posted)
        self.desk.do(lambda: self.see_to(route))
        return posted

    def _route(self, key: Hashable) -> Route:
        found = self._routes.get(key)
        if found is None:
            if len(self._routes) > _MOST_IDLE:
                self._routes = {known: one for known, one in self._routes.items() if not one.is_idle}
            found = self._routes[key] = Route(key, gate_of(self._name, key))
        return found

    def route(self, key: Hashable) -> Route:
        """The way to a key; from any thread."""
        with self._lock:
            return self._route(key)

    def held(self, key: Hashable) -> HeldKey | None:
        """How a key is owned here; `None` if it is not. From any thread."""
        route = self._routes.get(key)
        held = None if route is None else route.held
        return held if held is not None and held.is_current else None

    def give_back(self, key: Hashable) -> None:
        """Own a key no more; from any thread."""
        with self._lock:
            route = self._routes.get(key)
            if route is None or route.held is None:
                return
            if route.is_busy:
                route.is_unwanted = True
                return
            held, route.held = route.held, None
            held.end()
        self.desk.do(lambda: self.desk.start(lambda: self.free(route.gate, held.token)))

    def note_begun(self, gate: str, token: int, ask: str) -> None:
        """Note that an ask of another process has begun here; in the thread."""
        self._unanswered.setdefault((gate, token), set()).add(ask)

    def note_answered(self, gate: str, token: int, ask: str) -> None:
        """Note that the reply to an ask of another process is in the outbox; in the thread."""
        asks = self._unanswered.get((gate, token), set())
        asks.discard(ask)
        if not asks:
            self._unanswered.pop((gate, token), None)

    async def free(self, gate: str, token: int) -> None:
        """Have the server know that a key is owned no more, after the replies to all asks that began here.

        An asker that finds its key without this owner counts an ask without a reply as unknown.
        """
        while (gate, token) in self._unanswered:
            await asyncio.sleep(_LOOK)
        written = self._written
        while self._told < written:
            await asyncio.sleep(_LOOK)
        await self.desk.on_line(lambda line: line.give_back(gate, token))

    def lose_all(self, reason: str) -> None:
        """Give up every key that is owned here, as when the lease has been lost."""
        for route in list(self._routes.values()):
            if route.held is not None:
                self.lose(route.key, route.held, reason)

    def lose(self, key: Hashable, held: HeldKey, reason: str) -> None:
        """Own a key no more, because another process may; from any thread."""
        held.end()
        with self._lock:
            route = self._route(key)
            if route.held is held:
                route.held = None
        self._on_lost(key, reason)

    def fail_all(self, error: StorageError) -> None:
        """Tell those who wait, and of which nothing was sent, that nobody can be asked."""
        with self._lock:
            waiting = [one for route in self._routes.values() for one in route.queue]
            for route in self._routes.values():
                route.queue.clear()
            if self.is_left:
                waiting += [one for _, one in self._sent.values()]
        for one in waiting:
            one.fail(StorageError(error.where, error.reason))

    def see_to(self, route: Route) -> None:
        """Have the queue of a key go on."""
        with self._lock:
            if route.is_busy or not (route.queue or route.is_suspect):
                return
            route.is_busy = True
        self.desk.start(lambda: self._see_to(route))

    async def _see_to(self, route: Route) -> None:
        try:
            while (one := self._next(route)) is not None or route.is_suspect:
                await self._go_on(route, one)
        except StorageError as error:
            self.fail_all(error)
        finally:
            self._end_turn(route)

    async def _go_on(self, route: Route, one: PostedAsk | None) -> None:
        if route.is_sent_back:
            route.is_sent_back = False
            await asyncio.sleep(_PAUSE)
        elif route.is_suspect:
            await self._take_back(route)
        elif one is None:
            pass
        elif route.held is not None and route.held.is_current:
            await self._grant(route, one)
        elif route.owner is not None:
            await self._send(route, route.owner, one)
        else:
            await self._find_owner(route)

    def _end_turn(self, route: Route) -> None:
        with self._lock:
            route.is_busy = False
            is_unwanted, route.is_unwanted = route.is_unwanted and not route.queue, False
        if is_unwanted:
            self.give_back(route.key)
        self.see_to(route)  # what came in between

    def _next(self, route: Route) -> PostedAsk | None:
        with self._lock:
            return route.queue[0] if route.queue else None

    async def _grant(self, route: Route, one: PostedAsk) -> None:
        taken = self._grants[one] = asyncio.Event()
        with self._lock:
            if one not in route.queue:
                return  # nobody waits for it any more
            route.queue.remove(one)
            route.is_unwanted = False
        one.grant()
        await taken.wait()

    def _note_taken(self, one: PostedAsk) -> None:
        self.desk.do(lambda: self._free_turn(one))

    def _free_turn(self, one: PostedAsk) -> None:
        if (taken := self._grants.pop(one, None)) is not None:
            taken.set()

    async def _find_owner(self, route: Route) -> None:
        era = self.desk.era
        found = await self.desk.on_line(lambda line: line.own(route.gate))
        if found.owner == self._member:
            held = HeldKey(found.token, lambda: self.desk.is_safe(era))
            with self._lock:
                route.held = held if held.is_current else None
            if route.held is None:
                await asyncio.sleep(_PAUSE)
        elif found.owner:
            route.owner = Address(gate=route.gate, owner=found.owner, token=found.token)
        else:
            await asyncio.sleep(found.opens_in)

    async def _send(self, route: Route, to: Address, one: PostedAsk) -> None:
        # One after the other: what has a lower number than its predecessor counts as said before.
        async with self._turns.setdefault(to.owner, asyncio.Lock()):
            await self._send_now(route, to, one)

    async def _send_now(self, route: Route, to: Address, one: PostedAsk) -> None:
        one.id = f"{self._member}.{next(self._ids)}"
        try:
            key, arguments = key_of(one.ask), one.arguments
        except TypeError as error:
            self._drop(route, one)
            one.fail(error)
            return
        number = self._numbers[to.owner] = self._numbers.get(to.owner, 0) + 1
        ask = one.ask
        said = Asked(to.gate, to.token, number, key, ask.handler, ask.title, ask.grace, one.carried, arguments)
        frame = self.frame(to.owner, "ask", one.id, said)
        with self._lock:
            if one not in route.queue:
                return  # nobody waits for it any more
            route.queue.remove(one)
            one.state, one.sent_to, one.is_delivered = "sent", to, False
            route.sent[one.id] = one
            self._sent[one.id] = route, one
        tries = list[FleetLine]()

        def send(line: FleetLine) -> Awaitable[bool]:
            tries.append(line)
            return line.send(to, number, one.id, frame)

        if await self.desk.on_line(send):
            one.is_delivered = True
            if one.is_withdrawn:
                self.tell(to.owner, "cancel", one.id)
        else:
            if len(tries) == 1:
                self._queue_again(route, [one.id])
            self._suspect(route)  # if its first answer was lost, it may have been done there

    def _suspect(self, route: Route) -> None:
        route.is_suspect, route.owner = True, None

    async def _take_back(self, route: Route) -> None:
        """Have asks that were sent, and may never be done, be asked of the next owner; those that began never are."""
        route.is_suspect = False
        again = [one.id for one in list(route.sent.values()) if await self._is_recalled(one)]
        self._queue_again(route, again)

    async def _is_recalled(self, one: PostedAsk) -> bool:
        ask, to = one.id, one.sent_to
        assert to is not None
        marker = self.frame(self._member, "unknown", ask)
        return await self.desk.on_line(lambda line: line.recall(to.owner, ask, marker))

    def _queue_again(self, route: Route, sent: Sequence[str]) -> None:
        asks = [found[1] for ask in sent if (found := self._forget(ask)) is not None]
        with self._lock:
            route.queue_again([one for one in asks if not one.is_withdrawn])
        for one in asks:
            if one.is_withdrawn:
                one.fail(_ended(one))

    async def look_after_sent(self) -> None:
        """See whether those who were asked are still there."""
        with self._lock:
            routes = [route for route in self._routes.values() if route.sent]
        known = [(route, to) for route in routes for to in {one.sent_to for one in route.sent.values()} if to]
        found = await self.desk.on_line(lambda line: line.still([to for _, to in known])) if known else []
        for (route, _), is_still in zip(known, found, strict=True):
            if not is_still:
                self._suspect(route)
                self.see_to(route)

    def hear(self, letter: Letter) -> None:
        """Take in what is said of an ask."""
        found = self._sent.get(letter.ask)
        if found is None:
            return  # late: it has had its one outcome
        route, one = found
        if letter.what == "begun":
            one.say(None)
        elif letter.what == "told":
            one.say(letter.said)
        elif letter.what == "moved":
            self._queue_again(route, [letter.ask])
            route.is_sent_back = True
            self._suspect(route)
            self.see_to(route)
        else:
            self._forget(letter.ask)
            if letter.what == "cancelled" and one.is_withdrawn:
                one.fail(_ended(one))
            elif letter.what in ("unknown", "cancelled"):
                one.fail(ActorDiedError(one.ask.title, one.ask.call_id, _DEAD))
            else:
                one.settle(letter.what, letter.said)

    def _withdraw(self, one: PostedAsk) -> None:
        if not self.desk.do(lambda: self._end_withdrawn(one)):
            one.fail(_ended(one))

    def _end_withdrawn(self, one: PostedAsk) -> None:
        one.is_withdrawn = True
        route = self.route(one.ask.key)
        if self._drop(route, one):
            one.fail(_ended(one))
        elif one.id in self._sent and one.sent_to is not None and one.is_delivered:
            self.tell(one.sent_to.owner, "cancel", one.id)

    def tell(self, to: str, what: What, ask: str, said: object = None, *, ends: bool = False) -> None:
        """Write to another member, in the order of calls; in the thread."""
        self._outbox.append((to, self.frame(to, what, ask, said), ask if ends else ""))
        self._written += 1
        if not self._is_posting:
            self._is_posting = True
            self.desk.start(self._empty_outbox)

    async def _empty_outbox(self) -> None:
        try:
            while self._outbox:
                letters = list(self._outbox)
                await self.desk.on_line(lambda line: line.tell(letters))  # noqa: B023 (awaited at once)
                del self._outbox[: len(letters)]
                self._told += len(letters)
        finally:
            self._is_posting = False

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is left to be written."""
        return not self._outbox

    def frame(self, to: str, what: What, ask: str, said: object = None) -> bytes:
        """Make the signed bytes of a letter to another member."""
        return self._seal.sealed(to, Letter(what, self._member, ask, said))

    def _drop(self, route: Route, one: PostedAsk) -> bool:
        with self._lock:
            if one not in route.queue:
                return False
            route.queue.remove(one)
            return True

    def _forget(self, ask: str) -> tuple[Route, PostedAsk] | None:
        found = self._sent.pop(ask, None)
        if found is not None:
            found[0].sent.pop(ask, None)
        return found


def _ended(one: PostedAsk) -> ActorGoneError:
    return ActorGoneError(one.ask.title, one.ask.call_id, "nobody waits for it")
