"""One call of a batch: its middleware, its attempts, and the message for its error."""

import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

from langchain_core.callbacks import AsyncCallbackManager
from langchain_core.messages import BaseMessage, ToolCall, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import BaseTool
from langgraph.errors import GraphInterrupt
from langgraph.runtime import Runtime
from pydantic import ValidationError

from callboard._calls._attempt import Attempt
from callboard._calls._call import BatchContext, CallOptions, SupervisedCall
from callboard._calls._call_keys import KeyScope
from callboard._calls._limits import Limiter, NoKeyError
from callboard._calls._observers import current_mark, log_failure
from callboard._calls._thread_pool import ThreadPermits
from callboard._langchain._callbacks import NO_HANDLERS, manager_of_tool
from callboard._langchain._errors import error_message, raise_invalid_arguments, unknown_tool
from callboard._langchain._invoke import copy_config, invoke, raise_without_key, supplied_names
from callboard._langchain._outputs import Output
from callboard._langchain._plan import Plan, inject
from callboard._langchain._unknown_outcomes import runs_again
from callboard._langgraph._call_scope import scope_of
from callboard._langgraph._vocabulary import ToolCallRequest, ToolRuntime, context_of
from callboard._loops._protocol import Spawned
from callboard._records._policies import ToolCallLike
from callboard.tools._bounds import Refusal
from callboard.tools._call_record import CallRecord
from callboard.tools._chain import Chain, Link
from callboard.tools._ledger import Ledger
from callboard.tools._middleware_hooks import with_defaults
from callboard.tools._results import ResultRules
from callboard.tools._setup import Setup
from callboard.tools._supervision import OnFailure, keep_message, message_for, run_judged

OnRecord = Callable[[str, CallRecord], Awaitable[None]]
"""Async function that takes the key and the record of a call. It is called just before the body starts, or when the
call asks a question."""
OnFinish = Callable[[str, Output, bool], Awaitable[None]]
"""Async function that takes the key and the output of an ended call, and whether the call was the last of the batch."""

CallBody = Callable[[RunnableConfig | None], Coroutine[Any, Any, Output]]
"""Function that runs one call, with the given config, or with the batch's config for `None`."""
Body = Callable[[Attempt, Plan, ToolCall, RunnableConfig, AsyncCallbackManager], Coroutine[Any, Any, object]]
"""Function that runs a tool in an attempt."""
WrapCall = Callable[[Ledger, int, CallBody], Coroutine[Any, Any, Output]]
"""Function that wraps one call: takes the ledger of the batch, the index of the call, and the function that runs it."""


class Background(Protocol):
    """Protocol of the background calls of a conversation, for a batch of it."""

    def new_handle(self, call_id: str, messages: Iterable[BaseMessage]) -> str:
        """Return a name for a call that goes on, which no other call in the background has, also none in `messages`."""
        ...

    def start(self, call: Any) -> Spawned:
        """Start the task of a `BackgroundCall`."""
        ...


class Reports(NamedTuple):
    """Arguments of a `ToolBatch` that its caller supplies, such as callbacks for results and questions.

    A named tuple, because an agent makes one for each batch, and a frozen dataclass takes several times as long.
    """

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
    background: Background | None = None
    """Background calls of the conversation; `None` if all calls end with the batch."""
    wrap_call: WrapCall | None = None
    """Function that runs each call, for a caller that observes the call from its beginning to its end."""
    on_earlier_output: Callable[[Output], None] | None = None
    """Called with the output of each call that an earlier run has finished, before any call begins."""
    outer_links: Sequence[Link] = ()
    """Middleware around each call, outside of the middleware of the node: the agent's guard against loops, and the
    node's own `invoke` or `ainvoke` override if each call is a task of its own."""


NO_REPORTS = Reports()


class ReadyTool(NamedTuple):
    """Data for running one tool, shared by all calls of the tool in a batch: plan, callback manager and threads."""

    tool: BaseTool
    plan: Plan
    manager: AsyncCallbackManager
    threads: ThreadPermits | None


