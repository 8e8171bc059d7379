"""Agents as compiled LangGraph graphs: LangGraph's attributes, the graph for drawings, and `as_graph()`.

`as_graph()` serves code that checks `isinstance(x, Pregel)`. Its graph has the agent's nodes, edges and schemas, and
passes runs, reads and changes of a thread on to the agent.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from operator import attrgetter
from typing import Any, NoReturn, Self, cast

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.graph import Graph
from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel.protocol import PregelProtocol
from langgraph.store.base import BaseStore
from langgraph.types import RetryPolicy

from callboard._langgraph._outer_task import merged_configs
from callboard._langgraph._savers import reading_objects
from callboard.agent._run_context import Breakpoints, Nodes
from callboard.agent._runner import Runner
from callboard.conversations._database import saver_of, store_of
from callboard.tools._many_inputs import ManyInputs

Builder = StateGraph[Any, Any, Any, Any]

_BREAKPOINTS = ("interrupt_before_nodes", "interrupt_after_nodes")
_SETTABLE = ("name", "checkpointer", "store", "config", "debug", *_BREAKPOINTS)

_UNSUPPORTED = {
    "step_timeout": "give the agent a budget=, or its ToolNode a timeout=",
    "retry_policy": "give its ToolNode middleware=[Retry()]",
    "cache_policy": "give its ToolNode middleware=[Cache()]",
    "cache": "give its ToolNode middleware=[Cache()]",
}
"""Settings of LangGraph graphs that agents do not support, with the advice that their error messages give."""

_DISPLAY_ONLY = (
    *("input_channels", "output_channels", "stream_channels", "stream_channels_asis", "stream_channels_list"),
    *("stream_mode", "stream_eager", "trigger_to_nodes", "schema_to_mapper"),
)
"""Attributes of LangGraph graphs that an agent has for display only."""


class AgentBuilder(StateGraph[Any, Any, Any, Any]):
    """Read-only LangGraph builder with the nodes and edges of an agent.

    Its method `compile` returns the agent as a compiled graph. Methods that add nodes or edges raise TypeError.
    """

    def __init__(self, drawing: StateGraph[Any, Any, Any, Any], agent: Any) -> None:
        # Takes over a finished builder; `StateGraph.__init__` would start an empty one.
        vars(self).update(vars(drawing))
        self.agent = agent

    def compile(self, checkpointer: Any = None, **options: Any) -> "AgentGraph":
        """Return the agent as a compiled LangGraph graph; raise ValueError for an option that agents do not support."""
        store = store_of(options.pop("store", None))
        compiled = super().compile(saver_of(checkpointer), store=store, **options)
        return AgentGraph(agent=self.agent, **_attributes(compiled))

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(
            "The nodes and edges of an agent are its own: build a StateGraph of your own, with the agent as a node, or "
            "give the agent hooks: pre_model_hook and post_model_hook of create_react_agent, middleware of create_agent"
        )

    add_node = add_edge = add_conditional_edges = add_sequence = _refuse
    set_entry_point = set_conditional_entry_point = set_finish_point = set_node_defaults = _refuse


class AgentGraph(ManyInputs, CompiledStateGraph[Any, Any, Any, Any]):
    """Compiled LangGraph graph of an agent; it passes every run on to the agent.

    Runs use the checkpointer, the store and the breakpoints of this graph, not those of the agent.
    """

    def __init__(self, *, agent: Any, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.agent = agent
        self._check()

    def _check(self) -> None:
        for name, advice in _UNSUPPORTED.items():
            if getattr(self, name):
                raise ValueError(f"The graph of an agent has no {name}: {advice}; got {getattr(self, name)!r}")

    @property
    def _configured_agent(self) -> Any:
        self._check()
        return self.agent.set_up_as(self)

    def copy(self, update: dict[str, Any] | None = None) -> Self:
        return self.__class__(**{**_attributes(self), **(update or {})})

    def astream_events(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> Any:
        """Yield LangChain's events of a run; see `Agent.astream_events`.

        For version "v3", LangGraph's own implementation is used.
        """
        if options.get("version") == "v3":
            return super().astream_events(input, config, **options)
        return self._configured_agent.astream_events(input, config, **options)


def _method_calling(name: str, by: str = "_configured_agent") -> Callable[..., Any]:
    """Return a method with LangGraph's signature that calls the method `name` of the object in the attribute `by`."""

    @wraps(getattr(CompiledStateGraph, name))
    def method(self: Any, *args: Any, **options: Any) -> Any:
        return getattr(getattr(self, by), name)(*args, **options)

    return method


