"""Batch: the run of all tool calls of one AIMessage, from the calls to their messages.

Progress of the calls goes to the stream of the graph around the node. The caller of a batch gets callbacks.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from anyio.lowlevel import checkpoint, checkpoint_if_cancelled
from langchain_core.messages import ToolCall
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphInterrupt, ParentCommand, is_invalid_resume
from langgraph.runtime import Runtime

from callboard._calls._batch import PORTION as STARTED_TOGETHER
from callboard._calls._batch import Batch
from callboard._calls._call import BatchContext, SupervisedCall, create_batch_context
from callboard._calls._draining import Operation, is_draining_here
from callboard._calls._progress import OnProgress, Progress
from callboard._langchain._errors import is_control_flow
from callboard._langchain._large_values import MANY_CALLS, has_many, run_in_worker
from callboard._langchain._outputs import Output
from callboard._langchain._unknown_outcomes import runs_again
from callboard._langgraph._call_scope import config_for_calls
from callboard._langgraph._outer_task import NO_RUNTIME, read_state, runtime_of
from callboard._langgraph._vocabulary import call_context
from callboard._records._events import RunInfo
from callboard._records._policies import ToolCallLike
from callboard._util._errors import raise_first
from callboard.tools._background import BackgroundCall, ForegroundCall, without_run_deadline
from callboard.tools._batch_call import NO_REPORTS, BatchCall, BatchResources, Reports, WrappedCall
from callboard.tools._bounds import Refusal, admit_calls, is_small
from callboard.tools._call_record import keys_of
from callboard.tools._ledger import CallsInterrupted, Ledger
from callboard.tools._results import NodeRequest, messages_in, open_calls_and_reply
from callboard.tools._setup import Setup
from callboard.tools._supervision import limiter_of_run

_log = logging.getLogger("callboard")

_MANY_MESSAGES = 10_000
"""Number of messages of a state that are searched for answers in the event loop. More would take milliseconds."""


def progress_writer(runtime: Runtime[Any]) -> OnProgress | None:
    """Return the function that writes progress and heartbeats to the graph's stream; `None` outside of a graph."""
    if runtime is NO_RUNTIME:
        return None
    has_failed = False

    def write(call: ToolCallLike, progress: Progress) -> None:
        nonlocal has_failed
        event = {"type": "progress", "tool": call["name"], "tool_call_id": call.get("id")}
        try:
            runtime.stream_writer({**event, **progress._asdict()})
            runtime.heartbeat()
        except Exception:
            # Progress is only advice: a broken stream must not fail a call with an effect of its own.
            if not has_failed:
                has_failed = True
                _log.exception("the stream of a graph could not be told of the progress of a call")

    return write


async def prepare_batch(
    setup: Setup,
    request: NodeRequest,
    config: RunnableConfig,
    make_ledger: Callable[..., Ledger],
    *,
    keys: Sequence[str] | None = None,
    reports: Reports = NO_REPORTS,
) -> "ToolBatch":
    """Return the batch of the calls that an input of a node asks to run; calls above the limits are refused.

    `make_ledger` makes the ledger, with the records that the caller has kept from an earlier run. `keys` are those of
    the requested calls, if the caller has computed them.
    """
    state, graphs, runtime = request.state, None, NO_RUNTIME
    if state is None and request.kind == "tool_calls":
        state = read_state(config) if config["configurable"] else {}
    if config["configurable"]:  # outside of a graph it is empty as a rule, and there is nothing to look up
        config, graphs = config_for_calls(config)
        runtime = runtime_of(config)
    run_limiters, threads = [], setup.supervision.threads
    if (concurrency := config.get("max_concurrency")) is not None:
        run_limiters, threads = [limiter_of_run(concurrency)], threads.at_least(concurrency)
    are_small = len(request.calls) <= MANY_CALLS and all(map(is_small, request.calls))
    # Too many calls, argument values or messages would hold the event loop while they are read.
    takes_long = not are_small and (
        len(request.calls) > MANY_CALLS or has_many([call["args"] for call in request.calls])
    )
    if request.kind == "tool_calls":
        takes_long |= len(messages_in(state, setup.messages_key)) > _MANY_MESSAGES
    admit = partial(_admit, setup, request, state, keys, are_small=are_small)
    calls, all_keys, refusals = await run_in_worker(admit) if takes_long else admit()
    resources = BatchResources(
        setup=setup,
        config=config,
        state=state,
        runtime=runtime,
        ledger=make_ledger(config, setup.name, all_keys, graphs=graphs),
        rules=setup.rules[request.kind],
        refusals=refusals,
        run_limiters=run_limiters,
        threads=threads,
        reports=reports,
    )
    return ToolBatch(resources, calls, all_keys)


