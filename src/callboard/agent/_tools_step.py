"""Tools node in one step of a run: calls of a reply run as one batch, and streams show each call as a task.

Calls that are sent to the node with `Send` run beside the reply's calls; streams show them as one task.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from langchain_core.messages import ToolCall, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphInterrupt
from langgraph.types import Command

from callboard._langgraph._node_scope import PULL, PUSH, NodePlace, Outer, to_parent
from callboard._loops._deadline import cleanup
from callboard._util._cooperative import in_portions
from callboard.agent._entries import around_all, around_call, sent
from callboard.agent._stream_payloads import Teller
from callboard.conversations._channels import Schema, State, Write
from callboard.conversations._flow import TOOLS
from callboard.conversations._sends import Sent
from callboard.conversations._thread import as_update
from callboard.tools._call_record import CallRecord, keys_of, naming
from callboard.tools._errors import UNKNOWN, error_message, is_control_flow, question_about, runs_again, unknown_text
from callboard.tools._ledger import CallsInterrupted, Ledger
from callboard.tools._node import NodeAccess
from callboard.tools._plan import injected_args, written_args
from callboard.tools._results import Requested, ResultRules, messages_in, reading
from callboard.tools._subclassing import Entries, Entry
from callboard.tools._tool_batch import CallBody, ToolBatch


class CallsThread(Protocol):
    """Part of a thread that calls need: it stores their records."""

    @property
    def records(self) -> Mapping[str, CallRecord]: ...

    @property
    def state(self) -> State: ...

    @property
    def schema(self) -> Schema: ...

    @property
    def sends(self) -> Sequence[Sent]: ...

    @property
    def is_kept(self) -> bool: ...

    def known_of(self, task: str) -> CallRecord: ...

    def written(self, order: Iterable[str]) -> list[Write]: ...

    @property
    def claims_ahead(self) -> bool: ...

    async def claim(self, tasks: Sequence[str]) -> None: ...

    async def claimed(self, task: str, known: CallRecord) -> None: ...

    async def asked(self, records: Mapping[str, CallRecord]) -> None: ...

    async def finished(self, task: str, output: object) -> None: ...

    async def failed(self, task: str, error: str) -> None: ...


class CallsRun(Protocol):
    """Part of a run that its calls need."""

    @property
    def thread(self) -> CallsThread: ...

    outer: Outer | None
    tools: NodeAccess
    tell: Teller
    by_call: bool
    """`True` if streams show each call as a task of its own."""

    @property
    def is_watched(self) -> bool: ...

    def given(self, node: str) -> Any: ...

    def place(self, node: str, kind: str, *rest: str) -> NodePlace: ...

    def config_at(self, place: NodePlace) -> RunnableConfig: ...

    def answers_for(self, tasks: Sequence[str]) -> dict[str, Any]: ...

    async def traced(
        self,
        body: Callable[[RunnableConfig], Awaitable[Any]],
        given: Any,
        place: NodePlace,
        shown: Callable[[Any], Any] | None = None,
    ) -> Any: ...


async def run_calls(run: CallsRun) -> list[str]:
    """Run the unfinished calls of the last reply; return their keys, in order.

    Raises:
        CallsInterrupted: if calls wait for an answer.
        ParentCommand: if a call returns a command for the graph around the agent.
        BaseException: the error of a call, if nothing handles it.
    """
    state = run.given(TOOLS)
    requested = await _requested(run, state)
    keys = await in_portions(naming(requested.calls))
    places = _NodePlacesOfReply(run, keys)
    place = run.place(TOOLS, PULL, f"branch:to:{TOOLS}")
    if run.by_call and run.is_watched:
        _tell_beginning(run, requested, keys, places)
    # Before the batch: calls that began in a killed process must not start again before their policy has decided.
    answers = await unknown_settled(run, requested, keys, places)
    step = CallStep(run, requested, keys, places, answers)
    if run.by_call:
        await step.run(run.config_at(place))
    else:
        await run_as_one(run, step, place, state)
    return keys


async def _requested(run: CallsRun, state: Any) -> Requested:
    """Return the calls of the state's last reply that are still to run."""
    key = run.tools.messages_key
    requested = await in_portions(reading(state, key))
    return replace(requested, calls=run.thread.schema.flow.open_calls(messages_in(state, key)))


