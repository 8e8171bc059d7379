"""Base class `Middleware`, and the functions that call its optional hooks for all middleware of a node.

The wrapper of a call itself is in `tools/_chain`.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import BaseTool

from callboard._calls._call import SupervisedCall, current_call
from callboard._langchain._invoke import refusal
from callboard._langchain._outputs import CallNext, Output
from callboard._langchain._plan import plan_for
from callboard._langgraph._outer_task import graph_task
from callboard._langgraph._vocabulary import ToolCallRequest
from callboard._records._events import RunInfo
from callboard._records._policies import CallPolicy, ToolCallLike
from callboard._util._callers import warn_user
from callboard.exceptions import MiddlewareOrderWarning
from callboard.tools._middleware_hooks import check_tool_names, tools_to_approve

_log = logging.getLogger("callboard")


@dataclass(frozen=True, slots=True)
class Order:
    """Rules for the position of a middleware among others. If a node breaks a rule, a warning states the reason.

    The kinds of callboard's middleware are "output", "repair", "sanitize", "approval", "fallback", "cache", "breaker",
    "retry", "redact", "loop" and "search". `order = Cache.order` treats a middleware as a cache, with all reasons.

    Args:
        kind: kind of this middleware, as others name it in their rules.
        not_around: reasons why this middleware must not be outside of others, by their kind.
        not_inside: reasons why it must not be inside of others, by their kind.
    """

    kind: str = ""
    not_around: Mapping[str, str] = field(default_factory=dict[str, str])
    not_inside: Mapping[str, str] = field(default_factory=dict[str, str])


class _HookOfLangChain:
    """Descriptor of a method that LangChain's `create_agent` reads of each middleware; its error has the remedy."""

    def __get__(self, middleware: object, owner: type) -> object:
        raise AttributeError(
            f"{owner.__name__} is middleware of callboard: give it to callboard.create_agent, or to LangChain's as "
            f"callboard.middleware.Supervise(middleware=[{owner.__name__}(...)])"
        )


class Middleware:
    """Base class of middleware around tool calls. All methods are optional; their defaults change nothing.

    Objects of other classes may have the same methods and attributes, so that LangChain's middleware can have them.
    One object serves all calls of a node at once, also from several threads and event loops.
    """

    tools: Sequence[BaseTool] = ()
    """Tools that are added to those of the node."""
    order: Order = Order()
    """Rules for the position of this middleware among others."""
    needs_checkpointer: bool = False
    """`True` for middleware that asks people: an agent without a checkpointer then warns when it is built."""

    if not TYPE_CHECKING:  # for a type checker, a sync `wrap_tool_call` of a subclass overrides nothing
        wrap_tool_call = _HookOfLangChain()

    async def awrap_tool_call(self, request: ToolCallRequest, call_next: CallNext) -> Output:
        """Process one tool call: return the output of `call_next(request)`, or another output.

        `request.override(...)` makes a changed copy. `call_next` makes one attempt at the call, within all inner
        middleware, and may be called any number of times. Sync middleware has `wrap_tool_call` instead, which runs in a
        worker thread.
        """
        return await call_next(request)

    async def aerror_message(self, message: ToolMessage, request: ToolCallRequest) -> ToolMessage:
        """Return the message for an error that no middleware has handled: the given message, or a changed copy."""
        return message

    def check_tools(self, tools: Mapping[str, BaseTool]) -> None:
        """Check the middleware's options when the node is built; `tools` maps tool names to the node's tools.

        Raises ValueError for an invalid option.
        """

    def check_policies(self, policies: Mapping[str, CallPolicy]) -> None:
        """Check the policies of the node's tools when the node is built; `policies` maps tool names to policies."""

    def offers(self, tool: BaseTool) -> bool:
        """Return whether the model should see a tool now."""
        return True

    def covers(self, tool: BaseTool) -> bool:
        """Return whether this middleware can answer calls of a tool that inner middleware hides from the model."""
        return False

    def effect_on(self, tool: BaseTool, policy: CallPolicy) -> str:
        """Return in a few words what this middleware does with the calls of a tool, for `ToolNode.explain`."""
        return ""

    def rewrite_reply(self, reply: AIMessage, messages: Sequence[Any], tools: Mapping[str, BaseTool]) -> AIMessage:
        """Return the reply of an agent's model, or a changed copy, before any hook or call of the reply runs.

        `messages` is the conversation before the reply, and `tools` maps tool names to the node's tools.
        """
        return reply

    def redact_value(self, value: Any, *, thread_id: str = "") -> Any:
        """Return a call's arguments as observers may see them, with secrets removed.

        If this method fails, observers see no arguments.
        """
        return value


