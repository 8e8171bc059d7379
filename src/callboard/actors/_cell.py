"""An actor as others know it, through all of its lives: a name, a mailbox, and whoever lives there now."""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from itertools import count
from typing import Any

from callboard._calls._call import SupervisedCall
from callboard._fleets import Ownership
from callboard._loops._current import current_loop, run_there
from callboard._loops._protocol import EventLoop, Scope
from callboard.actors._actor import Actor, Handler
from callboard.actors._circles import refuse_circle, refuse_standstill
from callboard.actors._deadlock import Needs
from callboard.actors._inhabitant import Inhabitant
from callboard.actors._mailbox import Mailbox, WhenFull, is_awaited_here, jumps_queue
from callboard.actors._message import Message
from callboard.actors._poison import Poison
from callboard.actors._watch import WatchedAsk, watched
from callboard.exceptions import ActorDiedError, ActorGoneError, MailboxFullError, PoisonousCallError

_log = logging.getLogger("callboard")
_calls = count(1)


class Cell:
    """What references lead to. Everything in it may be asked from any thread; `lock` is never held while one waits.

    Args:
        name: of the actor, for errors and observers.
        kind: its class.
        size: how many calls may wait.
        when_full: what becomes of one more.
        poison: how often one call may end the actor before it is refused.
    """

    __slots__ = (
        "__weakref__",
        "activate",
        "asked",
        "child",
        "draining",
        "fault",
        "gone",
        "has_lost_state",
        "home",
        "key",
        "kind",
        "life",
        "lock",
        "mailbox",
        "name",
        "on_rest",
        "owed",
        "ownership",
        "poison",
        "room",
        "state_since",
        "urgent",
    )

    def __init__(self, name: str, kind: type[Actor], *, size: int, when_full: WhenFull, poison: int) -> None:
        self.name = self.child = name
        """The first is made to tell its key, too; the second is that of the child, which all keys share."""
        self.kind = kind
        self.lock = threading.RLock()  # the garbage collector, which may run within it, sends a reply that was dropped
        self.mailbox = Mailbox(size, when_full, kind.groups)
        self.urgent: OrderedDict[Message, None] = OrderedDict()
        """Messages that jump the queue and have not begun."""
        self.owed: dict[Message, None] = {}
        """Those in hand that are not the mailbox's: they jumped the queue, or somebody has their reply."""
        self.life: Inhabitant | None = None
        self.gone: str | None = "it has not been started"
        """Why nobody lives here, nor will, in words; `None` while somebody does or will."""
        self.poison = Poison(poison)
        self.state_since = 0
        """Which of all lives in this process the present state began with; 0 for one that was restored."""
        self.home: EventLoop | None = None
        """Where it lives when somebody asks it; `None` if others see to that."""
        self.has_lost_state = False
        """Whether the last life ended without its state being saved."""
        self.key: Hashable = None
        """Which of several it is, where there is one for each key."""
        self.activate: Callable[[Cell], None] | None = None
        """Called, in any thread, when somebody asks while nobody lives here."""
        self.ownership: Ownership | None = None
        """Of its key in a fleet, from when the present life was about to begin."""
        self.room: Callable[[], Needs] | None = None
        """Says what has to end before somebody can live here, where there is no room for all; asked in any thread."""
        self.on_rest: Callable[[], None] | None = None
        """Called by a life that has nothing to do, or has been at it for a while."""
        self.fault: Callable[[Message, str], bool] | None = None
        """Says at a point of a call ("begun", "done") whether the actor is to die there; for tests."""
        self.draining: object | None = None
        """The drain that it is part of: nothing new begins, unless something asks that is part of it, too."""
        self.asked = 0
        """Which of all calls of actors in this process was the last one here."""

    def __repr__(self) -> str:
        return f"<actor {self.name!r}>"

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
        """Send a message and wait for its reply.

        Whoever is cancelled takes the message back if it has not begun, and otherwise waits until its handler, which
        is cancelled too, has ended.

        Args:
            handler: one of the actor's.
            args: for it.
            kwargs: for it.
            title: what to call it in errors.
            call: the tool call that it is; `None` to look for the one within which somebody asks.
            passes: says of an exception that it is none of the actor's, and does not break it.
            on_begin: called in the actor's thread when its handler begins.
            named_by: the arguments by which poison tells calls apart; `None` for all of them.

        Raises:
            MailboxFullError: if it may not wait.
            ActorGoneError: if nobody lives here, nor will.
            ActorDiedError: if the actor ends while its handler runs.
            DeadlockError: if it would wait for itself.
            PoisonousCallError: if it has ended the actor before, too often.
            BaseException: what the handler raises.
        """
        ahead = len(self.mailbox.waiting) + len(self.mailbox.running)
        watch = watched(self.child, self.key, handler.name, ahead, call)
        message = Message(
            self,
            handler,
            args,
            kwargs,
            loop=current_loop() if call is None else call.loop,
            title=title or handler.title,
            call_id=None if call is None else call.id,
            passes=passes,
            on_begin=on_begin if watch is None else watch.taking(on_begin),
            watch=watch,
            named_by=named_by,
        )
        return await (self._reply_to(message) if watch is None else self._watched_reply_to(message, watch))

    async def _watched_reply_to(self, message: Message, watch: WatchedAsk) -> Any:
        failed: BaseException | None = None
        try:
            return await self._reply_to(message)
        except BaseException as error:
            failed = error
            raise
        finally:
            watch.ended(failed)
            failed = None  # whose traceback leads here

    async def _reply_to(self, message: Message) -> Any:
        asker = message.asked_by
        if asker is not None:
            asker.asks.add(message)
        try:
            self._put(message)
            try:
                if asker is not None:
                    await refuse_circle(message)
                await message.wakeup.wait()
            except BaseException:
                await self._let_go(message)
                raise
            return message.outcome()
        finally:
            if asker is not None:
                asker.asks.discard(message)

    def _put(self, message: Message) -> None:
        if (refusal := self._refusal(message)) is not None:
            raise refusal
        refuse_standstill(message, self.name, self.home if self.life is None else self.life.loop)
        if self.draining is not None and not any(one.target.draining is self.draining for one in message.ancestors()):
            raise self.refused_by_drain(message)
        jumps = (message.handler.group is not None or message.handler.reentrant) and jumps_queue(message)
        dropped: Message | None = None
        with self.lock:
            if self.gone is not None:
                raise ActorGoneError(message.title, message.call_id, f"{self.name} is not there: {self.gone}")
            life = self.life
            self.asked = next(_calls)
            if jumps:
                self.urgent[message] = None
            else:
                fits, dropped = self.mailbox.put(message)
                if not fits:
                    raise self._full(message, "no more may")
        if dropped is not None:
            self.settle(dropped, None, self._full(dropped, "a newer call took its place"))
        if life is None:
            if self.activate is not None:
                self.activate(self)
            return  # it starts, or is restarted
        if not jumps:
            life.wake()
        elif not run_there(life.loop, life.begin_urgent):
            self.finish("its event loop has ended")

    def refused_by_drain(self, message: Message) -> Exception:
        """Return the error of a call that a drained actor does not begin."""
        return ActorGoneError(message.title, message.call_id, f"{self.name} is being drained")

    def _refusal(self, message: Message) -> PoisonousCallError | None:
        if not self.poison.times:
            return None
        times = self.poison.refuses(*message.named)
        return None if times is None else PoisonousCallError(message.title, message.call_id, times)

    def may_begin(self, message: Message, scope: Scope) -> bool:
        """Begin a message that was taken, in a scope; False if its caller has gone, or calls like it are refused."""
        refusal = self._refusal(message)
        with self.lock:
            if refusal is None and message.state == "running":
                message.scope = scope
                return True
        self.handled(message, None, refusal)
        return False

    def _full(self, message: Message, what: str) -> MailboxFullError:
        reason = f"{len(self.mailbox.waiting)} calls wait for {self.name}, and {what}"
        return MailboxFullError(message.title, message.call_id, reason)

    def withdraw(self, message: Message, error: BaseException | None = None) -> bool:
        """Have a message never begin, and its caller told an error, if it waits; False if it has begun."""
        with self.lock:
            if message.state != "waiting" and not message.is_taken_only:
                return False
            self.urgent.pop(message, None)
            self.owed.pop(message, None)
            self.mailbox.withdraw(message)
            message.end(None, error)
            return True

    async def _let_go(self, message: Message) -> None:
        """End a message whose caller does not wait any more, and wait until it has ended."""
        if self.withdraw(message):
            return
        with self.lock:
            if message.state == "deferred":
                self.settle(message, None, None)
            if message.state == "ended":
                return
            message.wakeup = message.loop.wakeup()
            message.cancel_asked = True
            life = self.life
        if life is None or not run_there(life.loop, lambda: _cancel(message)):
            self.settle(message, None, None)
        while not message.has_ended:
            try:
                with message.loop.shield(float("inf")):
                    await message.wakeup.wait()
            except message.loop.cancelled_class:
                # Said again, because a grace is over; the handler's is, too. What was started here ends here.
                message.wakeup = message.loop.wakeup()
        if message.error is not None:
            _log.warning("%s was cancelled, and failed: %s", message.title, type(message.error).__qualname__)

    def settle(self, message: Message, value: object, error: BaseException | None) -> bool:
        """End a message; False if it has ended."""
        with self.lock:
            if message.state == "ended":
                return False
            self.owed.pop(message, None)
            message.end(value, error)
            life = self.life
        if life is not None:
            life.wake()  # it may wait for the last one
        return True

    def watched_asks(self) -> tuple[int, ...]:
        """The numbers of those that wait and of which somebody is told."""
        with self.lock:
            waiting = [*self.mailbox.waiting, *self.urgent]
        return tuple(one.watch.number for one in waiting if one.watch is not None)

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs here, waits, or is owed."""
        return not (self.mailbox.running or self.mailbox.waiting or self.owed or self.urgent)

    def in_hand(self) -> tuple[Message, ...]:
        """The asks that have begun, or are about to, and have not ended."""
        with self.lock:
            return (*self.mailbox.running, *self.owed)

    def messages(self) -> list[Message]:
        """All that it is asked and has not answered."""
        with self.lock:
            return [*self.mailbox.running, *self.owed, *self.mailbox.waiting, *self.urgent]

    def rest(self) -> None:
        """Say that the life here has nothing to do, or has been at it for a while."""
        if self.on_rest is not None:
            self.on_rest()

    def next(self, *, only_awaited_here: bool = False) -> Message | None:
        """Begin the message whose turn it is, perhaps only if a handler of the actor waits for it; under the lock."""
        message = self.mailbox.next(only_awaited_here=only_awaited_here)
        if message is not None:
            message.state = "running"
        return message

    def next_urgent(self, *, only_awaited_here: bool) -> Message | None:
        """Begin a message that jumps the queue, perhaps only if a handler of the actor waits for it; under the lock."""
        found = (one for one in self.urgent if not only_awaited_here or is_awaited_here(one))
        message = next(found, None)
        if message is None:
            return None
        del self.urgent[message]
        message.state = "running"
        self.owed[message] = None
        return message

    def handled(self, message: Message, value: object, error: BaseException | None) -> None:
        """Note what a handler returned or raised."""
        with self.lock:
            self.mailbox.ended(message)
            if message.state == "ended":
                if error is not None and not isinstance(error, PoisonousCallError):
                    _log.warning("%s failed after its reply had been sent: %s", message.title, type(error).__qualname__)
                return
            if message.handler.deferred and error is None and not message.cancel_asked:
                message.state = "deferred"
                self.owed[message] = None
                return
            self.owed.pop(message, None)
            message.end(value, error)

    def die(self, reason: str) -> None:
        """Tell those whose calls had begun that nobody knows what came of them; the others wait for the next life."""
        with self.lock:
            self.life = None
            self._take_back()
            lost = [*self.mailbox.running, *self.owed]
            self.mailbox.running.clear()
            self.owed.clear()
        for message in lost:
            self.settle(message, None, ActorDiedError(message.title, message.call_id, reason))

    def put_back(self, message: Message) -> bool:
        """Have a message wait for the next life whose handler could not begin; False if nobody waits for it."""
        with self.lock:
            if message.cancel_asked or message.state != "running":
                return False
            message.scope = None
            return True

    def _take_back(self) -> None:
        """Have those wait again, in front, that were taken and had not begun."""
        for message in reversed([one for one in self.mailbox.running if one.is_taken_only]):
            message.state = "waiting"
            self.mailbox.take_back(message)
        for message in reversed([one for one in self.owed if one.is_taken_only]):
            message.state = "waiting"
            del self.owed[message]
            self.urgent[message] = None
            self.urgent.move_to_end(message, last=False)

    def finish(self, reason: str) -> None:
        """Let nobody live here any more, and tell those who wait for it."""
        self.die(f"{self.name} ended: {reason}")
        with self.lock:
            self.gone = reason
            waiting = [*self.mailbox.waiting, *self.urgent]
            self.mailbox.waiting.clear()
            self.urgent.clear()
        for message in waiting:
            error = ActorGoneError(message.title, message.call_id, f"{self.name} is not there: {reason}")
            self.settle(message, None, error)


def _cancel(message: Message) -> None:
    if message.scope is not None:
        message.scope.cancel()