def _tell_beginning(run: CallsRun, requested: Requested, keys: Sequence[str], places: Mapping[str, NodePlace]) -> None:
    """Report each call as a task, and the results of calls that an earlier run of this step has finished."""
    for key, call in zip(keys, requested.calls, strict=True):
        run.tell.started(places[key], sent(call, requested.state))
    for key in keys:
        if run.thread.known_of(key).is_finished:
            run.tell.cached(places[key], [_written_by(run, key)])


async def run_as_one(run: CallsRun, step: "CallStep", place: NodePlace, state: Any) -> None:
    """Run a batch that streams and callback handlers see as one task."""
    run.tell.started(place, state)
    body = step.run if (entries := run.tools.entries) is None else partial(step.run_within, entries, state)
    try:
        combined = await run.traced(body, state, place)
    except CallsInterrupted as waiting:
        run.tell.asked(place, waiting.interrupts, run.thread.state)
        raise
    except Exception as error:
        if not is_control_flow(error):
            run.tell.failed(place, error)
        raise
    run.tell.ended(place, combined if isinstance(combined, list) else [combined])


def _written_by(run: CallsRun, key: str) -> Any:
    return as_update(run.thread.records[key].output, run.tools.messages_key)


class _NodePlacesOfReply(dict[str, NodePlace]):
    """Positions of the reply's calls by key, computed on first use."""

    def __init__(self, run: CallsRun, keys: Sequence[str]) -> None:
        super().__init__()
        self._run = run
        self._keys = keys
        self._numbers = {key: number for number, key in enumerate(keys)}

    def __missing__(self, key: str) -> NodePlace:
        if key not in self._numbers:
            raise ValueError(f"The tools node was given call {key!r}, which is not one of the reply's: {self._keys}")
        number = len(self._run.thread.sends) + self._numbers[key]
        place = self[key] = self._run.place(TOOLS, PUSH, str(number))
        return place


async def answer_open_calls(run: CallsRun, reason: str) -> list[str]:
    """Answer every unfinished call with the reason, unless it waits for a person; return the keys of all calls."""
    calls = (await _requested(run, run.given(TOOLS))).calls
    keys = await in_portions(naming(calls))
    places = _NodePlacesOfReply(run, keys)
    for key, call in zip(keys, calls, strict=True):
        record = run.thread.known_of(key)
        if not record.is_finished and not record.pending:
            message = error_message(f"Error: {reason}", call)
            message.additional_kwargs = {"callboard": {"ended": "deadline"}}
            await _settled(run, key, message, places[key])
    return keys


