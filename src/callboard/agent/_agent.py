"""`Agent`: public interface of an agent, which runs a loop of model replies and tool calls."""

import copy
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from functools import partial
from typing import Any, Generic, Literal, NamedTuple, Self, Unpack, cast, overload

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.schema import StreamEvent
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import StateGraph
from langgraph.runtime import RunControl
from langgraph.types import GraphOutput, StateSnapshot, StateUpdate
from typing_extensions import TypeVar

from callboard._calls._draining import PATIENCE
from callboard._langgraph._node_scope import checkpointer_in, for_all_visits, is_nested, wants_message_events
from callboard._langgraph._outer_task import run_config
from callboard._loops._bridge import iterate_from_sync, run_from_sync
from callboard._loops._current import current_loop
from callboard._loops._entry_mode import EntryMode, entered_from
from callboard._loops._owner_task import Openable
from callboard._loops._task_stream import TaskItems
from callboard._records._policies import check_seconds, check_type
from callboard._records._reports import Drained, LiveCall
from callboard._util._suggestions import no_such
from callboard.agent._as_graph import GraphLike
from callboard.agent._chunk_log import ChunkLog, LoggedChunks
from callboard.agent._inbox import Inbox, person_message
from callboard.agent._live import BUFFER, LiveRun
from callboard.agent._options import (
    KeyOptions,
    NodeNames,
    OutputKeyOptions,
    OutputOptions,
    PartOptions,
    RunOptions,
    SayOptions,
    StateOptions,
    StreamModes,
    StreamOptions,
    Version,
    check_buffer,
    check_run_options,
    check_stops,
    parse_modes,
    parse_names,
)
from callboard.agent._run import Run
from callboard.agent._run_context import Breakpoints
from callboard.agent._runner import Request, Runner, open_thread, saver_for
from callboard.agent._stream import INTERRUPT, Chunk, Keys, as_v1, as_v2
from callboard.conversations._channels import MESSAGES
from callboard.conversations._database import close
from callboard.conversations._saved_thread import Durability, SavedThread
from callboard.conversations._snapshots import history_of, snapshot_of, update
from callboard.tools._many_inputs import ManyInputs
from callboard.tools._node import ToolNode

Config = RunnableConfig | None

OutputT = TypeVar("OutputT", default=dict[str, Any])
"""Type of an agent's results: a dict with values of any type, unless the agent has a schema."""


class StreamForm(NamedTuple):
    """Options of a stream that decide which chunks it has, and in which form; see `StreamOptions`."""

    modes: StreamModes | None
    output_keys: Keys | None
    version: Version


