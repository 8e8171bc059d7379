"""`Supervise`: our supervision around the tool calls of LangChain's own agent."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from pydantic import ValidationError

from callboard._calls._attempt import Attempt
from callboard._calls._batch import Batch
from callboard._calls._call import SupervisedCall, Terms, note
from callboard._calls._context import Surroundings, surroundings
from callboard._calls._limits import NoKeyError
from callboard._langgraph import runtime_of, scope_in_task
from callboard._loops._bridge import run_from_sync
from callboard._loops._deadline import DEFAULT_GRACE
from callboard._loops._door import entered
from callboard._statistics import Statistics
from callboard._types import CallPolicy, Limit
from callboard.tools._beside_calls import check_policies, check_tools, shown_by, tools_of
from callboard.tools._call_context import context_of
from callboard.tools._call_output import Item
from callboard.tools._chain import Chain, chain_of, middleware_in
from callboard.tools._errors import (
    ErrorHandling,
    ErrorPolicy,
    error_message,
    only_invalid_arguments,
    raise_invalid_arguments,
)
from callboard.tools._inject import inject
from callboard.tools._input import messages_in
from callboard.tools._invoke import check_arguments
from callboard.tools._plan import Plan, plan_for
from callboard.tools._progress_chunks import chunks_for
from callboard.tools._supervision import OnFailure, Supervision
from callboard.tools._tool_facts import ToolFacts
from callboard.tools._tool_names import Missing, check_missing
from callboard.tools._unanswered import answer_of
from callboard.tools._vocabulary import ToolCallRequest, ToolInvocationError

try:
    from langchain.agents.middleware import AgentMiddleware
except ImportError as error:
    raise ImportError("Supervise is for LangChain's create_agent: pip install 'callboard[langchain]'") from error


class Supervise(AgentMiddleware[Any, Any, Any]):
    """Gives the tool calls of `langchain.agents.create_agent` timeouts, limits, budgets, middleware and spans.

    `create_agent(model, tools, middleware=[Supervise(timeout=30.0)])`. The agent, its graph and the execution
    of its tools stay LangChain's, and so stays its event loop: asyncio. Each call is a supervised one;
    limits hold for all calls of this object together, in every run, thread and event loop. Middleware that
    stands before it in the agent's list is outside, what stands after it is part of an attempt.

    A call that has its message already, because a person rejected it or a hook said `jump_to="tools"`, does
    not run: its message is its result.

    Args:
        timeout: seconds for one attempt of every tool whose policy says nothing else.
        limit: for all calls together.
        policies: by tool name. A name that no tool of the agent has, here or in a middleware, ends the agent's first
            call, before anything runs.
        middleware: what is around each call, the first outermost, as in `ToolNode`. What it has in `tools`
            are tools of the agent too.
        grace: seconds of clean-up after a cancel.
        handle_tool_errors: as in `ToolNode`. By default a timeout, a rejection or a spent budget becomes a
            message, and every other error is raised.
        missing: what a name in `policies` is that no tool of the agent has: an "error", or one to "ignore", such
            as that of a tool which other middleware brings along for some model requests only.

    Raises:
        ValueError: for a number out of range; for a policy with `runs_in`, because LangChain's agent runs the bodies.
        TypeError: for a middleware or an option of the wrong kind.
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
    ) -> None:
        super().__init__()
        check_missing("Supervise", missing)
        self._middleware = middleware_in("Supervise(middleware=...)", middleware)
        self.tools = tools_of(self._middleware)
        supervision = Supervision(
            "Supervise", "the agent", timeout=timeout, limit=limit, policies=policies, grace=grace
        )
        _refuse_engines(supervision)
        self._setup = _Setup(
            supervision,
            chain_of(self._middleware, None),
            ErrorPolicy(handle_tool_errors),
            ToolFacts(plan_for),
        )
        self._missing: Missing = missing
        self._checked: set[frozenset[str]] = set()

    def statistics(self) -> Statistics:
        """How many calls run and wait now, and how many threads outlived theirs."""
        return self._setup.supervision.statistics()

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Item]]
    ) -> Item:
        """Supervise a call of an agent that runs async."""

        async def body(attempt: Attempt, request: ToolCallRequest) -> Item:
            attempt.scope = scope_in_task(request.runtime.config, request.tool_call["id"])
            tool = self._setup.sync_tool(request)
            return await handler(request if tool is None else request.override(tool=_in_thread(tool, attempt)))

        with entered("async"):
            return await self._supervise(
                request, _Way(body, lambda request: self._setup.sync_tool(request) is not None)
            )

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Item]) -> Item:
        """Supervise a call of an agent that runs sync; the rest of the agent's middleware runs in a worker thread."""

        async def body(attempt: Attempt, request: ToolCallRequest) -> Item:
            attempt.scope = scope_in_task(request.runtime.config, request.tool_call["id"])
            return await attempt.run_in_thread(partial(handler, request))

        with entered("sync"):
            return run_from_sync(partial(self._supervise, request, _Way(body, lambda _: True)))

    async def _supervise(self, request: ToolCallRequest, way: "_Way") -> Item:
        self._check_names(request)
        run = _Execution(self._setup, request, way)
        call: SupervisedCall[Item] = SupervisedCall(*self._setup.terms(request), run, self._around(request))
        await Batch([call], on_error="cancel", live=self._setup.supervision.batches).run()
        return cast("Item", call.result)

    def _around(self, request: ToolCallRequest) -> Surroundings:
        """The surroundings, with what observers want to know of the tool."""
        around, tool = surroundings(chunks_for(runtime_of(request.runtime.config))), request.tool
        if not around.observers.calls:
            return around
        shown = shown_by(self._middleware)
        description = None if tool is None else tool.description
        return replace(around, describe=lambda _: description, shown=lambda call: shown(call, around.run))

    def _check_names(self, request: ToolCallRequest) -> None:
        """Raise ValueError for what was said of tools that the agent has not; only a run knows which it has."""
        # Other middleware may bring a tool of which the agent does not know.
        tools = [*request.runtime.tools, *([request.tool] if request.tool is not None else [])]
        names = frozenset(tool.name for tool in tools)
        if names in self._checked:
            return
        if self._missing == "error":
            self._setup.supervision.check_tools(names)
        check_tools(self._middleware, {tool.name: tool for tool in tools})
        check_policies(self._middleware, self._setup.supervision.policies_of(names))
        self._checked.add(names)


