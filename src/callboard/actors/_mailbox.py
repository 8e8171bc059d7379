"""Mailbox of an actor and its messages: which message begins next, and for which messages it waits.

A message is one call, from its caller to the handler and back. A mailbox never waits; its cell holds its lock around
each call. The crashes that a call causes are counted, so that an actor can refuse a call that crashes it again.
"""

from collections import OrderedDict
from collections.abc import Callable, Container, Hashable, Mapping
from contextlib import AbstractContextManager
from contextvars import Context, ContextVar, copy_context
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, Protocol, get_args

from callboard._calls._call import SupervisedCall, current_call
from callboard._calls._observers import current_observers, numbers
from callboard._loops._current import current_loop, run_there
from callboard._loops._deadline import DEFAULT_GRACE, active_time_limits
from callboard._loops._left_tasks import without_mark
from callboard._loops._protocol import EventLoop, Scope, Wakeup
from callboard._loops._watchdog import LoopHolder
from callboard._records._events import ActorObserver, AskEvent, AskPhase
from callboard._records._policies import check_count
from callboard._util._canonical import digest, place_of
from callboard.actors._actor import CONTROL, Handler

# Events for observers; without observers they cost next to nothing


class WatchedAsk:
    """Reporter that tells observers when an actor call begins, when its handler begins, and when the call ends.

    Made in the caller's task, before the handler's context is copied.
    """

    __slots__ = ("_began_at", "_begun", "_loop", "_observers")

    def __init__(self, observers: tuple[ActorObserver, ...], begun: AskEvent) -> None:
        self._observers = observers
        self._begun = begun
        self._loop = current_loop()
        self._began_at: float | None = None
        # In the constructor: a telemetry observer sets the span in the context here, and the handler must inherit it.
        self._tell(begun)

    @property
    def number(self) -> int:
        """Number of the actor call, unique in the process."""
        return self._begun.number

    def taking(self, on_begin: Callable[[], object] | None) -> Callable[[], None]:
        """Return a callback for the actor's thread that calls `on_begin`, and reports that the handler begins."""

        def note_taken() -> None:
            if on_begin is not None:
                on_begin()
            # Observers are called in the caller's loop only.
            run_there(self._loop, self._report_taken)

        return note_taken

    def _report_taken(self) -> None:
        if self._observers:  # empty after `ended`: this notice may arrive late from another thread
            self._began_at = self._loop.now()
            self._tell(self._now("taken", None))

    def report_end(self, error: BaseException | None) -> None:
        """Report the end of the actor call, in the caller's task."""
        self._tell(self._now("ended", error))
        self._observers = ()

    def _now(self, phase: AskPhase, error: BaseException | None) -> AskEvent:
        now = self._loop.now()
        waited = (now if self._began_at is None else self._began_at) - self._begun.time
        return self._begun._replace(phase=phase, time=now, waited=waited, error=error)

    def _tell(self, event: AskEvent) -> None:
        for observer in self._observers:
            observer(event)


def observe_ask(
    actor: str, key: Hashable, handler: str, ahead: int, call: SupervisedCall[Any] | None
) -> WatchedAsk | None:
    """Return a reporter for the events of an actor call that begins now; `None` if the call has no observers."""
    call = call or current_call()
    observers = current_observers().actors if call is None else call.actor_observers
    if not observers:
        return None
    begun = AskEvent(
        phase="begun",
        actor=actor,
        handler=handler,
        time=current_loop().now(),
        number=next(numbers),
        key=key,
        call=None if call is None else call.number,
        ahead=ahead,
    )
    return WatchedAsk(observers, begun)


# Messages


State = Literal["waiting", "running", "deferred", "ended"]
"""State of a message.

`waiting`: in the queue. `running`: taken, or its handler runs. `deferred`: the handler ended without a reply.
"""


