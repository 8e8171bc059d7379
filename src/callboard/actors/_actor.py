"""`Actor` and `@handler`: what a user writes, checked when the class is made."""

import inspect
import sys
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial, wraps
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    cast,
    get_args,
    overload,
)

from callboard._suggestions import did_you_mean, suggests_keywords
from callboard._types import check_count
from callboard.actors._reply import Reply
from callboard.actors._resources import Resources

P = ParamSpec("P")
S = TypeVar("S", bound="Actor")
T = TypeVar("T")

CONTROL = "control"
"""The group whose handlers never wait behind work."""

OnCancel = Literal["go_on", "restart"]
"""What becomes of an actor when a call is cancelled in the middle: it goes on, or it is not to be trusted any more."""
_ON_CANCEL = get_args(OnCancel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """A method that others may call by message."""

    name: str
    owner: str
    """The name of the actor's class."""
    fn: Callable[..., Any]
    is_sync: bool
    group: str | None = None
    reentrant: bool = False
    deferred: bool = False
    on_cancel: OnCancel = "go_on"
    idempotent: bool = False

    @property
    def title(self) -> str:
        """What to call it in errors: "Notebook.append"."""
        return f"{self.owner}.{self.name}"

    def signature(self) -> inspect.Signature:
        """The signature as callers see it: without the actor, and without the reply."""
        found = inspect.signature(self.fn)
        return found.replace(parameters=list(found.parameters.values())[1 + self.deferred :])


@dataclass(frozen=True, slots=True)
class _Mark:
    """The options of a handler, on its function."""

    fn: Callable[..., Any]
    options: Mapping[str, Any]


@overload
def handler(
    fn: Callable[Concatenate[S, P], Awaitable[T]], /
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]: ...


@overload
def handler(fn: Callable[Concatenate[S, P], T], /) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]: ...


@overload
def handler(
    *,
    deferred: Literal[True],
    group: str | None = None,
    reentrant: bool = False,
    on_cancel: OnCancel = "go_on",
    idempotent: bool = False,
) -> Callable[
    [Callable[Concatenate[S, Reply[T], P], Awaitable[None]]],
    Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
]: ...


@overload
def handler(
    *,
    group: str | None = None,
    reentrant: bool = False,
    deferred: Literal[False] = False,
    on_cancel: OnCancel = "go_on",
    idempotent: bool = False,
) -> "_Marks": ...


@suggests_keywords
def handler(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    group: str | None = None,
    reentrant: bool = False,
    deferred: bool = False,
    on_cancel: OnCancel = "go_on",
    idempotent: bool = False,
) -> Any:
    """Mark a method of an actor as one that others may call.

    An async method runs in the actor's own task, a plain one in a thread of the actor's own. Without a group it
    runs alone: no other handler of the actor runs meanwhile.

    Args:
        fn: the method, where the decorator stands without options.
        group: handlers of one group run side by side; how many of them is said by the actor's `groups`. Those of
            the group "control" never wait behind work: for health checks and the like.
        reentrant: whether a call may run while the actor waits for a call of its own that led back to it; without
            it, that is a `DeadlockError`.
        deferred: whether the method takes a `Reply` as its first argument, which it may keep: the mailbox moves
            on when the method returns, and the caller waits until somebody sends the reply.
        on_cancel: "restart" if the actor cannot be trusted once this handler was cancelled in the middle.
        idempotent: whether running it twice does no harm, so that a tool call of it whose actor died runs again; a
            `CallPolicy` that says otherwise goes first.

    Raises:
        TypeError: for what is no method, or has no one result, such as an async generator.
        ValueError: for an unknown option.
    """
    options = {
        "group": group,
        "reentrant": reentrant,
        "deferred": deferred,
        "on_cancel": on_cancel,
        "idempotent": idempotent,
    }
    _check_options(options)
    if fn is None:
        return lambda method: _marked(method, options, sys._getframe(1).f_locals)
    return _marked(fn, options, sys._getframe(2).f_locals)


if TYPE_CHECKING:

    class _Marks(Protocol):
        """What `@handler(...)` with options does to a method."""

        @overload
        def __call__(
            self, fn: Callable[Concatenate[S, P], Awaitable[T]], /
        ) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]: ...

        @overload
        def __call__(
            self, fn: Callable[Concatenate[S, P], T], /
        ) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]: ...


def _check_options(options: Mapping[str, Any]) -> None:
    group, on_cancel = options["group"], options["on_cancel"]
    if group is not None and (not isinstance(group, str) or not group):
        raise TypeError(f"handler(group=...) is a name, such as 'reads'; got {group!r}")
    if on_cancel not in _ON_CANCEL:
        raise ValueError(f"handler(on_cancel=...) is one of {_ON_CANCEL}, got {on_cancel!r}")
    for name in ("reentrant", "deferred", "idempotent"):
        if not isinstance(options[name], bool):
            raise TypeError(f"handler({name}=...) is True or False, got {options[name]!r}")


