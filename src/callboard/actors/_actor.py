"""Definition of actors: `Actor`, `@handler` and `Reply`, checked when the class is created.

An actor enters context managers in `start`; they are left when its incarnation ends. A deferred handler sends its
`Reply` later, from any task or thread.
"""

import inspect
import sys
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial, wraps
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    cast,
    get_args,
    overload,
)

from callboard._records._policies import check_count
from callboard._util._suggestions import did_you_mean, suggests_keywords

T = TypeVar("T")


_Leave = Callable[..., Any]
"""Method `__aexit__` or `__exit__` of a context manager that was entered."""


class Resources:
    """Context managers that an actor has entered. They are exited in reverse order when the actor ends.

    No `AsyncExitStack`: it rewrites the contexts of errors. If the event loop ends with an error, the cancelled tasks
    share their cancellations; the rewritten contexts may then form a cycle, which it follows for ever.
    """

    __slots__ = ("_leaves",)

    def __init__(self) -> None:
        # Made at first use: an actor without resources needs less memory.
        self._leaves: list[tuple[_Leave, bool]] | None = None

    async def enter(self, manager: AbstractAsyncContextManager[T] | AbstractContextManager[T]) -> T:
        """Enter a context manager, which is exited when the actor ends."""
        if isinstance(manager, AbstractAsyncContextManager):
            leave: tuple[_Leave, bool] = (manager.__aexit__, True)
            resource = await manager.__aenter__()
        else:
            if not isinstance(cast("object", manager), AbstractContextManager):
                name = f"{type(manager).__module__}.{type(manager).__qualname__}"
                raise TypeError(f"'{name}' object does not support the context manager protocol")
            leave = (manager.__exit__, False)
            resource = manager.__enter__()
        self._leaves = [*(self._leaves or ()), leave]
        return resource

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        received = error
        exc_info: tuple[Any, Any, Any] | None = None
        while self._leaves:
            leave, is_async = self._leaves.pop()
            exc_info = (None, None, None) if error is None else (type(error), error, error.__traceback__)
            try:
                swallowed = await leave(*exc_info) if is_async else leave(*exc_info)
                error = None if swallowed else error
            except BaseException as raised:
                if raised.__context__ is None and not _is_in_contexts(raised, error):
                    raised.__context__ = error
                error = raised
        try:
            if error is not None and error is not received:
                raise error
            return error is None and received is not None
        finally:
            error = received = exc_info = None  # their tracebacks refer to this frame: a reference cycle


def _is_in_contexts(target: BaseException, error: BaseException | None) -> bool:
    """Return whether `target` is `error`, or is linked to `error` by `__context__`. The links may form a cycle."""
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        if error is target:
            return True
        visited.add(id(error))
        error = error.__context__
    return False


T_contra = TypeVar("T_contra", contravariant=True)


class Owed(Protocol[T_contra]):
    """Protocol of an actor call whose caller waits for a deferred reply."""

    title: str

    def settle(self, value: T_contra | None, error: BaseException | None) -> bool:
        """Settle the call with a value or an error; return False if it was settled before."""
        ...


class Reply(Generic[T]):
    """Object by which a deferred handler sends its reply to the caller: once, from any task or thread.

    If the reply is garbage-collected without being sent, the caller receives an error that says so.
    """

    __slots__ = ("_owed", "_title")

    def __init__(self, owed: Owed[T]) -> None:
        self._owed: Owed[T] | None = owed
        self._title = owed.title

    def send(self, value: T) -> bool:
        """Send the result; return False if the caller no longer waits.

        Raises RuntimeError if a result or an error was sent before.
        """
        return self._take_owed().settle(value, None)

    def fail(self, error: Exception) -> bool:
        """Raise an exception in the caller; return False if the caller no longer waits.

        Raises RuntimeError if a result or an error was sent before.
        """
        if not isinstance(error, Exception):
            raise TypeError(f"{self._title}: Reply.fail() takes an exception, such as ValueError('no'); got {error!r}")
        return self._take_owed().settle(None, error)

    def _take_owed(self) -> Owed[T]:
        owed, self._owed = self._owed, None
        if owed is None:
            raise RuntimeError(f"the reply of {self._title} has been sent already; a call has one result")
        return owed

    def __del__(self) -> None:
        # Runs in any thread, even while it holds the cell's lock, which is reentrant for this. The attribute is missing
        # if `__init__` failed.
        owed = getattr(self, "_owed", None)
        if owed is not None:
            owed.settle(None, RuntimeError(f"{owed.title} took its reply along and let go of it without sending it"))


