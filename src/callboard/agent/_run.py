"""Run of an agent on its thread, step by step, until the agent is done, waits for a person, or meets a breakpoint.

The edges of the nodes that ran in a step lead to the nodes of the next step.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from anyio.lowlevel import cancel_shielded_checkpoint
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.errors import ErrorCode, GraphDrained, GraphInterrupt, GraphRecursionError, create_error_message
from langgraph.types import Interrupt, Send

from callboard._langgraph._call_scope import with_sent_writes
from callboard._langgraph._node_scope import NodePlace
from callboard._loops._deadline import DEFAULT_GRACE
from callboard.agent._run_context import RunContext, meets
from callboard.agent._tools_step import answer_open_calls, run_calls, run_sent_calls
from callboard.conversations._channels import MESSAGES, State, goto_of
from callboard.conversations._flow import (
    TOOLS,
    Sent,
    Target,
    admitted,
    check_sends,
    parted,
)
from callboard.conversations._journal import SavedThread
from callboard.conversations._snapshots import snapshot_of, writes_of_finished_tasks
from callboard.conversations._thread import Thread
from callboard.tools._errors import is_control_flow
from callboard.tools._ledger import CallsInterrupted, Ledger
from callboard.tools._unanswered import last_reply


class Ran(NamedTuple):
    """Node that ran in a step, with the names of its tasks; `is_sent` is `True` if a LangGraph `Send` ran it."""

    node: str
    tasks: Sequence[str]
    is_sent: bool = False


def in_order(ran: Sequence[Ran], *, by_call: bool) -> list[Ran]:
    """Return the nodes that ran in a step, in the order in which their writes are applied to the state."""
    # LangGraph applies the writes of sends last. With `by_call`, it runs the calls of the reply as sends, too, so the
    # tools node comes last.
    return sorted(ran, key=lambda one: 1 if one.is_sent else 2 * (by_call and one.node == TOOLS))


def transitions(thread: Thread, ran: Sequence[Ran], before: State | None, *, by_call: bool) -> list[Target]:
    """Return the targets of the next step (nodes and `Send`s), to which the edges of this step's nodes lead."""
    # `before` is the state before the step if a LangGraph `Send` ran in it. Then the edge of each node is decided from
    # the writes of that node alone.
    flow, targets = thread.schema.flow, list[Target]()
    for one in ran:
        state = thread.state if before is None else before.with_writes(thread.written(one.tasks))
        edge = flow.following(one.node, state)
        if before is not None and edge == TOOLS and by_call and _reply_id(state) != _reply_id(thread.state):
            # These calls are of a reply that is not the last one.
            targets += [Send(TOOLS, [call]) for call in flow.open_calls(state.get(MESSAGES) or [])]
        else:
            targets.append(edge)
    return targets


def distinct(targets: Sequence[Target], known: Sequence[str]) -> tuple[Target, ...]:
    """Filter the targets of edges: keep each node in `known` once, drop other nodes, and keep every `Send`."""
    nodes, sends = parted(targets)
    return (*dict.fromkeys(filter(known.__contains__, nodes)), *sends)


def _reply_id(state: State) -> str | None:
    messages: Sequence[BaseMessage] = state.get(MESSAGES) or []
    place = last_reply(messages)
    reply = None if place is None else messages[place]
    return reply.id if isinstance(reply, AIMessage) else None


