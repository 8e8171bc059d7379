"""LangChain callbacks for one tool run, on asyncio and on trio.

langchain-core's own dispatcher needs asyncio. This one calls the same handlers with the same arguments in the same
order: inline handlers first, one by one in the caller's context, then the others concurrently.

Context variables that a handler sets, such as the current span, are visible to the nested run as in LangChain. This
holds for inline handlers, and for all sync handlers if the run was entered from sync code. Those are then called in one
context from the start of a run to its end: a handler that resets a variable at the end finds the context of its start.
"""

import inspect
import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import Context, ContextVar, Token, copy_context
from functools import cache, partial
from typing import Any, Final, Self, TypeVar
from uuid import UUID

import anyio
from langchain_core.callbacks import (
    AsyncCallbackManager,
    AsyncCallbackManagerForToolRun,
    BaseCallbackHandler,
    BaseRunManager,
    CallbackManager,
)
from langchain_core.callbacks import manager as langchain_manager
from langchain_core.globals import get_debug
from langchain_core.messages import ToolCall
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langchain_core.utils.uuid import uuid7
from opentelemetry import context as spans

from callboard._loops._bridge import run_on_asyncio
from callboard._loops._deadline import cleanup
from callboard._loops._entry_mode import is_sync_entry
from callboard._util._errors import raise_first

_log = logging.getLogger("callboard")
_UNSET = object()
_configure = langchain_manager._configure
_configure_method = vars(AsyncCallbackManager).get("configure")

Manager = TypeVar("Manager", bound=BaseRunManager)


@contextmanager
def own_span() -> Generator[None]:
    """Return a context manager that restores the current OpenTelemetry span at the end of its `with` block."""
    token = spans.attach(spans.get_current())
    try:
        yield
    finally:
        spans.detach(token)


def manager_of_run(
    kind: type[Manager], manager: AsyncCallbackManager, run_id: UUID, more_handlers: Sequence[BaseCallbackHandler] = ()
) -> Manager:
    """Return a LangChain run manager with the handlers of `manager`, and for nested runs also `more_handlers`."""
    return kind(
        run_id=run_id,
        handlers=manager.handlers,
        inheritable_handlers=[*manager.inheritable_handlers, *more_handlers]
        if more_handlers
        else manager.inheritable_handlers,
        parent_run_id=manager.parent_run_id,
        tags=manager.tags,
        inheritable_tags=manager.inheritable_tags,
        metadata=manager.metadata,
        inheritable_metadata=manager.inheritable_metadata,
    )


class HandlerContext:
    """Context in which sync handlers of one run are called in a worker thread, if the run was entered from sync code.

    Variables that they change are changed in the task of the run, too.
    """

    __slots__ = ("_changes", "_context")

    def __init__(self) -> None:
        self._context: Context | None = None
        self._changes: dict[ContextVar[Any], Token[Any]] = {}

    async def run(self, fn: Callable[[], object]) -> None:
        if self._context is None:
            self._context = copy_context()
        before = dict(self._context.items())
        await anyio.to_thread.run_sync(partial(self._context.run, fn))
        for variable, value in self._context.items():
            if before.pop(variable, _UNSET) is not value:
                token = variable.set(value)
                self._changes.setdefault(variable, token)
        for variable in before:  # reset to nothing
            if (first := self._changes.pop(variable, None)) is not None:
                variable.reset(first)


