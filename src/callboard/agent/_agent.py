"""`Agent`: the public interface of the loop of model replies and tool calls."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import Any, Self, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import StateGraph
from langgraph.types import StateSnapshot, StateUpdate

from callboard._calls._draining import PATIENCE
from callboard._langgraph import run_config
from callboard._langgraph._node_scope import checkpointer_in, for_all_visits
from callboard._loops._bridge import pulled, run_from_sync
from callboard._loops._entry_mode import entered_from
from callboard._records._reports import Drained
from callboard.agent._as_graph._graph import HasGraph
from callboard.agent._breakpoints import Breakpoints
from callboard.agent._entry_points import EntryPoints
from callboard.agent._runner import Runner, opened, saver_for
from callboard.conversations._database import close
from callboard.conversations._journal import SavedThread
from callboard.conversations._snapshots import history_of, snapshot_of, update
from callboard.tools._node import NodeAccess, ToolNode


class Agent(EntryPoints, HasGraph):  # type: ignore[misc]  # pyright: ignore[reportIncompatibleMethodOverride]
    """Loop of model replies and tool calls; made by `create_react_agent`.

    A turn is one model reply, or the batch of calls in a reply. Each turn counts as one step of the run's
    `recursion_limit`.
    """

    def __init__(
        self,
        runner: Runner,
        builder: "StateGraph[Any, Any, Any, Any]",
        *,
        checkpointer: "BaseCheckpointSaver[Any] | bool | None",
        stops: Breakpoints,
        budget: float | None,
        stored_types: frozenset[type] = frozenset(),
    ) -> None:
        super().__init__(builder, runner, checkpointer)
        self.stored_types = stored_types
        """Types that a database by URL may contain besides those of LangGraph and of LangChain's messages."""
        self._stops = stops
        self._budget = budget

    def __repr__(self) -> str:
        return f"Agent(name={self.name!r}, tools={self.tools!r})"

    async def drain(self, timeout: float = PATIENCE) -> Drained:
        """Refuse new runs, wait for the current ones, and return how they ended.

        A run that is ended raises `DrainingError` where it was started. Its thread is kept and can be resumed with
        input `None`, in this process or another. A call that had begun and is not idempotent is then handled by its
        policy's `on_unknown`. If the task that calls `drain()` is cancelled, the current runs are ended at once. To
        begin runs again, enter the agent with `async with`.

        Args:
            timeout: seconds to wait. Runs that have not finished by then are cancelled, and get their grace for
                clean-up.

        Raises:
            ValueError: if `timeout` is out of range.
        """
        return await self._runner.in_flight.drain(timeout)

    async def aclose(self, timeout: float = PATIENCE) -> None:
        """Wait for the current runs, as `drain` does, and close the databases that were opened for the agent's URLs.

        A closed agent can be used again, and then opens its databases again. A drained agent stays drained.

        Args:
            timeout: seconds to wait for runs.
        """
        await self._ended(timeout)

    def close(self, timeout: float = PATIENCE) -> None:
        """Do the same as `aclose`, from sync code."""
        run_from_sync(partial(self.aclose, timeout))

    async def __aenter__(self) -> Self:
        """Start the actors among the tools; leaving the block waits for runs, stops the actors and closes databases."""
        await NodeAccess(self.tools).actors.open()
        self._runner.in_flight.reopen()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._ended(PATIENCE, NodeAccess(self.tools).actors.close)

    async def _ended(self, timeout: float, *before: Callable[[], Awaitable[object]]) -> None:
        """Wait for the runs, do `before`, and close the agent's databases."""
        runs = self._runner.in_flight
        async with AsyncExitStack() as stack:
            # Left in reverse order: runs end, actors stop, and databases close last, since both write to them. `paused`
            # ends after that, so no run begins meanwhile.
            stack.enter_context(runs.paused())
            stack.push_async_callback(close, self.checkpointer, self._runner.store)
            for one in before:
                stack.push_async_callback(one)
            await runs.drain(timeout)

    @property
    def tools(self) -> ToolNode:
        """The node that runs the agent's calls."""
        return self._runner.plan.tools

    async def aget_state(self, config: RunnableConfig, *, subgraphs: bool = False) -> StateSnapshot:
        """Return the state of a thread: its values, its next tasks, and its open questions.

        Args:
            config: names the thread by `thread_id`; `checkpoint_id` selects an earlier position.
            subgraphs: accepted for compatibility with LangGraph, and ignored.

        Raises:
            ValueError: if there is no checkpointer, no `thread_id`, or no such checkpoint.
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
        """Yield every position of a thread, the latest first. A run can go on from any of them.

        Args:
            config: names the thread by `thread_id`.
            filter: required metadata, such as `{"source": "input"}`.
            before: config with a `checkpoint_id`; only earlier positions are returned.
            limit: largest number of positions.

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
        """Change the state of a thread from outside of a run.

        Args:
            config: names the thread by `thread_id`; with a `checkpoint_id`, a new branch starts at that position.
            values: the change, in the form of a node's output.
            as_node: node to attribute the change to; its successor runs next. `__end__`: nothing runs next. Default:
                the node that ran last.
            task_id: accepted for compatibility with LangGraph, and ignored.

        Returns:
            The config of the changed thread.

        Raises:
            ValueError: see `aget_state`.
            InvalidUpdateError: if the node does not exist, or the values cannot update the state.
            ThreadBusyError: if a run holds the thread; that run would overwrite the change.
        """
        return await update(await self._saved(config), self._runner.plan.flow, values, as_node)

    async def abulk_update_state(
        self, config: RunnableConfig, updates: Sequence[Sequence[StateUpdate]]
    ) -> RunnableConfig:
        """Apply several updates to a thread, one after the other; return the config of the changed thread.

        Args:
            config: see `aupdate_state`.
            updates: lists of updates, each with values and a node.

        Raises:
            ValueError: if there are no updates; see also `aupdate_state`.
        """
        if not any(updates):
            raise ValueError("No supersteps provided" if not updates else "No updates provided")
        for one in (one for together in updates for one in together):
            config = await self.aupdate_state(config, one.values, one.as_node)
        return config

    def get_state(self, config: RunnableConfig, *, subgraphs: bool = False) -> StateSnapshot:
        """Do the same as `aget_state`, from sync code."""
        return run_from_sync(partial(Agent.aget_state, self._from_sync(), config, subgraphs=subgraphs))

    def get_state_history(self, config: RunnableConfig, **kwargs: Any) -> Iterator[StateSnapshot]:
        """Do the same as `aget_state_history`, from sync code."""
        return pulled(Agent.aget_state_history(self._from_sync(), config, **kwargs))

    def update_state(
        self, config: RunnableConfig, values: Any, as_node: str | None = None, task_id: str | None = None
    ) -> RunnableConfig:
        """Do the same as `aupdate_state`, from sync code."""
        return run_from_sync(partial(Agent.aupdate_state, self._from_sync(), config, values, as_node))

    def bulk_update_state(self, config: RunnableConfig, updates: Sequence[Sequence[StateUpdate]]) -> RunnableConfig:
        """Do the same as `abulk_update_state`, from sync code."""
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
        with entered_from(self._door):
            return cast("SavedThread", await opened(self._runner.plan, saver, config, None, "async", looks=looks))
