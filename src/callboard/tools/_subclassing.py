"""Support for users' subclasses of `ToolNode` that override LangGraph's methods, such as `_func` or `_run_one`.

A subclass may override `invoke` and `_func`, which run all calls of an input, and `_run_one`, which runs one call, or
their async counterparts `ainvoke`, `_afunc` and `_arun_one`. callboard runs calls with code of its own; this module
calls the overrides around that code, and lets their `super()` calls continue it.

LangGraph calls one method of a pair in sync runs and the other one in async runs. Here, if only one of the pair is
overridden, both kinds of run call it, because the override may be what forbids a call. Overrides that would never be
called are refused when the class is created.
"""

import functools
import inspect
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from anyio import to_thread
from langchain_core.messages import ToolCall
from langchain_core.runnables.config import ensure_config

from callboard._calls._sync_middleware import SyncMiddleware
from callboard._langgraph import runtime_of, with_runtime
from callboard._langgraph._vocabulary import ToolCallRequest, ToolRuntime
from callboard._loops._bridge import run_from_sync
from callboard._loops._entry_mode import entered_from, entry_mode, is_sync_entry
from callboard.tools._chain import Link, named

_ONE = "use middleware=[...], awrap_tool_call= or wrap_tool_call=, or override _arun_one or _run_one"
_RUNTIME = "override _arun_one or _run_one, and pass a runtime with another state or store on"
_FIXED = "give it to the constructor"

REFUSED = {
    "_parse_input": "override ainvoke or invoke and change the input there; for another key, messages_key=",
    "_combine_tool_outputs": "override ainvoke or invoke and change the result there",
    "_extract_state": _RUNTIME,
    "_execute_tool_sync": _ONE,
    "_execute_tool_async": _ONE,
    "_validate_tool_call": f"{_ONE}; they see calls of tools that do not exist, too",
    "_normalize_tool_response": _ONE,
    "_validate_tool_command": _ONE,
    "_validate_tool_command_list": _ONE,
    "inject_tool_args": _RUNTIME,
    "_inject_tool_args": _RUNTIME,
    "_inject_state": _RUNTIME,
    "_inject_store": _RUNTIME,
    "tools_by_name": _FIXED,
    "_tools_by_name": _FIXED,
    "_injected_args": _FIXED,
    "_handle_tool_errors": _FIXED,
    "_messages_key": _FIXED,
}
"""Methods and attributes of LangGraph's `ToolNode` that callboard never uses, each with a hint what to use instead."""

_ARGUMENTS = {
    "_run_one": ("call", "input_type", "tool_runtime"),
    "_arun_one": ("call", "input_type", "tool_runtime"),
}
_BY_NAME = {"_func": ("config", "runtime"), "_afunc": ("config", "runtime")}
"""Names of the keyword arguments with which `ToolNode` calls `_func` and `_afunc`, besides the input."""
_SYNC = ("_run_one", "invoke", "_func")


def check_class(cls: type, base: type) -> None:
    """Raise TypeError if a subclass of `ToolNode` has an override that is never called, or a wrong signature."""
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
    """Descriptor of an attribute that `__init__` sets; reading it earlier raises an error about `super().__init__`."""

    def __get__(self, node: object, owner: type) -> object:
        if node is None:
            return self
        raise AttributeError(f"{owner.__qualname__} is not ready: its __init__ has to call super().__init__(tools)")


# Original methods of the base class, recorded at import: a user's test may replace them by mocks later, and a
# replaced method counts as an override.
_written: dict[str, object] = {}


def remember(base: type) -> None:
    """Store the original methods of `ToolNode`, with which `overrides()` recognises overridden and mocked methods."""
    _written.update({name: vars(base)[name] for name in (*_ARGUMENTS, *_BY_NAME, "invoke", "ainvoke")})


def overrides(node: object, name: str) -> bool:
    """Return whether a node's method `name` was overridden by a subclass of `ToolNode`, or replaced by a mock."""
    return getattr(getattr(node, name), "__func__", None) is not _written[name]


INVOKES, RUNS, CALLS = ("invoke", "ainvoke"), ("_func", "_afunc"), ("_run_one", "_arun_one")
"""Names of sync and async methods that a subclass may override: two pairs for a whole run, one for a single call."""
_AROUND_RUNS = ("ainvoke", "invoke", "_afunc", "_func")


class _Running(NamedTuple):
    """Override of a `ToolNode` method that is running now, and the function that its `super()` call must run."""

    node: object
    method: str
    rest: Callable[..., Any] | None
    """Function with which the `super()` call continues the run or call, sync or async as the method is; `None` if the
    `super()` call must start a new run."""
    outer: "_Running | None"


# The innermost override of the current task or thread. A base method looks for an override of its own pair and node:
# an override may run another node, whose base methods must start runs of their own.
_running: ContextVar[_Running | None] = ContextVar("callboard_running_override", default=None)


