"""A run of an agent, as callback handlers see it: one chain run around its models and tools."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from langchain_core.callbacks import AsyncCallbackManager, AsyncCallbackManagerForChainRun, BaseCallbackHandler
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import patch_config
from langchain_core.tracers._streaming import _StreamingCallbackHandler
from langchain_core.utils.uuid import uuid7
from langgraph.errors import GraphInterrupt

from callboard._loops._bridge import run_on_asyncio
from callboard._loops._current import current_loop
from callboard._loops._deadline import cleanup
from callboard.tools._handlers import manager_of_run, own_span, tell
from callboard.tools._interrupted import CallsInterrupted

Body = Callable[[RunnableConfig], Awaitable[Any]]
"""Takes the config for what it runs in its turn."""


async def traced(
    run: Body,
    given: Any,
    config: RunnableConfig,
    name: str,
    *,
    handlers: Sequence[BaseCallbackHandler] = (),
    metadata: Mapping[str, Any] | None = None,
) -> Any:
    """Run an agent below a chain run of its own; without handlers there is none.

    Args:
        run: takes the config for what the agent runs in its turn.
        given: the agent's input.
        config: complete.
        name: of the run, unless the config names it.
        handlers: more of them, for what runs below.
        metadata: more of it, unless the config has the same.
    """
    manager = _manager(config, ())
    if not manager.handlers and not handlers:
        return await run(config)
    manager.add_metadata({key: value for key, value in (metadata or {}).items() if key not in manager.metadata})
    return await _ChainRun(manager, config, config.get("run_name") or name, handlers).surround(run, given)


async def traced_node(
    run: Body,
    given: Any,
    config: RunnableConfig,
    name: str,
    shown: Callable[[Any], Any] | None = None,
) -> Any:
    """Run a node of an agent below a chain run of its own; without handlers there is none.

    Args:
        run: takes the config for what the node runs in its turn.
        given: the node's input.
        config: the node's.
        name: of the run.
        shown: from what the node returns to what handlers are shown of it.
    """
    manager = _manager(config, [f"graph:step:{config['metadata']['langgraph_step']}"])
    if not manager.handlers:
        return await run(config)
    return await _ChainRun(manager, config, name).surround(run, given, shown=shown or _as_it_is, streams=True)


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
    """One chain run, as its handlers see it.

    Args:
        manager: of the handlers.
        config: of what runs below, but for its callbacks.
        name: of the run.
        handlers: more of them, for what runs below.
    """

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
        """Do what the run consists of, and tell how it begins and ends."""
        with own_span():
            await self.started(given, self._name)
            try:
                result = await run(patch_config(self._config, callbacks=self._child()))
            except (Exception, current_loop().cancelled_class) as error:
                # A run that nobody ends is one that tracers never show.
                with cleanup():
                    await self.failed(error)
                raise
            output = shown(result)
            if streams:
                await run_on_asyncio(partial(self.streamed, output))
            await self.ended(output)
        return result

    def _child(self) -> AsyncCallbackManager:
        """The callbacks for what runs below, with more handlers."""
        return manager_of_run(AsyncCallbackManagerForChainRun, self._around, self._id, self._more).get_child()

    async def started(self, given: Any, name: str) -> None:
        await self._tell("on_chain_start", None, given, metadata=self._around.metadata, name=name)

    async def ended(self, output: Any) -> None:
        await self._tell("on_chain_end", output)

    async def failed(self, error: BaseException) -> None:
        await self._tell("on_chain_error", _as_langgraph_raises(error))

    async def streamed(self, output: Any) -> None:
        """Let those who make events of a stream see an output as its only chunk, as LangGraph does."""

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
    """Questions as LangGraph raises them: tracers tell them from a failure by the name of the class."""
    if isinstance(error, CallsInterrupted):
        return GraphInterrupt(error.interrupts).with_traceback(error.__traceback__)
    return error
