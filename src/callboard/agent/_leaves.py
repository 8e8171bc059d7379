"""Models, hooks and prompts: a run that sync code started runs their sync half, any other run their async half."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from anyio.from_thread import check_cancelled
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import Runnable, RunnableConfig, RunnableParallel, RunnableSequence, RunnableWithFallbacks
from langchain_core.runnables.base import RunnableBindingBase

from callboard._loops._bridge import run_on_asyncio
from callboard._loops._current import current_loop
from callboard._loops._door import from_sync, is_missing
from callboard._loops._threads import run_in_thread

T = TypeVar("T")


async def run_leaf(leaf: Runnable[Any, T], given: Any, config: RunnableConfig, name: str) -> T:
    """Run what a user gave: by the sync door in a worker thread, unless it is async only, else on asyncio.

    Args:
        leaf: what to run.
        given: its input.
        config: with the runtime in it.
        name: what to call it if its thread goes on after the run.
    """
    if from_sync() and has_sync_half(leaf):
        return await run_function(partial(leaf.invoke, given, config), name)
    return await run_on_asyncio(partial(leaf.ainvoke, given, config))


async def run_model(model: Runnable[Any, T], given: Any, config: RunnableConfig) -> T:
    """`run_leaf` for a model; a cancelled one in a thread stops at its next token."""
    if from_sync():
        config = _with_handler(config, _StopsAtToken())
    return await run_leaf(model, given, config, "the model")


async def run_function(fn: Callable[[], T], name: str) -> T:
    """Run a sync function in a worker thread. There are as many as are asked for: it may run agents in its turn."""
    return await run_in_thread(current_loop(), fn, name, _Nobody())


def has_sync_half(leaf: Runnable[Any, Any]) -> bool:
    """Whether a Runnable, with all that it consists of, can be invoked; some are made of a coroutine alone."""
    if parts := _parts(leaf):
        return all(has_sync_half(part) for part in parts)
    cls, own = type(leaf), getattr(leaf, "__dict__", {})
    for sync, awaited in _HALVES:
        if own.get(awaited) is not None and own.get(sync) is None:
            return False
    return not any(is_missing(getattr(cls, name, None)) for name in ("invoke", "_generate"))


_HALVES = (("func", "afunc"), ("_transform", "_atransform"))
"""What Runnables that are made of functions keep them as."""


def _parts(leaf: Runnable[Any, Any]) -> Sequence[Runnable[Any, Any]]:
    if isinstance(leaf, RunnableBindingBase):
        return [leaf.bound]
    if isinstance(leaf, RunnableSequence):
        return leaf.steps
    if isinstance(leaf, RunnableParallel):
        return list(leaf.steps__.values())
    return list(leaf.runnables) if isinstance(leaf, RunnableWithFallbacks) else []


class _Nobody:
    """Notes nothing of threads that outlive their run: nobody waits for a place that they hold."""

    def thread_abandoned(self) -> None:
        pass

    def thread_ended(self) -> None:
        pass


class _StopsAtToken(BaseCallbackHandler):
    """Ends the thread of a model that nobody waits for any more; between two tokens nothing can."""

    run_inline = True
    raise_error = True

    @property
    def ignore_chat_model(self) -> bool:
        """Whether to ignore the other events of chat models: the tokens are enough."""
        return True

    def on_llm_new_token(self, *_: Any, **__: Any) -> None:
        with suppress(RuntimeError):  # of a model that tells of its tokens from a thread of its own
            check_cancelled()


def _with_handler(config: RunnableConfig, handler: BaseCallbackHandler) -> RunnableConfig:
    callbacks: Any = config.get("callbacks")
    if callbacks is None or isinstance(callbacks, list):
        return {**config, "callbacks": [*(callbacks or ()), handler]}
    manager = callbacks.copy()
    manager.add_handler(handler, inherit=True)
    return {**config, "callbacks": manager}
