"""`ToolNode`: the public class that runs tool calls as supervised tasks.

`NodeAccess` is the inside of a node for an agent that runs the node's calls as its own tasks.
"""

import inspect
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Protocol, Self, TypedDict, Unpack, cast, overload

from anyio import to_thread
from langchain_core.messages import BaseMessage, ToolCall, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config
from langchain_core.tools import BaseTool
from langgraph.prebuilt import ToolNode as LangGraphToolNode
from langgraph.runtime import Runtime
from langgraph.types import Command

from callboard._calls._draining import PATIENCE
from callboard._langchain._errors import unknown_tool
from callboard._langchain._large_values import MANY_CALLS, run_in_worker
from callboard._langchain._outputs import Output
from callboard._langchain._plan import inject, injected_args
from callboard._langgraph._outer_task import check_config, langgraph_args_by_tool, with_runtime
from callboard._langgraph._vocabulary import AsyncToolCallWrapper, ToolCallWrapper, ToolRuntime
from callboard._loops._bridge import run_from_sync
from callboard._loops._deadline import DEFAULT_GRACE
from callboard._loops._entry_mode import entered_from
from callboard._loops._owner_task import Openable
from callboard._loops._task_stream import Outbox, TaskItems, Window
from callboard._records._explanations import ToolExplanation
from callboard._records._policies import CallPolicy, Limit, OnError, OnUnknown, check_count
from callboard._records._reports import Drained, LiveCall, Statistics
from callboard._util._suggestions import suggests_keywords
from callboard.actors._actor import Actor
from callboard.actors._child import ChildSpec
from callboard.tools._actor_tools import Toolkit
from callboard.tools._batch_call import NO_REPORTS, CallBody, Reports
from callboard.tools._call_record import CallRecord
from callboard.tools._chain import middleware_in
from callboard.tools._error_policy import ErrorHandling, only_invalid_arguments
from callboard.tools._explanation import explain_in_node
from callboard.tools._ledger import Ledger
from callboard.tools._many_inputs import DEFAULT_WINDOW, ManyInputs
from callboard.tools._overrides import (
    METHODS,
    REFUSED,
    Entries,
    Entry,
    RunningMethod,
    Unbuilt,
    around_call,
    as_running,
    is_overridden,
    original,
    running_method,
)
from callboard.tools._results import NodeRequest, count_calls, parse_input
from callboard.tools._setup import Options, Setup, setup_of
from callboard.tools._tool_batch import ToolBatch, prepare_batch


class NodeOptions(TypedDict, total=False):
    """Keyword options of `ToolNode.ainvoke` and `invoke`; used only to type overloads."""

    ledger: Mapping[str, Any] | None
    resume: object
    runtime: Runtime[Any] | None


class HasMessages(Protocol):
    """State that is an object; a node reads its attribute with the name of `messages_key`."""

    @property
    def messages(self) -> Any: ...


