"""Graph of an agent of `create_react_agent`: its state, its nodes, their order, and its drawing."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from types import MappingProxyType
from typing import Annotated, Any, Generic, NotRequired

from langchain_core.messages import AnyMessage, BaseMessage, ToolCall, ToolMessage
from langchain_core.runnables import Runnable, RunnablePassthrough
from langgraph.graph import StateGraph
from langgraph.graph.message import add_messages
from langgraph.managed import RemainingSteps
from langgraph.types import Interrupt
from pydantic import BaseModel, create_model
from typing_extensions import TypedDict, TypeVar

from callboard._langgraph._node_scope import graph_runnable
from callboard.conversations._channels import MESSAGES, State
from callboard.conversations._history import is_placeholder
from callboard.conversations._targets import AFTER, AGENT, BEFORE, END, MODEL, RESPONSE, TOOLS
from callboard.tools._bounds import is_refusal_of_storage
from callboard.tools._unanswered import (
    calls_in,
    has_only_malformed,
    id_of,
    ids_with_answer,
    last_reply,
    unanswered_calls,
)

_MOST_MALFORMED = 3
"""Number of successive replies with malformed calls alone that end the turn: the model would repeat itself for ever."""

StructuredResponse = dict[str, Any] | BaseModel


class AgentState(TypedDict):
    """Default state of an agent: its messages, and the number of steps that are left."""

    messages: Annotated[Sequence[BaseMessage], add_messages]
    remaining_steps: NotRequired[RemainingSteps]
    """Number of steps that are left until the `recursion_limit` of the run is reached."""


class AgentStatePydantic(BaseModel):
    """Default state of an agent as a pydantic model: its messages, and the number of steps that are left."""

    messages: Annotated[Sequence[BaseMessage], add_messages]
    remaining_steps: RemainingSteps = 25


class AgentStateWithStructuredResponse(AgentState):
    """Default state of an agent with a `response_format`: `AgentState` and the structured response."""

    structured_response: StructuredResponse


class AgentStateWithStructuredResponsePydantic(AgentStatePydantic):
    """Default state of an agent with a `response_format`, as a pydantic model."""

    structured_response: StructuredResponse


ResponseT = TypeVar("ResponseT", default=Any)
StateT = TypeVar("StateT", bound=Mapping[str, Any])
"""Type of a state schema that is a TypedDict. With another schema, the results of an agent are dicts, too."""


class AgentOutput(TypedDict, Generic[ResponseT]):
    """Result of an agent with a `response_format`, whose type is the parameter: `AgentOutput[Weather]`."""

    messages: list[AnyMessage]
    structured_response: ResponseT
    """Answer of the model, as an object of the `response_format`; `None` or missing if a run stops at a question."""
    __interrupt__: NotRequired[list[Interrupt]]
    """Open questions of a run that stops before its answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReactFlow:
    """Nodes and edges of an agent of `create_react_agent`; an implementation of the protocol `Flow`."""

    tools: bool
    """`True` if the agent has tools, so that there is a tools node."""
    before: bool
    """`True` if a hook runs before each request to the model."""
    after: bool
    """`True` if a hook runs after each reply of the model."""
    response: bool
    """`True` if a node at the end of a run asks the model for a structured response."""
    direct: frozenset[str]
    """Names of the tools with `return_direct`: a result of such a tool ends the run."""
    nodes: tuple[str, ...] = field(init=False)
    """Names of the agent's nodes; computed once, because each step of a run reads them."""
    entry: str = field(init=False)
    """Name of the first node of a run."""

    def __post_init__(self) -> None:
        optional = ((BEFORE, self.before), (AGENT, True), (TOOLS, self.tools), (AFTER, self.after))
        nodes = tuple(name for name, is_present in (*optional, (RESPONSE, self.response)) if is_present)
        object.__setattr__(self, "nodes", nodes)
        object.__setattr__(self, "entry", BEFORE if self.before else AGENT)

    @property
    def sends_state(self) -> bool:
        return True

    @property
    def turn_entry(self) -> str:
        return self.entry

    @property
    def reply_node(self) -> str:
        return AFTER if self.after else AGENT

    def aliases(self, node: str) -> Sequence[str]:
        """Return LangChain's name `model` for the node that begins a turn, and no name for any other node."""
        return (MODEL,) if node == self.entry else ()

    def approval_node(self, source: str | None, target: str, calls: Iterable[ToolCall], state: State) -> str | None:
        """Return `None` (no node was skipped): it is unknown which hooks of `create_react_agent` ask a person."""
        return None

    def next_node(self, node: str, state: State) -> str:
        """Return the name of the node that runs after `node`, for the given state; `END` if the run is over."""
        messages = state.get(MESSAGES) or []
        if node == BEFORE:
            return AGENT
        if node == AGENT:
            index = last_reply(messages)
            are_results = index is not None and all(isinstance(item, ToolMessage) for item in messages[index + 1 :])
            return AFTER if self.after else self._after_reply(messages, may_run_calls=are_results)
        if node == AFTER:
            return self._after_reply(messages)
        if node == TOOLS:
            return END if self._has_direct_answer(messages) else self.entry
        return END

    def open_calls(self, messages: Sequence[BaseMessage]) -> list[ToolCall]:
        """Return the calls of the last reply that have no result yet and have to run."""
        calls = unanswered_calls(messages)
        if not self.after or not calls:
            return calls
        # With a hook after the model, LangGraph treats a call as answered if any message of the conversation has its
        # id. So a model that repeats itself comes to an end. This agent does the same only if the whole call is equal:
        # some models start their ids anew in each reply.
        earlier = messages[: last_reply(messages)]
        answered = ids_with_answer(message for message in earlier if not is_placeholder(message))
        return [
            call
            for call in calls
            if not (call["id"] in answered and any(call in calls_in(message) for message in earlier))
        ]

    def _after_reply(self, messages: Sequence[BaseMessage], *, may_run_calls: bool = True) -> str:
        """Return the node after the model's reply and its hook; the hook may have answered the calls of the reply."""
        if self.tools and may_run_calls and self.open_calls(messages):
            return TOOLS
        last = messages[-1] if messages else None
        if self.tools and isinstance(last, ToolMessage):
            if self.after or is_refusal_of_storage(last):
                return self.entry  # the hook answered the calls, or no call was storable
            reply = last_reply(messages)
            if reply is not None and any(id_of(call) == last.tool_call_id for call in calls_in(messages[reply])):
                # An answer from outside, such as by `update_state`.
                return END if self._has_direct_answer(messages) else self.entry
        if self.tools and has_only_malformed(last):
            # The model reads the errors of its malformed calls and replies again, but not for ever.
            turn = takewhile(lambda message: message.type != "human", reversed(messages))
            in_a_row = takewhile(has_only_malformed, (message for message in turn if message.type == "ai"))
            if sum(1 for _ in in_a_row) < _MOST_MALFORMED:
                return self.entry
        return RESPONSE if self.response else END

    def _has_direct_answer(self, messages: Sequence[BaseMessage]) -> bool:
        if not self.direct:
            return False
        for message in reversed(messages):
            if not isinstance(message, ToolMessage):
                return any(call["name"] in self.direct for call in calls_in(message))
            if message.name in self.direct:
                return True
        return False


