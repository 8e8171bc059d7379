"""`Agent`: the public door to the loop of model and tools."""

import copy
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import StateGraph
from langgraph.types import GraphOutput, StateSnapshot, StateUpdate

from callboard._bridge import run_from_sync
from callboard._door import Door, entered
from callboard._langgraph import run_config
from callboard._langgraph._place import checkpointer_in, for_all_visits, is_nested
from callboard._types import check_seconds
from callboard.agent._attributes import Attributes
from callboard.agent._channels import Schema
from callboard.agent._database import close
from callboard.agent._journal import Durability, SavedThread
from callboard.agent._run import Run, Stops
from callboard.agent._runner import Request, Runner, opened, saver_for
from callboard.agent._snapshots import history_of, snapshot_of, update
from callboard.agent._stream import MODES, as_part, chunks_of, shaped
from callboard.agent._telling import INTERRUPT, Keys
from callboard.tools._many import ManyInputs
from callboard.tools._node import ToolNode

T = TypeVar("T")
StreamModes = str | Sequence[str]
NodeNames = Sequence[str] | Literal["*"] | None


class Agent(ManyInputs, Attributes):
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
    ) -> None:
        super().__init__(builder, runner, checkpointer)
        self._door: Door = "async"
        self._stops = stops
        self._budget = budget

    def __repr__(self) -> str:
        return f"Agent(name={self.name!r}, tools={self.tools!r})"

    async def aclose(self) -> None:
        """Close the databases that were opened for the agent's URLs; used again, it opens them again."""
        await close(self.checkpointer, self._runner.store)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    @property
    def tools(self) -> ToolNode:
        """The node that runs its calls."""
        return self._runner.plan.tools

    async def ainvoke(
        self,
        input: Any,
        config: RunnableConfig | None = None,
        *,
        context: Any = None,
        stream_mode: StreamModes = "values",
        print_mode: StreamModes = (),
        output_keys: Keys | None = None,
        interrupt_before: NodeNames = None,
        interrupt_after: NodeNames = None,
        durability: Durability | None = None,
        budget: float | None = None,
        version: Literal["v1", "v2"] = "v1",
        **kwargs: Any,
    ) -> Any:
        """Run until the model has an answer, or somebody has to be asked.

        Args:
            input: a dict with `messages`, in any form that LangChain understands, and other keys of the
                state; a `Command`; or `None` to go on where the thread stands.
            config: a LangChain config; its `recursion_limit` bounds the steps, its `max_concurrency` the
                calls of a batch.
            context: for tools, hooks and prompts, as `runtime.context`.
            stream_mode: "values" for the last state; any other mode for a list of chunks.
            print_mode: modes whose chunks are printed besides.
            output_keys: which keys of the state to return; all by default.
            interrupt_before: nodes before which to stop, instead of the agent's own.
            interrupt_after: nodes after which to stop, instead of the agent's own.
            durability: when what happens is stored: before the run goes on ("sync"), meanwhile ("async", the
                default), or when the run stops ("exit").
            budget: seconds for the whole run, instead of the agent's own.
            version: "v2" for a `GraphOutput`, or a list of parts; see `astream`.
            kwargs: accepted and ignored, as by every node of a graph.

        Returns:
            The state. If calls wait for a person, their questions are under `__interrupt__`.

        Raises:
            GraphRecursionError: if the steps are used up.
            EmptyInputError: if the input has nothing for the state.
            RunDeadlineExceededError: if the budget was spent; calls in flight have got their messages, and the
                thread can go on.
            UnknownInterruptError: if an answer fits no open question.
            BaseException: the error of a call that nobody handles.
        """
        if stream_mode != "values":
            stream = self.astream(
                input, config, context=context, stream_mode=stream_mode, print_mode=print_mode,
                output_keys=output_keys, interrupt_before=interrupt_before, interrupt_after=interrupt_after,
                durability=durability, budget=budget, version=version, **kwargs,
            )  # fmt: skip
            async with aclosing(stream):
                return [chunk async for chunk in stream]
        stops = self._stops_for(interrupt_before, interrupt_after)
        request = self._request(input, config, context=context, stops=stops, durability=durability, budget=budget)
        request = self._printing(request, print_mode, output_keys)
        run = await self._runner.run(self.checkpointer, request, None)
        return _result(run, output_keys, version, self._runner.plan.schema)

    async def astream(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        input: Any,
        config: RunnableConfig | None = None,
        *,
        context: Any = None,
        stream_mode: StreamModes | None = None,
        print_mode: StreamModes = (),
        output_keys: Keys | None = None,
        interrupt_before: NodeNames = None,
        interrupt_after: NodeNames = None,
        durability: Durability | None = None,
        budget: float | None = None,
        subgraphs: bool = False,
        version: Literal["v1", "v2"] = "v1",
        **kwargs: Any,
    ) -> AsyncGenerator[Any]:
        """Run, and hand out what happens while it does.

        A reader that leaves early cancels the run, which has ended when `aclose()` returns.

        Args:
            input: see `ainvoke`.
            config: see `ainvoke`.
            context: see `ainvoke`.
            stream_mode: one of LangGraph's modes, or several; "updates" by default.
            print_mode: modes whose chunks are printed besides.
            output_keys: which keys of the state `values` and `updates` have; one alone stands without its name.
            interrupt_before: see `ainvoke`.
            interrupt_after: see `ainvoke`.
            durability: see `ainvoke`.
            budget: see `ainvoke`.
            subgraphs: hand out chunks of graphs that tools run too; every chunk then has its namespace.
            version: "v2" for every chunk as a part, `{"type": ..., "ns": ..., "data": ...}`.
            kwargs: accepted and ignored.

        Raises:
            ValueError: for a mode that there is not.
            BaseException: see `ainvoke`.
        """
        stops = self._stops_for(interrupt_before, interrupt_after)
        request = self._request(input, config, context=context, stops=stops, durability=durability, budget=budget)
        modes = stream_mode or ("values" if is_nested(request.config) else "updates")
        wanted = _checked_modes(modes)
        request = self._printing(replace(request, modes=wanted, subgraphs=subgraphs), print_mode, output_keys)
        shape = self._runner.plan.schema.shaped
        # Not a bare `async for`: left early, it would leave the run to the garbage collector.
        async with aclosing(chunks_of(partial(self._runner.run, self.checkpointer, request))) as chunks:
            async for chunk in chunks:
                if chunk[1] in wanted:
                    yield as_part(chunk, shape) if version == "v2" else shaped(chunk, modes, subgraphs=subgraphs)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """`ainvoke` for sync code, also in the thread of a running event loop, which waits.

        What has both a sync and an async half (models, tools, hooks, links, checkpointers) runs its sync one, in a
        worker thread.
        """
        return run_from_sync(partial(Agent.ainvoke, self._from_sync(), input, config, **kwargs))

    def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        """`astream` for sync code."""
        return _pulled(Agent.astream(self._from_sync(), input, config, **kwargs))

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
        return _pulled(Agent.aget_state_history(self._from_sync(), config, **kwargs))

    def update_state(
        self, config: RunnableConfig, values: Any, as_node: str | None = None, task_id: str | None = None
    ) -> RunnableConfig:
        """`aupdate_state`, for sync code."""
        return run_from_sync(partial(Agent.aupdate_state, self._from_sync(), config, values, as_node))

    def bulk_update_state(self, config: RunnableConfig, updates: Sequence[Sequence[StateUpdate]]) -> RunnableConfig:
        """`abulk_update_state`, for sync code."""
        return run_from_sync(partial(Agent.abulk_update_state, self._from_sync(), config, updates))

    def _from_sync(self) -> "Agent":
        """The same agent, entered from sync code."""
        entered = copy.copy(self)
        entered._door = "sync"
        return entered

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

    def _request(
        self,
        input: Any,
        config: RunnableConfig | None,
        *,
        context: Any,
        stops: Stops,
        durability: Durability | None,
        budget: float | None,
    ) -> Request:
        check_seconds("budget", budget, zero=False)
        return Request(
            input=input,
            config=run_config(self.config, config),
            context=context,
            stops=stops,
            durability=durability,
            budget=self._budget if budget is None else budget,
            door=self._door,
        )

    def _printing(self, request: Request, print_mode: StreamModes, output_keys: Keys | None) -> Request:
        keys = () if output_keys is None else [output_keys] if isinstance(output_keys, str) else output_keys
        if unknown := [key for key in keys if key not in self._runner.plan.schema.specs]:
            raise ValueError(f"The state has no key {', '.join(map(repr, unknown))}; see output_keys={output_keys!r}")
        prints = frozenset(("updates", "values")) if self._runner.debug else _checked_modes(print_mode)
        return replace(request, modes=request.modes | prints, prints=prints, output_keys=output_keys)

    def _stops_for(self, before: NodeNames, after: NodeNames) -> Stops:
        return Stops(before=before or self._stops.before, after=after or self._stops.after)


