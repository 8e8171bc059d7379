"""Names that callboard shares with `langgraph.prebuilt`, and functions that make the `CallContext` of a call.

The imported names are LangGraph's own objects, not copies. Tools, handlers and middleware written for LangGraph
recognise them, and `isinstance` gives the same result in both packages.
"""

from collections.abc import Mapping
from typing import Any, Literal, cast

from langgraph.prebuilt import ToolCallTransformer as ToolCallTransformer
from langgraph.prebuilt.tool_node import INVALID_TOOL_NAME_ERROR_TEMPLATE as INVALID_TOOL_NAME_ERROR_TEMPLATE
from langgraph.prebuilt.tool_node import TOOL_CALL_ERROR_TEMPLATE as TOOL_CALL_ERROR_TEMPLATE
from langgraph.prebuilt.tool_node import TOOL_EXECUTION_ERROR_TEMPLATE as TOOL_EXECUTION_ERROR_TEMPLATE
from langgraph.prebuilt.tool_node import TOOL_INVOCATION_ERROR_TEMPLATE as TOOL_INVOCATION_ERROR_TEMPLATE
from langgraph.prebuilt.tool_node import AsyncToolCallWrapper as AsyncToolCallWrapper
from langgraph.prebuilt.tool_node import InjectedState as InjectedState
from langgraph.prebuilt.tool_node import InjectedStore as InjectedStore
from langgraph.prebuilt.tool_node import ToolCallRequest as ToolCallRequest
from langgraph.prebuilt.tool_node import ToolCallWithContext as ToolCallWithContext
from langgraph.prebuilt.tool_node import ToolCallWrapper as ToolCallWrapper
from langgraph.prebuilt.tool_node import ToolInvocationError as ToolInvocationError
from langgraph.prebuilt.tool_node import ToolRuntime as ToolRuntime
from langgraph.prebuilt.tool_node import msg_content_output as msg_content_output
from typing_extensions import TypedDict

from callboard._records._policies import CallContext

# Request and answer formats for a tool that asks a person; LangGraph's agent inbox uses the same.


class HumanInterruptConfig(TypedDict):
    """Kinds of answers that a `HumanInterrupt` allows."""

    allow_ignore: bool
    """True if the person may skip the step."""
    allow_respond: bool
    """True if the person may answer with text instead of the action."""
    allow_edit: bool
    """True if the person may change the action or its arguments."""
    allow_accept: bool
    """True if the person may accept the action as it is."""


class ActionRequest(TypedDict):
    """Action that waits for a person's answer."""

    action: str
    """Name of the action, such as a tool's name."""
    args: dict[str, Any]
    """Arguments of the action."""


class HumanInterrupt(TypedDict):
    """Question to a person: the argument of `interrupt()`, usually as the only element of a list."""

    action_request: ActionRequest
    config: HumanInterruptConfig
    description: str | None
    """Information for the person who answers."""


class HumanResponse(TypedDict):
    """Answer of a person to a `HumanInterrupt`."""

    type: Literal["accept", "ignore", "response", "edit"]
    args: str | ActionRequest | None
    """`None` to accept or ignore, a text for a response, the changed request for an edit."""


# Context of a call for key functions: config, state and context of the run.


def context_of(request: ToolCallRequest) -> CallContext:
    """Return the `CallContext` of a request, as key functions get it; it contains changes by middleware."""
    runtime = request.runtime
    return call_context(runtime.config, runtime.state, runtime.context)


def call_context(config: object, state: object, context: object) -> CallContext:
    """Return the `CallContext` of a call, as key functions get it; its state is `None` if `state` is an empty dict."""
    return CallContext(
        cast("Mapping[str, Any]", config), None if isinstance(state, dict) and not state else state, context
    )