class RunningCall(Protocol):
    """Data about the present tool call, for use by middleware."""

    policy: CallPolicy
    """Policy of the tool that the model has called."""
    attempts: int
    """Number of attempts whose bodies have begun."""
    handled_error: BaseException | None
    """Error that was converted into the call's error message. Observers receive it."""
    do_not_cache: bool
    """`True` if the result is valid only once, such as the number of a call that continues in the background."""
    only_for_thread: bool
    """`True` if the result or error is valid only in this conversation, such as tokens that stand for its secrets."""

    def budget_is_spent(self) -> bool:
        """Return whether the call was cancelled because its time budget is used up."""
        ...


def running_call() -> RunningCall | None:
    """Return the tool call within which this code runs; `None` outside of a call."""
    return current_call()


def bind_to_thread() -> None:
    """Mark the results of the running call and of its enclosing calls as valid only in this conversation."""
    caller: Any = current_call()
    while caller is not None:
        if isinstance(caller, SupervisedCall):
            caller.only_for_thread = True
            caller = caller.outer
        else:
            caller = getattr(caller, "owner", None)  # an attempt of an enclosing call


def takes_only_arguments(tool: BaseTool) -> bool:
    """Return whether a tool takes no injected arguments: no state, store, runtime, config or call id.

    Args:
        tool: a LangChain tool.
    """
    plan = plan_for(tool)
    return plan.injected.none and plan.config_param is None


def has_valid_arguments(request: ToolCallRequest) -> bool:
    """Return whether the tool's schema accepts the arguments that the model has written.

    Args:
        request: the call, with its tool.
    """
    assert request.tool is not None
    try:
        return refusal(plan_for(request.tool), request.tool_call) is None
    except Exception:  # the error with which the call itself will fail
        return False


def is_answered(request: ToolCallRequest) -> bool:
    """Return whether a person has answered a question of this call, so that its result depends on the answer.

    Args:
        request: the call.
    """
    task = graph_task(request.runtime.config)
    return task is not None and bool(task.scratchpad.resume or task.resume_map)


HOOKS = ("aerror_message", "check_tools", "check_policies", "offers", "covers", "rewrite_reply", "redact_value")
"""Names of the optional methods of a middleware, besides its wrapper."""


def hook(middleware: object, name: str) -> Callable[..., Any] | None:
    """Return a method of a middleware; `None` if the method is missing, or is inherited from `Middleware`."""
    method = getattr(type(middleware), name, None)
    # A function that was set on the instance counts, too: a redaction that is passed over would show the arguments.
    if (
        method is not None
        and method is getattr(Middleware, name, None)
        and name not in getattr(middleware, "__dict__", {})
    ):
        return None
    bound_method = getattr(middleware, name, None)
    return bound_method if callable(bound_method) else None


def tools_of(middleware: Sequence[object]) -> list[Any]:
    """Return the tools that middleware adds to a node by an attribute `tools`, as LangChain's middleware does."""
    return [tool for item in middleware for tool in getattr(item, "tools", None) or ()]


def check_tools(middleware: Iterable[object], tools: Mapping[str, BaseTool]) -> None:
    """Let each middleware check its options, such as tool names, against the tools of the node."""
    for item in middleware:
        # A LangGraph wrapper may be a bound method: then its object is the middleware.
        owner: Any = getattr(item, "__self__", item)
        if check := hook(owner, "check_tools"):
            check(tools)
        elif names := tools_to_approve(owner):
            check_tool_names(f"{type(owner).__name__}(interrupt_on=...)", names, tools)


def check_policies(middleware: Iterable[object], policies: Mapping[str, CallPolicy]) -> None:
    """Let each middleware check `policies`, the call policies of the node's tools by tool name."""
    for item in middleware:
        if check := hook(item, "check_policies"):
            check(policies)


