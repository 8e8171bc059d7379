"""One call of an actor, from the caller to the handler and back."""

from collections.abc import Callable, Mapping
from contextvars import Context, ContextVar, copy_context
from typing import Any, Literal, Protocol

from callboard._loops._deadline import DEFAULT_GRACE, current_timed
from callboard._loops._left_tasks import unmarked
from callboard._loops._protocol import EventLoop, Scope
from callboard.actors._actor import Handler
from callboard.actors._watch import WatchedAsk

State = Literal["waiting", "running", "deferred", "ended"]
"""`waiting`: it has not begun. `running`: its handler does. `deferred`: somebody has its reply and will send it."""


class Target(Protocol):
    """The actor that a message is for."""

    draining: object | None
    """The drain that it is part of, if it is."""

    def settle(self, message: "Message", value: object, error: BaseException | None) -> bool:
        """End a message; False if it has ended."""
        ...


class Message:
    """One call of an actor. Its state changes under the lock of its target only.

    Args:
        target: the actor.
        handler: what to run.
        args: for it.
        kwargs: for it.
        loop: of the caller.
        asked_by: the message whose handler asks, if one does.
        title: what to call it in errors.
        call_id: of the tool call that it is, for errors.
        on_begin: called in the actor's thread when its handler begins.
        passes: says of an exception that it is none of the actor's, and does not break it.
        named_by: the arguments by which calls are told apart, if not by all: those that a model wrote.
        watch: who is told of it, if anybody is.
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
        self.asked_by = None if around is None or around.has_ended else around
        self.is_beside = self.asked_by is not None and self.asked_by.runs_beside(loop.task())
        """Whether it is asked beside the task of the handler that asks, which may wait for that or not."""
        self.task: int | None = None
        """In which task its handler runs, if it does and is async."""
        self.asks: set[Message] = set()
        """What its handler waits for now; others read it from their threads."""
        self.context: Context = unmarked(copy_context())  # what a handler starts belongs to its actor
        self.state: State = "waiting"
        self.wakeup = loop.wakeup()
        self.scope: Scope | None = None
        """Around its handler, while that runs."""
        self.cancel_asked = False
        self.value: object = None
        self.error: BaseException | None = None
        self.fate: BaseException | None = None
        """What its caller is told if its handler ends cancelled, although the caller waits."""
        timed = current_timed.get()
        self.grace = DEFAULT_GRACE if timed is None else timed.grace

    def runs_beside(self, task: int) -> bool:
        """Whether a task is none that its handler runs in; a plain one asks by a task of its own, and waits."""
        return self.task not in (None, task)

    @property
    def named(self) -> tuple[str, tuple[Any, ...], Mapping[str, Any]]:
        """Its handler and the arguments that tell it from other calls; what is injected differs each time."""
        if self.named_by is None:
            return self.handler.name, self.args, self.kwargs
        return self.handler.name, (), self.named_by

    @property
    def is_taken_only(self) -> bool:
        """Whether it was taken out of the queue, and its handler has not begun."""
        return self.state == "running" and self.scope is None

    @property
    def has_ended(self) -> bool:
        """Whether it has; asked in a loop, while other threads end it."""
        return self.state == "ended"

    def ends_actor(self, scope: Scope) -> bool:
        """Whether its handler was cancelled, by the scope around it, and its actor is not to be trusted then."""
        return scope.cancel_called and self.handler.on_cancel == "restart"

    def settle(self, value: object, error: BaseException | None) -> bool:
        """End it; False if it has ended."""
        return self.target.settle(self, value, error)

    def end(self, value: object, error: BaseException | None) -> None:
        """Note what it came to, let go of the rest, and wake the caller."""
        self.state, self.value, self.error = "ended", value, error
        self.scope = self.asked_by = None
        self.args, self.kwargs, self.named_by = (), {}, None
        del self.context
        self.wakeup.set()

    def outcome(self) -> Any:
        """What it came to, for its caller; once."""
        error, self.error = self.error, None
        if error is None:
            return self.value
        try:
            raise error
        finally:
            del error  # its traceback leads here

    def ancestors(self) -> "list[Message]":
        """The messages whose handlers wait for this one, the nearest first.

        What a handler has left running asks for itself: behind a message that has ended, nobody waits.
        """
        found: list[Message] = []
        one = self.asked_by
        while one is not None and not one.has_ended:
            if one.state == "running":
                found.append(one)
            one = one.asked_by
        return found


current_message: ContextVar[Message | None] = ContextVar("callboard_message", default=None)