@dataclass(eq=False, slots=True, kw_only=True)
class BatchResources:
    """Resources that all calls of a batch use: setup of the node, config, state, ledger, and ready tools."""

    setup: Setup
    config: RunnableConfig
    state: Any
    runtime: Runtime[Any]
    ledger: Ledger
    rules: ResultRules
    refusals: Mapping[int, Refusal]
    """Refusals of calls that exceed a limit, by the index of the call."""
    run_limiters: Sequence[Limiter]
    threads: ThreadPermits
    reports: Reports
    callbacks: Any = field(init=False)
    overrides: Chain | None = field(init=False)
    stores_outputs: bool = field(init=False)
    ready_tools: dict[str, ReadyTool] = field(init=False, default_factory=dict[str, ReadyTool])
    """Facts about the tools that have been called, by name, for calls without callbacks of their own."""
    open_count: int = field(init=False, default=0)
    """Number of calls that have not ended."""

    def __post_init__(self) -> None:
        self.callbacks = self.config.get("callbacks")
        self.overrides = Chain(self.reports.outer_links) if self.reports.outer_links else None
        self.stores_outputs = self.reports.on_finish is not None or self.ledger.stores_each_result

    def terms(self, request: ToolCallRequest) -> CallOptions:
        """Return the policy and the limits of the call in a request; middleware may have changed the call."""
        return self.setup.supervision.terms(request.tool_call, self.run_limiters, partial(context_of, request))

    def runtime_for(self, call: ToolCall, config: RunnableConfig) -> ToolRuntime[Any, Any]:
        runtime = self.runtime
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

    def ready_tool_of(self, tool: BaseTool, config: RunnableConfig) -> ReadyTool:
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
        self.open_count -= 1
        if self.reports.on_finish is not None:
            await self.reports.on_finish(key, output, not self.open_count)
        if self.open_count and self.ledger.stores_each_result:  # the last result is stored by the caller of the batch
            self.ledger.record_output(key, output)
            await self.ledger.save()

    async def store_question(self, key: str, interrupt: GraphInterrupt) -> None:
        """Store the questions of a call, so that they survive a kill of the process."""
        self.ledger.record_question(key, interrupt, current_mark())
        if self.reports.on_ask is not None:
            await self.reports.on_ask(key, self.ledger.records[key])