Builder = StateGraph[Any, Any, Any, Any]


_ANY_TOOLS: Runnable[Any, Any] = RunnablePassthrough()
"""Placeholder for the tools node in the drawing of an agent, if the tools are unknown."""


def _return_state(state: Any) -> Any:
    """Return the state unchanged; stands for a node in the drawing, while `callboard.agent._run` runs the real node."""
    # A function, because code that reads LangGraph graphs expects one.
    return state


def _route(_: Any) -> str:
    """Return `END`; placeholder for `ReactFlow.next_node` as the function of a conditional edge in a drawn graph."""
    return END


# Made here, because LangGraph would inspect the functions again for each agent.
_STANDINS = {name: graph_runnable(_return_state, name) for name in (AGENT, RESPONSE)}
_ROUTE = graph_runnable(_route, _route.__name__, traced=True)


def drawing(
    flow: ReactFlow,
    schema: type[Any],
    context_schema: type[Any] | None,
    hooks: Mapping[str, Any] = MappingProxyType({}),
    tools: Runnable[Any, Any] = _ANY_TOOLS,
) -> Builder:
    """Return a LangGraph builder with the nodes and edges of an agent, for drawings and schemas."""
    builder: Builder = StateGraph(schema, context_schema=context_schema)
    builder.add_node(AGENT, _STANDINS[AGENT], input_schema=_with_model_input(schema) if flow.before else schema)
    if flow.tools:
        builder.add_node(TOOLS, tools, input_schema=schema)
    for name, hook in hooks.items():
        if hook is not None:
            builder.add_node(name, hook)
    if flow.response:
        builder.add_node(RESPONSE, _STANDINS[RESPONSE], input_schema=schema)
    builder.set_entry_point(flow.entry)
    if flow.before:
        builder.add_edge(BEFORE, AGENT)
    end = RESPONSE if flow.response else END
    if not flow.tools:
        path = [AGENT, *([AFTER] if flow.after else []), *([RESPONSE] if flow.response else [])]
        for start, end_node in pairwise(path):
            builder.add_edge(start, end_node)
        return builder
    if flow.after:
        builder.add_edge(AGENT, AFTER)
        builder.add_conditional_edges(AFTER, _ROUTE, path_map=[flow.entry, TOOLS, end])
    else:
        builder.add_conditional_edges(AGENT, _ROUTE, path_map=[TOOLS, end])
    if flow.direct:
        builder.add_conditional_edges(TOOLS, _ROUTE, path_map=[flow.entry, END])
    else:
        builder.add_edge(TOOLS, flow.entry)
    return builder


def _with_model_input(schema: type[Any]) -> type[Any]:
    """Return a subclass of the state's schema with the key `llm_input_messages`, which a hook may set for the model."""
    if issubclass(schema, BaseModel):
        return create_model("CallModelInputSchema", llm_input_messages=(list[AnyMessage] | None, None), __base__=schema)
    return type("CallModelInputSchema", (schema,), {"__annotations__": {"llm_input_messages": list[AnyMessage]}})
