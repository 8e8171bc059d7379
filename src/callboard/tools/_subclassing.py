"""Overrides of a `ToolNode` subclass, called in sync and in async runs.

LangGraph calls one method of a pair in sync runs and the other one in async runs. Here, if only one of the pair is
overridden, both kinds of run call it, because the override may be what forbids a call. Overrides that would never be
called are refused when the class is created.
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

from callboard._calls._sync_middleware import SyncMiddleware
from callboard._langgraph import runtime_of, with_runtime
from callboard._loops._entry_mode import is_sync_entry
from callboard.tools._chain import Middleware, Named, Next
from callboard.tools._results import Output
from callboard.tools._vocabulary import ToolCallRequest, ToolRuntime

_ONE = "use middleware=[...], awrap_tool_call= or wrap_tool_call=, or override _arun_one or _run_one"
_FIXED = "give it to the constructor"

REFUSED = {
    "_parse_input": "override ainvoke or invoke and change the input there; for another key, messages_key=",
    "_combine_tool_outputs": "override ainvoke or invoke and change the result there",
    "_extract_state": "override _arun_one or _run_one, and pass a runtime with another state on",
    "_execute_tool_sync": _ONE,
    "_execute_tool_async": _ONE,
    "_validate_tool_call": f"{_ONE}; they see calls of tools that do not exist, too",
    "_normalize_tool_response": _ONE,
    "_validate_tool_command": _ONE,
    "_validate_tool_command_list": _ONE,
    "_inject_tool_args": "override inject_tool_args",
    "_inject_state": "override inject_tool_args",
    "_inject_store": "override inject_tool_args",
    "tools_by_name": _FIXED,
    "_tools_by_name": _FIXED,
    "_injected_args": _FIXED,
    "_handle_tool_errors": _FIXED,
    "_messages_key": _FIXED,
}
"""Methods and attributes of LangGraph's class that callboard never uses, with the replacement to suggest."""

_ARGUMENTS = {
    "_run_one": ("call", "input_type", "tool_runtime"),
    "_arun_one": ("call", "input_type", "tool_runtime"),
    "inject_tool_args": ("tool_call", "input", "store"),
}
_BY_NAME = {"_func": ("config", "runtime"), "_afunc": ("config", "runtime")}
"""Methods that are called with an input, and with these keyword arguments."""
_SYNC = ("_run_one", "inject_tool_args", "invoke", "_func")


def check_class(cls: type, base: type) -> None:
    """Raise TypeError for an override of a subclass that would never be called, or has a wrong signature."""
    found: dict[str, object] = {}
    for one in reversed(cls.__mro__[: cls.__mro__.index(base)]):
        found.update(vars(one))
    for name, instead in REFUSED.items():
        if name in found:
            raise TypeError(f"{cls.__qualname__}.{name} would never be called by callboard's ToolNode: {instead}")
    for name, arguments in _ARGUMENTS.items():
        _check_signature(cls, name, found.get(name), arguments)
    for name, by_name in _BY_NAME.items():
        _check_signature(cls, name, found.get(name), ("input",), by_name)
    for name in _SYNC:
        if inspect.iscoroutinefunction(found.get(name)):
            raise TypeError(f"{cls.__qualname__}.{name} is async; it has to be a plain function")


def _check_signature(
    cls: type, name: str, fn: object, arguments: tuple[str, ...], by_name: tuple[str, ...] = ()
) -> None:
    if not inspect.isfunction(fn):
        return
    try:
        inspect.signature(fn).bind(None, *arguments, **dict.fromkeys(by_name))
    except TypeError:
        raise TypeError(
            f"{cls.__qualname__}.{name}{inspect.signature(fn)} cannot be called as ToolNode calls it, with "
            f"(self, {', '.join((*arguments, *by_name))}), as langgraph-prebuilt 1.1 does"
        ) from None


class Unbuilt:
    """Descriptor in place of an attribute that `__init__` sets.

    Reading it raises an error for a missing `super().__init__`.
    """

    def __get__(self, node: object, owner: type) -> object:
        if node is None:
            return self
        raise AttributeError(f"{owner.__qualname__} is not ready: its __init__ has to call super().__init__(tools)")


# Original methods of the base class, recorded at import: a user's test may replace them by mocks later, and a
# replaced method counts as an override.
_written: dict[str, object] = {}


def remember(base: type) -> None:
    """Record the original methods of the base class, to recognise overrides in subclasses, instances and mocks."""
    _written.update({name: vars(base)[name] for name in (*_ARGUMENTS, *_BY_NAME, "invoke", "ainvoke")})


