"""`ToolNode`: the public door to supervised tool calls."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self, cast

from langchain_core.messages import ToolCall
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config
from langchain_core.tools import BaseTool
from langgraph.prebuilt import ToolNode as LangGraphToolNode
from langgraph.runtime import Runtime

from callboard._calls._under_way import PATIENCE
from callboard._drained import Drained
from callboard._langgraph import injected_args_by_name, with_runtime
from callboard._loops._bridge import run_from_sync
from callboard._loops._deadline import DEFAULT_GRACE
from callboard._loops._door import entered
from callboard._statistics import Statistics
from callboard._suggestions import suggests_keywords
from callboard._types import CallPolicy, Limit, OnError, OnUnknown
from callboard.actors._actor import Actor
from callboard.actors._child import ChildSpec
from callboard.tools._chain import middleware_in
from callboard.tools._errors import ErrorHandling, only_invalid_arguments
from callboard.tools._inject import inject, injected_args
from callboard.tools._input import InputKind, parse_input, reading
from callboard.tools._ledger import Ledger
from callboard.tools._many import ManyInputs
from callboard.tools._node_setup import Setup
from callboard.tools._options import Options, setup_of
from callboard.tools._overrides import Unbuilt, check_class, remember
from callboard.tools._own_methods import (
    Entries,
    Entry,
    beyond_entries,
    entries_of,
    hear_sync_entry,
    hears_other,
    inner_of,
    is_plain,
    mark_entries,
    one_call_middleware,
    own_injection,
    own_run,
    rest_of_call,
    rest_of_run,
    way_back,
)
from callboard.tools._portions import in_portions
from callboard.tools._results import output_in
from callboard.tools._tool_batch import ToolBatch
from callboard.tools._toolkits import Toolkit
from callboard.tools._vocabulary import AsyncToolCallWrapper, ToolCallWrapper, ToolRuntime


class ToolNode(ManyInputs):
    """Runs the tool calls of the last AIMessage as supervised tasks, at once and together.

    A drop-in for `langgraph.prebuilt.ToolNode`: as a node of a graph, or on its own, on asyncio and trio.
    The input is a state (dict or object) with messages, a list of messages, a list of tool calls, or a
    `ToolCallWithContext`; the output has one message or command for each call, in call order.

    Args:
        tools: LangChain tools, functions to make tools of, and actors, whose handlers are tools. An actor lives for
            a run of the node, or of the agent that has it; within `async with node` or `async with agent`, for that
            long. Of a toolkit, such as an MCP server that is open, those that it has now.
        name: the node's name in a graph.
        tags: tags of the node's runs.
        handle_tool_errors: which errors of tools become messages: `True` for all, a text for all, exception
            types, or a function from an error to a text, for the types that it is annotated with; `False`
            for none. By default only invalid arguments do. A timeout, a rejection or a spent budget
            always does, unless this is `False`.
        messages_key: where a state keeps its messages.
        wrap_tool_call: a function `(request, execute)` around each call; runs in a worker thread.
        awrap_tool_call: the same, async; of both, `invoke` calls the sync one and `ainvoke` this one.
        middleware: what is around each call, the first outermost: functions `(request, call_next)`, async or
            sync (these run in worker threads), or objects with `awrap_tool_call` or `wrap_tool_call`, such
            as LangChain's AgentMiddleware. They see every error of a tool but invalid arguments; what they
            do not handle, `handle_tool_errors` judges. What they have in `tools` are tools of the node too.
        timeout: seconds for one attempt of every tool whose policy says nothing else.
        limit: for all calls of the node together, across its runs.
        policies: by tool name.
        on_error: what an error that nobody handles does to the other calls: "cancel" them, or let them
            "finish" before it is raised.
        grace: seconds of clean-up after a cancel.
        max_calls: how many calls of one reply run, at least 1; each one after that gets a message that says so.
            `None` for all.
        on_unknown: what becomes of a call whose body began and whose end nobody knows, for every tool whose policy
            says nothing else; see `CallPolicy`. "rerun" is what LangGraph does.

    Raises:
        ValueError: for two tools with one name, a policy of an unknown tool, a number out of range, or an
            error handler annotated with something that is no exception.
        TypeError: for a tool or an option of the wrong kind.
    """

    name: str | None = "tools"
    # What a node has until our __init__ has run.
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
        # All that the node is built from, so that a copy is built anew, with limits and threads of its own.
        self._options = Options(
            tools=tools,
            name=name,
            handle_tool_errors=handle_tool_errors,
            messages_key=messages_key,
            wrap_tool_call=wrap_tool_call,
            awrap_tool_call=awrap_tool_call,
            middleware=middleware_in("ToolNode(middleware=...)", middleware),
            timeout=timeout,
            limit=limit,
            policies=policies,
            on_error=on_error,
            grace=grace,
            max_calls=max_calls,
            on_unknown=on_unknown,
        )
        self._setup = self._built()

    def _built(self) -> Setup:
        return setup_of(self._options, own_call=one_call_middleware(self), own_injection=own_injection(self))

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_class(cls, ToolNode)
        mark_entries(cls)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_setup"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._setup = self._built()

    def __repr__(self) -> str:
        return f"ToolNode([{', '.join(self._setup.tools)}], name={self.name!r})"

    async def __aenter__(self) -> Self:
        """Have the actors among the tools live until the block is left, which waits for runs; see `callboard.Actor`."""
        await self._setup.actors.open()
        self._setup.under_way.reopen()
        return self

    async def __aexit__(self, *_: object) -> None:
        runs = self._setup.under_way
        try:
            with runs.paused():
                await runs.drain(PATIENCE)
        finally:
            await self._setup.actors.close()

    async def drain(self, timeout: float = PATIENCE) -> Drained:
        """Begin no calls any more, and let those that run finish; returns what became of the runs of the node.

        A run that is ended raises a `DrainingError` where it was started; what it has finished is in its ledger. If
        the caller is cancelled, what runs is ended at once. `async with node` opens it again.

        Args:
            timeout: seconds for them to finish; those that have not are cancelled, and have their grace.

        Raises:
            ValueError: for a number out of range.
        """
        return await self._setup.under_way.drain(timeout)

    @property
    def tools_by_name(self) -> dict[str, BaseTool]:
        """The tools that the node was given, by their names."""
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
        return injected_args_by_name(self.tools_by_name)

    @property
    def func(self) -> Callable[..., Any]:
        """What runs the node for sync code; LangGraph looks here, where a graph gives the node a timeout."""
        return self.invoke

    @property
    def afunc(self) -> Callable[..., Any]:
        """What runs the node for async code; LangGraph looks here, too."""
        return self.ainvoke

    def offered_tools(self) -> list[BaseTool]:
        """The tools that a model should be told of now: all, but for those that a middleware holds back.

        A middleware holds a tool back by a method `offers(tool) -> bool`, as an open `CircuitBreaker` does, unless
        one outside of it says by `covers(tool) -> bool` that it answers instead, as a `Fallback` does.
        """
        return [tool for tool in self._setup.tools.values() if self._setup.offers(tool)]

    def statistics(self) -> Statistics:
        """How many calls run and wait now, how many threads outlived theirs, and what its actors do."""
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
        """Run the calls and return their results.

        Args:
            input: see the class.
            config: a LangChain config; its `max_concurrency` bounds this run.
            ledger: outside a graph, a dict that is kept up to date while calls finish and ask, empty at
                first, or the `ledger` of a `CallsInterrupted`; what finished in an earlier run with the
                same input does not run again, whatever happened to its neighbours.
            resume: answers, `{interrupt.id: answer}` for any of the open questions, or the answer itself
                if one question is open. In a LangGraph graph, resume the graph instead.
            runtime: outside a graph, what tools are given as theirs: LangGraph's, with a context and a store.

        Raises:
            CallsInterrupted: with the questions of all calls that wait for an answer; inside a LangGraph
                graph a plain `GraphInterrupt`.
            UnknownInterruptError: if an answer fits no open question.
            ValueError: if there is nothing in the input that could be run, or the ledger is another's.
            BaseException: the error of a call that nobody handles, bare, once everything that was started
                has ended.
        """
        with entered("async"):
            if is_plain(self, ToolNode):
                batch = await self._batch(input, config, ledger, resume, runtime)
                return await batch.run()
            entry = Entry(input, config, _given(ledger=ledger, resume=resume, runtime=runtime))
            if hears_other(self, "invoke"):
                return await hear_sync_entry(self, entry, self._run)
            return await self._run(entry)

    def invoke(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        input: Any,
        config: RunnableConfig | None = None,
        *,
        ledger: Mapping[str, Any] | None = None,
        resume: object = None,
        runtime: Runtime[Any] | None = None,
    ) -> Any:
        """`ainvoke` for sync code, also in the thread of a running event loop, which waits.

        A tool or a middleware that has both a sync and an async function runs the sync one, in a worker thread.
        """
        entry = Entry(input, config, _given(ledger=ledger, resume=resume, runtime=runtime))
        if (back := way_back(self)) is not None:
            return back(entry)
        if hears_other(self, "ainvoke"):
            return run_from_sync(partial(self.ainvoke, input, config, **entry.options))
        with entered("sync"):
            return run_from_sync(partial(self._run, entry))

    def _entries(self) -> Entries | None:
        """What a subclass has of its own around a whole run, for whoever runs our calls without us."""
        return entries_of(self)

    async def _run(self, entry: Entry) -> Any:
        inner = inner_of(self) or own_run(self, self._run_batch)
        return await beyond_entries(partial(inner, entry))

    async def _run_batch(self, entry: Entry) -> Any:
        batch = await self._batch(entry.input, entry.config, **entry.options)
        return await batch.run()

    async def _batch(
        self,
        input: Any,
        config: RunnableConfig | None,
        ledger: Mapping[str, Any] | None = None,
        resume: object = None,
        runtime: Runtime[Any] | None = None,
    ) -> ToolBatch:
        requested = await in_portions(reading(input, self._setup.messages_key))
        config = ensure_config(config)
        if runtime is not None:
            config = with_runtime(config, runtime)
        if self.tags:
            config["tags"] = [*config["tags"], *self.tags]
        known = partial(Ledger, held=ledger, answers=resume)
        return await ToolBatch(self._setup, requested, config, known).prepare()

    def _func(self, input: Any, config: RunnableConfig, runtime: Runtime[Any]) -> Any:
        """A run on its way, for `super()._func(...)` in a subclass; in the worker thread of the override."""
        entry = Entry(input, with_runtime(config, runtime), {})
        if (rest := rest_of_run(self, sync=True)) is not None:
            return rest(entry)
        with entered("sync"):
            return run_from_sync(partial(self._run_batch, entry))

    async def _afunc(self, input: Any, config: RunnableConfig, runtime: Runtime[Any]) -> Any:
        """A run on its way, for `super()._afunc(...)` in a subclass."""
        entry = Entry(input, with_runtime(config, runtime), {})
        if (rest := rest_of_run(self, sync=False)) is not None:
            return await rest(entry)
        with entered("async"):
            return await self._run_batch(entry)

    def _run_one(self, call: ToolCall, input_type: InputKind, tool_runtime: ToolRuntime[Any, Any]) -> Any:
        """One call on its way, for `super()._run_one(...)` in a subclass; or one call by itself."""
        if (rest := rest_of_call(self, sync=True)) is not None:
            return rest(call, tool_runtime)
        with entered("sync"):
            return run_from_sync(partial(self._run_alone, call, input_type, tool_runtime))

    async def _arun_one(self, call: ToolCall, input_type: InputKind, tool_runtime: ToolRuntime[Any, Any]) -> Any:
        """One call on its way, for `super()._arun_one(...)` in a subclass; or one call by itself."""
        if (rest := rest_of_call(self, sync=False)) is not None:
            return await rest(call, tool_runtime)
        with entered("async"):
            return await self._run_alone(call, input_type, tool_runtime)

    async def _run_alone(self, call: ToolCall, kind: InputKind, given: ToolRuntime[Any, Any]) -> Any:
        """Run one call with the state and the runtime that came along, and nothing of a subclass's around it."""
        requested = replace(parse_input([call], self._messages_key), kind=kind, state=given.state)
        config = with_runtime(ensure_config(given.config), given)
        batch = ToolBatch(self._setup.without_own_call(), requested, config, Ledger)
        return output_in(await (await batch.prepare()).run(), self._messages_key)

    def inject_tool_args(self, tool_call: Any, input: Any, store: Any = None) -> Any:
        """The tool call with the state and the store that its tool asks for.

        Args:
            tool_call: with name, args and id; stays as it is.
            input: the state: a dict, an object or a list of messages.
            store: for tools with an `InjectedStore`.

        Raises:
            ValueError: if the tool wants a store and there is none, or a field that a list does not have.
        """
        tool = self._setup.tools.get(tool_call["name"])
        if tool is None:
            return tool_call
        runtime: ToolRuntime[Any, Any] = ToolRuntime(
            state=input,
            tool_call_id=tool_call.get("id"),
            config=ensure_config(),
            context=None,
            store=store,
            stream_writer=lambda _: None,
            tools=list(self._setup.tools.values()),
        )
        return inject(tool_call, injected_args(tool), runtime, self._setup.messages_key)


remember(ToolNode)

# Code that asks `isinstance(tools, langgraph.prebuilt.ToolNode)`, LangGraph's own agent included, means us too.
LangGraphToolNode.register(ToolNode)


def _given(**options: Any) -> dict[str, Any]:
    """The options that were given; an override of a subclass need not know the others."""
    return {name: value for name, value in options.items() if value is not None}
