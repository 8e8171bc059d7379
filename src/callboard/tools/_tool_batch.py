"""Batch: the run of all tool calls of one AIMessage, from the calls to their messages.

Progress of the calls goes to the stream of the graph around the node. The caller of a batch gets callbacks.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

from anyio.lowlevel import checkpoint, checkpoint_if_cancelled
from langchain_core.callbacks import AsyncCallbackManager
from langchain_core.messages import ToolCall, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import BaseTool
from langgraph.errors import GraphInterrupt, ParentCommand, is_invalid_resume
from langgraph.runtime import Runtime
from pydantic import ValidationError

from callboard._calls._attempt import Attempt
from callboard._calls._batch import PORTION as STARTED_TOGETHER
from callboard._calls._batch import Batch
from callboard._calls._call import BatchContext, CallOptions, SupervisedCall, create_batch_context
from callboard._calls._call_keys import KeyScope
from callboard._calls._draining import Operation
from callboard._calls._limits import Limiter, NoKeyError
from callboard._calls._observers import current_mark, log_failure
from callboard._calls._progress import OnProgress, Progress
from callboard._calls._thread_pool import ThreadPermits
from callboard._langchain._callbacks import NO_HANDLERS, manager_of_tool
from callboard._langchain._errors import (
    error_message,
    is_control_flow,
    raise_invalid_arguments,
    runs_again,
    unknown_tool,
)
from callboard._langchain._invoke import copy_config, invoke, raise_without_key, supplied_names
from callboard._langchain._large_values import MANY_CALLS, has_many, run_in_worker
from callboard._langchain._plan import Plan, inject
from callboard._langchain._results import NodeRequest, Output, messages_in, open_calls_and_reply
from callboard._langgraph._call_scope import config_for_calls, scope_of
from callboard._langgraph._outer_task import NO_RUNTIME, read_state, runtime_of
from callboard._langgraph._vocabulary import ToolCallRequest, ToolRuntime, call_context, context_of
from callboard._records._events import RunInfo
from callboard._records._policies import ToolCallLike
from callboard.tools._bounds import admission, is_small
from callboard.tools._call_record import CallRecord, keys_of
from callboard.tools._chain import Chain, Link
from callboard.tools._ledger import CallsInterrupted, Ledger
from callboard.tools._setup import Setup
from callboard.tools._supervision import OnFailure, keep_message, limiter_of_run, message_for, run_judged

_log = logging.getLogger("callboard")

_MANY_MESSAGES = 10_000
"""Number of messages of a state that are searched for answers in the event loop. More would take milliseconds."""


class ProgressChunks:
    """Function that writes progress and heartbeats of calls to a graph's stream. Only the first error is logged."""

    __slots__ = ("_has_failed", "_runtime")

    def __init__(self, runtime: Runtime[Any]) -> None:
        self._runtime = runtime
        self._has_failed = False

    def __call__(self, call: ToolCallLike, progress: Progress) -> None:
        """Write one progress report of a call to the graph's stream."""
        event = {"type": "progress", "tool": call["name"], "tool_call_id": call.get("id")}
        try:
            self._runtime.stream_writer({**event, **progress._asdict()})
            self._runtime.heartbeat()
        except Exception:
            # Progress is only advice: a broken stream must not fail a call with an effect of its own.
            if not self._has_failed:
                self._has_failed = True
                _log.exception("the stream of a graph could not be told of the progress of a call")


def progress_writer(runtime: Runtime[Any]) -> OnProgress | None:
    """Return the function that writes progress to the graph's stream; `None` outside of a graph."""
    return None if runtime is NO_RUNTIME else ProgressChunks(runtime)


OnRecord = Callable[[str, CallRecord], Awaitable[None]]
"""Async function that takes the key and the record of a call. It is called just before the body starts, or when the
call asks a question."""
OnFinish = Callable[[str, Output, bool], Awaitable[None]]
"""Async function that takes the key and the output of an ended call, and whether the call was the last of the batch."""

