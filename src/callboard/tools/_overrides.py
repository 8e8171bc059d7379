"""Overrides in subclasses of `ToolNode`: which are refused, and how a run calls those of `ainvoke` and `invoke`.

An override of `ainvoke` or `invoke` is plain Python. Every entry point calls the method of the node, and `super()` runs
the calls. An agent runs a node's calls as its own tasks: it calls the override, and the `super()` call continues the
agent's run.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any, Literal, NamedTuple, TypeVar

from langchain_core.messages import ToolCall, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config
from langgraph.types import Command

from callboard._calls._sync_middleware import SyncMiddleware
from callboard._langchain._outputs import Output
from callboard._langgraph._vocabulary import ToolCallRequest, ToolCallWithContext
from callboard._loops._entry_mode import is_sync_entry
from callboard.tools._chain import Chain, Link, Next, link_of
from callboard.tools._results import NodeRequest, ResultRules, parse_input
from callboard.tools._unanswered import id_of, ids_with_answer

_CALL = "use middleware=[...], awrap_tool_call= or wrap_tool_call="

REFUSED = {
    **dict.fromkeys(("_func", "_afunc"), "override ainvoke"),
    **dict.fromkeys(("_run_one", "_arun_one", "_execute_tool_sync", "_execute_tool_async"), _CALL),
    **dict.fromkeys(("_normalize_tool_response", "_validate_tool_command", "_validate_tool_command_list"), _CALL),
    "_validate_tool_call": f"{_CALL}; they see calls of tools that do not exist, too",
    "_parse_input": "override ainvoke and change the input there; for another key, messages_key=",
    "_combine_tool_outputs": "override ainvoke and change the result there",
    **dict.fromkeys(
        ("_extract_state", "_inject_tool_args", "_inject_state", "_inject_store"),
        "use middleware=[...], and change the request's state or runtime there",
    ),
    **dict.fromkeys(
        ("tools_by_name", "_tools_by_name", "_injected_args", "_handle_tool_errors", "_messages_key"),
        "give it to the constructor",
    ),
}
"""Methods and attributes of LangGraph's `ToolNode` that callboard never uses, each with a hint what to use instead."""


class Unbuilt:
    """Descriptor of an attribute that `__init__` sets; reading it earlier raises an error about `super().__init__`."""

    def __get__(self, node: object, owner: type) -> object:
        if node is None:
            return self
        raise AttributeError(f"{owner.__qualname__} is not ready: its __init__ has to call super().__init__(tools)")


Method = Literal["invoke", "ainvoke"]
METHODS: tuple[Method, Method] = ("ainvoke", "invoke")

_originals: dict[str, object] = {}

MethodT = TypeVar("MethodT", bound=Callable[..., Any])


def original(method: MethodT) -> MethodT:
    """Decorate a method of `ToolNode` itself: any other function in its place is an override, also a mock of a test."""
    _originals[method.__name__] = method
    return method


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
    """Return the method of this node that runs now, because its override or `super()` was called."""
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
        overridden = [method for method in METHODS if is_overridden(node, method)]
        # A sync run calls `invoke` and an awaited one `ainvoke`. If only one is overridden, both call it: the override
        # may be what forbids a call.
        self._method = overridden[-1 if is_sync_entry() else 0]
        self.name = f"{type(node).__qualname__}.{self._method}"

    async def __call__(self, entry: Entry, run_calls: Callable[[Entry], Awaitable[Any]]) -> Any:
        """Run the override, and `run_calls` in the place of the base method. A sync override runs in a thread."""
        node = self._node

        def invoke(entry: Entry, run_calls: Callable[[Entry], Any]) -> Any:
            with as_running(RunningMethod(node, "invoke", run_calls)):
                return node.invoke(entry.input, entry.config, **entry.options)

        if self._method == "invoke":
            in_thread: SyncMiddleware[Entry, Any] = SyncMiddleware(invoke)
            return await in_thread(entry, partial(_without_method, run_calls))
        with as_running(RunningMethod(self._node, "ainvoke", partial(_without_method, run_calls))):
            return await self._node.ainvoke(entry.input, entry.config, **entry.options)


async def _without_method(run_calls: Callable[[Entry], Awaitable[Any]], entry: Entry) -> Any:
    with as_running(None):
        return await run_calls(entry)


# Overridden methods of a tools node, around each call or around all calls of a reply. The method gets the same input as
# in LangGraph: a call and the state in version "v2", the state in version "v1".

Step = Callable[[NodeRequest, RunnableConfig], Awaitable[Any]]
"""Async function that runs calls, and returns their results in the form of a node's output: the base method."""


