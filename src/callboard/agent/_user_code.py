"""Models, hooks and prompts of the user: sync runs use their sync methods, async runs their async methods."""

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
from callboard._loops._entry_mode import is_missing, is_sync_entry
from callboard._loops._threads import run_in_thread

T = TypeVar("T")


async def run_user_code(leaf: Runnable[Any, T], given: Any, config: RunnableConfig, name: str) -> T:
    """Run a Runnable of the user: in a sync run in a worker thread, if it has a sync method; otherwise on asyncio.

    `name` is used in warnings if the thread outlives the run.
    """
    if is_sync_entry() and has_sync_half(leaf):
        return await run_function(partial(leaf.invoke, given, config), name)
    return await run_on_asyncio(partial(leaf.ainvoke, given, config))


async def run_model(model: Runnable[Any, T], given: Any, config: RunnableConfig) -> T:
    """Run a model as `run_user_code` does; in a thread, a cancelled model stops at its next token."""
    if is_sync_entry():
        config = _with_handler(config, _StopsAtToken())
    return await run_user_code(model, given, config, "the model")


async def run_function(fn: Callable[[], T], name: str) -> T:
    """Run a sync function in a worker thread."""
    # Without a limit of threads: the function may run agents, and they would wait for the thread that it holds.
    return await run_in_thread(current_loop(), fn, name, _Nobody())


def has_sync_half(leaf: Runnable[Any, Any]) -> bool:
    """Return whether a Runnable and all its parts can be invoked; some are made of a coroutine alone."""
    if parts := _parts(leaf):
        return all(has_sync_half(part) for part in parts)
    cls, own = type(leaf), getattr(leaf, "__dict__", {})
    for sync, awaited in _HALVES:
        if own.get(awaited) is not None and own.get(sync) is None:
            return False
    return not any(is_missing(getattr(cls, name, None)) for name in ("invoke", "_generate"))


_HALVES = (("func", "afunc"), ("_transform", "_atransform"))
"""Attributes in which Runnables keep their sync and async functions."""


def _parts(leaf: Runnable[Any, Any]) -> Sequence[Runnable[Any, Any]]:
    if isinstance(leaf, RunnableBindingBase):
        return [leaf.bound]
    if isinstance(leaf, RunnableSequence):
        return leaf.steps
    if isinstance(leaf, RunnableParallel):
        return list(leaf.steps__.values())
    return list(leaf.runnables) if isinstance(leaf, RunnableWithFallbacks) else []


class _Nobody:
    """Ignores threads that outlive their run: such a thread holds no permit of a limit."""

    def thread_abandoned(self) -> None:
        pass

    def thread_ended(self) -> None:
        pass


class _StopsAtToken(BaseCallbackHandler):
    """Ends the thread of a cancelled model at its next token; between two tokens, nothing can stop it."""

    # In the model's own thread, and with errors passed on: the raised cancellation has to reach the model.
    run_inline = True
    raise_error = True

    @property
    def ignore_chat_model(self) -> bool:
        """Return `True`: tokens are the only event of interest."""
        return True

    def on_llm_new_token(self, *_: Any, **__: Any) -> None:
        with suppress(RuntimeError):  # the model reports tokens from a thread that anyio did not start
            check_cancelled()


def _with_handler(config: RunnableConfig, handler: BaseCallbackHandler) -> RunnableConfig:
    callbacks: Any = config.get("callbacks")
    if callbacks is None or isinstance(callbacks, list):
        return {**config, "callbacks": [*(callbacks or ()), handler]}
    manager = callbacks.copy()
    manager.add_handler(handler, inherit=True)
    return {**config, "callbacks": manager}
