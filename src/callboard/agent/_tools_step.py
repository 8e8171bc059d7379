"""Execution of the tools node in one step of a run.

The calls of a reply run as one batch. Streams show each call as a task. Calls that a LangGraph `Send` passes to the
node run beside the calls of the reply; streams show them as one task.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from itertools import count
from typing import Any

from anyio import to_thread
from langchain_core.messages import HumanMessage, ToolCall, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphInterrupt
from langgraph.types import Command, Interrupt

from callboard._calls._observers import current_observers
from callboard._langchain._errors import error_message, is_control_flow, unstorable_text
from callboard._langchain._large_values import MANY_CALLS, run_in_worker
from callboard._langchain._plan import injected_args, model_args
from callboard._langchain._unknown_outcomes import UNKNOWN, question_about, runs_again, unknown_text
from callboard._langgraph._call_scope import Write, with_writes
from callboard._langgraph._node_scope import NodePlace, to_parent
from callboard._loops._deadline import cleanup
from callboard.agent._run_context import RunContext
from callboard.conversations._targets import TOOLS, NumberedSend
from callboard.conversations._thread import as_update
from callboard.exceptions import LoopError
from callboard.tools._background import lost_notification, notification
from callboard.tools._batch_call import CallBody, Reports
from callboard.tools._call_record import CallRecord, keys_of
from callboard.tools._chain import Link, link_of
from callboard.tools._ledger import CallsInterrupted, Ledger
from callboard.tools._overrides import Entries, Entry, around_all, around_call, task_input_of
from callboard.tools._results import NodeRequest, ResultRules, messages_in, parse_input
from callboard.tools._tool_batch import ToolBatch
from callboard.tools._unanswered import exchanges_in, last_reply


async def run_calls(run: RunContext, *, ends_step: bool) -> list[str]:
    """Run the last reply's unanswered calls that have no stored result; return the keys of all unanswered calls."""
    state = run.input_of(TOOLS)
    step = await _step_of_reply(run, state, ends_step=ends_step)
    node_place = run.node_place(TOOLS)
    if run.by_call and run.is_watched:
        await step.send_starts()
    if run.thread.records:
        # Before the batch: calls that began in a killed process must not start again before their policy has decided.
        await step.settle_unknown()
    await (step.run(run.config_at(node_place)) if run.by_call else step.run_as_one(node_place, state))
    return list(step.tasks)


async def answer_open_calls(run: RunContext, reason: str) -> list[str]:
    """Answer each unfinished call of the last reply with an error message, unless the call waits for a person."""
    step = await _step_of_reply(run, run.input_of(TOOLS))
    await step.answer_open_calls(reason)
    return list(step.tasks)


async def settle_lost_calls(run: RunContext) -> dict[str, ToolCall]:
    """Run background calls of an ended process again, or tell the model of them, as their policies say.

    Return the calls about which the policies ask a person, by handle.
    """
    calls_to_ask_about: dict[str, ToolCall] = {}
    thread = run.thread
    # The conversation has the results of an unfinished step only when the step ends.
    results = [record.output for record in thread.records.values() if isinstance(record.output, ToolMessage)]
    messages = [*(thread.state.get(run.tools.messages_key) or []), *results]
    lost_calls = {} if run.background is None else run.background.lost_calls(messages, thread.unread)
    exchanges = exchanges_in(messages) if lost_calls else []
    calls = {answer and answer.id: call for exchange in exchanges for call, answer in exchange.answers_by_call()}
    notifications: list[HumanMessage] = []
    for handle, message in lost_calls.items():
        call = calls.get(message.id)
        policy = None if call is None else run.tools.policy(call)
        if call is not None and policy is not None and runs_again(policy):
            await _restart(run, call, handle)
        elif call is not None and policy is not None and policy.on_unknown == "ask":
            calls_to_ask_about[handle] = call
        else:
            notifications.append(lost_notification(handle, message))
    if notifications:
        await thread.receive_messages(notifications)
    return calls_to_ask_about


