"""The agent as LangGraph would build it: for its drawing, its schemas and its rules, never to be run."""

from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import pairwise
from typing import Any, cast

from langchain_core.messages import AnyMessage
from langchain_core.runnables import Runnable, RunnableConfig, RunnablePassthrough
from langchain_core.runnables.graph import Graph
from langgraph.graph import StateGraph
from langgraph.pregel.protocol import PregelProtocol
from pydantic import BaseModel, create_model

from callboard.agent._flow import AFTER, AGENT, BEFORE, END, RESPONSE, TOOLS, Flow

Builder = StateGraph[Any, Any, Any, Any]


_ANY_TOOLS: Runnable[Any, Any] = RunnablePassthrough()
"""For the drawing of an agent of which nobody knows the tools."""


def _drawn_only(state: Any) -> Any:
    """Stand for a node that `_run` runs; a function, because those who look at nodes look for one."""
    return state


class Drawn(PregelProtocol[Any, Any, Any, Any]):
    """What can be asked of an agent without running it.

    Args:
        builder: see `drawing`.
        name: of the agent.
    """

    def __init__(self, builder: Builder, name: str) -> None:
        self._drawing = builder
        self.name = name

    @property
    def nodes(self) -> dict[str, Any]:
        """The nodes, by name, as LangGraph lists them."""
        return dict(self._drawn().nodes)

    def get_graph(self, config: RunnableConfig | None = None, *, xray: int | bool = False) -> Graph:
        """The drawing of nodes and edges, equal to that of LangGraph's agent."""
        return cast("Graph", self._drawn().get_graph(config, xray=xray))

    async def aget_graph(self, config: RunnableConfig | None = None, *, xray: int | bool = False) -> Graph:
        """`get_graph`, for async code."""
        return self.get_graph(config, xray=xray)

    @property
    def InputType(self) -> Any:  # noqa: N802 (LangChain's name)
        """The type of the input, as LangChain asks for it."""
        return self._drawn().InputType

    @property
    def OutputType(self) -> Any:  # noqa: N802 (LangChain's name)
        """The type of the output, as LangChain asks for it."""
        return self._drawn().OutputType

    def get_input_schema(self, config: RunnableConfig | None = None) -> type[BaseModel]:
        """The input as a pydantic model."""
        return cast("type[BaseModel]", self._drawn().get_input_schema(config))

    def get_output_schema(self, config: RunnableConfig | None = None) -> type[BaseModel]:
        """The output as a pydantic model."""
        return cast("type[BaseModel]", self._drawn().get_output_schema(config))

    def get_subgraphs(self, *, namespace: str | None = None, recurse: bool = False) -> Iterator[tuple[str, Any]]:
        """The graphs among the hooks, by node."""
        return cast("Iterator[tuple[str, Any]]", self._drawn().get_subgraphs(namespace=namespace, recurse=recurse))

    async def aget_subgraphs(
        self, *, namespace: str | None = None, recurse: bool = False
    ) -> AsyncIterator[tuple[str, Any]]:
        """`get_subgraphs`, for async code."""
        for one in self.get_subgraphs(namespace=namespace, recurse=recurse):
            yield one

    def get_input_jsonschema(self, config: RunnableConfig | None = None) -> dict[str, Any]:
        """The JSON schema of the input."""
        return cast("dict[str, Any]", self._drawn().get_input_jsonschema(config))

    def get_output_jsonschema(self, config: RunnableConfig | None = None) -> dict[str, Any]:
        """The JSON schema of the output."""
        return cast("dict[str, Any]", self._drawn().get_output_jsonschema(config))

    def config_schema(self, *, include: Sequence[str] | None = None) -> type[BaseModel]:
        """The schema of the config, as of a graph; LangGraph has deprecated it for `get_context_jsonschema`."""
        return cast("type[BaseModel]", self._drawn().config_schema(include=include))

    def get_config_jsonschema(self, *, include: Sequence[str] | None = None) -> dict[str, Any]:
        """The schema of the config in JSON; deprecated, as LangGraph's is."""
        return cast("dict[str, Any]", self._drawn().get_config_jsonschema(include=include))

    def get_context_jsonschema(self) -> dict[str, Any] | None:
        """The JSON schema of the context; `None` if the agent has none."""
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
    """An agent's nodes and edges.

    Args:
        flow: which there are.
        schema: of the state.
        context_schema: of the context.
        hooks: by node name.
        tools: the node that runs them; the drawing names those.
    """
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
    """Stand for an edge that `_flow` decides on."""
    return END


def _with_model_input(schema: type[Any]) -> type[Any]:
    """The schema with `llm_input_messages`, which a hook may write for the model alone."""
    if issubclass(schema, BaseModel):
        return create_model("CallModelInputSchema", llm_input_messages=(list[AnyMessage] | None, None), __base__=schema)
    return cast(
        "type[Any]",
        type("CallModelInputSchema", (schema,), {"__annotations__": {"llm_input_messages": list[AnyMessage]}}),
    )
