"""`create_react_agent`: a model that calls tools until it has an answer."""

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, cast, get_type_hints

from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langgraph.prebuilt import ToolNode as LangGraphToolNode
from langgraph.store.base import BaseStore
from langgraph.warnings import LangGraphDeprecatedSinceV10

from callboard._callers import level_of_user
from callboard._calls._under_way import UnderWay
from callboard._durations import tell_of_milliseconds
from callboard._langgraph import arguments_of
from callboard._suggestions import did_you_mean
from callboard._types import OnUnknown, check_seconds
from callboard.actors._actor import Actor
from callboard.actors._child import ChildSpec
from callboard.agent._agent import Agent as Agent
from callboard.agent._conversation._channels import Schema
from callboard.agent._conversation._connect import saver_of, store_of
from callboard.agent._conversation._stored_types import checked_types, named_types
from callboard.agent._drawing import Builder, drawing
from callboard.agent._flow import AFTER, BEFORE, Flow
from callboard.agent._model import Asks, ChosenModel, FixedModel, ModelChoice, Prompt
from callboard.agent._run import AgentPlan
from callboard.agent._runner import Runner
from callboard.agent._state import AgentState, AgentStateWithStructuredResponse
from callboard.agent._stops import Stops
from callboard.exceptions import IdleMiddlewareWarning
from callboard.tools._errors import only_invalid_arguments
from callboard.tools._node import ToolNode
from callboard.tools._toolkits import Toolkit
from callboard.tools._workings import Workings


def create_react_agent(
    model: str | Runnable[Any, Any] | ModelChoice,
    tools: Sequence[BaseTool | Callable[..., Any] | dict[str, Any] | Actor | ChildSpec[Any] | Toolkit]
    | ToolNode
    | LangGraphToolNode,
    *,
    prompt: Prompt | None = None,
    response_format: Any = None,
    pre_model_hook: Any = None,
    post_model_hook: Any = None,
    state_schema: type[Any] | None = None,
    context_schema: type[Any] | None = None,
    checkpointer: Any = None,
    store: BaseStore | str | None = None,
    interrupt_before: list[str] | None = None,
    interrupt_after: list[str] | None = None,
    debug: bool = False,
    version: Literal["v1", "v2"] = "v2",
    name: str | None = None,
    budget: float | None = None,
    middleware: Sequence[object] = (),
    stored_types: Sequence[type[Any]] = (),
    max_calls: int | None = None,
    on_unknown: OnUnknown | None = None,
    **deprecated_kwargs: Any,
) -> Agent:
    """Make an agent that calls tools until its model has an answer.

    Args:
        model: a chat model, also with its tools bound already; `provider:name` for langchain's
            `init_chat_model`; or a function, sync or async, from the state and the runtime to a model that
            has its tools bound.
        tools: LangChain tools, functions, actors, descriptions of tools that run at the provider, or a `ToolNode`
            with policies of its own, or LangGraph's.
        prompt: a system message (text or message) to start with, or a function or Runnable from the state
            to the model's input.
        response_format: a schema for the answer as `structured_response`, or a system prompt and a schema;
            costs one more call of the model.
        pre_model_hook: runs before each call of the model; what it returns updates the state, under
            `llm_input_messages` only what the model sees.
        post_model_hook: runs after each reply of the model; what it returns updates the state.
        state_schema: a TypedDict, dataclass or pydantic model with `messages` and `remaining_steps`.
        context_schema: of what runs are given as `context`.
        checkpointer: keeps the conversation by `thread_id`; one of LangGraph's, or a URL: "sqlite:///agent.db",
            "postgresql://user:password@host/database", "memory".
        store: for tools, hooks and prompts; one of LangGraph's, or a URL like that of a checkpointer.
        interrupt_before: nodes before which every run stops, such as `["tools"]`.
        interrupt_after: nodes after which every run stops.
        debug: print each step.
        version: "v1" shows a batch of calls as one task, "v2" each call as its own; every call is
            supervised on its own either way.
        name: of the agent, also on its messages.
        budget: seconds for each run; `None` for no end.
        middleware: what is around each tool call, the first outermost; see `ToolNode`.
        stored_types: what a database by URL may contain beside LangGraph's and LangChain's own types and those that
            the schemas name; nothing else is read from it, or written.
        max_calls: how many calls of one reply run; see `ToolNode`.
        on_unknown: what becomes of a call whose body began and whose end nobody knows, because the process, an actor
            or a worker died: "rerun" it, as LangGraph does, "ask" a person, or "fail"; see `CallPolicy`. By default it
            runs again if its tool is idempotent, and otherwise the model is told.
        deprecated_kwargs: `config_schema`, the older name of `context_schema`.

    Raises:
        NotImplementedError: if the model cannot be told of tools.
        ImportError: if a model is given by name and langchain is not installed, or a database without its driver.
        TypeError: if the model is none, or for an unknown option.
        ValueError: if types are named for a saver with a serializer of its own, the model's tools are not the agent's,
            the prompt, the version or a node is unknown, the state lacks a key, or `middleware`, `max_calls` or
            `on_unknown` is given beside a `ToolNode`.
    """
    context_schema = _context_schema(context_schema, deprecated_kwargs)
    _check_version(version)
    check_seconds("create_react_agent(budget=...)", budget, zero=False)
    tell_of_milliseconds("create_react_agent(budget=...)", budget)
    given_types = checked_types(stored_types, checkpointer)
    schema = _checked_schema(state_schema, with_response=response_format is not None)
    node, provider_tools = _tool_node(tools, middleware, max_calls, on_unknown)
    hooks = _checked_hooks(pre_model_hook, post_model_hook)
    stops = _checked_stops(interrupt_before, interrupt_after)
    flow = _flow_of(node, hooks, response_format)
    builder = _drawn(drawing(flow, schema, context_schema, hooks, node), stops)
    plan = AgentPlan(
        name=name,
        flow=flow,
        schema=Schema(builder, flow),
        model=_asks(model, node, provider_tools, prompt),
        tools=node,
        hooks={key: cast("Runnable[Any, Any]", builder.nodes[key].runnable) for key in hooks if key in builder.nodes},
        response_format=response_format,
        version=version,
    )
    types = frozenset({*given_types, *named_types(*builder.schemas, context_schema, response_format)})
    saver, shared = saver_of(checkpointer, types), store_of(store)
    if saver is None:
        _tell_unkept_questions(node)
    runner = Runner(
        plan=plan,
        name=name or "LangGraph",
        store=shared,
        context_schema=context_schema,
        debug=debug,
        under_way=UnderWay(f"the agent {name or 'LangGraph'!r}"),
    )
    return Agent(runner, builder, checkpointer=saver, stops=stops, budget=budget, stored_types=types)


