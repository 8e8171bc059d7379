"""What may answer for a tool that failed: another tool, a value, a function."""

import dataclasses
import inspect
from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeVar, cast

from langchain_core.messages import ToolCall, ToolMessage
from langchain_core.tools import BaseTool

from callboard._calls._crossing import SyncMiddleware
from callboard._suggestions import no_such
from callboard.tools._call_output import CallNext, Output, is_output, with_entries
from callboard.tools._chain import _is_async
from callboard.tools._vocabulary import ToolCallRequest, msg_content_output

T = TypeVar("T")

Failure = Exception | ToolMessage
"""Why an alternative is needed: an error, or a message that stands for one."""


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """Something that is the answer as it stands, for `Fallback`.

    Args:
        content: a text, content blocks, or anything else, which is written as JSON if it can be.
    """

    content: object


Alternative = str | BaseTool | Value | Callable[[ToolCallRequest, Any], object]
"""A tool of the node by its name, a tool that the model need not know, a value, or a function."""


@dataclasses.dataclass(frozen=True, slots=True)
class OtherTool:
    """Answers in the place of a tool that failed: another one, which gets the same arguments."""

    name: str
    tool: BaseTool | None = None
    """`None` for the node's tool of this name."""

    async def answer(self, request: ToolCallRequest, call_next: CallNext, failure: Failure) -> Output:
        call = cast("ToolCall", {**request.tool_call, "name": self.name})
        return await call_next(request.override(tool_call=call, tool=self.found(request)))

    def found(self, request: ToolCallRequest) -> BaseTool:
        """The tool that is called: ours, or that of the node.

        Raises:
            ValueError: if the node has none of this name.
        """
        if self.tool is not None:
            return self.tool
        tools = {tool.name: tool for tool in request.runtime.tools}
        self.check(request.tool_call["name"], tools)
        return tools[self.name]

    def check(self, instead_of: str, names: Collection[str]) -> None:
        """Raise ValueError if the tool should be the node's and is not among these."""
        if self.tool is None and self.name not in names:
            raise ValueError(
                f"Fallback({{{instead_of!r}: {self.name!r}}}): {no_such('tool', self.name, names)} "
                f"(to answer with a text, write Value({self.name!r}))"
            )


@dataclasses.dataclass(frozen=True, slots=True)
class Function:
    """A function of the request and the failure."""

    name: str
    fn: Callable[[ToolCallRequest, Failure], Awaitable[object]]

    async def answer(self, request: ToolCallRequest, call_next: CallNext, failure: Failure) -> Output:
        output = await self.fn(request, failure)
        if inspect.isawaitable(output):  # of a plain function around an async one
            output = await output
        if is_output(output):
            return cast("Output", output)
        content = cast("Any", msg_content_output(output))
        return ToolMessage(content=content, name=request.tool_call["name"], tool_call_id=request.tool_call["id"])


def alternatives(name: str, given: object) -> tuple[OtherTool | Function, ...]:
    """What may answer for the tool `name`, in order.

    Raises:
        TypeError: for what cannot.
        ValueError: for none at all, and for the tool itself.
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
    # In a tuple, because trio lets no thread return something to await, and a plain function may have one.
    in_thread: SyncMiddleware[tuple[object, ...], tuple[object]] = SyncMiddleware(lambda asked, _: (fn(*asked),))

    async def answer(*asked: object) -> object:
        return (await in_thread(asked, _constant((None,))))[0]

    return answer


def signed(output: Output, call: ToolCall, by: str) -> Output:
    """An output in the name of the call that the model made, and with a word about who answered."""

    def entry(given: Any) -> Any:
        if not isinstance(given, ToolMessage) or given.tool_call_id != call["id"]:
            return given
        about = {**given.additional_kwargs.get("callboard", {}), "fallback": by}
        more = {**given.additional_kwargs, "callboard": about}
        return given.model_copy(update={"name": call["name"], "additional_kwargs": more})

    return with_entries(output, entry)
