"""Setup of a node: its checked configuration, made from the arguments of `ToolNode` and shared by all runs."""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.tools import tool as create_tool

from callboard._calls._draining import InFlight
from callboard._langchain._plan import Plan, ToolFacts, injected_args, plan_for
from callboard._langgraph._vocabulary import AsyncToolCallWrapper, ToolCallWrapper
from callboard._loops._entry_mode import is_sync_entry
from callboard._records._events import RunInfo
from callboard._records._policies import CallPolicy, Limit, OnError, OnUnknown, ToolCallLike, actor_behind, check_count
from callboard._util._callers import warn_user
from callboard.actors._actor import Actor
from callboard.actors._actor_set import ActorSet
from callboard.actors._child import ChildSpec
from callboard.exceptions import DuplicateToolWarning
from callboard.tools._actor_tools import Toolkit, by_reference, check_graces, is_idempotent, with_handlers
from callboard.tools._chain import Chain, chain_of, wrapper_middleware
from callboard.tools._error_policy import ErrorHandling, ErrorPolicy, Judge
from callboard.tools._middleware import check_policies, check_tools, offers_of, redaction_of, rewriting_of, tools_of
from callboard.tools._on_engine import check_on_engine, on_engine
from callboard.tools._results import InputKind, ResultRules
from callboard.tools._supervision import Supervision


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Checked configuration of a node, which all its runs share."""

    name: str
    tools: Mapping[str, BaseTool]
    plans: ToolFacts[Plan]
    """Cache of the plans of the tools that have been called."""
    supervision: Supervision
    messages_key: str
    rules: Mapping[InputKind, ResultRules]
    """Rules for the outputs of calls, by form of the input."""
    chain: Chain | None
    offers: Callable[[BaseTool], bool] | None
    """Function that returns whether the model may be offered a tool now; `None` if no middleware decides it."""
    rewrite_reply: Callable[[AIMessage, Sequence[Any]], AIMessage] | None
    """Function that lets the middleware change a reply of an agent's model, given the conversation before it; `None` if
    no middleware does."""
    redact_call: Callable[[ToolCallLike, RunInfo | None], ToolCallLike]
    """Function that returns the copy of a call that observers see, redacted by the middleware."""
    judge_tool_error: Judge
    """Function that returns the text for the model about an error of a tool, inside of all middleware; `None` to raise
    the error."""
    judge_final_error: Judge
    """Function that returns the text for the model about an error that leaves all middleware; `None` to raise the
    error."""
    judge_override_error: Judge
    """Function that returns the text for the model about an error that leaves a subclass's override around a call;
    `None` to raise the error."""
    on_error: OnError
    actors: ActorSet
    """Actors with handlers that are tools of the node."""
    in_flight: InFlight
    """Runs of the node that have not ended; a drain waits for them."""
    max_calls: int | None
    """Maximum number of calls of one reply that run; `None` for all."""

    def plan(self, tool: BaseTool) -> Plan:
        """Return the data for running a tool (its plan); a sync run may use another function of the tool."""
        # A tool that a middleware makes for one call is not cached: its plan would keep it alive.
        plan = self.plans.of(tool) if self.tools.get(tool.name) is tool else by_reference(plan_for(tool))
        if plan.sync_variant is not None and is_sync_entry():
            plan = plan.sync_variant
        engine = self.supervision.engines.get(tool.name) if self.supervision.engines else None
        return plan if engine is None else on_engine(plan, engine, self.actors)

    def description(self, name: str) -> str | None:
        return getattr(self.tools.get(name), "description", None)


_ON_ERROR = get_args(OnError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Arguments of `ToolNode`, not yet checked."""

    owner: str
    """Name in errors of the class or function that was given the arguments."""

    tools: Sequence[BaseTool | Callable[..., Any] | Actor | ChildSpec[Any] | Toolkit]
    name: str
    handle_tool_errors: ErrorHandling
    messages_key: str
    wrap_tool_call: ToolCallWrapper | None
    awrap_tool_call: AsyncToolCallWrapper | None
    middleware: Sequence[object]
    timeout: float | None
    limit: Limit | None
    policies: Mapping[str, CallPolicy] | None
    on_error: OnError
    grace: float
    max_calls: int | None
    on_unknown: OnUnknown | None