def _marked(fn: Any, options: Mapping[str, Any], body: Mapping[str, Any]) -> Callable[..., Any]:
    """The method as the class has it: it runs where the actor lives, and nowhere else."""
    if not inspect.isfunction(fn):
        hint = f"; a group has a name: handler(group={fn!r})" if isinstance(fn, str) else ""
        raise TypeError(f"@handler marks a method of an actor, got {fn!r}{hint}")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise TypeError(f"{fn.__qualname__} is a generator; a handler returns one result, such as a list")
    _check_parameters(fn, is_deferred=options["deferred"])
    if (before := body.get(fn.__name__)) is not None and hasattr(before, "__callboard_handler__"):
        raise TypeError(f"{fn.__qualname__} is there twice: the second would hide the first; give it another name")

    @wraps(fn)
    async def call(self: Actor, *args: Any, **kwargs: Any) -> Any:
        if living.get() is not self:
            raise TypeError(
                f"{fn.__qualname__} was called on {self!r} itself, which only describes an actor and does not live. "
                f"Call it on a reference: async with running({type(self).__name__}(...)) as actor: await "
                f"actor.{fn.__name__}(...)"
            )
        if not is_sync:
            return await fn(self, *args, **kwargs)
        assert self._own_code is not None
        found = await self._own_code.in_thread(partial(fn, self, *args, **kwargs), fn.__qualname__)
        return await found if inspect.isawaitable(found) else found

    is_sync = not inspect.iscoroutinefunction(fn)
    call.__dict__["__callboard_handler__"] = _Mark(fn, MappingProxyType(dict(options)))
    if "__module__" in body and "__qualname__" in body and isinstance(body, dict):  # that of a class
        body.setdefault(_MARKED, {})[fn.__name__] = fn
    return call


_MARKED = "__callboard_marked__"
"""The functions that were marked in the body of a class, by name, whatever became of the names."""


_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _check_parameters(fn: Callable[..., Any], *, is_deferred: bool) -> None:
    kinds = [one.kind for one in inspect.signature(fn).parameters.values()]
    taken = sum(kind in _BY_POSITION for kind in kinds)
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return
    if not taken:
        raise TypeError(f"{fn.__qualname__} takes no `self`; a handler is a method of an actor")
    if is_deferred and taken < 2:
        raise TypeError(
            f"{fn.__qualname__} is deferred, and takes no reply: async def {fn.__name__}(self, reply: Reply[str], ...)"
        )


class _OwnCode(Protocol):
    """Where the code of one life runs."""

    async def in_thread(self, fn: Callable[[], object], name: str, /) -> object: ...


