"""`Supervise`: middleware of LangChain that supervises the tool calls of LangChain's own agent."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, NotRequired, cast

from langchain_core.messages import ToolCall, ToolMessage
from langchain_core.tools import BaseTool

from callboard._calls._attempt import Attempt
from callboard._calls._batch import Batch
from callboard._calls._call import BatchContext, CallOptions, SupervisedCall, create_batch_context, note
from callboard._calls._call_keys import KeyScope
from callboard._calls._limits import NoKeyError
from callboard._langchain._errors import error_message
from callboard._langchain._invoke import raise_without_key
from callboard._langchain._outputs import Item
from callboard._langchain._plan import ToolFacts, inject, plan_for
from callboard._langgraph._call_scope import scope_in_task
from callboard._langgraph._outer_task import runtime_of
from callboard._langgraph._vocabulary import ToolCallRequest, ToolInvocationError, context_of
from callboard._loops._bridge import run_from_sync
from callboard._loops._deadline import DEFAULT_GRACE
from callboard._loops._entry_mode import entered_from
from callboard._records._explanations import ToolExplanation
from callboard._records._policies import CallPolicy, Limit, ToolCallLike
from callboard._records._reports import LiveCall, Statistics
from callboard._util._extras import install_command
from callboard._util._suggestions import suggests_options
from callboard.exceptions import CallRejectedError
from callboard.tools._chain import chain_of, middleware_in
from callboard.tools._error_policy import ErrorHandling, ErrorPolicy, only_invalid_arguments
from callboard.tools._explanation import explain_tool
from callboard.tools._middleware import check_policies, check_tools, hook, middleware_name, redaction_of, tools_of
from callboard.tools._middleware_hooks import Missing, check_missing, with_defaults
from callboard.tools._results import messages_in
from callboard.tools._setup import as_tool
from callboard.tools._supervision import OnFailure, Supervision, run_judged
from callboard.tools._tool_batch import progress_writer
from callboard.tools._unanswered import answer_of, calls_in, last_reply

try:
    from langchain.agents.middleware.types import AgentMiddleware, AgentState, PrivateStateAttr
except ImportError as error:
    raise ImportError(
        f"Supervise is for LangChain's create_agent: {install_command('callboard', 'langchain')}"
    ) from error


@suggests_options()
class Supervise(AgentMiddleware[Any, Any, Any]):
    """LangChain middleware that supervises an agent's tool calls: timeouts, limits, budgets, middleware and spans.

    Use it as `create_agent(model, tools, middleware=[Supervise(timeout=30.0)])`. The agent, its graph and the execution
    of its tools stay LangChain's, on asyncio. Limits hold for all calls of this object together. In the agent's list,
    middleware before `Supervise` is outside of supervision, and middleware after it a part of each attempt. A call that
    already has its message, such as from a person who rejected it, does not run.

    Args:
        timeout: seconds for one attempt of every tool whose policy does not set it.
        limit: limit for all calls together.
        policies: policies by tool name; an unknown name ends the agent's first call with an error.
        middleware: middleware around each call, the first outermost; tools of middleware become tools of the agent.
        grace: seconds for clean-up after a cancellation.
        handle_tool_errors: as in `ToolNode`. By default a timeout, a rejection or a spent budget becomes a
            message, and every other error is raised.
        missing: "ignore" to accept names in `policies` that the agent lacks: other middleware may add such tools.
        after_hooks: `True` if a call runs only after the hooks that follow the model, such as an approval. A call whose
            reply has jumped past them gets an error message. For middleware behind `Supervise` in the agent's list.

    Raises:
        ValueError: if a number is out of range, or a policy has `runs_in`: LangChain's agent runs the bodies itself.
        TypeError: if a middleware or an option has the wrong type, or a middleware changes replies of the model.
    """

    def __init__(
        self,
        *,
        timeout: float | None = None,
        limit: Limit | None = None,
        policies: Mapping[str, CallPolicy] | None = None,
        middleware: Sequence[object] = (),
        grace: float = DEFAULT_GRACE,
        handle_tool_errors: ErrorHandling = only_invalid_arguments,
        missing: Missing = "error",
        after_hooks: bool = False,
    ) -> None:
        super().__init__()
        check_missing("Supervise", missing)
        self._middleware = middleware_in("Supervise(middleware=...)", middleware)
        for item in self._middleware:
            if hook(item, "rewrite_reply"):
                raise TypeError(
                    f"Supervise(middleware=[{middleware_name(item)}(...)]): it changes requests and replies of the "
                    "model, and LangChain's agent does not ask it to: use callboard.create_agent"
                )
        self.tools = tools_of(self._middleware)
        self._supervision = Supervision(
            "Supervise", "the agent", timeout=timeout, limit=limit, policies=policies, grace=grace
        )
        _check_policies(self._supervision)
        self._chain = chain_of(self._middleware, None)
        self._errors = ErrorPolicy(handle_tool_errors)
        self._plans = ToolFacts(plan_for)
        self._missing: Missing = missing
        self._checked_names: set[frozenset[str]] = set()
        if after_hooks:
            # A class of its own, because LangChain gives a class with hooks a node in the graph, which costs each turn.
            supervise_class = type(self)
            namespace = {"__module__": supervise_class.__module__}
            self.__class__ = cast("Any", type(supervise_class.__name__, (_AfterHooks, supervise_class), namespace))

    def _reason_to_refuse(self, request: ToolCallRequest) -> str | None:
        """Return the reason why a call must not run; `None` if it may run."""
        return None

    def explain(self, tool: BaseTool | Callable[..., Any]) -> ToolExplanation:
        """Return the middleware, the policy and the limits around the calls of one tool, as `ToolNode.explain` does.

        The agent's other middleware is not listed, because only the agent knows it.

        Args:
            tool: the tool or function that the agent has: a middleware does not know the agent's tools by name.

        Raises:
            TypeError: for anything else, such as the name of a tool.
        """
        plan = self._plans.of(as_tool(tool))
        self._supervision.adopt([plan.tool])
        return explain_tool(plan, "tools", self._supervision, self._middleware)

    def statistics(self) -> Statistics:
        """Return the numbers of running and waiting calls, and of threads that outlived their calls."""
        return self._supervision.statistics()

    def running(self) -> list[LiveCall]:
        """Return the state of each call that has not ended, in all runs of the agent; see `ToolNode.running`."""
        return self._supervision.running()

    async def cancel(self, call_id: str, reason: str = "", *, thread_id: str | None = None) -> bool:
        """Cancel one call, while its run goes on. Arguments and errors are those of `ToolNode.cancel`."""
        return await self._supervision.cancel(call_id, reason, thread_id)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Item]]
    ) -> Item:
        """Supervise a tool call of an agent that runs in an event loop."""
        with entered_from("async"):
            return await self._supervise(request, handler, is_sync=False)

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Item]) -> Item:
        """Supervise a tool call of an agent in sync code; the tool and the inner middleware run in a worker thread."""
        with entered_from("sync"):
            return run_from_sync(partial(self._supervise, request, handler, is_sync=True))

    def _call_options(self, request: ToolCallRequest) -> CallOptions:
        """Return the tool call of a request, with its policy and limits."""
        return self._supervision.terms(request.tool_call, context=partial(context_of, request))

    async def _supervise(self, request: ToolCallRequest, handler: Callable[[Any], Any], *, is_sync: bool) -> Item:
        self._check_tool_names(request)
        batch_context = create_batch_context(progress_writer(runtime_of(request.runtime.config)))
        if batch_context.observers.calls:
            run, redact_call = batch_context.run, redaction_of(self._middleware)
            description = None if request.tool is None else request.tool.description
            batch_context = batch_context._replace(
                describe=lambda _: description, redact_call=lambda call: redact_call(call, run)
            )
        call = _AgentCall(self, request, handler, batch_context, is_sync=is_sync)
        await Batch([call], on_error="cancel", live=self._supervision.batches).run()
        return cast("Item", call.result)

    def _check_tool_names(self, request: ToolCallRequest) -> None:
        """Raise `ValueError` if options name tools that the agent lacks. The agent's tools are known only in a run."""
        # Other middleware may put a tool into the request that is not in the agent's list.
        tools = [*request.runtime.tools, *([request.tool] if request.tool is not None else [])]
        names = frozenset(tool.name for tool in tools)
        if names in self._checked_names:
            # Checked once per set of names: the check walks all middleware.
            return
        if self._missing == "error":
            self._supervision.check_tools(names)
        self._supervision.adopt(tools)
        _check_policies(self._supervision)
        check_tools(self._middleware, {tool.name: tool for tool in tools})
        check_policies(self._middleware, self._supervision.policies_of(names))
        self._checked_names.add(names)


