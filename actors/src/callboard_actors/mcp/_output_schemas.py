"""Validation of results by the output schemas of tools, in a worker thread if it may take long.

Schemas are untrusted. The SDK would validate in the event loop without any limit, with a backtracking regex engine.
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
"""Maximum number of worker threads that validate for one server at a time."""
_TOO_LONG = "its schema asks for more work than it may: simplify the schema"


class OutputSchemas:
    """Output schemas of the tools of one server, with their validators."""

    def __init__(self) -> None:
        self._schemas: dict[str, dict[str, Any]] = {}
        self._judges: dict[str, Judge | None] = {}
        """Validators by tool; `None` for a schema that takes too long to check."""
        self._threads: anyio.CapacityLimiter | None = None

    def learn(self, tools: Iterable[Tool]) -> None:
        """Take the schemas from a new listing; validators of unchanged schemas are kept."""
        before = self._schemas
        self._schemas = {tool.name: tool.output_schema for tool in tools if tool.output_schema is not None}
        self._judges = {name: one for name, one in self._judges.items() if self._schemas.get(name) == before[name]}

    def judge_for(self, session: ClientSession) -> None:
        """Replace the validation of an SDK session."""
        session.validate_tool_result = self._judge  # type: ignore[method-assign]

    async def _judge(self, name: str, result: CallToolResult) -> None:
        """Raise `RuntimeError`, in the SDK's wording, for an invalid result."""
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
            # The tools may have been listed again during the await; then this validator is outdated.
            if self._schemas.get(name) is schema:
                self._judges[name] = judge
        else:
            judge = self._judges[name]
        if judge is None:
            return _TOO_LONG
        return await self._run(judge.misfit, value, is_small(schema) and is_small(value))

    async def _run(self, judge: Callable[[Any, int | None], T], value: object, is_light: bool) -> T:
        """Validate in the event loop if that takes few steps, otherwise in a thread."""
        if is_light:
            try:
                return judge(value, FEW_STEPS)
            except OverBudgetError:
                pass
        return await self._in_thread(partial(judge, value, None))

    async def _in_thread(self, judge: Callable[[], T]) -> T:
        """Run a validation in a thread. A cancelled call abandons the thread, which ends by its own budget."""
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(_THREADS)
        return await anyio.to_thread.run_sync(judge, abandon_on_cancel=True, limiter=self._threads)


def _judge_of(schema: dict[str, Any], steps: int | None) -> Judge | None:
    """Return the validator of a schema; `None` if even a thread takes too long to check the schema."""
    try:
        return Judge(schema, steps)
    except OverBudgetError:
        if steps is not None:
            raise
        return None