P = ParamSpec("P")
S = TypeVar("S", bound="Actor")


CONTROL = "control"
"""Name of the group of handlers that never wait behind other calls."""

OnCancel = Literal["go_on", "restart"]
"""Effect of a cancelled call on its actor: continue, or restart because its state cannot be trusted."""
_ON_CANCEL = get_args(OnCancel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """Handler of an actor: a method that other code calls by sending a message."""

    name: str
    owner: str = ""
    """Name of the actor's class; empty until the class is created."""
    fn: Callable[..., Any]
    is_sync: bool
    group: str | None = None
    reentrant: bool = False
    deferred: bool = False
    on_cancel: OnCancel = "go_on"
    idempotent: bool = False

    @property
    def title(self) -> str:
        """Name of the handler for errors, such as "Notebook.append"."""
        return f"{self.owner}.{self.name}"

    def signature(self) -> inspect.Signature:
        """Return the signature of the handler for callers: without `self` and without the `Reply`."""
        full_signature = inspect.signature(self.fn)
        return full_signature.replace(parameters=list(full_signature.parameters.values())[1 + self.deferred :])


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
    [Callable[Concatenate[S, Reply[T], P], Awaitable[None]]], Callable[Concatenate[S, P], Coroutine[Any, Any, T]]
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
    """Mark a method of an actor as a handler, which other code calls through a reference.

    An async method runs in the actor's own task, a plain method in its own thread. Without a group it runs alone.

    Args:
        fn: the method, if the decorator is used without options.
        group: name of a group of handlers that run side by side, up to the number in `groups`. Handlers of the group
            "control" never wait behind other calls: use it for health checks.
        reentrant: `True` admits a call that led back to the actor while it waits; otherwise it raises `DeadlockError`.
        deferred: `True` if the method takes a `Reply` as its first argument, and may send it after it has returned.
        on_cancel: "restart" if the actor cannot be trusted after this handler was cancelled.
        idempotent: `True` if the handler may run twice: a tool call then runs again after its actor died.

    Raises:
        TypeError: if an option has the wrong type, or `fn` cannot be a handler.
        ValueError: if `on_cancel` is none of its two values.
    """
    flags: dict[str, Any] = {"reentrant": reentrant, "deferred": deferred, "idempotent": idempotent}
    if group is not None and (not isinstance(cast("object", group), str) or not group):
        raise TypeError(f"handler(group=...) is a name, such as 'reads'; got {group!r}")
    if on_cancel not in _ON_CANCEL:
        raise ValueError(f"handler(on_cancel=...) is one of {_ON_CANCEL}, got {on_cancel!r}")
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise TypeError(f"handler({name}=...) is True or False, got {flag!r}")
    make_handler = partial(Handler, group=group, on_cancel=on_cancel, **flags)
    # The frames are those of the class body, whose namespace keeps the marked functions.
    if fn is None:
        return lambda method: _mark_handler(method, make_handler, namespace=sys._getframe(1).f_locals)
    # One frame more: `suggests_keywords` wraps this function.
    return _mark_handler(fn, make_handler, namespace=sys._getframe(2).f_locals)


if TYPE_CHECKING:

    class _Marks(Protocol):
        """Type of the decorator that `@handler(...)` with options returns."""

        @overload
        def __call__(
            self, fn: Callable[Concatenate[S, P], Awaitable[T]], /
        ) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]: ...

        @overload
        def __call__(
            self, fn: Callable[Concatenate[S, P], T], /
        ) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]: ...