class _HooksState(AgentState[Any]):
    callboard_after_hooks: NotRequired[Annotated[list[str], PrivateStateAttr]]
    """Calls of the last reply after whose hooks `_AfterHooks` ran. Private: no input of a run can set it."""


class _AfterHooks(Supervise):
    """`Supervise` that refuses a call if the agent skipped the `after_model` hooks, which may ask for approval."""

    state_schema = _HooksState

    def after_model(self, state: Any, runtime: Any) -> dict[str, Any]:
        """Record the tool calls in the model's last reply, as the hooks of other middleware have left them."""
        messages = state["messages"]
        position = last_reply(messages)
        calls = [] if position is None else calls_in(messages[position])
        return {"callboard_after_hooks": [_identify_call(position, call) for call in calls]}

    async def aafter_model(self, state: Any, runtime: Any) -> dict[str, Any]:
        """Record the tool calls in the model's last reply; the same as `after_model`, but without a thread."""
        return self.after_model(state, runtime)

    def _reason_to_refuse(self, request: ToolCallRequest) -> str | None:
        call_digests = request.state.get("callboard_after_hooks") or ()
        if _identify_call(last_reply(messages_in(request.state, "messages")), request.tool_call) in call_digests:
            return None
        return (
            f"Tool {request.tool_call['name']!r} was not run: the agent jumped to the tools past the hooks that follow "
            "the model, and with them past an approval, if there is one."
        )