async def ask_about_lost_calls(run: RunContext, lost_calls: dict[str, ToolCall]) -> list[Interrupt]:
    """Return the open questions about lost background calls; remove each call that a person has decided about.

    Each question is stored under the handle of its call, as if that were a task of the next step.
    """
    thread, answers = run.thread, run.answers_for(lost_calls)
    questions: list[Interrupt] = []
    for handle, call in [*lost_calls.items()]:
        record = thread.record_of(handle)
        question = record.pending[0] if record.pending else _question_about(run, call)
        if question.id not in answers:
            if not record.pending:
                await thread.record_questions({handle: record._replace(pending=(question,))})
            questions.append(question)
            continue
        message = unknown_text(handle, call, answers[question.id])
        # First: a question must not stay open beside the result. After a kill, or a drain that refuses the call, the
        # person is asked again.
        await thread.record_questions({handle: record.with_answers_only()})
        if message is None:
            await _restart(run, call, handle)
        else:
            await thread.receive_messages([notification(handle, message)])
        del lost_calls[handle]
    if questions:
        run.stream.send_questions(run.node_place(TOOLS), questions, thread.state)
    return questions


def _question_about(run: RunContext, call: ToolCall) -> Interrupt:
    """Return the question to a person about a call whose process ended before the call did."""
    tool = run.tools.tool(call["name"])
    args = call["args"] if tool is None else model_args(call, injected_args(tool))
    return question_about(call["name"], args, "its run or its process ended")


async def _restart(run: RunContext, call: ToolCall, handle: str) -> None:
    assert run.background is not None
    request = parse_input(run.input_of(TOOLS), run.tools.messages_key)._replace(calls=[call])
    config = run.config_at(run.node_place(TOOLS))
    batch = await run.tools.batch(
        request,
        config,
        records={},
        answers={},
        keys=keys_of([call]),
        namespaces=None,
        reports=Reports(background=run.background),
    )
    await batch.restart(handle)


async def _step_of_reply(run: RunContext, state: Any, *, ends_step: bool = False) -> "CallStep":
    messages: Sequence[Any] = messages_in(state, run.tools.messages_key)
    if (index := last_reply(messages)) is None:
        raise ValueError("No AIMessage found in input")
    reply: Sequence[ToolCall] = messages[index].tool_calls

    def read() -> tuple[list[ToolCall], list[str]]:
        calls = run.plan.flow.open_calls(messages)
        return calls, keys_of(calls)

    calls, keys = await run_in_worker(read) if len(reply) > MANY_CALLS else read()
    task_names = dict(zip(keys, keys, strict=True))  # the task of a call of a reply has the call's key as its name
    numbers = dict(zip(keys, count(len(run.thread.sends)), strict=False))
    node_places: dict[str, NodePlace] = {}  # most calls need no place

    def node_place_of(key: str) -> NodePlace:
        if key not in numbers:
            raise ValueError(f"The tools node was given call {key!r}, which is not one of the reply's: {keys}")
        if key not in node_places:
            node_places[key] = run.node_place(TOOLS, numbers[key])
        return node_places[key]

    request = NodeRequest(calls, reply, "dict", state)
    return CallStep(run, request, task_names, node_place_of, {}, by_call=run.by_call, ends_step=ends_step)


async def run_sent_calls(run: RunContext, send: NumberedSend) -> list[str]:
    """Run the unfinished tool calls in the input of a LangGraph `Send`; return the task names of all its calls."""
    thread = run.thread
    request = send.request(thread.state.get(run.tools.messages_key) or [], run.tools.messages_key)
    if request.state is None:
        request = request._replace(state=run.input_of(TOOLS))
    keys = keys_of(request.calls)
    tasks = {key: send.task_of(key) for key in keys}
    node_place = run.node_place(send.node, send.number)
    if tasks and all(thread.record_of(task).is_finished for task in tasks.values()):
        run.stream.send_cached(node_place, [dict(thread.writes_of_tasks(tasks.values()))])
    else:
        # A single call has the position of its send; several calls have numbered positions below it.
        positions = [()] if len(keys) == 1 else [(index,) for index in range(len(keys))]
        node_places = {
            key: run.node_place(send.node, send.number, *position)
            for key, position in zip(keys, positions, strict=True)
        }
        step = CallStep(run, request, tasks, node_places.__getitem__, {}, by_call=False)
        await step.settle_unknown()
        await step.run_as_one(node_place, send.payload)
    return [*tasks.values()]