CallBody = Callable[[RunnableConfig | None], Coroutine[Any, Any, Output]]
"""Function that runs one call, with the given config, or with the batch's config for `None`."""
WrapCall = Callable[[Ledger, int, CallBody], Coroutine[Any, Any, Output]]
"""Function that wraps one call: takes the ledger of the batch, the index of the call, and the function that runs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """Arguments of a `ToolBatch` that its caller supplies, such as callbacks for results and questions."""

    on_finish: OnFinish | None = None
    """Called with the output of each call as soon as the call has ended, before other code can use the output.

    A caller that can wait until the batch has ended reads `ToolBatch.results`.
    """
    on_claim: OnRecord | None = None
    """Called for each call that must not run twice, before its body starts, so that the caller can record the start."""
    claims_only_explicit: bool = False
    """`True` to call `on_claim` only for calls whose policy sets `on_unknown` explicitly."""
    on_ask: OnRecord | None = None
    """Called when a call asks a question."""
    wrap_call: WrapCall | None = None
    """Function that runs each call, for a caller that observes the call from its beginning to its end."""
    entries: Link | None = None
    """The node's own `invoke` or `ainvoke` override as a middleware around each call, if each call is a task of its
    own."""


class ToolBatch:
    """Run of the tool calls in one input of a node, from the check of the calls to the combined output.

    `make_ledger` makes the ledger, with the records that the caller has kept from an earlier run. `keys` are those of
    the requested calls, if the caller has computed them. The other arguments are those of `Reports`.
    """

    def __init__(
        self,
        setup: Setup,
        request: NodeRequest,
        config: RunnableConfig,
        make_ledger: Callable[..., Ledger],
        *,
        keys: Sequence[str] | None = None,
        reports: Reports = Reports(),
    ) -> None:
        self.reports = reports
        self.failures: dict[str, str] = {}
        """Unhandled errors as texts, by key. An error object would form a reference cycle through its traceback."""
        self.signalled_keys: list[str] = []
        """Keys of the calls that ended with a control flow error other than a question, such as a parent command."""
        self.results: tuple[Sequence[str], Sequence[Output]] = (), ()
        """Keys and outputs of the calls that ended with an output, after the end of the batch, however it ended."""
        self.setup = setup
        self.overrides = None if reports.entries is None else Chain([reports.entries])
        self._graphs, self._runtime = None, NO_RUNTIME
        self.state = request.state
        if self.state is None and request.kind == "tool_calls":
            self.state = read_state(config) if config["configurable"] else {}
        if config["configurable"]:  # outside of a graph it is empty as a rule, and there is nothing to look up
            config, self._graphs = config_for_calls(config)
            self._runtime = runtime_of(config)
        self.config = config
        self._request = request
        self._given_keys = keys
        self._make_ledger = make_ledger
        self.rules = setup.rules[request.kind]
        self._due_keys: list[str] = []
        """Keys of the calls without a result, in call order."""
        self.ready_tools: dict[str, ReadyTool] = {}
        """Facts about the tools that have been called, by name, for calls without callbacks of their own."""
        self.callbacks = config.get("callbacks")
        self._open_count = 0
        self._run_limiters: Sequence[Limiter] = ()
        self.threads = setup.supervision.threads
        if (concurrency := config.get("max_concurrency")) is not None:
            self._run_limiters = [limiter_of_run(concurrency)]
            self.threads = self.threads.at_least(concurrency)

    async def prepare(self) -> None:
        """Compute the keys of the calls, refuse calls above the limits, and load the ledger. Must be run first."""
        calls = self._request.calls
        are_small = len(calls) <= MANY_CALLS and all(map(is_small, calls))
        # Too many calls, argument values or messages would hold the event loop while they are read.
        takes_long = not are_small and (len(calls) > MANY_CALLS or has_many([call["args"] for call in calls]))
        if self._request.kind == "tool_calls":
            takes_long |= len(messages_in(self.state, self.setup.messages_key)) > _MANY_MESSAGES
        if takes_long:
            await run_in_worker(partial(self._admit, are_small=are_small))
        else:
            self._admit(are_small=are_small)
        self.ledger = self._make_ledger(self.config, self.setup.name, self._keys, graphs=self._graphs)
        self.stores_outputs = self.reports.on_finish is not None or self.ledger.is_kept

    def _admit(self, *, are_small: bool) -> None:
        setup, calls, reply = self.setup, self._request.calls, self._request.reply
        if self._request.kind == "tool_calls" and self.state:
            is_counted = setup.max_calls is not None
            calls, reply = open_calls_and_reply(self._request, self.state, setup.messages_key, is_counted=is_counted)
        # Keys come from the ids that the model wrote, before `admission` shortens them: two long ids must not become
        # equal.
        keys = self._given_keys if calls is self._request.calls else None
        self._keys = keys_of(calls) if keys is None else keys
        self._calls, self.refusals = admission(calls, reply, setup.tools, setup.max_calls, are_small=are_small)

    async def claims(self) -> list[str]:
        """Return keys of new calls that must not run twice and can start at once; the caller stores them as started."""
        # A call that must wait for a permit is claimed when it gets one. If the process is killed before that, the call
        # has not started, and may run. Calls with answers are claimed at that moment too, together with their answers.
        # The caller stores all these claims together, before any tool function starts.
        call_counts: Counter[str] = Counter()
        claims: list[str] = []
        supervision, concurrency = self.setup.supervision, self.config.get("max_concurrency")
        for index, (key, call) in enumerate(zip(self._keys, self._calls, strict=True)):
            if index and index % MANY_CALLS == 0:
                await checkpoint()
            tool = self.setup.tools.get(call["name"])
            if tool is None or key in self.ledger.records or index in self.refusals:
                continue
            if runs_again(supervision.policy(tool.name)):
                continue
            permits_by_limit = supervision.initial_permits(tool.name)
            if concurrency is not None:
                permits_by_limit["run"] = concurrency
            if self.setup.plan(tool).takes_thread:
                permits_by_limit["threads"] = self.threads.concurrency
            # Keys of limits are ignored: a call with a free key may seem to have to wait. It is claimed later.
            call_counts.update(permits_by_limit.keys())
            if all(call_counts[name] <= permits for name, permits in permits_by_limit.items()):
                claims.append(key)
        return claims

    async def run(self) -> Any:
        """Run the calls that have no result yet, and return the output of the whole batch."""
        setup, thread_id = self.setup, self.config["configurable"].get("thread_id")
        batch_context = create_batch_context(progress_writer(self._runtime))
        if batch_context.observers.calls:
            run = batch_context.run
            if run is None and "thread_id" in self.config["configurable"]:
                run_id = self.config["metadata"].get("run_id") or self.config.get("run_id") or ""
                run = RunInfo(number=0, agent="", run_id=str(run_id), thread_id=str(thread_id))
            batch_context = batch_context._replace(
                run=run, describe=setup.description, redact_call=lambda call: setup.redact_call(call, run)
            )
        # The node's actors take time to start: a drain cancels that, too.
        grace = setup.supervision.grace if setup.actors.is_needed else None
        with Operation(setup.in_flight, batch_context.loop, grace=grace, thread_id=thread_id) as operation:
            if not setup.actors.is_needed:
                return await self._run(batch_context, operation)
            if setup.actors.in_journal:
                setup.actors.journal()  # raises without a journal, before any call starts
            async with setup.actors.open_for_block():
                await checkpoint_if_cancelled()  # the actors may have taken long to start
                return await self._run(batch_context, operation)
        raise operation.drain_error()

    async def _run(self, batch_context: BatchContext, operation: Operation) -> Any:
        supervised_calls: list[SupervisedCall[Output]] = []
        try:
            await self._supervise(supervised_calls, batch_context)
            self._open_count = len(supervised_calls)
            live = self.setup.supervision.batches
            batch = Batch(supervised_calls, on_error=self.setup.on_error, is_signal=is_control_flow, live=live)
            operation.batch = batch
            if operation.is_stopped:  # a drain came while the calls were made
                raise operation.drain_error()
            await batch.run()
        except BaseException as error:
            self.failures = {
                key: repr(call.error or error)
                # `_due_keys` may be one longer: Ctrl-C may come between the two appends in `_supervise`.
                for key, call in zip(self._due_keys, supervised_calls, strict=False)
                # Ctrl-C is no error of the tool: nobody knows what the interrupted body has done.
                if call.ended and call.result is None and isinstance(call.error or error, Exception)
                if not isinstance(call.error, GraphInterrupt)
            }
            # Also after a failure or a cancel: finished results and open questions must not be lost with the batch.
            self._record_ends(supervised_calls)
            self.ledger.publish()
            raise
        return self._combine_outputs(supervised_calls)

    async def _supervise(self, supervised_calls: list[SupervisedCall[Output]], batch_context: BatchContext) -> None:
        """Append to `supervised_calls` each call of the batch that has no result and no unanswered question."""
        ledger, supervision = self.ledger, self.setup.supervision
        call_class = _BatchCall if self.reports.wrap_call is None else _WrappedCall
        call_facts = partial(call_context, self.config, self.state, self._runtime.context)
        # With pauses for other tasks, because there may be very many calls.
        for index, (key, call) in enumerate(zip(self._keys, self._calls, strict=True)):
            if index and index % STARTED_TOGETHER == 0:
                await checkpoint()
            resumed_mark = None
            if ledger.records:
                ledger.settle_unknown(key, call)
                if (record := ledger.records.get(key)) is not None:
                    if record.has_ended or ledger.is_waiting(key):
                        continue
                    resumed_mark = record.mark
            self._due_keys.append(key)
            terms = supervision.terms(call, self._run_limiters, call_facts)
            supervised_calls.append(
                call_class(self, key, index, terms, batch_context=batch_context, resumed_mark=resumed_mark)
            )

    def terms(self, request: ToolCallRequest) -> CallOptions:
        """Return the policy and the limits of the call in a request; middleware may have changed the call."""
        return self.setup.supervision.terms(request.tool_call, self._run_limiters, partial(context_of, request))

    def _combine_outputs(self, supervised_calls: Sequence[SupervisedCall[Output]]) -> Any:
        signals: list[BaseException] = []
        outputs: list[Any] = []  # `Output`, without a `cast` for each call
        for key, call in zip(self._due_keys, supervised_calls, strict=True):
            if call.error is None:
                outputs.append(call.result)
                continue
            signals.append(call.error)
            if not isinstance(call.error, GraphInterrupt):
                self.signalled_keys.append(key)
        if not signals and not self.ledger.records and not self.ledger.may_be_replayed:
            self.results = self._due_keys, outputs
            return self.rules.combine(outputs)
        self._record_ends(supervised_calls)
        questions = self.ledger.pending
        if questions or signals or self.ledger.may_be_replayed:
            self.ledger.publish()
        # First of all, a person who gave an invalid answer must learn of it.
        self._raise_first([signal for signal in signals if is_invalid_resume(signal)])
        # Questions before commands for the parent graph: the ledger keeps such a command, and the run that answers the
        # last question raises it.
        if questions and self.ledger.in_graph:
            raise GraphInterrupt(tuple(questions))
        if questions:
            raise CallsInterrupted(questions, self.ledger.dump())
        for key in self._keys:
            if (command := self.ledger.record_of(key).parent) is not None:
                raise ParentCommand(command)
        self._raise_first(signals)
        return self.rules.combine([cast("Output", self.ledger.records[key].output) for key in self._keys])

    def _raise_first(self, signals: list[BaseException]) -> None:
        try:
            if signals:
                raise signals[0]
        finally:
            signals.clear()  # the traceback refers to this list: break the reference cycle

    def _record_ends(self, supervised_calls: Sequence[SupervisedCall[Output]]) -> None:
        """Copy results and open questions of ended calls into the ledger, and remove error objects from the calls."""
        keys: list[str] = []
        outputs: list[Output] = []
        for key, call in zip(self._due_keys, supervised_calls, strict=False):
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

    def runtime_for(self, call: ToolCall, config: RunnableConfig) -> ToolRuntime[Any, Any]:
        runtime = self._runtime
        return ToolRuntime(
            state=self.state,
            tool_call_id=call["id"],
            config=copy_config(config),
            context=runtime.context,
            store=runtime.store,
            stream_writer=runtime.stream_writer,
            tools=list(self.setup.tools.values()),
            execution_info=runtime.execution_info,
            server_info=runtime.server_info,
        )

    def ready_tool_of(self, tool: BaseTool, config: RunnableConfig) -> "ReadyTool":
        """Return the `ReadyTool` of a tool; the batch's calls share it, except calls that have their own callbacks."""
        has_own_callbacks = self.overrides is not None or config.get("callbacks") is not self.callbacks
        # At each attempt: middleware runs users' code between two, and may replace the tool's methods, as mocks do.
        plan = self.setup.plan(tool)
        ready_tool = None if has_own_callbacks else self.ready_tools.get(tool.name)
        if ready_tool is not None and ready_tool.tool is tool and ready_tool.plan is plan:
            return ready_tool
        # The own `ainvoke` of a foreign tool calls the handlers; here they would be called twice.
        manager = (
            NO_HANDLERS if plan.is_foreign else manager_of_tool(tool, config if has_own_callbacks else self.config)
        )
        ready_tool = ReadyTool(tool, plan, manager, self.threads if plan.takes_thread else None)
        if not has_own_callbacks and self.setup.tools.get(tool.name) is tool:
            self.ready_tools[tool.name] = ready_tool
        return ready_tool

    async def store_output(self, key: str, output: Output) -> None:
        """Store the output of a call, so that it survives a kill of the process."""
        self._open_count -= 1
        if self.reports.on_finish is not None:
            await self.reports.on_finish(key, output, not self._open_count)
        if self._open_count and self.ledger.is_kept:  # the last result is stored by the caller of the batch
            self.ledger.record_output(key, output)
            await self.ledger.save()

    async def store_question(self, key: str, interrupt: GraphInterrupt) -> None:
        """Store the questions of a call, so that they survive a kill of the process."""
        self.ledger.record_question(key, interrupt, current_mark())
        if self.reports.on_ask is not None:
            await self.reports.on_ask(key, self.ledger.records[key])


