"""Agents for LangGraph's own server, which loads this file by its path."""

import warnings
from typing import Any

import langgraph.prebuilt
from langchain_core.messages import AIMessage, BaseMessage
from langgraph.types import interrupt
from typing_extensions import TypedDict

import callboard
from callboard import tool_call
from callboard.testing import ScriptedModel, calls

warnings.simplefilter("ignore", DeprecationWarning)  # LangGraph's own function is deprecated


class Context(TypedDict, total=False):
    """Context of the runs."""

    user: str


async def look(query: str) -> str:
    """Look something up."""
    return f"found {query}"


async def ask(query: str) -> str:
    """Ask somebody."""
    return f"{query}: {interrupt(query)}"


def _reply(messages: list[BaseMessage]) -> AIMessage:
    """Compute the model's reply from the conversation alone, because runs of several threads share the model."""
    if messages[-1].type == "human":
        tool_names = str(messages[-1].content).split()
        return calls(*(tool_call(name, f"call-{number}", query=f"{name}?") for number, name in enumerate(tool_names)))
    return AIMessage("Tea is ready.")


def _model() -> Any:
    return ScriptedModel([_reply], loop=True)


clerk = callboard.create_react_agent(_model(), [look, ask], context_schema=Context)
ours = clerk.as_graph()
built = clerk.builder
theirs = langgraph.prebuilt.create_react_agent(_model(), [look, ask], context_schema=Context)
