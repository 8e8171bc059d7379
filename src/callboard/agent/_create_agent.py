"""`create_agent`: LangChain's agent, run by callboard.

LangChain's own factory builds the graph: nodes for the model and for the hooks of middleware, and the functions of its
edges. A run executes these nodes on callboard's loop, and the calls in a supervised `ToolNode`.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeGuard, Unpack, cast, overload

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolCall
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.cache.base import BaseCache
from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode as LangGraphToolNode
from langgraph.store.base import BaseStore
from langgraph.types import Send

from callboard._calls._durations import warn_about_milliseconds
from callboard._calls._sync_middleware import AsyncioMiddleware, SyncMiddleware, TwoHalves
from callboard._langchain._callbacks import may_be_traced
from callboard._langgraph._outer_task import arguments_of
from callboard._loops._deadline import DEFAULT_GRACE
from callboard._records._policies import CallPolicy, Limit, OnError, OnUnknown, check_seconds, check_type
from callboard._util._extras import install_command
from callboard._util._suggestions import with_remedies
from callboard.actors._actor import Actor
from callboard.actors._child import ChildSpec
from callboard.agent._agent import Agent
from callboard.agent._flow import AgentOutput, ResponseT, StateT
from callboard.agent._model import init_chat_model, no_bind_tools
from callboard.agent._options import AgentOptions, check_stops
from callboard.agent._react import collect_stored_types, list_tools, runner_of, warn_about_unkept_questions
from callboard.agent._run_context import AgentPlan, Breakpoints, NodeBodies, RunContext, loop_guard_of
from callboard.conversations._channels import MESSAGES, Schema, State
from callboard.conversations._database import saver_of
from callboard.conversations._history import complete_calls, storable_messages
from callboard.conversations._stored_types import parse_stored_types
from callboard.conversations._targets import END, MODEL, TOOLS
from callboard.conversations._thread import START
from callboard.middleware._loop_guard import LoopGuard
from callboard.tools._actor_tools import Toolkit, unpack_toolkits
from callboard.tools._chain import middleware_in
from callboard.tools._error_policy import ErrorHandling, only_invalid_arguments
from callboard.tools._middleware import tools_of
from callboard.tools._middleware_hooks import batch_approval_rules, langchain_base
from callboard.tools._node import NodeAccess, ToolNode
from callboard.tools._setup import as_tool, warn_about_replaced_tool
from callboard.tools._unanswered import calls_in, id_of, ids_with_answer, last_reply

if TYPE_CHECKING:
    from langchain.agents.middleware import AgentMiddleware
    from langchain.agents.structured_output import ResponseFormat

Graph = CompiledStateGraph[Any, Any, Any, Any]
_EDITS = "hitl_edited_tool_calls"
"""Key of the state in which LangChain's `HumanInTheLoopMiddleware` keeps edits of calls, by call id."""

