"""`create_react_agent`: makes an agent whose model calls tools until it gives an answer, and runs the agent's nodes."""

import inspect
import warnings
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Literal, Unpack, cast, get_type_hints, overload

from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.prebuilt import ToolNode as LangGraphToolNode
from langgraph.store.base import BaseStore
from langgraph.warnings import LangGraphDeprecatedSinceV10

from callboard._calls._draining import InFlight
from callboard._calls._durations import warn_about_milliseconds
from callboard._langgraph._outer_task import arguments_of
from callboard._records._policies import OnUnknown, check_seconds, check_type
from callboard._util._callers import warn_user
from callboard._util._suggestions import did_you_mean
from callboard.actors._actor import Actor
from callboard.actors._child import ChildSpec
from callboard.agent._agent import Agent as Agent
from callboard.agent._background import BackgroundCalls
from callboard.agent._flow import (
    AgentOutput,
    AgentState,
    AgentStateWithStructuredResponse,
    Builder,
    ReactFlow,
    ResponseT,
    StateT,
    drawing,
)
from callboard.agent._live import LiveRuns
from callboard.agent._model import ChosenModel, FixedModel, ModelChoice, Prompt, for_model, value_in
from callboard.agent._options import AgentOptions, check_stops
from callboard.agent._run_context import AgentPlan, Breakpoints, NodeBodies, RunContext, loop_guard_of
from callboard.agent._runner import Runner
from callboard.conversations._channels import Schema
from callboard.conversations._database import saver_of, store_of
from callboard.conversations._history import complete_calls, repair, storable_messages
from callboard.conversations._stored_types import collect_types, parse_stored_types
from callboard.conversations._targets import AFTER, AGENT, BEFORE, RESPONSE
from callboard.exceptions import IdleMiddlewareWarning
from callboard.middleware._loop_guard import LoopGuard
from callboard.tools._actor_tools import Toolkit
from callboard.tools._error_policy import only_invalid_arguments
from callboard.tools._node import NodeAccess, ToolNode
from callboard.tools._unanswered import all_calls_in


class ReactNodes(NodeBodies):
    """Functions that run the nodes of an agent of `create_react_agent` in one run."""

    model_node = AGENT

    def __init__(
        self, flow: ReactFlow, model: FixedModel | ChosenModel, response_format: Any, context: RunContext
    ) -> None:
        super().__init__(context)
        self._flow = flow
        self._model = model
        self._response_format = response_format

    def output(self, node: str, node_input: Any, config: RunnableConfig, *, is_sent: bool) -> Awaitable[Any]:
        if node == AGENT:
            return self._reply(node_input, config, is_sent)
        if node == RESPONSE:
            return self._response(node_input, config)
        return super().output(node, node_input, config, is_sent=is_sent)

    async def _reply(self, state: Any, config: RunnableConfig, is_sent: bool) -> dict[str, Any]:
        """Send the state to the model; return the reply as an update of the state, in a form that can be stored."""
        model, flow = self._model, self._flow
        model_input, reporter = state, self.context.reporter
        # Messages that a hook before the model wrote for the model alone.
        llm_messages = self.context.thread.state.get("llm_input_messages") if flow.before else None
        if is_sent:
            model_input = for_model(state, before=flow.before)
        elif llm_messages is not None or not self.is_conversation_in_order:
            ordered_messages = self.repaired_messages if llm_messages is None else repair(llm_messages).request
            if isinstance(state, dict):
                model_input = {**state, "messages": ordered_messages}
            else:
                state.messages = ordered_messages
        ask = partial(model.reply, model_input, config, self.context.tools.node.offered_tools())
        reply = await (ask() if reporter is None else reporter.ask(model.bound_model, model_input, ask))
        if reply.name != self.context.plan.name:
            reply.name = self.context.plan.name
        complete_calls(reply)
        reply = await self.rewrite_reply(reply, value_in(state, "messages"))
        remaining = value_in(state, "remaining_steps") if is_sent else self.context.steps_left
        if remaining is not None and remaining < 2 and isinstance(reply, AIMessage):
            are_all_direct = all(call["name"] in flow.direct for call in reply.tool_calls)
            if (remaining < 1 and are_all_direct) or all_calls_in(reply):
                reply = AIMessage(id=reply.id, content="Sorry, need more steps to process this request.")
        return {"messages": storable_messages(reply, is_stored=self.context.thread.is_kept)}

    async def _response(self, state: Any, config: RunnableConfig) -> dict[str, Any]:
        model, reporter, form = self._model, self.context.reporter, self._response_format
        state = for_model(state, before=False)
        ask = partial(model.respond, state, config, form)
        response = ask() if reporter is None else reporter.ask(model.bound_model, state, ask, response_format=form)
        return {"structured_response": await response}