def _pulled(items: AsyncIterator[T]) -> Iterator[T]:
    """An async generator for sync code; left early, it is closed."""
    try:
        while (item := run_from_sync(partial(_next, items))) is not _END:
            yield cast("T", item)
    finally:
        run_from_sync(cast("Any", items).aclose)


async def _next(items: AsyncIterator[object]) -> object:
    return await anext(items, _END)


_END = object()


def _result(run: Run, output_keys: Keys | None, version: str, schema: Schema) -> Any:
    values: Any = run.values()
    if isinstance(output_keys, str):
        values = values.get(output_keys)
    elif output_keys is not None:
        values = {key: values[key] for key in output_keys if key in values}
    if version == "v2":
        values = schema.shaped(values) if output_keys is None else values
        return GraphOutput(value=values, interrupts=tuple(run.interrupts))
    if run.interrupts:
        return {**(values if isinstance(values, dict) else {}), INTERRUPT: run.interrupts}
    return values


def _checked_modes(modes: StreamModes) -> frozenset[str]:
    wanted = frozenset([modes] if isinstance(modes, str) else modes)
    if unknown := wanted - MODES:
        raise ValueError(f"There is no stream mode {', '.join(map(repr, sorted(unknown)))}, only {sorted(MODES)}")
    return wanted