Tools = Sequence[BaseTool | Callable[..., Any] | dict[str, Any] | Actor | ChildSpec[Any] | Toolkit]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltFlow:
    """Nodes and edges of an agent that LangChain has built; an implementation of the protocol `Flow`."""

    branches: Mapping[str, Callable[[dict[str, Any]], str | list[Send]]]
    """Functions of the edges that have one, by the node that they start from."""
    targets: Mapping[str, Collection[str]]
    """Nodes to which the hooks may jump, by hook."""
    edges: Mapping[str, str]
    """Next node of each node without a branch."""
    nodes: tuple[str, ...]
    entry: str
    turn_entry: str
    after_reply: tuple[str, ...]
    """The model and the hooks after it, in the order in which they run before the tools."""
    approvals: Mapping[str, Mapping[str, Any]]
    """Hooks that ask a person about all calls of a reply, with their rules by tool name."""
    sends_state: bool = False

    @property
    def reply_node(self) -> str:
        return self.after_reply[-1]

    def next_node(self, node: str, state: State) -> str:
        """Return the name of the node that runs after `node`, for the given state; `END` if the run is over."""
        if (branch := self.branches.get(node)) is None:
            return self.edges.get(node, END)
        target_or_sends = branch(state.read(state.channels))
        # A list has a send for each open call: the same calls as `open_calls`.
        target = target_or_sends if isinstance(target_or_sends, str) else TOOLS
        if target not in self.targets.get(node, (target,)):
            raise KeyError(f"{node!r} jumps to {target!r}, which is not in its can_jump_to")  # as LangGraph
        if not self.approvals or target != TOOLS:
            return target
        # A jump to the tools leaves out the hooks in between; it must not leave out one that asks a person.
        return self.approval_node(node, target, self.open_calls(state.get(MESSAGES) or []), state) or target

    def open_calls(self, messages: Sequence[BaseMessage]) -> list[ToolCall]:
        # LangChain's model node has answered the calls of structured output itself. An answer counts for all calls with
        # its id: a rejected call must not run beside an approved one that has the same id.
        index = last_reply(messages)
        answered = set[str]() if index is None else ids_with_answer(messages[index + 1 :])
        return [] if index is None else [call for call in calls_in(messages[index]) if id_of(call) not in answered]

    def approval_node(self, source: str | None, target: str, calls: Iterable[ToolCall], state: State) -> str | None:
        order = (*self.after_reply, TOOLS)
        if not self.approvals or target not in order:
            return None
        first = self.after_reply.index(source) + 1 if source in self.after_reply else 0
        approval_nodes = [node for node in order[first : order.index(target)] if node in self.approvals]
        # Hooks apply a person's edits by call id, and forget them at the next reply: a jump that leaves out the hook
        # would apply one to a call that has the same id by chance.
        edited_ids: Collection[str] = state.get(_EDITS) or ()
        return next(
            (
                node
                for node in approval_nodes
                if any(call["name"] in self.approvals[node] or call["id"] in edited_ids for call in calls)
            ),
            None,
        )

    def aliases(self, node: str) -> Sequence[str]:
        return ()


class BuiltBodies(NodeBodies):
    """Functions that run the nodes of LangChain's agent, except the tools node, in one run of the agent."""

    model_node = MODEL

    def __init__(
        self,
        model: BaseChatModel,
        response_format: Any,
        approvals: Mapping[str, Mapping[str, Any]],
        context: RunContext,
    ) -> None:
        super().__init__(context)
        self._approvals = approvals
        self._model = model
        self._response_format = response_format

    def output(self, node: str, node_input: Any, config: RunnableConfig, *, is_sent: bool) -> Awaitable[Any]:
        """Run a node and return its output; if the node is the model, report its request and reply to observers."""
        if node in self._approvals:
            return self._check_edits(node, super().output(node, node_input, config, is_sent=is_sent))
        if node != MODEL:
            return super().output(node, node_input, config, is_sent=is_sent)
        reporter, ask = self.context.reporter, partial(self._ask, node_input, config, is_sent)
        if reporter is None:
            return ask()
        return reporter.ask(self._model, node_input, ask, self._reply_in, response_format=self._response_format)

    async def _ask(self, node_input: Any, config: RunnableConfig, is_sent: bool) -> Any:
        """Run LangChain's model node and return its output, changed to a form that can be stored."""
        if not is_sent:
            node_input = {**node_input, MESSAGES: self.repaired_messages}
        output = await super().output(MODEL, node_input, config, is_sent=is_sent)
        for messages in self._messages_in(output):
            for message in messages:
                complete_calls(message)
            # A call of structured output has LangChain's answer already.
            answered_ids = ids_with_answer(messages)
            is_stored = self.context.thread.is_kept
            rewritten = [await self.rewrite_reply(message, node_input[MESSAGES]) for message in messages]
            messages[:] = [
                stored_message
                for message in rewritten
                for stored_message in storable_messages(message, answered_ids, is_stored=is_stored)
            ]
        return output

    async def _check_edits(self, node: str, output: Awaitable[Any]) -> Any:
        """Return the output of a hook that asks a person; raise ValueError if an edit breaks the other tool's rule."""
        update, rules = await output, self._approvals[node]
        edits = dict(self.context.plan.schema.writes_of(update)).get(_EDITS) or {}
        for edit in edits.values():
            match edit:
                case {"name": str(name)} if name in rules and "edit" not in rules[name]["allowed_decisions"]:
                    raise ValueError(
                        f"The call cannot be changed to one of {name!r}: interrupt_on allows for this tool only "
                        f"{', '.join(rules[name]['allowed_decisions'])}. Answer again"
                    )
                case _:
                    pass  # an edit without a name fails when the call begins, as in LangChain
        return update

    def _reply_in(self, output: Any) -> AIMessage | None:
        replies = (
            message for messages in self._messages_in(output) for message in messages if isinstance(message, AIMessage)
        )
        return next(replies, None)

    def _messages_in(self, output: Any) -> list[list[BaseMessage]]:
        """Return the message lists in an output of the model's node; each has a reply and any results of its calls."""
        return [value for key, value in self.context.plan.schema.writes_of(output) if key == MESSAGES]


