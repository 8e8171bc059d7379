"""Run of an agent on its thread, step by step, until the agent is done, waits for a person, or meets a breakpoint.

The edges of the nodes that ran in a step lead to the nodes of the next step.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

from anyio.lowlevel import cancel_shielded_checkpoint
from langchain_core.messages import AIMessage, BaseMessage, ToolCall
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.errors import ErrorCode, GraphDrained, GraphInterrupt, GraphRecursionError, create_error_message
from langgraph.types import Interrupt, Send

from callboard._langchain._errors import is_control_flow
from callboard._langgraph._call_scope import with_sent_writes
from callboard._langgraph._node_scope import NodePlace
from callboard._loops._current import current_loop
from callboard.agent._inbox import Inbox
from callboard.agent._run_context import RunContext, has_breakpoint
from callboard.agent._tools_step import (
    answer_open_calls,
    ask_about_lost_calls,
    run_calls,
    run_sent_calls,
    settle_lost_calls,
)
from callboard.conversations._channels import MESSAGES, State, goto_of
from callboard.conversations._saved_thread import SavedThread
from callboard.conversations._snapshots import snapshot_of, writes_of_finished_tasks
from callboard.conversations._targets import TOOLS, NumberedSend, Target, admit_targets, check_sends, split_targets
from callboard.conversations._thread import NextTargets, Thread
from callboard.tools._background import is_notification
from callboard.tools._ledger import CallsInterrupted, Ledger
from callboard.tools._unanswered import last_reply


class NodeRun(NamedTuple):
    """Node that ran in a step, with the names of its tasks; `is_sent` is `True` if a LangGraph `Send` ran it."""

    node: str
    tasks: Sequence[str]
    is_sent: bool = False


def transitions(thread: Thread, node_runs: Sequence[NodeRun], before: State | None, *, by_call: bool) -> list[Target]:
    """Return the targets of the next step (nodes and `Send`s), to which the edges of this step's nodes lead."""
    # `before` is the state before the step if a LangGraph `Send` ran in it. Then the edge of each node is decided from
    # the writes of that node alone.
    flow, targets = thread.schema.flow, list[Target]()
    for node_run in node_runs:
        state = thread.state if before is None else before.with_writes(thread.writes_of_tasks(node_run.tasks))
        edge = flow.next_node(node_run.node, state)
        if before is not None and edge == TOOLS and by_call and _reply_id(state) != _reply_id(thread.state):
            # These calls are of a reply that is not the last one.
            targets += [Send(TOOLS, [call]) for call in flow.open_calls(state.get(MESSAGES) or [])]
        else:
            targets.append(edge)
    return targets


def distinct(targets: Sequence[Target], node_names: Sequence[str]) -> tuple[Target, ...]:
    """Filter the targets of edges: keep each node in `node_names` once, drop other nodes, and keep every `Send`."""
    nodes, sends = split_targets(targets)
    return (*dict.fromkeys(filter(node_names.__contains__, nodes)), *sends)


def _reply_id(state: State) -> str | None:
    messages: Sequence[BaseMessage] = state.get(MESSAGES) or []
    index = last_reply(messages)
    reply = None if index is None else messages[index]
    return reply.id if isinstance(reply, AIMessage) else None


