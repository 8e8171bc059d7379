"""`Fallback`: middleware that answers with an alternative (tool, value, function) when a tool fails."""

import dataclasses
import inspect
import itertools
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, cast

from langchain_core.messages import ToolCall, ToolMessage
from langchain_core.tools import BaseTool

from callboard._calls._call import note
from callboard._calls._thread_pool import WorkerThreads
from callboard._langchain._errors import is_control_flow
from callboard._langchain._outputs import CallNext, Output, is_output, with_facts
from callboard._langgraph._vocabulary import ToolCallRequest, ToolInvocationError, msg_content_output
from callboard._loops._deadline import remaining
from callboard._records._policies import CallPolicy
from callboard._util._callers import is_async
from callboard._util._suggestions import no_such, suggests_options
from callboard.middleware._messages import replace_call_message
from callboard.middleware._retry import ASKS_TOO_LATE, FailureRules, When
from callboard.tools._middleware import Middleware, Order
from callboard.tools._middleware_hooks import check_tool_names

_MAX_THREADS = 256
"""Maximum number of threads in which one alternative runs, if it is a sync function."""

Failure = Exception | ToolMessage
"""Failure of a call or of an alternative: an error, or the error message of another tool."""


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """Fixed answer that a `Fallback` gives when a tool fails.

    Args:
        content: text or content blocks; any other value is written as JSON if possible, else as a string.
    """

    content: object


Alternative = str | BaseTool | Value | Callable[[ToolCallRequest, Any], object]
"""Alternative for a tool: the name of a tool of the node, a tool hidden from the model, a `Value`, or a function."""

_REASONS_FOR_FUNCTIONS = {
    "output": "what its function answers is not shortened",
    "repair": "its function gets arguments that were not repaired",
    "sanitize": "its function gets arguments that were not cleaned, and its answer is not cleaned",
    "redact": "what its function answers is not redacted",
}
"""Reasons that hold for functions alone: another tool is called through all inner middleware."""


@dataclasses.dataclass(frozen=True, slots=True)
class OtherTool:
    """Alternative for a failed tool: another tool, called with the same arguments."""

    name: str
    tool: BaseTool | None = None
    """Tool to call, or `None` for the node's tool of this name."""

    async def answer(self, request: ToolCallRequest, call_next: CallNext, failure: Exception) -> Output:
        call = cast("ToolCall", {**request.tool_call, "name": self.name})
        return await call_next(request.override(tool_call=call, tool=self.find_tool(request)))

    def find_tool(self, request: ToolCallRequest) -> BaseTool:
        """Return the tool to call for a request; raise `ValueError` if the node has no tool of this name."""
        if self.tool is not None:
            return self.tool
        tools = {tool.name: tool for tool in request.runtime.tools}
        self.check_exists(request.tool_call["name"], tools)
        return tools[self.name]

    def check_exists(self, instead_of: str, names: Collection[str]) -> None:
        """Raise `ValueError` if the alternative is the name of a tool that the node does not have."""
        if self.tool is None and self.name not in names:
            raise ValueError(
                f"Fallback({{{instead_of!r}: {self.name!r}}}): {no_such('tool', self.name, names)} "
                f"(to answer with a text, write Value({self.name!r}))"
            )


@dataclasses.dataclass(frozen=True, slots=True)
class Function:
    """Alternative for a failed tool: a function, called with the request and the failure."""

    name: str
    function: Callable[[ToolCallRequest, Exception], Awaitable[object]]
    is_fixed_answer: bool = False
    """Whether the answer is a `Value`, which no middleware has to check."""

    async def answer(self, request: ToolCallRequest, call_next: CallNext, failure: Exception) -> Output:
        output = await self.function(request, failure)
        if inspect.isawaitable(output):  # a plain function may wrap an async one and return its coroutine
            output = await output
        if is_output(output):
            return cast("Output", output)
        content = cast("Any", msg_content_output(output))
        return ToolMessage(content=content, name=request.tool_call["name"], tool_call_id=request.tool_call["id"])


def read_alternatives(tool_name: str, option: object) -> tuple[OtherTool | Function, ...]:
    """Return the alternatives for a tool, converted from the user's option, in the order in which they are tried."""
    options = option if isinstance(option, (list, tuple)) else [option]
    if not options:
        raise ValueError(f"Fallback({{{tool_name!r}: []}}) has no alternative in it; leave {tool_name!r} out")
    return tuple(_read_alternative(tool_name, item) for item in options)


def _read_alternative(tool_name: str, alternative: object) -> OtherTool | Function:
    if alternative == tool_name:
        raise ValueError(
            f"Fallback({{{tool_name!r}: {tool_name!r}}}): a tool cannot stand in for itself; Retry runs it again"
        )
    if isinstance(alternative, str):
        return OtherTool(alternative)
    if isinstance(alternative, BaseTool):
        return OtherTool(alternative.name, alternative)
    if isinstance(alternative, Value):
        content = alternative.content

        async def give_value(*_: object) -> object:
            return content

        return Function("value", give_value, is_fixed_answer=True)
    if callable(alternative) and not isinstance(alternative, type):
        function = cast("Any", alternative)
        name = getattr(function, "__name__", type(function).__name__)
        return Function(name, function if is_async(function) else _make_async(function))
    raise TypeError(
        f"Fallback({{{tool_name!r}: ...}}) takes the name of a tool, a tool, a Value or a function, "
        f"got {alternative!r}; to answer with that, write Value({alternative!r})"
    )


def _make_async(function: Callable[..., object]) -> Callable[..., Awaitable[object]]:
    # The result travels in a tuple: trio refuses an awaitable as the result of a thread, and `fn` may return one.
    threads = WorkerThreads(repr(function), _MAX_THREADS)

    async def call_in_thread(*args: object) -> object:
        (result,) = await threads.run(lambda: (function(*args),))
        return result

    return call_in_thread