class Actor:
    """State that one task owns, and methods that others call by message.

    An object of a subclass describes an actor: it is made anew, with the same arguments, for each of its lives. So
    `__init__` notes what is needed, and `start` opens it. Those who call hold a reference, which has the methods
    marked `@handler` and stays the same when the actor is restarted.
    """

    groups: ClassVar[Mapping[str, int]] = {}
    """How many handlers of a group run side by side, by its name; of a group that is not here, any number."""
    fatal: ClassVar[tuple[type[BaseException], ...]] = ()
    """Exceptions of handlers that mean that the actor is broken; it is restarted. All others are their callers'."""

    key: Hashable = None
    """Which of several it is, where there is one for each key; set before `start`."""

    _handlers: ClassVar[Mapping[str, Handler]] = {}
    _made_with: tuple[tuple[Any, ...], dict[str, Any]]
    _resources: Resources | None = None
    _own_code: "_OwnCode | None" = None
    """Of one that lives."""

    if not TYPE_CHECKING:

        def __new__(cls, *args: Any, **kwargs: Any) -> Self:
            self = super().__new__(cls)
            object.__setattr__(self, "_made_with", (args, kwargs))
            return self

    def __repr__(self) -> str:
        # Without its arguments: there may be a password among them.
        return f"{type(self).__name__}(...)"

    def __init__(self) -> None:
        """Nothing; here, because `object` would take arguments without a word once there is a `__new__`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._handlers = MappingProxyType(_handlers_of(cls))
        _check_class(cls)

    def start(self) -> Awaitable[None] | None:
        """Open what the actor needs; in its own task (or its own thread, if this is a plain function)."""
        return None

    def stop(self) -> Awaitable[None] | None:
        """Close it; where `start` ran, after the last handler. Not called if `start` failed."""
        return None

    def snapshot(self) -> object:
        """What `restore` needs to go on in another life; plain data. To be overridden, async or not."""
        raise NotImplementedError

    def restore(self, snapshot: Any) -> object:
        """Go on from a snapshot; called after `start`. To be overridden, async or not."""
        raise NotImplementedError

    async def enter(self, manager: AbstractAsyncContextManager[T] | AbstractContextManager[T]) -> T:
        """Enter a context manager that is left when the actor ends, in the same task, also if `start` fails.

        To be called in `start`: what is entered within a handler could not be left in good order.

        Raises:
            RuntimeError: elsewhere.
        """
        if self._resources is None:
            raise RuntimeError(f"{type(self).__name__}.enter() is for `start`, while the actor starts")
        if not isinstance(cast("object", manager), (AbstractAsyncContextManager, AbstractContextManager)):
            name = type(self).__name__
            raise TypeError(f"{name}.enter() takes a context manager, such as open(path); got {manager!r}")
        return await self._resources.enter(manager)


living: ContextVar[Actor | None] = ContextVar("callboard_living_actor", default=None)
"""The actor whose code this is."""

_OWN = ("start", "stop", "snapshot", "restore", "enter")


def made_again(actor: S) -> S:
    """A new actor, made with the same arguments: each life begins with one that nobody has changed."""
    args, kwargs = actor._made_with
    return type(actor)(*args, **kwargs)


def keeps_snapshots(cls: type[Actor]) -> bool:
    """Whether its state can go from one life to the next."""
    return cls.snapshot is not Actor.snapshot and cls.restore is not Actor.restore


def _handlers_of(cls: type[Actor]) -> dict[str, Handler]:
    found: dict[str, Handler] = {}
    _check_hidden(cls)
    for base in reversed(cls.__mro__):
        for name, value in vars(base).items():
            fn = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
            mark = getattr(fn, "__callboard_handler__", None)
            if isinstance(mark, _Mark):
                _check_place(base, name, value)
                is_sync = not inspect.iscoroutinefunction(mark.fn)
                found[name] = Handler(name=name, owner=cls.__name__, fn=mark.fn, is_sync=is_sync, **mark.options)
            elif name in found:
                raise TypeError(f"{base.__name__}.{name} overrides a handler without being one; mark it with @handler")
    return found


def _check_hidden(cls: type[Actor]) -> None:
    """Raise if a handler has gone from the class, because something else has its name."""
    for name, fn in vars(cls).get(_MARKED, {}).items():
        there = vars(cls).get(name, fn)
        if there is not fn and getattr(there, "__callboard_handler__", None) is None:
            raise TypeError(
                f"{fn.__qualname__} is there twice: the second, which is no handler, would hide the first; give it "
                "another name, or mark it with @handler and remove the first"
            )


def _check_place(cls: type, name: str, value: object) -> None:
    """Raise where a handler could not be called as one."""
    title = f"{cls.__name__}.{name}"
    if isinstance(value, (staticmethod, classmethod)):
        raise TypeError(f"{title} is a {type(value).__name__}; a handler is a plain method, with `self`")
    if name.startswith("__") and name.endswith("__"):
        raise TypeError(f"{title} cannot be a handler, because its name is Python's own; give it another one")


def _check_own(cls: type[Actor]) -> None:
    """Raise unless what the actor calls itself is what it can call."""
    for own in _OWN:
        if own in cls._handlers:
            raise TypeError(f"{cls.__name__}.{own} is called by the actor itself; it cannot be a handler")
        fn = getattr(cls, own)
        if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise TypeError(
                f"{cls.__name__}.{own} is a generator, which would never run; what is opened and closed in one is "
                "entered in `start`: await self.enter(manager)"
            )


def _check_class(cls: type[Actor]) -> None:
    name = cls.__name__
    _check_own(cls)
    fatal: object = cls.fatal
    if not isinstance(fatal, tuple):
        raise TypeError(f"{name}.fatal is a tuple of exceptions, such as (ConnectionError,); got {fatal!r}")
    for one in fatal:
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            raise TypeError(f"{name}.fatal has exceptions, such as ConnectionError; got {one!r}")
    _check_groups(cls)
    for one, other in (("snapshot", "restore"), ("restore", "snapshot")):
        if getattr(cls, one) is not getattr(Actor, one) and getattr(cls, other) is getattr(Actor, other):
            raise TypeError(f"{name} has `{one}` and no `{other}`; a state that is to last needs both")


def _check_groups(cls: type[Actor]) -> None:
    name = cls.__name__
    if not isinstance(cls.groups, Mapping):
        raise TypeError(f"{name}.groups is a mapping, such as {{'reads': 8}}; got {cls.groups!r}")
    known = {one.group for one in cls._handlers.values() if one.group is not None}
    for group, count in cls.groups.items():
        check_count(f"{name}.groups[{group!r}]", count, least=1)
        if group == CONTROL:
            raise ValueError(f"{name}.groups: handlers of {CONTROL!r} never wait, so they have no number")
        if group not in known:
            raise ValueError(f"{name}.groups: no handler is of the group {group!r}{did_you_mean(group, known)}")
    for one in cls._handlers.values():
        if one.is_sync and (one.group is not None or one.deferred):
            raise TypeError(
                f"{one.title} is a plain function, and all of those run one by one in the actor's thread; write "
                "`async def` for one that has a group or a deferred reply"
            )