async def tell(
    handlers: Sequence[BaseCallbackHandler],
    context: HandlerContext,
    event: str,
    ignored: str,
    /,
    *args: object,
    **kwargs: object,
) -> None:
    """Call the method named by `event` on each callback handler, unless its attribute named by `ignored` is true."""
    wanting = [handler for handler in handlers if not getattr(handler, ignored)]
    for handler in wanting:
        if handler.run_inline:
            await _tell_one(handler, context, event, args, kwargs)
    threaded = [handler for handler in wanting if not handler.run_inline]
    if len(threaded) <= 1 or is_sync_entry():
        for handler in threaded:
            await _tell_one(handler, context, event, args, kwargs)
        return
    errors: list[Exception] = []

    async def tell_beside(handler: BaseCallbackHandler) -> None:
        try:
            await _tell_one(handler, context, event, args, kwargs)
        except Exception as exc:
            errors.append(exc)

    # Errors are collected, not raised in the tasks: one failing handler must not cancel the others.
    async with anyio.create_task_group() as group:
        for handler in threaded:
            group.start_soon(tell_beside, handler)
    raise_first(errors)


async def _tell_one(
    handler: BaseCallbackHandler,
    context: HandlerContext,
    event: str,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> None:
    method: Any = getattr(handler, event)
    try:
        if inspect.iscoroutinefunction(method):
            # Async handlers are written for asyncio; on trio they run in a background asyncio loop.
            await run_on_asyncio(partial(method, *args, **kwargs))
        elif handler.run_inline:
            method(*args, **kwargs)
        elif is_sync_entry():
            await context.run(partial(method, *args, **kwargs))
        else:
            await anyio.to_thread.run_sync(partial(method, *args, **kwargs))
    except NotImplementedError as exc:
        _log.warning("NotImplementedError in %s.%s callback: %r", type(handler).__name__, event, exc)
    except Exception as exc:
        _log.warning("Error in %s.%s callback: %r", type(handler).__name__, event, exc)
        if handler.raise_error:
            raise


# Managers of tools


NO_HANDLERS: Final = AsyncCallbackManager([])
"""Manager of tools that call callback handlers themselves."""


def manager_of_tool(tool: BaseTool, config: RunnableConfig) -> AsyncCallbackManager:
    """Return LangChain's callback manager for the runs of a tool, as `AsyncCallbackManager.configure` makes it."""
    # `configure` takes a fifth of the time of a batch with one call. If nothing is traced, its result is known: a
    # manager without handlers. `is_traced` asks the same sources in less than half of the time.
    callbacks, tags, metadata = config.get("callbacks"), config.get("tags"), config.get("metadata")
    if callbacks or tool.callbacks or tool.verbose or tags or tool.tags or tool.metadata or is_traced():
        return AsyncCallbackManager.configure(
            callbacks, tool.callbacks, tool.verbose, tags, tool.tags, metadata, tool.metadata
        )
    # Not shared between batches: instrumentation such as OpenInference adds its handlers to each manager that is made.
    return AsyncCallbackManager([], metadata={**(metadata or {})}, inheritable_metadata={**(metadata or {})})


def may_be_traced(config: RunnableConfig) -> bool:
    """Return whether callback handlers or LangSmith may record runs and spans within a run with this config."""
    return bool(config.get("callbacks")) or is_traced()


def is_traced() -> bool:
    """Return whether LangChain may trace a run although neither its config nor its tool asks for a trace."""
    # An instrumentation, such as Sentry's, may at any time replace what LangChain makes managers with.
    present_method = vars(AsyncCallbackManager).get("configure")
    if langchain_manager._configure is not _configure or present_method is not _configure_method or get_debug():
        return True
    get_context, is_enabled, tracer, hooks = _sources()
    context = get_context()
    if context["parent"] is not None or context["tags"] or context["metadata"] or is_enabled(context):
        return True
    if tracer.get() is not None:
        return True
    return any(env_var is not None or variable.get() is not None for variable, _, _, env_var in hooks)


@cache
def _sources() -> tuple[Callable[[], dict[str, Any]], Callable[[dict[str, Any]], Any], ContextVar[Any], list[Any]]:
    """Return what LangChain finds tracers by; only the first call imports LangSmith, which is slow."""
    from langchain_core.tracers.context import _configure_hooks, tracing_v2_callback_var
    from langsmith.run_helpers import get_tracing_context
    from langsmith.utils import tracing_is_enabled

    return get_tracing_context, tracing_is_enabled, tracing_v2_callback_var, _configure_hooks


class LazyManager:
    """Callback manager for nested runs that creates its attributes at first access; most tools never read them.

    Thousands of calls may wait, and copies of handlers, tags and metadata are a tenth of the memory of each.
    """

    tool_manager: AsyncCallbackManager
    run_id: UUID | None
    """Id of the tool's run; if it is `None`, an id is created when one is needed."""

    @classmethod
    def below(cls, manager: AsyncCallbackManager, run_id: UUID | None) -> Self:
        """Return a manager for the runs below a run of a tool, whose own manager is `manager`."""
        # Not by `__init__`, which has LangChain's parameters: LangChain's `copy` makes a manager of the same class.
        manager_of_nested_runs = cls.__new__(cls)
        manager_of_nested_runs.tool_manager = manager
        manager_of_nested_runs.run_id = run_id
        return manager_of_nested_runs

    def __getattr__(self, name: str) -> Any:
        if name == "parent_run_id":
            value: Any = self.run_id or uuid7()
        elif name in ("handlers", "inheritable_handlers"):
            value = self.tool_manager.inheritable_handlers.copy()
        elif name in ("tags", "inheritable_tags"):
            value = self.tool_manager.inheritable_tags.copy()
        elif name in ("metadata", "inheritable_metadata"):
            value = self.tool_manager.inheritable_metadata.copy()
        else:
            raise AttributeError(name)
        setattr(self, name, value)
        return value


class LazyAsyncManager(LazyManager, AsyncCallbackManager):
    """Lazy callback manager for nested runs that an async tool function starts, such as calls of a model."""


class LazySyncManager(LazyManager, CallbackManager):
    """Lazy callback manager for nested runs that a sync tool function starts in its worker thread."""


class ToolRun:
    """Run of a tool, as reported to callback handlers."""

    __slots__ = ("_context", "_tool", "id", "tool_manager")

    def __init__(self, tool: BaseTool, manager: AsyncCallbackManager, run_id: UUID | None) -> None:
        self._tool = tool
        self._context = HandlerContext()
        self.tool_manager = manager
        self.id = run_id or uuid7()

    @property
    def manager(self) -> AsyncCallbackManagerForToolRun:
        """LangChain's run manager, for a tool function with a parameter `run_manager`, which may change its lists."""
        return manager_of_run(AsyncCallbackManagerForToolRun, self.tool_manager.copy(), self.id)

    async def report_start(self, call: ToolCall, run_name: str | None) -> None:
        if not self.tool_manager.handlers:
            return  # the text of the arguments may be long
        tool = self._tool
        inputs = tool._filter_injected_args(call["args"])
        await self._tell(
            "on_tool_start",
            {"name": tool.name, "description": tool.description},
            str(inputs),
            metadata=self.tool_manager.metadata,
            color="green",
            name=run_name,
            inputs=inputs,
            tool_call_id=call["id"],
        )

    async def report_end(self, output: object) -> None:
        await self._tell("on_tool_end", output, color="green", name=self._tool.name)

    async def report_error(self, error: BaseException, call_id: str | None) -> None:
        await self._tell("on_tool_error", error, tool_call_id=call_id)

    async def report_cancel(self, error: BaseException, call_id: str | None) -> None:
        """Report a cancelled run as failed, because tracers show a run only if its end was reported."""
        # On trio a cancelled scope cancels every await in it. Shielded, the handlers have the call's grace.
        with cleanup():
            await self.report_error(error, call_id)

    async def _tell(self, event: str, *args: object, **kwargs: object) -> None:
        kwargs |= {"run_id": self.id, "parent_run_id": self.tool_manager.parent_run_id, "tags": self.tool_manager.tags}
        await tell(self.tool_manager.handlers, self._context, event, "ignore_agent", *args, **kwargs)
