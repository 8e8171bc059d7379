"""The own methods of a `ToolNode`'s subclass, heard by both doors.

LangGraph calls one half of a pair by its sync door and the other by its async one. Here a half that stands
alone is heard by both, because it may be what forbids a call.
"""

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar, cast

from langchain_core.messages import ToolCall, ToolMessage
from langchain_core.runnables.config import ensure_config

from callboard._calls._crossing import SyncMiddleware
from callboard._langgraph import runtime_of, with_runtime
from callboard._loops._door import from_sync
from callboard.tools._call_output import Output
from callboard.tools._chain import Middleware, Named, Next
from callboard.tools._overrides import is_written, overrides
from callboard.tools._vocabulary import ToolCallRequest, ToolRuntime

R = TypeVar("R")

Rest = Callable[[ToolCall, ToolRuntime[Any, Any]], Any]
"""Runs a call with a runtime; awaitable in the async half."""
Injecting = Callable[[ToolCall, Any, Any], ToolCall]
"""Takes a call, the state and the store."""

_ENTRIES = frozenset(("invoke", "ainvoke"))
_AROUND_RUNS = ("ainvoke", "invoke", "_afunc", "_func")


def mark_entries(cls: type) -> None:
    """Have a subclass's own entries say that they are entered."""
    for name in _ENTRIES:
        if inspect.isfunction(own := vars(cls).get(name)):
            setattr(cls, name, _entered_by(own))


# The node whose `invoke` or `ainvoke` runs around us, so that the other half is not asked as well.
_entered: ContextVar[object] = ContextVar("callboard_entered_node", default=None)


def _entered_by(fn: Callable[..., Any]) -> Callable[..., Any]:
    """An override of an entry that says, while it runs, whose it is."""
    if inspect.iscoroutinefunction(fn):

        @functools.wraps(fn)
        async def aentry(self: object, *args: Any, **kwargs: Any) -> Any:
            token = _entered.set(self)
            try:
                return await fn(self, *args, **kwargs)
            finally:
                _entered.reset(token)

        return aentry

    @functools.wraps(fn)
    def entry(self: object, *args: Any, **kwargs: Any) -> Any:
        token = _entered.set(self)
        try:
            return fn(self, *args, **kwargs)
        finally:
            _entered.reset(token)

    return entry


def hears_other(node: object, name: str) -> bool:
    """Whether a call of one entry is to be heard by the other, which alone is overridden."""
    (own,) = _ENTRIES - {name}
    return _entered.get() is not node and overrides(node, name) and not overrides(node, own)


def is_plain(node: object, base: type) -> bool:
    """Whether nobody overrides what is around a run of the node, and no entry of another node runs around us."""
    own = type(node) is not base or not vars(node).keys().isdisjoint(_AROUND_RUNS)
    return not own and is_written(base, "_afunc") and _is_outside()


def _is_outside() -> bool:
    return _entered.get() is None and _place.get() is None and _back.get() is None


async def beyond_entries(run: Callable[[], Awaitable[R]]) -> R:
    """Run what is inside a node's entries; whatever calls the node from there comes from outside again."""
    if _is_outside():
        return await run()
    entered, place, back = _entered.set(None), _place.set(None), _back.set(None)
    try:
        return await run()
    finally:
        _entered.reset(entered)
        _place.reset(place)
        _back.reset(back)


@dataclass(frozen=True, slots=True)
class Entry:
    """What a node's entry is called with."""

    input: Any
    config: Any
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _BaseMethod:
    """Whom a base method belongs to that an override calls, and what it leads to."""

    node: object
    rest: Callable[..., Any]


# What the base class runs if its caller is not who starts a batch: an agent, or a thread with an override.
_place: ContextVar[_BaseMethod | None] = ContextVar("callboard_node_place", default=None)
_back: ContextVar[_BaseMethod | None] = ContextVar("callboard_node_thread", default=None)
_whole: ContextVar[_BaseMethod | None] = ContextVar("callboard_node_run", default=None)
_sync_whole: ContextVar[_BaseMethod | None] = ContextVar("callboard_node_run_thread", default=None)
_one: ContextVar[_BaseMethod | None] = ContextVar("callboard_node_call", default=None)
_sync_one: ContextVar[_BaseMethod | None] = ContextVar("callboard_node_call_thread", default=None)


