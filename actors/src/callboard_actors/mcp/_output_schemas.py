"""Output schemas of a server's tools: results are judged by them, off the event loop where that may take long.

A schema is a stranger's. The SDK would judge in the event loop, without a bound, and search by the schema's patterns
with an engine that goes back.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from mcp import ClientSession
from mcp_types import CallToolResult, Tool

from callboard_actors.mcp._judging import FEW_STEPS, Judge, OverBudgetError, is_small

T = TypeVar("T")

_THREADS = 2
"""Worker threads that judge for one server at a time."""
_TOO_LONG = "its schema asks for more work than it may: simplify the schema"


class OutputSchemas:
    """Output schemas of the tools of one server."""

    def __init__(self) -> None:
        self._schemas: dict[str, dict[str, Any]] = {}
        self._judges: dict[str, Judge | None] = {}
        """By tool; `None` for a schema that takes too long to check."""
        self._threads: anyio.CapacityLimiter | None = None

    def learn(self, tools: Iterable[Tool]) -> None:
        """Take in what the server has listed."""
        before = self._schemas
        self._schemas = {tool.name: tool.output_schema for tool in tools if tool.output_schema is not None}
        self._judges = {name: one for name, one in self._judges.items() if self._schemas.get(name) == before[name]}

    def judge_for(self, session: ClientSession) -> None:
        """Have a session of the SDK ask here, where it would judge by itself."""
        session.validate_tool_result = self._judge  # type: ignore[method-assign]

    async def _judge(self, name: str, result: CallToolResult) -> None:
        """Refuse what a tool should not have returned; the SDK's own words for it.

        Raises:
            RuntimeError: says why.
        """
        if (schema := self._schemas.get(name)) is None:
            return
        if result.structured_content is None and "structured_content" not in result.model_fields_set:
            raise RuntimeError(f"Tool {name} has an output schema but did not return structured content")
        try:
            why = await self._misfit(name, schema, result.structured_content)
        except OverBudgetError:
            why = _TOO_LONG
        if why is not None:
            raise RuntimeError(f"Invalid structured content returned by tool {name}: {why}")

    async def _misfit(self, name: str, schema: dict[str, Any], value: object) -> str | None:
        if name not in self._judges:
            judge: Judge | None = await self._run(_judge_of, schema, is_small(schema))
            if self._schemas.get(name) is schema:  # else it was listed anew meanwhile
                self._judges[name] = judge
        else:
            judge = self._judges[name]
        if judge is None:
            return _TOO_LONG
        return await self._run(judge.misfit, value, is_small(schema) and is_small(value))

    async def _run(self, judge: Callable[[Any, int | None], T], value: object, is_light: bool) -> T:
        """Judge at once if that takes few steps, and else in a thread."""
        if is_light:
            try:
                return judge(value, FEW_STEPS)
            except OverBudgetError:
                pass
        return await self._in_thread(partial(judge, value, None))

    async def _in_thread(self, judge: Callable[[], T]) -> T:
        """Judge in a thread. A call that is cancelled abandons the thread, which ends within its budget."""
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(_THREADS)
        return await anyio.to_thread.run_sync(judge, abandon_on_cancel=True, limiter=self._threads)


def _judge_of(schema: dict[str, Any], steps: int | None) -> Judge | None:
    """Return the judge of a schema; `None` if it takes too long to check, though in a thread."""
    try:
        return Judge(schema, steps)
    except OverBudgetError:
        if steps is not None:
            raise
        return None
