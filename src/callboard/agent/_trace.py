"""A run of an agent, as callback handlers see it: one chain run around its models and tools."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from langchain_core.callbacks import AsyncCallbackManager, AsyncCallbackManagerForChainRun, BaseCallbackHandler
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import patch_config
from langchain_core.tracers._streaming import _StreamingCallbackHandler

from callboard._bridge import run_on_asyncio


async def traced(
    run: Callable[[RunnableConfig], Awaitable[Any]],
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
    return await _chain(manager, run, given, config, config.get("run_name") or name, handlers=handlers)


async def traced_node(
    run: Callable[[RunnableConfig], Awaitable[Any]],
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
    return await _chain(manager, run, given, config, name, shown=shown or _as_it_is, streams=True)


def _as_it_is(output: Any) -> Any:
    return output


def _manager(config: RunnableConfig, tags: Sequence[str]) -> AsyncCallbackManager:
    return AsyncCallbackManager.configure(
        inheritable_callbacks=config.get("callbacks"),
        inheritable_tags=config.get("tags"),
        local_tags=list(tags),
        inheritable_metadata=config.get("metadata"),
    )


async def _chain(
    manager: AsyncCallbackManager,
    run: Callable[[RunnableConfig], Awaitable[Any]],
    given: Any,
    config: RunnableConfig,
    name: str,
    *,
    handlers: Sequence[BaseCallbackHandler] = (),
    shown: Callable[[Any], Any] = _as_it_is,
    streams: bool = False,
) -> Any:
    start = partial(manager.on_chain_start, None, given, name=name, run_id=config.get("run_id"))
    chain = await run_on_asyncio(start)
    chain.inheritable_handlers.extend(handlers)
    try:
        result = await run(patch_config(config, callbacks=chain.get_child()))
    except Exception as error:
        await run_on_asyncio(partial(chain.on_chain_error, error))
        raise
    output = shown(result)
    if streams:
        await run_on_asyncio(partial(_streamed, chain, output))
    await run_on_asyncio(partial(chain.on_chain_end, output))
    return result


async def _streamed(chain: AsyncCallbackManagerForChainRun, output: Any) -> None:
    """Let those who make events of a stream see an output as its only chunk, as LangGraph does."""

    async def only() -> AsyncIterator[Any]:
        yield output

    for handler in chain.handlers:
        if isinstance(handler, _StreamingCallbackHandler):
            async for _ in handler.tap_output_aiter(chain.run_id, only()):
                pass
