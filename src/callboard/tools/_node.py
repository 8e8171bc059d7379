"""`ToolNode`: the public door to supervised tool calls."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast, get_args

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config
from langchain_core.tools import BaseTool
from langchain_core.tools import tool as create_tool
from langgraph.prebuilt import ToolNode as LangGraphToolNode

from callboard._bridge import run_from_sync
from callboard._time import DEFAULT_GRACE
from callboard._types import CallPolicy, Limit, OnError, Statistics
from callboard.middleware._chain import chain_of, check_tools, offers_of, shown_by, tools_of, wrapper_link
from callboard.tools._batch import ToolBatch
from callboard.tools._errors import ErrorHandling, ErrorPolicy, Judge, only_invalid_arguments
from callboard.tools._inject import inject, injected_args
from callboard.tools._input import parse_input
from callboard.tools._many import ManyInputs
from callboard.tools._plan import plan_for
from callboard.tools._setup import Setup
from callboard.tools._supervision import Supervision, unknown_policy
from callboard.tools._vocabulary import AsyncToolCallWrapper, ToolCallWrapper, ToolRuntime


class ToolNode(ManyInputs):
    """Runs the tool calls of the last AIMessage as supervised tasks, at once and together.

    A drop-in for `langgraph.prebuilt.ToolNode`: as a node of a graph, or on its own, on asyncio and trio.
    The input is a state (dict or object) with messages, a list of messages, a list of tool calls, or a
    `ToolCallWithContext`; the output has one message or command for each call, in call order.

    Args:
        tools: LangChain tools, or functions to make tools of.
        name: the node's name in a graph.
        tags: tags of the node's runs.
        handle_tool_errors: which errors of tools become messages: `True` for all, a text for all, exception
            types, or a function from an error to a text, for the types that it is annotated with; `False`
            for none. By default only invalid arguments do. A timeout, a rejection or a spent budget
            always does, unless this is `False`.
        messages_key: where a state keeps its messages.
        wrap_tool_call: a function `(request, execute)` around each call; runs in a worker thread.
        awrap_tool_call: the same, async; goes first where both are given.
        middleware: links around each call, the first outermost: functions `(request, call_next)`, async or
            sync (these run in worker threads), or objects with `awrap_tool_call` or `wrap_tool_call`, such
            as LangChain's AgentMiddleware. They see every error of a tool but invalid arguments; what they
            do not handle, `handle_tool_errors` judges. What they have in `tools` are tools of the node too.
        timeout: seconds for one attempt of every tool whose policy says nothing else.
        limit: for all calls of the node together, across its runs.
        policies: by tool name.
        on_error: what an error that nobody handles does to the other calls: "cancel" them, or let them
            "finish" before it is raised.
        grace: seconds of clean-up after a cancel.

    Raises:
        ValueError: for two tools with one name, a policy of an unknown tool, a number out of range, or an
            error handler annotated with something that is no exception.
        TypeError: for a tool or an option of the wrong kind.
    """

    name: str | None = "tools"

    def __init__(
        self,
        tools: Sequence[BaseTool | Callable[..., Any]],
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
    ) -> None:
        if on_error not in get_args(OnError):
            raise ValueError(f"ToolNode(on_error=...) is 'cancel' or 'finish', got {on_error!r}")
        self.name = name
        self.tags = tags
        by_name = _by_name(tools, tools_of(middleware))
        check_tools(middleware, by_name)
        if unknown := unknown_policy(policies or (), by_name):
            raise ValueError(unknown)
        supervision = Supervision(
            "ToolNode", f"node {name!r}", timeout=timeout, limit=limit, policies=policies, grace=grace
        )
        errors = ErrorPolicy(handle_tool_errors)
        wrapper = wrapper_link(wrap_tool_call, awrap_tool_call)
        self._setup = Setup(
            name=name,
            tools=by_name,
            plans={name: plan_for(tool) for name, tool in by_name.items()},
            supervision=supervision,
            messages_key=messages_key,
            link=chain_of(middleware, wrapper),
            offers=offers_of(middleware),
            shown=shown_by(middleware),
            at_tool=errors.invalid_arguments if middleware else errors.content,
            at_end=_last_judge(errors, wrapper=wrapper is not None, middleware=bool(middleware)),
            on_error=on_error,
        )

    def __repr__(self) -> str:
        return f"ToolNode([{', '.join(self._setup.tools)}], name={self.name!r})"

    @property
    def tools_by_name(self) -> dict[str, BaseTool]:
        """The tools, by name."""
        return cast("dict[str, BaseTool]", self._setup.tools)

    def offered_tools(self) -> list[BaseTool]:
        """The tools that a model should be told of now: all, but for those that a link holds back.

        A link holds a tool back by a method `offers(tool) -> bool`, as an open `CircuitBreaker` does, unless
        one outside of it says by `covers(tool) -> bool` that it answers instead, as a `Fallback` does.
        """
        return [tool for tool in self._setup.tools.values() if self._setup.offers(tool)]

    def statistics(self) -> Statistics:
        """How many calls run and wait now, and how many threads outlived theirs."""
        return self._setup.supervision.statistics()

    async def ainvoke(
        self,
        input: Any,
        config: RunnableConfig | None = None,
        *,
        ledger: Mapping[str, Any] | None = None,
        resume: object = None,
        **kwargs: Any,
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
            kwargs: accepted and ignored, as by every node of a graph.

        Raises:
            CallsInterrupted: with the questions of all calls that wait for an answer; inside a LangGraph
                graph a plain `GraphInterrupt`.
            UnknownInterruptError: if an answer fits no open question.
            ValueError: if there is nothing in the input that could be run, or the ledger is another's.
            BaseException: the error of a call that nobody handles, bare, once everything that was started
                has ended.
        """
        requested = parse_input(input, self._setup.messages_key)
        config = ensure_config(config)
        if self.tags:
            config["tags"] = [*config["tags"], *self.tags]
        return await ToolBatch(self._setup, requested, config, ledger, resume).run()

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """`ainvoke` for sync code, also in the thread of a running event loop, which waits."""
        return run_from_sync(partial(self.ainvoke, input, config, **kwargs))

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


# Code that asks `isinstance(tools, langgraph.prebuilt.ToolNode)`, LangGraph's own agent included, means us too.
LangGraphToolNode.register(ToolNode)


def _last_judge(errors: ErrorPolicy, *, wrapper: bool, middleware: bool) -> Judge:
    if middleware:
        return errors.after_middleware
    return errors.after_wrapper if wrapper else errors.without_result


def _by_name(
    tools: Sequence[BaseTool | Callable[..., Any]], of_links: Iterable[BaseTool | Callable[..., Any]]
) -> dict[str, BaseTool]:
    given: object = tools
    if isinstance(given, BaseTool):
        raise TypeError(f"ToolNode takes a list of tools: ToolNode([{given.name}]), not ToolNode({given.name})")
    by_name: dict[str, BaseTool] = {}
    for item in (*tools, *of_links):
        if not isinstance(item, BaseTool) and not callable(item):
            raise TypeError(f"A tool is a LangChain tool or a function, got {item!r}")
        tool = item if isinstance(item, BaseTool) else create_tool(item)
        if tool.name in by_name and by_name[tool.name] is not tool:
            raise ValueError(f"Two tools are named {tool.name!r}: {by_name[tool.name]!r} and {tool!r}")
        by_name[tool.name] = tool
    return by_name
