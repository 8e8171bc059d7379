"""Names that callboard shares with `langgraph.prebuilt`.

They are LangGraph's own objects, not copies. Tools, handlers and middleware written for LangGraph recognise them, and
`isinstance` gives the same result in both packages.
"""

from langgraph.prebuilt import ToolCallTransformer
from langgraph.prebuilt.tool_node import (
    INVALID_TOOL_NAME_ERROR_TEMPLATE,
    TOOL_CALL_ERROR_TEMPLATE,
    TOOL_EXECUTION_ERROR_TEMPLATE,
    TOOL_INVOCATION_ERROR_TEMPLATE,
    AsyncToolCallWrapper,
    InjectedState,
    InjectedStore,
    ToolCallRequest,
    ToolCallWithContext,
    ToolCallWrapper,
    ToolInvocationError,
    ToolRuntime,
    msg_content_output,
)

__all__ = [
    "INVALID_TOOL_NAME_ERROR_TEMPLATE",
    "TOOL_CALL_ERROR_TEMPLATE",
    "TOOL_EXECUTION_ERROR_TEMPLATE",
    "TOOL_INVOCATION_ERROR_TEMPLATE",
    "AsyncToolCallWrapper",
    "InjectedState",
    "InjectedStore",
    "ToolCallRequest",
    "ToolCallTransformer",
    "ToolCallWithContext",
    "ToolCallWrapper",
    "ToolInvocationError",
    "ToolRuntime",
    "msg_content_output",
]