class CallStep:
    """Batch of calls in one step; records each event of a call in the thread as it happens."""

    def __init__(
        self,
        run: CallsRun,
        requested: Requested,
        keys: Sequence[str],
        places: Mapping[str, NodePlace],
        answers: Mapping[str, Any],
    ) -> None:
        self._run = run
        self._requested = requested
        self._keys = keys
        self._places = places
        self._answers = answers

    async def run(self, config: RunnableConfig) -> Any:
        """Run the batch and return its results in the form of a node's output."""
        batch = await self._batch(config)
        if self._run.thread.is_kept:
            # One write for all claims, before any body starts. It also stores the `Stepped` entry that waited for them.
            await self._run.thread.claim(await batch.claims() if self._run.thread.claims_ahead else [])
        if self._tells_each:
            self._tell_waiting(batch.ledger)
        try:
            combined = await batch.run()
        except BaseException:
            # Shielded, within the grace: a cancelled step still records the calls that are known to have ended.
            with cleanup():
                await self._note_ended(batch)
            raise
        self._leave_with(combined if isinstance(combined, list) else [combined])
        return combined

    async def _note_ended(self, batch: ToolBatch) -> None:
        """Record calls that ended without a result; a claim alone would make their outcome unknown."""
        thread = self._run.thread
        for key in (*batch.signalled, *batch.failed):
            record, known = thread.known_of(key), batch.ledger.known_of(key)
            if record.claimed and (known.pending or key not in batch.failed):
                # The claim replaced the call's open question. If the answer was refused, the question is open again.
                await thread.asked({key: known if known.pending else record.accepted()})
        for key, error in batch.failed.items():
            await thread.failed(key, error)

    @property
    def _tells_each(self) -> bool:
        """Return whether streams or handlers see each call as a task of its own."""
        return self._run.by_call and self._run.is_watched

    async def _batch(self, config: RunnableConfig) -> ToolBatch:
        run, thread = self._run, self._run.thread
        entries = run.tools.entries if run.by_call else None
        # A stored thread needs LangGraph's namespaces for its calls, because LangGraph may resume it.
        is_named = thread.is_kept or run.is_watched
        return await run.tools.batch(
            self._requested,
            config,
            records={key: thread.records[key] for key in self._keys if key in thread.records},
            answers=self._answers,
            namespaces={key: self._places[key].namespace for key in self._keys} if is_named else None,
            on_finish=self._finished,
            on_claim=thread.claimed if thread.is_kept else None,
            claims_only_said=not thread.claims_ahead,
            on_ask=self._asked,
            around=self._call if self._tells_each else None,
            entries=None if entries is None else around_call(entries, run.tools.messages_key),
        )

    async def run_within(self, entries: Entries, given: Any, config: RunnableConfig) -> Any:
        """Run the batch within an overridden method of the node, which may skip calls or change results."""
        run, key = self._run, self._run.tools.messages_key

        async def step(requested: Requested, config: RunnableConfig) -> Any:
            keys = await in_portions(naming(requested.calls))
            return await CallStep(run, requested, keys, self._places, self._answers).run(config)

        outputs = await around_all(entries, step, self._requested.calls, Entry(given, config, {}), key)
        self._leave_with([one for output in outputs for one in (output if isinstance(output, list) else [output])])
        for name, output in zip(self._keys, outputs, strict=True):
            # Recorded a second time, because the method may have changed results; the last entry of a task counts.
            await run.thread.finished(name, output)
        return ResultRules("dict", key).combined(outputs)

    def _leave_with(self, outputs: Sequence[Any]) -> None:
        for output in outputs:
            if isinstance(output, Command) and output.graph is not None:
                raise to_parent(output, self._run.outer)

    def _tell_waiting(self, ledger: Ledger) -> None:
        """Report calls whose questions an earlier run asked, and that still wait."""
        for key in self._keys:
            if ledger.waits(key):
                self._run.tell.asked(self._places[key], ledger.records[key].pending, self._run.thread.state)

    async def _call(self, ledger: Ledger, index: int, body: CallBody) -> Any:
        """Run one call as a task of its own, and report its outcome."""
        run, key, call = self._run, self._keys[index], self._requested.calls[index]
        place = self._places[key]
        try:
            output = await run.traced(body, sent(call, self._requested.state), place, self._shown)
        except GraphInterrupt:
            run.tell.asked(place, ledger.records[key].pending, run.thread.state)
            raise
        except Exception as error:
            if not is_control_flow(error):
                run.tell.failed(place, error)
            raise
        if not (isinstance(output, Command) and output.graph is not None):
            run.tell.ended(place, [_written_by(run, key)])
        return output

    def _shown(self, output: Any) -> Any:
        """Return the output of a call as handlers see it: as the output of a node with this one call."""
        update = as_update(output, self._run.tools.messages_key)
        return [update] if isinstance(update, Command) else update

    async def _asked(self, key: str, record: CallRecord) -> None:
        await self._run.thread.asked({key: record})

    async def _finished(self, key: str, call: ToolCall, output: Any) -> None:
        await self._run.thread.finished(key, output)


async def unknown_settled(
    run: CallsRun, requested: Requested, keys: Sequence[str], places: Mapping[str, NodePlace]
) -> dict[str, Any]:
    """Settle calls of which only the start is known; return the answers for the other calls."""
    answers = run.answers_for(keys)
    thread = run.thread
    claimed = {key for key, record in thread.records.items() if record.claimed and not record.is_finished}
    for key, call in zip(keys, requested.calls, strict=True):
        if key not in claimed:
            continue
        record = thread.known_of(key)
        policy = run.tools.policy(call)
        pending = record.pending
        # A call that may run again, without an answered question, matches no branch: the batch starts it anew.
        if policy.on_unknown in ("fail", None) and not runs_again(policy):
            await _settled(run, key, error_message(UNKNOWN, call), places[key])
        elif pending and pending[0].id in answers:
            message = unknown_text(key, call, answers.pop(pending[0].id))
            if message is None:
                await thread.asked({key: record.accepted()})
            else:
                await _settled(run, key, message, places[key])
        elif not pending and policy.on_unknown == "ask" and not runs_again(policy):
            tool = run.tools.tool(call["name"])
            args = call["args"] if tool is None else written_args(call, injected_args(tool))
            question = question_about(call["name"], args, "the process ended")
            await thread.asked({key: record._replace(pending=(question,))})
    return answers