# The first two bases declare the methods that the overloads below replace, each with other parameters.
class Agent(ManyInputs, GraphLike, Openable, Generic[OutputT]):  # pyright: ignore[reportIncompatibleMethodOverride]
    """Agent that calls its model and its tools in turn until the model answers.

    Made by `create_agent` and `create_react_agent`. The parameter of the type is that of the results: an agent with
    `response_format=Weather` is an `Agent[AgentOutput[Weather]]`.

    A turn is one model reply, or the batch of calls in a reply. Each turn counts as one step of the run's
    `recursion_limit`.
    """

    _entry_mode: EntryMode = "async"
    """Entry mode of the runs that this object starts: "async", or "sync" for a copy made by `_copy_for_sync`."""

    def __init__(
        self,
        runner: Runner,
        build_graph: "Callable[[], StateGraph[Any, Any, Any, Any]]",
        *,
        checkpointer: "BaseCheckpointSaver[Any] | bool | None",
        breakpoints: Breakpoints,
        budget: float | None,
        stored_types: Callable[[], frozenset[type]] = frozenset[type],
    ) -> None:
        super().__init__(build_graph, runner, checkpointer, breakpoints)
        # Collected only when a database asks: that takes longer than everything else in the making of an agent.
        self._stored_types = stored_types
        self._budget = budget

    def __repr__(self) -> str:
        return f"Agent(name={self.name!r}, tools={self.tools!r})"

    @property
    def stored_types(self) -> frozenset[type]:
        """Types of values that the agent's database may contain, if its checkpointer is a URL.

        The types of LangGraph and of LangChain's messages are always allowed and are not listed here.
        """
        return self._stored_types()

    def _copy_for_sync(self) -> "Agent[Any]":
        """Return a copy of the agent whose runs call the sync methods of models, tools and checkpointers."""
        # A copy, because async code may use the same agent meanwhile.
        agent = copy.copy(self)
        agent._entry_mode = "sync"
        return agent

    # LangChain's methods take any keyword. These name their own, so that type checkers find one that does not exist;
    # hence the suppressed checks of `ainvoke`, `astream`, `invoke`, `stream` and `astream_events`.

    @overload  # type: ignore[override]
    async def ainvoke(
        self, input: Any, config: Config = None, **options: Unpack[OutputOptions]
    ) -> GraphOutput[OutputT]: ...

    @overload
    async def ainvoke(
        self, input: Any, config: Config = None, **options: Unpack[OutputKeyOptions]
    ) -> GraphOutput[Any]: ...

    @overload
    async def ainvoke(self, input: Any, config: Config = None, **options: Unpack[StateOptions]) -> OutputT: ...

    @overload
    async def ainvoke(self, input: Any, config: Config = None, **options: Unpack[KeyOptions]) -> dict[str, Any]: ...

    @overload
    async def ainvoke(self, input: Any, config: Config = None, **options: Unpack[StreamOptions]) -> Any: ...

    async def ainvoke(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        input: Any,
        config: Config = None,
        *,
        stream_mode: StreamModes | None = "values",
        output_keys: Keys | None = None,
        version: Version = "v1",
        **options: Unpack[RunOptions],
    ) -> Any:
        """Run the agent until its model answers, or until a call waits for a person; return the final state.

        The result is the state as a dict. If calls wait for a person, the key `__interrupt__` has their questions.

        Args:
            input: dict with `messages`, in any form that LangChain accepts, and other keys of the state; a `Command`,
                such as `Command(resume=answer)`; or `None` to resume the thread.
            config: LangChain config of the run. With a checkpointer, `configurable` has to have the `thread_id`.
            stream_mode: with other modes than "values", the result is the list of the chunks that `astream` yields.
            output_keys: state keys in the result; see `StreamOptions`.
            version: with "v2", the result is a `GraphOutput`.
            options: see `RunOptions`; `budget` is in seconds.

        Raises:
            GraphRecursionError: if the `recursion_limit` of the config is reached.
            GraphDrained: if `control` requested a stop; the thread can be resumed with `None`.
            EmptyInputError: if the input has unknown keys only, or a new thread gets `None`.
            InvalidUpdateError: if the input is not a state, or names an unknown node.
            UnknownInterruptError: if an answer matches no open question.
            RunDeadlineExceededError: if the budget is used up. Calls in flight have got error messages, and the thread
                can be resumed.
            ThreadBusyError: if another run uses the thread.
            RuntimeError: if `Command(resume=...)` is the input, and the agent has no checkpointer.
            DrainingError: if the agent is drained: it refused this run, or ended it.
            StorageError: if the checkpointer's database cannot be used.
            TypeError: if an option is unknown, or an option or a value of the config has the wrong type.
            ValueError: if a stream mode, an output key, a node to stop at, the version, the durability or the budget is
                invalid, or the config has no `thread_id`.
            BaseException: the error of a call, if nothing handles it.
        """
        if stream_mode != "values":
            stream = self.astream(
                input, config, stream_mode=stream_mode, output_keys=output_keys, version=version, **options
            )
            async with aclosing(stream):
                return [chunk async for chunk in stream]
        request = self._request(input, config, (), output_keys, version, **options)
        run = await self._runner.run(self.checkpointer, request, None)
        return self._output_of(run, output_keys, version)

    def _output_of(self, run: Run, output_keys: Keys | None, version: Version) -> Any:
        """Return the result of an ended run in the form that its caller has asked for."""
        # A copy of its own: observers and callback handlers were given the values of the run.
        values: Any = {**run.result}
        if isinstance(output_keys, str):
            values = values.get(output_keys)
        elif output_keys is not None:
            values = {key: values[key] for key in output_keys if key in values}
        if version == "v2":
            values = self._runner.plan.schema.to_instance(values) if output_keys is None else values
            return GraphOutput(value=values, interrupts=tuple(run.interrupts))
        if run.interrupts:
            return {**(values if isinstance(values, dict) else {}), INTERRUPT: run.interrupts}
        return values

    @overload  # type: ignore[override]
    def astream(
        self, input: Any, config: Config = None, **options: Unpack[PartOptions]
    ) -> AsyncGenerator[dict[str, Any]]: ...

    @overload
    def astream(self, input: Any, config: Config = None, **options: Unpack[StreamOptions]) -> AsyncGenerator[Any]: ...

    async def astream(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        input: Any,
        config: Config = None,
        *,
        stream_mode: StreamModes | None = None,
        output_keys: Keys | None = None,
        version: Version = "v1",
        **options: Unpack[RunOptions],
    ) -> AsyncGenerator[Any]:
        """Run the agent as `ainvoke` does, and yield the chunks of the run's stream as they arise.

        A reader that stops early has to close the generator, such as with `contextlib.aclosing`. The run is then
        cancelled, and has ended when `aclose()` of the generator returns.

        Args:
            input: see `ainvoke`.
            config: see `ainvoke`.
            stream_mode: LangGraph's mode, or a list of modes. With a list, each chunk is a pair of mode and payload.
                With `subgraphs`, the namespace of the graph comes first. By default "updates"; "values" if another
                graph runs the agent.
            output_keys: state keys in the modes `values` and `updates`; see `StreamOptions`.
            version: with "v2", each chunk is a dict; see `StreamOptions`.
            options: see `RunOptions`.

        Raises:
            ValueError: if a stream mode is unknown.
            BaseException: the errors of `ainvoke`.
        """
        stream = StreamForm(stream_mode, output_keys, version)
        request, modes, form = self._stream_request(input, config, options, stream)
        # `aclosing`, because a bare `async for` that is left early would leave the run to the garbage collector.
        async with aclosing(TaskItems(partial(self._runner.run, self.checkpointer, request))) as chunks:
            async for chunk in chunks:
                if chunk[1] in modes:
                    yield form(chunk)

    def _stream_request(
        self, input: Any, config: Config, options: RunOptions, stream: StreamForm
    ) -> tuple[Request, frozenset[str], Callable[[Chunk], Any]]:
        """Return the request of a run with a stream, the stream's modes, and the function that forms chunks."""
        request = self._request(input, config, stream.modes, stream.output_keys, stream.version, **options)
        default_mode = "values" if is_nested(request.config) else "updates"
        modes = default_mode if stream.modes is None else stream.modes
        mode_names = parse_modes("stream_mode", modes)
        # A stream of version "v1" within such a reader has chunks, as in LangGraph.
        events = stream.version == "v2" and wants_message_events(request.config)
        request = replace(request, modes=request.modes | mode_names, message_events=events)
        if stream.version == "v2":
            return request, mode_names, partial(as_v2, to_instance=self._runner.plan.schema.to_instance)
        return request, mode_names, partial(as_v1, modes=modes, subgraphs=request.subgraphs)

    async def start(
        self,
        input: Any,
        config: RunnableConfig,
        *,
        stream_mode: StreamModes | None = None,
        output_keys: Keys | None = None,
        version: Version = "v1",
        buffer: int = BUFFER,
        **options: Unpack[RunOptions],
    ) -> LiveRun:
        """Start a run on a thread of conversation, and return it once its input is stored.

        The run belongs to the block of `async with agent`, not to the caller: it goes on if the caller is cancelled,
        and the end of the block waits for it, as for any run. `say` sends it messages.

        Args:
            input: see `ainvoke`.
            config: LangChain config of the run; `configurable` has to have the `thread_id`.
            stream_mode: modes of the chunks that `LiveRun.stream` yields; see `astream`.
            output_keys: see `ainvoke`.
            version: form of the chunks and of the result; see `StreamOptions`.
            buffer: largest number of chunks that the thread keeps for readers.
            options: see `RunOptions`; `budget` is in seconds.

        Raises:
            ThreadBusyError: if another run uses the thread, also in another process.
            RuntimeError: outside of a block of the agent in this event loop.
            ValueError: if the agent has no checkpointer, or the buffer is out of range.
            BaseException: the other errors of `ainvoke` that arise before the input is stored.
        """
        stream = StreamForm(stream_mode, output_keys, version)
        thread_id = self._thread_id(run_config(self.config, config))
        start_run = partial(self._start, input, config, options, stream, buffer, thread_id=thread_id)
        return await self._runner.live_runs.start_alone(thread_id, start_run)

    def _start(
        self,
        input: Any,
        config: RunnableConfig,
        options: RunOptions,
        stream: StreamForm,
        buffer: int,
        *,
        thread_id: str,
        gives_up_calls: bool = True,
    ) -> LiveRun | None:
        """Start a run in a task of the agent's block; return `None` if the thread has a live run."""
        check_buffer("start", buffer)
        # In the context of the block: a run that a tool or a node starts is not part of their run.
        request, modes, form = self._runner.live_runs.run_in_block(
            partial(self._stream_request, input, config, options, stream)
        )
        request = replace(request, gives_up_calls=gives_up_calls)

        async def perform(log: ChunkLog, inbox: Inbox) -> Any:
            run = await self._runner.run(self.checkpointer, request, LoggedChunks(log, modes, form), inbox)
            return self._output_of(run, stream.output_keys, stream.version)

        return self._runner.live_runs.start(thread_id, perform, buffer)

    @overload
    async def say(
        self, message: Any, config: RunnableConfig, *, start: Literal[True], **options: Unpack[SayOptions]
    ) -> LiveRun: ...

    @overload
    async def say(
        self, message: Any, config: RunnableConfig, *, start: bool = False, **options: Unpack[SayOptions]
    ) -> LiveRun | None: ...

    async def say(
        self,
        message: Any,
        config: RunnableConfig,
        *,
        start: bool = False,
        give_up: bool = False,
        stream_mode: StreamModes | None = None,
        output_keys: Keys | None = None,
        version: Version = "v1",
        buffer: int = BUFFER,
        **options: Unpack[RunOptions],
    ) -> LiveRun | None:
        """Send a message of a person to the live run of a thread, and return the run once the message is stored.

        The run reads the message before its next request to the model, after the results of the calls that are in
        progress. Before it ends, a run reads all messages that have arrived. A message that is stored is read exactly
        once: if the run fails, asks a person, or its process is killed, the next run of the thread reads it. With the
        durability "exit", a message is stored where the run ends. If the caller is cancelled, the message may be stored
        or not. A live run is one of `start`, `ainvoke`, `astream` and others of this agent, in any event loop of this
        process.

        Args:
            message: text, or message of a person in any form that LangChain accepts.
            config: names the thread by `thread_id`. A new run gets the whole config.
            start: `True` to start a run with the message if the thread has no live run, as `start` does. Of several
                senders, one starts the run, and it reads the messages of all. With `False`, nothing is stored then, and
                the result is `None`.
            give_up: `True` if a new run gives up the thread's open questions and its calls without a result. The model
                then reads which calls did not run, and which may have had their effect.
            stream_mode: stream modes of a new run; see `start`.
            output_keys: see `ainvoke`.
            version: see `start`.
            buffer: see `start`.
            options: options of a new run; see `RunOptions`.

        Raises:
            ThreadBusyError: if a run of another process, or of another agent object, uses the thread.
            StorageError: if the message cannot be stored.
            TypeError: if the message has no form of a message.
            ValueError: if it is not a message of a person, the agent has no checkpointer, or the config has no
                `thread_id`.
            OpenCallsError: with `start=True`, if there is no live run, and the thread has open questions or calls
                without a result, unless `give_up` is set. The thread is not changed.
            RuntimeError: with `start=True`, if there is no live run, outside of a block of the agent; or in code of a
                run that reads no more messages, such as a callback handler at its end.
            DrainingError: with `start=True`, if the agent is drained.
        """
        human_message = person_message(message)
        # A wrong option is an error also if there is a live run, which does not use the options.
        check_buffer("say", buffer)
        check_type("say(start=...)", start, bool, "True")
        check_type("say(give_up=...)", give_up, bool, "True")
        request = self._request(None, config, stream_mode, output_keys, version, **options)

        thread_id = self._thread_id(request.config)
        stream, values = StreamForm(stream_mode, output_keys, version), {MESSAGES: [human_message]}
        start_run = partial(
            self._start, values, config, options, stream, buffer, thread_id=thread_id, gives_up_calls=give_up
        )

        async def refuse_if_held() -> None:
            thread = await self._open_thread(config)
            await thread.refuse_if_held()

        live_runs = self._runner.live_runs
        return await live_runs.say(thread_id, human_message, start_run if start else None, refuse_if_held)

    def live(self, thread_id: str) -> LiveRun:
        """Return the live run of a thread, or its last started run, so that a reader can join it again.

        An agent keeps the last 100 runs that `start` and `say` have started, and their chunks, until the thread has a
        new run.

        Args:
            thread_id: id of the thread of conversation.

        Raises:
            RunNotFoundError: if there is no such run in this process.
        """
        return self._runner.live_runs.latest(str(thread_id))

    def _thread_id(self, config: RunnableConfig) -> str:
        """Return the id of the thread that a complete config names; raise ValueError if it cannot be stored."""
        if saver_for(checkpointer_in(config) or self.checkpointer, config, None) is None:
            raise ValueError("No checkpointer set: a live run needs one, such as checkpointer=InMemorySaver()")
        thread_id = config["configurable"]["thread_id"]
        if thread_id is None:  # the conversation would be that of everybody without an id
            raise ValueError("thread_id is None: name the conversation, config={'configurable': {'thread_id': '1'}}")
        return str(thread_id)

    @overload  # type: ignore[override]
    def invoke(self, input: Any, config: Config = None, **options: Unpack[OutputOptions]) -> GraphOutput[OutputT]: ...

    @overload
    def invoke(self, input: Any, config: Config = None, **options: Unpack[OutputKeyOptions]) -> GraphOutput[Any]: ...

    @overload
    def invoke(self, input: Any, config: Config = None, **options: Unpack[StateOptions]) -> OutputT: ...

    @overload
    def invoke(self, input: Any, config: Config = None, **options: Unpack[KeyOptions]) -> dict[str, Any]: ...

    @overload
    def invoke(self, input: Any, config: Config = None, **options: Unpack[StreamOptions]) -> Any: ...

    def invoke(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, input: Any, config: Config = None, **options: Any
    ) -> Any:
        """Run the agent as `ainvoke` does, from sync code.

        May be called in the thread of a running event loop, which is blocked until the run ends. Models, tools, hooks,
        middleware and checkpointers with both sync and async methods use their sync ones, in worker threads.
        """
        return run_from_sync(partial(Agent.ainvoke, self._copy_for_sync(), input, config, **options))

    @overload  # type: ignore[override]
    def stream(self, input: Any, config: Config = None, **options: Unpack[PartOptions]) -> Iterator[dict[str, Any]]: ...

    @overload
    def stream(self, input: Any, config: Config = None, **options: Unpack[StreamOptions]) -> Iterator[Any]: ...

    def stream(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, input: Any, config: Config = None, **options: Any
    ) -> Iterator[Any]:
        """Yield the chunks of a run as `astream` does, from sync code."""
        return iterate_from_sync(Agent.astream(self._copy_for_sync(), input, config, **options))

    def astream_events(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, input: Any, config: Config = None, **options: Any
    ) -> Any:
        """Yield LangChain's events of a run. The options are those of `astream` and of LangChain's `astream_events`.

        With `version="v3"`, the result has to be awaited, and is LangGraph's `AsyncGraphRunStream`. Raises RuntimeError
        on trio, where the implementations of LangChain and LangGraph do not run.
        """
        if options.get("version") == "v3":
            return self._streams_of(input, config, options)
        return self._langchain_events(input, config, options)

    async def _langchain_events(
        self, input: Any, config: Config, options: dict[str, Any]
    ) -> AsyncIterator[StreamEvent]:
        _check_asyncio("astream_events")
        async with aclosing(super().astream_events(input, config, **options)) as events:
            async for event in events:
                yield event

    async def _streams_of(self, input: Any, config: Config, options: dict[str, Any]) -> Any:
        _check_asyncio('astream_events(version="v3")')
        return await self.as_graph().astream_events(input, config, **options)

    def stream_events(self, input: Any, config: Config = None, **options: Any) -> Any:
        """Return LangGraph's event streams of a run, from sync code; `version="v3"` is required."""
        if options.get("version") != "v3":
            return super().stream_events(input, config, **options)
        return self.as_graph().stream_events(input, config, **options)

    def _request(
        self,
        input: Any,
        config: Config,
        modes: StreamModes | None,
        output_keys: Keys | None,
        version: Version,
        *,
        context: Any = None,
        print_mode: StreamModes = (),
        interrupt_before: NodeNames = None,
        interrupt_after: NodeNames = None,
        durability: Durability | None = None,
        control: RunControl | None = None,
        budget: float | None = None,
        debug: bool | None = None,
        subgraphs: bool = False,
        **unknown_options: object,
    ) -> Request:
        if unknown_options:
            name = min(unknown_options)
            hint = no_such("option", name, StreamOptions.__annotations__)
            if name in RunnableConfig.__annotations__:
                hint = f"{name!r} is a key of the config: config={{{name!r}: ...}}"
            elif name in _CONFIGURABLE:
                hint = f"{name!r} is a key of the config: config={{'configurable': {{{name!r}: ...}}}}"
            raise TypeError(f"a run of an agent: {hint}")
        if budget is not None:
            check_seconds("budget", budget, zero=False)
        check_type("debug", debug, bool, "True")
        check_type("subgraphs", subgraphs, bool, "True")
        check_run_options(version, durability, control)
        check_stops("interrupt_before", interrupt_before, self._runner.plan.flow.nodes)
        check_stops("interrupt_after", interrupt_after, self._runner.plan.flow.nodes)
        if output_keys is not None:
            keys = sorted(parse_names("output_keys", output_keys, "keys of the state, such as ['messages']"))
            if unknown := [key for key in keys if key not in self._runner.plan.schema.specs]:
                names = ", ".join(map(repr, unknown))
                raise ValueError(f"The state has no key {names}; see output_keys={output_keys!r}")
        prints: frozenset[str] = frozenset()
        if print_mode or debug or self._runner.debug:
            prints = parse_modes("print_mode", ("updates", "values") if self._runner.debug or debug else print_mode)
        return Request(
            input=input,
            config=run_config(self.config, config),
            context=context,
            breakpoints=Breakpoints(
                before=interrupt_before or self._breakpoints.before, after=interrupt_after or self._breakpoints.after
            ),
            durability=durability,
            control=control,
            budget=self._budget if budget is None else budget,
            modes=prints | parse_modes("stream_mode", modes) if modes else prints,
            entry_mode=self._entry_mode,
            subgraphs=subgraphs,
            message_events=False,
            prints=prints,
            output_keys=output_keys,
        )

    async def drain(self, timeout: float = PATIENCE) -> Drained:
        """Refuse new runs, wait for the current runs, and return how many have finished and how many were cancelled.

        A run that is ended raises `DrainingError` where it was started. Its thread is kept and can be resumed with
        input `None`, in this process or another. A call that had begun and is not idempotent is then handled by its
        policy's `on_unknown`. If the task that calls `drain()` is cancelled, the current runs are ended at once. To
        begin runs again, enter the agent with `async with`.

        Args:
            timeout: seconds to wait, by default 30. Runs that have not finished by then are cancelled, and get their
                grace for clean-up.

        Raises:
            TypeError: if `timeout` is no number.
            ValueError: if `timeout` is negative or NaN.
        """
        return await self._runner.in_flight.drain(timeout)

    async def aclose(self, timeout: float = PATIENCE) -> None:
        """Wait for the current runs, as `drain` does, and close the databases that were opened for the agent's URLs.

        After `open()`, it also stops the agent's actors. A closed agent can be used again, and then opens its databases
        again. A drained agent stays drained.

        Args:
            timeout: seconds to wait for the runs, by default 30; runs that have not finished by then are cancelled.

        Raises:
            TypeError: if `timeout` is no number.
            ValueError: if `timeout` is negative or NaN.
            RuntimeError: if `open()` was awaited in another event loop.
        """
        if self._current_owner() is None:
            await self._finish_runs(timeout)
            return
        runs = self._runner.in_flight
        with runs.preserve_state():  # no run begins between the two steps
            try:
                await runs.drain(timeout)
            finally:
                await super().aclose()

    def close(self, timeout: float = PATIENCE) -> None:
        """Close the agent as `aclose` does, from sync code; `timeout` is in seconds."""
        run_from_sync(partial(self.aclose, timeout))

    async def __aenter__(self) -> Self:
        """Start actors; leaving the `async with` block waits for runs, stops the actors and closes databases."""
        await self._runner.plan.tools.actors.open()
        self._runner.in_flight.reopen()
        self._runner.live_runs.enter_block()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._finish_runs(
            PATIENCE,
            self._runner.plan.tools.actors.close,
            self._runner.live_runs.leave_block,
            self._runner.background_calls.leave_block,
        )

    async def _finish_runs(self, timeout: float, *stop_functions: Callable[[], Awaitable[object]]) -> None:
        """Wait for the current runs, call the functions that stop actors, and close the databases."""
        runs = self._runner.in_flight
        async with AsyncExitStack() as stack:
            # Left in reverse order: runs end, actors stop, and databases close, since both write to them. The state is
            # restored after that: no run begins meanwhile. Afterwards runs may begin, unless the agent was drained.
            stack.enter_context(runs.preserve_state())
            stack.push_async_callback(close, self.checkpointer, self._runner.store)
            for stop_actors in stop_functions:
                stack.push_async_callback(stop_actors)
            await runs.drain(timeout)

    @property
    def tools(self) -> ToolNode:
        """Node that runs the tool calls in the replies of the agent's model."""
        return self._runner.plan.tools.node

    def running(self) -> list[LiveCall]:
        """Return the state of each call of the agent's runs that has not ended; see `ToolNode.running`.

        Calls of an agent inside of a tool are those of that agent.
        """
        return self.tools.running()

    async def cancel(self, call_id: str, reason: str = "", *, thread_id: str | None = None) -> bool:
        """Cancel one call, with the agents and calls inside of it, while its run goes on.

        Arguments and errors are those of `ToolNode.cancel`.
        """
        return await self.tools.cancel(call_id, reason, thread_id=thread_id)

    async def aget_state(self, config: RunnableConfig, *, subgraphs: bool = False) -> StateSnapshot:
        """Return the state of a thread as a snapshot: its values, its next tasks, and its open questions.

        Args:
            config: names the thread by `thread_id`, and with a `checkpoint_id` an earlier position in its history.
            subgraphs: accepted for compatibility with LangGraph, and ignored.

        Raises:
            ValueError: if the agent has no checkpointer, the config has no `thread_id`, or the thread has no such
                checkpoint.
            StorageError: if the database cannot be used, or its data are damaged.
        """
        past = "checkpoint_id" in run_config(self.config, config)["configurable"]
        thread = await self._open_thread(config, for_reading=past)
        return snapshot_of(thread, by_call=self._runner.plan.by_call, past=past)

    async def aget_state_history(
        self,
        config: RunnableConfig,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[StateSnapshot]:
        """Yield a snapshot of every position in the history of a thread, the latest first.

        A run can continue from any position: pass the `config` of its snapshot.

        Args:
            config: names the thread by `thread_id`.
            filter: metadata that a snapshot must have, such as `{"source": "input"}`.
            before: config with a `checkpoint_id`; only earlier positions are returned.
            limit: largest number of snapshots; `None` for no limit.

        Raises:
            ValueError: if the agent has no checkpointer, or the config has no `thread_id`.
            StorageError: if the database cannot be used, or its data are damaged.
        """
        until = None if before is None else before["configurable"]["checkpoint_id"]
        thread = await self._open_thread(config)
        snapshots = history_of(thread, filter=filter, before=until, limit=limit, by_call=self._runner.plan.by_call)
        async with aclosing(snapshots):
            async for snapshot in snapshots:
                yield snapshot

    async def aupdate_state(
        self, config: RunnableConfig, values: Any, as_node: str | None = None, task_id: str | None = None
    ) -> RunnableConfig:
        """Change the state of a thread while no run uses it; return the config of the changed thread.

        Args:
            config: names the thread by `thread_id`; with a `checkpoint_id`, a new branch starts at that position.
            values: the change, in the form of a node's output.
            as_node: name of the node to attribute the change to; its successor runs next. `__end__`: nothing runs next.
                Default: the node that ran last.
            task_id: accepted for compatibility with LangGraph, and ignored.

        Raises:
            ValueError: if the agent has no checkpointer, the config has no `thread_id`, or the thread has no such
                checkpoint.
            InvalidUpdateError: if the node does not exist, or the values cannot update the state.
            ThreadBusyError: if a run uses the thread; that run would overwrite the change.
            StorageError: if the database cannot be used, or its data are damaged.
        """
        return await update(await self._open_thread(config), self._runner.plan.flow, values, as_node)

    # LangGraph's protocol has another name for the second parameter than its graphs, which this method replaces.
    async def abulk_update_state(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, config: RunnableConfig, supersteps: Sequence[Sequence[StateUpdate]]
    ) -> RunnableConfig:
        """Apply several updates to a thread, one after the other; return the config of the changed thread.

        Args:
            config: names the thread by `thread_id`; with a `checkpoint_id`, a new branch starts at that position.
            supersteps: lists of LangGraph's `StateUpdate`: values, and the node to attribute them to. All lists are
                applied in their order.

        Raises:
            ValueError: if there is no update, and in the cases of `aupdate_state`.
            InvalidUpdateError: see `aupdate_state`; earlier updates stay applied.
            ThreadBusyError: if a run uses the thread.
            StorageError: if the database cannot be used, or its data are damaged.
        """
        if not any(supersteps):
            raise ValueError("No supersteps provided" if not supersteps else "No updates provided")
        for state_update in (state_update for superstep in supersteps for state_update in superstep):
            config = await self.aupdate_state(config, state_update.values, state_update.as_node)
        return config

    def get_state(self, config: RunnableConfig, *, subgraphs: bool = False) -> StateSnapshot:
        """Return the state of a thread as `aget_state` does, from sync code."""
        return run_from_sync(partial(Agent.aget_state, self._copy_for_sync(), config, subgraphs=subgraphs))

    def get_state_history(self, config: RunnableConfig, **kwargs: Any) -> Iterator[StateSnapshot]:
        """Yield the snapshots of a thread's history as `aget_state_history` does, from sync code."""
        return iterate_from_sync(Agent.aget_state_history(self._copy_for_sync(), config, **kwargs))

    def update_state(
        self, config: RunnableConfig, values: Any, as_node: str | None = None, task_id: str | None = None
    ) -> RunnableConfig:
        """Change the state of a thread as `aupdate_state` does, from sync code."""
        return run_from_sync(partial(Agent.aupdate_state, self._copy_for_sync(), config, values, as_node))

    # As for `abulk_update_state`.
    def bulk_update_state(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, config: RunnableConfig, supersteps: Sequence[Sequence[StateUpdate]]
    ) -> RunnableConfig:
        """Apply several updates to a thread as `abulk_update_state` does, from sync code."""
        return run_from_sync(partial(Agent.abulk_update_state, self._copy_for_sync(), config, supersteps))

    async def _open_thread(self, config: RunnableConfig, *, for_reading: bool = False) -> SavedThread:
        config = run_config(self.config, config)
        if self.checkpointer is True:
            config = for_all_visits(config)
        if (saver := saver_for(checkpointer_in(config) or self.checkpointer, config, None)) is None:
            raise ValueError(
                "No checkpointer set: the agent stores nothing; give it one, checkpointer='sqlite:///agent.db'"
            )
        with entered_from(self._entry_mode):
            return cast(
                "SavedThread",
                await open_thread(self._runner.plan, saver, config, None, "async", for_reading=for_reading),
            )


def _check_asyncio(method: str) -> None:
    if current_loop().name == "trio":
        raise RuntimeError(
            f"{method} is LangChain's and needs asyncio; on trio, read "
            'agent.astream(stream_mode=["updates", "messages", "custom"]) or observe()'
        )


_CONFIGURABLE = ("thread_id", "checkpoint_id", "checkpoint_ns")
