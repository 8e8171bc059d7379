"""The two namespaces that a scenario can use."""

import importlib
import os
from types import SimpleNamespace
from typing import Any

NAMES = {
    "langgraph.prebuilt": "ToolCallTransformer",
    "langgraph.prebuilt.tool_node": """
        ToolNode tools_condition InjectedState InjectedStore ToolRuntime
        ToolCallRequest ToolCallWithContext ToolInvocationError msg_content_output
        TOOL_CALL_ERROR_TEMPLATE INVALID_TOOL_NAME_ERROR_TEMPLATE
        TOOL_EXECUTION_ERROR_TEMPLATE TOOL_INVOCATION_ERROR_TEMPLATE
    """,
    "langgraph.prebuilt.tool_validator": "ValidationNode",
    "langgraph.prebuilt.chat_agent_executor": """
        create_react_agent AgentState AgentStatePydantic
        AgentStateWithStructuredResponse AgentStateWithStructuredResponsePydantic
    """,
    "langgraph.prebuilt.interrupt": "HumanInterrupt HumanInterruptConfig HumanResponse ActionRequest",
}

ALL_NAMES = [name for names in NAMES.values() for name in names.split()]


def reference() -> Any:
    """Return langgraph.prebuilt, from the modules that define the names, and LangChain's `create_agent`."""
    prebuilt = {
        name: getattr(importlib.import_module(module), name)
        for module, names in NAMES.items()
        for name in names.split()
    }
    from langchain.agents import create_agent

    return SimpleNamespace(side="langgraph", create_agent=create_agent, **prebuilt)


def candidate() -> Any:
    """Return callboard; or LangGraph, to check the tests themselves, with CALLBOARD_PARITY=reference."""
    if os.environ.get("CALLBOARD_PARITY") == "reference":
        return reference()
    callboard = importlib.import_module("callboard")
    prebuilt = {name: getattr(callboard, name) for name in ALL_NAMES}
    return SimpleNamespace(side="callboard", create_agent=callboard.create_agent, **prebuilt)
