"""Tool behind several shared caches, each of which acts as a separate process."""

from typing import Any

import anyio
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool

from callboard import CallPolicy, ToolNode
from callboard.extend import SharedDocuments
from callboard.middleware import Cache
from callboard.testing import tool_call
from tests.helpers import make

from ._world import WAIT, World


class Tool:
    """Tool in several processes; each run has a number."""

    def __init__(self) -> None:
        self.runs = 0
        self.gate: anyio.Event | None = None
        self.error: Exception | None = None

    async def work(self, n: int = 0) -> str:
        """Work."""
        self.runs += 1
        run, gate = self.runs, self.gate
        if gate is not None:
            await gate.wait()
        if self.error is not None:
            raise self.error
        return f"run {run}"

    def process(self, store: SharedDocuments, policy: CallPolicy | None = None, **options: Any) -> "Process":
        options = {"key": by_number, **options}
        return Process(make(self.work), Cache({"work"}, shared=store, **options), policy)


def by_number(request: Any) -> int:
    return int(request.tool_call["args"].get("n", 0))


class Process:
    """Node with a cache, which stands for one process."""

    def __init__(self, tool: BaseTool, cache: Cache, policy: CallPolicy | None = None) -> None:
        self.cache = cache
        policies = {} if policy is None else {"work": policy}
        self.node = ToolNode([tool], middleware=[cache], handle_tool_errors=True, policies=policies)
        self.answers: list[ToolMessage] = []

    async def call(self, n: int = 0, call_id: str = "1") -> Any:
        """Return the text that the model reads."""
        with anyio.fail_after(WAIT):
            result = await self.node.ainvoke([tool_call("work", call_id, n=n)])
        self.answers += result["messages"]
        return self.answers[-1].content


async def landed(world: World) -> None:
    """Wait until the store has received the result; the calls themselves do not wait for it."""
    await world.pass_time(0.1)