def _coroutine_calling(name: str) -> Callable[..., Any]:
    @wraps(getattr(CompiledStateGraph, name))
    async def method(self: Any, *args: Any, **options: Any) -> Any:
        return await getattr(self._configured_agent, name)(*args, **options)

    return method


# Methods of the agent, with LangGraph's signatures: type checkers read those in the base class.
for _name in ("ainvoke", "aget_state", "aupdate_state", "abulk_update_state"):
    setattr(AgentGraph, _name, _coroutine_calling(_name))
    setattr(AgentGraph, _name[1:], _method_calling(_name[1:]))
for _name in ("astream", "stream", "aget_state_history", "get_state_history"):
    setattr(AgentGraph, _name, _method_calling(_name))


class GraphLike(PregelProtocol[Any, Any, Any, Any]):
    """Base class of `Agent` with the attributes of a compiled LangGraph graph; it has no methods that run the agent."""

    cache: None = None
    """LangGraph's cache of node results, always `None`; `callboard.middleware.Cache` caches the results of calls."""
    cache_policy: None = None
    retry_policy: Sequence[RetryPolicy] = ()
    """LangGraph's retries of nodes, always empty; `callboard.middleware.Retry` retries calls."""
    step_timeout: None = None
    """LangGraph's limit for each step, always `None`; an agent has a `budget`, and its tools have timeouts."""

    def __init__(
        self, build_graph: Callable[[], Builder], runner: Runner, checkpointer: Any, breakpoints: Breakpoints
    ) -> None:
        self._build_graph = build_graph
        self._runner = runner
        self._breakpoints = breakpoints
        self.checkpointer = checkpointer
        self.config: RunnableConfig | None = None
        self.stream_transformers: Sequence[Any] = ()
        """LangGraph's transformers of the streams that `stream_events(version="v3")` returns."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _UNSUPPORTED and value:
            raise AttributeError(f"An agent has no {name}: {_UNSUPPORTED[name]}; got {value!r}")
        if name in _DISPLAY_ONLY:
            raise AttributeError(f"{name} of an agent cannot be set: give stream_mode= or output_keys= to its runs")
        super().__setattr__(name, value)

    @property
    def name(self) -> str:
        """Name of the agent; traces show the agent's runs under this name."""
        return self._runner.name

    @name.setter
    def name(self, name: str) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        # `Runnable` declares a plain attribute, so the check is suppressed: a property may be set here as well.
        # A new runner, because runs in progress use the old one. Both share `in_flight`, so `drain` covers all runs.
        self._runner = replace(self._runner, name=name)

    @property
    def store(self) -> BaseStore | None:
        """LangGraph store that tools, hooks and prompts can use, or `None`."""
        return self._runner.store

    @store.setter
    def store(self, store: BaseStore | str | None) -> None:
        self._runner = replace(self._runner, store=store_of(store))

    @property
    def debug(self) -> bool:
        """`True` if every run prints each step to stdout."""
        return self._runner.debug

    @debug.setter
    def debug(self, debug: bool) -> None:
        self._runner = replace(self._runner, debug=debug)

    @property
    def interrupt_before_nodes(self) -> Nodes:
        """Names of the nodes before which every run stops; `"*"` stands for all nodes."""
        return self._breakpoints.before

    @interrupt_before_nodes.setter
    def interrupt_before_nodes(self, nodes: Nodes) -> None:
        self._breakpoints = replace(self._breakpoints, before=nodes)

    @property
    def interrupt_after_nodes(self) -> Nodes:
        """Names of the nodes after which every run stops; `"*"` stands for all nodes."""
        return self._breakpoints.after

    @interrupt_after_nodes.setter
    def interrupt_after_nodes(self, nodes: Nodes) -> None:
        self._breakpoints = replace(self._breakpoints, after=nodes)

    @property
    def _drawing(self) -> Builder:
        # Made when somebody looks at it: runs do not need it, and it takes as long as the rest of an agent.
        return self._build_graph()

    @property
    def _compiled_drawing(self) -> Any:
        before, after = cast("Any", self._breakpoints.before), cast("Any", self._breakpoints.after)
        return self._drawing.compile(name=self.name, interrupt_before=before, interrupt_after=after)

    @property
    def context_schema(self) -> type[Any] | None:
        """Type of the `context` that runs are given, or `None`."""
        return self._runner.context_schema

    @property
    def channels(self) -> dict[str, Any]:
        """LangGraph channels of the agent's graph by name, including one for each state key."""
        return dict(self._compiled_drawing.channels)

    def copy(self, update: Mapping[str, Any] | None = None) -> Self:
        """Return a copy of the agent in which the given settings are replaced.

        The settings are `name`, `checkpointer`, `store`, `config`, `debug`, `interrupt_before_nodes` and
        `interrupt_after_nodes`; raises TypeError for any other key.
        """
        agent = copy.copy(self)
        for name, value in (update or {}).items():
            if name not in _SETTABLE:
                raise TypeError(f"Agent.copy() takes {', '.join(_SETTABLE)}; got {name!r}")
            setattr(agent, name, saver_of(value) if name == "checkpointer" else value)
        return agent

    def with_config(self, config: RunnableConfig | None = None, **kwargs: Any) -> Self:
        """Return a copy of the agent that uses `config` in every run, merged with the run's own config."""
        return self.copy({"config": merged_configs(self.config, config, cast("RunnableConfig", kwargs))})

    def validate(self) -> Self:
        """Return the agent unchanged: an agent with an invalid graph cannot be made."""
        return self

    def clear_cache(self, nodes: Sequence[str] | None = None) -> None:
        """Raise ValueError, as a LangGraph graph without a cache does: an agent caches no node results."""
        raise ValueError(
            "No cache is set for this graph. Cannot clear cache. The results of calls are cached by "
            "callboard.middleware.Cache."
        )

    async def aclear_cache(self, nodes: Sequence[str] | None = None) -> None:
        self.clear_cache(nodes)

    @property
    def nodes(self) -> dict[str, Any]:
        """Nodes of the agent's graph by name, for display; they cannot be run."""
        return dict(self._compiled_drawing.nodes)

    def get_graph(self, config: RunnableConfig | None = None, *, xray: int | bool = False) -> Graph:
        """Return the graph of nodes and edges for drawing, equal to the graph of LangGraph's agent."""
        return cast("Graph", self._compiled_drawing.get_graph(config, xray=xray))

    async def aget_graph(self, config: RunnableConfig | None = None, *, xray: int | bool = False) -> Graph:
        return self.get_graph(config, xray=xray)

    @property
    def InputType(self) -> Any:  # noqa: N802 (LangChain's name)
        """Type of a run's input; LangChain reads this property."""
        return self._compiled_drawing.InputType

    @property
    def OutputType(self) -> Any:  # noqa: N802 (LangChain's name)
        """Type of a run's output; LangChain reads this property."""
        return self._compiled_drawing.OutputType

    # Nested graphs, which can only be hooks, and the schema of the context are those of the drawing.
    get_subgraphs = _method_calling("get_subgraphs", "_compiled_drawing")
    aget_subgraphs = _method_calling("aget_subgraphs", "_compiled_drawing")
    get_context_jsonschema = _method_calling("get_context_jsonschema", "_compiled_drawing")

    @property
    def builder(self) -> AgentBuilder:
        """LangGraph builder with the nodes and edges of the agent, for code that compiles graphs itself."""
        return AgentBuilder(self._drawing, self)

    def as_graph(self) -> AgentGraph:
        """Return the agent as a compiled LangGraph graph, for code that checks `isinstance(x, Pregel)`.

        The graph starts with the checkpointer, store, name and config of the agent. They can be set on the graph, or
        changed in a copy of it, without effect on the agent.
        """
        graph = self.builder.compile(
            self.checkpointer,
            store=self.store,
            interrupt_before=self._breakpoints.before,
            interrupt_after=self._breakpoints.after,
            debug=self.debug,
            name=self.name,
            transformers=self.stream_transformers or None,
        )
        graph.config = self.config
        return graph

    def set_up_as(self, graph: AgentGraph) -> Self:
        """Return a copy of the agent with the settings of a compiled graph that `as_graph` has made."""
        agent = self.copy({name: getattr(graph, name) for name in _SETTABLE if name != "checkpointer"})
        agent.checkpointer = reading_objects(graph.checkpointer)
        return agent


# Schemas are those of the drawing.
for _name in (
    *("get_input_schema", "get_output_schema", "config_schema"),
    *("get_input_jsonschema", "get_output_jsonschema", "get_config_jsonschema"),
):
    setattr(GraphLike, _name, _method_calling(_name, "_compiled_drawing"))
for _name in _DISPLAY_ONLY:
    setattr(GraphLike, _name, property(attrgetter(f"_compiled_drawing.{_name}")))


def _attributes(graph: CompiledStateGraph[Any, Any, Any, Any]) -> dict[str, Any]:
    return {name: value for name, value in vars(graph).items() if name != "__orig_class__"}