def _mark_handler(fn: Any, make_handler: Callable[..., Handler], namespace: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the wrapper that replaces a handler in its class. Only the actor's own code may call the wrapper."""
    if not inspect.isfunction(fn):
        hint = f"; a group has a name: handler(group={fn!r})" if isinstance(fn, str) else ""
        raise TypeError(f"@handler marks a method of an actor, got {fn!r}{hint}")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise TypeError(f"{fn.__qualname__} is a generator; a handler returns one result, such as a list")
    new_handler = make_handler(name=fn.__name__, fn=fn, is_sync=not inspect.iscoroutinefunction(fn))
    kinds = [parameter.kind for parameter in inspect.signature(fn).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        positional = sum(kind in _BY_POSITION for kind in kinds)
        if not positional:
            raise TypeError(f"{fn.__qualname__} takes no `self`; a handler is a method of an actor")
        if new_handler.deferred and positional < 2:
            raise TypeError(
                f"{fn.__qualname__} is deferred, and takes no reply: "
                f"async def {fn.__name__}(self, reply: Reply[str], ...)"
            )
    if (before := namespace.get(fn.__name__)) is not None and hasattr(before, "__callboard_handler__"):
        raise TypeError(f"{fn.__qualname__} is there twice: the second would hide the first; give it another name")

    @wraps(fn)
    async def call(self: Actor, *args: Any, **kwargs: Any) -> Any:
        if current_actor.get() is not self:
            raise TypeError(
                f"{fn.__qualname__} was called on {self!r} itself, which only describes an actor and does not live. "
                f"Call it on a reference: async with running({type(self).__name__}(...)) as actor: await "
                f"actor.{fn.__name__}(...)"
            )
        if not new_handler.is_sync:
            return await fn(self, *args, **kwargs)
        assert self._in_thread is not None
        # A sync handler that an async one awaits: the actor's state may be used in the actor's thread only.
        result = await self._in_thread(partial(fn, self, *args, **kwargs), fn.__qualname__)
        return await result if inspect.isawaitable(result) else result

    call.__dict__["__callboard_handler__"] = new_handler
    is_class_body = "__module__" in namespace and "__qualname__" in namespace
    if is_class_body and isinstance(namespace, dict):
        namespace.setdefault(_MARKED, {})[fn.__name__] = fn
    return call


_MARKED = "__callboard_marked__"
"""Key of a class namespace under which marked functions are stored by name, to find handlers that were overwritten."""


_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Actor:
    """Base class of actors: state owned by one task, with methods that other code calls by message.

    An instance of a subclass describes an actor. Each incarnation is a new instance, made with the same arguments. So
    `__init__` stores what is needed, and `start` opens it. Callers hold a reference, which has the methods marked
    `@handler`, and stays valid when the actor is restarted.
    """

    groups: ClassVar[Mapping[str, int]] = {}
    """Maximum number of handlers that run side by side, by group. A group that is missing is unlimited."""
    fatal: ClassVar[tuple[type[BaseException], ...]] = ()
    """Exceptions of handlers that crash the actor, so that it is restarted. All others go to the caller only."""

    key: Hashable = None
    """Key of a keyed actor, set before `start`; `None` for others."""

    _handlers: ClassVar[Mapping[str, Handler]] = {}
    _made_with: tuple[tuple[Any, ...], dict[str, Any]]
    _resources: Resources | None = None
    _in_thread: Callable[[Callable[[], object], str], Awaitable[object]] | None = None
    """Function that runs sync code in the actor's thread; its second argument names the code in errors."""

    if not TYPE_CHECKING:

        def __new__(cls, *args: Any, **kwargs: Any) -> Self:
            self = super().__new__(cls)
            object.__setattr__(self, "_made_with", (args, kwargs))
            return self

    def __repr__(self) -> str:
        # Without the arguments, which may contain a password.
        return f"{type(self).__name__}(...)"

    def __init__(self) -> None:
        """Accept no arguments. `__new__` accepts any, so without this method wrong arguments would raise no error."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._handlers = MappingProxyType(_handlers_of(cls))
        _check_class(cls)

    def start(self) -> Awaitable[None] | None:
        """Open the actor's resources. An async `start` runs in the actor's task, a sync one in the actor's thread."""
        return None

    def stop(self) -> Awaitable[None] | None:
        """Close the actor's resources after the last handler. Not called if `start` has failed.

        An async `stop` runs in the actor's task, a sync one in the actor's thread.
        """
        return None

    def snapshot(self) -> object:
        """Return the state for `restore` as plain data. Override it, async or not, together with `restore`."""
        raise NotImplementedError

    def restore(self, snapshot: Any) -> object:
        """Restore the state from a snapshot, after `start`. Override it, async or not, together with `snapshot`."""
        raise NotImplementedError

    async def enter(self, manager: AbstractAsyncContextManager[T] | AbstractContextManager[T]) -> T:
        """Enter a context manager, and leave it when the actor ends, in the same task, even if `start` fails.

        Call it in `start`: elsewhere it raises RuntimeError, because the manager could not be left in the right order.
        """
        if self._resources is None:
            raise RuntimeError(f"{type(self).__name__}.enter() is for `start`, while the actor starts")
        if not isinstance(cast("object", manager), (AbstractAsyncContextManager, AbstractContextManager)):
            name = type(self).__name__
            raise TypeError(f"{name}.enter() takes a context manager, such as open(path); got {manager!r}")
        return await self._resources.enter(manager)


current_actor: ContextVar[Actor | None] = ContextVar("callboard_living_actor", default=None)
"""Actor whose code runs in the current context; `None` outside of actors."""

_OWN_METHODS = ("start", "stop", "snapshot", "restore", "enter")


def instance_of(actor: S) -> S:
    """Return a new instance of the actor's class, made with the same arguments and without the state of `actor`."""
    args, kwargs = actor._made_with
    return type(actor)(*args, **kwargs)


def keeps_snapshots(cls: type[Actor]) -> bool:
    """Return whether an actor class overrides both `snapshot` and `restore`."""
    return cls.snapshot is not Actor.snapshot and cls.restore is not Actor.restore


def _handlers_of(cls: type[Actor]) -> dict[str, Handler]:
    handlers: dict[str, Handler] = {}
    for name, fn in vars(cls).get(_MARKED, {}).items():
        attribute = vars(cls).get(name, fn)
        if attribute is not fn and getattr(attribute, "__callboard_handler__", None) is None:
            raise TypeError(
                f"{fn.__qualname__} is there twice: the second, which is no handler, would hide the first; give it "
                "another name, or mark it with @handler and remove the first"
            )
    # Base classes first, so that an override replaces the handler of its base.
    for base in reversed(cls.__mro__):
        for name, value in vars(base).items():
            fn = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
            mark = getattr(fn, "__callboard_handler__", None)
            if isinstance(mark, Handler):
                title = f"{base.__name__}.{name}"
                if isinstance(value, (staticmethod, classmethod)):
                    raise TypeError(f"{title} is a {type(value).__name__}; a handler is a plain method, with `self`")
                if name.startswith("__") and name.endswith("__"):
                    raise TypeError(
                        f"{title} cannot be a handler, because its name is Python's own; give it another one"
                    )
                handlers[name] = replace(mark, name=name, owner=cls.__name__)
            elif name in handlers:
                raise TypeError(f"{base.__name__}.{name} overrides a handler without being one; mark it with @handler")
    return handlers


def _check_class(cls: type[Actor]) -> None:
    name = cls.__name__
    for method_name in _OWN_METHODS:
        if method_name in cls._handlers:
            raise TypeError(f"{name}.{method_name} is called by the actor itself; it cannot be a handler")
        fn = getattr(cls, method_name)
        if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise TypeError(
                f"{name}.{method_name} is a generator, which would never run; what is opened and closed in one is "
                "entered in `start`: await self.enter(manager)"
            )
    fatal: object = cls.fatal
    if not isinstance(fatal, tuple):
        raise TypeError(f"{name}.fatal is a tuple of exceptions, such as (ConnectionError,); got {fatal!r}")
    for exception in fatal:
        if not (isinstance(exception, type) and issubclass(exception, BaseException)):
            raise TypeError(f"{name}.fatal has exceptions, such as ConnectionError; got {exception!r}")
    if not isinstance(cls.groups, Mapping):
        raise TypeError(f"{name}.groups is a mapping, such as {{'reads': 8}}; got {cls.groups!r}")
    groups = {handler.group for handler in cls._handlers.values() if handler.group is not None}
    for group, count in cls.groups.items():
        check_count(f"{name}.groups[{group!r}]", count, least=1)
        if group == CONTROL:
            raise ValueError(f"{name}.groups: handlers of {CONTROL!r} never wait, so they have no number")
        if group not in groups:
            raise ValueError(f"{name}.groups: no handler is of the group {group!r}{did_you_mean(group, groups)}")
    for handler in cls._handlers.values():
        if handler.is_sync and (handler.group is not None or handler.deferred):
            raise TypeError(
                f"{handler.title} is a plain function, and all of those run one by one in the actor's thread; write "
                "`async def` for one that has a group or a deferred reply"
            )
    overridden = [method for method in ("snapshot", "restore") if getattr(cls, method) is not getattr(Actor, method)]
    for method, counterpart in (("snapshot", "restore"), ("restore", "snapshot")):
        if method in overridden and counterpart not in overridden:
            raise TypeError(f"{name} has `{method}` and no `{counterpart}`; a state that is to last needs both")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifespan:
    """Limits of an actor's incarnation (one run of the actor): times in seconds, and the maximum number of calls."""

    start: float = 30.0
    stop: float = 10.0
    max_age: float | None = None
    """Age in seconds at which an incarnation is replaced, once its actor is idle."""
    max_calls: int | None = None
