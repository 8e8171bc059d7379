"""Methods that run an agent, for async and for sync code, with their options."""

import copy
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self, TypedDict, Unpack, overload

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.schema import StreamEvent
from langgraph.runtime import RunControl
from langgraph.types import GraphOutput

from callboard._langgraph import run_config
from callboard._langgraph._node_scope import is_nested
from callboard._loops._bridge import pulled, run_from_sync
from callboard._loops._current import current_loop
from callboard._loops._entry_mode import Door
from callboard._records._policies import check_seconds
from callboard.agent._breakpoints import Breakpoints
from callboard.agent._run import Run
from callboard.agent._runner import Request, Runner
from callboard.agent._stream import MODES, as_part, chunks_of, shaped
from callboard.agent._stream_payloads import INTERRUPT, Keys
from callboard.conversations._channels import Schema
from callboard.conversations._journal import Durability
from callboard.tools._node import ManyInputs

StreamModes = str | Sequence[str]
NodeNames = Sequence[str] | Literal["*"] | None


class RunOptions(TypedDict, total=False):
    """Keywords that all four methods accept."""

    context: Any
    print_mode: StreamModes
    interrupt_before: NodeNames
    interrupt_after: NodeNames
    durability: Durability | None
    control: RunControl | None
    budget: float | None
    debug: bool | None
    subgraphs: bool


def checked_modes(modes: StreamModes) -> frozenset[str]:
    """Return stream modes as a set; raise ValueError for an unknown mode."""
    wanted = frozenset([modes] if isinstance(modes, str) else modes)
    if unknown := wanted - MODES:
        raise ValueError(f"There is no stream mode {', '.join(map(repr, sorted(unknown)))}, only {sorted(MODES)}")
    return wanted


