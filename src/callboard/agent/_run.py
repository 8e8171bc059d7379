"""Run of an agent, from the current position of its thread to the next stop.

The edges of the nodes that ran in a step lead to the nodes of the next step.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from anyio.lowlevel import checkpoint
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.errors import ErrorCode, GraphDrained, GraphInterrupt, GraphRecursionError, create_error_message
from langgraph.types import Interrupt, Send

from callboard._langgraph._node_scope import NodePlace
from callboard._loops._current import current_loop
from callboard._loops._deadline import DEFAULT_GRACE
from callboard.agent._model import lending, run_user_code
from callboard.agent._run_context import RunContext, meets
from callboard.agent._run_events import Body, RunReporter
from callboard.agent._tools_step import answer_open_calls, run_calls, run_sent_calls
from callboard.conversations._channels import State, goto_of
from callboard.conversations._flow import (
    AGENT,
    RESPONSE,
    TOOLS,
    Sent,
    Target,
    check_sends,
    for_model,
    parted,
    value_in,
)
from callboard.conversations._history import complete_calls, keepable, repaired
from callboard.conversations._journal import SavedThread
from callboard.conversations._snapshots import finished_writes, snapshot_of
from callboard.conversations._storage import MESSAGES
from callboard.conversations._thread import Thread
from callboard.tools._errors import is_control_flow
from callboard.tools._ledger import CallsInterrupted, Ledger
from callboard.tools._unanswered import last_reply


@dataclass(frozen=True, slots=True)
class Ran:
    """Node, or LangGraph `Send`, that ran in a step, with the names of its tasks."""

    what: str | Sent
    tasks: Sequence[str]

    @property
    def node(self) -> str:
        return self.what.node if isinstance(self.what, Sent) else self.what


def in_order(ran: Sequence[Ran], *, by_call: bool) -> list[Ran]:
    """Return the nodes that ran in a step, in the order in which their writes are applied to the state.

    Nodes that a LangGraph `Send` ran come after the other nodes. With `by_call`, the calls of the reply are tasks of
    their own. LangGraph runs such tasks by `Send` as well, so the tools node comes last.
    """
    if len(ran) < 2:
        return [*ran]
    return sorted(ran, key=lambda one: 1 if isinstance(one.what, Sent) else 2 * (by_call and one.what == TOOLS))


def transitions(thread: Thread, ran: Sequence[Ran], before: State | None, *, by_call: bool) -> list[Target]:
    """Return the next nodes and sends to which the edges of a step's nodes lead.

    The state of the thread contains the writes of the step. `before` is the state before the step, if a LangGraph
    `Send` ran in it, and otherwise `None`. With it, the edge of each node is decided from the writes of that node
    alone. With `by_call`, the calls of a reply that is not the last one run, too: each is returned as a send.
    """
    flow, messages = thread.schema.flow, _messages(thread.state)
    if before is None:
        return [flow.following(one.node, messages) for one in ran]
    targets: list[Target] = []
    for one in ran:
        seen = _messages(before.with_writes(thread.written(one.tasks)))
        edge = flow.following(one.node, seen)
        if edge == TOOLS and by_call and _reply_id(seen) != _reply_id(messages):
            targets += [Send(TOOLS, [call]) for call in flow.open_calls(seen)]
        else:
            targets.append(edge)
    return targets


def distinct(targets: Iterable[Target], known: Sequence[str]) -> tuple[Target, ...]:
    """Return the targets without unknown nodes and without repeated nodes; sends are all kept."""
    nodes, sends = parted(targets)
    return (*dict.fromkeys(filter(known.__contains__, nodes)), *sends)


def _messages(state: State) -> list[BaseMessage]:
    return state.get(MESSAGES) or []


def _reply_id(messages: Sequence[BaseMessage]) -> str | None:
    place = last_reply(messages)
    reply = None if place is None else messages[place]
    return reply.id if isinstance(reply, AIMessage) else None


NEEDS_MORE_STEPS = "Sorry, need more steps to process this request."


class Run:
    """Run of an agent on a thread, from its input until the agent is done or waits for a person."""

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self.thread = context.thread
        self.tell = context.tell
        self._plan = context.plan
        self._stops = context.stops
        self._resumed = context.resumed
        self.reporter: RunReporter
        """Object that reports the run to observers; set before `go` is called."""
        self.interrupts: list[Interrupt] = []
        """Open questions at which the run stopped; empty while it runs."""
        self.has_stopped = False
        """`True` if the run stopped at a breakpoint or at a question, and waits for a person."""
        self._whole: list[BaseMessage] = []
        """Conversation after the last repair, or the last check that found nothing to repair."""

    async def go(self) -> None:
        thread, is_heard = self.thread, self.tell.is_heard
        if is_heard:
            self._tell_place(thread.arrival())
            self.tell.values(thread.state)
            self._tell_place(thread)
        while nodes := thread.coming:
            self._check_steps()
            if not self._resumed and self._stops.before and meets(self._stops.before, nodes):
                return self._stopped()
            self._check_drain()
            # Nested graphs resume in the first step only; later steps start theirs anew.
            self._resumed, self.context.goes_on = False, self.context.goes_on and self._resumed
            try:
                await self._step()
            except CallsInterrupted as waiting:
                return self._waits(waiting.interrupts)
            if is_heard:
                self._tell_place(thread)
                await checkpoint()  # the reader gets the events of this step before the next one begins
            if self._stops.after and meets(self._stops.after, nodes):
                return self._stopped()
        self._check_steps()
        return None

    def _check_drain(self) -> None:
        control = self.context.runtime.control
        if control is not None and control.drain_requested:
            raise GraphDrained(control.drain_reason or "shutdown")

    def _check_steps(self) -> None:
        if self.thread.step + 1 > self.context.stop:
            message = (
                f"Recursion limit of {self.context.config['recursion_limit']} reached without hitting a stop "
                "condition. You can increase the limit by setting the `recursion_limit` config key."
            )
            code = ErrorCode.GRAPH_RECURSION_LIMIT
            raise GraphRecursionError(create_error_message(message=message, error_code=code))

    def _stopped(self) -> None:
        self.has_stopped = bool(self.thread.coming)
        self.tell.stopped()

    def _waits(self, interrupts: Sequence[Interrupt]) -> None:
        self.has_stopped = True
        self.interrupts.extend(interrupts)
        if self.context.by_call and self.tell.is_heard and (written := finished_writes(self.thread)):
            self.tell.values(self.thread.state.with_writes(written), written)

    def _tell_place(self, thread: Thread | None) -> None:
        if isinstance(thread, SavedThread):
            self.tell.checkpoint(
                partial(snapshot_of, thread, by_call=self.context.by_call), thread.state, self.context.config
            )

    async def _step(self) -> None:
        thread = self.thread
        await thread.prepare()
        ran: list[Ran] = []
        waits: list[CallsInterrupted] = []
        tasks: list[str | Sent] = [*thread.sends, *thread.next]
        # One after the other; the calls within a tools node run together. A question does not stop the tasks after it.
        for task in tasks:
            try:
                ran.append(Ran(task, await self._tasks(task, ends_step=len(tasks) == 1)))
            except CallsInterrupted as waiting:
                waits.append(waiting)
        if waits:
            raise CallsInterrupted([asked for one in waits for asked in one.interrupts], waits[-1].ledger)
        await self._end_step(in_order(ran, by_call=self.context.by_call))

    async def _end_step(self, ran: Sequence[Ran]) -> None:
        thread = self.thread
        # All tasks have finished and are recorded one by one. Only `stepped` below moves the thread: a crash before it
        # repeats the end of the step, not the tasks.
        order = [name for one in ran for name in one.tasks]
        gotos: list[Target] = []
        for task in order:
            gotos += goto_of(thread.records[task].output)
        if gotos:
            # A wrong target raises; the thread must not have moved by then.
            check_sends(gotos, self._plan.flow.nodes, MESSAGES)
        before = thread.state.with_writes([]) if thread.sends else None
        written = thread.apply_outputs(order)
        edges = transitions(thread, ran, before, by_call=self.context.by_call)
        following = distinct([*edges, *gotos], self._plan.flow.nodes)
        await thread.stepped(order, following, claims=following == (TOOLS,))
        self.tell.values(thread.state, written)

    async def _tasks(self, task: str | Sent, *, ends_step: bool) -> list[str]:
        """Run a node or a send, unless its result is stored; return the names of its tasks.

        The names are in the order in which the outputs of the tasks are applied to the state.
        """
        node, name = (task.node, task.task) if isinstance(task, Sent) else (task, task)
        if node == TOOLS:
            with lending(self._plan.model.chat_model):
                if isinstance(task, Sent):
                    return await run_sent_calls(self.context, task)
                return await run_calls(self.context, ends_step=ends_step)
        record = self.thread.known_of(name)
        # Stored by an earlier run of this step: it is not run again.
        if record.is_finished:
            self.tell.cached(self.context.place_of(task), [record.output])
        else:
            await self._plain(task, node, name, ends_step=ends_step)
        return [name]

    async def _plain(self, task: str | Sent, node: str, name: str, *, ends_step: bool) -> None:
        if task == AGENT:
            await self._repair()
        place = self.context.place_of(task)
        given = task.payload if isinstance(task, Sent) else self.context.given(node)
        config = self.context.config_at(place)
        ledger = self._ledger(name, config, place)
        self.tell.started(place, given)
        if ledger.waits(name):
            self.tell.asked(place, ledger.pending, self.thread.state)
            raise CallsInterrupted(ledger.pending, ledger.dump())
        config = ledger.config_of_call(name, config)
        body = partial(_in_place, partial(self._body(node, isinstance(task, Sent)), given))
        try:
            output = await self.context.traced(config, body, given, node)
        except GraphInterrupt as interrupt:
            ledger.asked(name, interrupt)
            await self.thread.asked(ledger.records)
            self.tell.asked(place, ledger.pending, self.thread.state)
            raise CallsInterrupted(ledger.pending, ledger.dump()) from None
        except Exception as error:
            if not is_control_flow(error):
                self.tell.failed(place, error)
                await self.thread.failed(name, repr(error))
            raise
        # Recorded first: with durability "sync", a result that a reader of the stream has seen is stored.
        await self.thread.finished(name, output, later=ends_step)
        self.tell.ended(place, [output])

    def _ledger(self, name: str, config: RunnableConfig, place: NodePlace) -> Ledger:
        """Return the ledger of a node: its open questions and its answers. A node may ask a person, like a call."""
        record, answers = self.thread.records.get(name), self.context.answers_for([name])
        records = {} if record is None else {name: record}
        namespaces = {name: place.namespace}
        return Ledger(config, name, [name], records=records, answers=answers or None, namespaces=namespaces)

    def _body(self, node: str, sent: bool) -> Callable[[Any, RunnableConfig], Any]:
        if node == AGENT:
            return partial(self._reply, sent=sent)
        if node == RESPONSE:
            return self._response
        return partial(run_user_code, self._plan.hooks[node], name=node)

    async def _reply(self, state: Any, config: RunnableConfig, *, sent: bool) -> dict[str, Any]:
        plan = self._plan
        seen = for_model(state, before=plan.flow.before) if sent else self._for_model(state)
        ask = partial(plan.model.reply, seen, config, plan.tools.offered_tools())
        reply = await self.reporter.ask(plan.model.known, seen, ask)
        reply.name = plan.name
        complete_calls(reply)
        remaining = value_in(state, "remaining_steps") if sent else self.context.stop - (self.thread.step + 1)
        if isinstance(reply, AIMessage) and remaining is not None and self._lacks_steps(reply, remaining):
            reply = AIMessage(id=reply.id, content=NEEDS_MORE_STEPS)
        return {"messages": keepable(reply)}

    def _for_model(self, state: Any) -> Any:
        """Return the state with its messages in an order that providers accept.

        If a hook before the model wrote `llm_input_messages`, these are the messages.
        """
        given = self.thread.state.get("llm_input_messages") if self._plan.flow.before else None
        messages = given or _messages(self.thread.state)
        whole = self._whole if given is None and messages == self._whole else repaired(messages)
        if given is None and whole == messages:
            return state
        if isinstance(state, dict):
            return {**state, "messages": whole}
        state.messages = whole
        return state

    async def _response(self, state: Any, config: RunnableConfig) -> dict[str, Any]:
        model = self._plan.model
        ask = partial(model.respond, state, config, self._plan.response_format)
        return {"structured_response": await self.reporter.ask(model.known, state, ask)}

    def _lacks_steps(self, reply: AIMessage, remaining: int) -> bool:
        if remaining >= 2:
            return False
        all_direct = all(call["name"] in self._plan.flow.direct for call in reply.tool_calls)
        return (remaining < 1 and all_direct) or bool(reply.tool_calls)

    async def _repair(self) -> None:
        messages = _messages(self.thread.state)
        self._whole = whole = repaired(messages, self._whole)
        if len(whole) != len(messages):
            await self.thread.amend([self.thread.state.replacing("messages", whole)], None, "repair")

    def values(self) -> dict[str, Any]:
        """Return the values of the state for the caller, including the results of an unfinished step's tasks."""
        state = self.thread.state
        if self.thread.records and self.context.by_call:
            state = state.with_writes(finished_writes(self.thread))
        return state.read(self._plan.schema.output)

    async def give_up(self, reason: str) -> None:
        """Give every unfinished call of the cancelled step an error message with the reason.

        Ends the step, unless a call waits for a person. Does nothing if the step does not run the tools node, or has
        sends.
        """
        thread = self.thread
        if TOOLS not in thread.next or thread.sends:
            return
        order = await answer_open_calls(self.context, reason)
        if not thread.questions:
            await self._end_step([Ran(TOOLS, order)])


async def _in_place(body: Body, config: RunnableConfig) -> Any:
    """Run the body of a node and return its output; its config is in LangChain's context variable meanwhile.

    `interrupt()` and models read the config there. A cancellation is enforced: if the body swallows it, the output is
    discarded.
    """
    token = var_child_runnable_config.set(config)
    try:
        with current_loop().enforce_cancellation(DEFAULT_GRACE):
            return await body(config)
    finally:
        var_child_runnable_config.reset(token)
