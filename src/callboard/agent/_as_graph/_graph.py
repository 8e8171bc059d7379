"""Agent as a compiled LangGraph graph, for code that checks `isinstance(x, Pregel)`.

The graph has the agent's nodes, edges and schemas. Runs, reads and changes of a thread are passed on to the agent. The
agent itself has the attributes of LangGraph's graphs that code reads or sets.
"""

import copy
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, NoReturn, Protocol, Self, cast

from langchain_core.runnables import RunnableConfig
from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.store.base import BaseStore
from langgraph.types import RetryPolicy, StateSnapshot, StateUpdate

from callboard._langgraph import merged_configs
from callboard._langgraph._savers import reading_objects
from callboard.agent._breakpoints import Breakpoints
from callboard.agent._runner import Runner
from callboard.conversations._connect import saver_of, store_of
from callboard.conversations._drawing import Builder, Drawn
from callboard.tools._node import ManyInputs

_SETTABLE = ("name", "checkpointer", "store", "config", "debug")


class Attributes(Drawn):
    """Readable and settable attributes of an agent, with the names of a compiled LangGraph graph.

    Args:
        builder: see `Drawn`.
        runner: starts the runs.
        checkpointer: stores the threads.
    """

    cache: None = None
    """LangGraph's cache of nodes, which an agent does not have; `callboard.middleware.Cache` caches calls."""
    cache_policy: None = None
    retry_policy: Sequence[RetryPolicy] = ()
    """LangGraph's retries of nodes, which an agent does not have; `callboard.middleware.Retry` retries calls."""

    def __init__(self, builder: Builder, runner: Runner, checkpointer: Any) -> None:
        self._runner = runner
        super().__init__(builder, runner.name)
        self.checkpointer = checkpointer
        self.config: RunnableConfig | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("cache", "cache_policy", "retry_policy") and value:
            raise AttributeError(f"An agent has no {name} for its nodes; see callboard.middleware for Cache and Retry")
        super().__setattr__(name, value)

    @property
    def name(self) -> str:
        """Name of the agent's runs."""
        return self._runner.name

    @name.setter
    def name(self, name: str) -> None:
        # A new runner, because runs in progress use the old one. Both share `in_flight`, so `drain` covers all runs.
        self._runner = replace(self._runner, name=name)

    @property
    def store(self) -> BaseStore | None:
        """Store for tools, hooks and prompts."""
        return self._runner.store

    @store.setter
    def store(self, store: BaseStore | str | None) -> None:
        self._runner = replace(self._runner, store=store_of(store))

    @property
    def debug(self) -> bool:
        """`True` if each step is printed."""
        return self._runner.debug

    @debug.setter
    def debug(self, debug: bool) -> None:
        self._runner = replace(self._runner, debug=debug)

    @property
    def context_schema(self) -> type[Any] | None:
        """Schema of the runs' `context`."""
        return self._runner.context_schema

    @property
    def channels(self) -> dict[str, Any]:
        """Channels of the state's keys, as in LangGraph."""
        return dict(self._drawn().channels)

    def copy(self, update: Mapping[str, Any] | None = None) -> Self:
        """Return the agent with other attributes.

        Args:
            update: any of `name`, `checkpointer`, `store`, `config` and `debug`.

        Raises:
            TypeError: for any other attribute.
        """
        other = copy.copy(self)
        for name, value in (update or {}).items():
            if name not in _SETTABLE:
                raise TypeError(f"Agent.copy() takes {', '.join(_SETTABLE)}; got {name!r}")
            setattr(other, name, saver_of(value) if name == "checkpointer" else value)
        return other

    def with_config(self, config: RunnableConfig | None = None, **kwargs: Any) -> Self:
        """Return a copy of the agent with a config that every run starts from."""
        return self.copy({"config": merged_configs(self.config, config, cast("RunnableConfig", kwargs))})

    def validate(self) -> Self:
        """Return the agent unchanged: errors in its construction were raised when it was made."""
        return self

    def clear_cache(self, nodes: Sequence[str] | None = None) -> None:
        """Raise ValueError, like a LangGraph graph without a cache.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "No cache is set for this graph. Cannot clear cache. The results of calls are cached by "
            "callboard.middleware.Cache."
        )

    async def aclear_cache(self, nodes: Sequence[str] | None = None) -> None:
        """Do the same as `clear_cache`, from async code."""
        self.clear_cache(nodes)


_UNHEARD = {
    "step_timeout": "give the agent a budget=, or its ToolNode a timeout=",
    "retry_policy": "give its ToolNode middleware=[Retry()]",
    "cache_policy": "give its ToolNode middleware=[Cache()]",
    "cache": "give its ToolNode middleware=[Cache()]",
}
"""Settings of a LangGraph graph that an agent does not have, and their replacements."""


class Runs(Protocol):
    """Agent that can be configured like a graph."""

    def set_up_as(self, graph: "AgentGraph") -> Any: ...


class AgentBuilder(StateGraph[Any, Any, Any, Any]):
    """Read-only LangGraph builder with the nodes and edges of an agent; `compile` returns the agent as a graph.

    Args:
        drawing: drawing of the agent.
        agent: the agent that runs.
    """

    def __init__(self, drawing: StateGraph[Any, Any, Any, Any], agent: Runs) -> None:
        # Takes over a finished builder; `StateGraph.__init__` would start an empty one.
        vars(self).update(vars(drawing))
        self.agent = agent

    def compile(self, checkpointer: Any = None, **options: Any) -> "AgentGraph":
        """Return the agent as a compiled graph; see `StateGraph.compile`.

        Args:
            checkpointer: stores the threads: a LangGraph saver or a URL.
            options: LangGraph's options; `store` may be a URL.

        Raises:
            ValueError: for an option that an agent does not have.
        """
        store = store_of(options.pop("store", None))
        compiled = super().compile(saver_of(checkpointer), store=store, **options)
        return AgentGraph(agent=self.agent, **_attributes(compiled))

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(
            "The nodes and edges of an agent are its own: build a StateGraph of your own, with the agent as a node, or "
            "give create_react_agent a pre_model_hook or a post_model_hook"
        )

    add_node = add_edge = add_conditional_edges = add_sequence = _refuse
    set_entry_point = set_conditional_entry_point = set_finish_point = set_node_defaults = _refuse


class AgentGraph(ManyInputs, CompiledStateGraph[Any, Any, Any, Any]):
    """Compiled graph that runs an agent, with the checkpointer, store and stops of the graph.

    Args:
        agent: the agent that runs.
        attributes: attributes of the compiled graph.

    Raises:
        ValueError: for a setting that an agent does not have.
    """

    def __init__(self, *, agent: Runs, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.agent = agent
        self._check()

    def _check(self) -> None:
        for name, instead in _UNHEARD.items():
            if getattr(self, name):
                raise ValueError(f"The graph of an agent has no {name}: {instead}; got {getattr(self, name)!r}")

    @property
    def _set_up(self) -> Any:
        self._check()
        return self.agent.set_up_as(self)

    def copy(self, update: dict[str, Any] | None = None) -> Self:
        """Return a copy of the graph with other attributes."""
        return self.__class__(**{**_attributes(self), **(update or {})})

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> Any:
        """Run the agent with the graph's settings; see `Agent.ainvoke`."""
        return await self._set_up.ainvoke(input, config, **options)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> Any:
        """Run the agent with the graph's settings, from sync code; see `Agent.invoke`."""
        return self._set_up.invoke(input, config, **options)

    async def astream(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> AsyncGenerator[Any]:
        """See `Agent.astream`."""
        async with aclosing(self._set_up.astream(input, config, **options)) as chunks:
            async for chunk in chunks:
                yield chunk

    def stream(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> Iterator[Any]:
        """See `Agent.stream`."""
        return cast("Iterator[Any]", self._set_up.stream(input, config, **options))

    def astream_events(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> Any:
        """See `Agent.astream_events`; version "v3" is LangGraph's own."""
        if options.get("version") == "v3":
            return super().astream_events(input, config, **options)
        return self._set_up.astream_events(input, config, **options)

    async def aget_state(self, config: RunnableConfig, *, subgraphs: bool = False) -> StateSnapshot:
        """See `Agent.aget_state`."""
        return cast("StateSnapshot", await self._set_up.aget_state(config, subgraphs=subgraphs))

    def get_state(self, config: RunnableConfig, *, subgraphs: bool = False) -> StateSnapshot:
        """See `Agent.get_state`."""
        return cast("StateSnapshot", self._set_up.get_state(config, subgraphs=subgraphs))

    async def aget_state_history(self, config: RunnableConfig, **options: Any) -> AsyncIterator[StateSnapshot]:
        """See `Agent.aget_state_history`."""
        async with aclosing(self._set_up.aget_state_history(config, **options)) as places:
            async for place in places:
                yield place

    def get_state_history(self, config: RunnableConfig, **options: Any) -> Iterator[StateSnapshot]:
        """See `Agent.get_state_history`."""
        return cast("Iterator[StateSnapshot]", self._set_up.get_state_history(config, **options))

    async def aupdate_state(
        self, config: RunnableConfig, values: Any, as_node: str | None = None, task_id: str | None = None
    ) -> RunnableConfig:
        """See `Agent.aupdate_state`."""
        return cast("RunnableConfig", await self._set_up.aupdate_state(config, values, as_node, task_id))

    def update_state(
        self, config: RunnableConfig, values: Any, as_node: str | None = None, task_id: str | None = None
    ) -> RunnableConfig:
        """See `Agent.update_state`."""
        return cast("RunnableConfig", self._set_up.update_state(config, values, as_node, task_id))

    async def abulk_update_state(
        self, config: RunnableConfig, supersteps: Sequence[Sequence[StateUpdate]]
    ) -> RunnableConfig:
        """See `Agent.abulk_update_state`."""
        return cast("RunnableConfig", await self._set_up.abulk_update_state(config, supersteps))

    def bulk_update_state(self, config: RunnableConfig, supersteps: Sequence[Sequence[StateUpdate]]) -> RunnableConfig:
        """See `Agent.bulk_update_state`."""
        return cast("RunnableConfig", self._set_up.bulk_update_state(config, supersteps))


class HasGraph(Attributes):
    """Agent that can be used as a LangGraph graph."""

    _stops: Breakpoints

    @property
    def builder(self) -> AgentBuilder:
        """Nodes and edges of the agent, for code that compiles them itself."""
        return AgentBuilder(self._drawing, self)

    def as_graph(self) -> AgentGraph:
        """Return the agent as a compiled LangGraph graph, for code that checks `isinstance(x, Pregel)`.

        Its checkpointer, store, name and config are those of the agent until they are set, or changed in a copy.
        """
        graph = self.builder.compile(
            self.checkpointer,
            store=self.store,
            interrupt_before=cast("Any", self._stops.before),
            interrupt_after=cast("Any", self._stops.after),
            debug=self.debug,
            name=self.name,
        )
        graph.config = self.config
        return graph

    def set_up_as(self, graph: AgentGraph) -> Self:
        """Return the same agent with the settings of a graph; see `as_graph`."""
        other = self.copy({name: getattr(graph, name) for name in ("name", "store", "config", "debug")})
        other.checkpointer = reading_objects(graph.checkpointer)
        other._stops = Breakpoints(before=graph.interrupt_before_nodes, after=graph.interrupt_after_nodes)
        return other


def _attributes(graph: CompiledStateGraph[Any, Any, Any, Any]) -> dict[str, Any]:
    return {name: value for name, value in vars(graph).items() if name != "__orig_class__"}