async def _settled(run: CallsRun, key: str, message: ToolMessage, place: NodePlace) -> None:
    """Record a message as the result of a call that did not produce it itself."""
    await run.thread.finished(key, message)
    if run.by_call:
        run.tell.ended(place, [_written_by(run, key)])


async def run_sent_calls(run: CallsRun, sent: Sent) -> list[str]:
    """Run the unfinished calls of a send; return their task names, in order. Raises as `run_calls` does."""
    key = run.tools.messages_key
    requested = sent.requested(run.thread.state.get(key) or [], key)
    keys = keys_of(requested.calls)
    tasks = [sent.task_of(name) for name in keys]
    part = _Part(run, sent, keys)
    place = run.place(sent.node, PUSH, str(sent.number))
    if tasks and all(run.thread.known_of(task).is_finished for task in tasks):
        run.tell.cached(place, [dict(run.thread.written(tasks))])
        return tasks
    places = _PlacesOfSend(part, keys)
    answers = await unknown_settled(part, requested, keys, places)
    await run_as_one(part, CallStep(part, requested, keys, places, answers), place, sent.payload)
    return tasks


class _PlacesOfSend(dict[str, NodePlace]):
    """Positions of a send's calls: that of the send for a single call, numbered ones otherwise."""

    def __init__(self, run: "_Part", keys: Sequence[str]) -> None:
        rest = ((),) if len(keys) == 1 else tuple((str(index),) for index in range(len(keys)))
        super().__init__(
            (key, run.place(run.sent.node, PUSH, str(run.sent.number), *more))
            for key, more in zip(keys, rest, strict=True)
        )


class _Part:
    """Run as seen by the calls of one send."""

    by_call = False

    def __init__(self, run: CallsRun, sent: Sent, keys: Sequence[str]) -> None:
        self.sent = sent
        self.thread = _PartOfThread(run.thread, sent, keys)
        self.outer: Outer | None = run.outer
        self.tools: NodeAccess = run.tools
        self.tell: Teller = run.tell
        self._run = run
        self.place = run.place
        self.config_at = run.config_at
        self.traced = run.traced

    @property
    def is_watched(self) -> bool:
        return self._run.is_watched

    def given(self, node: str) -> Any:
        return self.sent.payload

    def answers_for(self, tasks: Sequence[str]) -> dict[str, Any]:
        return self._run.answers_for([self.sent.task_of(task) for task in tasks])


class _PartOfThread:
    """Thread as seen by the calls of one send: translates the keys of calls into task names."""

    def __init__(self, thread: CallsThread, sent: Sent, keys: Sequence[str]) -> None:
        self._thread = thread
        self._task = sent.task_of
        self._keys = keys

    @property
    def records(self) -> Mapping[str, CallRecord]:
        known = self._thread.records
        return {key: known[task] for key in self._keys if (task := self._task(key)) in known}

    def known_of(self, task: str) -> CallRecord:
        return self._thread.known_of(self._task(task))

    @property
    def state(self) -> State:
        return self._thread.state

    @property
    def schema(self) -> Schema:
        return self._thread.schema

    @property
    def sends(self) -> Sequence[Sent]:
        return self._thread.sends

    @property
    def is_kept(self) -> bool:
        return self._thread.is_kept

    def written(self, order: Iterable[str]) -> list[Write]:
        return self._thread.written([self._task(key) for key in order])

    @property
    def claims_ahead(self) -> bool:
        return self._thread.claims_ahead

    async def claim(self, tasks: Sequence[str]) -> None:
        await self._thread.claim([self._task(key) for key in tasks])

    async def claimed(self, task: str, known: CallRecord) -> None:
        await self._thread.claimed(self._task(task), known)

    async def asked(self, records: Mapping[str, CallRecord]) -> None:
        await self._thread.asked({self._task(key): record for key, record in records.items()})

    async def finished(self, task: str, output: object) -> None:
        await self._thread.finished(self._task(task), output)

    async def failed(self, task: str, error: str) -> None:
        await self._thread.failed(self._task(task), error)
