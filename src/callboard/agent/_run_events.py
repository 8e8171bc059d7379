"""Reports of one run and of its model requests: to observers, and to LangChain's callback handlers.

For callback handlers, the agent and its nodes are chain runs around models and tools.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from langchain_core.callbacks import AsyncCallbackManager, AsyncCallbackManagerForChainRun, BaseCallbackHandler
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import patch_config
from langchain_core.tracers._streaming import _StreamingCallbackHandler
from langchain_core.utils.uuid import uuid7
from langgraph.errors import GraphInterrupt

from callboard._calls._observers import current_observers, current_run, numbers
from callboard._loops._bridge import run_on_asyncio
from callboard._loops._current import current_loop
from callboard._loops._deadline import cleanup
from callboard._loops._protocol import EventLoop
from callboard._records._events import RunEvent, RunInfo, RunObserver, RunPhase
from callboard.tools._callbacks import manager_of_run, own_span, tell
from callboard.tools._ledger import CallsInterrupted

R = TypeVar("R")


class RunReporter:
    """Reports a run to its observers; does nothing without observers."""

    def __init__(self, observers: tuple[RunObserver, ...], info: RunInfo, loop: EventLoop) -> None:
        self.questions = 0
        """Number of open questions at the end of the run."""
        self.result: object = None
        """State at the end of the run."""
        self._observers = observers
        self._info = info
        self._loop = loop

    def tell(self, phase: RunPhase, **facts: Any) -> None:
        """Send an event to all observers."""
        event = RunEvent(phase=phase, run=self._info, time=self._loop.now(), **facts)
        for observer in self._observers:
            observer(event)

    def ask(self, model: object, given: object, ask: Callable[[], Awaitable[R]]) -> Awaitable[R]:
        """Send a request to the model, and report the request and the reply."""
        return self._told(model, given, ask) if self._observers else ask()

    async def _told(self, model: object, given: object, ask: Callable[[], Awaitable[R]]) -> R:
        self.tell("asked", model=model, given=given)
        try:
            reply = await ask()
        except BaseException as error:
            self.tell("answered", model=model, error=error)
            raise
        self.tell("answered", model=model, result=reply)
        return reply


@contextmanager
def reported(
    agent: str, config: RunnableConfig, namespace: str, mark: str | None, given: object
) -> Generator[RunReporter]:
    """Report the start and the end of a run; `mark` is the mark that an observer left where the run resumes."""
    observers = current_observers().runs
    conf = config["configurable"]
    thread_id = None if "thread_id" not in conf else str(conf["thread_id"])
    run_id = str(config.get("run_id") or uuid4()) if observers else ""
    info = RunInfo(
        number=next(numbers), agent=agent, run_id=run_id, thread_id=thread_id, namespace=namespace, resumes=mark
    )
    reporter = RunReporter(observers, info, current_loop())
    if not observers:
        yield reporter
        return
    token = current_run.set(info)
    failure: BaseException | None = None
    reporter.tell("begun", given=given)
    try:
        yield reporter
    except BaseException as error:
        failure = error
        raise
    finally:
        current_run.reset(token)
        reporter.tell("ended", error=failure, questions=reporter.questions, result=reporter.result)
        failure = None  # its traceback refers to this frame: break the cycle


Body = Callable[[RunnableConfig], Awaitable[Any]]
"""Runs with the config for nested runs."""


def traced(
    run: Body,
    given: Any,
    config: RunnableConfig,
    name: str,
    *,
    handlers: Sequence[BaseCallbackHandler] = (),
    metadata: Mapping[str, Any] | None = None,
) -> Awaitable[Any]:
    """Run an agent as a chain run of its own; without callback handlers, no chain run is made.

    `handlers` are further handlers for nested runs. The config's own values win over `metadata` and `name`.
    """
    manager = _manager(config, ())
    if not manager.handlers and not handlers:
        return run(config)
    manager.add_metadata({key: value for key, value in (metadata or {}).items() if key not in manager.metadata})
    return _ChainRun(manager, config, config.get("run_name") or name, handlers).surround(run, given)


def traced_node(
    run: Body,
    given: Any,
    config: RunnableConfig,
    name: str,
    shown: Callable[[Any], Any] | None = None,
) -> Awaitable[Any]:
    """Run a node as a chain run of its own; without callback handlers, no chain run is made.

    `shown` returns the node's output as handlers see it.
    """
    manager = _manager(config, [f"graph:step:{config['metadata']['langgraph_step']}"])
    if not manager.handlers:
        return run(config)
    return _ChainRun(manager, config, name).surround(run, given, shown=shown or _as_it_is, streams=True)


def _as_it_is(output: Any) -> Any:
    return output


def _manager(config: RunnableConfig, tags: Sequence[str]) -> AsyncCallbackManager:
    return AsyncCallbackManager.configure(
        inheritable_callbacks=config.get("callbacks"),
        inheritable_tags=config.get("tags"),
        local_tags=list(tags),
        inheritable_metadata=config.get("metadata"),
    )


class _ChainRun:
    """Chain run as seen by callback handlers; `handlers` are further handlers for nested runs."""

    def __init__(
        self,
        manager: AsyncCallbackManager,
        config: RunnableConfig,
        name: str,
        handlers: Sequence[BaseCallbackHandler] = (),
    ) -> None:
        self._around = manager
        self._id = config.get("run_id") or uuid7()
        self._config = config
        self._name = name
        self._more = handlers

    async def surround(
        self, run: Body, given: Any, *, shown: Callable[[Any], Any] = _as_it_is, streams: bool = False
    ) -> Any:
        """Run the body and report its start and its end."""
        with own_span():
            await self.started(given, self._name)
            try:
                result = await run(patch_config(self._config, callbacks=self._child()))
            except (Exception, current_loop().cancelled_class) as error:
                # Also after a cancellation, within its grace: tracers show a run only once its end was reported.
                with cleanup():
                    await self.failed(error)
                raise
            output = shown(result)
            if streams:
                await run_on_asyncio(partial(self.streamed, output))
            await self.ended(output)
        return result

    def _child(self) -> AsyncCallbackManager:
        """Return the callbacks of nested runs, with the further handlers."""
        return manager_of_run(AsyncCallbackManagerForChainRun, self._around, self._id, self._more).get_child()

    async def started(self, given: Any, name: str) -> None:
        await self._tell("on_chain_start", None, given, metadata=self._around.metadata, name=name)

    async def ended(self, output: Any) -> None:
        await self._tell("on_chain_end", output)

    async def failed(self, error: BaseException) -> None:
        await self._tell("on_chain_error", _as_langgraph_raises(error))

    async def streamed(self, output: Any) -> None:
        """Pass an output to `astream_events` handlers as the only chunk of a stream, as LangGraph does."""

        async def only() -> AsyncIterator[Any]:
            yield output

        for handler in self._around.handlers:
            if isinstance(handler, _StreamingCallbackHandler):
                async for _ in handler.tap_output_aiter(self._id, only()):
                    pass

    async def _tell(self, event: str, *args: Any, **kwargs: Any) -> None:
        about = {"run_id": self._id, "parent_run_id": self._around.parent_run_id, "tags": self._around.tags}
        await tell(self._around.handlers, event, "ignore_chain", *args, **about, **kwargs)


def _as_langgraph_raises(error: BaseException) -> BaseException:
    """Return interrupts as LangGraph's exception: tracers tell them from failures by the class name."""
    if isinstance(error, CallsInterrupted):
        return GraphInterrupt(error.interrupts).with_traceback(error.__traceback__)
    return error
