"""Graph of an agent: its nodes, their order, and its drawing.

A send is a node that runs with an input of its own beside the other nodes of a step (LangGraph's `Send`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise, takewhile
from types import MappingProxyType
from typing import Annotated, Any, NotRequired, cast

from langchain_core.messages import AnyMessage, BaseMessage, ToolCall, ToolMessage, convert_to_messages
from langchain_core.runnables import Runnable, RunnablePassthrough
from langgraph.errors import InvalidUpdateError
from langgraph.graph import StateGraph
from langgraph.graph.message import add_messages
from langgraph.managed import RemainingSteps
from langgraph.types import Send
from pydantic import BaseModel, create_model
from typing_extensions import TypedDict

from callboard._langchain._results import NodeRequest, parse_input
from callboard._langchain._unanswered import (
    calls_in,
    each_without_answer,
    has_only_malformed,
    id_of,
    ids_with_answer,
    last_reply,
    unanswered_calls,
)
from callboard._langgraph._node_scope import graph_runnable
from callboard._util._suggestions import did_you_mean
from callboard.conversations._channels import MESSAGES, Flow, State
from callboard.conversations._history import is_placeholder, repair
from callboard.tools._bounds import is_refusal_of_storage
from callboard.tools._call_record import keys_of

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


AGENT = "agent"
TOOLS = "tools"
BEFORE = "pre_model_hook"
AFTER = "post_model_hook"
RESPONSE = "generate_structured_response"
MODEL = "model"
"""Name of the model's node in `langchain.agents`."""
END = "__end__"


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
            return AFTER if self.after else self._after_reply(messages, calls=are_results)
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

    def _after_reply(self, messages: Sequence[BaseMessage], *, calls: bool = True) -> str:
        if self.tools and calls and self.open_calls(messages):
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


_SEND_PREFIX = "%send:"

Target = str | Send
"""Node to run next: a name, if the node gets the state as input, or a LangGraph `Send` with another input."""


def call_id_in(task: str) -> str:
    """Return the part of a task's name that is equal for all tasks whose calls have the same id."""
    key = task.partition("|")[2] if task.startswith(_SEND_PREFIX) else task
    return key.partition("#")[0]


@dataclass(frozen=True, slots=True)
class NumberedSend:
    """LangGraph `Send` of a step, with its index among all sends of the step."""

    number: int
    """Index of the send among all sends of the step."""
    send: Send

    @property
    def node(self) -> str:
        return self.send.node

    @property
    def payload(self) -> Any:
        return self.send.arg

    @property
    def task(self) -> str:
        """Name of the task that runs this `Send`; it differs from the names of all nodes and the keys of all calls."""
        return f"{_SEND_PREFIX}{self.number}"

    def task_of(self, key: str) -> str:
        return f"{self.task}|{key}"

    def request(self, messages: Sequence[BaseMessage], messages_key: str) -> NodeRequest:
        """Return the calls in the input of this `Send` that the conversation has not answered."""
        request = parse_input(self.payload, messages_key)
        if request.kind == "list":
            raise InvalidUpdateError(
                f"Expected dict, got a list of messages; send {TOOLS!r} a state, {{{messages_key!r}: [...]}}, or a "
                f"list of calls, in place of {self.payload!r}"
            )
        if request.state is not None:
            return request
        return request._replace(calls=each_without_answer(request.calls, messages))

    def tasks(self, messages: Sequence[BaseMessage], messages_key: str) -> list[str]:
        """Return the names of the tasks of this `Send`: one for each of its calls, or one name if it has no calls."""
        if self.node != TOOLS:
            return [self.task]
        try:
            request = self.request(messages, messages_key)
        except (InvalidUpdateError, ValueError):  # stored by another agent; running it raises the error
            return [self.task]
        return [self.task_of(key) for key in keys_of(request.calls)]


def number_sends(sends: Iterable[Send]) -> tuple[NumberedSend, ...]:
    return tuple(map(NumberedSend, count(), sends))


def split_targets(targets: Iterable[Target]) -> tuple[list[str], list[Send]]:
    """Split targets into two lists: the names of nodes that get the state as input, and the LangGraph sends."""
    nodes: list[str] = []
    sends: list[Send] = []
    for target in targets:
        if isinstance(target, Send):
            sends.append(target)
        else:
            nodes.append(target)
    return nodes, sends


def check_sends(targets: Iterable[Target], nodes: Sequence[str], messages_key: str) -> None:
    """Check that each LangGraph `Send` among the targets can run, before any of them runs."""
    for send in split_targets(targets)[1]:
        if send.node not in nodes:
            suggestion = did_you_mean(send.node, nodes)
            raise InvalidUpdateError(f"Node {send.node} does not exist; there are {', '.join(nodes)}{suggestion}")
        if send.timeout is not None:
            raise InvalidUpdateError(
                f"The send to {send.node!r} has a timeout, which an agent does not keep; give its tools a timeout, or "
                "the run a budget"
            )
        if send.node == TOOLS:
            NumberedSend(0, send).request((), messages_key)


def admit_targets(flow: Flow, source: str | None, targets: Iterable[Target], state: State) -> list[Target]:
    """Return the targets of a command or update; if a node would skip an approval, the approval takes its place."""
    calls = flow.open_calls(state.get(MESSAGES) or [])
    admitted: list[Target] = []
    for target in targets:
        if isinstance(target, str):
            admitted.append(flow.approval_node(source, target, calls, state) or target)
            continue
        sent_calls = NumberedSend(0, target).request((), MESSAGES).calls if target.node == TOOLS else calls
        # The approval is for the open calls of the reply: a call that is not one of them was not shown to anybody.
        is_open = all(call in calls for call in sent_calls)
        if approval := flow.approval_node(source if is_open else None, target.node, sent_calls, state):
            raise InvalidUpdateError(
                f"A send to {target.node!r} leaves out {approval!r}, which asks a person about all calls of a reply; "
                f"go to {TOOLS!r} by name, or ask about each call: "
                'HumanInTheLoopMiddleware(..., interrupt_mode="per_call")'
            )
        admitted.append(target)
    return admitted


def for_model(payload: Any, *, before: bool) -> Any:
    """Return the input of a LangGraph `Send` to the model, with its messages in an order that providers accept."""
    # A hook before the model may have written messages for the model alone.
    keys = ("llm_input_messages", "messages") if before else ("messages",)
    messages: Any = next((value for key in keys if (value := value_in(payload, key))), value_in(payload, "messages"))
    if messages is None:
        expected = " or ".join(map(repr, keys))
        raise ValueError(f"Expected input to call_model to have {expected} key, but got {payload}")
    complete_messages = repair(convert_to_messages(messages)).request
    if isinstance(payload, Mapping):
        return {**payload, "messages": complete_messages}
    payload.messages = complete_messages
    return payload


def value_in(payload: Any, key: str) -> Any:
    """Return the value of a key in the input of a `Send`, which is a mapping or an object; `None` if it is missing."""
    return payload.get(key) if isinstance(payload, Mapping) else getattr(payload, key, None)


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
    return cast(
        "type[Any]",
        type("CallModelInputSchema", (schema,), {"__annotations__": {"llm_input_messages": list[AnyMessage]}}),
    )