def _admit(
    setup: Setup, request: NodeRequest, state: Any, keys: Sequence[str] | None, *, are_small: bool
) -> tuple[Sequence[ToolCall], Sequence[str], Mapping[int, Refusal]]:
    """Return the calls to run, their keys, and the refusals of those above the limits."""
    calls, reply = request.calls, request.reply
    if request.kind == "tool_calls" and state:
        is_counted = setup.max_calls is not None
        calls, reply = open_calls_and_reply(request, state, setup.messages_key, is_counted=is_counted)
    # Keys come from the ids that the model wrote, before `admit_calls` shortens them: two long ids must not become
    # equal.
    if keys is None or calls is not request.calls:
        keys = keys_of(calls)
    admitted_calls, refusals = admit_calls(calls, reply, setup.tools, setup.max_calls, are_small=are_small)
    return admitted_calls, keys, refusals


class ToolBatch:
    """Run of the tool calls in one input of a node, from the check of the calls to the combined output."""

    def __init__(self, resources: BatchResources, calls: Sequence[ToolCall], keys: Sequence[str]) -> None:
        self.ledger = resources.ledger
        self.failures: dict[str, str] = {}
        """Unhandled errors as texts, by key. An error object would form a reference cycle through its traceback."""
        self.signalled_keys: list[str] = []
        """Keys of the calls that ended with a control flow error other than a question, such as a parent command."""
        self.results: tuple[Sequence[str], Sequence[Output]] = (), ()
        """Keys and outputs of the calls that ended with an output, after the end of the batch, however it ended."""
        self._resources = resources
        self._setup = resources.setup
        self._config = resources.config
        self._calls = calls
        self._keys = keys
        self._keys_to_run: list[str] = []
        """Keys of the calls without a result, in call order."""

    async def keys_to_claim(self) -> list[str]:
        """Return keys of new calls that must not run twice and can start at once; the caller stores them as started."""
        # A call that must wait for a permit is claimed when it gets one. If the process is killed before that, the call
        # has not started, and may run. Calls with answers are claimed at that moment too, together with their answers.
        # The caller stores all these claims together, before any tool function starts.
        call_counts: Counter[str] = Counter()
        keys_to_claim: list[str] = []
        supervision, concurrency = self._setup.supervision, self._config.get("max_concurrency")
        for index, (key, call) in enumerate(zip(self._keys, self._calls, strict=True)):
            if index and index % MANY_CALLS == 0:
                await checkpoint()
            tool = self._setup.tools.get(call["name"])
            if tool is None or key in self.ledger.records or index in self._resources.refusals:
                continue
            if runs_again(supervision.policy(tool.name)):
                continue
            permits_by_limit = supervision.initial_permits(tool.name)
            if concurrency is not None:
                permits_by_limit["run"] = concurrency
            if self._setup.plan(tool).takes_thread:
                permits_by_limit["threads"] = self._resources.threads.concurrency
            # Keys of limits are ignored: a call with a free key may seem to have to wait. It is claimed later.
            call_counts.update(permits_by_limit.keys())
            if all(call_counts[name] <= permits for name, permits in permits_by_limit.items()):
                keys_to_claim.append(key)
        return keys_to_claim

    async def run(self) -> Any:
        """Run the calls that have no result yet, and return the output of the whole batch."""
        setup, thread_id = self._setup, self._config["configurable"].get("thread_id")
        batch_context = create_batch_context(progress_writer(self._resources.runtime))
        if batch_context.observers.calls:
            run = batch_context.run
            if run is None and "thread_id" in self._config["configurable"]:
                run_id = self._config["metadata"].get("run_id") or self._config.get("run_id") or ""
                run = RunInfo(number=0, agent="", run_id=str(run_id), thread_id=str(thread_id))
            batch_context = batch_context._replace(
                run=run, describe=setup.description, redact_call=lambda call: setup.redact_call(call, run)
            )
        # The node's actors take time to start: a drain cancels that, too.
        grace = setup.supervision.grace if setup.actors.is_needed else None
        with Operation(setup.in_flight, batch_context.loop, grace=grace, thread_id=thread_id) as operation:
            if not setup.actors.is_needed:
                return await self._run_calls(batch_context, operation)
            if setup.actors.in_journal:
                setup.actors.journal()  # raises without a journal, before any call starts
            async with setup.actors.open_for_block():
                await checkpoint_if_cancelled()  # the actors may have taken long to start
                return await self._run_calls(batch_context, operation)
        raise operation.drain_error()

    async def restart(self, handle: str) -> None:
        """Start the only call of the batch again in the background, as the call `handle` of an ended process.

        Raises `DrainingError` if a drain refuses the call.
        """
        (key,), (call,), resources = self._keys, self._calls, self._resources
        call_facts = partial(call_context, self._config, resources.state, resources.runtime.context)
        terms = self._setup.supervision.terms(call, resources.run_limiters, call_facts)
        batch_context = without_run_deadline(create_batch_context(progress_writer(resources.runtime)))
        background_call = BackgroundCall(resources, key, 0, terms, batch_context)
        background_call.handle = handle
        assert resources.reports.background is not None
        resources.reports.background.start(background_call)
        await background_call.wait_until_admitted()

    async def _run_calls(self, batch_context: BatchContext, operation: Operation) -> Any:
        supervised_calls: list[SupervisedCall[Output]] = []
        try:
            await self._create_calls(supervised_calls, batch_context)
            self._resources.open_count = len(supervised_calls)
            live = self._setup.supervision.batches
            batch = Batch(supervised_calls, on_error=self._setup.on_error, is_signal=is_control_flow, live=live)
            operation.batch = batch
            if operation.is_stopped:  # a drain came while the calls were made
                raise operation.drain_error()
            await batch.run()
        except BaseException as error:
            self.failures = {
                key: repr(call.error or error)
                # `_keys_to_run` may be one longer: Ctrl-C may come between the two appends in `_create_calls`.
                for key, call in zip(self._keys_to_run, supervised_calls, strict=False)
                # Ctrl-C is no error of the tool: nobody knows what the interrupted body has done.
                if call.ended and call.result is None and isinstance(call.error or error, Exception)
                if not isinstance(call.error, GraphInterrupt)
            }
            # Also after a failure or a cancel: finished results and open questions must not be lost with the batch.
            self._record_ends(supervised_calls)
            self.ledger.pass_to_next_run()
            raise
        return self._combine_outputs(supervised_calls)

    async def _create_calls(self, supervised_calls: list[SupervisedCall[Output]], batch_context: BatchContext) -> None:
        """Append to `supervised_calls` each call of the batch that has no result and no unanswered question."""
        ledger, supervision = self.ledger, self._setup.supervision
        reports = self._resources.reports
        call_class = BatchCall if reports.wrap_call is None else WrappedCall
        call_facts = partial(call_context, self._config, self._resources.state, self._resources.runtime.context)
        # With pauses for other tasks, because there may be very many calls.
        for index, (key, call) in enumerate(zip(self._keys, self._calls, strict=True)):
            if index and index % STARTED_TOGETHER == 0:
                await checkpoint()
            if ledger.records:
                ledger.settle_unknown(key, call)
                if (record := ledger.records.get(key)) is not None:
                    if reports.on_earlier_output is not None and record.is_finished:
                        reports.on_earlier_output(cast("Output", record.output))
                    if record.has_ended or ledger.is_waiting(key):
                        continue
            self._keys_to_run.append(key)
            terms = supervision.terms(call, self._resources.run_limiters, call_facts)
            is_background = terms.policy.background is not None
            if is_background and reports.background is None:
                is_background = False
                if not is_draining_here():  # a drain is no mistake: all calls that begin in it end with their batch
                    supervision.warn_about_foreground(call["name"])
            class_of_call = ForegroundCall if is_background else call_class
            supervised_calls.append(class_of_call(self._resources, key, index, terms, batch_context))

    def _combine_outputs(self, supervised_calls: Sequence[SupervisedCall[Output]]) -> Any:
        signals: list[BaseException] = []
        outputs: list[Any] = []  # `Output`, without a `cast` for each call
        for key, call in zip(self._keys_to_run, supervised_calls, strict=True):
            if call.error is None:
                outputs.append(call.result)
                continue
            signals.append(call.error)
            if not isinstance(call.error, GraphInterrupt):
                self.signalled_keys.append(key)
        if not signals and not self.ledger.records and not self.ledger.may_be_replayed:
            self.results = self._keys_to_run, outputs
            return self._resources.rules.combine_outputs(outputs)
        self._record_ends(supervised_calls)
        questions = self.ledger.pending
        if questions or signals or self.ledger.may_be_replayed:
            self.ledger.pass_to_next_run()
        # First of all, a person who gave an invalid answer must learn of it.
        raise_first([signal for signal in signals if is_invalid_resume(signal)])
        # Questions before commands for the parent graph: the ledger keeps such a command, and the run that answers the
        # last question raises it.
        if questions and self.ledger.in_graph:
            raise GraphInterrupt(tuple(questions))
        if questions:
            raise CallsInterrupted(questions, self.ledger.dump())
        for key in self._keys:
            if (command := self.ledger.record_of(key).parent) is not None:
                raise ParentCommand(command)
        raise_first(signals)
        return self._resources.rules.combine_outputs(
            [cast("Output", self.ledger.records[key].output) for key in self._keys]
        )

    def _record_ends(self, supervised_calls: Sequence[SupervisedCall[Output]]) -> None:
        """Copy results and open questions of ended calls into the ledger, and remove error objects from the calls."""
        keys: list[str] = []
        outputs: list[Output] = []
        for key, call in zip(self._keys_to_run, supervised_calls, strict=False):
            if isinstance(call.error, GraphInterrupt):
                self.ledger.record_question(key, call.error)
            elif isinstance(call.error, ParentCommand):
                self.ledger.record_parent_command(key, call.error.args[0])
            elif call.result is not None:
                self.ledger.record_output(key, call.result)
                keys.append(key)
                outputs.append(call.result)
            # Its traceback refers to this batch.
            call.error = None
        self.results = keys, outputs