NodeOutput = dict[str, list[ToolMessage]]
"""Output of a node for a state or for tool calls, by the key of its messages, if no tool returns a `Command`."""


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
        ValueError: for a second tool with the name of an actor's or a middleware's tool, a policy of an unknown tool,
            a number out of range, or an error handler whose annotation is no exception type.
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
        if tags is not None and not isinstance(tags, (list, tuple)):
            raise TypeError(f"{self._owner}(tags=...) is a list of texts, got {tags!r}")
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

    def explain(self, tool: str) -> ToolExplanation:
        """Return the middleware, the policy and the limits around the calls of one tool, from the outside inwards.

        `print(node.explain("search"))` shows them in words.

        Args:
            tool: name of the tool.

        Raises:
            ValueError: if the node has no tool of this name.
        """
        return explain_in_node(tool, self._options, self._setup)

    def statistics(self) -> Statistics:
        """Return the present numbers of running and waiting calls, of abandoned threads, and of the node's actors."""
        return replace(self._setup.supervision.statistics(), actors=self._setup.actors.statistics())

    def running(self) -> list[LiveCall]:
        """Return the state of each call that has not ended, in all runs and event loops of the node.

        May be called from any thread. The calls go on meanwhile, so that some may have ended.
        """
        return self._setup.supervision.running()

    async def cancel(self, call_id: str, reason: str = "", *, thread_id: str | None = None) -> bool:
        """Cancel one call, and wait until nothing of it runs, which takes at most its grace.

        The call ends with an error message that has the reason, also with `handle_tool_errors=False`. Its middleware
        does not repeat or replace it. The other calls and the run go on. A call that waits for its start never starts.
        May be awaited in any event loop, also in that of another thread.

        Return `True` if the call was cancelled; `False` if no such call runs, or if it has finished with its result
        meanwhile.

        Args:
            call_id: id of the call, as in `LiveCall.call_id`.
            reason: clause for the model and for traces, such as "the user has pressed stop".
            thread_id: conversation of the call; needed if calls of several threads have the id.

        Raises:
            ValueError: if calls with this id run in several threads, and `thread_id` is missing.
            TypeError: if the id or the reason is no text.
            RuntimeError: if the event loop of the call waits for this call of `cancel()`.
        """
        return await self._setup.supervision.cancel(call_id, reason, thread_id)

    # A state or calls give a dict, and messages a list. If a tool returns a `Command`, the output is a list of the
    # outputs of all calls, as in LangGraph; no type of the input tells so.
    # LangChain's methods take any keyword. These name their own, so that type checkers find one that does not exist;
    # hence the suppressed checks of `ainvoke` and `invoke`.

    @overload  # type: ignore[override]
    async def ainvoke(
        self, input: Sequence[BaseMessage], config: RunnableConfig | None = None, **options: Unpack[NodeOptions]
    ) -> list[ToolMessage]: ...

    @overload
    async def ainvoke(
        self,
        input: Sequence[Mapping[str, Any]] | Mapping[str, Any] | HasMessages,
        config: RunnableConfig | None = None,
        **options: Unpack[NodeOptions],
    ) -> NodeOutput: ...

    @original
    async def ainvoke(  # pyright: ignore[reportIncompatibleMethodOverride]
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

    async def as_completed(
        self,
        input: Any,
        config: RunnableConfig | None = None,
        *,
        window: int = DEFAULT_WINDOW,
        ledger: Mapping[str, Any] | None = None,
        resume: object = None,
        runtime: Runtime[Any] | None = None,
    ) -> AsyncGenerator[ToolMessage | Command[Any]]:
        """Run the tool calls of the input, and yield the message or the command of each call as soon as it has ended.

        Calls that an earlier run has finished come first. Errors and questions are raised as by `ainvoke`, after the
        results of the calls that have ended.

        A reader that stops early has to close the generator, such as with `contextlib.aclosing`. The calls are then
        cancelled, each with its grace, and have ended when `aclose()` of the generator returns.

        A subclass's override of `ainvoke` or `invoke` runs around each call by itself, with a `ToolCallWithContext`, as
        it does in an agent.

        Args:
            input: see the class.
            config: see `ainvoke`.
            window: maximum number of calls that run, wait for a limit, or have results that the reader has not taken;
                at least 1. A slow reader thereby slows the calls down.
            ledger: see `ainvoke`.
            resume: see `ainvoke`.
            runtime: see `ainvoke`.

        Raises:
            ValueError: if `window` is out of range.
            BaseException: the errors of `ainvoke`.
        """
        check_count("ToolNode.as_completed(window=...)", window, least=1)
        entry = Entry(input, config, _drop_none(ledger=ledger, resume=resume, runtime=runtime))
        permits = Window(window)

        async def run(outbox: Outbox[tuple[Output, bool]]) -> None:
            async def run_call(_ledger: Ledger, _index: int, body: CallBody) -> Output:
                await permits.acquire()
                try:
                    output = await body(None)
                except BaseException:
                    permits.release()
                    raise
                outbox.put((output, True))
                return output

            def put_earlier(output: Output) -> None:
                outbox.put((output, False))

            with entered_from("async"), as_running(None):
                entries = NodeAccess(self).entries
                links = [] if entries is None else [around_call(entries, self._messages_key)]
                reports = Reports(wrap_call=run_call, on_earlier_output=put_earlier, outer_links=links)
                await self._run_batch(entry, reports)

        async with aclosing(TaskItems(run)) as outputs:
            async for output, holds_permit in outputs:
                if holds_permit:
                    permits.release()
                for item in output if isinstance(output, list) else [output]:
                    yield item

    @overload  # type: ignore[override]
    def invoke(
        self, input: Sequence[BaseMessage], config: RunnableConfig | None = None, **options: Unpack[NodeOptions]
    ) -> list[ToolMessage]: ...

    @overload
    def invoke(
        self,
        input: Sequence[Mapping[str, Any]] | Mapping[str, Any] | HasMessages,
        config: RunnableConfig | None = None,
        **options: Unpack[NodeOptions],
    ) -> NodeOutput: ...

    @original
    def invoke(  # pyright: ignore[reportIncompatibleMethodOverride]
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

    async def _run_batch(self, entry: Entry, reports: Reports = NO_REPORTS) -> Any:
        """Run a batch of the calls in the input of an entry, and return the combined output."""
        messages_key, options = self._setup.messages_key, entry.options
        parse = partial(parse_input, entry.input, messages_key)
        has_many_calls = count_calls(entry.input, messages_key) > MANY_CALLS
        request = await run_in_worker(parse) if has_many_calls else parse()
        if entry.config is not None:
            check_config(entry.config)
        config = ensure_config(entry.config)
        if "runtime" in options:
            config = with_runtime(config, options["runtime"])
        if self.tags:
            config["tags"] = [*config["tags"], *self.tags]
        ledger = options.get("ledger")
        if ledger is not None and not isinstance(ledger, Mapping):
            raise TypeError(f"ledger is a dict, or the ledger of a CallsInterrupted; got {ledger!r}")
        make_ledger = partial(Ledger, caller_ledger=ledger, answers=options.get("resume"))
        batch = await prepare_batch(self._setup, request, config, make_ledger, reports=reports)
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
        self.node = node
        self._setup = setup = node._setup
        self.messages_key = setup.messages_key
        self.actors = setup.actors
        self.rewrite_reply = setup.rewrite_reply
        """Function that lets middleware change a reply of the model, given the conversation before it, or `None`."""
        self.grace = setup.supervision.grace
        """Seconds that all calls of a run together have for clean-up after a cancel."""

    @property
    def entries(self) -> Entries | None:
        """Overrides of `ainvoke` and `invoke`; `None` if nothing is overridden."""
        is_plain = not any(is_overridden(self.node, method) for method in METHODS)
        return None if is_plain else Entries(self.node)

    @property
    def needs_checkpointer(self) -> list[str]:
        """Names of the middleware whose questions to people would be lost without a checkpointer."""
        middleware = self.node._options.middleware
        return [type(item).__name__ for item in middleware if getattr(item, "needs_checkpointer", False) is True]

    def tool(self, name: str) -> BaseTool | None:
        return self.node.tools_by_name.get(name)

    def text_about_unknown(self, call: ToolCall) -> str | None:
        """Return the text for the model about a call of a tool that does not exist; `None` if there may be one."""
        tools = self.node.tools_by_name
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
