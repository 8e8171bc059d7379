"""`Fallback`: another tool, a value or a function answers for a tool that failed."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import cast

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool

from callboard._calls._call import note
from callboard._loops._deadline import remaining
from callboard.middleware._alternatives import Alternative, Failure, OtherTool, alternatives, signed
from callboard.middleware._retry import When, check_on_message, check_when, matches
from callboard.tools._call_output import CallNext, Output
from callboard.tools._errors import is_control_flow
from callboard.tools._tool_names import Missing, check_missing, check_tool_names
from callboard.tools._vocabulary import ToolCallRequest, ToolInvocationError


class Fallback:
    """Lets something else answer when a tool fails.

    The alternatives of a tool are tried in order until one has an answer. If none has, the first failure
    stands, with the other errors in its notes. An interrupt, a cancellation and invalid arguments are no
    failures. No alternative is started when the call has no time left.

    An alternative is another tool of the node, by name; a tool that the model is not told of; a `Value`; or a
    function `(request, failure)`, where the failure is an error or the message that `on_message` names. The
    function returns what a tool may return: a text, anything, a ToolMessage. It may be async; a sync one runs
    in a worker thread.

    Another tool gets the same arguments and is held to its own policy and limits. If it answers with an error
    message, about its arguments perhaps, it has failed too. Whoever answers, the message has the id and the
    name of the call that the model made, as some providers match by name, and tells who it was:
    `additional_kwargs["callboard"]["fallback"]`. Observers are told of `fallback` and `fallback_failed`.

    Args:
        instead_of: by tool name, one alternative or a list of them.
        on: which errors are failures: exception types, or a function that says so.
        on_message: says of a message that it stands for a failure; by default none does.
        missing: what a name in `instead_of` is that no tool of the node has: an "error", or one to "ignore".

    Raises:
        TypeError: for what is no alternative.
        ValueError: for an empty list, or a tool as its own alternative. A node raises it if a tool that is
            named is not one of its own.
    """

    def __init__(
        self,
        instead_of: Mapping[str, Alternative | Sequence[Alternative]],
        *,
        on: When = Exception,
        on_message: Callable[[ToolMessage], bool] | None = None,
        missing: Missing = "error",
    ) -> None:
        check_missing("Fallback", missing)
        check_when("Fallback(on=...)", on)
        check_on_message("Fallback(on_message=...)", on_message)
        if not isinstance(instead_of, Mapping):
            raise TypeError(
                f"Fallback takes alternatives by tool name, such as {{'search': 'cached_search'}}; got {instead_of!r}"
            )
        self._alternatives = {name: alternatives(name, given) for name, given in instead_of.items()}
        self._on = on
        self._on_message = on_message
        self._missing: Missing = missing

    def check_tools(self, tools: Collection[str]) -> None:
        """Raise ValueError if a tool that was given by name, on either side, is not among these."""
        check_tool_names("Fallback", self._alternatives, tools, self._missing)
        for name in self._alternatives.keys() & tools:
            for other in self._alternatives[name]:
                if isinstance(other, OtherTool):
                    other.check(name, tools)

    def covers(self, tool: BaseTool) -> bool:
        """Whether something answers for a tool that a middleware inside holds back."""
        return tool.name in self._alternatives

    async def awrap_tool_call(self, request: ToolCallRequest, call_next: CallNext) -> Output:
        """Run the call, and if it fails what stands in for it."""
        others = self._alternatives.get(request.tool_call["name"])
        if others is None:
            return await call_next(request)
        for other in others:
            if isinstance(other, OtherTool):
                other.found(request)  # a slip in a name should not wait for the first failure
        try:
            output = await call_next(request)
        except Exception as error:
            if not self._is_failure(error):
                raise
            instead = await self._instead(request, call_next, error)
            if instead is None:
                raise
            return instead
        if not self._stands_for_failure(output):
            return output
        return await self._instead(request, call_next, cast("ToolMessage", output)) or output

    async def _instead(self, request: ToolCallRequest, call_next: CallNext, failure: Failure) -> Output | None:
        """The output of the first alternative that has one."""
        for other in self._alternatives[request.tool_call["name"]]:
            if remaining() <= 0:
                break
            note("fallback", to=other.name, error=_kind(failure))
            try:
                output = await other.answer(request, call_next, failure)
            except Exception as error:
                if is_control_flow(error):
                    raise
                self._failed_too(other.name, failure, error)
            else:
                if not isinstance(other, OtherTool) or self._is_answer(output):
                    return signed(output, request.tool_call, other.name)
                self._failed_too(other.name, failure, cast("ToolMessage", output))
        return None

    def _failed_too(self, name: str, failure: Failure, another: Failure) -> None:
        note("fallback_failed", to=name, error=_kind(another))
        if isinstance(failure, Exception):
            what = repr(another) if isinstance(another, Exception) else "it answered with an error message"
            failure.add_note(f"The fallback {name!r} failed too: {what}")

    def _is_failure(self, error: Exception) -> bool:
        if is_control_flow(error) or isinstance(error, ToolInvocationError):
            return False
        return matches(self._on, error)

    def _stands_for_failure(self, output: Output) -> bool:
        return self._on_message is not None and isinstance(output, ToolMessage) and self._on_message(output)

    def _is_answer(self, output: Output) -> bool:
        is_error = isinstance(output, ToolMessage) and output.status == "error"
        return not is_error and not self._stands_for_failure(output)


def _kind(failure: Failure) -> str:
    return type(failure).__name__ if isinstance(failure, Exception) else "error message"