class Run:
    """Run of an agent on a thread, from its input until the agent is done or waits for a person."""

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self.thread = context.thread
        self.tell = context.tell
        self._plan = context.plan
        self._bodies = context.plan.bodies(context)
        self._stops = context.stops
        self._resumed = context.resumed
        self.interrupts: list[Interrupt] = []
        """Open questions at which the run stopped; empty while it runs."""
        self.result: dict[str, Any] = {}
        """Values of the state for the caller; empty while the run is not at its end."""
        self._has_stopped = False
        """`True` if the run stopped at a breakpoint or at a question, and waits for a person."""

    async def go(self, config: RunnableConfig) -> dict[str, Any]:
        """Run until the agent is done or waits for a person; return the values of the state for the caller."""
        self.context.begin(config)
        thread, is_heard = self.thread, self.tell.is_heard
        if is_heard:
            self._tell_place(thread.arrival())
            self.tell.values(thread.state)
            self._tell_place(thread)
        while nodes := thread.coming:
            if is_heard:
                await self.tell.wait_for_reader()
            if not self._may_begin(nodes):
                self._stopped()
                break
            if thread.is_kept:
                await thread.prepare()
            try:
                is_alone = len(thread.next) == 1 and not thread.sends
                tasks: list[str | Sent] = [*thread.sends, *thread.next]
                await self._end_step(await (self._task(tasks[0], ends_step=True) if is_alone else self._tasks(tasks)))
            except CallsInterrupted as waiting:
                self._has_stopped = True
                self.interrupts.extend(waiting.interrupts)
                if self.context.by_call and is_heard and (written := writes_of_finished_tasks(thread)):
                    self.tell.values(thread.state.with_writes(written), written)
                break
            if is_heard:
                self._tell_place(thread)
            if self._stops.after and meets(self._stops.after, nodes):
                self._stopped()
                break
        else:
            self._check_steps()
        if is_heard:
            await cancel_shielded_checkpoint()  # the reader gets the last chunk before the end of the run is reported
        return self._ended()

    def _ended(self) -> dict[str, Any]:
        if self.context.reporter is not None:
            self.context.reporter.question_ids = tuple(question.id for question in self.interrupts)
        if self.context.outer is not None and self._has_stopped:
            raise GraphInterrupt(tuple(self.interrupts))
        self.result = self._values()
        if self.context.reporter is not None:
            self.context.reporter.result = self.result
        return self.result

    def _may_begin(self, nodes: Sequence[str]) -> bool:
        """Return whether the next step may begin; `False` at a breakpoint before one of its nodes."""
        if self.thread.step >= self.context.stop:
            self._check_steps()
        if not self._resumed and self._stops.before and meets(self._stops.before, nodes):
            return False
        control = self.context.runtime.control
        if control is not None and control.drain_requested:
            raise GraphDrained(control.drain_reason or "shutdown")
        # Nested graphs resume in the first step only; later steps start theirs anew.
        self._resumed, self.context.goes_on = False, self.context.goes_on and self._resumed
        return True

    def _check_steps(self) -> None:
        if self.thread.step + 1 > self.context.stop:
            message = (
                f"Recursion limit of {self.context.config['recursion_limit']} reached without hitting a stop "
                "condition. You can increase the limit by setting the `recursion_limit` config key."
            )
            code = ErrorCode.GRAPH_RECURSION_LIMIT
            raise GraphRecursionError(create_error_message(message=message, error_code=code))

    def _stopped(self) -> None:
        self._has_stopped = bool(self.thread.coming)
        self.tell.stopped()

    def _tell_place(self, thread: Thread | None) -> None:
        if isinstance(thread, SavedThread):
            self.tell.checkpoint(
                partial(snapshot_of, thread, by_call=self.context.by_call), thread.state, self.context.config
            )

    async def _tasks(self, tasks: Sequence[str | Sent]) -> list[Ran]:
        """Run the tasks of a step one after the other; only the calls within a tools node run concurrently."""
        ran: list[Ran] = []
        waits: list[CallsInterrupted] = []
        for task in tasks:
            try:
                ran += await self._task(task, ends_step=len(tasks) == 1)
            except CallsInterrupted as waiting:
                waits.append(waiting)  # a question does not stop the tasks after it
        if waits:
            raise CallsInterrupted([asked for one in waits for asked in one.interrupts], waits[-1].ledger)
        return in_order(ran, by_call=self.context.by_call)

    async def _end_step(self, ran: Sequence[Ran]) -> None:
        thread = self.thread
        # All tasks have finished and are recorded one by one. Only `stepped` below moves the thread: a crash before it
        # repeats the end of the step, not the tasks.
        order: list[str] = []
        gotos: list[tuple[str, Target]] = []
        for one in ran:
            for name in one.tasks:
                order.append(name)
                if type(output := thread.records[name].output) is ToolMessage:
                    continue  # as nearly all outputs of calls
                for target in goto_of(output):
                    gotos.append((one.node, target))  # noqa: PERF401 (a comprehension is a function more for each call)
        targets: list[Target] = []
        if gotos:
            # A wrong target raises; the thread must not have moved by then.
            targets = self._checked(gotos, thread.state.with_writes(thread.written(order)))
        before = thread.state.with_writes([]) if thread.sends else None
        written = thread.apply_outputs(order)
        if len(ran) == 1 and before is None and not targets:  # nearly all steps
            edge = self._plan.flow.following(ran[0].node, thread.state)
            following: tuple[Target, ...] = (edge,) if edge in self._plan.flow.nodes else ()
        else:
            edges = transitions(thread, ran, before, by_call=self.context.by_call)
            following = distinct([*edges, *targets], self._plan.flow.nodes)
        # The claims of the calls follow at once, or the last checkpoint. A reader of the stream may ask for the place.
        later = following == (TOOLS,) or not (following or self.tell.is_heard)
        await thread.record_step(order, following, later=later)
        if self.tell.is_heard:
            self.tell.values(thread.state, written)

    def _checked(self, gotos: Sequence[tuple[str, Target]], state: State) -> list[Target]:
        flow = self._plan.flow
        check_sends([target for _, target in gotos], flow.nodes, MESSAGES)
        return [found for node, target in gotos for found in admitted(flow, node, [target], state)]

    async def _task(self, task: str | Sent, *, ends_step: bool) -> Sequence[Ran]:
        """Run a node or a `Send`, unless its result is stored; `ends_step` is `True` if the step has no other task."""
        if isinstance(task, Sent):
            if task.node == TOOLS:
                return [Ran(TOOLS, await run_sent_calls(self.context, task), is_sent=True)]
            return await self._node(task.node, task, ends_step=ends_step)
        if task == TOOLS:
            return [Ran(TOOLS, await run_calls(self.context, ends_step=ends_step), is_sent=False)]
        return await self._node(task, None, ends_step=ends_step)

    async def _node(self, node: str, send: Sent | None, *, ends_step: bool) -> Sequence[Ran]:
        """Run a node with the state, or with the input of a `Send`; store its output in the thread."""
        name, numbers, is_sent = (node, (), False) if send is None else (send.task, (send.number,), True)
        ran = [Ran(node, [name], is_sent)]
        record, place = self.thread.records.get(name), self.context.place(node, *numbers)
        if record is not None and record.is_finished:
            # Stored by an earlier run of this step: it is not run again.
            self.tell.cached(place, [record.output])
            return ran
        if send is None:
            await self._bodies.prepare(node)
        given = self.context.given(node) if send is None else send.payload
        if self.tell.is_heard:
            self.tell.started(place, given)
            await self.tell.wait_for_reader()
        # A node may ask a person, like a call.
        config, answers = self.context.config_at(place), self.context.answers_for([name])
        records = {} if record is None else {name: record}
        namespaces = {name: place.namespace}
        ledger = Ledger(config, name, [name], records=records, answers=answers or None, namespaces=namespaces)
        if ledger.is_waiting(name):
            raise self._asked(place, ledger)
        own = ledger.config_of_call(name, config, is_node=True)
        try:
            output = await self.context.traced(own, partial(self._output, node, given, is_sent), given, node)
        except GraphInterrupt as interrupt:
            ledger.record_question(name, interrupt)
            await self.thread.record_questions(ledger.records)
            raise self._asked(place, ledger) from None
        except Exception as error:
            if not is_control_flow(error):
                self.tell.failed(place, error)
                await self.thread.record_error(name, repr(error))
            raise
        # Recorded first: with durability "sync", a result that a reader of the stream has seen is stored.
        await self.thread.record_result(name, output, later=ends_step)
        if self.tell.is_heard:
            self.tell.ended(place, [output])
        return ran

    def _asked(self, place: NodePlace, ledger: Ledger) -> CallsInterrupted:
        self.tell.asked(place, ledger.pending, self.thread.state)
        return CallsInterrupted(ledger.pending, ledger.dump())

    async def _output(self, node: str, given: Any, is_sent: bool, config: RunnableConfig) -> Any:
        """Run a node, with its config in LangChain's context variable, and return its output."""
        # `interrupt()` and models read the config there.
        token = var_child_runnable_config.set(config)
        try:
            # If the node swallows a cancellation, its output is discarded.
            with self.context.loop.enforce_cancellation(DEFAULT_GRACE):
                output = await self._bodies.output(node, given, config, is_sent=is_sent)
        finally:
            var_child_runnable_config.reset(token)
        return with_sent_writes(output, config)

    def _values(self) -> dict[str, Any]:
        """Return the values of the state for the caller, including the results of an unfinished step's tasks."""
        state = self.thread.state
        if self.thread.records and self.context.by_call:
            state = state.with_writes(writes_of_finished_tasks(self.thread))
        return state.read(self._plan.schema.output)

    async def give_up(self, reason: str) -> None:
        """Answer each unfinished call of the cancelled step with an error message that contains `reason`."""
        thread = self.thread
        if TOOLS not in thread.next or thread.sends:
            return
        order = await answer_open_calls(self.context, reason)
        if not thread.questions:
            await self._end_step([Ran(TOOLS, order)])
