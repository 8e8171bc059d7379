"""Reports about a run and its model requests, which observers and LangChain's callback handlers receive.

Callback handlers see the agent and each of its nodes as chain runs, which contain the runs of models and tools.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, TypeVar
from uuid import UUID, uuid4

from langchain_core.callbacks import AsyncCallbackManager, AsyncCallbackManagerForChainRun, BaseCallbackHandler
from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import patch_config
from langchain_core.tracers import BaseTracer
from langchain_core.tracers._streaming import _StreamingCallbackHandler
from langchain_core.utils.uuid import uuid7
from langgraph.errors import GraphInterrupt
from langgraph.types import TracePolicy

from callboard._calls._observers import current_run, note_of_run, numbers
from callboard._langchain._callbacks import HandlerContext, manager_of_run, may_be_traced, own_span, tell
from callboard._langgraph._node_scope import traced_payload
from callboard._loops._bridge import run_on_asyncio
from callboard._loops._current import current_loop
from callboard._loops._deadline import cleanup
from callboard._loops._protocol import EventLoop
from callboard._records._events import RunEvent, RunInfo, RunObserver, RunPhase
from callboard.conversations._thread import Thread
from callboard.tools._background import handle_in
from callboard.tools._ledger import CallsInterrupted

R = TypeVar("R")


class RunReporter:
    """Object that reports one run to its observers."""

    def __init__(self, observers: tuple[RunObserver, ...], info: RunInfo, loop: EventLoop) -> None:
        self.question_ids: tuple[str, ...] = ()
        """Ids of the open questions at the end of the run."""
        self.result: object = None
        """Values of the state at the end of the run; `None` before, and after a failure."""
        self._observers = observers
        self._info = info
        self._loop = loop

    def notify(self, phase: RunPhase, **facts: Any) -> None:
        event = RunEvent(phase=phase, run=self._info, time=self._loop.now(), **facts)
        for observer in self._observers:
            observer(event)

    def report_messages(self, messages: Sequence[BaseMessage], point: Literal["input", "turn", "end"]) -> None:
        """Report messages that the run has read: with its input, before a turn, or where it would have ended."""
        for message in messages:
            handle = handle_in(message)
            self.notify("read", input=message, facts={"point": point} | ({"background": handle} if handle else {}))

    async def ask(
        self,
        model: object,
        model_input: object,
        ask: Callable[[], Awaitable[R]],
        reply_in: Callable[[R], object] | None = None,
        *,
        response_format: Any = None,
    ) -> R:
        """Send a request to the model by calling `ask`; report request and reply to observers; return the result."""
        # `response_format` is for a replay, which replaces this method: the form of a structured response in the
        # result.
        self.notify("asked", model=model, input=model_input)
        token = note_of_run.set(lambda decision, facts: self.notify("noted", note=decision, facts=facts))
        try:
            reply = await ask()
        except BaseException as error:
            self.notify("answered", model=model, error=error)
            raise
        finally:
            note_of_run.reset(token)
        self.notify("answered", model=model, result=reply if reply_in is None else reply_in(reply))
        return reply


@contextmanager
def report_run(
    observers: tuple[RunObserver, ...], agent: str, config: RunnableConfig, thread: Thread, run_input: object
) -> Generator[RunReporter]:
    """Report the start and the end of a run on a thread to observers; yield the reporter of the run."""
    conf = config["configurable"]
    thread_id = None if "thread_id" not in conf else str(conf["thread_id"])
    run_id = str(config.get("run_id") or uuid4())
    info = RunInfo(
        number=next(numbers),
        agent=agent,
        run_id=run_id,
        thread_id=thread_id,
        namespace=thread.namespace,
        resumes=thread.mark,
    )
    reporter = RunReporter(observers, info, current_loop())
    token = current_run.set(info)
    failure: BaseException | None = None
    reporter.notify("begun", input=run_input)
    try:
        yield reporter
    except BaseException as error:
        failure = error
        raise
    finally:
        current_run.reset(token)
        ids = reporter.question_ids
        reporter.notify("ended", error=failure, questions=len(ids), question_ids=ids, result=reporter.result)
        failure = None  # its traceback refers to this frame: break the cycle


Body = Callable[[RunnableConfig], Awaitable[Any]]
"""Async function that runs an agent or a node; nested runs get the config that it is given."""


def trace_agent(
    run: Body,
    run_input: Any,
    config: RunnableConfig,
    name: str,
    handlers: Sequence[BaseCallbackHandler],
) -> Awaitable[Any]:
    """Run an agent and return its result; callback handlers see it as a chain run, and `handlers` its nested runs."""
    # Instrumentation such as OpenInference adds its handlers to each manager that is made: an empty one shows them.
    if not handlers and not may_be_traced(config) and not AsyncCallbackManager([]).handlers:
        return run(config)
    manager = _manager(config, ())
    if not manager.handlers and not handlers:
        return run(config)
    if "ls_integration" not in manager.metadata:
        manager.add_metadata({"ls_integration": "langgraph"})  # by which LangSmith recognizes an agent
    return _in_chain_run(run, run_input, config, config.get("run_name") or name, manager, extra_handlers=handlers)


def trace_node(
    run: Body,
    node_input: Any,
    config: RunnableConfig,
    name: str,
    *,
    display: Callable[[Any], Any] | None = None,
    policy: TracePolicy | None = None,
) -> Awaitable[Any]:
    """Run a node and return its result; report it to callback handlers as a separate chain run."""
    manager = _manager(config, [f"graph:step:{config['metadata']['langgraph_step']}"])
    if not manager.handlers:
        return run(config)
    return _in_chain_run(run, node_input, config, name, manager, display=display, policy=policy, streams=True)


def _manager(config: RunnableConfig, tags: Sequence[str]) -> AsyncCallbackManager:
    return AsyncCallbackManager.configure(
        inheritable_callbacks=config.get("callbacks"),
        inheritable_tags=config.get("tags"),
        local_tags=list(tags),
        inheritable_metadata=config.get("metadata"),
    )


async def _in_chain_run(
    run: Body,
    chain_input: Any,
    config: RunnableConfig,
    name: str,
    manager: AsyncCallbackManager,
    *,
    extra_handlers: Sequence[BaseCallbackHandler] = (),
    display: Callable[[Any], Any] | None = None,
    policy: TracePolicy | None = None,
    streams: bool = False,
) -> Any:
    """Run an agent or a node, report it to callback handlers as a chain run, and return its result."""
    run_id = config.get("run_id") or uuid7()
    run_facts = {"run_id": run_id, "parent_run_id": manager.parent_run_id, "tags": manager.tags}
    context, policy = HandlerContext(), policy or TracePolicy()

    async def report(event: str, *args: Any, transform: Callable[[Any], Any] | None = None, **facts: Any) -> None:
        """Report an event; tracers get its payload, the last of `args`, as the policy of the node records it."""
        recorded = traced_payload(args[-1], transform)
        tracers: list[BaseCallbackHandler] = []
        if recorded is not args[-1]:
            # Readers of streams are tracers, too, but need the messages themselves.
            tracers = [
                handler
                for handler in manager.handlers
                if isinstance(handler, BaseTracer) and _StreamingCallbackHandler not in type(handler).__mro__
            ]
        other_handlers = [handler for handler in manager.handlers if handler not in tracers]
        for handlers, payload in ((other_handlers, args[-1]), (tracers, recorded)):
            await tell(handlers, context, event, "ignore_chain", *args[:-1], payload, **facts, **run_facts)

    with own_span():
        await report(
            "on_chain_start", None, chain_input, transform=policy.process_inputs, metadata=manager.metadata, name=name
        )
        try:
            # Handlers in `extra_handlers` get the events of nested runs only.
            inner = manager_of_run(AsyncCallbackManagerForChainRun, manager, run_id, extra_handlers).get_child()
            result = await run(patch_config(config, callbacks=inner))
        except (Exception, current_loop().cancelled_class) as error:
            # Also after a cancellation, within its grace: tracers show a run only once its end was reported.
            with cleanup():
                await report("on_chain_error", _as_langgraph_raises(error))
            raise
        output = result if display is None else display(result)
        if streams:
            await run_on_asyncio(partial(_stream_output, manager.handlers, run_id, output))
        await report("on_chain_end", output, transform=policy.process_outputs)
    return result


async def _stream_output(handlers: Sequence[BaseCallbackHandler], run_id: UUID, output: Any) -> None:
    """Pass an output to the handlers of `astream_events` as the only chunk of a stream, as LangGraph does."""

    async def only() -> AsyncIterator[Any]:
        yield output

    for handler in handlers:
        if isinstance(handler, _StreamingCallbackHandler):
            async for _ in handler.tap_output_aiter(run_id, only()):
                pass


def _as_langgraph_raises(error: BaseException) -> BaseException:
    """Return an error as callback handlers expect it: `CallsInterrupted` becomes LangGraph's `GraphInterrupt`."""
    if isinstance(error, CallsInterrupted):
        # By this name, tracers recognise a run that waits for a person.
        return GraphInterrupt(error.interrupts).with_traceback(error.__traceback__)
    return error