@dataclass(eq=False, repr=False)
class CallStep:
    """Batch of calls in one step; stores each event of a call in the thread when it happens."""

    _run: RunContext
    _request: NodeRequest
    tasks: Mapping[str, str]
    """Mapping from the key of each call to the name of its task in the thread, in call order.

    Name and key are equal for the calls of a reply.
    """
    _node_place_of: Callable[[str], NodePlace]
    """Function that returns LangGraph's task id, namespace and path of a call, by its key."""
    _answers: dict[str, Any]
    _: KW_ONLY
    by_call: bool
    ends_step: bool = False
    """`True` if the end of the step follows the last call at once."""

    def __post_init__(self) -> None:
        self._keys = list(self.tasks)
        # Streams or handlers see each call as a task of its own.
        self._streams_each_call = self.by_call and self._run.is_watched
        # Without such readers, the results are recorded together when the batch has ended. Observers of calls read the
        # ids of results, which they get when they are recorded.
        is_observed = self._streams_each_call or bool(current_observers().calls)
        self._records_each_result = self._run.thread.is_kept or is_observed
        self._writes: dict[str, list[Write]] = {}

    async def send_starts(self) -> None:
        """Send to the stream's readers the start of each call, and the results of calls that are already finished."""
        stream = self._run.stream
        for key, call in zip(self.tasks, self._request.calls, strict=True):
            stream.send_start(self._node_place_of(key), self._task_input(call))
        for key, task in self.tasks.items():
            if self._run.thread.record_of(task).is_finished:
                stream.send_cached(self._node_place_of(key), [self._update_of(key)])
        if stream.has_readers:
            await stream.wait_for_reader()

    async def settle_unknown(self) -> None:
        """Apply the policy of each call whose process died before the call ended: fail, run again, or ask a person."""
        run, thread = self._run, self._run.thread
        # Answers that are not taken out below are for the other calls, and the batch gets them.
        self._answers = answers = run.answers_for(self.tasks.values())
        claimed = {task for task, record in thread.records.items() if record.claimed and not record.is_finished}
        for (key, task), call in zip(self.tasks.items(), self._request.calls, strict=True):
            if task not in claimed:
                continue
            record = thread.record_of(task)
            begun_call: ToolCall = call if record.tool is None else {**call, "name": record.tool}
            policy = run.tools.policy(begun_call)
            pending = record.pending
            # A call that may run again, without an answered question, matches no branch: the batch starts it anew.
            if policy.on_unknown in ("fail", None) and not runs_again(policy):
                await self._record_message(key, error_message(UNKNOWN, call))
            elif pending and pending[0].id in answers:
                message = unknown_text(key, call, answers.pop(pending[0].id))
                if message is None:
                    await thread.record_questions({task: record.with_answers_only()})
                else:
                    await self._record_message(key, message)
            elif not pending and policy.on_unknown == "ask" and not runs_again(policy):
                await thread.record_questions({task: record._replace(pending=(_question_about(run, begun_call),))})

    async def answer_open_calls(self, reason: str) -> None:
        for (key, task), call in zip(self.tasks.items(), self._request.calls, strict=True):
            record = self._run.thread.record_of(task)
            if not record.is_finished and not record.pending:
                message = error_message(f"Error: {reason}", call)
                message.additional_kwargs = {"callboard": {"ended": "deadline"}}
                await self._record_message(key, message)

    async def _record_message(self, key: str, message: ToolMessage) -> None:
        """Store a message as the result of a call whose tool has returned no result."""
        await self._run.thread.record_result(self.tasks[key], message)
        if self.by_call:
            self._run.stream.send_end(self._node_place_of(key), [self._update_of(key)])

    def _update_of(self, key: str) -> Any:
        return as_update(self._run.thread.records[self.tasks[key]].output, self._run.tools.messages_key)

    async def run_as_one(self, node_place: NodePlace, node_input: Any) -> None:
        """Run the batch as one task; streams and callback handlers show its ids and its input."""
        run = self._run
        run.stream.send_start(node_place, node_input)
        if run.stream.has_readers:
            await run.stream.wait_for_reader()
        body = (
            self.run if (entries := run.tools.entries) is None else partial(self._run_in_override, entries, node_input)
        )
        try:
            output = await run.trace(run.config_at(node_place), body, node_input, node_place.node)
        except CallsInterrupted as interruption:
            run.stream.send_questions(node_place, interruption.interrupts, run.thread.state)
            raise
        except Exception as error:
            if not is_control_flow(error):
                run.stream.send_error(node_place, error)
            raise
        output = with_writes(output, [write for writes in self._writes.values() for write in writes])
        run.stream.send_end(node_place, output if isinstance(output, list) else [output])

    async def run(self, config: RunnableConfig) -> Any:
        """Run the batch and return its results in the form of a node's output: messages, commands, or a dict."""
        run, thread, records = self._run, self._run.thread, self._run.thread.records
        links = self._loop_links()
        if self.by_call and (entries := run.tools.entries) is not None:
            links.append(around_call(entries, run.tools.messages_key))
        # A stored thread needs LangGraph's namespaces for its calls, because LangGraph may resume it.
        is_named = thread.is_kept or run.is_watched
        batch = await run.tools.batch(
            self._request,
            config,
            records={key: records[task] for key, task in self.tasks.items() if task in records} if records else {},
            answers=self._answers,
            keys=self._keys,
            namespaces={key: self._node_place_of(key).namespace for key in self.tasks} if is_named else None,
            reports=Reports(
                on_finish=self._record_finish if self._records_each_result else None,
                on_claim=self._ensure_claim if thread.is_kept else None,
                claims_only_explicit=thread.is_kept and not thread.claims_ahead,
                on_ask=self._record_questions,
                wrap_call=self._run_call_task if self._streams_each_call else None,
                outer_links=links,
                background=run.background if run.background is not None and run.background.takes_calls else None,
            ),
        )
        self._writes = batch.ledger.writes
        if thread.is_kept:
            # One write for all claims, before any body starts. It also stores the `Stepped` entry that waited for them.
            claims = await batch.keys_to_claim() if thread.claims_ahead else []
            await thread.claim_ahead([self.tasks[key] for key in claims])
        for key in self.tasks if self._streams_each_call else ():
            if batch.ledger.is_waiting(key):  # an unanswered question of an earlier run
                run.stream.send_questions(self._node_place_of(key), batch.ledger.records[key].pending, thread.state)
        try:
            output = await batch.run()
            if not self._records_each_result:
                await self._record_results(*batch.results)
        except BaseException:
            # Shielded, within the grace: a cancelled step still records the calls that are known to have ended.
            with cleanup():
                if not self._records_each_result:
                    await self._record_results(*batch.results)
                await self._record_ends(batch)
            raise
        self._raise_parent_command(output if isinstance(output, list) else [output])
        return output

    def _loop_links(self) -> list[Link]:
        """Return the agent's guard against loops as middleware if it acts on these calls, which it mostly does not."""
        guard = self._run.plan.loop_guard
        messages = messages_in(self._request.state, self._run.tools.messages_key)
        if guard is None or not self._request.calls or len(messages) < guard.nudge:  # a repetition is a message
            return []
        repetition = guard.count_repetitions(messages)
        if repetition >= guard.stop:  # before any call of the reply begins
            raise LoopError(self._request.calls[0]["name"], repetition)
        return [link_of("LoopGuard", guard.awrap_tool_call)] if repetition >= guard.nudge else []

    async def _record_ends(self, batch: ToolBatch) -> None:
        """Store, for a cancelled or failed batch, which calls have certainly ended without a result."""
        # Without this record, only their claims would be stored, and their outcome would count as unknown.
        thread = self._run.thread
        for key in (*batch.signalled_keys, *batch.failures):
            record, batch_record = thread.record_of(self.tasks[key]), batch.ledger.record_of(key)
            if record.claimed and (batch_record.pending or key not in batch.failures):
                # The claim replaced the call's open question. If the answer was refused, the question is open again.
                await self._record_questions(key, batch_record if batch_record.pending else record.with_answers_only())
        for key, error in batch.failures.items():
            await thread.record_error(self.tasks[key], error)

    async def _run_in_override(self, entries: Entries, node_input: Any, config: RunnableConfig) -> Any:
        """Run the batch inside the user's override of a `ToolNode` method; return the combined output."""
        run, messages_key = self._run, self._run.tools.messages_key

        async def step(request: NodeRequest, config: RunnableConfig) -> Any:
            name_calls = partial(keys_of, request.calls)
            keys = await run_in_worker(name_calls) if len(request.calls) > MANY_CALLS else name_calls()
            tasks = {key: self.tasks.get(key, key) for key in keys}
            part = CallStep(run, request, tasks, self._node_place_of, self._answers, by_call=self.by_call)
            combined = await part.run(config)
            self._writes |= part._writes
            return combined

        outputs = await around_all(entries, step, self._request.calls, Entry(node_input, config, {}), messages_key)
        self._raise_parent_command(
            [item for output in outputs for item in (output if isinstance(output, list) else [output])]
        )
        for key, output in zip(self.tasks, outputs, strict=True):
            # Recorded a second time, because the method may have changed results; the last entry of a task counts.
            await self._record_result(key, with_writes(output, self._writes.get(key, ())))
        return ResultRules("dict", messages_key).combine_outputs(outputs)

    def _raise_parent_command(self, outputs: Sequence[Any]) -> None:
        for output in outputs:
            if isinstance(output, Command) and output.graph is not None:
                raise to_parent(output, self._run.outer)

    async def _run_call_task(self, ledger: Ledger, index: int, body: CallBody) -> Any:
        run, key, call = self._run, self._keys[index], self._request.calls[index]
        node_place = self._node_place_of(key)
        try:
            call_input = self._task_input(call)
            output = await run.trace(run.config_at(node_place), body, call_input, node_place.node, self._display_output)
        except GraphInterrupt:
            run.stream.send_questions(node_place, ledger.records[key].pending, run.thread.state)
            raise
        except Exception as error:
            if not is_control_flow(error):
                run.stream.send_error(node_place, error)
            raise
        if not (isinstance(output, Command) and output.graph is not None):
            run.stream.send_end(node_place, [self._update_of(key)])
        return output

    def _task_input(self, call: ToolCall) -> Any:
        """Return the input of a call's task as streams and callback handlers see it."""
        return task_input_of(call, self._request.state) if self._run.plan.flow.sends_state else [call]

    def _display_output(self, output: Any) -> Any:
        """Return the output of a call as callback handlers see it: as the output of a node with only this call."""
        update = as_update(output, self._run.tools.messages_key)
        return [update] if isinstance(update, Command) else update

    async def _ensure_claim(self, key: str, record: CallRecord) -> None:
        await self._run.thread.ensure_claim(self.tasks[key], record)

    async def _record_questions(self, key: str, record: CallRecord) -> None:
        await self._run.thread.record_questions({self.tasks[key]: record})

    async def _record_finish(self, key: str, output: Any, is_last: bool) -> None:
        output_with_writes = with_writes(output, self._writes[key]) if key in self._writes else output
        await self._record_result(key, output_with_writes, joins_next_write=is_last and self.ends_step)

    async def _record_result(self, key: str, output: Any, *, joins_next_write: bool = False) -> None:
        """Store the result of a call; an error message takes the place of one that the database cannot store."""
        if (reason := self._run.thread.unstorable(output)) is not None:
            output = error_message(unstorable_text(reason), self._request.calls[self._keys.index(key)])
        await self._run.thread.record_result(self.tasks[key], output, joins_next_write=joins_next_write)

    async def _record_results(self, keys: Sequence[str], outputs: Sequence[Any]) -> None:
        if self._writes:
            outputs = [
                with_writes(output, self._writes.get(key, ())) for key, output in zip(keys, outputs, strict=True)
            ]
        record = partial(self._run.thread.record_results, [*map(self.tasks.__getitem__, keys)], outputs)
        # Many results take longer than other tasks of the event loop should wait.
        if len(keys) > MANY_CALLS:
            await to_thread.run_sync(record)
        else:
            record()
