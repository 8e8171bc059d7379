"""`ToolNode`: the public class that runs tool calls as supervised tasks.

`NodeAccess` is the inside of a node for an agent that runs the node's calls as its own tasks.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from contextvars import ContextVar, Token
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, Self, cast

from anyio import CapacityLimiter, to_thread
from langchain_core.messages import ToolCall
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import ensure_config, get_config_list
from langchain_core.tools import BaseTool
from langgraph.prebuilt import ToolNode as LangGraphToolNode
from langgraph.runtime import Runtime

from callboard._calls._draining import PATIENCE
from callboard._calls._sync_middleware import SyncMiddleware
from callboard._langchain._errors import unknown_tool
from callboard._langchain._large_values import MANY_CALLS, run_in_worker
from callboard._langchain._plan import inject, injected_args
from callboard._langgraph._outer_task import langgraph_args_by_tool, with_runtime
from callboard._langgraph._vocabulary import AsyncToolCallWrapper, ToolCallWrapper, ToolRuntime
from callboard._loops._bridge import run_from_sync
from callboard._loops._current import current_loop
from callboard._loops._deadline import DEFAULT_GRACE
from callboard._loops._entry_mode import entered_from, is_sync_entry
from callboard._loops._owner_task import Openable
from callboard._loops._protocol import Scope
from callboard._records._policies import CallPolicy, Limit, OnError, OnUnknown
from callboard._records._reports import Drained, Statistics
from callboard._util._suggestions import suggests_keywords
from callboard.actors._actor import Actor
from callboard.actors._child import ChildSpec
from callboard.tools._actor_tools import Toolkit
from callboard.tools._batch_call import Reports
from callboard.tools._call_record import CallRecord
from callboard.tools._chain import middleware_in
from callboard.tools._error_policy import ErrorHandling, only_invalid_arguments
from callboard.tools._ledger import Ledger
from callboard.tools._results import NodeRequest, count_calls, parse_input
from callboard.tools._setup import Options, Setup, setup_of
from callboard.tools._tool_batch import ToolBatch, prepare_batch


class ManyInputs(Runnable[Any, Any]):
    """Base class of runnables whose `abatch` runs on asyncio and on trio."""

    async def abatch(
        self,
        inputs: Sequence[Any],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[Any]:
        """Run several inputs concurrently, and return the outputs in the order of the inputs.

        `config` is one for all inputs, or one for each; `max_concurrency` of the first limits the number of concurrent
        runs. With `return_exceptions`, errors stand in place of outputs; otherwise the first error cancels the other
        runs and is raised. `kwargs` are further arguments of `ainvoke`.
        """
        if not inputs:
            return []
        configs = get_config_list(config, len(inputs))
        width = configs[0].get("max_concurrency")
        permits = nullcontext() if width is None else CapacityLimiter(width)
        outputs: list[Any] = [None] * len(inputs)
        errors: list[BaseException] = []
        loop = current_loop()

        async def run(number: int, scope: Scope) -> None:
            with scope:
                try:
                    async with permits:
                        outputs[number] = await self.ainvoke(inputs[number], configs[number], **kwargs)
                # Cancellation is no error of this run: it must reach the nursery.
                except loop.cancelled_class:
                    raise
                except BaseException as error:
                    if return_exceptions and isinstance(error, Exception):
                        outputs[number] = error
                        return
                    errors.append(error)
                    nursery.cancel()

        async with loop.nursery() as nursery:
            for index in range(len(inputs)):
                nursery.start(partial(run, index), DEFAULT_GRACE)
        try:
            if errors:
                raise errors[0]
        finally:
            errors.clear()  # the error's traceback refers to this frame: break the reference cycle
        return outputs


# Refused overrides


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


# Overrides of a run: an override of `ainvoke` or `invoke` is plain Python. Every entry point calls the method of the
# node, and `super()` runs the calls. An agent runs a node's calls as its own tasks: it calls the override, and the
# `super()` call continues the agent's run.


Method = Literal["invoke", "ainvoke"]
_METHODS: tuple[Method, Method] = ("ainvoke", "invoke")


def is_overridden(node: object, method: Method) -> bool:
    """Return whether a node's method was overridden by a subclass of `ToolNode`, or replaced by a mock."""
    return getattr(getattr(node, method), "__func__", None) is not _ORIGINALS[method]


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


