"""`Agent`: the public door to the loop of model and tools."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import Any, Self, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import StateGraph
from langgraph.types import StateSnapshot, StateUpdate

from callboard._calls._under_way import PATIENCE
from callboard._drained import Drained
from callboard._langgraph import run_config
from callboard._langgraph._node_scope import checkpointer_in, for_all_visits
from callboard._loops._bridge import pulled, run_from_sync
from callboard._loops._door import entered
from callboard.agent._conversation._database import close
from callboard.agent._conversation._journal import SavedThread
from callboard.agent._conversation._snapshots import history_of, snapshot_of, update
from callboard.agent._doors import Doors
from callboard.agent._graph import HasGraph
from callboard.agent._runner import Runner, opened, saver_for
from callboard.agent._stops import Stops
from callboard.tools._node import ToolNode
from callboard.tools._workings import Workings


class Agent(Doors, HasGraph):  # type: ignore[misc]  # pyright: ignore[reportIncompatibleMethodOverride]
    """A model and its tools, in a loop; made by `create_react_agent`.

    A turn is a model reply, or the batch of calls in it; each counts as one step of the run's
    `recursion_limit`.
    """

    def __init__(
        self,
        runner: Runner,
        builder: "StateGraph[Any, Any, Any, Any]",
        *,
        checkpointer: "BaseCheckpointSaver[Any] | bool | None",
        stops: Stops,
        budget: float | None,
        stored_types: frozenset[type] = frozenset(),
    ) -> None:
        super().__init__(builder, runner, checkpointer)
        self.stored_types = stored_types
        """What a database by URL may contain beside the types of LangGraph and of LangChain's messages."""
        self._stops = stops
        self._budget = budget

    def __repr__(self) -> str:
        return f"Agent(name={self.name!r}, tools={self.tools!r})"

    async def drain(self, timeout: float = PATIENCE) -> Drained:
        """Begin no run any more, and let those that go on finish; returns what became of them.

        A run that is ended raises a `DrainingError` where it was started. Its thread is kept, and goes on with `None`,
        here or elsewhere; a call that was begun and is not idempotent is handled there as its policy's `on_unknown`
        says. If the caller is cancelled, what runs is ended at once. `async with agent` opens it again.

        Args:
            timeout: seconds for them to finish; those that have not are cancelled, and have their grace.

        Raises:
            ValueError: for a number out of range.
        """
        return await self._runner.under_way.drain(timeout)

    async def aclose(self, timeout: float = PATIENCE) -> None:
        """Wait for the runs, as `drain` does, and close the databases that were opened for the agent's URLs.

        Used again, it opens them again; unless it was drained, it begins runs again.

        Args:
            timeout: seconds for runs to finish.
        """
        await self._ended(timeout)

    def close(self, timeout: float = PATIENCE) -> None:
        """`aclose`, for sync code."""
        run_from_sync(partial(self.aclose, timeout))

    async def __aenter__(self) -> Self:
        """Have the actors among the tools live until the block is left; that waits for runs and closes databases."""
        await Workings(self.tools).actors.open()
        self._runner.under_way.reopen()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._ended(PATIENCE, Workings(self.tools).actors.close)

    async def _ended(self, timeout: float, *before: Callable[[], Awaitable[object]]) -> None:
        """Wait for the runs, and close what is the agent's: its databases last."""
        runs = self._runner.under_way
        async with AsyncExitStack() as stack:
            stack.enter_context(runs.paused())
            stack.push_async_callback(close, self.checkpointer, self._runner.store)
            for one in before:
                stack.push_async_callback(one)
            await runs.drain(timeout)

    @property
    def tools(self) -> ToolNode:
        """The node that runs its calls."""
        return self._runner.plan.tools

    async def aget_state(self, config: RunnableConfig, *, subgraphs: bool = False) -> StateSnapshot:
        """The state of a thread: its values, what comes next, and which questions are open.

        Args:
            config: names the thread, and a `checkpoint_id` for where it stood once.
            subgraphs: accepted for LangGraph's sake.

        Raises:
            ValueError: if there is no checkpointer, no thread is named, or it has no such checkpoint.
        """
        past = "checkpoint_id" in config.get("configurable", {})
        return snapshot_of(await self._saved(config, looks=past), by_call=self._by_call, past=past)

    async def aget_state_history(
        self,
        config: RunnableConfig,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[StateSnapshot]:
        """Every place where a thread has been, the latest first; any of them is a place to go on from.

        Args:
            config: names the thread.
            filter: on the metadata, as in `{"source": "input"}`.
            before: only places before the `checkpoint_id` in it.
            limit: how many at most.

        Raises:
            ValueError: see `aget_state`.
        """
        until = None if before is None else before["configurable"]["checkpoint_id"]
        thread = await self._saved(config)
        places = history_of(thread, filter=filter, before=until, limit=limit, by_call=self._by_call)
        async with aclosing(places):
            async for place in places:
                yield place

    async def aupdate_state(
        self, config: RunnableConfig, values: Any, as_node: str | None = None, task_id: str | None = None
    ) -> RunnableConfig:
        """Change the state of a thread from outside.

        Args:
            config: names the thread, and a `checkpoint_id` for a fork of where it stood once.
            values: as a node's output.
            as_node: the node that the change is taken for, so that what follows it comes next; `__end__`
                for none. By default the one that ran last.
            task_id: accepted for LangGraph's sake.

        Returns:
            The config of the changed thread.

        Raises:
            InvalidUpdateError: if there is no such node, or `values` are no update.
            ValueError: see `aget_state`.
        """
        return await update(await self._saved(config), self._runner.plan.flow, values, as_node)

    async def abulk_update_state(
        self, config: RunnableConfig, updates: Sequence[Sequence[StateUpdate]]
    ) -> RunnableConfig:
        """Several updates of a thread, one after the other.

        Args:
            config: see `aupdate_state`.
            updates: each with values and a node.

        Raises:
            ValueError: if there are none; see `aupdate_state`.
        """
        if not any(updates):
            raise ValueError("No supersteps provided" if not updates else "No updates provided")
        for one in (one for together in updates for one in together):
            config = await self.aupdate_state(config, one.values, one.as_node)
        return config

    def get_state(self, config: RunnableConfig, *, subgraphs: bool = False) -> StateSnapshot:
        """`aget_state`, for sync code."""
        return run_from_sync(partial(Agent.aget_state, self._from_sync(), config, subgraphs=subgraphs))

    def get_state_history(self, config: RunnableConfig, **kwargs: Any) -> Iterator[StateSnapshot]:
        """`aget_state_history`, for sync code."""
        return pulled(Agent.aget_state_history(self._from_sync(), config, **kwargs))

    def update_state(
        self, config: RunnableConfig, values: Any, as_node: str | None = None, task_id: str | None = None
    ) -> RunnableConfig:
        """`aupdate_state`, for sync code."""
        return run_from_sync(partial(Agent.aupdate_state, self._from_sync(), config, values, as_node))

    def bulk_update_state(self, config: RunnableConfig, updates: Sequence[Sequence[StateUpdate]]) -> RunnableConfig:
        """`abulk_update_state`, for sync code."""
        return run_from_sync(partial(Agent.abulk_update_state, self._from_sync(), config, updates))

    @property
    def _by_call(self) -> bool:
        return self._runner.plan.version == "v2"

    async def _saved(self, config: RunnableConfig, *, looks: bool = False) -> SavedThread:
        config = run_config(self.config, config)
        if self.checkpointer is True:
            config = for_all_visits(config)
        if (saver := saver_for(checkpointer_in(config) or self.checkpointer, config, None)) is None:
            raise ValueError("No checkpointer set")
        with entered(self._door):
            return cast("SavedThread", await opened(self._runner.plan, saver, config, None, "async", looks=looks))