@dataclass(frozen=True, slots=True)
class _Setup:
    """What a `Supervise` was built with, ready to use."""

    supervision: Supervision
    chain: Chain | None
    errors: ErrorPolicy
    plans: ToolFacts[Plan]

    def terms(self, request: ToolCallRequest) -> Terms:
        """The policy of a request's tool, and the limits that it has to pass."""
        return self.supervision.terms(request.tool_call, context=partial(context_of, request))

    def sync_tool(self, request: ToolCallRequest) -> BaseTool | None:
        """The tool of a request, if it needs a thread."""
        tool = request.tool
        return tool if tool is not None and self.plans.of(tool).takes_thread else None


@dataclass(frozen=True, slots=True)
class _Way:
    """How the agent executes a request: from its event loop, or from a thread."""

    body: Callable[[Attempt, ToolCallRequest], Coroutine[Any, Any, Item]]
    takes_thread: Callable[[ToolCallRequest], bool]


class _Execution:
    """One call on its way through the middleware to what the agent does with it."""

    __slots__ = ("_request", "_setup", "_supervised", "_way")

    _supervised: SupervisedCall[Item]

    def __init__(self, setup: _Setup, request: ToolCallRequest, way: _Way) -> None:
        self._setup = setup
        self._request = request
        self._way = way

    async def __call__(self, supervised: SupervisedCall[Item]) -> Item:
        self._supervised = supervised
        setup = self._setup
        return await setup.supervision.run(supervised, self._answer, setup.errors.after_middleware, self._reworked)

    async def _reworked(self, message: ToolMessage, failed: OnFailure) -> ToolMessage:
        chain = self._setup.chain
        return message if chain is None else await chain.rework(message, self._request, failed)

    async def _answer(self) -> Item:
        answer = _answer_in(self._request)
        if answer is not None:
            note("answered")
            return answer
        chain = self._setup.chain
        if chain is None:
            return await self._attempt(self._request)
        return cast("Item", await chain.around_attempts(self._supervised, self._request, self._attempt))

    async def _attempt(self, request: ToolCallRequest) -> Item:
        supervision, way = self._setup.supervision, self._way
        threads = supervision.threads if way.takes_thread(request) else None
        terms = None if request is self._request else self._setup.terms(request)
        try:
            output = await self._supervised.attempt(threads, way.body, request, terms=terms)
        except NoKeyError as error:
            return self._without_key(error, request)
        self._supervised.handled = None  # of an attempt before this one
        return output

    def _without_key(self, error: NoKeyError, request: ToolCallRequest) -> ToolMessage:
        """What becomes of a key function that failed: if the arguments are wrong, the model is told that instead."""
        call, tool = request.tool_call, request.tool
        try:
            if tool is not None:
                _check_arguments(self._setup.plans.of(tool), request)
        except ToolInvocationError as invalid:
            content = self._setup.errors.invalid_arguments(invalid)
            if content is None:
                raise
            self._supervised.handled = invalid
            return error_message(content, call, invalid)
        raise error.__cause__ or error from None


def _check_arguments(plan: Plan, request: ToolCallRequest) -> None:
    call = request.tool_call
    try:
        check_arguments(plan, inject(call, plan.injected, request.runtime, "messages"))
    except ValidationError as invalid:
        raise_invalid_arguments(invalid, call, plan.injected.names)


def _answer_in(request: ToolCallRequest) -> ToolMessage | None:
    """The message that a call has already; an older one with its id answers another call."""
    return answer_of(request.tool_call, messages_in(request.state, "messages"))


def _in_thread(tool: BaseTool, attempt: Attempt) -> BaseTool:
    """A sync tool whose `ainvoke` takes the attempt's thread.

    LangChain would take one of the event loop's, which nobody counts, and which outlives a timeout unseen.
    """

    async def ainvoke(*args: Any, **kwargs: Any) -> Any:
        return await attempt.run_in_thread(partial(tool.invoke, *args, **kwargs))

    copy = tool.model_copy()
    object.__setattr__(copy, "ainvoke", ainvoke)
    return copy


def _refuse_engines(supervision: Supervision) -> None:
    if supervision.engines:
        raise ValueError(
            f"Supervise(policies=...): {next(iter(supervision.engines))!r} has runs_in, and LangChain's agent runs the "
            "bodies of its tools itself. Tools that run elsewhere are for callboard.ToolNode and callboard's agents"
        )