class Target(Protocol):
    """Interface of the actor to which a message is sent; `Cell` implements it."""

    lock: AbstractContextManager[object]
    """Lock under which the states of messages change."""
    draining: object | None
    """Drain of the target that is in progress; `None` without a drain."""

    def settle(self, message: "Message", value: object, error: BaseException | None) -> bool:
        """Settle a message with a value or an error; return False if it was settled before."""
        ...

    def withdraw(self, message: "Message") -> bool:
        """Remove a message that has not begun, and settle it; return False if its handler has begun."""
        ...

    def needs(self, message: "Message") -> "Needs":
        """Return the messages that must end before a message can begin or, if it has begun, before it can end."""
        ...


@dataclass(eq=False, repr=False, slots=True)
class Message:
    """Message to an actor: one call of a handler. Its state changes only under the lock of the actor's `Cell`."""

    target: Target
    handler: Handler
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    _: KW_ONLY
    loop: EventLoop
    """Event loop of the caller."""
    title: str
    call_id: str | None
    passes: Callable[[BaseException], bool] | None
    """Predicate of an exception: `True` if the exception does not crash the actor."""
    on_begin: Callable[[], object] | None
    """Callback in the actor's thread for the moment when the handler begins."""
    watch: WatchedAsk | None
    named_by: Mapping[str, Any] | None = None
    """Arguments that identify the call as poison; `None` for all."""
    caller: "Message | None" = field(init=False)
    is_beside: bool = field(init=False)
    """True if a task that a handler has started makes this call; the handler may end without waiting for it."""
    task: int | None = field(default=None, init=False)
    """Number of the task that runs the handler; `None` for a sync handler and before it begins."""
    asks: "set[Message]" = field(default_factory=set["Message"], init=False)
    """Messages that the handler awaits now. Other threads read this to find deadlocks."""
    context: Context = field(init=False)
    state: State = field(default="waiting", init=False)
    wakeup: Wakeup = field(init=False)
    """Replaced when the caller waits a second time: a wakeup serves one wait."""
    scope: Scope | None = field(default=None, init=False)
    """Cancel scope of the handler; `None` before it begins."""
    cancel_asked: bool = field(default=False, init=False)
    value: object = field(default=None, init=False)
    error: BaseException | None = field(default=None, init=False)
    kill_error: BaseException | None = field(default=None, init=False)
    """Error for the caller if a drain cancels the handler. The caller itself was not cancelled and still waits."""
    is_served: bool = field(default=False, init=False)
    """True if it came from another process of a fleet; if it does not begin here, the next owner of the key gets it."""
    grace: float = field(init=False)
    """Seconds of clean-up for the handler: the grace of the calling attempt."""

    def __post_init__(self) -> None:
        caller = current_message.get()
        # A task that a handler has left running asks for itself: nothing waits behind a message that has ended.
        self.caller = None if caller is None or caller.has_ended else caller
        self.is_beside = self.caller is not None and self.caller.runs_beside(self.loop.task())
        self.context = without_mark(copy_context())  # tasks that the handler starts belong to its actor
        self.wakeup = self.loop.wakeup()
        limits = active_time_limits.get()
        self.grace = DEFAULT_GRACE if limits is None else limits.grace

    def runs_beside(self, task: int) -> bool:
        """Return whether `task` is not the task of the handler; False for a sync handler, which has no task."""
        return self.task not in (None, task)

    @property
    def identity(self) -> tuple[str, tuple[Any, ...], Mapping[str, Any]]:
        """Handler name, and arguments that identify the call; without injected arguments, which differ in each call."""
        if self.named_by is None:
            return self.handler.name, self.args, self.kwargs
        return self.handler.name, (), self.named_by

    @property
    def is_taken_only(self) -> bool:
        """Return whether the message was taken from the queue, and its handler has not begun."""
        return self.state == "running" and self.scope is None

    @property
    def has_ended(self) -> bool:
        """Return whether the message was settled."""
        # Loops test this property: type checkers would assume that `state` itself does not change during a loop.
        return self.state == "ended"

    @property
    def loop_holder(self) -> LoopHolder:
        """Name and description of the handler, for the warning that the handler blocks the event loop."""
        return LoopHolder(self.handler.title, f"the handler {self.handler.title}")

    def ends_actor(self, scope: Scope) -> bool:
        """Return whether the handler was cancelled by its scope, and its `on_cancel` option demands a restart."""
        return scope.cancel_called and self.handler.on_cancel == "restart"

    def settle(self, value: object, error: BaseException | None) -> bool:
        """Settle this message with a value or an error; return False if it was settled before."""
        return self.target.settle(self, value, error)

    def end(self, value: object, error: BaseException | None) -> None:
        """Store the outcome, drop the arguments, wake the caller. Call this only under the lock of the `Cell`."""
        self.state, self.value, self.error = "ended", value, error
        # Only the outcome is kept: arguments, context and chain may be large, and would form reference cycles.
        self.scope = self.caller = None
        self.args, self.kwargs, self.named_by = (), {}, None
        # Not repeatable: callers test the state first, in the same block of the lock.
        del self.context
        # Last: in another thread, the caller may read the outcome at once.
        self.wakeup.set()

    def outcome(self) -> Any:
        """Return the value of the call or raise its error; call this only once, because the error is dropped here."""
        error, self.error = self.error, None
        if error is None:
            return self.value
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame: a reference cycle

    @property
    def is_awaited_here(self) -> bool:
        """Return whether a running handler of the receiving actor awaits this message, directly or through others."""
        return any(caller.target is self.target for caller in self.ancestors())

    @property
    def jumps_queue(self) -> bool:
        """Return whether the message bypasses the queue: a control call, or a reentrant call that the actor awaits."""
        return self.handler.group == CONTROL or (self.handler.reentrant and self.is_awaited_here)

    def ancestors(self) -> "list[Message]":
        """Return the messages whose handlers wait for this message, directly or not, the nearest first."""
        ancestors: list[Message] = []
        caller = self.caller
        while caller is not None and not caller.has_ended:
            if caller.state == "running":  # a deferred one has no handler that waits, but its own asker may
                ancestors.append(caller)
            caller = caller.caller
        return ancestors


