"""A batch of calls, an agent and a worker process on asyncio and trio, with the installed wheels.

No extra is needed. With `langchain`, there is an agent of `create_agent`, too.
"""

import math
import sys
from importlib.util import find_spec

import anyio
from langchain_core.messages import AIMessage

from callboard import CallPolicy, ToolNode, create_agent, create_react_agent, tool_call
from callboard.testing import ScriptedModel, calls
from callboard_actors.process import Processes

WITH_LANGCHAIN = find_spec("langchain") is not None


async def double(x: int) -> int:
    """Double a number after a moment, or never."""
    await anyio.sleep(0.01 if x else 3600)
    return x * 2


async def main() -> None:
    node = ToolNode([double], policies={"double": CallPolicy(timeout=0.5)})
    messages = (await node.ainvoke([tool_call("double", "1", x=21), tool_call("double", "2", x=0)]))["messages"]
    assert [message.status for message in messages] == ["success", "error"], messages
    for create in [create_react_agent, *([create_agent] if WITH_LANGCHAIN else [])]:
        agent = create(ScriptedModel([calls(("double", {"x": 4})), AIMessage("8")]), [double])
        assert [message.content for message in (await agent.ainvoke({"messages": "?"}))["messages"][2:]] == ["8", "8"]
    async with Processes(workers=1) as pool:
        assert await pool.run(math.sqrt, 4) == 2.0


for backend in ("asyncio", "trio"):
    anyio.run(main, backend=backend)
extras = "langchain" if WITH_LANGCHAIN else "no extra"
print(f"Python {sys.version.split()[0]}: the wheels work on asyncio and trio, with {extras}")