def flow_of(
    builder: StateGraph[Any, Any, Any, Any], middlewares: "Sequence[AgentMiddleware[Any, Any, Any]]"
) -> BuiltFlow:
    """Return the nodes and edges of an agent, taken from LangChain's builder and the agent's middleware."""
    nodes = tuple(builder.nodes)
    edges = dict(builder.edges)
    # LangChain gives each node at most one function that chooses the next node.
    branches: dict[str, Any] = {
        node: next(iter(node_branches.values())) for node, node_branches in builder.branches.items()
    }
    turn = [node for node in nodes if node.endswith(".before_model")]
    # LangChain runs the hooks after the model from the last middleware to the first.
    reply = (MODEL, *(node for node in reversed(nodes) if node.endswith(".after_model")))
    return BuiltFlow(
        branches={node: branch.path.func for node, branch in branches.items()},
        # LangChain has no edge from a hook to itself, to which the first hook before the model may jump; and none from
        # the model to itself, which is asked again if none of its calls can be stored.
        targets={node: {*branch.ends, node} for node, branch in branches.items() if node not in (MODEL, TOOLS)},
        edges=edges,
        nodes=nodes,
        entry=edges[START],
        turn_entry=turn[0] if turn else MODEL,
        after_reply=reply,
        approvals={
            f"{middleware.name}.after_model": rules
            for middleware in middlewares
            if (rules := batch_approval_rules(middleware))
        },
    )


_RETRY = "retries are middleware: middleware=[callboard.middleware.Retry(3)]"
_REMEDIES = {
    "retries": _RETRY,
    "retry": _RETRY,
    "max_retries": _RETRY,
    "llm": "write model=",
    "memory": "write checkpointer=",
    "prompt": "write system_prompt=",
    "verbose": "write debug=",
    "max_iterations": "write config={'recursion_limit': ...} at each run",
    "recursion_limit": "write config={'recursion_limit': ...} at each run",
}
"""Advice for options of other libraries."""


class CreateOptions(AgentOptions, total=False):
    """Keyword options of `create_agent` that do not decide the type of its results; for overloads only."""

    system_prompt: str | SystemMessage | None
    cache: BaseCache[Any] | None
    transformers: Sequence[Any] | None
    timeout: float | None
    limit: Limit | None
    policies: Mapping[str, CallPolicy] | None
    model_policy: CallPolicy | None
    handle_tool_errors: ErrorHandling
    on_error: OnError
    grace: float


@overload
def create_agent(
    model: str | BaseChatModel,
    tools: Tools | None = None,
    *,
    state_schema: type[StateT],
    response_format: Any = None,
    **options: Unpack[CreateOptions],
) -> Agent[StateT]: ...


