"""LangChain callbacks around one tool run, on asyncio and on trio.

langchain-core's own dispatcher is asyncio's. This one tells the same handlers the same things in the same
order: inline handlers first, each in turn and in the caller's context, then the others together.
"""

import inspect
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any
from uuid import UUID

import anyio
from langchain_core.callbacks import (
    AsyncCallbackManager,
    AsyncCallbackManagerForToolRun,
    BaseCallbackHandler,
    CallbackManager,
)
from langchain_core.messages import ToolCall
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langchain_core.utils.uuid import uuid7

from callboard._bridge import run_on_asyncio

_log = logging.getLogger("callboard")


def manager_for(tool: BaseTool, config: RunnableConfig) -> AsyncCallbackManager:
    """The callback manager for the runs of a tool under a config; the same for every call of a batch."""
    return AsyncCallbackManager.configure(
        config.get("callbacks"),
        tool.callbacks,
        tool.verbose,
        config.get("tags"),
        tool.tags,
        config.get("metadata"),
        tool.metadata,
    )


class _LazyChild:
    """Callbacks for whatever a body runs, made when somebody looks; nobody does, most of the time.

    Every attribute that the managers' `__init__` would have set is its own copy all the same.
    """

    _run: "ToolRun"

    def __getattr__(self, name: str) -> Any:
        if name == "parent_run_id":
            value: Any = self._run.id
        elif name in ("handlers", "inheritable_handlers"):
            value = self._run.around.inheritable_handlers.copy()
        elif name in ("tags", "inheritable_tags"):
            value = self._run.around.inheritable_tags.copy()
        elif name in ("metadata", "inheritable_metadata"):
            value = self._run.around.inheritable_metadata.copy()
        else:
            raise AttributeError(name)
        setattr(self, name, value)
        return value


class _AsyncChild(_LazyChild, AsyncCallbackManager):
    """Where the body is async."""


class _SyncChild(_LazyChild, CallbackManager):
    """Where it is not."""


class ToolRun:
    """One run of a tool, as its handlers see it; says nothing where there are none."""

    __slots__ = ("_id", "_tool", "around", "is_watched")

    def __init__(self, tool: BaseTool, manager: AsyncCallbackManager, run_id: UUID | None) -> None:
        self._tool = tool
        self.around = manager
        self.is_watched = bool(manager.handlers)
        self._id = run_id

    @property
    def id(self) -> UUID:
        if self._id is None:
            self._id = uuid7()
        return self._id

    @property
    def manager(self) -> AsyncCallbackManagerForToolRun:
        """What a tool with a `run_manager` parameter is given."""
        around = self.around
        return AsyncCallbackManagerForToolRun(
            run_id=self.id,
            handlers=around.handlers,
            inheritable_handlers=around.inheritable_handlers,
            parent_run_id=around.parent_run_id,
            tags=around.tags,
            inheritable_tags=around.inheritable_tags,
            metadata=around.metadata,
            inheritable_metadata=around.inheritable_metadata,
        )

    def child(self, *, sync: bool) -> AsyncCallbackManager | CallbackManager:
        """The callbacks for whatever the body runs in its turn."""
        child = _SyncChild.__new__(_SyncChild) if sync else _AsyncChild.__new__(_AsyncChild)
        child._run = self
        return child

    async def started(self, call: ToolCall, run_name: str | None) -> None:
        tool = self._tool
        inputs = tool._filter_injected_args(call["args"])
        await self._tell(
            "on_tool_start",
            {"name": tool.name, "description": tool.description},
            str(inputs),
            metadata=self.around.metadata,
            color="green",
            name=run_name,
            inputs=inputs,
            tool_call_id=call["id"],
        )

    async def ended(self, output: object) -> None:
        await self._tell("on_tool_end", output, color="green", name=self._tool.name)

    async def failed(self, error: BaseException, call_id: str | None) -> None:
        await self._tell("on_tool_error", error, tool_call_id=call_id)

    async def _tell(self, event: str, *args: object, **kwargs: object) -> None:
        kwargs |= {"run_id": self.id, "parent_run_id": self.around.parent_run_id, "tags": self.around.tags}
        await _tell(self.around.handlers, event, *args, **kwargs)


async def _tell(handlers: Sequence[BaseCallbackHandler], event: str, *args: object, **kwargs: object) -> None:
    for handler in handlers:
        if handler.run_inline:
            await _tell_one(handler, event, args, kwargs)
    others = [handler for handler in handlers if not handler.run_inline]
    if len(others) == 1:
        await _tell_one(others[0], event, args, kwargs)
    elif others:
        await _tell_together(others, event, args, kwargs)


async def _tell_together(
    handlers: Sequence[BaseCallbackHandler], event: str, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    errors: list[Exception] = []

    async def tell(handler: BaseCallbackHandler) -> None:
        try:
            await _tell_one(handler, event, args, kwargs)
        except Exception as exc:
            errors.append(exc)

    async with anyio.create_task_group() as group:
        for handler in handlers:
            group.start_soon(tell, handler)
    if errors:
        raise errors[0]


async def _tell_one(
    handler: BaseCallbackHandler, event: str, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    if handler.ignore_agent:
        return
    method: Any = getattr(handler, event)
    try:
        if inspect.iscoroutinefunction(method):
            # Handlers are written for asyncio, so on trio they run there.
            await run_on_asyncio(partial(method, *args, **kwargs))
        elif handler.run_inline:
            method(*args, **kwargs)
        else:
            await anyio.to_thread.run_sync(partial(method, *args, **kwargs))
    except NotImplementedError as exc:
        _log.warning("NotImplementedError in %s.%s callback: %r", type(handler).__name__, event, exc)
    except Exception as exc:
        _log.warning("Error in %s.%s callback: %r", type(handler).__name__, event, exc)
        if handler.raise_error:
            raise