@contextmanager
def _as_running(node: object, method: str, rest: Callable[..., Any] | None) -> Generator[None]:
    token = _running.set(_Running(node, method, rest, _running.get()))
    try:
        yield
    finally:
        _running.reset(token)


def _running_of(node: object, pair: tuple[str, str]) -> _Running | None:
    running = _running.get()
    while running is not None and (running.node is not node or running.method not in pair):
        running = running.outer
    return running


async def _beyond(inner: Callable[[Any], Awaitable[Any]], given: Any) -> Any:
    """Await `inner(given)` outside of the running override, so that a tool may start a new run of the node."""
    token = _running.set(None)
    try:
        return await inner(given)
    finally:
        _running.reset(token)


def is_plain(node: object, base: type) -> bool:
    """Return whether an awaited run needs no search for overrides, and no other entry mode than the present one."""
    if type(node) is not base or not vars(node).keys().isdisjoint(_AROUND_RUNS):
        return False
    # The entry mode is read here, without its function: this is asked for each run.
    return vars(base)["_afunc"] is _written["_afunc"] and _running.get() is None and entry_mode.get() == "async"


def go_on(node: object, method: str, alone: Callable[..., Awaitable[Any]], *given: Any) -> Any:
    """Continue the run of the override that called `super()._func` or `_run_one`; if none did, call `alone`."""
    if (rest := _continuation(node, method)) is not None:
        return rest(*given)
    with entered_from("sync"):
        return run_from_sync(partial(alone, *given))


async def go_on_async(node: object, method: str, alone: Callable[..., Awaitable[Any]], *given: Any) -> Any:
    """Continue the run of the override that called `super()._afunc` or `_arun_one`; if none did, call `alone`."""
    if (rest := _continuation(node, method)) is not None:
        return await rest(*given)
    with entered_from("async"):
        return await alone(*given)


def _continuation(node: object, method: str) -> Callable[..., Any] | None:
    running = _running_of(node, RUNS if method in RUNS else CALLS)
    if running is not None and running.method != method:
        raise RuntimeError(
            f"ToolNode.{method} cannot go on with what an override of {running.method} was given: call "
            f"super().{running.method}(...) there"
        )
    return running and running.rest


class _Override:
    """Async middleware function that calls a subclass's override of a sync method or of its async counterpart.

    `arguments` makes the arguments of the override from the input of the middleware. `changed` makes the input for the
    code behind the middleware from the original input and the arguments of the override's `super()` call.
    """

    def __init__(
        self,
        node: Any,
        pair: tuple[str, str],
        arguments: Callable[[Any], tuple[tuple[Any, ...], Mapping[str, Any]]],
        changed: Callable[..., Any],
    ) -> None:
        self._node, self._pair = node, pair
        self._arguments, self._changed = arguments, changed
        self._has_sync, self._has_async = (overrides(node, name) for name in pair)

        def in_thread(given: Any, call_next: Callable[[Any], Any]) -> Any:
            args, options = arguments(given)
            with _as_running(node, pair[0], lambda *passed: call_next(changed(given, *passed))):
                return getattr(node, pair[0])(*args, **options)

        in_thread.__qualname__ = f"{type(node).__qualname__}.{pair[0]}"  # for warnings about its thread
        self._in_thread: SyncMiddleware[Any, Any] = SyncMiddleware(in_thread)

    def __bool__(self) -> bool:
        return self._has_sync or self._has_async

    @property
    def _takes_sync(self) -> bool:
        return self._has_sync and (is_sync_entry() or not self._has_async)

    @property
    def name(self) -> str:
        """Name of the override that this run calls (the sync or the async one), for error texts."""
        return f"{type(self._node).__qualname__}.{self._pair[0 if self._takes_sync else 1]}"

    async def __call__(self, given: Any, inner: Callable[[Any], Awaitable[Any]]) -> Any:
        if self._takes_sync:
            return await self._in_thread(given, partial(_beyond, inner))
        args, options = self._arguments(given)
        with _as_running(self._node, self._pair[1], lambda *passed: _beyond(inner, self._changed(given, *passed))):
            return await getattr(self._node, self._pair[1])(*args, **options)


# Overrides around a run


@dataclass(frozen=True, slots=True)
class Entry:
    """Arguments with which a node's `invoke` or `ainvoke` was called."""

    input: Any
    config: Any
    options: Mapping[str, Any]


def _invokes(node: object) -> _Override:
    return _Override(node, INVOKES, lambda given: ((given.input, given.config), given.options), lambda _, entry: entry)


def own_run(node: object, inner: Callable[[Entry], Awaitable[Any]]) -> Callable[[Entry], Awaitable[Any]]:
    """Return a function that runs the node's override of `_func` or `_afunc` around `inner`; without one, `inner`."""

    def arguments(given: Entry) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        return (given.input,), {"config": given.config, "runtime": runtime_of(given.config)}

    if not any(overrides(node, name) for name in RUNS):
        return inner
    override = _Override(node, RUNS, arguments, lambda given, entry: replace(entry, options=given.options))
    return lambda entry: override(_with_runtime(entry), inner)