@overload
def create_agent(
    model: str | BaseChatModel,
    tools: Tools | None = None,
    *,
    response_format: "type[ResponseT] | ResponseFormat[ResponseT]",
    **options: Unpack[CreateOptions],
) -> Agent[AgentOutput[ResponseT]]: ...


@overload
def create_agent(
    model: str | BaseChatModel,
    tools: Tools | None = None,
    *,
    response_format: None = None,
    state_schema: None = None,
    **options: Unpack[CreateOptions],
) -> Agent: ...


@overload
def create_agent(
    model: str | BaseChatModel,
    tools: Tools | None = None,
    *,
    response_format: Any = None,
    state_schema: type[Any] | None = None,
    **options: Unpack[CreateOptions],
) -> Agent[Any]: ...


@with_remedies(_REMEDIES)
def create_agent(
    model: str | BaseChatModel,
    tools: Tools | None = None,
    *,
    system_prompt: str | SystemMessage | None = None,
    middleware: Sequence[object] = (),
    response_format: Any = None,
    state_schema: type[Any] | None = None,
    context_schema: type[Any] | None = None,
    checkpointer: Any = None,
    store: BaseStore | str | None = None,
    interrupt_before: list[str] | None = None,
    interrupt_after: list[str] | None = None,
    debug: bool = False,
    name: str | None = None,
    cache: BaseCache[Any] | None = None,
    transformers: Sequence[Any] | None = None,
    timeout: float | None = None,
    limit: Limit | None = None,
    policies: Mapping[str, CallPolicy] | None = None,
    model_policy: CallPolicy | None = None,
    handle_tool_errors: ErrorHandling = only_invalid_arguments,
    on_error: OnError = "cancel",
    grace: float = DEFAULT_GRACE,
    max_calls: int | None = None,
    on_unknown: OnUnknown | None = None,
    budget: float | None = None,
    stored_types: Sequence[type[Any]] = (),
    loop_guard: LoopGuard | bool = True,
) -> Agent[Any]:
    """Return the agent of `langchain.agents.create_agent`, run by callboard.

    All options of LangChain have LangChain's meaning; the others are callboard's. The agent runs on asyncio and trio:
    code of LangChain that needs asyncio runs there in a thread beside trio, and sync hooks run in worker threads.

    Args:
        model: chat model, or `provider:name` for langchain's `init_chat_model`.
        tools: LangChain tools, functions, actors, toolkits, and descriptions of tools that run at the provider.
        system_prompt: text or message before the conversation of each request.
        middleware: middleware of LangChain and of callboard in one list, the outermost first. Middleware of callboard
            runs around tool calls; one with `awrap_model_call`, such as `Retry` or `CircuitBreaker`, around model
            requests as well.
        response_format: schema or strategy of the answer in `structured_response`.
        state_schema: TypedDict that extends LangChain's `AgentState`.
        context_schema: type of the runs' `context`.
        checkpointer: stores conversations by `thread_id`: a LangGraph saver or a URL, see `create_react_agent`.
        store: store for tools and hooks: a LangGraph store or a URL.
        interrupt_before: nodes before which every run stops, such as `["tools"]` or `["Name.after_model"]`.
        interrupt_after: nodes after which every run stops.
        debug: print each step.
        name: name of the agent and of its messages.
        cache: accepted for compatibility with LangChain, whose nodes cache nothing; see `callboard.middleware.Cache`.
        transformers: LangGraph's transformers of the streams of `stream_events(version="v3")`.
        timeout: seconds for one attempt of every tool whose policy sets no timeout.
        limit: limit for all tool calls of the agent together, across its runs.
        policies: policies by tool name.
        model_policy: timeout, idle timeout, budget, limit and grace of each request to a model. The idle timeout makes
            a model stream its reply; each token is a sign of life.
        handle_tool_errors: tool errors that become messages, see `ToolNode`; by default those of invalid arguments.
        on_error: effect of an unhandled error on the other calls of a reply, see `ToolNode`.
        grace: seconds of clean-up after a cancel.
        max_calls: largest number of calls of one reply that run; each further call gets an error message.
        on_unknown: action for a call whose body began and whose result is unknown, see `create_react_agent`.
        budget: seconds for each run; `None` for no limit.
        stored_types: types that a database by URL may contain, see `create_react_agent`.
        loop_guard: guard against a model that repeats the same calls and gets the same results, see
            `create_react_agent`.

    Raises:
        ImportError: if langchain is missing, or the driver is missing for a database URL.
        AssertionError: for two middlewares of LangChain with the same name.
        TypeError: if a model, a tool, a middleware or an option has the wrong type.
        NotImplementedError: if the model has no `bind_tools` of its own, and no middleware may take another one.
        ValueError: if a number is out of range, a node or the tool of a policy is unknown, or `stored_types` is given
            with a saver that has its own serializer.
    """
    check_seconds("create_agent(budget=...)", budget, zero=False)
    check_type("create_agent(debug=...)", debug, bool, "True")
    warn_about_milliseconds("create_agent(budget=...)", budget)
    extra_types = parse_stored_types(stored_types, checkpointer)
    factory = _langchains_factory()
    chat_model: object = init_chat_model(model) if isinstance(model, str) else model
    if not isinstance(chat_model, BaseChatModel):
        raise TypeError(
            f"create_agent takes a chat model or 'provider:name', got {model!r}; to choose a model for each request, "
            "use LangChain's wrap_model_call, or give a function to create_react_agent"
        )
    if isinstance(tools, ToolNode | LangGraphToolNode):
        raise TypeError(  # as LangChain's text begins
            "'ToolNode' object is not iterable: create_agent makes the node itself; give it the tools, and the options "
            "of the node, such as timeout and policies"
        )
    parts = _Parts(() if tools is None else list_tools("create_agent", tools), middleware, model_policy)
    middlewares = parts.middleware_for_langchain()
    for schema in (state_schema, *(each_middleware.state_schema for each_middleware in middlewares)):
        if any("remaining_steps" in vars(base).get("__annotations__", {}) for base in getattr(schema, "__mro__", ())):
            raise TypeError(
                f"create_agent(state_schema={getattr(schema, '__name__', schema)}): callboard.AgentState is the state "
                "of create_react_agent; extend the one of LangChain: from langchain.agents import AgentState"
            )
    offered_tools = parts.tools_for_langchain()
    # A middleware may take another model for each request.
    if offered_tools and not middlewares and type(chat_model).bind_tools is BaseChatModel.bind_tools:
        raise no_bind_tools(chat_model, offered_tools)
    check_stops("interrupt_before", interrupt_before)
    check_stops("interrupt_after", interrupt_after)
    langchain_graph: Graph = factory(
        chat_model,
        offered_tools,
        system_prompt=system_prompt,
        middleware=middlewares,
        response_format=response_format,
        state_schema=state_schema,
        context_schema=context_schema,
        interrupt_before=interrupt_before,
        interrupt_after=interrupt_after,
        name=name,
        cache=cache,
        transformers=transformers,
    )
    node = parts.node(
        langchain_graph,
        timeout=timeout,
        limit=limit,
        policies=policies,
        handle_tool_errors=handle_tool_errors,
        on_error=on_error,
        grace=grace,
        max_calls=max_calls,
        on_unknown=on_unknown,
    )
    builder = langchain_graph.builder
    flow = flow_of(builder, middlewares)
    plan = AgentPlan(
        name=name,
        flow=flow,
        schema=Schema(builder, flow),
        bodies=partial(BuiltBodies, chat_model, response_format, flow.approvals),
        tools=NodeAccess(node),
        hooks={key: cast("Runnable[Any, Any]", builder.nodes[key].runnable) for key in flow.nodes if key != TOOLS},
        trace_policies={key: spec.trace_policy for key, spec in builder.nodes.items() if spec.trace_policy},
        by_call=True,
        loop_guard=loop_guard_of("create_agent", loop_guard, node),
    )
    types = partial(collect_stored_types, extra_types, [*builder.schemas, context_schema, response_format])
    saver = saver_of(checkpointer, types)
    if saver is None:
        warn_about_unkept_questions(node)
    runner = runner_of(plan, store=store, context_schema=context_schema, debug=debug)
    breakpoints = Breakpoints(before=interrupt_before or (), after=interrupt_after or ())
    agent = Agent(
        runner, lambda: builder, checkpointer=saver, breakpoints=breakpoints, budget=budget, stored_types=types
    )
    agent.config, agent.stream_transformers = langchain_graph.config, langchain_graph.stream_transformers
    return agent


