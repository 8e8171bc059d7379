"""Task: let a model run Python that cannot read files, use the network or start programs."""

import anyio

from callboard import ToolNode, create_react_agent
from callboard.testing import ScriptedModel, calls
from callboard_actors.python import Python, python_tool


async def main():
    codes = [
        "x = 6 * 7",
        "x",
        "open('/etc/passwd').read()",
        "import socket; socket.socket()",
    ]
    model = ScriptedModel([*(calls(("run_python", {"code": code})) for code in codes), "Done."])
    agent = create_react_agent(model, ToolNode([python_tool(Python(timeout=10.0))]), checkpointer="memory")
    async with agent:
        state = await agent.ainvoke({"messages": [("user", "Compute.")]}, {"configurable": {"thread_id": "1"}})
    results = [message.content for message in state["messages"] if message.type == "tool"]

    assert results[:2] == ["Done; no output.", "Out[2]: 42"]
    assert all("PermissionError" in result for result in results[2:])


if __name__ == "__main__":
    anyio.run(main)
    anyio.run(main, backend="trio")
