"""Alternatives of a failed tool for `Fallback`: another tool, a fixed value, or a function."""

import dataclasses
import inspect
from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeVar, cast

from langchain_core.messages import ToolCall, ToolMessage
from langchain_core.tools import BaseTool

from callboard._calls._sync_middleware import SyncMiddleware
from callboard._util._suggestions import no_such
from callboard.tools._call_output import CallNext, Output, is_output, with_entries
from callboard.tools._chain import _is_async
from callboard.tools._vocabulary import ToolCallRequest, msg_content_output

T = TypeVar("T")

Failure = Exception | ToolMessage
"""Reason why an alternative is needed: an error, or a message that counts as a failure."""


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """Fixed answer of a `Fallback`.

    Args:
        content: text or content blocks; any other value is written as JSON if possible, else as a string.
    """

    content: object


Alternative = str | BaseTool | Value | Callable[[ToolCallRequest, Any], object]
"""Name of a tool of the node, a tool that is hidden from the model, a fixed value, or a function."""


@dataclasses.dataclass(frozen=True, slots=True)
class OtherTool:
    """Alternative that calls another tool with the same arguments."""

    name: str
    tool: BaseTool | None = None
    """The tool itself, or `None` for the node's tool of this name."""

    async def answer(self, request: ToolCallRequest, call_next: CallNext, failure: Failure) -> Output:
        call = cast("ToolCall", {**request.tool_call, "name": self.name})
        return await call_next(request.override(tool_call=call, tool=self.found(request)))

    def found(self, request: ToolCallRequest) -> BaseTool:
        """Return the tool to call; raise `ValueError` if the node has no tool of this name."""
        if self.tool is not None:
            return self.tool
        tools = {tool.name: tool for tool in request.runtime.tools}
        self.check(request.tool_call["name"], tools)
        return tools[self.name]

    def check(self, instead_of: str, names: Collection[str]) -> None:
        """Raise `ValueError` if the alternative is a tool of the node and the node does not have it."""
        if self.tool is None and self.name not in names:
            raise ValueError(
                f"Fallback({{{instead_of!r}: {self.name!r}}}): {no_such('tool', self.name, names)} "
                f"(to answer with a text, write Value({self.name!r}))"
            )


@dataclasses.dataclass(frozen=True, slots=True)
class Function:
    """Alternative that calls a function with the request and the failure."""

    name: str
    fn: Callable[[ToolCallRequest, Failure], Awaitable[object]]

    async def answer(self, request: ToolCallRequest, call_next: CallNext, failure: Failure) -> Output:
        output = await self.fn(request, failure)
        if inspect.isawaitable(output):  # a plain function may wrap an async one and return its coroutine
            output = await output
        if is_output(output):
            return cast("Output", output)
        content = cast("Any", msg_content_output(output))
        return ToolMessage(content=content, name=request.tool_call["name"], tool_call_id=request.tool_call["id"])


def alternatives(name: str, given: object) -> tuple[OtherTool | Function, ...]:
    """Return the alternatives of the tool `name`, in the order in which they are tried.

    Raises:
        TypeError: if an alternative is of an unknown kind.
        ValueError: if there is no alternative, or if the tool is its own alternative.
    """
    several = given if isinstance(given, (list, tuple)) else [given]
    if not several:
        raise ValueError(f"Fallback({{{name!r}: []}}) has no alternative in it; leave {name!r} out")
    return tuple(_alternative(name, one) for one in several)


def _alternative(name: str, given: object) -> OtherTool | Function:
    if given == name:
        raise ValueError(f"Fallback({{{name!r}: {name!r}}}): a tool cannot stand in for itself; Retry runs it again")
    if isinstance(given, str):
        return OtherTool(given)
    if isinstance(given, BaseTool):
        return OtherTool(given.name, given)
    if isinstance(given, Value):
        return Function("value", _constant(given.content))
    if callable(given) and not isinstance(given, type):
        fn = cast("Any", given)
        return Function(getattr(fn, "__name__", type(fn).__name__), fn if _is_async(fn) else _in_thread(fn))
    raise TypeError(
        f"Fallback({{{name!r}: ...}}) takes the name of a tool, a tool, a Value or a function, got {given!r}; "
        f"to answer with that, write Value({given!r})"
    )


def _constant(value: T) -> Callable[..., Awaitable[T]]:
    async def answer(*_: object) -> T:
        return value

    return answer


def _in_thread(fn: Callable[..., object]) -> Callable[..., Awaitable[object]]:
    # The result travels in a tuple: trio refuses an awaitable as the result of a thread, and `fn` may return one.
    in_thread: SyncMiddleware[tuple[object, ...], tuple[object]] = SyncMiddleware(lambda asked, _: (fn(*asked),))

    async def answer(*asked: object) -> object:
        return (await in_thread(asked, _constant((None,))))[0]

    return answer


def signed(output: Output, call: ToolCall, by: str) -> Output:
    """Return the output with the name of the call that the model made, and with the alternative's name added."""

    def entry(given: Any) -> Any:
        # A `Command` may carry messages of other calls; only the message of this call is renamed.
        if not isinstance(given, ToolMessage) or given.tool_call_id != call["id"]:
            return given
        about = {**given.additional_kwargs.get("callboard", {}), "fallback": by}
        more = {**given.additional_kwargs, "callboard": about}
        return given.model_copy(update={"name": call["name"], "additional_kwargs": more})

    return with_entries(output, entry)
