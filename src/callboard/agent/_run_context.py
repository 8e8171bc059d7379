"""Parts of an agent that all its runs share (`AgentPlan`), its breakpoints, and values of one run (`RunContext`)."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, Literal

from langchain_core.messages import AIMessage, BaseMessage, ToolCall
from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.runtime import Runtime
from langgraph.types import TracePolicy

from callboard._langchain._large_values import has_many, is_long, run_in_worker
from callboard._langgraph._node_scope import NS_SEP, PULL, PUSH, NodeConfigs, NodePlace, Outer, task_id_of
from callboard._loops._current import current_loop
from callboard._loops._side_tasks import SideTask
from callboard.agent._background import ThreadBackground
from callboard.agent._inbox import Inbox
from callboard.agent._model import run_user_code
from callboard.agent._run_events import Body, RunReporter, trace_node
from callboard.agent._stream import RunStream
from callboard.conversations._channels import MESSAGES, Clock, Flow, Schema
from callboard.conversations._history import NOT_BEGUN, UNANSWERED, repair
from callboard.conversations._targets import TOOLS
from callboard.conversations._thread import Thread
from callboard.middleware._loop_guard import LoopGuard
from callboard.tools._node import NodeAccess, ToolNode
from callboard.tools._unanswered import id_of

Nodes = Sequence[str] | Literal["*"]

_MANY_MESSAGES = 10_000
"""Number of messages of a conversation that middleware may read in the event loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakpoints:
    """Names of the nodes before which a run stops, and of those after which it stops; `"*"` stands for all nodes."""

    before: Nodes = ()
    after: Nodes = ()


