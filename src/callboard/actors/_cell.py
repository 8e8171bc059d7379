"""Stable identity of an actor across its incarnations: name, mailbox and current incarnation."""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

from callboard._calls._call import SupervisedCall
from callboard._calls._observers import current_observers, log_failure
from callboard._loops._bridge import stands_still
from callboard._loops._current import current_loop, run_there
from callboard._loops._protocol import EventLoop, Scope
from callboard._records._events import ActorEvent, ActorPhase
from callboard._records._fleets import Ownership
from callboard.actors._actor import Actor, Handler
from callboard.actors._deadlocks import refuse_circle
from callboard.actors._mailbox import NOTHING, Mailbox, Message, Needs, Poison, observe_ask
from callboard.actors._snapshots import own_key
from callboard.exceptions import ActorDiedError, ActorGoneError, MailboxFullError, PoisonousCallError


class CurrentIncarnation(Protocol):
    """Protocol of `Incarnation`, one run of an actor. An import of `Incarnation` itself would be circular."""

    loop: EventLoop

    @property
    def takes_no_more(self) -> bool:
        """Return whether the incarnation is about to end, and takes only messages that its own handlers await."""
        ...

    def wake(self) -> None:
        """Wake the actor's task, so that it looks into the mailbox. Any thread may call this."""
        ...

    def start_urgent_handlers(self) -> None:
        """Start the handlers of messages that bypass the queue. Call this only in the thread of the event loop."""
        ...


_calls = count(1)  # shared by all cells: keyed actors are evicted in the order of their last call


