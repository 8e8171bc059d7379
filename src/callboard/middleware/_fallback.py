"""`Fallback`: answer with another tool, a value or a function when a tool fails."""

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
    """Answers with an alternative when a tool fails.

    The alternatives of a tool are tried in order until one has an answer. If none has, the first failure stands, and
    the other errors are added to its notes. Interrupts, cancellations and invalid arguments are not failures. No
    alternative is started when the call's time is used up.

    An alternative is another tool of the node, by name; a tool object that the model does not know; a `Value`; or a
    function `(request, failure)`. The failure is an error, or a message that `on_message` selects. The function may
    return anything that a tool may return. It may be async; a sync function runs in a worker thread.

    Another tool gets the same arguments, under its own policy and limits. If it answers with an error message, it has
    failed, too. The answer always carries the id and the name of the original call, because some providers match by
    name. The alternative's name is in `additional_kwargs["callboard"]["fallback"]`. Observers receive the events
    `fallback` and `fallback_failed`.

    Args:
        instead_of: for each tool name, one alternative or a list of them.
        on: errors that count as failures: exception types, or a predicate of the error.
        on_message: predicate of a message that counts as a failure; by default no message does.
        missing: "error" to reject a name in `instead_of` that the node does not have, "ignore" to accept it.

    Raises:
        TypeError: if an alternative is of an unknown kind.
        ValueError: if a list is empty, or a tool is its own alternative. A node also raises it for names of tools
            that it does not have.
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
        """Raise `ValueError` if the node lacks a tool that is named here, as a key or as an alternative."""
        check_tool_names("Fallback", self._alternatives, tools, self._missing)
        for name in self._alternatives.keys() & tools:
            for other in self._alternatives[name]:
                if isinstance(other, OtherTool):
                    other.check(name, tools)

    def covers(self, tool: BaseTool) -> bool:
        """Return whether a tool has alternatives. If so, it is offered even while a `CircuitBreaker` refuses it."""
        return tool.name in self._alternatives

    async def awrap_tool_call(self, request: ToolCallRequest, call_next: CallNext) -> Output:
        """Run the call; if it fails, answer with the first alternative that succeeds."""
        others = self._alternatives.get(request.tool_call["name"])
        if others is None:
            return await call_next(request)
        for other in others:
            if isinstance(other, OtherTool):
                other.found(request)  # report an unknown tool name with the first call, not with the first failure
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
        """Return the output of the first alternative that succeeds, or `None`."""
        for other in self._alternatives[request.tool_call["name"]]:
            # Checked before each one: an alternative may use up the time of the next.
            if remaining() <= 0:
                break
            note("fallback", to=other.name, error=_kind(failure))
            try:
                output = await other.answer(request, call_next, failure)
            except Exception as error:
                if is_control_flow(error):
                    # An interrupt of an alternative must reach the graph; it is no failure.
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