class ReadyTool(NamedTuple):
    """Data for running one tool, shared by all calls of the tool in a batch: plan, callback manager and threads."""

    tool: BaseTool
    plan: Plan
    manager: AsyncCallbackManager
    threads: ThreadPermits | None


class _BatchCall(SupervisedCall[Output]):
    """Supervised tool call of a batch, which runs the middleware and the tool, and turns errors into messages."""

    __slots__ = ("_config", "batch", "index", "key")

    call: ToolCall  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(
        self,
        batch: ToolBatch,
        key: str,
        index: int,
        terms: CallOptions,
        *,
        batch_context: BatchContext,
        resumed_mark: str | None,
    ) -> None:
        super().__init__(batch_context, *terms)
        self.batch = batch
        self.key = key
        self.index = index
        self.resumed_mark = resumed_mark
        self._config = batch.config

    @property
    def key_scope(self) -> KeyScope | None:
        return scope_of(self._config)

    async def run(self, config: RunnableConfig | None = None) -> Output:
        """Run the call under `config`, by default the batch's config; return its output or an error message."""
        batch, setup = self.batch, self.batch.setup
        if batch.refusals and self.index in batch.refusals:
            refusal, self.handled_error = batch.refusals[self.index]
            if batch.stores_outputs:
                await batch.store_output(self.key, refusal)
            return refusal
        config = self._config = batch.ledger.config_of_call(self.key, config or batch.config)
        if self.index and "run_id" in config:  # an id names one run: only the first call's run has it
            del config["run_id"]
        try:
            if batch.overrides is not None:
                # An override may call `interrupt()`; its question must belong to this call.
                var_child_runnable_config.set(self._config)
                run_override = partial(batch.overrides, self._tool_call_request(), self._run_within_override)
                output = cast("Output", await run_judged(self, run_override, setup.judge_override_error, keep_message))
            else:
                # The body of `run_judged`, written out: its frame would take 7 % of the memory of a call that waits.
                try:
                    if self.policy.budget is not None:
                        output = await self.within_budget(self._execute if setup.chain is None else self._run_chain)
                    else:
                        output = await (self._execute() if setup.chain is None else self._run_chain())
                except BaseException as exc:
                    if (message := await message_for(self, exc, setup.judge_final_error, self._rework)) is None:
                        raise
                    output = message
        except GraphInterrupt as interrupt:
            await batch.store_question(self.key, interrupt)
            raise
        if batch.stores_outputs:
            await batch.store_output(self.key, output)
        return output

    async def _rework(self, message: ToolMessage, on_failure: OnFailure) -> ToolMessage:
        """Return an error message after the middleware has changed it."""
        chain = self.batch.setup.chain
        return message if chain is None else await chain.rework(message, self._tool_call_request(), on_failure)

    async def _run_within_override(self, request: ToolCallRequest) -> Output:
        """Run the call with the request that a `ToolNode` subclass's override has passed on; return its output."""
        setup, call = self.batch.setup, request.tool_call
        runtime = request.runtime
        request = ToolCallRequest(call, setup.tools.get(call["name"]), runtime.state, runtime)
        self._config = runtime.config
        inner = partial(self._execute if setup.chain is None else self._run_chain, request)
        return await run_judged(self, inner, setup.judge_final_error, self._rework)

    def _run_chain(self, request: ToolCallRequest | None = None) -> Awaitable[Output]:
        chain = self.batch.setup.chain
        assert chain is not None
        # A middleware may call `interrupt()`; its question must belong to this call.
        var_child_runnable_config.set(self._config)
        request = self._tool_call_request() if request is None else request
        return chain(request, self._execute, None if self.policy.timeout is None else self.within_timeout)

    def _tool_call_request(self) -> ToolCallRequest:
        batch, call = self.batch, self.call
        tool = batch.setup.tools.get(call["name"])
        return ToolCallRequest(call, tool, batch.state, batch.runtime_for(call, self._config))

    async def _execute(self, request: ToolCallRequest | None = None) -> Output:
        """Make one attempt at the call, or at the changed call in `request`, and return its output."""
        # Few local names: this frame lives as long as the call, and thousands may wait.
        batch, setup = self.batch, self.batch.setup
        call, config = self.call if request is None else request.tool_call, self._config
        ready_tool = None
        # Without middleware no user's code runs between two attempts, so the facts need no check.
        if request is None and config.get("callbacks") is batch.callbacks:
            ready_tool = batch.ready_tools.get(call["name"])
        if ready_tool is None:
            if (tool := setup.tools.get(call["name"]) if request is None else request.tool) is None:
                if call["name"] in setup.tools:
                    raise TypeError(f"Tool {call['name']} is not registered with ToolNode")  # a middleware removed it
                with self.outside_timeout():  # as an attempt, it restarts the timeout of the middleware
                    self.handled_error = LookupError(f"there is no tool {call['name']!r}")
                    return unknown_tool(call, setup.tools)
            ready_tool = batch.ready_tool_of(tool, config)
        if request is not None:
            # `invoke` modifies the config, and middleware may make another attempt.
            config = config.copy()
            config["configurable"] = config["configurable"].copy()
        injected_call = call
        if not ready_tool.plan.injected.none:
            runtime = batch.runtime_for(call, self._config) if request is None else request.runtime
            injected_call = inject(call, ready_tool.plan.injected, runtime, setup.messages_key)
        # A middleware may have changed the call, whose name decides policy and limits, or the context of key functions.
        terms = None if request is None else batch.terms(request)
        try:
            try:
                response = await self.attempt(
                    ready_tool.threads,
                    self._claim_and_invoke
                    if batch.reports.on_claim is not None and self._is_claimed(terms)
                    else invoke,
                    *(ready_tool.plan, injected_call, config, ready_tool.manager),
                    terms=terms,
                )
            except NoKeyError as error:
                raise_without_key(error, ready_tool.plan, injected_call, call)
            except ValidationError as error:
                raise_invalid_arguments(error, call, supplied_names(ready_tool.plan, injected_call, call))
            output, self.handled_error = batch.rules.check(response, call), None
        except Exception as error:
            if (content := setup.judge_tool_error(error)) is None:
                raise
            output, self.handled_error = error_message(content, call, error), error
            log_failure(logging.DEBUG, f"the error of call {call['id']!r} of {call['name']!r} became a message", error)
        return output

    def _is_claimed(self, terms: CallOptions | None) -> bool:
        policy = self.policy if terms is None else terms.policy
        return not runs_again(policy) and not (self.batch.reports.claims_only_explicit and policy.on_unknown is None)

    async def _claim_and_invoke(
        self, attempt: Attempt, plan: Plan, call: ToolCall, config: RunnableConfig, manager: AsyncCallbackManager
    ) -> object:
        """Store a claim, a record that the tool function is about to start; then run the tool and return the result."""
        assert self.batch.reports.on_claim is not None
        # The claim is stored before the body starts. A crash after this line leaves a claim without a result: unknown.
        await self.batch.reports.on_claim(self.key, self.batch.ledger.record_of(self.key))
        return await invoke(attempt, plan, call, config, manager)


class _WrappedCall(_BatchCall):
    """Call of a batch that runs within the function `wrap_call`, through which the batch's caller observes the call."""

    __slots__ = ()

    async def run(self, config: RunnableConfig | None = None) -> Output:
        wrap_call, run = self.batch.reports.wrap_call, super().run
        return await (run(config) if wrap_call is None else wrap_call(self.batch.ledger, self.index, run))