# Cached: a program may put callboard's function in the place of LangChain's.
@cache
def _langchains_factory() -> Callable[..., Graph]:
    try:
        from langchain.agents import create_agent as factory
    except ImportError as error:
        raise ImportError(
            f"create_agent runs LangChain's agent: {install_command('callboard', 'langchain')}"
        ) from error
    return factory


class _AgentNode(ToolNode):
    """Tools node of an agent made by `create_agent`; its error messages name options as arguments of `create_agent`."""

    _owner = "create_agent"


class _Parts:
    """Tools and middleware of an agent, divided between LangChain's graph and callboard's `ToolNode`."""

    def __init__(self, tools: Iterable[Any], middleware: Sequence[object], model_policy: CallPolicy | None) -> None:
        check_type("create_agent(model_policy=...)", model_policy, CallPolicy, "CallPolicy(timeout=60.0)")
        self._tools = unpack_toolkits(tools)
        self._middleware = middleware_in("create_agent(middleware=...)", middleware)
        self._model_policy = model_policy
        self._callboard_middleware = [
            each_middleware
            for each_middleware in self._middleware
            if not _is_langchain_middleware(each_middleware) and _handles_tool_calls(each_middleware)
        ]
        # LangChain gets the tools of actors and of callboard's middleware only to offer them to the model: callboard's
        # node makes its own of them, which know their actor.
        self._hosted = [tool for tool in self._tools if isinstance(tool, (Actor, ChildSpec))]
        self._names = {tool.name for tool in tools_of(self._callboard_middleware)}

    def middleware_for_langchain(self) -> "list[AgentMiddleware[Any, Any, Any]]":
        """Return the middleware to pass to LangChain's `create_agent`: in the user's order, then `ModelSupervision`."""
        from callboard.agent._model_calls import ModelMiddleware, ModelSupervision

        langchain_middleware: list[AgentMiddleware[Any, Any, Any]] = []
        numbers: Counter[str] = Counter()
        for middleware in self._middleware:
            if _is_langchain_middleware(middleware):
                langchain_middleware.append(middleware)
            elif hasattr(middleware, "awrap_model_call"):
                numbers[name := type(middleware).__name__] += 1
                langchain_middleware.append(
                    ModelMiddleware(middleware, name if numbers[name] == 1 else f"{name} {numbers[name]}")
                )
        return (
            langchain_middleware
            if self._model_policy is None
            else [*langchain_middleware, ModelSupervision(self._model_policy)]
        )

    def tools_for_langchain(self) -> list[Any]:
        """Return the tools in the form in which LangChain's `create_agent` accepts them."""
        tools: list[Any] = [*tools_of(self._callboard_middleware)]
        plain_tools: dict[str, BaseTool] = {}
        # LangChain takes the last of several tools with one name; those of its middleware come first.
        langchain_middleware = [item for item in self._middleware if _is_langchain_middleware(item)]
        for tool in [tool for item in langchain_middleware for tool in getattr(item, "tools", ())]:
            if isinstance(tool, BaseTool):
                _add_tool(plain_tools, tool)
        for tool in self._tools:
            if isinstance(tool, (Actor, ChildSpec)):
                actor_tools = ToolNode([tool]).tools_by_name
                self._names.update(actor_tools)
                tools += actor_tools.values()
            elif isinstance(tool, dict):
                tools.append(tool)
            else:
                plain_tool = as_tool(tool)
                tools.append(plain_tool)
                _add_tool(plain_tools, plain_tool)
        if duplicates := plain_tools.keys() & self._names:
            raise ValueError(
                f"create_agent(tools=...): several tools are named {min(duplicates)!r}; each needs its own name"
            )
        return tools

    def node(self, langchain_graph: Graph, **options: Any) -> ToolNode:
        """Return a `ToolNode` with the tools of LangChain's graph, the middleware, and callboard's options."""
        spec = langchain_graph.builder.nodes.get(TOOLS)
        if spec is None:
            return _AgentNode([], middleware=self._callboard_middleware, **options)
        langchain_options = arguments_of(cast("LangGraphToolNode", spec.runnable), only_invalid_arguments)
        tools = [tool for tool in langchain_options["tools"] if tool.name not in self._names]
        middleware_options: dict[str, Any] = {
            "middleware": [middleware for middleware in map(_for_tool_node, self._middleware) if middleware is not None]
        }
        if not self._callboard_middleware and langchain_options["awrap_tool_call"] is not None:
            # Only without middleware of callboard in between can LangChain's own chain be used, which has spans.
            langchain_middleware: list[Any] = [
                middleware for middleware in self._middleware if _for_tool_node(middleware) is not None
            ]
            wrap = _nest_hooks(
                langchain_options["wrap_tool_call"], [middleware.wrap_tool_call for middleware in langchain_middleware]
            )
            awrap = _nest_hooks(
                langchain_options["awrap_tool_call"],
                [middleware.awrap_tool_call for middleware in langchain_middleware],
            )
            middleware_options = {"wrap_tool_call": wrap, "awrap_tool_call": AsyncioMiddleware(awrap)}
        return _AgentNode([*tools, *self._hosted], **middleware_options, **options)