class EntryPoints(ManyInputs):
    """Run methods of an agent; an unknown keyword is an error."""

    checkpointer: Any
    config: RunnableConfig | None
    _runner: Runner
    _stops: Breakpoints
    _budget: float | None
    _door: Door = "async"
    """Entry mode of runs that start here."""

    def _from_sync(self) -> Self:
        """Return a copy of the agent that uses the sync methods of models, tools and savers."""
        # A copy, because async code may use the same agent meanwhile.
        entered = copy.copy(self)
        entered._door = "sync"
        return entered

    @overload  # type: ignore[override]
    async def ainvoke(
        self,
        input: Any,
        config: RunnableConfig | None = None,
        *,
        stream_mode: Literal["values"] = ...,
        output_keys: Keys | None = ...,
        version: Literal["v2"],
        **options: Unpack[RunOptions],
    ) -> GraphOutput[Any]: ...

    @overload
    async def ainvoke(
        self,
        input: Any,
        config: RunnableConfig | None = None,
        *,
        stream_mode: Literal["values"] = ...,
        output_keys: list[str] | tuple[str, ...] | None = ...,
        version: Literal["v1"] = ...,
        **options: Unpack[RunOptions],
    ) -> dict[str, Any]: ...

    @overload
    async def ainvoke(
        self,
        input: Any,
        config: RunnableConfig | None = None,
        *,
        stream_mode: StreamModes = ...,
        output_keys: Keys | None = ...,
        version: Literal["v1", "v2"] = ...,
        **options: Unpack[RunOptions],
    ) -> Any: ...

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
        control: RunControl | None = None,
        budget: float | None = None,
        debug: bool | None = None,
        subgraphs: bool = False,
        version: Literal["v1", "v2"] = "v1",
    ) -> Any:
        """Run until the model gives an answer, or a person has to be asked.

        Args:
            input: a dict with `messages`, in any form that LangChain accepts, and other keys of the state; a `Command`;
                or `None` to resume the thread.
            config: a LangChain config. `recursion_limit` bounds the steps, `max_concurrency` the concurrent calls of a
                batch.
            context: `runtime.context` of tools, hooks and prompts.
            stream_mode: "values" returns the final state; any other mode a list of chunks.
            print_mode: modes whose chunks are also printed.
            output_keys: state keys to return; by default all.
            interrupt_before: nodes before which to stop, instead of the agent's own.
            interrupt_after: nodes after which to stop, instead of the agent's own.
            durability: when events are stored: before the run goes on ("sync"), in the background ("async", the
                default), or when the run stops ("exit").
            control: LangGraph's control object; it can request a stop before the next step.
            budget: seconds for the whole run, instead of the agent's own budget.
            debug: print each step.
            subgraphs: see `astream`; for modes other than "values".
            version: "v2" returns a `GraphOutput`, or a list of parts; see `astream`.

        Returns:
            The state. If calls wait for a person, `__interrupt__` has their questions.

        Raises:
            GraphRecursionError: if the recursion limit is reached.
            GraphDrained: if `control` requested a stop; the thread can be resumed with `None`.
            EmptyInputError: if the input has no value for the state.
            RunDeadlineExceededError: if the budget is used up. Calls in flight have got error messages, and the thread
                can be resumed.
            UnknownInterruptError: if an answer matches no open question.
            BaseException: the error of a call, if nothing handles it.
        """
        given: RunOptions = {
            "context": context,
            "print_mode": print_mode,
            "interrupt_before": interrupt_before,
            "interrupt_after": interrupt_after,
            "durability": durability,
            "control": control,
            "budget": budget,
            "debug": debug,
            "subgraphs": subgraphs,
        }
        if stream_mode != "values":
            stream = self.astream(
                input, config, stream_mode=stream_mode, output_keys=output_keys, version=version, **given
            )
            async with aclosing(stream):
                return [chunk async for chunk in stream]
        run = await self._runner.run(self.checkpointer, self._request(input, config, (), output_keys, given), None)
        return _result(run, output_keys, version, self._runner.plan.schema)

    @overload  # type: ignore[override]
    def astream(
        self,
        input: Any,
        config: RunnableConfig | None = None,
        *,
        stream_mode: StreamModes | None = ...,
        output_keys: Keys | None = ...,
        version: Literal["v2"],
        **options: Unpack[RunOptions],
    ) -> AsyncGenerator[dict[str, Any]]: ...

    @overload
    def astream(
        self,
        input: Any,
        config: RunnableConfig | None = None,
        *,
        stream_mode: StreamModes | None = ...,
        output_keys: Keys | None = ...,
        version: Literal["v1", "v2"] = ...,
        **options: Unpack[RunOptions],
    ) -> AsyncGenerator[Any]: ...

    async def astream(  # pyright: ignore[reportIncompatibleMethodOverride]
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
        control: RunControl | None = None,
        budget: float | None = None,
        debug: bool | None = None,
        subgraphs: bool = False,
        version: Literal["v1", "v2"] = "v1",
    ) -> AsyncGenerator[Any]:
        """Run, and yield chunks while the run goes on.

        If the reader leaves early, the run is cancelled, and has ended when `aclose()` returns.

        Args:
            input: see `ainvoke`.
            config: see `ainvoke`.
            context: see `ainvoke`.
            stream_mode: one or several of LangGraph's modes; by default "updates".
            print_mode: modes whose chunks are also printed.
            output_keys: state keys in `values` and `updates`; a single string gives the bare value.
            interrupt_before: see `ainvoke`.
            interrupt_after: see `ainvoke`.
            durability: see `ainvoke`.
            control: see `ainvoke`.
            budget: see `ainvoke`.
            debug: see `ainvoke`.
            subgraphs: also yield chunks of graphs that tools run; every chunk then has its namespace.
            version: "v2" yields every chunk as a part, `{"type": ..., "ns": ..., "data": ...}`.

        Raises:
            ValueError: for an unknown mode.
            BaseException: see `ainvoke`.
        """
        given: RunOptions = {
            "context": context,
            "print_mode": print_mode,
            "interrupt_before": interrupt_before,
            "interrupt_after": interrupt_after,
            "durability": durability,
            "control": control,
            "budget": budget,
            "debug": debug,
            "subgraphs": subgraphs,
        }
        request = self._request(input, config, stream_mode, output_keys, given)
        modes = stream_mode or ("values" if is_nested(request.config) else "updates")
        wanted, shape = checked_modes(modes), self._runner.plan.schema.shaped
        request = replace(request, modes=request.modes | wanted)
        # `aclosing`, because a bare `async for` that is left early would leave the run to the garbage collector.
        async with aclosing(chunks_of(partial(self._runner.run, self.checkpointer, request))) as chunks:
            async for chunk in chunks:
                if chunk[1] in wanted:
                    yield as_part(chunk, shape) if version == "v2" else shaped(chunk, modes, subgraphs=subgraphs)

    @overload  # type: ignore[override]
    def invoke(
        self,
        input: Any,
        config: RunnableConfig | None = None,
        *,
        stream_mode: Literal["values"] = ...,
        output_keys: Keys | None = ...,
        version: Literal["v2"],
        **options: Unpack[RunOptions],
    ) -> GraphOutput[Any]: ...

    @overload
    def invoke(
        self,
        input: Any,
        config: RunnableConfig | None = None,
        *,
        stream_mode: Literal["values"] = ...,
        output_keys: list[str] | tuple[str, ...] | None = ...,
        version: Literal["v1"] = ...,
        **options: Unpack[RunOptions],
    ) -> dict[str, Any]: ...

    @overload
    def invoke(
        self,
        input: Any,
        config: RunnableConfig | None = None,
        *,
        stream_mode: StreamModes = ...,
        output_keys: Keys | None = ...,
        version: Literal["v1", "v2"] = ...,
        **options: Unpack[RunOptions],
    ) -> Any: ...

    def invoke(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> Any:
        """Do the same as `ainvoke`, from sync code.

        May be called in the thread of a running event loop, which is blocked until the run ends. Models, tools, hooks,
        middleware and checkpointers with both sync and async methods use their sync ones, in worker threads.
        """
        return run_from_sync(partial(EntryPoints.ainvoke, self._from_sync(), input, config, **options))

    @overload  # type: ignore[override]
    def stream(
        self,
        input: Any,
        config: RunnableConfig | None = None,
        *,
        stream_mode: StreamModes | None = ...,
        output_keys: Keys | None = ...,
        version: Literal["v2"],
        **options: Unpack[RunOptions],
    ) -> Iterator[dict[str, Any]]: ...

    @overload
    def stream(
        self,
        input: Any,
        config: RunnableConfig | None = None,
        *,
        stream_mode: StreamModes | None = ...,
        output_keys: Keys | None = ...,
        version: Literal["v1", "v2"] = ...,
        **options: Unpack[RunOptions],
    ) -> Iterator[Any]: ...

    def stream(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> Iterator[Any]:
        """Do the same as `astream`, from sync code."""
        return pulled(EntryPoints.astream(self._from_sync(), input, config, **options))

    async def astream_events(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self, input: Any, config: RunnableConfig | None = None, **options: Any
    ) -> AsyncIterator[StreamEvent]:
        """Yield LangChain's events of a run; on asyncio only.

        Args:
            input: see `ainvoke`.
            config: see `ainvoke`.
            options: LangChain's options, and those of `astream`.

        Raises:
            RuntimeError: on trio, where LangChain's implementation does not run.
        """
        if current_loop().name == "trio":
            raise RuntimeError(
                "astream_events is LangChain's and needs asyncio; on trio, read "
                'agent.astream(stream_mode=["updates", "messages", "custom"]) or observe()'
            )
        async with aclosing(super().astream_events(input, config, **options)) as events:
            async for event in events:
                yield event

    def _request(
        self,
        input: Any,
        config: RunnableConfig | None,
        modes: StreamModes | None,
        output_keys: Keys | None,
        given: RunOptions,
    ) -> Request:
        check_seconds("budget", given["budget"], zero=False)
        keys = () if output_keys is None else [output_keys] if isinstance(output_keys, str) else output_keys
        if unknown := [key for key in keys if key not in self._runner.plan.schema.specs]:
            raise ValueError(f"The state has no key {', '.join(map(repr, unknown))}; see output_keys={output_keys!r}")
        debug = self._runner.debug or given["debug"]
        prints = checked_modes(("updates", "values") if debug else given["print_mode"])
        return Request(
            input=input,
            config=run_config(self.config, config),
            context=given["context"],
            stops=self._stops.or_else(given["interrupt_before"], given["interrupt_after"]),
            durability=given["durability"],
            control=given["control"],
            budget=self._budget if given["budget"] is None else given["budget"],
            modes=prints | checked_modes(modes or ()),
            door=self._door,
            subgraphs=given["subgraphs"],
            prints=prints,
            output_keys=output_keys,
        )


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