def _context_schema(given: type[Any] | None, deprecated: dict[str, Any]) -> type[Any] | None:
    """The schema of the context, which an older name may have brought.

    Raises:
        TypeError: for any other option that is not known.
    """
    if (older := deprecated.pop("config_schema", None)) is not None:
        warnings.warn(
            "`config_schema` is deprecated and will be removed. Please use `context_schema` instead.",
            LangGraphDeprecatedSinceV10,
            stacklevel=3,
        )
    if deprecated:
        raise TypeError(_unexpected(deprecated))
    return given or older


def _check_version(version: str) -> None:
    if version not in ("v1", "v2"):
        raise ValueError(f"Invalid version {version}. Supported versions are 'v1' and 'v2'.")


def _flow_of(node: ToolNode, hooks: Mapping[str, object], response_format: object) -> Flow:
    return Flow(
        tools=bool(node.tools_by_name),
        before=hooks[BEFORE] is not None,
        after=hooks[AFTER] is not None,
        response=response_format is not None,
        direct=frozenset(tool.name for tool in node.tools_by_name.values() if tool.return_direct),
    )


def _drawn(builder: Builder, stops: Stops) -> Builder:
    """A drawing whose edges lead somewhere, and which has the nodes at which runs are to stop."""
    builder.validate(interrupt=[name for name in (*stops.before, *stops.after) if name != "*"])
    return builder


_ELSEWHERE = {
    **dict.fromkeys(("system_prompt", "state_modifier", "messages_modifier", "system_message"), "prompt=..."),
    **dict.fromkeys(("memory", "saver", "checkpoint"), "checkpointer=..."),
    **dict.fromkeys(("max_iterations", "recursion_limit"), "config={'recursion_limit': ...} of each run"),
    **dict.fromkeys(
        ("callbacks", "tags", "metadata", "max_concurrency"), "the config of each run, or with_config(...)"
    ),
    "verbose": "debug=True",
    "deadline": "budget=...",
    "timeout": "budget=... for a run, or the node of the tools for a call: ToolNode([...], timeout=...)",
}
"""What others call it, or where it belongs."""

_OF_NODE = ("limit", "policies", "on_error", "grace", "handle_tool_errors", "wrap_tool_call", "awrap_tool_call")