class ToolNode(ManyInputs, Openable):
    """Node that runs the tool calls of the last AIMessage concurrently, as supervised tasks.

    A drop-in replacement for `langgraph.prebuilt.ToolNode`, as a node of a graph or standalone, on asyncio and trio.
    The input is a state (dict or object) with messages, a list of messages, a list of tool calls, or a
    `ToolCallWithContext`. The output has one message or command for each call, in call order.

    Args:
        tools: LangChain tools, functions to make tools of, actors, and toolkits. The handlers of an actor become tools.
            An actor runs for one run of the node or of its agent, or as long as `async with node` or `async with
            agent`. A toolkit, such as an open MCP server, is replaced by its present tools.
        name: name of the node in a graph.
        tags: tags of the node's runs.
        handle_tool_errors: tool errors that become messages: `True` for all, a text for all, exception types, or a
            function from an error to a text that handles the types of its annotation; `False` for none. By default only
            invalid arguments become messages. A timeout, a rejection or a spent budget becomes a message unless this is
            `False`.
        messages_key: key of the messages in a state.
        wrap_tool_call: sync function `(request, execute)` around each call; runs in a worker thread.
        awrap_tool_call: async function of the same kind. With both, `invoke` uses the sync one and `ainvoke` the async
            one.
        middleware: middleware around each call, the outermost first. A middleware is a sync or async function
            `(request, call_next)`, or an object with `awrap_tool_call` or `wrap_tool_call`, such as LangChain's
            AgentMiddleware. Sync functions run in worker threads. Middleware sees every tool error except invalid
            arguments; `handle_tool_errors` handles errors that middleware raises. Tools in a middleware's `tools`
            become tools of the node.
        timeout: seconds for one attempt, for every tool whose policy sets no timeout.
        limit: limit for all calls of the node together, across its runs.
        policies: policies by tool name.
        on_error: effect of an unhandled error on the other calls: "cancel" cancels them, "finish" lets them finish
            before the error is raised.
        grace: seconds of clean-up after a cancel.
        max_calls: maximum number of calls of one reply that run, at least 1; each further call gets an error message.
            `None` for all calls.
        on_unknown: action for a call whose body started and whose outcome is unknown, for every tool whose policy sets
            none; see `CallPolicy`. "rerun" is the behaviour of LangGraph.

    Raises:
        ValueError: for two tools with the same name, a policy of an unknown tool, a number out of range, or an error
            handler whose annotation is no exception type.
        TypeError: for a tool or an option of the wrong type.
    """

    name: str | None = "tools"
    _owner: ClassVar[str] = "ToolNode"
    """Name in errors about the arguments."""
    # Until `__init__` has run, this raises an error that names the missing `super().__init__(tools)`.
    _setup: Setup = cast("Setup", Unbuilt())

    @suggests_keywords
    def __init__(
        self,
        tools: Sequence[BaseTool | Callable[..., Any] | Actor | ChildSpec[Any] | Toolkit],
        *,
        name: str = "tools",
        tags: list[str] | None = None,
        handle_tool_errors: ErrorHandling = only_invalid_arguments,
        messages_key: str = "messages",
        wrap_tool_call: ToolCallWrapper | None = None,
        awrap_tool_call: AsyncToolCallWrapper | None = None,
        middleware: Sequence[object] = (),
        timeout: float | None = None,
        limit: Limit | None = None,
        policies: Mapping[str, CallPolicy] | None = None,
        on_error: OnError = "cancel",
        grace: float = DEFAULT_GRACE,
        max_calls: int | None = None,
        on_unknown: OnUnknown | None = None,
    ) -> None:
        self.name = name
        self.tags = tags
        # All arguments of the node: a copy or an unpickled node is built from them, with limits and threads of its own.
        self._options = Options(
            owner=self._owner,
            tools=tools,
            name=name,
            handle_tool_errors=handle_tool_errors,
            messages_key=messages_key,
            wrap_tool_call=wrap_tool_call,
            awrap_tool_call=awrap_tool_call,
            middleware=middleware_in(f"{self._owner}(middleware=...)", middleware),
            timeout=timeout,
            limit=limit,
            policies=policies,
            on_error=on_error,
            grace=grace,
            max_calls=max_calls,
            on_unknown=on_unknown,
        )
        self._setup = setup_of(self._options)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        overridden: dict[str, object] = {}
        for ancestor in reversed(cls.__mro__[: cls.__mro__.index(ToolNode)]):
            overridden.update(vars(ancestor))
        for name, remedy in REFUSED.items():
            if name in overridden:
                raise TypeError(f"{cls.__qualname__}.{name} would never be called by callboard's ToolNode: {remedy}")
        if inspect.iscoroutinefunction(overridden.get("invoke")):
            raise TypeError(f"{cls.__qualname__}.invoke is async; it has to be a plain function")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_setup", "_owner_task")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._setup = setup_of(self._options)

    def __repr__(self) -> str:
        return f"ToolNode([{', '.join(self._setup.tools)}], name={self.name!r})"

    async def __aenter__(self) -> Self:
        """Start the node's actors, and keep them running until the end of the `async with` block.

        The end of the block waits for running calls.

        See `callboard.Actor`.
        """
        await self._setup.actors.open()
        self._setup.in_flight.reopen()
        return self

    async def __aexit__(self, *_: object) -> None:
        runs = self._setup.in_flight
        try:
            # Runs are drained before the actors close, because they use them. Afterwards new runs are accepted again:
            # without a block, the node remains usable.
            with runs.preserve_state():
                await runs.drain(PATIENCE)
        finally:
            await self._setup.actors.close()

    async def drain(self, timeout: float = PATIENCE) -> Drained:
        """Refuse new runs, let running calls finish, and return the numbers of finished and of cancelled runs.

        After `timeout` seconds the running calls are cancelled, and have their grace; at once if the task that calls
        `drain()` is cancelled. A run that is ended raises `DrainingError` at its caller; its finished results are in
        its ledger. `async with node` accepts runs again. Raises ValueError for a number out of range.
        """
        return await self._setup.in_flight.drain(timeout)

    @property
    def tools_by_name(self) -> dict[str, BaseTool]:
        """Tools of the node, by name."""
        return cast("dict[str, BaseTool]", self._setup.tools)

    @property
    def _tools_by_name(self) -> dict[str, BaseTool]:
        return self.tools_by_name

    @property
    def _handle_tool_errors(self) -> ErrorHandling:
        return self._options.handle_tool_errors

    @property
    def _messages_key(self) -> str:
        return self._options.messages_key

    @property
    def _injected_args(self) -> dict[str, Any]:
        return langgraph_args_by_tool(self.tools_by_name)

    @property
    def func(self) -> Callable[..., Any]:
        """Sync function that runs the node; LangGraph reads this attribute if a graph sets a timeout for the node."""
        return self.invoke

    @property
    def afunc(self) -> Callable[..., Any]:
        """Async function that runs the node; LangGraph reads this attribute if a graph sets a timeout for the node."""
        return self.ainvoke

    def offered_tools(self) -> list[BaseTool]:
        """Return the tools that a model may be offered now: all tools except those that a middleware withholds.

        A middleware withholds a tool by a method `offers(tool) -> bool`, as an open `CircuitBreaker` does. A middleware
        further outside can overrule this by `covers(tool) -> bool`, as a `Fallback` does.
        """
        offers, tools = self._setup.offers, self._setup.tools.values()
        return [*tools] if offers is None else [tool for tool in tools if offers(tool)]

    def statistics(self) -> Statistics:
        """Return the present numbers of running and waiting calls, of abandoned threads, and of the node's actors."""
        return replace(self._setup.supervision.statistics(), actors=self._setup.actors.statistics())

    async def ainvoke(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        input: Any,
        config: RunnableConfig | None = None,
        *,
        ledger: Mapping[str, Any] | None = None,
        resume: object = None,
        runtime: Runtime[Any] | None = None,
    ) -> Any:
        """Run the tool calls of the input, and return their results.

        Args:
            input: see the class.
            config: LangChain config; its `max_concurrency` limits this run.
            ledger: outside of a graph, a dict that is updated when calls finish or ask; empty at first, or the `ledger`
                of a `CallsInterrupted`. Calls that finished in an earlier run with the same input do not run again.
            resume: outside of a graph, `{interrupt.id: answer}`, or the answer itself if one question is open.
            runtime: outside of a graph, LangGraph's runtime for the tools, with a context and a store.

        Raises:
            CallsInterrupted: with the questions of all calls that wait for an answer; inside of a LangGraph graph, a
                plain `GraphInterrupt`.
            UnknownInterruptError: if an answer matches no open question.
            ValueError: if the input contains nothing to run, or the ledger belongs to other calls.
            BaseException: the unhandled error of a call, bare, after all started tasks have ended.
        """
        entry = Entry(input, config, _drop_none(ledger=ledger, resume=resume, runtime=runtime))
        running = running_method(self)
        if running is not None and running.run_calls is not None:
            if running.method == "ainvoke":
                return await running.run_calls(entry)
            # An `invoke` override has started an event loop in its thread. The calls belong to the loop of the run.
            return await to_thread.run_sync(running.run_calls, entry)
        with entered_from("async" if running is None else "sync"), as_running(None):
            if running is None and is_overridden(self, "invoke") and not is_overridden(self, "ainvoke"):
                # The override may be what forbids a call. LangGraph calls it in sync runs only.
                return await Entries(self)(entry, self._run_batch)
            return await self._run_batch(entry)

    def invoke(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        input: Any,
        config: RunnableConfig | None = None,
        *,
        ledger: Mapping[str, Any] | None = None,
        resume: object = None,
        runtime: Runtime[Any] | None = None,
    ) -> Any:
        """Run `ainvoke` from sync code, and return its result.

        In the thread of a running event loop, this blocks the loop until the run ends.

        A tool or middleware with a sync and an async function uses the sync one, in a worker thread. Arguments and
        errors are those of `ainvoke`.
        """
        options = _drop_none(ledger=ledger, resume=resume, runtime=runtime)
        running = running_method(self)
        if running is not None and running.method == "invoke" and running.run_calls is not None:
            return running.run_calls(Entry(input, config, options))
        if running is not None:
            raise RuntimeError(
                f"{type(self).__qualname__}.ainvoke calls invoke, which runs ainvoke: call super().ainvoke(...) there"
            )
        # A class that overrides both has its `ainvoke` for async code: here the calls run directly, as in LangGraph.
        run = partial(ToolNode.ainvoke, self) if is_overridden(self, "invoke") else self.ainvoke
        with entered_from("sync"), as_running(RunningMethod(self, "invoke", None)):
            return run_from_sync(partial(run, input, config, **options))

    async def _run_batch(self, entry: Entry) -> Any:
        """Run a batch of the calls in the input of an entry, and return the combined output."""
        messages_key, options = self._setup.messages_key, entry.options
        parse = partial(parse_input, entry.input, messages_key)
        has_many_calls = count_calls(entry.input, messages_key) > MANY_CALLS
        request = await run_in_worker(parse) if has_many_calls else parse()
        config = ensure_config(entry.config)
        if "runtime" in options:
            config = with_runtime(config, options["runtime"])
        if self.tags:
            config["tags"] = [*config["tags"], *self.tags]
        make_ledger = partial(Ledger, caller_ledger=options.get("ledger"), answers=options.get("resume"))
        batch = await prepare_batch(self._setup, request, config, make_ledger)
        return await batch.run()

    def inject_tool_args(self, tool_call: Any, input: Any, store: Any = None) -> Any:
        """Return a copy of a tool call with the injected state and store in its arguments.

        Values that the model wrote in their place are removed.

        `input` is the state: a dict, an object or a list of messages. Raises ValueError if the tool needs a store and
        there is none, or a field that a list of messages lacks.
        """
        if (tool := self.tools_by_name.get(tool_call["name"])) is None:
            return tool_call
        runtime: ToolRuntime[Any, Any] = ToolRuntime(
            state=input,
            tool_call_id=tool_call.get("id"),
            config=ensure_config(),
            context=None,
            store=store,
            stream_writer=lambda _: None,
            tools=list(self.tools_by_name.values()),
        )
        return inject(tool_call, injected_args(tool), runtime, self._messages_key)


