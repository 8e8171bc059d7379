"""LangChain's callback handlers, told of an event on asyncio and on trio.

langchain-core's own dispatcher is asyncio's. This one tells the same handlers the same things in the same
order: inline handlers first, each in turn and in the caller's context, then the others together.

What a handler sets of context variables, such as the current span, holds for what the run does below, where
LangChain has it so: for inline handlers, and for all sync ones if the run was entered from sync code.
"""

import inspect
import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import anyio
from langchain_core.callbacks import AsyncCallbackManager, BaseCallbackHandler, BaseRunManager
from opentelemetry import context as spans

from callboard._loops._bridge import run_on_asyncio
from callboard._loops._door import from_sync

_log = logging.getLogger("callboard")
_UNSET = object()

Manager = TypeVar("Manager", bound=BaseRunManager)


@contextmanager
def own_span() -> Generator[None]:
    """A block after which the current span is again what it was, whatever handlers have made of it.

    A tracer that makes its span the current one may forget to take it back, or fail to.
    """
    token = spans.attach(spans.get_current())
    try:
        yield
    finally:
        spans.detach(token)


def manager_of_run(
    kind: type[Manager], around: AsyncCallbackManager, run_id: UUID, more: Sequence[BaseCallbackHandler] = ()
) -> Manager:
    """What LangChain has for one run, for those within it who tell of what they do.

    Args:
        kind: of a tool's run, or of a chain's.
        around: the manager by whose handlers the run is seen.
        run_id: of the run.
        more: handlers for what runs below.
    """
    return kind(
        run_id=run_id,
        handlers=around.handlers,
        inheritable_handlers=[*around.inheritable_handlers, *more] if more else around.inheritable_handlers,
        parent_run_id=around.parent_run_id,
        tags=around.tags,
        inheritable_tags=around.inheritable_tags,
        metadata=around.metadata,
        inheritable_metadata=around.inheritable_metadata,
    )


async def tell(
    handlers: Sequence[BaseCallbackHandler], event: str, ignored: str, /, *args: object, **kwargs: object
) -> None:
    """Tell all handlers of an event.

    Args:
        handlers: whom to tell.
        event: the name of their method.
        ignored: the attribute by which a handler says that it does not want such events.
        args: of the event.
        kwargs: of the event.
    """
    wanting = [handler for handler in handlers if not getattr(handler, ignored)]
    for handler in wanting:
        if handler.run_inline:
            await _tell_one(handler, event, args, kwargs)
    others = [handler for handler in wanting if not handler.run_inline]
    if len(others) == 1 or from_sync():
        for handler in others:
            await _tell_one(handler, event, args, kwargs)
    elif others:
        await _tell_together(others, event, args, kwargs)


async def _tell_together(
    handlers: Sequence[BaseCallbackHandler], event: str, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    errors: list[Exception] = []

    async def tell_it(handler: BaseCallbackHandler) -> None:
        try:
            await _tell_one(handler, event, args, kwargs)
        except Exception as exc:
            errors.append(exc)

    async with anyio.create_task_group() as group:
        for handler in handlers:
            group.start_soon(tell_it, handler)
    if errors:
        raise errors[0]


async def _tell_one(
    handler: BaseCallbackHandler, event: str, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    method: Any = getattr(handler, event)
    try:
        if inspect.iscoroutinefunction(method):
            # Handlers are written for asyncio, so on trio they run there.
            await run_on_asyncio(partial(method, *args, **kwargs))
        elif handler.run_inline:
            method(*args, **kwargs)
        elif from_sync():
            await _in_thread_as_here(partial(method, *args, **kwargs))
        else:
            await anyio.to_thread.run_sync(partial(method, *args, **kwargs))
    except NotImplementedError as exc:
        _log.warning("NotImplementedError in %s.%s callback: %r", type(handler).__name__, event, exc)
    except Exception as exc:
        _log.warning("Error in %s.%s callback: %r", type(handler).__name__, event, exc)
        if handler.raise_error:
            raise


async def _in_thread_as_here(fn: Callable[[], object]) -> None:
    """Run a function in a worker thread; the context variables that it sets are set here too."""
    there = copy_context()
    await anyio.to_thread.run_sync(partial(there.run, fn))
    for variable, value in there.items():
        if variable.get(_UNSET) is not value:
            variable.set(value)
