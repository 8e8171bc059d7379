"""LangGraph graph of the agent, used for its drawing, schemas and rules, and never run."""

from itertools import pairwise
from typing import Any, cast

from langchain_core.messages import AnyMessage
from langchain_core.runnables import Runnable, RunnablePassthrough
from langgraph.graph import StateGraph
from pydantic import BaseModel, create_model

from callboard.conversations._flow import AFTER, AGENT, BEFORE, END, RESPONSE, TOOLS, Flow

Builder = StateGraph[Any, Any, Any, Any]


_ANY_TOOLS: Runnable[Any, Any] = RunnablePassthrough()
"""Stands for the tools node in the drawing of an agent whose tools are unknown."""


def _drawn_only(state: Any) -> Any:
    """Stand for a node in the drawing; `_run` runs the real one. A function, because readers of graphs expect one."""
    return state


def drawing(
    flow: Flow,
    schema: type[Any],
    context_schema: type[Any] | None,
    hooks: dict[str, Any],
    tools: Runnable[Any, Any] = _ANY_TOOLS,
) -> Builder:
    """Return a LangGraph builder with the nodes and edges of an agent; the drawing lists the tools of `tools`."""
    builder: Builder = StateGraph(schema, context_schema=context_schema)
    builder.add_node(AGENT, _drawn_only, input_schema=_with_model_input(schema) if flow.before else schema)
    if flow.tools:
        builder.add_node(TOOLS, tools, input_schema=schema)
    for name, hook in hooks.items():
        if hook is not None:
            builder.add_node(name, hook)
    if flow.response:
        builder.add_node(RESPONSE, _drawn_only, input_schema=schema)
    builder.set_entry_point(flow.entry)
    _draw_edges(builder, flow)
    return builder


def _draw_edges(builder: Builder, flow: Flow) -> None:
    if flow.before:
        builder.add_edge(BEFORE, AGENT)
    end = RESPONSE if flow.response else END
    if not flow.tools:
        path = [AGENT, *([AFTER] if flow.after else []), *([RESPONSE] if flow.response else [])]
        for start, following in pairwise(path):
            builder.add_edge(start, following)
        return
    if flow.after:
        builder.add_edge(AGENT, AFTER)
        builder.add_conditional_edges(AFTER, _route, path_map=[flow.entry, TOOLS, end])
    else:
        builder.add_conditional_edges(AGENT, _route, path_map=[TOOLS, end])
    if flow.direct:
        builder.add_conditional_edges(TOOLS, _route, path_map=[flow.entry, END])
    else:
        builder.add_edge(TOOLS, flow.entry)


def _route(_: Any) -> str:
    """Stand for a conditional edge in the drawing; `Flow` decides the real one."""
    return END


def _with_model_input(schema: type[Any]) -> type[Any]:
    """Return the schema with `llm_input_messages`, which a hook may write for the model alone."""
    if issubclass(schema, BaseModel):
        return create_model("CallModelInputSchema", llm_input_messages=(list[AnyMessage] | None, None), __base__=schema)
    return cast(
        "type[Any]",
        type("CallModelInputSchema", (schema,), {"__annotations__": {"llm_input_messages": list[AnyMessage]}}),
    )
