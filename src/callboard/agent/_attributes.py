"""The attributes of an agent that can be read and set as those of LangGraph's graphs."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self, cast

from langchain_core.runnables import RunnableConfig
from langgraph.store.base import BaseStore
from langgraph.types import RetryPolicy

from callboard._langgraph import merged_configs
from callboard.agent._conversation._connect import saver_of, store_of
from callboard.agent._drawing import Builder, Drawn
from callboard.agent._runner import Runner

_SETTABLE = ("name", "checkpointer", "store", "config", "debug")


class Attributes(Drawn):
    """What of an agent is read and set as on a graph that LangGraph has compiled.

    Args:
        builder: see `Drawn`.
        runner: of its runs.
        checkpointer: keeps its threads.
    """

    cache: None = None
    """LangGraph's cache of nodes; see `callboard.middleware.Cache` for one of calls."""
    cache_policy: None = None
    retry_policy: Sequence[RetryPolicy] = ()
    """LangGraph's, for nodes; see `callboard.middleware.Retry` for calls."""

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
        """The name that its runs have."""
        return self._runner.name

    @name.setter
    def name(self, name: str) -> None:
        self._runner = replace(self._runner, name=name)

    @property
    def store(self) -> BaseStore | None:
        """What tools, hooks and prompts are given as the store."""
        return self._runner.store

    @store.setter
    def store(self, store: BaseStore | str | None) -> None:
        self._runner = replace(self._runner, store=store_of(store))

    @property
    def debug(self) -> bool:
        """Whether each step is printed."""
        return self._runner.debug

    @debug.setter
    def debug(self, debug: bool) -> None:
        self._runner = replace(self._runner, debug=debug)

    @property
    def context_schema(self) -> type[Any] | None:
        """The schema of what runs are given as `context`."""
        return self._runner.context_schema

    @property
    def channels(self) -> dict[str, Any]:
        """The keys of the state and how they are kept, as LangGraph lists them."""
        return dict(self._drawn().channels)

    def copy(self, update: Mapping[str, Any] | None = None) -> Self:
        """The same agent, with other attributes.

        Args:
            update: any of `name`, `checkpointer`, `store`, `config` and `debug`.

        Raises:
            TypeError: for another attribute.
        """
        other = copy.copy(self)
        for name, value in (update or {}).items():
            if name not in _SETTABLE:
                raise TypeError(f"Agent.copy() takes {', '.join(_SETTABLE)}; got {name!r}")
            setattr(other, name, saver_of(value) if name == "checkpointer" else value)
        return other

    def with_config(self, config: RunnableConfig | None = None, **kwargs: Any) -> Self:
        """A copy of the agent, with a config that every run starts from."""
        return self.copy({"config": merged_configs(self.config, config, cast("RunnableConfig", kwargs))})

    def validate(self) -> Self:
        """Return the agent as it is: what is wrong with one is an error where it is made."""
        return self

    def clear_cache(self, nodes: Sequence[str] | None = None) -> None:
        """Raise, as a graph of LangGraph's that has no cache.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "No cache is set for this graph. Cannot clear cache. The results of calls are cached by "
            "callboard.middleware.Cache."
        )

    async def aclear_cache(self, nodes: Sequence[str] | None = None) -> None:
        """`clear_cache`, for async code."""
        self.clear_cache(nodes)