ReactTools = (
    Sequence[BaseTool | Callable[..., Any] | dict[str, Any] | Actor | ChildSpec[Any] | Toolkit]
    | ToolNode
    | LangGraphToolNode
)


class ReactOptions(AgentOptions, total=False):
    """Keyword options of `create_react_agent` that do not decide the type of its results; for overloads only."""

    prompt: Prompt | None
    pre_model_hook: Any
    post_model_hook: Any
    version: Literal["v1", "v2"]


@overload
def create_react_agent(
    model: str | Runnable[Any, Any] | ModelChoice,
    tools: ReactTools,
    *,
    state_schema: type[StateT],
    response_format: Any = None,
    **options: Unpack[ReactOptions],
) -> Agent[StateT]: ...


@overload
def create_react_agent(
    model: str | Runnable[Any, Any] | ModelChoice,
    tools: ReactTools,
    *,
    response_format: type[ResponseT] | tuple[str, type[ResponseT]],
    **options: Unpack[ReactOptions],
) -> Agent[AgentOutput[ResponseT]]: ...


@overload
def create_react_agent(
    model: str | Runnable[Any, Any] | ModelChoice,
    tools: ReactTools,
    *,
    response_format: None = None,
    state_schema: None = None,
    **options: Unpack[ReactOptions],
) -> Agent: ...


@overload
def create_react_agent(
    model: str | Runnable[Any, Any] | ModelChoice,
    tools: ReactTools,
    *,
    response_format: Any = None,
    state_schema: type[Any] | None = None,
    **options: Unpack[ReactOptions],
) -> Agent[Any]: ...