current_message: ContextVar[Message | None] = ContextVar("callboard_message", default=None)
"""Message whose handler runs in the current context; tasks that the handler starts inherit it."""


# Poison


_MAX_COUNTED = 100
"""Maximum number of calls whose crashes are counted; the call with the oldest crash is dropped first."""


class Poison:
    """Crashes of one actor since the last success, by call (handler and arguments).

    A non-JSON argument is identified by its type.
    """

    __slots__ = ("_limit", "times")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.times: dict[str, int] = {}
        """Number of crashes in a row, by identity of the call; ordered by the last crash."""

    def refuses(self, handler: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
        """Return the number of crashes by this call if the number has reached the limit; `None` below the limit."""
        times = self.times.get(_key(handler, args, kwargs), 0)
        return times if times >= self._limit else None

    def count_crash(self, handler: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, bool]:
        """Count a crash of a call; return the call's identity, and whether it is refused from now on."""
        key = _key(handler, args, kwargs)
        # Removed and inserted again, so that the oldest entry is the first.
        times = self.times.pop(key, 0) + 1
        self.times[key] = times
        if len(self.times) > _MAX_COUNTED:
            del self.times[next(iter(self.times))]
        return key, times >= self._limit

    def forget(self, handler: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Reset the count of a call that has succeeded: a connection that is lost now and then is no poison."""
        if self.times:
            self.times.pop(_key(handler, args, kwargs), None)


def _key(handler: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    return digest([handler, [_digest(arg) for arg in args], {name: _digest(arg) for name, arg in kwargs.items()}])


def _digest(value: object) -> str:
    """Return a digest of one argument: of its JSON, or of its type if JSON cannot express it."""
    # An argument without JSON must not exempt a call from the count: it could crash its actor for ever.
    try:
        return digest(value)
    except Exception:  # the code of a model or of a property may raise anything
        return f"%{place_of(type(value))}"


# What a message waits for


@dataclass(frozen=True, slots=True)
class Needs:
    """Sets of messages for which a message waits: it can go on as soon as all messages of one set have ended."""

    alternatives: tuple[tuple[Message, ...], ...]
    obstacle: str = ""
    """Text that says why the message's actor cannot start now, for errors; empty if it can."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages of all sets, in order."""
        return tuple(message for alternative in self.alternatives for message in alternative)

    def are_met(self, ended: Container[Message]) -> bool:
        """Return whether the message need not wait any more, given that the messages in `ended` have ended."""
        return any(all(message in ended for message in alternative) for alternative in self.alternatives)


NOTHING = Needs(((),))  # one alternative without messages: always met


# Mailbox


WhenFull = Literal["wait", "reject"]
"""Policy for a call that finds the mailbox full: queue the call all the same, or reject it."""
_WHEN_FULL = get_args(WhenFull)


class Mailbox:
    """FIFO mailbox of one actor, with groups of handlers that run side by side.

    Only the first message may begin, so that none is overtaken for ever. Messages of one group run side by side, all
    others alone. Messages that bypass the queue are kept by the cell: control calls, and reentrant calls that the actor
    itself awaits.
    """

    __slots__ = ("_group", "_groups", "_size", "_when_full", "running", "waiting")

    def __init__(self, size: int, when_full: WhenFull, groups: Mapping[str, int]) -> None:
        self._size = size
        self._when_full = when_full
        self._groups = groups
        self.waiting: OrderedDict[Message, None] = OrderedDict()  # cancelled callers withdraw from the middle
        self.running: dict[Message, None] = {}
        """Messages taken from the queue that have not ended; without messages that bypassed the queue."""
        # Group of the message taken last; valid only while `running` is not empty.
        self._group: str | None = None

    def put(self, message: Message) -> bool:
        """Add a message; return whether it was accepted."""
        if self._when_full == "reject" and len(self.waiting) >= self._size:
            return False
        self.waiting[message] = None
        return True

    def withdraw(self, message: Message) -> None:
        """Remove a message that has not begun, whether it is in the queue or was taken from the queue."""
        self.waiting.pop(message, None)
        self.running.pop(message, None)

    def next(self, *, only_awaited_here: bool = False) -> Message | None:
        """Take the first message of the queue if its handler may begin now, and return it; return `None` otherwise."""
        waiting = (entry for entry in self.waiting if not only_awaited_here or entry.is_awaited_here)
        if (message := next(waiting, None)) is None:
            return None
        group = message.handler.group
        # Only the head is considered: a later message of the running group must not overtake a waiting exclusive one.
        if self.running and (group is None or group != self._group or self._is_full(group)):
            return None
        del self.waiting[message]
        self.running[message] = None
        self._group = group
        return message

    def release(self, message: Message) -> None:
        """Remove a message whose handler has ended, so that the next message may begin."""
        self.running.pop(message, None)

    def needs(self, message: Message) -> Needs:
        """Return the messages that must end before a waiting message can begin."""
        running = tuple(self.running)
        for entry in self.waiting:
            if entry.handler.group is None or entry.handler.group != self._group:
                # This message, or one before it in the queue, runs alone: it begins when nothing runs.
                return Needs((running,))
            if entry is message:
                break
        # All messages up to this one join the running group, so any end that frees a place is enough.
        full = self._group is not None and self._is_full(self._group)
        return Needs(tuple((entry,) for entry in running)) if full else NOTHING

    def _is_full(self, group: str) -> bool:
        limit = self._groups.get(group)
        return limit is not None and len(self.running) >= limit


def check_mailbox(owner: str, size: object, when_full: object) -> None:
    """Raise an error if the size or the `when_full` policy of a mailbox is invalid; `owner` is named in the error."""
    check_count(f"{owner}: mailbox", size, least=1)
    if when_full not in _WHEN_FULL:
        raise ValueError(f"{owner}: when_full is one of {_WHEN_FULL}, got {when_full!r}")
