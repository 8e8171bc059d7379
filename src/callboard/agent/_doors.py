"""How an agent is run: the doors for async code and for sync code, and what each takes and gives."""

import copy
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self, Unpack, overload

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.schema import StreamEvent
from langgraph.runtime import RunControl
from langgraph.types import GraphOutput

from callboard._langgraph import run_config
from callboard._langgraph._node_scope import is_nested
from callboard._loops._bridge import pulled, run_from_sync
from callboard._loops._current import current_loop
from callboard._loops._door import Door
from callboard._types import check_seconds
from callboard.agent._conversation._channels import Schema
from callboard.agent._conversation._journal import Durability
from callboard.agent._run import Run
from callboard.agent._run_options import NodeNames, RunOptions, StreamModes, checked_modes
from callboard.agent._runner import Request, Runner
from callboard.agent._stops import Stops
from callboard.agent._stream import as_part, chunks_of, shaped
from callboard.agent._stream_payloads import INTERRUPT, Keys
from callboard.tools._many import ManyInputs


class Doors(ManyInputs):
    """An agent's doors; a keyword that none has is an error."""

    checkpointer: Any
    config: RunnableConfig | None
    _runner: Runner
    _stops: Stops
    _budget: float | None
    _door: Door = "async"
    """By which the runs that are started here are entered."""

    def _from_sync(self) -> Self:
        """A copy of the agent that runs the sync half of what it was given."""
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
            control: with which the run can be asked to stop before its next step: LangGraph's.
            budget: seconds for the whole run, instead of the agent's own.
            debug: print each step.
            subgraphs: see `astream`; for other modes than "values".
            version: "v2" for a `GraphOutput`, or a list of parts; see `astream`.

        Returns:
            The state. If calls wait for a person, their questions are under `__interrupt__`.

        Raises:
            GraphRecursionError: if the steps are used up.
            GraphDrained: if `control` asked for it; the thread can go on with `None`.
            EmptyInputError: if the input has nothing for the state.
            RunDeadlineExceededError: if the budget was spent; calls in flight have got their messages, and the
                thread can go on.
            UnknownInterruptError: if an answer fits no open question.
            BaseException: the error of a call that nobody handles.
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
            control: see `ainvoke`.
            budget: see `ainvoke`.
            debug: see `ainvoke`.
            subgraphs: hand out chunks of graphs that tools run too; every chunk then has its namespace.
            version: "v2" for every chunk as a part, `{"type": ..., "ns": ..., "data": ...}`.

        Raises:
            ValueError: for a mode that there is not.
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
        # Not a bare `async for`: left early, it would leave the run to the garbage collector.
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
        """`ainvoke` for sync code, also in the thread of a running event loop, which waits.

        What has both a sync and an async half (models, tools, hooks, middleware, checkpointers) runs its sync one, in a
        worker thread.
        """
        return run_from_sync(partial(Doors.ainvoke, self._from_sync(), input, config, **options))

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
        """`astream` for sync code."""
        return pulled(Doors.astream(self._from_sync(), input, config, **options))

    async def astream_events(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self, input: Any, config: RunnableConfig | None = None, **options: Any
    ) -> AsyncIterator[StreamEvent]:
        """LangChain's events of a run, on asyncio.

        Args:
            input: see `ainvoke`.
            config: see `ainvoke`.
            options: LangChain's, and those of `astream`.

        Raises:
            RuntimeError: on trio, where LangChain's own part does not run.
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
            stops=self._stops.or_those_of(given["interrupt_before"], given["interrupt_after"]),
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
