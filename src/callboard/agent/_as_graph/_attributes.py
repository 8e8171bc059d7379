"""Attributes of an agent that can be read and set as on LangGraph's graphs."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self, cast

from langchain_core.runnables import RunnableConfig
from langgraph.store.base import BaseStore
from langgraph.types import RetryPolicy

from callboard._langgraph import merged_configs
from callboard.agent._runner import Runner
from callboard.conversations._connect import saver_of, store_of
from callboard.conversations._drawing import Builder, Drawn

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
        # A new runner, because runs in progress use the old one. Both share `under_way`, so `drain` covers all runs.
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