def offers_of(middleware: Sequence[object]) -> Callable[[Any], bool] | None:
    """Return a function that tells whether the model may be offered a tool now; `None` if no middleware decides it."""
    hooks = [(hook(item, "covers"), hook(item, "offers")) for item in middleware]
    deciding_hooks = [pair for pair in hooks if any(pair)]

    def may_offer(tool: Any) -> bool:
        # From the outermost to the innermost; the first one that decides wins.
        for covers, offers in deciding_hooks:
            if covers is not None and covers(tool):
                return True
            if offers is not None and not offers(tool):
                return False
        return True

    return may_offer if deciding_hooks else None


def rewriting_of(
    middleware: Sequence[object], tools: Mapping[str, BaseTool]
) -> Callable[[AIMessage, Sequence[Any]], AIMessage] | None:
    """Return a function that lets each middleware change a reply of a model; `None` if no middleware does."""
    rewrites = [rewrite for item in middleware if (rewrite := hook(item, "rewrite_reply"))]

    def rewrite_reply(reply: AIMessage, messages: Sequence[Any]) -> AIMessage:
        for rewrite in rewrites:
            reply = rewrite(reply, messages, tools)
        return reply

    return rewrite_reply if rewrites else None


def redaction_of(middleware: Sequence[object]) -> Callable[[ToolCallLike, RunInfo | None], ToolCallLike]:
    """Return a function that returns a copy of a call for observers, with arguments redacted by the middleware."""
    has_reported = False
    redactions = [redact for item in middleware if (redact := hook(item, "redact_value"))]

    def redact_call(call: ToolCallLike, run: RunInfo | None) -> ToolCallLike:
        nonlocal has_reported
        if not redactions:
            return call
        thread_id = (run and run.thread_id) or ""
        args = call["args"]
        try:
            for redact in redactions:
                args = redact(args, thread_id=thread_id)
        except Exception as error:
            # Fail closed: arguments that could not be redacted must not reach spans or logs.
            args = {}
            if not has_reported:
                has_reported = True  # without the text of the error, which may quote what was to be redacted
                kind = type(error).__qualname__
                _log.error("redact_value failed with %s; observers see no arguments; this is reported once", kind)
        return {**call, "args": args}

    return redact_call


# Order


_ORDER_OF_LANGCHAIN = {
    "ToolRetryMiddleware": Order(
        "retry",
        not_around={
            "approval": "the question comes after a body has run, and the answer runs that body again",
            "retry": "their attempts multiply",
        },
    ),
    "HumanInTheLoopMiddleware": Order("approval"),
}
"""Rules for the position of LangChain's middleware, by class name: these classes cannot declare the rules
themselves."""


def warn_of_wrong_order(middleware: Sequence[object]) -> None:
    """Warn once for each pair of middleware whose order is wrong by the rules of one of the two."""
    ordered: list[tuple[str, Order]] = []
    for item in middleware:
        class_names = (cls.__name__ for cls in type(item).__mro__)
        orders_of_langchain = (_ORDER_OF_LANGCHAIN[name] for name in class_names if name in _ORDER_OF_LANGCHAIN)
        order = getattr(item, "order", None) or next(orders_of_langchain, None)
        if isinstance(order, Order):
            ordered.append((middleware_name(item), order))
    for position, (outer, order) in enumerate(ordered):
        for inner, inner_order in ordered[position + 1 :]:
            if reason := order.not_around.get(inner_order.kind) or inner_order.not_inside.get(order.kind):
                if inner_order.kind == order.kind:
                    sentence = f"There are two of the kind {order.kind}: {reason}. Keep one."
                else:
                    sentence = (
                        f"The middleware {outer} is outside of {inner}: {reason}. "
                        f"Put {inner} before {outer} in middleware=[...]."
                    )
                warn_user(sentence, MiddlewareOrderWarning)


def middleware_name(middleware: object) -> str:
    """Return the name of a middleware for error texts."""
    name = getattr(middleware, "__qualname__", None)
    return name if isinstance(name, str) else type(middleware).__qualname__