def _rest(place: ContextVar[_BaseMethod | None], node: object) -> Callable[..., Any] | None:
    found = place.get()
    return found.rest if found is not None and found.node is node else None


def inner_of(node: object) -> Callable[[Entry], Awaitable[Any]] | None:
    """What the agent that runs a node has it do, instead of a batch of its own."""
    return _rest(_place, node)


def way_back(node: object) -> Callable[[Entry], Any] | None:
    """From the worker thread of a sync override back to the event loop, if that is where we are."""
    return _rest(_back, node)


async def hear_sync_entry(node: Any, entry: Entry, inner: Callable[[Entry], Awaitable[Any]]) -> Any:
    """Run a node's own `invoke` in a worker thread; what its base class does runs here."""

    def in_thread(entry: Entry, back: Callable[[Entry], Any]) -> Any:
        token = _back.set(_BaseMethod(node, back))
        try:
            return node.invoke(entry.input, entry.config, **entry.options)
        finally:
            _back.reset(token)

    return await SyncMiddleware(_named(f"{type(node).__qualname__}.invoke", in_thread))(entry, inner)


def own_run(node: Any, inner: Callable[[Entry], Awaitable[Any]]) -> Callable[[Entry], Awaitable[Any]]:
    """What runs a batch: `inner`, within the node's own `_func` or `_afunc`, if it has one."""
    has_sync, has_async = overrides(node, "_func"), overrides(node, "_afunc")
    if not (has_sync or has_async):
        return inner
    takes_sync = has_sync and (from_sync() or not has_async)
    in_thread: SyncMiddleware[Entry, Any] = SyncMiddleware(
        _named(f"{type(node).__qualname__}._func", partial(_whole_in_thread, node))
    )

    async def within(entry: Entry) -> Any:
        given = _with_runtime(entry)
        if takes_sync:
            return await in_thread(given, inner)
        token = _whole.set(_BaseMethod(node, lambda changed: inner(replace(changed, options=given.options))))
        try:
            return await node._afunc(given.input, config=given.config, runtime=runtime_of(given.config))
        finally:
            _whole.reset(token)

    return within


def _whole_in_thread(node: Any, given: Entry, call_next: Callable[[Entry], Any]) -> Any:
    token = _sync_whole.set(_BaseMethod(node, lambda changed: call_next(replace(changed, options=given.options))))
    try:
        return node._func(given.input, config=given.config, runtime=runtime_of(given.config))
    finally:
        _sync_whole.reset(token)


def _with_runtime(entry: Entry) -> Entry:
    """The same, with a complete config that has the runtime in it."""
    config = ensure_config(entry.config)
    options = dict(entry.options)
    runtime = options.pop("runtime", None)
    return Entry(entry.input, config if runtime is None else with_runtime(config, runtime), options)


def rest_of_run(node: object, *, sync: bool) -> Callable[[Entry], Any] | None:
    """What the base class's `_func` or `_afunc` leads to; `None` if no override of either runs around us.

    Raises:
        RuntimeError: if an override of the other half does.
    """
    here, elsewhere = (_sync_whole, _whole) if sync else (_whole, _sync_whole)
    return _rest_of(node, here, elsewhere, ("_func", "_afunc") if sync else ("_afunc", "_func"))


def _rest_of(
    node: object,
    here: ContextVar[_BaseMethod | None],
    elsewhere: ContextVar[_BaseMethod | None],
    names: tuple[str, str],
) -> Callable[..., Any] | None:
    found = _rest(here, node)
    if found is None and _rest(elsewhere, node) is not None:
        name, other = names
        raise RuntimeError(
            f"ToolNode.{name} cannot go on with what an override of {other} was given: call super().{other}(...) there"
        )
    return found


class Entries:
    """What a node has of its own around a run, for an agent that runs its calls."""

    def __init__(self, node: Any) -> None:
        self.node = node
        self._sync = overrides(node, "invoke")
        own = next(name for name in _AROUND_RUNS if overrides(node, name))
        self._enters = own in _ENTRIES
        self.name = f"{type(node).__qualname__}.{own}"

    async def __call__(self, entry: Entry, inner: Callable[[Entry], Awaitable[Any]]) -> Any:
        """Run the node by the door that the run was entered by.

        Args:
            entry: what the node is given.
            inner: what its base class leads to.
        """
        inner = own_run(self.node, inner)
        if not self._enters:
            return await beyond_entries(partial(inner, entry))
        if self._sync and from_sync():
            return await hear_sync_entry(self.node, entry, inner)
        token = _place.set(_BaseMethod(self.node, inner))
        try:
            return await self.node.ainvoke(entry.input, entry.config, **entry.options)
        finally:
            _place.reset(token)