def _identify_call(position: int | None, call: ToolCall) -> str:
    """Return a text that identifies a call by its content and by the reply's position, because call ids may repeat."""
    return json.dumps([position, call["id"], call["name"], call["args"]], sort_keys=True, default=repr)


class _AgentCall(SupervisedCall[Item]):
    """Supervised tool call of an agent: runs middleware and attempts, and converts errors to messages."""

    __slots__ = ("_handler", "_is_sync", "_request", "_supervise")

    def __init__(
        self,
        supervise: Supervise,
        request: ToolCallRequest,
        handler: Callable[[Any], Any],
        batch_context: BatchContext,
        *,
        is_sync: bool,
    ) -> None:
        super().__init__(batch_context, *supervise._call_options(request))
        self._supervise = supervise
        self._request = request
        self._handler = handler
        self._is_sync = is_sync

    @property
    def thread_id(self) -> str | None:
        thread_id = self._request.runtime.config.get("configurable", {}).get("thread_id")
        return None if thread_id is None else str(thread_id)

    @property
    def key_scope(self) -> KeyScope | None:
        return scope_in_task(self._request.runtime.config, self.id)

    def arguments_of(self, call: ToolCallLike) -> Mapping[str, object]:
        return with_defaults(self._request.tool, call["args"])

    async def run(self) -> Item:
        return await run_judged(
            self, self._answer_and_settle, partial(self._supervise._errors.text, "middleware"), self._rework
        )

    async def _rework(self, message: ToolMessage, on_failure: OnFailure) -> ToolMessage:
        chain = self._supervise._chain
        return message if chain is None else await chain.rework_error_message(message, self._request, on_failure)

    async def _answer_and_settle(self) -> Item:
        """Answer the call; raise `CallCancelledError` if the call alone was cancelled."""
        self.begin_code()
        try:
            output = await self._answer_call()
        except BaseException as error:
            if (settled_error := self.settle_outcome(error)) is error or settled_error is None:
                raise
            raise settled_error from settled_error.__cause__
        if (cancelled_error := self.settle_outcome()) is not None:
            raise cancelled_error
        return output

    async def _answer_call(self) -> Item:
        # Checked before the middleware: an approval or a cache must not handle a call that will not run. An older
        # message with the same id belongs to another call.
        answer = answer_of(self._request.tool_call, messages_in(self._request.state, "messages"))
        if answer is not None:
            note("answered")
            return answer
        if (reason := self._supervise._reason_to_refuse(self._request)) is not None:
            raise CallRejectedError(self.name, self.id, reason)
        chain = self._supervise._chain
        if chain is None:
            return await self._make_attempt(self._request)
        run_within_timeout = None if self.policy.timeout is None else self.within_timeout
        return cast("Item", await chain(self._request, self._make_attempt, run_within_timeout))

    async def _make_attempt(self, request: ToolCallRequest) -> Item:
        tool = request.tool
        runs_in_thread = tool is not None and self._supervise._plans.of(tool).takes_thread
        threads = self._supervise._supervision.threads if self._is_sync or runs_in_thread else None
        # Middleware may have replaced the request, and with it the tool; then the new tool's policy and limits hold.
        terms = None if request is self._request else self._supervise._call_options(request)
        try:
            output = await self.attempt(threads, self._run_body, request, runs_in_thread, terms=terms)
            self.handled_error = None
        except NoKeyError as error:
            output, self.handled_error = self._answer_without_key(error, request)
        return output

    async def _run_body(self, attempt: Attempt, request: ToolCallRequest, runs_in_thread: bool) -> Item:
        """Let LangChain run the tool and the inner middleware; `runs_in_thread` tells whether the tool is sync."""
        if self._is_sync:
            return cast("Item", await attempt.run_in_thread(partial(self._handler, request)))
        if request.tool is not None and runs_in_thread:
            request = request.override(tool=_copy_for_thread(request.tool, attempt))
        return cast("Item", await self._handler(request))

    def _answer_without_key(self, error: NoKeyError, request: ToolCallRequest) -> tuple[ToolMessage, Exception]:
        """Return the message for a call whose invalid arguments made the key function of a limit fail, and the error.

        The error is that of the arguments.
        """
        # If the arguments are valid, raise the error of the key function.
        call, tool = request.tool_call, request.tool
        if tool is None:
            raise error.__cause__ or error from None
        plan = self._supervise._plans.of(tool)
        try:
            raise_without_key(error, plan, inject(call, plan.injected, request.runtime, "messages"), call)
        except ToolInvocationError as argument_error:
            content = self._supervise._errors.text("tool in middleware", argument_error)
            if content is None:
                raise
            return error_message(content, call, argument_error), argument_error


def _copy_for_thread(tool: BaseTool, attempt: Attempt) -> BaseTool:
    """Copy a sync tool; the copy's `ainvoke` runs the tool in a worker thread that callboard starts for the attempt."""

    # LangChain would use a thread of the event loop's executor. Such a thread is not counted by the thread limit, and
    # after a timeout it would go on unnoticed.
    async def ainvoke(*args: Any, **kwargs: Any) -> Any:
        return await attempt.run_in_thread(partial(tool.invoke, *args, **kwargs))

    # A copy, because other calls use the tool at the same time. Pydantic models refuse a plain assignment.
    copy = tool.model_copy()
    object.__setattr__(copy, "ainvoke", ainvoke)
    return copy


def _check_policies(supervision: Supervision) -> None:
    """Refuse policies with engines, and warn about those with background calls."""
    if supervision.engines:
        raise ValueError(
            f"Supervise(policies=...): {next(iter(supervision.engines))!r} has runs_in, and LangChain's agent runs the "
            "bodies of its tools itself. Tools that run elsewhere are for callboard.ToolNode and callboard's agents"
        )
    for name, policy in supervision.policies.items():
        if policy.background is not None:
            supervision.warn_about_foreground(name)