def sign_output(output: Output, call: ToolCall, alternative_name: str) -> Output:
    """Return an alternative's output as the answer to the model's call, under the name of the tool that failed."""

    # Its message gets the name of the called tool, and a record of the alternative's name.
    def sign_message(message: ToolMessage) -> ToolMessage:
        facts = with_facts(message, fallback=alternative_name)
        return message.model_copy(update={"name": call["name"], "additional_kwargs": facts})

    return replace_call_message(output, call, sign_message)


@suggests_options()
class Fallback(Middleware):
    """Middleware that answers with an alternative when a tool fails.

    Alternatives are tried in order, until one has an answer or the call's time is used up. If none has, the first
    failure stands, with the other errors in its notes. Interrupts, cancellations and invalid arguments are not
    failures.

    An alternative is another tool of the node, by name; a tool object that the model does not know; a `Value`; or a
    function `(request, failure)` that returns anything that a tool may return; a sync one runs in a worker thread.
    Another tool gets the same arguments, under its own policy and limits; if it answers with an error message, it has
    failed, too.

    Args:
        instead_of: for each tool name, one alternative or a list of them.
        on: errors that count as failures: exception types, or a predicate of the error.

    Raises:
        ValueError: if a list is empty, or a tool is its own alternative.
        TypeError: if an alternative is of an unknown kind, or none is given.
    """

    order = Order(
        "fallback",
        not_around={"approval": ASKS_TOO_LATE},
        not_inside={
            "retry": "the fallback answers for the first failure, and nothing is left to retry",
            "breaker": "the fallback hides the failures, and the circuit never opens",
            "cache": "what the fallback answers is cached as if the tool had said it",
        },
    )

    def __init__(self, instead_of: Mapping[str, Alternative | Sequence[Alternative]], *, on: When = Exception) -> None:
        self._failure_rules = FailureRules("Fallback", on, None)
        if not isinstance(cast("object", instead_of), Mapping):
            raise TypeError(
                f"Fallback takes alternatives by tool name, such as {{'search': 'cached_search'}}; got {instead_of!r}"
            )
        self._alternatives = {name: read_alternatives(name, option) for name, option in instead_of.items()}
        all_alternatives = itertools.chain.from_iterable(self._alternatives.values())
        if any(
            isinstance(alternative, Function) and not alternative.is_fixed_answer for alternative in all_alternatives
        ):
            self.order = dataclasses.replace(self.order, not_around={**self.order.not_around, **_REASONS_FOR_FUNCTIONS})

    def check_tools(self, tools: Collection[str]) -> None:
        """Raise `ValueError` if the node lacks a tool that `instead_of` names, as a key or as an alternative."""
        check_tool_names("Fallback", self._alternatives, tools)
        for name in self._alternatives.keys() & tools:
            for alternative in self._alternatives[name]:
                if isinstance(alternative, OtherTool):
                    alternative.check_exists(name, tools)

    def covers(self, tool: BaseTool) -> bool:
        """Return whether a tool has alternatives.

        If so, the tool is offered to models even while a `CircuitBreaker` refuses it.
        """
        return tool.name in self._alternatives

    def effect_on(self, tool: BaseTool, policy: CallPolicy) -> str:
        """Return in a few words what this middleware does with the calls of a tool."""
        alternatives_of_tool = self._alternatives.get(tool.name)
        if alternatives_of_tool is None:
            return "nothing, it has no alternative for the tool"
        return f"answers with {', then '.join(other.name for other in alternatives_of_tool)} after a failure"

    async def awrap_tool_call(self, request: ToolCallRequest, call_next: CallNext) -> Output:
        """Run the call; if it fails, answer with the first alternative that succeeds."""
        candidates = self._alternatives.get(request.tool_call["name"])
        if candidates is None:
            return await call_next(request)
        for alternative in candidates:
            if isinstance(alternative, OtherTool):
                # Reports an unknown tool name with the first call, not with the first failure.
                alternative.find_tool(request)
        try:
            return await call_next(request)
        except Exception as error:
            if (
                is_control_flow(error)
                or isinstance(error, ToolInvocationError)
                or not self._failure_rules.is_failure(error)
            ):
                raise
            output = await self._run_alternatives(request, call_next, error)
            if output is None:
                raise
            return output

    async def _run_alternatives(
        self, request: ToolCallRequest, call_next: CallNext, failure: Exception
    ) -> Output | None:
        """Return the output of the first alternative that succeeds, or `None` if none does."""
        for alternative in self._alternatives[request.tool_call["name"]]:
            # Checked before each one: an alternative may use up the time of the next.
            if remaining() <= 0:
                break
            note("fallback", to=alternative.name, error=_failure_name(failure))
            try:
                output = await alternative.answer(request, call_next, failure)
            except Exception as error:
                if is_control_flow(error):
                    # An interrupt of an alternative must reach the graph; it is no failure.
                    raise
                self._record_failure(alternative.name, failure, error)
            else:
                if isinstance(alternative, OtherTool) and isinstance(output, ToolMessage) and output.status == "error":
                    self._record_failure(alternative.name, failure, output)
                else:
                    return sign_output(output, request.tool_call, alternative.name)
        return None

    def _record_failure(self, name: str, failure: Exception, next_failure: Failure) -> None:
        note("fallback_failed", to=name, error=_failure_name(next_failure))
        reason = repr(next_failure) if isinstance(next_failure, Exception) else "it answered with an error message"
        failure.add_note(f"The fallback {name!r} failed too: {reason}")


def _failure_name(failure: Failure) -> str:
    return type(failure).__name__ if isinstance(failure, Exception) else "error message"