def _with_runtime(entry: Entry) -> Entry:
    """Return a copy of a node's arguments whose config is complete and contains the option `runtime`."""
    config = ensure_config(entry.config)
    options = dict(entry.options)
    runtime = options.pop("runtime", None)
    return Entry(entry.input, config if runtime is None else with_runtime(config, runtime), options)


def mark_entries(cls: type) -> None:
    """Wrap a subclass's `invoke` and `ainvoke`, so that one run never passes through both overrides."""
    for name in INVOKES:
        if inspect.isfunction(own := vars(cls).get(name)):
            setattr(cls, name, _noted(own, name))


def _noted(fn: Callable[..., Any], name: str) -> Callable[..., Any]:
    def around(node: object) -> AbstractContextManager[None]:
        return nullcontext() if _running_of(node, INVOKES) else _as_running(node, name, None)

    @functools.wraps(fn)
    def entry(self: object, *args: Any, **kwargs: Any) -> Any:
        with around(self):
            return fn(self, *args, **kwargs)

    @functools.wraps(fn)
    async def aentry(self: object, *args: Any, **kwargs: Any) -> Any:
        with around(self):
            return await fn(self, *args, **kwargs)

    return aentry if inspect.iscoroutinefunction(fn) else entry


async def run_entry(node: object, entry: Entry, batch: Callable[[Entry], Awaitable[Any]]) -> Any:
    """Carry out `ToolNode.ainvoke`. If a subclass overrides `invoke` only, run that override in a worker thread."""
    running = _running_of(node, INVOKES)
    if running is None and overrides(node, "invoke") and not overrides(node, "ainvoke"):
        return await _invokes(node)(entry, own_run(node, batch))
    if running is None or running.rest is None:
        return await _beyond(own_run(node, batch), entry)
    if running.method == "ainvoke":
        return await running.rest(entry)
    # An `invoke` override has started an event loop in its thread. The calls belong to the loop of the run.
    return await to_thread.run_sync(running.rest, entry)


def run_sync_entry(node: Any, entry: Entry, batch: Callable[[Entry], Awaitable[Any]]) -> Any:
    """Carry out `ToolNode.invoke`. If a subclass overrides `ainvoke` only, run that override."""
    running = _running_of(node, INVOKES)
    if running is None and overrides(node, "ainvoke") and not overrides(node, "invoke"):
        return run_from_sync(partial(node.ainvoke, entry.input, entry.config, **entry.options))
    if running is not None and running.rest is not None and running.method == "invoke":
        return running.rest(entry)
    with entered_from("sync"):
        if running is None or running.rest is None:
            return run_from_sync(partial(_beyond, own_run(node, batch), entry))
        return run_from_sync(partial(running.rest, entry))


class Entries:
    """A node's overrides of `invoke`, `_func` or their async forms, for an agent that runs the node's calls itself."""

    def __init__(self, node: object) -> None:
        self._node = node
        self._invokes = _invokes(node)
        own = next(name for name in _AROUND_RUNS if overrides(node, name))
        self.name = f"{type(node).__qualname__}.{own}"

    async def __call__(self, entry: Entry, inner: Callable[[Entry], Awaitable[Any]]) -> Any:
        """Run `inner` within the node's overrides; if a sync and an async one exist, the kind of the run decides."""
        inner = own_run(self._node, inner)
        return await (self._invokes(entry, inner) if self._invokes else _beyond(inner, entry))


def entries_of(node: object) -> Entries | None:
    """Return a node's overrides of `invoke`, `_func` and their async forms; `None` if it overrides none of them."""
    for name in _AROUND_RUNS:
        # As in `overrides`, without its call for each name: an agent looks before each batch.
        if getattr(getattr(node, name), "__func__", None) is not _written[name]:
            return Entries(node)
    return None


# Overrides around one call


def one_call_middleware(node: object) -> Callable[[str], Link] | None:
    """Return a function that wraps an override of `_run_one` or `_arun_one` as middleware; `None` without override."""

    # `kind` is the form of the input, LangGraph's `input_type`, which the override receives.
    def of_kind(kind: str) -> Link:
        def arguments(request: ToolCallRequest) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
            return (request.tool_call, kind, request.runtime), {}

        override = _Override(node, CALLS, arguments, _changed)
        return named(override.name, override)

    return of_kind if overrides(node, CALLS[0]) or overrides(node, CALLS[1]) else None


def _changed(request: ToolCallRequest, call: ToolCall, runtime: ToolRuntime[Any, Any]) -> ToolCallRequest:
    """Return a copy of a request with the call and the runtime that an override has passed to `super()`."""
    if not isinstance(runtime, ToolRuntime):
        raise TypeError(f"_run_one and _arun_one take a ToolRuntime as their third argument, got {runtime!r}")
    return ToolCallRequest(tool_call=call, tool=request.tool, state=runtime.state, runtime=runtime)