def _unexpected(options: Mapping[str, object]) -> str:
    """What to say of options that there are not."""
    told = f"create_react_agent() got unexpected keyword arguments: {dict(options)}"
    known = list(inspect.signature(create_react_agent).parameters)[:-1]
    for name in options:
        if name in _ELSEWHERE:
            told += f"; instead of {name} use {_ELSEWHERE[name]}"
        elif name in _OF_NODE:
            told += f"; {name} is for the node of the tools: create_react_agent(model, ToolNode([...], {name}=...))"
        else:
            told += did_you_mean(name, known)
    return told


def _checked_hooks(before: object, after: object) -> dict[str, Any]:
    """The hooks, by the name of their node."""
    for option, hook in (("pre_model_hook", before), ("post_model_hook", after)):
        if hook is not None and not isinstance(hook, (Runnable, dict)) and not callable(hook):
            raise TypeError(f"{option} is a function or a Runnable, got {hook!r}")
    return {BEFORE: before, AFTER: after}


def _checked_stops(before: list[str] | None, after: list[str] | None) -> Stops:
    for option, nodes in (("interrupt_before", before), ("interrupt_after", after)):
        given: object = nodes
        if isinstance(given, str) and given != "*":
            raise TypeError(f"{option} is a list of nodes, such as [{given!r}], or '*'; got {given!r}")
    return Stops(before=before or (), after=after or ())


def _checked_schema(schema: type[Any] | None, *, with_response: bool) -> type[Any]:
    if schema is None:
        return AgentStateWithStructuredResponse if with_response else AgentState
    if not isinstance(schema, type):
        raise TypeError(f"state_schema is a TypedDict, a dataclass or a pydantic model, got {schema!r}")
    required = {"messages", "remaining_steps"} | ({"structured_response"} if with_response else set())
    if missing := required - set(get_type_hints(schema)):
        raise ValueError(f"Missing required key(s) {missing} in state_schema")
    return schema


def _tool_node(
    tools: Sequence[BaseTool | Callable[..., Any] | dict[str, Any] | Actor | ChildSpec[Any] | Toolkit]
    | ToolNode
    | LangGraphToolNode,
    middleware: Sequence[object],
    max_calls: int | None,
    on_unknown: OnUnknown | None,
) -> tuple[ToolNode, list[dict[str, Any]]]:
    if not isinstance(tools, ToolNode) and isinstance(tools, LangGraphToolNode):
        tools, on_unknown = ToolNode(**arguments_of(tools, only_invalid_arguments), on_unknown=on_unknown), None
    if not isinstance(tools, ToolNode):
        given: object = tools
        if isinstance(given, (BaseTool, str, Mapping)) or not isinstance(given, Iterable):
            name = given.name if isinstance(given, BaseTool) else getattr(given, "__name__", None)
            hint = f"; write [{name}]" if name else ""
            raise TypeError(f"tools is a sequence of tools, or a ToolNode, got {given!r}{hint}")
        tools = list(tools)
        here = [tool for tool in tools if not isinstance(tool, dict)]
        node = ToolNode(here, middleware=middleware, max_calls=max_calls, on_unknown=on_unknown)
        return node, [tool for tool in tools if isinstance(tool, dict)]
    if middleware:
        raise ValueError("Middleware belongs to the node that it is around: give middleware=[...] to the ToolNode")
    if max_calls is not None:
        raise ValueError("create_react_agent(max_calls=...) belongs to the node: ToolNode(..., max_calls=...)")
    if on_unknown is not None:
        raise ValueError("create_react_agent(on_unknown=...) belongs to the node: ToolNode(..., on_unknown=...)")
    return tools, []


def _tell_unkept_questions(node: ToolNode) -> None:
    """Warn of middleware that asks people, where no answer can be given."""
    if asking := Workings(node).needs_checkpointer:
        warnings.warn(
            f"{asking[0]} asks a person, and this agent has no checkpointer that keeps the call until it is answered: "
            "give it one, such as create_react_agent(..., checkpointer='sqlite:///agent.db'). Ignore this warning for "
            "an agent that is served by `callboard mcp`, or runs inside another agent or a graph with a checkpointer",
            IdleMiddlewareWarning,
            stacklevel=level_of_user(),
        )


def _asks(
    model: str | Runnable[Any, Any] | ModelChoice,
    node: ToolNode,
    provider_tools: list[dict[str, Any]],
    prompt: Prompt | None,
) -> Asks:
    if not isinstance(model, (str, type, Runnable)) and callable(model):
        return ChosenModel(model, prompt)
    return FixedModel(cast("Any", model), list(node.tools_by_name.values()), provider_tools, prompt)
