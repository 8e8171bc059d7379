"""Message of an actor: one call, from its caller to the handler and back.

The crashes that a call causes are counted, so that an actor can refuse a call that crashes it again and again.
"""

from collections.abc import Callable, Mapping
from contextvars import Context, ContextVar, copy_context
from typing import Any, Literal, Protocol

from callboard._loops._deadline import DEFAULT_GRACE, current_timed
from callboard._loops._left_tasks import unmarked
from callboard._loops._protocol import EventLoop, Scope
from callboard._util._canonical import digest, place_of
from callboard.actors._actor import Handler
from callboard.actors._events import WatchedAsk

State = Literal["waiting", "running", "deferred", "ended"]
"""`waiting`: in the queue. `running`: taken, or its handler runs. `deferred`: the handler ended without a reply."""


class Target(Protocol):
    """Actor to which a message is sent."""

    draining: object | None
    """Drain in progress, if any."""

    def settle(self, message: "Message", value: object, error: BaseException | None) -> bool:
        """Settle a message; return False if it was settled before."""
        ...


class Message:
    """One call of an actor. Its state changes only under the lock of its target.

    Args:
        target: the actor.
        handler: the handler to run.
        args: positional arguments.
        kwargs: keyword arguments.
        loop: event loop of the caller.
        title: name of the call in errors.
        call_id: id of the tool call, for errors.
        passes: predicate; an exception for which it is true does not crash the actor.
        on_begin: called in the actor's thread when the handler begins.
        watch: reports the call to observers; `None` without observers.
        named_by: the arguments that identify the call for poison detection; `None` for all.
    """

    __slots__ = (
        "args",
        "asked_by",
        "asks",
        "call_id",
        "cancel_asked",
        "context",
        "error",
        "fate",
        "grace",
        "handler",
        "is_beside",
        "kwargs",
        "loop",
        "named_by",
        "on_begin",
        "passes",
        "scope",
        "state",
        "target",
        "task",
        "title",
        "value",
        "wakeup",
        "watch",
    )

    def __init__(
        self,
        target: Target,
        handler: Handler,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        loop: EventLoop,
        title: str,
        call_id: str | None,
        passes: Callable[[BaseException], bool] | None,
        on_begin: Callable[[], object] | None,
        watch: WatchedAsk | None,
        named_by: Mapping[str, Any] | None = None,
    ) -> None:
        self.target = target
        self.handler = handler
        self.args = args
        self.kwargs = kwargs
        self.loop = loop
        self.title = title
        self.call_id = call_id
        self.passes = passes
        self.on_begin = on_begin
        self.named_by = named_by
        self.watch = watch
        around = current_message.get()
        # A task that a handler has left running asks for itself: nothing waits behind a message that has ended.
        self.asked_by = None if around is None or around.has_ended else around
        self.is_beside = self.asked_by is not None and self.asked_by.runs_beside(loop.task())
        """Flag: asked by a task that the handler has started, and that the handler may or may not await."""
        self.task: int | None = None
        """Number of the task that runs the handler; `None` for a sync handler and before it begins."""
        self.asks: set[Message] = set()
        """Messages that the handler awaits now. Other threads read this to find deadlocks."""
        self.context: Context = unmarked(copy_context())  # tasks that the handler starts belong to its actor
        self.state: State = "waiting"
        # Replaced when the caller waits a second time: a wakeup serves one wait.
        self.wakeup = loop.wakeup()
        self.scope: Scope | None = None
        """Cancel scope of the handler; `None` before it begins."""
        self.cancel_asked = False
        self.value: object = None
        self.error: BaseException | None = None
        self.fate: BaseException | None = None
        """Error for the caller if a drain cancels the handler: the caller itself was not cancelled and still waits."""
        timed = current_timed.get()
        # Seconds of clean-up for the handler: the grace of the calling attempt.
        self.grace = DEFAULT_GRACE if timed is None else timed.grace

    def runs_beside(self, task: int) -> bool:
        """Return whether a task is not the one that runs the handler; false for sync handlers, which always wait."""
        return self.task not in (None, task)

    @property
    def named(self) -> tuple[str, tuple[Any, ...], Mapping[str, Any]]:
        """Handler name and identifying arguments. Injected arguments are left out: they differ in each call."""
        if self.named_by is None:
            return self.handler.name, self.args, self.kwargs
        return self.handler.name, (), self.named_by

    @property
    def is_taken_only(self) -> bool:
        """Return whether the message was taken from the queue, and its handler has not begun."""
        return self.state == "running" and self.scope is None

    @property
    def has_ended(self) -> bool:
        """Return whether the message was settled. Type checkers would narrow `state` in a loop that polls it."""
        return self.state == "ended"

    def ends_actor(self, scope: Scope) -> bool:
        """Return whether the handler was cancelled by its scope, and the actor must then be restarted."""
        return scope.cancel_called and self.handler.on_cancel == "restart"

    def settle(self, value: object, error: BaseException | None) -> bool:
        """Settle this message; return False if it was settled before."""
        return self.target.settle(self, value, error)

    def end(self, value: object, error: BaseException | None) -> None:
        """Store the outcome, drop all other references, and wake the caller. Call it under the target's lock."""
        self.state, self.value, self.error = "ended", value, error
        # Only the outcome is kept: arguments, context and chain may be large, and would form reference cycles.
        self.scope = self.asked_by = None
        self.args, self.kwargs, self.named_by = (), {}, None
        # Not repeatable: callers test the state first, in the same block of the lock.
        del self.context
        # Last: in another thread, the caller may read the outcome at once.
        self.wakeup.set()

    def outcome(self) -> Any:
        """Return the value or raise the error, once: the error is dropped here."""
        error, self.error = self.error, None
        if error is None:
            return self.value
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame: a reference cycle

    def ancestors(self) -> "list[Message]":
        """Return the messages with handlers that wait for this one, the nearest first.

        A message that has ended is no ancestor: nobody waits behind it, although a task that it started may still ask.
        """
        found: list[Message] = []
        one = self.asked_by
        while one is not None and not one.has_ended:
            if one.state == "running":  # a deferred one has no handler that waits, but its own asker may
                found.append(one)
            one = one.asked_by
        return found