def create_react_agent(
    model: str | Runnable[Any, Any] | ModelChoice,
    tools: ReactTools,
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
    loop_guard: LoopGuard | bool = True,
    **deprecated_kwargs: Any,
) -> Agent[Any]:
    """Return an agent that calls tools until its model gives an answer.

    Args:
        model: a chat model, with or without bound tools; `provider:name` for langchain's `init_chat_model`; or a sync
            or async function that takes the state and the runtime and returns a model with bound tools.
        tools: LangChain tools, functions, actors, descriptions of tools that run at the provider, a `ToolNode` with
            policies of its own, or LangGraph's `ToolNode`.
        prompt: system message (text or message) before the conversation, or a function or Runnable that turns the state
            into the model's input.
        response_format: schema of the answer in `structured_response`, or a system prompt and a schema; takes one more
            request to the model.
        pre_model_hook: runs before each model request. Its result updates the state; `llm_input_messages` in it
            replaces the messages for the model alone, also in later requests, until the hook returns others.
        post_model_hook: runs after each model reply; its result updates the state.
        state_schema: TypedDict, dataclass or pydantic model with `messages` and `remaining_steps`.
        context_schema: type of the runs' `context`.
        checkpointer: stores conversations by `thread_id`: a LangGraph saver or a URL, "sqlite:///agent.db",
            "postgresql://user:password@host/database" or "memory".
        store: store for tools, hooks and prompts: a LangGraph store or a URL as for `checkpointer`.
        interrupt_before: nodes before which every run stops, such as `["tools"]`.
        interrupt_after: nodes after which every run stops.
        debug: print each step.
        version: "v1" reports a batch of calls as one task, "v2" each call as a task of its own. Each call is supervised
            individually in both.
        name: name of the agent and of its messages.
        budget: seconds for each run; `None` for no limit.
        middleware: middleware around each tool call, the outermost first; see `ToolNode`.
        stored_types: types that a database by URL may contain, besides those of LangGraph, of LangChain and of the
            schemas. No other type is read or written.
        max_calls: largest number of calls of one reply that run; see `ToolNode`.
        on_unknown: action for a call whose body began and whose result is unknown, because the process, an actor or a
            worker died: "rerun" (as LangGraph), "ask" a person, or "fail"; see `CallPolicy`. By default the call runs
            again if its tool is idempotent, and otherwise the model gets an error.
        loop_guard: guard against a model that repeats the same calls and gets the same results: `True` tells it
            when it makes them for the 15th time in a row, refuses from the 25th, and raises `LoopError` at the 40th;
            `False` for none.
        deprecated_kwargs: `config_schema`, the older name of `context_schema`.

    Raises:
        NotImplementedError: if the model has no `bind_tools` of its own.
        ImportError: if langchain is missing for a model name, or the driver is missing for a database URL.
        TypeError: if `model` is not a model, or an option is unknown.
        ValueError: if `stored_types` is given with a saver that has its own serializer, the model's tools are not the
            agent's, the prompt, the version or a node is unknown, the state lacks a key, or `middleware`, `max_calls`
            or `on_unknown` is given with a `ToolNode`.
    """
    context_schema = _choose_context_schema(context_schema, deprecated_kwargs)
    if version not in ("v1", "v2"):
        raise ValueError(f"Invalid version {version}. Supported versions are 'v1' and 'v2'.")
    check_seconds("create_react_agent(budget=...)", budget, zero=False)
    check_type("create_react_agent(debug=...)", debug, bool, "True")
    warn_about_milliseconds("create_react_agent(budget=...)", budget)
    extra_types = parse_stored_types(stored_types, checkpointer)
    schema = _choose_state_schema(state_schema, with_response=response_format is not None)
    node, provider_tools = _tool_node(tools, middleware, max_calls, on_unknown)
    for option, hook in (("pre_model_hook", pre_model_hook), ("post_model_hook", post_model_hook)):
        if hook is not None and not isinstance(hook, (Runnable, dict)) and not callable(hook):
            raise TypeError(f"{option} is a function or a Runnable, got {hook!r}")
    hooks: dict[str, Any] = {BEFORE: pre_model_hook, AFTER: post_model_hook}
    breakpoint_options: dict[str, object] = {"interrupt_before": interrupt_before, "interrupt_after": interrupt_after}
    for option, nodes in breakpoint_options.items():
        check_stops(option, nodes)
    breakpoints = Breakpoints(before=interrupt_before or (), after=interrupt_after or ())
    flow = ReactFlow(
        tools=bool(node.tools_by_name),
        before=hooks[BEFORE] is not None,
        after=hooks[AFTER] is not None,
        response=response_format is not None,
        direct=frozenset(tool.name for tool in node.tools_by_name.values() if tool.return_direct),
    )
    build_graph = partial(drawing, flow, schema, context_schema, hooks, node)
    # Hooks are nodes of the graph; LangGraph converts them to Runnables. Without hooks, agents of one kind share it.
    schemas: Any = (schema, context_schema)  # hashable, which mypy does not know of a type
    builder = build_graph() if flow.before or flow.after else _shared_drawing(flow, *schemas)
    builder.validate(interrupt=[name for name in (*breakpoints.before, *breakpoints.after) if name != "*"])
    agent_model: FixedModel | ChosenModel
    if not isinstance(model, (str, type, Runnable)) and callable(model):
        agent_model = ChosenModel(model, prompt)
    else:
        agent_model = FixedModel(cast("Any", model), list(node.tools_by_name.values()), provider_tools, prompt)
    plan = AgentPlan(
        name=name,
        flow=flow,
        schema=Schema(builder, flow),
        bodies=partial(ReactNodes, flow, agent_model, response_format),
        tools=NodeAccess(node),
        hooks={key: cast("Runnable[Any, Any]", builder.nodes[key].runnable) for key in hooks if key in builder.nodes},
        trace_policies={},
        by_call=version == "v2",
        loop_guard=loop_guard_of("create_react_agent", loop_guard, node),
    )
    types = partial(collect_stored_types, extra_types, [*builder.schemas, context_schema, response_format])
    saver = saver_of(checkpointer, types)
    if saver is None:
        warn_about_unkept_questions(node)
    runner = runner_of(plan, store=store, context_schema=context_schema, debug=debug)
    return Agent(runner, build_graph, checkpointer=saver, breakpoints=breakpoints, budget=budget, stored_types=types)


def runner_of(
    plan: AgentPlan, *, store: BaseStore | str | None, context_schema: type[Any] | None, debug: bool
) -> Runner:
    """Return the `Runner` that starts the runs of an agent; an agent without a name is called `LangGraph` in traces."""
    name = plan.name or "LangGraph"
    in_flight = InFlight(f"the agent {name!r}")
    live_runs = LiveRuns(in_flight)
    return Runner(
        plan=plan,
        name=name,
        store=store_of(store),
        context_schema=context_schema,
        debug=debug,
        in_flight=in_flight,
        live_runs=live_runs,
        background_calls=BackgroundCalls(in_flight, live_runs),
    )


