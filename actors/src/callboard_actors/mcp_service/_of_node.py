"""A `ToolNode`, served: each of its tools is a tool of the server, and each call a supervised call of the node."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any
from uuid import uuid4

from langchain_core.messages import ToolCall
from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime
from mcp import types
from pydantic import ValidationError

from callboard import CallsInterrupted, Drained, ToolCallWithContext, ToolNode
from callboard_actors.mcp._tools import ServersTool
from callboard_actors.mcp_service._content import ERRORS_OF_CALLS, failed_with, result_of
from callboard_actors.mcp_service._listing import check_servable, listed
from callboard_actors.mcp_service._questions import Asked, asked
from callboard_actors.mcp_service._typed_results import result_type
from callboard_actors.mcp_service._work import Asking, Tell


class NodeOffer:
    """The tools of a node.

    Args:
        node: has them.
        name: of the server.
        promises_schemas: whether what a tool's function returns is what its client gets; a middleware of the node may
            put something else in its place.

    Raises:
        ValueError: a tool needs what only a graph has.
    """

    def __init__(self, node: ToolNode, *, name: str, promises_schemas: bool) -> None:
        check_servable(node)
        self.name = name
        self._node = node
        self._results = {name: result_type(tool) for name, tool in node.tools_by_name.items()}
        self._of_servers = {name for name, tool in node.tools_by_name.items() if isinstance(tool, ServersTool)}
        self._promises_schemas = promises_schemas

    def tools(self) -> list[types.Tool]:
        """The tools that the node offers now."""
        return [listed(tool, self._output_schema(tool.name)) for tool in self._node.offered_tools()]

    def _output_schema(self, name: str) -> dict[str, Any] | None:
        found = self._results[name]
        return found.schema if found is not None and self._promises_schemas else None

    def begin(self, name: str, arguments: dict[str, Any], key: str | None) -> "NodeCall | None":
        """A call of a tool, which has not begun."""
        if name not in self._results:
            return None
        call: ToolCall = {"name": name, "args": arguments, "id": key or uuid4().hex, "type": "tool_call"}
        told = partial(result_of, structured=self._results[name] is not None, of_server=name in self._of_servers)
        return NodeCall(self._node, call, _place(key), told)

    def opened(self) -> AbstractAsyncContextManager[object]:
        """A block in which the node's actors live."""
        return self._node

    async def drain(self, timeout: float) -> Drained:
        """Drain the node; `timeout` is in seconds."""
        return await self._node.drain(timeout)


def _place(key: str | None) -> RunnableConfig:
    """Where a call is made: one that its client knows again is in a place of that name, which gives it its key."""
    return {} if key is None else {"configurable": {"thread_id": key, "checkpoint_ns": "mcp"}}


class NodeCall:
    """One call of a tool of a node."""

    def __init__(
        self, node: ToolNode, call: ToolCall, place: RunnableConfig, told: Callable[[object], types.CallToolResult]
    ) -> None:
        self._node = node
        self._call = call
        self._place = place
        self._told = told
        self._ledger: dict[str, Any] = {}
        """What the node knows of the call while it waits for a person."""
        self._questions: list[Asked] = []

    async def go_on(self, answers: Mapping[str, object], tell: Tell) -> types.CallToolResult | Asking:
        """Run the call, or go on with it."""
        # With a state, though an empty one: it is there for arguments that may be without it.
        given = ToolCallWithContext(__type="tool_call_with_context", tool_call=self._call, state={})
        runtime: Runtime[Any] = Runtime(stream_writer=tell)
        try:
            outcome = await self._node.ainvoke(
                given, self._place, ledger=self._ledger, resume=answers or None, runtime=runtime
            )
        except CallsInterrupted as waiting:
            self._questions = asked(waiting.interrupts)
            return Asking(self._questions)
        except ValidationError as error:
            if not answers:
                return failed_with(error)
            return Asking(self._questions, str(error))  # the question stays open
        except ERRORS_OF_CALLS as error:
            return failed_with(error)
        return self._told(outcome)

    async def forget(self) -> None:
        """Does nothing: of a call of a node, nothing is kept outside of this object."""