def _add_tool(tools: dict[str, BaseTool], tool: BaseTool) -> None:
    """Add a tool to others, by name; warn if it takes the place of another one."""
    if (other := tools.get(tool.name)) is not None and other is not tool:
        warn_about_replaced_tool("create_agent", other, tool)
    tools[tool.name] = tool


def _is_langchain_middleware(middleware: object) -> "TypeGuard[AgentMiddleware[Any, Any, Any]]":
    return langchain_base(type(middleware)) is not None


def _nest_hooks(langchain_wrap: Any, hooks: Sequence[Callable[[Any, Any], Any]]) -> Callable[[Any, Any], Any]:
    """Return a function that runs the hooks around a call; it records spans only if a tracer listens."""
    # LangChain's own chain changes threads twice for the LangSmith span of each hook, also if nothing is recorded.

    def wrap(request: Any, handler: Any) -> Any:
        if may_be_traced(request.runtime.config):
            return langchain_wrap(request, handler)
        for hook in reversed(hooks[1:]):
            handler = partial(_call_hook, hook, handler)
        return hooks[0](request, handler)

    return wrap


def _call_hook(hook: Callable[[Any, Any], Any], handler: Any, request: Any) -> Any:
    return hook(request, handler)


def _handles_tool_calls(middleware: object) -> bool:
    """Return whether a callboard middleware handles tool calls; some middleware handles model requests only."""
    return (
        not hasattr(middleware, "awrap_model_call")
        or hasattr(middleware, "awrap_tool_call")
        or hasattr(middleware, "wrap_tool_call")
    )


def _for_tool_node(middleware: object) -> object | None:
    """Return a middleware in the form that `ToolNode` accepts; `None` if the middleware handles no tool calls."""
    if not _is_langchain_middleware(middleware):
        return middleware if _handles_tool_calls(middleware) else None
    base: Any = langchain_base(type(middleware))
    if all(getattr(type(middleware), hook) is getattr(base, hook) for hook in ("wrap_tool_call", "awrap_tool_call")):
        return None
    return TwoHalves(SyncMiddleware(middleware.wrap_tool_call), AsyncioMiddleware(middleware.awrap_tool_call))