def collect_stored_types(extra_types: Iterable[type], schemas: Iterable[Any]) -> frozenset[type]:
    return frozenset({*extra_types, *collect_types(*schemas)})


def _choose_context_schema(context_schema: type[Any] | None, deprecated: dict[str, Any]) -> type[Any] | None:
    """Return the schema of the runs' context: `context_schema`, else the deprecated `config_schema`, else `None`."""
    if (older := deprecated.pop("config_schema", None)) is not None:
        warnings.warn(
            "`config_schema` is deprecated and will be removed. Please use `context_schema` instead.",
            LangGraphDeprecatedSinceV10,
            stacklevel=3,
        )
    if deprecated:
        message = f"create_react_agent() got unexpected keyword arguments: {deprecated}"
        option_names = list(inspect.signature(create_react_agent).parameters)[:-1]
        for name in deprecated:
            if name in _EQUIVALENTS:
                message += f"; instead of {name} use {_EQUIVALENTS[name]}"
            elif name in _NODE_OPTIONS:
                message += (
                    f"; {name} is for the node of the tools: create_react_agent(model, ToolNode([...], {name}=...))"
                )
            else:
                message += did_you_mean(name, option_names)
        raise TypeError(message)
    return context_schema or older


# LangGraph reads the type hints of a schema anew for each graph, which takes half of the time to make an agent.
@lru_cache(maxsize=64)
def _shared_drawing(flow: ReactFlow, schema: type[Any], context_schema: type[Any] | None) -> Builder:
    """Return a LangGraph builder without tools; agents without hooks share it if their nodes and schemas are equal."""
    return drawing(flow, schema, context_schema)


_EQUIVALENTS = {
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
"""Names of options in other libraries, with the equivalent in callboard; used in error messages."""

_NODE_OPTIONS = ("limit", "policies", "on_error", "grace", "handle_tool_errors", "wrap_tool_call", "awrap_tool_call")


def _choose_state_schema(schema: type[Any] | None, *, with_response: bool) -> type[Any]:
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
        tools = list_tools("create_react_agent", tools, otherwise=", or a ToolNode")
        local_tools = [tool for tool in tools if not isinstance(tool, dict)]
        node = ToolNode(local_tools, middleware=middleware, max_calls=max_calls, on_unknown=on_unknown)
        return node, [tool for tool in tools if isinstance(tool, dict)]
    if middleware:
        raise ValueError("Middleware belongs to the node that it is around: give middleware=[...] to the ToolNode")
    if max_calls is not None:
        raise ValueError("create_react_agent(max_calls=...) belongs to the node: ToolNode(..., max_calls=...)")
    if on_unknown is not None:
        raise ValueError("create_react_agent(on_unknown=...) belongs to the node: ToolNode(..., on_unknown=...)")
    return tools, []


def list_tools(function: str, tools: object, *, otherwise: str = "") -> list[Any]:
    """Return the tools of an agent as a list; raise TypeError for a single tool, a text, a mapping or a node."""
    if isinstance(tools, (BaseTool, str, Mapping)) or not isinstance(tools, Iterable):
        name = tools.name if isinstance(tools, BaseTool) else getattr(tools, "__name__", None)
        hint = f"; write [{name}]" if name else ""
        if isinstance(tools, str):
            hint = "; give the tool itself in place of its name, in a list"
        raise TypeError(f"{function}(tools=...) is a sequence of tools{otherwise}, got {tools!r}{hint}")
    return list(tools)


def warn_about_unkept_questions(node: ToolNode) -> None:
    """Warn if middleware asks people, but the agent has no checkpointer to store calls that wait for an answer."""
    if asking := NodeAccess(node).needs_checkpointer:
        warn_user(
            f"{asking[0]} asks a person, and this agent has no checkpointer that keeps the call until it is answered: "
            "give it one, such as create_react_agent(..., checkpointer='sqlite:///agent.db'). Ignore this warning for "
            "an agent that is served by `callboard mcp`, or runs inside another agent or a graph with a checkpointer",
            IdleMiddlewareWarning,
        )