def setup_of(options: Options) -> Setup:
    """Return the setup of a new node, with its own limits and threads."""
    _check_options(options)
    name, middleware = options.name, options.middleware
    supervision = Supervision(
        options.owner,
        f"node {name!r}",
        timeout=options.timeout,
        limit=options.limit,
        policies=options.policies,
        grace=options.grace,
        on_unknown=options.on_unknown,
    )
    tools, actors = with_handlers(options.tools, f"the node {name!r}")
    tools_by_name = _collect_tools(options.owner, tools, tools_of(middleware))
    supervision.adopt(tools_by_name.values())
    actors.is_needed = actors.is_needed or bool(supervision.engines)
    supervision.check_tools(tools_by_name)
    for tool in tools_by_name.values():
        injected_args(tool)  # raises for wrong markers now; the rest of a plan is made at the first call
        if is_idempotent(tool):
            supervision.note_idempotent(tool.name)
    for tool_name, engine in supervision.engines.items():
        check_on_engine(plan_for(tools_by_name[tool_name]), engine)
    policies = supervision.policies_of(tools_by_name)
    if actors.specs:
        check_graces(actors, {name: policy.grace for name, policy in policies.items()})
    errors = ErrorPolicy(options.handle_tool_errors)
    wrapper = wrapper_middleware(options.wrap_tool_call, options.awrap_tool_call)
    chain = chain_of(middleware, wrapper)
    wrappers = [wrap_call for wrap_call in (options.wrap_tool_call, options.awrap_tool_call) if wrap_call is not None]
    check_tools([*middleware, *wrappers], tools_by_name)
    check_policies(middleware, policies)
    return Setup(
        name=name,
        tools=tools_by_name,
        plans=ToolFacts(lambda tool: by_reference(plan_for(tool))),
        supervision=supervision,
        messages_key=options.messages_key,
        rules={kind: ResultRules(kind, options.messages_key) for kind in get_args(InputKind)},
        chain=chain,
        offers=offers_of(middleware),
        rewrite_reply=rewriting_of(middleware, tools_by_name),
        redact_call=redaction_of(middleware),
        judge_tool_error=partial(errors.text, "tool in middleware" if middleware else "tool"),
        judge_final_error=partial(errors.text, "middleware" if middleware else "wrapper" if wrapper else "call"),
        judge_override_error=partial(errors.text, "call"),
        on_error=options.on_error,
        in_flight=InFlight(f"the node {name!r}"),
        max_calls=options.max_calls,
        actors=actors,
    )


def _check_options(options: Options) -> None:
    """Raise ValueError or TypeError for invalid options, before anything is built."""
    if options.on_error not in _ON_ERROR:
        raise ValueError(f"{options.owner}(on_error=...) is 'cancel' or 'finish', got {options.on_error!r}")
    for option, value in (("name", options.name), ("messages_key", options.messages_key)):
        if not isinstance(value, str):
            raise TypeError(f"{options.owner}({option}=...) is a text, got {value!r}")
    if options.max_calls is not None:
        check_count(f"{options.owner}(max_calls=...)", options.max_calls, least=1)
    tools: object = options.tools
    if isinstance(tools, (Actor, ChildSpec)):
        raise TypeError(f"ToolNode takes a list of tools: ToolNode([{tools!r}])")
    if isinstance(tools, BaseTool) or inspect.isroutine(tools):
        name = tools.name if isinstance(tools, BaseTool) else tools.__name__
        raise TypeError(f"ToolNode takes a list of tools: ToolNode([{name}]), not ToolNode({name})")
    if isinstance(tools, (str, Mapping)) or not isinstance(tools, Iterable):
        raise TypeError(f"ToolNode takes a list of tools, such as ToolNode([search]); got {tools!r}")