def overrides(node: object, name: str) -> bool:
    """Return whether a node's method differs from the original method of the base class."""
    return getattr(getattr(node, name), "__func__", None) is not _written[name]


def is_written(base: type, name: str) -> bool:
    """Return whether the base class still has its original method."""
    return vars(base)[name] is _written[name]


R = TypeVar("R")

Rest = Callable[[ToolCall, ToolRuntime[Any, Any]], Any]
"""Function that runs a call with a runtime; awaitable for the async method."""
Injecting = Callable[[ToolCall, Any, Any], ToolCall]
"""Function of a call, the state and the store that returns the call with injected arguments."""

_ENTRIES = frozenset(("invoke", "ainvoke"))
_AROUND_RUNS = ("ainvoke", "invoke", "_afunc", "_func")


def mark_entries(cls: type) -> None:
    """Wrap a subclass's own `invoke` and `ainvoke`, so that they note which node runs."""
    for name in _ENTRIES:
        if inspect.isfunction(own := vars(cls).get(name)):
            setattr(cls, name, _entered_by(own))


# The node whose `invoke` or `ainvoke` override is running: the other method's override is not called as well.
_entered: ContextVar[object] = ContextVar("callboard_entered_node", default=None)


def _entered_by(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return an override of `invoke` or `ainvoke` that sets `_entered` while it runs."""
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


def only_other_overridden(node: object, name: str) -> bool:
    """Return whether a call of `name` must go to the other entry, because only that one is overridden."""
    (own,) = _ENTRIES - {name}
    # Without the first test, an override that calls the other entry itself would recurse for ever.
    return _entered.get() is not node and overrides(node, name) and not overrides(node, own)


def is_plain(node: object, base: type) -> bool:
    """Return whether the node has no overrides around a run, and no override is running around this code."""
    own = type(node) is not base or not vars(node).keys().isdisjoint(_AROUND_RUNS)
    return not own and is_written(base, "_afunc") and _is_outside()


def _is_outside() -> bool:
    return _entered.get() is None and _place.get() is None and _back.get() is None


async def beyond_entries(run: Callable[[], Awaitable[R]]) -> R:
    """Run the inside of a node's entries. Code in it that calls the node again starts a new run, as from outside."""
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
    """Arguments of a node's entry."""

    input: Any
    config: Any
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _BaseMethod:
    """Continuation behind a base method, for an override that calls `super()`."""

    node: object
    rest: Callable[..., Any]


# Continuations of base methods. Each belongs to one node: an override may run another node, whose base methods must
# start runs of their own. `_place` is set by an agent that runs the calls itself, `_back` in the worker thread of a
# sync `invoke` override. The other four belong to `_afunc`, `_func`, `_arun_one` and `_run_one`.
_place: ContextVar[_BaseMethod | None] = ContextVar("callboard_node_place", default=None)
_back: ContextVar[_BaseMethod | None] = ContextVar("callboard_node_thread", default=None)
_whole: ContextVar[_BaseMethod | None] = ContextVar("callboard_node_run", default=None)
_sync_whole: ContextVar[_BaseMethod | None] = ContextVar("callboard_node_run_thread", default=None)
_one: ContextVar[_BaseMethod | None] = ContextVar("callboard_node_call", default=None)
_sync_one: ContextVar[_BaseMethod | None] = ContextVar("callboard_node_call_thread", default=None)


def _rest(place: ContextVar[_BaseMethod | None], node: object) -> Callable[..., Any] | None:
    found = place.get()
    return found.rest if found is not None and found.node is node else None


def agent_batch_of(node: object) -> Callable[[Entry], Awaitable[Any]] | None:
    """Return the continuation that an agent has set in place of the node's own batch; `None` if there is none."""
    return _rest(_place, node)


def loop_return_of(node: object) -> Callable[[Entry], Any] | None:
    """Return the continuation in the event loop, for the worker thread of a sync override; `None` outside of it."""
    return _rest(_back, node)


async def hear_sync_entry(node: Any, entry: Entry, inner: Callable[[Entry], Awaitable[Any]]) -> Any:
    """Run a node's own `invoke` in a worker thread; its `super().invoke()` continues in this event loop."""

    def in_thread(entry: Entry, back: Callable[[Entry], Any]) -> Any:
        token = _back.set(_BaseMethod(node, back))
        try:
            return node.invoke(entry.input, entry.config, **entry.options)
        finally:
            _back.reset(token)

    return await SyncMiddleware(_named(f"{type(node).__qualname__}.invoke", in_thread))(entry, inner)


def own_run(node: Any, inner: Callable[[Entry], Awaitable[Any]]) -> Callable[[Entry], Awaitable[Any]]:
    """Return the function that runs a batch: `inner`, within the node's override of `_func` or `_afunc`, if any."""
    has_sync, has_async = overrides(node, "_func"), overrides(node, "_afunc")
    if not (has_sync or has_async):
        return inner
    takes_sync = has_sync and (is_sync_entry() or not has_async)
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
    """Return the entry with a complete config that contains the runtime."""
    config = ensure_config(entry.config)
    options = dict(entry.options)
    runtime = options.pop("runtime", None)
    return Entry(entry.input, config if runtime is None else with_runtime(config, runtime), options)


def base_run(node: object, *, sync: bool) -> Callable[[Entry], Any] | None:
    """Return the continuation for the base class's `_func` or `_afunc`; `None` if no override is running.

    Raises RuntimeError if an override of the other method of the pair is running.
    """
    here, elsewhere = (_sync_whole, _whole) if sync else (_whole, _sync_whole)
    return _base_of(node, here, elsewhere, ("_func", "_afunc") if sync else ("_afunc", "_func"))


def _base_of(
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
    """Overrides of a node around a whole run, for an agent that runs the node's calls."""

    def __init__(self, node: Any) -> None:
        self.node = node
        self._sync = overrides(node, "invoke")
        own = next(name for name in _AROUND_RUNS if overrides(node, name))
        self._enters = own in _ENTRIES
        self.name = f"{type(node).__qualname__}.{own}"

    async def __call__(self, entry: Entry, inner: Callable[[Entry], Awaitable[Any]]) -> Any:
        """Run the node's override for the entry mode of the run (sync or async); `inner` continues the base method."""
        inner = own_run(self.node, inner)
        if not self._enters:
            return await beyond_entries(partial(inner, entry))
        if self._sync and is_sync_entry():
            return await hear_sync_entry(self.node, entry, inner)
        token = _place.set(_BaseMethod(self.node, inner))
        try:
            return await self.node.ainvoke(entry.input, entry.config, **entry.options)
        finally:
            _place.reset(token)


def entries_of(node: Any) -> Entries | None:
    """Return a node's overrides around a whole run; `None` if there are none."""
    return Entries(node) if any(overrides(node, name) for name in _AROUND_RUNS) else None


def one_call_middleware(node: Any) -> Callable[[str], Middleware] | None:
    """Return a function from an input's kind to the node's `_run_one` or `_arun_one` override, as middleware."""
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
        if has_sync and (is_sync_entry() or not has_async):
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
    """Return the function with a name for warnings about its thread."""

    def named(*args: Any) -> R:
        return fn(*args)

    named.__qualname__ = name
    return named


def _changed(request: ToolCallRequest, call: ToolCall, runtime: ToolRuntime[Any, Any]) -> ToolCallRequest:
    """Return the request with the call and runtime that an override passes on; the tool is looked up again later."""
    if not isinstance(runtime, ToolRuntime):
        raise TypeError(f"_run_one and _arun_one take a ToolRuntime as their third argument, got {runtime!r}")
    return ToolCallRequest(tool_call=call, tool=request.tool, state=runtime.state, runtime=runtime)


def base_call(node: object, *, sync: bool) -> Rest | None:
    """Return the continuation for the base class's `_run_one` or `_arun_one`; `None` if no override is running.

    Raises RuntimeError if an override of the other method of the pair is running.
    """
    here, elsewhere = (_sync_one, _one) if sync else (_one, _sync_one)
    return _base_of(node, here, elsewhere, ("_run_one", "_arun_one") if sync else ("_arun_one", "_run_one"))


async def untouched(message: ToolMessage, _: object) -> ToolMessage:
    """Return the error message unchanged; used if no middleware may change it."""
    return message


def own_injection(node: Any) -> Injecting | None:
    """Return the node's override of `inject_tool_args`; `None` if there is none."""
    if not overrides(node, "inject_tool_args"):
        return None
    name = f"{type(node).__qualname__}.inject_tool_args"

    def injecting(call: ToolCall, state: Any, store: Any) -> ToolCall:
        ready = node.inject_tool_args(call, state, store)
        if not isinstance(ready, dict) or not isinstance(ready.get("args"), dict):
            raise TypeError(f"{name} returned {ready!r} for call {call['id']!r}; it has to return the tool call")
        return cast("ToolCall", ready)

    return injecting