def has_breakpoint(breakpoints: Nodes, nodes: Sequence[str]) -> bool:
    """Return whether a run must stop at a step: whether one of the step's nodes is a breakpoint."""
    return bool(nodes) if breakpoints == "*" else not set(breakpoints).isdisjoint(nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPlan:
    """Prepared parts of an agent that do not change between runs: model, tools, hooks, nodes and schema."""

    name: str | None
    """Name of the agent, which is set on the messages of its model; `None` for no name."""
    flow: Flow
    schema: Schema
    bodies: "Callable[[RunContext], NodeBodies]"
    """Function that makes the `NodeBodies` of a run: the object that runs the agent's nodes."""
    tools: NodeAccess
    hooks: Mapping[str, Runnable[Any, Any]]
    trace_policies: Mapping[str, TracePolicy]
    """Policies for the input and output that callback handlers see, by node; without a policy, they see all of it."""
    by_call: bool
    """`True` if streams and snapshots show each call as a task of its own (version "v2")."""
    loop_guard: LoopGuard | None


def loop_guard_of(function: str, option: object, tools: ToolNode) -> LoopGuard | None:
    """Return the guard against loops that an agent's option `loop_guard` asks for; `None` for no guard."""
    if isinstance(option, bool):
        return LoopGuard(messages_key=NodeAccess(tools).messages_key) if option else None
    if not isinstance(option, LoopGuard):
        raise TypeError(f"{function}(loop_guard=...) takes a LoopGuard, True or False, got {option!r}")
    option.check_tools(tools.tools_by_name)
    return option


@dataclass(eq=False, repr=False)
class RunContext:
    """Values that the nodes and tool calls of one agent run use: conversation, config, runtime, answers, breakpoints.

    `answers` are answers to open questions, by interrupt id. A run with `is_resumed` continues an earlier run, and does
    not stop at a breakpoint before its first step. `config` has the callbacks of the run. `outer` is the graph that
    runs the agent, or `None`. `checkpointer` is passed to graphs that run within the agent.
    """

    plan: AgentPlan
    thread: Thread
    config: RunnableConfig
    runtime: Runtime[Any]
    stream: RunStream
    _: KW_ONLY
    answers: Mapping[str, Any]
    breakpoints: Breakpoints
    is_resumed: bool
    outer: Outer | None
    checkpointer: Any
    inbox: Inbox | None = None
    """Messages for the run while it works; `None` for a run that takes none."""
    background: ThreadBackground | None = None
    """Background calls of the thread; `None` for a run that can have none."""
    attendance: SideTask | None = field(default=None, init=False)
    """Task beside the run that attends to its lease and to its inbox; `None` for a run with neither."""
    reporter: RunReporter | None = field(default=None, init=False)
    """Object that reports the run to observers, set before the run starts; `None` without observers."""
    is_traced: bool = field(default=True, init=False)
    """`True` if LangChain callback handlers listen; cached, because the check costs as much as a call."""
    is_watched: bool = field(default=True, init=False)
    """`True` if the run must send an event for each task, to callback handlers or to readers of a stream."""

    def __post_init__(self) -> None:
        self.tools = self.plan.tools
        self.loop = current_loop()
        self.by_call = self.plan.by_call
        self.resumes_nested_graphs = self.is_resumed
        """`True` during the first step of a resumed run, in which graphs inside the nodes resume, too."""
        # LangGraph counts the limit from two steps after the stored position; new input has taken both already.
        self.step_limit = self.thread.step + self.config["recursion_limit"] + (2 if self.is_resumed else 0)

    def restart_step_limit(self) -> None:
        """Count the recursion limit from the current position, as for new input."""
        # One step for the message itself.
        self.step_limit = self.thread.step + self.config["recursion_limit"] + 1

    def begin(self, config: RunnableConfig) -> None:
        """Prepare the configs of the run's nodes from the run's `config`; called once, when the run starts."""
        # Callback handlers report the run in another config than that of the constructor.
        self.is_traced = config is not self.config
        self.is_watched = self.is_traced or self.stream.has_readers
        self.config = config
        self._configs = NodeConfigs(
            config, runtime=self.runtime, channels=self.thread.state.channels, checkpointer=self.checkpointer
        )

    @property
    def steps_left(self) -> int:
        """Number of steps that the recursion limit still allows after the next step."""
        return self.step_limit - (self.thread.step + 1)

    def input_of(self, node: str) -> Any:
        is_sent = node == TOOLS and self.by_call
        # LangGraph sends such calls in the step before theirs, and their `remaining_steps` counts from it.
        clock = Clock(self.thread.step + (0 if is_sent else 1), self.step_limit)
        flow = self.plan.flow
        # Such a send carries the state as the node of the reply reads it.
        return self.plan.schema.input_for(
            flow.reply_node if is_sent and flow.sends_state else node, self.thread.state, clock
        )

    def text_about(self, call: ToolCall) -> str:
        """Return the text for the model about a call that will not run and has no answer."""
        if id_of(call) in self.thread.begun:
            return UNANSWERED  # also by an earlier program, which had a tool of this name
        text = NOT_BEGUN if id_of(call) in self.thread.not_begun else UNANSWERED
        return self.tools.text_about_unknown(call) or text

    def answers_for(self, tasks: Iterable[str]) -> dict[str, Any]:
        """Return the user's answers to the open questions of the given tasks, by interrupt id."""
        records, answers = self.thread.records, self.answers
        if not answers:
            return {}
        question_ids = [question.id for task in tasks if task in records for question in records[task].pending]
        return {interrupt_id: answers[interrupt_id] for interrupt_id in question_ids if interrupt_id in answers}

    def node_place(self, node: str, *numbers: int) -> NodePlace:
        """Return LangGraph's task id, namespace and path for a node that runs in the next step."""
        # Without `numbers`, the state is the node's input. Otherwise it is the LangGraph `Send` with the first number;
        # a second number stands for one of several calls in this `Send`.
        thread, step = self.thread, self.thread.step + 1
        path: tuple[object, ...] = (PUSH, numbers[0], False) if numbers else (PULL, node)
        triggers = (PUSH,) if numbers else (f"branch:to:{node}",)
        id_parts = (PUSH, *map(str, numbers)) if numbers else (PULL, *triggers)
        checkpoint_id, step_before = thread.origin
        task_id = task_id_of(checkpoint_id, thread.namespace, step_before + 1, node, *id_parts)
        task_name = f"{node}:{task_id}"
        return NodePlace(
            node=node,
            step=step,
            task_id=task_id,
            graph_ns=thread.namespace,
            namespace=f"{thread.namespace}{NS_SEP}{task_name}" if thread.namespace else task_name,
            checkpoint_id=checkpoint_id,
            path=path,
            triggers=triggers,
        )

    def config_at(self, node_place: NodePlace) -> RunnableConfig:
        return self._configs.at(node_place, resuming=self.resumes_nested_graphs)

    def trace(
        self,
        config: RunnableConfig,
        body: Body,
        node_input: Any,
        name: str,
        display: Callable[[Any], Any] | None = None,
    ) -> Awaitable[Any]:
        """Call a node's function `body` and return its result; report it to callback handlers as a chain run."""
        if not self.is_traced:
            return body(config)
        policy = self.plan.trace_policies.get(name)
        return trace_node(body, node_input, config, name, display=display, policy=policy)


class NodeBodies:
    """Object that runs an agent's nodes in one run, except the tools node; this class runs the Runnables in `hooks`."""

    model_node: str
    """Name of the node that asks the model."""

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self.repaired_messages: list[BaseMessage] = []
        """Conversation as it was after its last repair, or after the last check that found nothing to repair."""
        self.is_conversation_in_order = False
        """`True` if the conversation of the thread itself is in an order that providers accept."""

    async def prepare(self, node: str) -> None:
        """Repair the calls and answers of the conversation before the model reads it."""
        # Hooks before the model see the calls as they are: they may send one to the tools.
        if node != self.model_node:
            return
        thread = self.context.thread
        messages = thread.state.get(MESSAGES) or []
        repaired = repair(messages, self.repaired_messages, self.context.text_about)
        self.repaired_messages = repaired.request
        self.is_conversation_in_order = repaired.request == messages
        if repaired.conversation != messages:
            await thread.amend([thread.state.replacing(MESSAGES, repaired.conversation)], None, "repair")

    async def rewrite_reply(self, reply: BaseMessage, messages: Sequence[Any] | None) -> BaseMessage:
        """Return a reply of the model as the middleware has changed it; `messages` is the conversation before it."""
        rewrite = self.context.tools.rewrite_reply
        if rewrite is None or not isinstance(reply, AIMessage):
            return reply
        fn = partial(rewrite, reply, messages or ())
        takes_long = len(messages or ()) > _MANY_MESSAGES or is_long(reply.tool_calls) or has_many(reply.tool_calls)
        return await run_in_worker(fn) if takes_long else fn()

    def output(self, node: str, node_input: Any, config: RunnableConfig, *, is_sent: bool) -> Awaitable[Any]:
        """Run a node and return its output; `is_sent` is `True` if its input comes from a LangGraph `Send`."""
        return run_user_code(self.context.plan.hooks[node], node_input, config, node)