current_message: ContextVar[Message | None] = ContextVar("callboard_message", default=None)
"""Message whose handler runs in the current context; tasks that the handler starts inherit it."""


_KEPT = 100
"""Maximum number of counted calls; the least recent is dropped first."""


class Poison:
    """Crashes of an actor by call. Arguments that are not JSON count by their type alone.

    Args:
        limit: number of crashes after which a call is refused.
    """

    __slots__ = ("_limit", "times")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.times: dict[str, int] = {}
        """Number of crashes, by identity of the call; ordered by the last crash."""

    def refuses(self, handler: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
        """Return the number of crashes by this call if it reaches the limit; `None` otherwise."""
        times = self.times.get(_key(handler, args, kwargs), 0)
        return times if times >= self._limit else None

    def has_ended(self, handler: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, bool]:
        """Count a crash by this call; return the call's identity, and whether it is refused from now on."""
        key = _key(handler, args, kwargs)
        # Removed and inserted again, so that the oldest entry is the first.
        times = self.times.pop(key, 0) + 1
        self.times[key] = times
        if len(self.times) > _KEPT:
            del self.times[next(iter(self.times))]
        return key, times >= self._limit


def _key(handler: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    named = [handler, [_digest(one) for one in args], {name: _digest(one) for name, one in kwargs.items()}]
    return digest(named)


def _digest(value: object) -> str:
    """Return a digest of one argument: of its JSON, or of its type if it has none.

    An argument without JSON must not exempt a call from the count: it could crash its actor for ever.
    """
    try:
        return digest(value)
    except Exception:  # the code of a model or of a property may raise anything
        return f"%{place_of(type(value))}"