@dataclass(eq=False, repr=False, slots=True, weakref_slot=True)  # keyed actors keep cells in a WeakValueDictionary
class Cell:
    """Stable identity of an actor, to which references point. Any thread may call its methods.

    `lock` guards the mailbox, the states of messages, `incarnation` and `gone_reason`. No task that holds it awaits.
    """

    child: str
    """Name of the actor in its child spec; keyed actors of one spec share this name."""
    kind: type[Actor]
    mailbox: Mailbox
    poison: Poison
    # Reentrant: garbage collection may run while the lock is held, and a dropped `Reply` settles its message then.
    lock: AbstractContextManager[object] = field(default_factory=threading.RLock)
    urgent: OrderedDict[Message, None] = field(default_factory=OrderedDict)
    """Messages that bypass the queue and have not begun."""
    unanswered: dict[Message, None] = field(default_factory=dict)
    """Begun messages that are not in `mailbox.running`: they bypassed the queue, or their reply is deferred."""
    incarnation: CurrentIncarnation | None = None
    """Incarnation that runs now, which sets this field under the lock. `None` during a restart, while messages wait."""
    gone_reason: str | None = "it has not been started"
    """Reason why the actor will not run again, for errors; `None` while it runs or may be started."""
    state_since: int = 0
    """Number that changes when an incarnation begins with a new state, or after a loss of state; 0 until then."""
    home: EventLoop | None = None
    """Event loop in which a call starts the actor; `None` if calls do not start it."""
    has_lost_state: bool = False
    """True if the last incarnation ended without saving its state."""
    key: Hashable = None
    """Key of a keyed actor; `None` for others."""
    activate: "Callable[[Cell], None] | None" = None
    """Callback that starts the actor if a call finds that the actor does not run; called in the caller's thread."""
    ownership: Ownership | None = None
    """Ownership of the actor's key in a fleet, set just before the current incarnation begins."""
    find_blockers: "Callable[[], tuple[Sequence[Cell], str]] | None" = None
    """Function for deadlock detection: returns the actors of which one must end before this actor starts, and why."""
    on_pause: Callable[[], object] = lambda: None
    """Callback for an incarnation that is idle, or has handled many messages without a pause."""
    fault: Callable[[Message, str], bool] | None = None
    """Test hook: returns whether the actor dies at a point of a call, "begun" or "done"."""
    draining: object | None = None
    """Drain in progress, in which only actors of the same drain may call this actor; `None` without a drain."""
    last_ask: int = 0
    """Number of the latest call to this actor; calls are numbered across all actors of the process."""

    @property
    def name(self) -> str:
        """Name of the actor with its key, for errors."""
        return self.child if self.key is None else f"{self.child}[{self.key!r}]"

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
        """Send a message and wait for the reply. A cancelled caller withdraws the message or cancels its handler."""
        # Read without the lock: an estimate for observers.
        ahead = len(self.mailbox.waiting) + len(self.mailbox.running)
        watch = observe_ask(self.child, own_key(self.key), handler.name, ahead, call)
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
        failed: BaseException | None = None
        try:
            return await self._reply_to(message)
        except BaseException as error:
            failed = error
            raise
        finally:
            if watch is not None:
                watch.report_end(failed)
            failed = None  # its traceback refers to this frame: a reference cycle

    async def _reply_to(self, message: Message) -> Any:
        """Put a message into the mailbox, wait for its outcome, and return the result; see `ask`."""
        asker = message.caller
        if asker is not None:
            # Before the search for a circle: when two calls close a circle at once, at least one search then finds it.
            asker.asks.add(message)
        try:
            self._put(message)
            try:
                if asker is not None:
                    await refuse_circle(message)
                await message.wakeup.wait()
            except BaseException:
                # Cancelled or refused: no handler may outlive its caller.
                await self._withdraw_or_cancel(message)
                raise
            return message.outcome()
        finally:
            if asker is not None:
                asker.asks.discard(message)

    def _put(self, message: Message) -> None:
        """Put a message into the mailbox and wake the actor; raise an error if the actor refuses the message."""
        if (refusal := self._refusal(message)) is not None:
            raise refusal
        home = self.home if self.incarnation is None else self.incarnation.loop
        if home is not None and home is not message.loop and stands_still(home):  # a deadlock
            raise RuntimeError(
                f"{message.title} would never begin: the event loop of {self.name} waits for the sync code that asks. "
                "Await it there (ainvoke), or run the sync code in a thread (anyio.to_thread.run_sync)"
            )
        if self.draining is not None and not any(
            caller.target.draining is self.draining for caller in message.ancestors()
        ):
            raise self.drain_refusal(message)
        # Cheap test first: most handlers have neither a group nor reentrancy.
        jumps = (message.handler.group is not None or message.handler.reentrant) and message.jumps_queue
        with self.lock:
            # `finish` sets `gone_reason` and clears the mailbox in one block. So no message is added afterwards.
            if self.gone_reason is not None:
                raise ActorGoneError(message.title, message.call_id, f"{self.name} is not there: {self.gone_reason}")
            # Read in the block that adds the message: a new incarnation either is woken below or finds the message.
            incarnation = self.incarnation
            self.last_ask = next(_calls)
            if jumps:
                self.urgent[message] = None
            elif not self.mailbox.put(message):
                reason = f"{len(self.mailbox.waiting)} calls wait for {self.name}, and no more may"
                raise MailboxFullError(message.title, message.call_id, reason)
        if incarnation is None:
            if self.activate is not None:
                self.activate(self)
            return  # the message waits for the next incarnation
        if not jumps:
            incarnation.wake()
        elif not run_there(incarnation.loop, incarnation.start_urgent_handlers):
            self.finish("its event loop has ended")

    def drain_refusal(self, message: Message) -> Exception:
        """Return the error for a call that the actor refuses because it is being drained."""
        return ActorGoneError(message.title, message.call_id, f"{self.name} is being drained")

    def _refusal(self, message: Message) -> PoisonousCallError | None:
        if not self.poison.times:
            return None
        times = self.poison.refuses(*message.identity)
        return None if times is None else PoisonousCallError(message.title, message.call_id, times)

    def may_begin(self, message: Message, scope: Scope) -> bool:
        """Mark a message as begun; return False if it was settled before, or its call crashed the actor too often."""
        # Checked again: the same call may have crashed the actor while this one waited.
        refusal = self._refusal(message)
        with self.lock:
            if refusal is None and message.state == "running":
                # From here on `withdraw` fails, and a cancelled caller cancels the handler instead.
                message.scope = scope
                return True
        self.record_result(message, None, refusal)
        return False

    def withdraw(self, message: Message, error: BaseException | None = None) -> bool:
        """Remove a message that has not begun, and settle it; return False if its handler has begun."""
        with self.lock:
            if message.state != "waiting" and not message.is_taken_only:
                return False
            self.urgent.pop(message, None)
            self.unanswered.pop(message, None)
            self.mailbox.withdraw(message)
            message.end(None, error)
            return True

    async def _withdraw_or_cancel(self, message: Message) -> None:
        """Withdraw the message of a cancelled caller, or cancel its handler and wait until the handler has ended."""
        if self.withdraw(message):
            return

        def cancel() -> None:
            if message.scope is not None:
                message.scope.cancel()

        with self.lock:
            if message.state == "deferred":
                self.settle(message, None, None)
            if message.state == "ended":
                return
            # A wakeup serves one wait, and that was cancelled. Set under the lock, so that `end()` finds the new one.
            message.wakeup = message.loop.wakeup()
            message.cancel_asked = True
            incarnation = self.incarnation
        if incarnation is None or not run_there(incarnation.loop, cancel):
            # The actor or its loop has ended: no handler runs, and nothing else would settle the message.
            self.settle(message, None, None)
        while not message.has_ended:
            try:
                with message.loop.shield(float("inf")):
                    await message.wakeup.wait()
            except message.loop.cancelled_class:
                # This task's grace is over, and it was cancelled again. The handler's scope has the same grace and
                # repeats its own. Go on waiting: the call must not return before its handler has ended.
                # No lock is needed: `end()` sets the state before the wakeup, and the loop checks the state next.
                message.wakeup = message.loop.wakeup()
        # The cancelled caller cannot receive the error.
        if message.error is not None:
            log_failure(logging.WARNING, f"{message.title} was cancelled, and failed", message.error, shows_text=True)

    def settle(self, message: Message, value: object, error: BaseException | None) -> bool:
        """Settle a message with a value or an error; return False if it was settled before."""
        with self.lock:
            if message.state == "ended":
                return False
            self.unanswered.pop(message, None)
            message.end(value, error)
            incarnation = self.incarnation
        if incarnation is not None:
            incarnation.wake()  # an incarnation that retires waits until no reply is owed
        return True

    def asks_with_observers(self) -> tuple[int, ...]:
        """Return the ids of the waiting calls that have observers."""
        with self.lock:
            waiting = [*self.mailbox.waiting, *self.urgent]
        return tuple(message.watch.number for message in waiting if message.watch is not None)

    def report_life(
        self, phase: ActorPhase, number: int, *, error: BaseException | None = None, asks: tuple[int, ...] | None = None
    ) -> None:
        """Report to observers an event of an incarnation, such as its start, with the ids of waiting calls (`asks`)."""
        observers = current_observers().actors
        if observers:
            event = ActorEvent(
                phase=phase,
                actor=self.child,
                time=current_loop().now(),
                number=number,
                key=own_key(self.key),
                error=error,
                asks=self.asks_with_observers() if asks is None else asks,
            )
            for observer in observers:
                observer(event)

    @property
    def owes_reply(self) -> bool:
        """Return whether a deferred handler has ended without its reply. The caller holds the lock."""
        # A list: garbage collection may drop a `Reply` at each step, and so change the dict.
        return any(message.state == "deferred" for message in list(self.unanswered))

    @property
    def is_idle(self) -> bool:
        """Return whether no message waits in the mailbox, runs, or waits for a deferred reply."""
        return not (self.mailbox.running or self.mailbox.waiting or self.unanswered or self.urgent)

    def messages_in_hand(self) -> tuple[Message, ...]:
        """Return the messages that were taken from the queue and have not ended."""
        with self.lock:
            return (*self.mailbox.running, *self.unanswered)

    def needs(self, message: Message) -> Needs:
        """Return the messages that must end before a message can begin or, if it has begun, before it can end."""
        # Any thread may call this.
        with self.lock:
            # A begun message needs the calls that its handler awaits, all of them.
            if message.state != "waiting":
                return Needs((tuple(message.asks),))
            if self.incarnation is not None and self.incarnation.takes_no_more and not message.is_awaited_here:
                # The message waits for the next incarnation, which begins when the current one has nothing in hand.
                return Needs((self.messages_in_hand(),))
            if self.incarnation is not None or self.find_blockers is None:
                return NOTHING if message in self.urgent else self.mailbox.needs(message)
        # Outside the lock: `messages_in_hand` takes the locks of other cells, and two threads could deadlock.
        blocking_cells, why = self.find_blockers()
        if not blocking_cells:
            return NOTHING
        # One alternative for each running actor: it is enough that one of them has nothing in hand.
        return Needs(tuple(blocking_cell.messages_in_hand() for blocking_cell in blocking_cells), why)

    def messages(self) -> list[Message]:
        """Return all messages that have not ended."""
        with self.lock:
            return [*self.mailbox.running, *self.unanswered, *self.mailbox.waiting, *self.urgent]

    def next(self, *, only_awaited_here: bool = False) -> Message | None:
        """Take and return the next message; `None` if none may begin. See `Mailbox.next`. The caller holds the lock."""
        message = self.mailbox.next(only_awaited_here=only_awaited_here)
        if message is not None:
            message.state = "running"
        return message

    def next_urgent(self, *, only_awaited_here: bool) -> Message | None:
        """Take and return the next queue-bypassing message; `None` if there is none. The caller holds the lock."""
        eligible = (urgent for urgent in self.urgent if not only_awaited_here or urgent.is_awaited_here)
        message = next(eligible, None)
        if message is None:
            return None
        del self.urgent[message]
        message.state = "running"
        self.unanswered[message] = None
        return message

    def record_result(self, message: Message, value: object, error: BaseException | None) -> None:
        """Settle a message with the result of its handler, unless the reply is deferred."""
        with self.lock:
            # Always: the handler may still run after its reply was sent, and blocks the mailbox until it ends.
            self.mailbox.release(message)
            if message.state == "ended":
                if error is not None and not isinstance(error, PoisonousCallError):
                    log_failure(
                        logging.WARNING, f"{message.title} failed after its reply had been sent", error, shows_text=True
                    )
                return
            if message.handler.deferred and error is None:
                # The mailbox moves on; `unanswered` keeps the message until its reply is sent or the actor dies.
                if not message.cancel_asked:
                    message.state = "deferred"
                    self.unanswered[message] = None
                    return
                # The caller of a drained call still waits, and `value` is no reply.
                error = message.kill_error
            self.unanswered.pop(message, None)
            message.end(value, error)

    def die(self, reason: str) -> None:
        """Settle begun calls with `ActorDiedError`; calls that have not begun wait for the next incarnation."""
        with self.lock:
            self.incarnation = None
            # First: a message that was taken, and whose handler has not begun, is safe to run in the next incarnation.
            # Reversed, because each one goes to the front of its queue: the order of arrival is kept.
            # A list: garbage collection may drop a `Reply` at each step, and so change the dict.
            for begun, queue in ((self.mailbox.running, self.mailbox.waiting), (self.unanswered, self.urgent)):
                for message in reversed([message for message in list(begun) if message.is_taken_only]):
                    message.state = "waiting"
                    del begun[message]
                    queue[message] = None
                    queue.move_to_end(message, last=False)
            lost = [*self.mailbox.running, *self.unanswered]
            self.mailbox.running.clear()
            self.unanswered.clear()
        for message in lost:
            self.settle(message, None, ActorDiedError(message.title, message.call_id, reason))

    def put_back(self, message: Message) -> bool:
        """Mark a message as not begun, for the next incarnation to run; return False if it was cancelled or settled."""
        with self.lock:
            if message.cancel_asked or message.state != "running":
                return False
            message.scope = None  # "taken only" again: `die`, which follows, puts it back into the mailbox
            return True

    def finish(self, reason: str) -> None:
        """End the actor for good, and settle all of its messages with an error."""
        self.die(f"{self.name} ended: {reason}")
        with self.lock:
            # In one block with clearing the mailbox: see `_put`.
            self.gone_reason = reason
            waiting = self.take_waiting()
        for message in waiting:
            error = ActorGoneError(message.title, message.call_id, f"{self.name} is not there: {reason}")
            self.settle(message, None, error)

    def take_waiting(self) -> list[Message]:
        """Remove and return all messages that have not begun. The caller holds the lock."""
        waiting = [*self.mailbox.waiting, *self.urgent]
        self.mailbox.waiting.clear()
        self.urgent.clear()
        return waiting