def task_input_of(call: ToolCall, state: Any) -> ToolCallWithContext:
    """Return the input of a LangGraph task for a single call: the call together with the state."""
    return ToolCallWithContext(__type="tool_call_with_context", tool_call=call, state=state)


def around_call(entries: Entries, messages_key: str) -> Link:
    """Return middleware that runs each call inside the user's override of a `ToolNode` method, such as `ainvoke`."""

    async def around(request: ToolCallRequest, call_next: Next) -> Output:
        async def inner(entry: Entry) -> Any:
            node_request = parse_input(entry.input, messages_key)
            config = _config(entry, request.runtime.config)
            runtime = replace(request.runtime, state=node_request.state, config=config)
            requests = (ToolCallRequest(call, request.tool, node_request.state, runtime) for call in node_request.calls)
            return ResultRules(node_request.kind, messages_key).combine_outputs(
                [await call_next(inner_request) for inner_request in requests]
            )

        entry = Entry(task_input_of(request.tool_call, request.state), request.runtime.config, {})
        result = await entries(entry, inner)
        return outputs_of(result, [request.tool_call], messages_key, entries.name)[0]

    return link_of(entries.name, around)


async def around_all(
    entries: Entries, step: Step, calls: Sequence[ToolCall], entry: Entry, messages_key: str
) -> list[Output]:
    """Run all calls of a reply inside the user's override of a `ToolNode` method; return their outputs."""

    async def around(inner_entry: Entry, call_next: Next) -> Any:
        return await entries(inner_entry, call_next)

    async def inner(inner_entry: Entry) -> Any:
        return await step(parse_input(inner_entry.input, messages_key), _config(inner_entry, entry.config))

    result = await Chain([Link(around)])(entry, inner)
    return outputs_of(result, calls, messages_key, entries.name)


def _config(entry: Entry, config: RunnableConfig) -> RunnableConfig:
    return config if entry.config is None else ensure_config(entry.config)


def outputs_of(result: Any, calls: Sequence[ToolCall], messages_key: str, name: str) -> list[Output]:
    """Return the output of each call, taken from the result of the user's override of a `ToolNode` method."""
    pieces_by_call: list[list[ToolMessage | Command[Any]]] = [[] for _ in calls]
    unassigned_pieces: list[ToolMessage | Command[Any]] = []
    open_indexes: dict[str, deque[int]] = {}
    for index, call in enumerate(calls):
        open_indexes.setdefault(id_of(call), deque()).append(index)
    for piece in _pieces(result, messages_key, name):
        update: Any = {messages_key: [piece]} if isinstance(piece, ToolMessage) else piece.update
        answers = update.get(messages_key, []) if isinstance(update, dict) else []
        candidates = [open_indexes[call_id] for call_id in ids_with_answer(answers) if open_indexes.get(call_id)]
        # Several calls may have the same id: their messages are assigned in call order.
        indexes = min(candidates, key=itemgetter(0), default=None)
        (unassigned_pieces if indexes is None else pieces_by_call[indexes.popleft()]).append(piece)
    leaves_graph = any(isinstance(piece, Command) and piece.graph is not None for piece in unassigned_pieces)
    for call, pieces in zip(calls, pieces_by_call, strict=True):
        if not pieces and not leaves_graph:
            raise ValueError(
                f"{name} returned no message for call {call['id']!r}; a call that is not run needs one too: "
                f"ToolMessage(..., tool_call_id={call['id']!r})"
            )
    if pieces_by_call:
        # Messages and commands that belong to no call.
        pieces_by_call[-1].extend(unassigned_pieces)
    return [pieces[0] if len(pieces) == 1 else pieces for pieces in pieces_by_call]


def _pieces(result: Any, messages_key: str, name: str) -> list[ToolMessage | Command[Any]]:
    pieces: list[ToolMessage | Command[Any]] = []
    for item in result if isinstance(result, list) else [result]:
        if isinstance(item, (ToolMessage, Command)):
            pieces.append(item)
        elif isinstance(item, dict):
            values: dict[str, Any] = {**item}
            written = values.pop(messages_key, [])
            for message in written if isinstance(written, list) else [written]:
                is_result = isinstance(message, ToolMessage)
                pieces.append(message if is_result else Command(update={messages_key: [message]}))
            if values:
                pieces.append(Command(update=values))
        else:
            raise TypeError(
                f"{name} returned {result!r}; it has to return what ToolNode returns, such as "
                f"{{{messages_key!r}: [ToolMessage(...)]}}"
            )
    return pieces