class BatchCall(SupervisedCall[Output]):
    """Supervised tool call of a batch, which runs the middleware and the tool, and turns errors into messages."""

    __slots__ = ("_config", "batch", "index", "key")

    call: ToolCall  # pyright: ignore[reportIncompatibleVariableOverride]  # calls of a node have LangChain's form

    def __init__(
        self, batch: BatchResources, key: str, index: int, terms: CallOptions, batch_context: BatchContext
    ) -> None:
        super().__init__(batch_context, *terms)
        self.batch = batch
        self.key = key
        self.index = index
        self._config = batch.config

    @property
    def thread_id(self) -> str | None:
        thread_id = self.batch.config["configurable"].get("thread_id")
        return None if thread_id is None else str(thread_id)

    @property
    def key_scope(self) -> KeyScope | None:
        return scope_of(self._config)

    @property
    def resumed_mark(self) -> str | None:
        return self.batch.ledger.record_of(self.key).mark

    def arguments_of(self, call: ToolCallLike) -> Mapping[str, object]:
        return with_defaults(self.batch.setup.tools.get(call["name"]), call["args"])

    async def run(self, config: RunnableConfig | None = None) -> Output:
        """Run the call under `config`, by default its batch's config; return its output or an error message."""
        batch, setup = self.batch, self.batch.setup
        if batch.refusals and self.index in batch.refusals:
            refusal, self.handled_error = batch.refusals[self.index]
            if batch.stores_outputs:
                await self._store_output(refusal)
            return refusal
        config = self._config = batch.ledger.config_of_call(self.key, config or self._config)
        if self.index and "run_id" in config:  # an id names one run: only the first call's run has it
            del config["run_id"]
        try:
            # The body of `run_judged`, written out: its frame would take 7 % of the memory of a call that waits.
            try:
                self.begin_code()
                if batch.overrides is not None:
                    # An override may call `interrupt()`; its question must belong to this call.
                    var_child_runnable_config.set(self._config)
                    request = self._tool_call_request()
                    output = cast(
                        "Output", await self.within_budget(partial(batch.overrides, request, self._run_within_override))
                    )
                elif self.policy.budget is not None:
                    output = await self.within_budget(self._execute if setup.chain is None else self._run_chain)
                else:
                    output = await (self._execute() if setup.chain is None else self._run_chain())
                if (error := self.settle_outcome()) is not None:
                    raise error
            except BaseException as exc:
                error = self.settle_outcome(exc) or exc
                if batch.overrides is None:
                    message = await message_for(self, error, setup.judge_final_error, self._rework)
                else:
                    message = await message_for(self, error, setup.judge_override_error, keep_message)
                if message is None:
                    raise
                output = message
            finally:
                error = None  # its traceback refers to this frame: a reference cycle
        except GraphInterrupt as interrupt:
            await self._store_question(interrupt)
            raise
        if batch.stores_outputs:
            await self._store_output(output)
        return output

    async def _store_output(self, output: Output) -> None:
        await self.batch.store_output(self.key, output)

    async def _store_question(self, interrupt: GraphInterrupt) -> None:
        await self.batch.store_question(self.key, interrupt)

    async def _rework(self, message: ToolMessage, on_failure: OnFailure) -> ToolMessage:
        """Return an error message after the middleware has changed it."""
        chain = self.batch.setup.chain
        return (
            message
            if chain is None
            else await chain.rework_error_message(message, self._tool_call_request(), on_failure)
        )

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
                    self._body(terms),
                    *(ready_tool.plan, injected_call, config, ready_tool.manager),
                    terms=terms,
                )
            except NoKeyError as error:
                raise_without_key(error, ready_tool.plan, injected_call, call)
            except ValidationError as error:
                raise_invalid_arguments(error, call, supplied_names(ready_tool.plan, injected_call, call))
            output, self.handled_error = batch.rules.check_response(response, call), None
        except Exception as error:
            if (content := setup.judge_tool_error(error)) is None:
                raise
            output, self.handled_error = error_message(content, call, error), error
            log_failure(logging.DEBUG, f"the error of call {call['id']!r} of {call['name']!r} became a message", error)
        return output

    def _body(self, terms: CallOptions | None) -> Body:
        """Return the function that runs the tool in an attempt; a call that must not run twice is claimed first."""
        reports, policy = self.batch.reports, self.policy if terms is None else terms.policy
        is_unclaimed = reports.claims_only_explicit and policy.on_unknown is None
        return invoke if reports.on_claim is None or is_unclaimed or runs_again(policy) else self._claim_and_invoke

    async def _claim_and_invoke(
        self, attempt: Attempt, plan: Plan, call: ToolCall, config: RunnableConfig, manager: AsyncCallbackManager
    ) -> object:
        """Store a claim, a record that the tool function is about to start; then run the tool and return the result."""
        assert self.batch.reports.on_claim is not None
        tool = None if call["name"] == self.call["name"] else call["name"]
        # The claim is stored before the body starts. A crash after this line leaves a claim without a result: unknown.
        await self.batch.reports.on_claim(self.key, self.batch.ledger.record_of(self.key)._replace(tool=tool))
        return await invoke(attempt, plan, call, config, manager)


class WrappedCall(BatchCall):
    """Call of a batch that runs within the function `wrap_call`, through which the batch's caller observes the call."""

    __slots__ = ()

    async def run(self, config: RunnableConfig | None = None) -> Output:
        wrap_call, run = self.batch.reports.wrap_call, super().run
        return await (run(config) if wrap_call is None else wrap_call(self.batch.ledger, self.index, run))
