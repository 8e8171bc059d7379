"""`Agent`: the public door to the loop of model and tools."""

import copy
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import StateGraph
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore
from langgraph.types import GraphOutput, StateSnapshot, StateUpdate

from callboard._bridge import run_from_sync
from callboard._langgraph import run_config, runtime_of
from callboard._langgraph._place import writer_of_run
from callboard.agent._drawing import Drawn
from callboard.agent._input import take_in
from callboard.agent._journal import Durability, SavedThread
from callboard.agent._run import INTERRUPT, Plan, Run, Stops
from callboard.agent._saver import Saver
from callboard.agent._snapshots import history_of, snapshot_of, update
from callboard.agent._stream import MODES, Chunk, Emit, Emitter, chunks_of, emit_nothing, handlers_for, printed, shaped
from callboard.agent._thread import Thread
from callboard.agent._trace import traced
from callboard.tools._node import ToolNode

T = TypeVar("T")
StreamModes = str | Sequence[str]
NodeNames = Sequence[str] | Literal["*"] | None
Put = Callable[[Chunk], None]


class Agent(Drawn):
    """A model and its tools, in a loop; made by `create_react_agent`.

    A turn is a model reply, or the batch of calls in it; each counts as one step of the run's
    `recursion_limit`.
    """

    def __init__(
        self,
        plan: Plan,
        builder: "StateGraph[Any, Any, Any, Any]",
        *,
        name: str,
        checkpointer: "BaseCheckpointSaver[Any] | None",
        store: BaseStore | None,
        stops: Stops,
        context_schema: type[Any] | None,
        debug: bool,
    ) -> None:
        self.name = name
        self.builder = builder
        self.checkpointer = checkpointer
        self.store = store
        self.config: RunnableConfig | None = None
        self._plan = plan
        self._stops = stops
        self._context_schema = context_schema
        self._debug = debug

    def __repr__(self) -> str:
        return f"Agent(name={self.name!r}, tools={self.tools!r})"

    @property
    def tools(self) -> ToolNode:
        """The node that runs its calls."""
        return self._plan.tools

    def with_config(self, config: RunnableConfig | None = None, **kwargs: Any) -> "Agent":
        """The same agent, with a config that every run starts from."""
        other = copy.copy(self)
        other.config = merge_configs(self.config, config, cast("RunnableConfig", kwargs))
        return other

    async def ainvoke(
        self,
        input: Any,
        config: RunnableConfig | None = None,
        *,
        context: Any = None,
        stream_mode: StreamModes = "values",
        output_keys: str | Sequence[str] | None = None,
        interrupt_before: NodeNames = None,
        interrupt_after: NodeNames = None,
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
            output_keys: which keys of the state to return; all by default.
            interrupt_before: nodes before which to stop, instead of the agent's own.
            interrupt_after: nodes after which to stop, instead of the agent's own.
            version: "v2" for a `GraphOutput`.
            kwargs: accepted and ignored, as by every node of a graph.

        Returns:
            The state. If calls wait for a person, their questions are under `__interrupt__`.

        Raises:
            GraphRecursionError: if the steps are used up.
            EmptyInputError: if the input has nothing for the state.
            BaseException: the error of a call that nobody handles.
        """
        stops = self._stops_for(interrupt_before, interrupt_after)
        if stream_mode != "values":
            stream = self.astream(
                input, config, context=context, stream_mode=stream_mode, output_keys=output_keys,
                interrupt_before=interrupt_before, interrupt_after=interrupt_after, **kwargs,
            )  # fmt: skip
            return [chunk async for chunk in stream]
        run = await self._run(input, config, None, context=context, stops=stops)
        return _result(run, output_keys, version)

    async def astream(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        input: Any,
        config: RunnableConfig | None = None,
        *,
        context: Any = None,
        stream_mode: StreamModes | None = None,
        output_keys: str | Sequence[str] | None = None,
        interrupt_before: NodeNames = None,
        interrupt_after: NodeNames = None,
        subgraphs: bool = False,
        **kwargs: Any,
    ) -> AsyncIterator[Any]:
        """Run, and hand out what happens while it does.

        A reader that leaves early cancels the run, which has ended when `aclose()` returns.

        Args:
            input: see `ainvoke`.
            config: see `ainvoke`.
            context: see `ainvoke`.
            stream_mode: one of LangGraph's modes, or several; "updates" by default.
            output_keys: accepted for LangGraph's sake.
            interrupt_before: see `ainvoke`.
            interrupt_after: see `ainvoke`.
            subgraphs: hand out chunks of graphs that tools run too; every chunk then has its namespace.
            kwargs: accepted and ignored.

        Raises:
            ValueError: for a mode that there is not.
            BaseException: see `ainvoke`.
        """
        modes = "updates" if stream_mode is None else stream_mode
        wanted = _checked_modes(modes)
        stops = self._stops_for(interrupt_before, interrupt_after)
        run = partial(self._run, input, config, context=context, stops=stops, modes=wanted, subgraphs=subgraphs)
        async for chunk in chunks_of(run):
            if chunk[1] in wanted:
                yield shaped(chunk, modes, subgraphs=subgraphs)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """`ainvoke` for sync code, also in the thread of a running event loop, which waits."""
        return run_from_sync(partial(self.ainvoke, input, config, **kwargs))

    def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        """`astream` for sync code."""
        return _pulled(self.astream(input, config, **kwargs))

    async def aget_state(self, config: RunnableConfig, *, subgraphs: bool = False) -> StateSnapshot:
        """The state of a thread: its values, what comes next, and which questions are open.

        Args:
            config: names the thread, and a `checkpoint_id` for where it stood once.
            subgraphs: accepted for LangGraph's sake.

        Raises:
            ValueError: if there is no checkpointer, no thread is named, or it has no such checkpoint.
        """
        past = "checkpoint_id" in config.get("configurable", {})
        return snapshot_of(await self._saved(config), by_call=self._by_call, past=past)

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
        return await update(await self._saved(config), self._plan.flow, values, as_node)

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
        return run_from_sync(partial(self.aget_state, config, subgraphs=subgraphs))

    def get_state_history(self, config: RunnableConfig, **kwargs: Any) -> Iterator[StateSnapshot]:
        """`aget_state_history`, for sync code."""
        return _pulled(self.aget_state_history(config, **kwargs))

    def update_state(
        self, config: RunnableConfig, values: Any, as_node: str | None = None, task_id: str | None = None
    ) -> RunnableConfig:
        """`aupdate_state`, for sync code."""
        return run_from_sync(partial(self.aupdate_state, config, values, as_node))

    def bulk_update_state(self, config: RunnableConfig, updates: Sequence[Sequence[StateUpdate]]) -> RunnableConfig:
        """`abulk_update_state`, for sync code."""
        return run_from_sync(partial(self.abulk_update_state, config, updates))

    @property
    def _by_call(self) -> bool:
        return self._plan.version == "v2"

    async def _saved(self, config: RunnableConfig) -> SavedThread:
        if self.checkpointer is None:
            raise ValueError("No checkpointer set")
        return cast("SavedThread", await self._open(run_config(merge_configs(self.config, config))))

    async def _run(
        self,
        input: Any,
        config: RunnableConfig | None,
        put: Put | None,
        *,
        context: Any,
        stops: Stops,
        modes: frozenset[str] = frozenset(),
        subgraphs: bool = False,
    ) -> Run:
        config = run_config(merge_configs(self.config, config))
        if config["recursion_limit"] < 1:
            raise ValueError("recursion_limit must be at least 1")
        thread = await self._open(config)
        answers, resumed = await take_in(input, thread, self._plan.flow)
        emit: Emit = emit_nothing if put is None else Emitter(modes, (), put, lambda: thread.step + 1)
        if self._debug:
            emit = printed(emit)
        runtime = self._runtime(config, context, put if "custom" in modes else None)
        handlers = [] if put is None else handlers_for(modes, put, subgraphs=subgraphs)

        async def go(config: RunnableConfig) -> dict[str, Any]:
            run = Run(self._plan, thread, config, runtime, emit, answers=answers, stops=stops, resumed=resumed)
            runs.append(run)
            try:
                await run.go()
            finally:
                await thread.stop()
            return run.values()

        runs: list[Run] = []
        await traced(go, input, config, self.get_name(), handlers)
        return runs[0]

    async def _open(self, config: RunnableConfig, durability: Durability = "async") -> Thread:
        """The thread that a config names, or one in memory.

        Raises:
            ValueError: if there is a checkpointer and no thread is named.
        """
        if self.checkpointer is None:
            return Thread(self._plan.schema)
        conf = config["configurable"]
        if "thread_id" not in conf:
            raise ValueError(
                "Checkpointer requires one or more of the following 'configurable' keys: thread_id, checkpoint_ns, "
                "checkpoint_id; name the conversation: config={'configurable': {'thread_id': '1'}}"
            )
        saver = Saver(self.checkpointer, str(conf["thread_id"]), conf.get("checkpoint_ns", ""))
        thread = SavedThread(self._plan.schema, saver, durability)
        await thread.open(conf.get("checkpoint_id"))
        return thread

    def _runtime(self, config: RunnableConfig, context: Any, put: Put | None) -> Runtime[Any]:
        """The run's runtime; what the graph around us has and we do not, it keeps."""
        around = runtime_of(config)
        given: dict[str, Any] = {"context": _as_context(self._context_schema, context), "store": self.store}
        if put is not None:
            given["stream_writer"] = writer_of_run(put)
        return around.merge(Runtime(**given))

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


def _result(run: Run, output_keys: str | Sequence[str] | None, version: str) -> Any:
    values: Any = run.values()
    if isinstance(output_keys, str):
        values = values.get(output_keys)
    elif output_keys is not None:
        values = {key: values[key] for key in output_keys if key in values}
    if version == "v2":
        return GraphOutput(value=values, interrupts=tuple(run.interrupts))
    if run.interrupts:
        return {**(values if isinstance(values, dict) else {}), INTERRUPT: run.interrupts}
    return values


def _checked_modes(modes: StreamModes) -> frozenset[str]:
    wanted = frozenset([modes] if isinstance(modes, str) else modes)
    if unknown := wanted - MODES:
        raise ValueError(f"There is no stream mode {', '.join(map(repr, sorted(unknown)))}, only {sorted(MODES)}")
    return wanted


def _as_context(schema: type[Any] | None, context: Any) -> Any:
    """A context of the agent's schema; a dict becomes one where the schema is no TypedDict."""
    if schema is None or not isinstance(context, dict) or issubclass(schema, dict):
        return context
    return schema(**context)
