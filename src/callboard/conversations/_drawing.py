"""LangGraph graph of the agent, used for its drawing, schemas and rules, and never run."""

from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import pairwise
from typing import Any, cast

from langchain_core.messages import AnyMessage
from langchain_core.runnables import Runnable, RunnableConfig, RunnablePassthrough
from langchain_core.runnables.graph import Graph
from langgraph.graph import StateGraph
from langgraph.pregel.protocol import PregelProtocol
from pydantic import BaseModel, create_model

from callboard.conversations._flow import AFTER, AGENT, BEFORE, END, RESPONSE, TOOLS, Flow

Builder = StateGraph[Any, Any, Any, Any]


_ANY_TOOLS: Runnable[Any, Any] = RunnablePassthrough()
"""Stands for the tools node in the drawing of an agent whose tools are unknown."""


def _drawn_only(state: Any) -> Any:
    """Stand for a node in the drawing; `_run` runs the real one. A function, because readers of graphs expect one."""
    return state


class Drawn(PregelProtocol[Any, Any, Any, Any]):
    """Introspection of an agent: nodes, drawing and schemas.

    Args:
        builder: see `drawing`.
        name: name of the agent.
    """

    def __init__(self, builder: Builder, name: str) -> None:
        self._drawing = builder
        self.name = name

    @property
    def nodes(self) -> dict[str, Any]:
        """The nodes by name, as in LangGraph."""
        return dict(self._drawn().nodes)

    def get_graph(self, config: RunnableConfig | None = None, *, xray: int | bool = False) -> Graph:
        """Return the drawing of nodes and edges, equal to that of LangGraph's agent."""
        return cast("Graph", self._drawn().get_graph(config, xray=xray))

    async def aget_graph(self, config: RunnableConfig | None = None, *, xray: int | bool = False) -> Graph:
        """Do the same as `get_graph`, from async code."""
        return self.get_graph(config, xray=xray)

    @property
    def InputType(self) -> Any:  # noqa: N802 (LangChain's name)
        """Type of the input, for LangChain."""
        return self._drawn().InputType

    @property
    def OutputType(self) -> Any:  # noqa: N802 (LangChain's name)
        """Type of the output, for LangChain."""
        return self._drawn().OutputType

    def get_input_schema(self, config: RunnableConfig | None = None) -> type[BaseModel]:
        """Return the schema of the input as a pydantic model."""
        return cast("type[BaseModel]", self._drawn().get_input_schema(config))

    def get_output_schema(self, config: RunnableConfig | None = None) -> type[BaseModel]:
        """Return the schema of the output as a pydantic model."""
        return cast("type[BaseModel]", self._drawn().get_output_schema(config))

    def get_subgraphs(self, *, namespace: str | None = None, recurse: bool = False) -> Iterator[tuple[str, Any]]:
        """Yield the hooks that are graphs, with the names of their nodes."""
        return cast("Iterator[tuple[str, Any]]", self._drawn().get_subgraphs(namespace=namespace, recurse=recurse))

    async def aget_subgraphs(
        self, *, namespace: str | None = None, recurse: bool = False
    ) -> AsyncIterator[tuple[str, Any]]:
        """Do the same as `get_subgraphs`, from async code."""
        for one in self.get_subgraphs(namespace=namespace, recurse=recurse):
            yield one

    def get_input_jsonschema(self, config: RunnableConfig | None = None) -> dict[str, Any]:
        """Return the JSON schema of the input."""
        return cast("dict[str, Any]", self._drawn().get_input_jsonschema(config))

    def get_output_jsonschema(self, config: RunnableConfig | None = None) -> dict[str, Any]:
        """Return the JSON schema of the output."""
        return cast("dict[str, Any]", self._drawn().get_output_jsonschema(config))

    def config_schema(self, *, include: Sequence[str] | None = None) -> type[BaseModel]:
        """Return the schema of the config; deprecated in LangGraph in favour of `get_context_jsonschema`."""
        return cast("type[BaseModel]", self._drawn().config_schema(include=include))

    def get_config_jsonschema(self, *, include: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the JSON schema of the config; deprecated in LangGraph, too."""
        return cast("dict[str, Any]", self._drawn().get_config_jsonschema(include=include))

    def get_context_jsonschema(self) -> dict[str, Any] | None:
        """Return the JSON schema of the context; `None` if the agent has none."""
        return cast("dict[str, Any] | None", self._drawn().get_context_jsonschema())

    def _drawn(self) -> Any:
        return self._drawing.compile(name=self.name)


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