def _collect_tools(
    owner: str,
    tools: Sequence[BaseTool | Callable[..., Any]],
    middleware_tools: Sequence[BaseTool | Callable[..., Any]],
) -> dict[str, BaseTool]:
    by_name: dict[str, BaseTool] = {}
    for index, item in enumerate((*tools, *middleware_tools)):
        tool = as_tool(item)
        other = by_name.get(tool.name)
        if other is not None and other is not tool:
            has_actor = any(actor_behind(getattr(each, "coroutine", None)) is not None for each in (other, tool))
            # A middleware, or the caller of an actor, needs the tool that it has brought.
            if has_actor or index >= len(tools):
                raise ValueError(f"Two tools are named {tool.name!r}: {other!r} and {tool!r}")
            warn_about_replaced_tool(owner, other, tool)
        fn = getattr(tool, "func", None) or getattr(tool, "coroutine", None) or tool._run
        code = getattr(fn, "__code__", None)
        if code is not None and code.co_flags & (inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR):
            raise TypeError(
                f"The tool {tool.name!r} is a generator, and a call has one result: return it, such as a list, and "
                "report parts before it with callboard.progress()"
            )
        by_name[tool.name] = tool
    return by_name


def warn_about_replaced_tool(owner: str, replaced: BaseTool, tool: BaseTool) -> None:
    """Warn that a tool takes the place of another one with the same name, as in LangGraph."""
    warn_user(
        f"{owner}: two tools are named {tool.name!r}, {_origin(replaced)} and {_origin(tool)}; the second takes the "
        "place of the first, as in LangGraph. Give one of them another name: @tool('other_name')",
        DuplicateToolWarning,
    )


def _origin(tool: BaseTool) -> str:
    """Return the place of a tool's function in the program."""
    fn = getattr(tool, "func", None) or getattr(tool, "coroutine", None) or type(tool)._run
    return f"{getattr(fn, '__module__', '?')}.{getattr(fn, '__qualname__', type(fn).__qualname__)}"


def as_tool(item: BaseTool | Callable[..., Any]) -> BaseTool:
    """Return a tool, or a function as a tool; raise TypeError for other objects, ValueError without a docstring."""
    if isinstance(item, BaseTool):
        return item
    _check_function(item)
    try:
        return create_tool(item)
    except ValueError as error:
        if inspect.isroutine(item) and not inspect.getdoc(item):
            error.add_note(
                f"The tool {item.__name__!r} has no docstring, and a model has to be told what it does: write "
                f"one below `def {item.__name__}(...)`, or use @tool(description=...)."
            )
        raise


_HINTS_BY_TYPE = (
    (str, "; give the tool itself instead of its name"),
    ((list, tuple), "; it is a list in a list: write [*tools, ...]"),
    (dict, "; a description of a tool that runs at the provider is for create_react_agent(model, tools=[...])"),
    (Awaitable, "; give the function itself, without calling it"),
)


def _check_function(item: object) -> None:
    """Raise TypeError for an item in the list of tools that is neither a tool nor a function."""
    if isinstance(item, type) and issubclass(item, (BaseTool, Runnable, Actor)):
        hint = f"; it is a class: write {item.__name__}(...)"
    elif isinstance(getattr(item, "__self__", None), Actor):
        hint = "; give the actor itself, whose handlers are tools then"
    elif isinstance(item, AbstractAsyncContextManager) and not isinstance(item, Runnable):
        hint = f"; enter it first: `async with {item!r} as entered`, then ToolNode([entered])"
    elif callable(item):
        return
    else:
        hint = next((text for kind, text in _HINTS_BY_TYPE if isinstance(item, kind)), "")
    raise TypeError(f"A tool is a LangChain tool or a function, got {item!r}{hint}")