_ORIGINALS: Mapping[str, object] = {name: vars(ToolNode)[name] for name in _METHODS}
"""Methods of `ToolNode` itself: a user's test may replace them by mocks later, which counts as an override."""

# `isinstance(node, langgraph.prebuilt.ToolNode)` must be true: LangGraph's own agent tests it.
LangGraphToolNode.register(ToolNode)


def _drop_none(**options: Any) -> dict[str, Any]:
    """Return the options that are not `None`."""
    # An override in a subclass need not accept options that no caller has set.
    return {name: value for name, value in options.items() if value is not None}


# No code outside of this package reads a private attribute of a `ToolNode`; it uses this class.
class NodeAccess:
    """Access to the internal parts of a tool node, for an agent."""

    def __init__(self, node: ToolNode) -> None:
        self._node = node
        self._setup = setup = node._setup
        self.messages_key = setup.messages_key
        self.actors = setup.actors
        self.grace = setup.supervision.grace
        """Seconds that all calls of a run together have for clean-up after a cancel."""

    @property
    def entries(self) -> Entries | None:
        """Overrides of `ainvoke` and `invoke`; `None` if nothing is overridden."""
        is_plain = not any(is_overridden(self._node, method) for method in _METHODS)
        return None if is_plain else Entries(self._node)

    @property
    def needs_checkpointer(self) -> list[str]:
        """Names of the middleware whose questions to people would be lost without a checkpointer."""
        middleware = self._node._options.middleware
        return [type(item).__name__ for item in middleware if getattr(item, "needs_checkpointer", False) is True]

    def tool(self, name: str) -> BaseTool | None:
        return self._node.tools_by_name.get(name)

    def text_about_unknown(self, call: ToolCall) -> str | None:
        """Return the text for the model about a call of a tool that does not exist; `None` if there may be one."""
        tools = self._node.tools_by_name
        return None if call["name"] in tools or self._setup.chain else unknown_tool(call, tools).text

    def policy(self, call: ToolCall) -> CallPolicy:
        return self._setup.supervision.policy(call["name"])

    async def batch(
        self,
        request: NodeRequest,
        config: RunnableConfig,
        *,
        records: Mapping[str, CallRecord],
        answers: Mapping[str, Any],
        keys: Sequence[str],
        namespaces: Mapping[str, str] | None,
        reports: Reports,
    ) -> ToolBatch:
        """Return a batch of calls, ready to run, that continues with the records and answers of an earlier run."""
        make_ledger = partial(Ledger, records=records, answers=answers or None, namespaces=namespaces)
        return await prepare_batch(self._setup, request, config, make_ledger, keys=keys, reports=reports)