class Run:
    """Run of an agent on a thread, from its input until the agent is done or waits for a person."""

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self.thread = context.thread
        self.stream = context.stream
        self._plan = context.plan
        self._bodies = context.plan.bodies(context)
        self._breakpoints = context.breakpoints
        self._is_resumed = context.is_resumed
        self.interrupts: list[Interrupt] = []
        """Open questions at which the run stopped; empty while it runs."""
        self.result: dict[str, Any] = {}
        """Values of the state for the caller; empty while the run is not at its end."""
        self._lost_calls: dict[str, ToolCall] = {}
        """Background calls of an ended process about which a person has not decided yet, by handle."""
        self._has_stopped = False
        """`True` if the run stopped at a breakpoint or at a question, and waits for a person."""

    async def go(self, config: RunnableConfig) -> dict[str, Any]:
        """Run until the agent is done or waits for a person; return the values of the state for the caller."""
        self.context.begin(config)
        thread, has_readers = self.thread, self.stream.has_readers
        if self.context.background is not None:
            self._lost_calls = await settle_lost_calls(self.context)
        arrival = thread.take_arrival()
        if has_readers:
            self._send_checkpoint(arrival)
            self.stream.send_values(thread.state)
            self._send_checkpoint(thread)
        while nodes := await self._next_nodes():
            if has_readers:
                await self.stream.wait_for_reader()
            if not self._can_begin_step(nodes):
                self._record_stop()
                break
            if thread.is_kept:
                await thread.prepare()
            thread.is_before_step = False
            try:
                await self._end_step(await self._run_tasks([*thread.sends, *thread.next]))
                thread.is_before_step = True
            except CallsInterrupted as interruption:
                self._has_stopped = True
                self.interrupts.extend(interruption.interrupts)
                # As in LangGraph, an inner graph sends no state after its questions.
                sends_values = self.context.by_call and has_readers and self.context.outer is None
                if sends_values and (written := writes_of_finished_tasks(thread)):
                    self.stream.send_values(thread.state.with_writes(written), written)
                break
            if has_readers:
                self._send_checkpoint(thread)
            if self._breakpoints.after and has_breakpoint(self._breakpoints.after, nodes):
                self._record_stop()
                break
        else:
            self._check_step_limit()
        if has_readers:
            await cancel_shielded_checkpoint()  # the reader gets the last chunk before the end of the run is reported
        reporter = self.context.reporter
        if reporter is not None:
            reporter.question_ids = tuple(question.id for question in self.interrupts)
        if self.context.outer is not None and self._has_stopped:
            raise GraphInterrupt(tuple(self.interrupts))
        state = thread.state
        if thread.records and self.context.by_call:
            # The results of an unfinished step's tasks, too.
            state = state.with_writes(writes_of_finished_tasks(thread))
        self.result = state.read(self._plan.schema.output)
        if reporter is not None:
            reporter.result = self.result
        return self.result

    async def _next_nodes(self) -> Sequence[str]:
        """Return the nodes of the next step; before a turn, and where the run would end, read messages first.

        At these two points every call of the conversation has its result.
        """
        thread, flow, inbox = self.thread, self._plan.flow, self.context.inbox
        is_before_turn = thread.next == (flow.turn_entry,) and not thread.sends
        # A process may be killed between the result of the turn's first node, such as a reply, and the end of the step.
        # A message that this node has not read stands after its result.
        is_before_turn = is_before_turn and not thread.record_of(flow.turn_entry).is_finished
        if self._lost_calls and (is_before_turn or not thread.next_nodes):
            self.interrupts.extend(await ask_about_lost_calls(self.context, self._lost_calls))
            if self.interrupts:
                self._has_stopped = True
                return ()
        if is_before_turn and inbox is not None:
            await inbox.store_letters(thread)  # all that have arrived: each turn costs a request to the model
        if thread.unread and is_before_turn:
            await self._read_messages("turn", None)
        while not (nodes := thread.next_nodes):
            if inbox is not None:
                await inbox.store_letters(thread)
            if thread.unread:
                await self._read_messages("end", lambda: [flow.entry])
            elif inbox is not None and self._has_open_background_calls():
                await self._park(inbox)
            elif inbox is None or inbox.close_if_empty():
                break
        return nodes

    def _has_open_background_calls(self) -> bool:
        background = self.context.background
        return background is not None and background.has_open_calls()

    async def _park(self, inbox: Inbox) -> None:
        """Wait until a message arrives, a background call ends, or the lease on the thread has to be renewed."""
        attendance = self.context.attendance
        assert attendance is not None
        # This task does all that is to do meanwhile: very many runs may wait for a long time. The inbox is empty, so
        # the task beside the run stores nothing when it is cancelled.
        await attendance.pause()
        try:
            arrival = inbox.expect_letter()
            if self._has_open_background_calls():
                with current_loop().scope(self.thread.renewal_time, 0.0):
                    await arrival.wait()
            await self.thread.renew_hold()
        finally:
            attendance.resume()

    async def _read_messages(self, point: Literal["turn", "end"], next_targets: NextTargets | None) -> None:
        if self.context.background is not None:
            self.context.background.raise_fatal_error()
        messages, reporter = [*self.thread.unread], self.context.reporter
        if not all(map(is_notification, messages)):
            self.context.restart_step_limit()
        writes = await self.thread.read_messages(next_targets)
        if reporter is not None:
            reporter.report_messages(messages, point)
        if self.stream.has_readers:
            self.stream.send_input(writes)
            self.stream.send_values(self.thread.state, writes)
            self._send_checkpoint(self.thread)

    def _can_begin_step(self, nodes: Sequence[str]) -> bool:
        """Return whether the next step may begin; `False` at a breakpoint before one of its nodes."""
        if self.thread.step >= self.context.step_limit:
            self._check_step_limit()
        if not self._is_resumed and self._breakpoints.before and has_breakpoint(self._breakpoints.before, nodes):
            return False
        control = self.context.runtime.control
        if control is not None and control.drain_requested:
            raise GraphDrained(control.drain_reason or "shutdown")
        # Nested graphs resume in the first step only; later steps start theirs anew.
        self._is_resumed, self.context.resumes_nested_graphs = (
            False,
            self.context.resumes_nested_graphs and self._is_resumed,
        )
        return True

    def _check_step_limit(self) -> None:
        if self.thread.step + 1 > self.context.step_limit:
            message = (
                f"Recursion limit of {self.context.config['recursion_limit']} reached without hitting a stop "
                "condition. You can increase the limit by setting the `recursion_limit` config key."
            )
            code = ErrorCode.GRAPH_RECURSION_LIMIT
            raise GraphRecursionError(create_error_message(message=message, error_code=code))

    def _record_stop(self) -> None:
        self._has_stopped = bool(self.thread.next_nodes)
        self.stream.send_stop()

    def _send_checkpoint(self, thread: Thread | None) -> None:
        if isinstance(thread, SavedThread):
            self.stream.send_checkpoint(
                partial(snapshot_of, thread, by_call=self.context.by_call), thread.state, self.context.config
            )

    async def _run_tasks(self, tasks: Sequence[str | NumberedSend]) -> list[NodeRun]:
        """Run the tasks of a step one after the other; return the nodes in the order in which their writes are applied.

        Only the calls within a tools node run concurrently.
        """
        node_runs: list[NodeRun] = []
        interruptions: list[CallsInterrupted] = []
        for task in tasks:
            try:
                node_runs.append(await self._run_task(task, ends_step=len(tasks) == 1))
            except CallsInterrupted as error:
                interruptions.append(error)  # a question does not stop the tasks after it
        if interruptions:
            raise CallsInterrupted(
                [question for interruption in interruptions for question in interruption.interrupts],
                interruptions[-1].ledger,
            )
        # LangGraph applies the writes of sends last. With `by_call`, it runs the calls of the reply as sends, too, so
        # the tools node comes last.
        by_call = self.context.by_call
        return sorted(node_runs, key=lambda run: 1 if run.is_sent else 2 * (by_call and run.node == TOOLS))

    async def _end_step(self, node_runs: Sequence[NodeRun]) -> None:
        thread = self.thread
        # All tasks have finished and are recorded one by one. Only `record_step` moves the thread: a crash before it
        # repeats the end of the step, not the tasks.
        task_names = [name for node_run in node_runs for name in node_run.tasks]
        gotos: list[tuple[str, Target]] = [
            (node_run.node, target)
            for node_run in node_runs
            for name in node_run.tasks
            for target in goto_of(thread.records[name].output)
        ]
        targets: list[Target] = []
        if gotos:
            # A wrong target raises; the thread must not have moved by then.
            flow, state = self._plan.flow, thread.state.with_writes(thread.writes_of_tasks(task_names))
            check_sends([target for _, target in gotos], flow.nodes, MESSAGES)
            for node, target in gotos:
                targets += admit_targets(flow, node, [target], state)
        before = thread.state.with_writes([]) if thread.sends else None
        written = thread.apply_outputs(task_names)
        edges = transitions(thread, node_runs, before, by_call=self.context.by_call)
        next_targets = distinct([*edges, *targets], self._plan.flow.nodes)
        # The claims of the calls follow at once, or the last checkpoint. A reader of the stream may ask for the place.
        joins_next_write = next_targets == (TOOLS,) or not (next_targets or self.stream.has_readers)
        await thread.record_step(task_names, next_targets, joins_next_write=joins_next_write)
        if self.stream.has_readers:
            self.stream.send_values(thread.state, written)

    async def _run_task(self, task: str | NumberedSend, *, ends_step: bool) -> NodeRun:
        """Run a node with the state, or with the input of a `Send`, and store its output, unless it is stored.

        `ends_step` is `True` if the step has no other task.
        """
        if task == TOOLS:
            return NodeRun(TOOLS, await run_calls(self.context, ends_step=ends_step))
        send = task if isinstance(task, NumberedSend) else None
        if send is not None and send.node == TOOLS:
            return NodeRun(TOOLS, await run_sent_calls(self.context, send), is_sent=True)
        node, name, numbers = (str(task), str(task), ()) if send is None else (send.node, send.task, (send.number,))
        node_run = NodeRun(node, [name], is_sent=send is not None)
        record, node_place = self.thread.records.get(name), self.context.node_place(node, *numbers)
        if record is not None and record.is_finished:
            # Stored by an earlier run of this step: it is not run again.
            self.stream.send_cached(node_place, [record.output])
            return node_run
        if send is None:
            await self._bodies.prepare(node)
        node_input = self.context.input_of(node) if send is None else send.payload
        if self.stream.has_readers:
            self.stream.send_start(node_place, node_input)
            await self.stream.wait_for_reader()
        # A node may ask a person, like a call.
        config, answers = self.context.config_at(node_place), self.context.answers_for([name])
        records = {} if record is None else {name: record}
        namespaces = {name: node_place.namespace}
        ledger = Ledger(config, name, [name], records=records, answers=answers or None, namespaces=namespaces)
        if ledger.is_waiting(name):
            raise self._send_questions(node_place, ledger)
        call_config = ledger.config_of_call(name, config, is_node=True)
        try:
            output = await self.context.trace(
                call_config, partial(self._run_body, node, node_input, node_run.is_sent), node_input, node
            )
        except GraphInterrupt as interrupt:
            ledger.record_question(name, interrupt)
            await self.thread.record_questions(ledger.records)
            raise self._send_questions(node_place, ledger) from None
        except Exception as error:
            if not is_control_flow(error):
                self.stream.send_error(node_place, error)
                await self.thread.record_error(name, repr(error))
            raise
        output = self.thread.with_message_ids(output)  # readers of the stream see the same ids
        # Recorded first: with durability "sync", a result that a reader of the stream has seen is stored.
        await self.thread.record_result(name, output, joins_next_write=ends_step)
        if self.stream.has_readers:
            self.stream.send_end(node_place, [output])
        return node_run

    def _send_questions(self, node_place: NodePlace, ledger: Ledger) -> CallsInterrupted:
        self.stream.send_questions(node_place, ledger.pending, self.thread.state)
        return CallsInterrupted(ledger.pending, ledger.dump())

    async def _run_body(self, node: str, node_input: Any, is_sent: bool, config: RunnableConfig) -> Any:
        """Run a node, with its config in LangChain's context variable, and return its output."""
        # `interrupt()` and models read the config there.
        token = var_child_runnable_config.set(config)
        try:
            output = await self._bodies.output(node, node_input, config, is_sent=is_sent)
        finally:
            var_child_runnable_config.reset(token)
        return with_sent_writes(output, config)

    async def give_up(self, reason: str) -> None:
        """Answer each unfinished call of the cancelled step with an error message that contains `reason`."""
        thread = self.thread
        if TOOLS not in thread.next or thread.sends:
            return
        task_names = await answer_open_calls(self.context, reason)
        if not thread.questions:
            await self._end_step([NodeRun(TOOLS, task_names)])