def entries_of(node: Any) -> Entries | None:
    """What a node has of its own around a run; `None` if that is nothing."""
    return Entries(node) if any(overrides(node, name) for name in _AROUND_RUNS) else None


def one_call_middleware(node: Any) -> Callable[[str], Middleware] | None:
    """From the kind of an input to a middleware that is the node's own `_run_one` or `_arun_one`, if it has one."""
    has_sync, has_async = overrides(node, "_run_one"), overrides(node, "_arun_one")
    if not (has_sync or has_async):
        return None
    owner = type(node).__qualname__
    in_thread: SyncMiddleware[Any, Output] = SyncMiddleware(_named(f"{owner}._run_one", partial(_in_thread, node)))

    async def here(kind: str, request: ToolCallRequest, call_next: Next) -> Output:
        token = _one.set(_BaseMethod(node, lambda call, runtime: call_next(_changed(request, call, runtime))))
        try:
            return cast("Output", await node._arun_one(request.tool_call, kind, request.runtime))
        finally:
            _one.reset(token)

    async def there(kind: str, request: ToolCallRequest, call_next: Next) -> Output:
        return await in_thread((kind, request), call_next)

    def of_kind(kind: str) -> Middleware:
        if has_sync and (from_sync() or not has_async):
            return Named(f"{owner}._run_one", partial(there, kind))
        return Named(f"{owner}._arun_one", partial(here, kind))

    return of_kind


def _in_thread(node: Any, given: tuple[str, ToolCallRequest], call_next: Callable[[Any], Output]) -> Output:
    kind, request = given
    token = _sync_one.set(_BaseMethod(node, lambda call, runtime: call_next(_changed(request, call, runtime))))
    try:
        return cast("Output", node._run_one(request.tool_call, kind, request.runtime))
    finally:
        _sync_one.reset(token)


def _named(name: str, fn: Callable[..., R]) -> Callable[..., R]:
    """The function, with the name that warnings about its thread give it."""

    def named(*args: Any) -> R:
        return fn(*args)

    named.__qualname__ = name
    return named


def _changed(request: ToolCallRequest, call: ToolCall, runtime: ToolRuntime[Any, Any]) -> ToolCallRequest:
    """What an override passes on, as a request; whoever takes it looks for the tool."""
    if not isinstance(runtime, ToolRuntime):
        raise TypeError(f"_run_one and _arun_one take a ToolRuntime as their third argument, got {runtime!r}")
    return ToolCallRequest(tool_call=call, tool=request.tool, state=runtime.state, runtime=runtime)


def rest_of_call(node: object, *, sync: bool) -> Rest | None:
    """What the base class's `_run_one` or `_arun_one` leads to; `None` if no override of either runs around us.

    Raises:
        RuntimeError: if an override of the other half does.
    """
    here, elsewhere = (_sync_one, _one) if sync else (_one, _sync_one)
    return _rest_of(node, here, elsewhere, ("_run_one", "_arun_one") if sync else ("_arun_one", "_run_one"))


async def untouched(message: ToolMessage, _: object) -> ToolMessage:
    """The message that stands for an error, where no middleware is around the call or all of it is inside."""
    return message


def own_injection(node: Any) -> Injecting | None:
    """The node's own `inject_tool_args`, if it has one."""
    if not overrides(node, "inject_tool_args"):
        return None
    name = f"{type(node).__qualname__}.inject_tool_args"

    def injecting(call: ToolCall, state: Any, store: Any) -> ToolCall:
        ready = node.inject_tool_args(call, state, store)
        if not isinstance(ready, dict) or not isinstance(ready.get("args"), dict):
            raise TypeError(f"{name} returned {ready!r} for call {call['id']!r}; it has to return the tool call")
        return cast("ToolCall", ready)

    return injecting
