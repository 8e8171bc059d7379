"""Short constructor of a tool call."""

from typing import cast

from langchain_core.messages import ToolCall


def tool_call(name: str, call_id: str | None = None, /, **args: object) -> ToolCall:
    """Return a tool call for `ToolNode.ainvoke`: `tool_call("search", "call_1", query="tea")`.

    LangChain's `ToolCall(name=..., args=..., id=..., type="tool_call")` returns the same dict.

    Args:
        name: name of the tool.
        call_id: id of the call, as in its result; it differs from the ids of the other calls of a batch. A call for
            `callboard.testing.ScriptedModel` needs none.
        args: arguments of the call.

    Raises:
        TypeError: for a name or an id that is no text.
    """
    if not isinstance(cast("object", name), str):
        raise TypeError(f"tool_call(...) takes the name of a tool, got {name!r}")
    if not isinstance(cast("object", call_id), str | None):
        remedy = "arguments are keywords, such as tool_call('search', query='tea')"
        raise TypeError(f"tool_call({name!r}, ...) takes the id of the call, got {call_id!r}; {remedy}")
    return ToolCall(name=name, args=dict(args), id=call_id, type="tool_call")
