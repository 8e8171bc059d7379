"""Subclasses of `ToolNode`: overrides of its public methods, and refusal of overrides of LangGraph's private methods.

An override of `ainvoke` or `invoke` is plain Python: every entry point calls the method of the node, and `super()` runs
the calls. An agent runs a node's calls as its own tasks. For an agent, this module calls the override, and lets its
`super()` call continue the agent's run.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar, Token
from functools import partial
from typing import Any, Literal, NamedTuple

from anyio import to_thread

from callboard._calls._sync_middleware import SyncMiddleware
from callboard._loops._entry_mode import is_sync_entry

# Refused overrides

_CALL = "use middleware=[...], awrap_tool_call= or wrap_tool_call="
_RUN = "override ainvoke"
_RUNTIME = "use middleware=[...], and change the request's state or runtime there"
_FIXED = "give it to the constructor"

REFUSED = {
    "_func": _RUN,
    "_afunc": _RUN,
    "_run_one": _CALL,
    "_arun_one": _CALL,
    "_parse_input": "override ainvoke and change the input there; for another key, messages_key=",
    "_combine_tool_outputs": "override ainvoke and change the result there",
    "_extract_state": _RUNTIME,
    "_execute_tool_sync": _CALL,
    "_execute_tool_async": _CALL,
    "_validate_tool_call": f"{_CALL}; they see calls of tools that do not exist, too",
    "_normalize_tool_response": _CALL,
    "_validate_tool_command": _CALL,
    "_validate_tool_command_list": _CALL,
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


def check_class(cls: type, base: type) -> None:
    """Raise TypeError if a subclass of `ToolNode` has an override that is never called, or an async `invoke`."""
    overridden: dict[str, object] = {}
    for ancestor in reversed(cls.__mro__[: cls.__mro__.index(base)]):
        overridden.update(vars(ancestor))
    for name, remedy in REFUSED.items():
        if name in overridden:
            raise TypeError(f"{cls.__qualname__}.{name} would never be called by callboard's ToolNode: {remedy}")
    if inspect.iscoroutinefunction(overridden.get("invoke")):
        raise TypeError(f"{cls.__qualname__}.invoke is async; it has to be a plain function")


class Unbuilt:
    """Descriptor of an attribute that `__init__` sets; reading it earlier raises an error about `super().__init__`."""

    def __get__(self, node: object, owner: type) -> object:
        if node is None:
            return self
        raise AttributeError(f"{owner.__qualname__} is not ready: its __init__ has to call super().__init__(tools)")


# Overrides of a run

Method = Literal["invoke", "ainvoke"]
_METHODS: tuple[Method, Method] = ("ainvoke", "invoke")

# Original methods of the base class, recorded at import: a user's test may replace them by mocks later, and a
# replaced method counts as an override.
_originals: dict[str, object] = {}


def record_originals(base: type) -> None:
    """Store the original methods of `ToolNode`, with which overridden and mocked methods are recognised."""
    _originals.update({name: vars(base)[name] for name in _METHODS})


def is_overridden(node: object, method: Method) -> bool:
    """Return whether a node's method was overridden by a subclass of `ToolNode`, or replaced by a mock."""
    return getattr(getattr(node, method), "__func__", None) is not _originals[method]


class Entry(NamedTuple):
    """Arguments with which a node's `invoke` or `ainvoke` was called."""

    input: Any
    config: Any
    options: Mapping[str, Any]


class RunningMethod(NamedTuple):
    """`invoke` or `ainvoke` of a node that is running, and the function that its `super()` call has to run."""

    node: object
    method: Method
    run_calls: Callable[[Entry], Any] | None
    """Function that runs the calls for whoever called the override, sync or async as the method is; `None` if the
    method of the base class runs them."""


_running: ContextVar[RunningMethod | None] = ContextVar("callboard_running_method", default=None)


def running_method(node: object) -> RunningMethod | None:
    """Return the method of this node whose override, or whose `super()` call, the running code belongs to."""
    running = _running.get()
    return running if running is not None and running.node is node else None


class as_running:  # noqa: N801 (used as a function, in `with`)
    """Context manager that sets the running method; `None` for tools, which may start new runs of the same node."""

    __slots__ = ("_method", "_token")

    _token: Token[RunningMethod | None]

    def __init__(self, method: RunningMethod | None) -> None:
        self._method = method

    def __enter__(self) -> None:
        self._token = _running.set(self._method)

    def __exit__(self, *exc: object) -> None:
        _running.reset(self._token)


class Entries:
    """A node's overrides of `ainvoke` and `invoke`, for a run whose calls another object runs, such as an agent."""

    def __init__(self, node: Any) -> None:
        self._node = node
        overridden = [method for method in _METHODS if is_overridden(node, method)]
        # A sync run calls `invoke` and an awaited one `ainvoke`. If only one is overridden, both call it: the override
        # may be what forbids a call.
        self._method = overridden[-1 if is_sync_entry() else 0]
        self.name = f"{type(node).__qualname__}.{self._method}"

    async def __call__(self, entry: Entry, run_calls: Callable[[Entry], Awaitable[Any]]) -> Any:
        """Run the override, and `run_calls` in the place of the base method. A sync override runs in a thread."""
        if self._method == "invoke":
            in_thread: SyncMiddleware[Entry, Any] = SyncMiddleware(self._invoke)
            return await in_thread(entry, partial(_without_method, run_calls))
        with as_running(RunningMethod(self._node, "ainvoke", partial(_without_method, run_calls))):
            return await self._node.ainvoke(entry.input, entry.config, **entry.options)

    def _invoke(self, entry: Entry, run_calls: Callable[[Entry], Any]) -> Any:
        with as_running(RunningMethod(self._node, "invoke", run_calls)):
            return self._node.invoke(entry.input, entry.config, **entry.options)


async def _without_method(run_calls: Callable[[Entry], Awaitable[Any]], entry: Entry) -> Any:
    with as_running(None):
        return await run_calls(entry)


def entries_of(node: object) -> Entries | None:
    """Return a node's overrides of `ainvoke` and `invoke`; `None` if it overrides neither."""
    return Entries(node) if any(is_overridden(node, method) for method in _METHODS) else None


async def continue_run(running: RunningMethod, entry: Entry) -> Any:
    """Run the calls of an override that awaits `super().ainvoke`."""
    run_calls = running.run_calls
    assert run_calls is not None
    if running.method == "ainvoke":
        return await run_calls(entry)
    # An `invoke` override has started an event loop in its thread. The calls belong to the loop of the run.
    return await to_thread.run_sync(run_calls, entry)
