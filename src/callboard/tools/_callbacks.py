"""LangChain callbacks for one tool run, on asyncio and on trio."""

from typing import Any
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackManager, AsyncCallbackManagerForToolRun, CallbackManager
from langchain_core.messages import ToolCall
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langchain_core.utils.uuid import uuid7

from callboard._loops._deadline import cleanup
from callboard.tools._handlers import manager_of_run, tell
from callboard.tools._plan import Plan


def manager_for(plan: Plan, config: RunnableConfig) -> AsyncCallbackManager:
    """Return the callback manager for runs of a tool under a config; the same for all calls of a batch."""
    if plan.is_foreign:
        return AsyncCallbackManager([])  # its own `ainvoke` calls the handlers; here they would be called twice
    tool = plan.tool
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
    """Callback manager for nested runs that makes its attributes at first access; most bodies never read them.

    Each attribute that `__init__` would have set becomes a copy of the child's own, as with LangChain's managers.
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
    """Callback manager for runs nested in an async body."""


class _SyncChild(_LazyChild, CallbackManager):
    """Callback manager for runs nested in a body in a worker thread."""


class ToolRun:
    """Run of a tool, as reported to callback handlers. Without handlers it reports nothing."""

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
        """Run manager for a tool that has a `run_manager` parameter."""
        return manager_of_run(AsyncCallbackManagerForToolRun, self.around, self.id)

    def child(self, *, sync: bool) -> AsyncCallbackManager | CallbackManager:
        """Return the callback manager for runs nested in the body."""
        # Without `__init__`: it would copy the handlers, tags and metadata of each run, which `_LazyChild` makes on
        # demand.
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

    async def cut_off(self, error: BaseException, call_id: str | None) -> None:
        """Report the end of a cancelled run; tracers never show a run without an end."""
        if self.is_watched:
            # On trio a cancelled scope cancels every await in it. Shielded, the handlers have the call's grace.
            with cleanup():
                await self.failed(error, call_id)

    async def _tell(self, event: str, *args: object, **kwargs: object) -> None:
        kwargs |= {"run_id": self.id, "parent_run_id": self.around.parent_run_id, "tags": self.around.tags}
        await tell(self.around.handlers, event, "ignore_agent", *args, **kwargs)
