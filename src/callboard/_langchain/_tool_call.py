"""Short constructor of a tool call."""

from langchain_core.messages import ToolCall


def tool_call(name: str, call_id: str | None = None, /, **args: object) -> ToolCall:
    """Return a tool call for `ToolNode.ainvoke`: `tool_call("search", "call_1", query="tea")`.

    LangChain's `ToolCall(name=..., args=..., id=..., type="tool_call")` returns the same dict.

    Args:
        name: name of the tool.
        call_id: id of the call, as in its result; it differs from the ids of the other calls of a batch. A call for
            `callboard.testing.ScriptedModel` needs none.
        args: arguments of the call.
    """
    return ToolCall(name=name, args=dict(args), id=call_id, type="tool_call")
