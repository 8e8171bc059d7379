"""A run of an agent, as callback handlers see it: one chain run around its models and tools."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from langchain_core.callbacks import AsyncCallbackManager, BaseCallbackHandler
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import patch_config

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
    manager = AsyncCallbackManager.configure(
        inheritable_callbacks=config.get("callbacks"),
        inheritable_tags=config.get("tags"),
        inheritable_metadata=config.get("metadata"),
    )
    if not manager.handlers and not handlers:
        return await run(config)
    manager.add_metadata({key: value for key, value in (metadata or {}).items() if key not in manager.metadata})
    name = config.get("run_name") or name
    start = partial(manager.on_chain_start, None, given, name=name, run_id=config.get("run_id"))
    chain = await run_on_asyncio(start)
    chain.inheritable_handlers.extend(handlers)
    try:
        result = await run(patch_config(config, callbacks=chain.get_child()))
    except Exception as error:
        await run_on_asyncio(partial(chain.on_chain_error, error))
        raise
    await run_on_asyncio(partial(chain.on_chain_end, result))
    return result
