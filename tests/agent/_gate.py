"""Tool that waits until the test lets it go on, and a run that waits in it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
from langgraph.checkpoint.memory import InMemorySaver

from callboard.testing import ScriptedModel, calls

from ._savers import AT, QUESTION


class Gate:
    """Tool `work`."""

    def __init__(self, end: Callable[[], str] = lambda: "worked") -> None:
        self.begun, self.open, self._end = anyio.Event(), anyio.Event(), end

    async def work(self) -> str:
        """Work."""
        self.begun.set()
        await self.open.wait()
        return self._end()


@asynccontextmanager
async def run_at_work(
    make: Any, gate: Gate, *, tool: Any = None, model: Any = None, saver: Any = None
) -> AsyncIterator[tuple[Any, Any]]:
    """Start a run of a new agent, and return both when its first call waits.

    Args:
        make: makes the agent.
        gate: where the call waits.
        tool: calls the tool of the gate; by default, it is that tool.
        model: by default, it calls the tool, and replies once more.
        saver: by default, it is in memory.
    """
    model = model or ScriptedModel([calls("work"), "done"])
    async with make(model, [tool or gate.work], checkpointer=saver or InMemorySaver()) as agent:
        run = await agent.start(QUESTION, AT)
        await gate.begun.wait()
        yield agent, run
