"""A conversation is inspected, and continued from the middle with another call and another ending.

The thread is in a SQLite file. The model had called a tool for a train. A person goes back to this position and changes
the call to a flight, and the agent continues from there. The first ending is kept. Earlier calls do not run again.
"""

import tempfile
from pathlib import Path

import anyio
from langchain_core.messages import BaseMessage
from langgraph.types import StateSnapshot

from callboard import create_react_agent
from callboard.testing import ScriptedModel, calls

THREAD = {"configurable": {"thread_id": "trip"}}
looked_up: list[str] = []


async def look_up(subject: str) -> str:
    """Look something up."""
    looked_up.append(subject)
    return {"weather": "sun in Rome", "train": "19 hours", "flight": "3 hours"}[subject]


def think(messages: list[BaseMessage]) -> BaseMessage | str:
    """Return the reply of a model: first the weather, then the train, then the result."""
    if messages[-1].type == "human":
        return calls(("look_up", {"subject": "weather"}))
    if messages[-1].text.startswith("sun"):
        return calls(("look_up", {"subject": "train"}))
    return f"It takes {messages[-1].text}."


def in_words(snapshot: StateSnapshot) -> str:
    messages = snapshot.values["messages"]
    last = (messages[-1].text or f"look up {messages[-1].tool_calls[0]['args']['subject']}") if messages else "(empty)"
    return f"{snapshot.metadata['step']:2}  {last:18} next: {', '.join(snapshot.next) or 'nothing'}"


async def main(url: str) -> None:
    looked_up.clear()
    agent = create_react_agent(ScriptedModel([think], loop=True), [look_up], checkpointer=url)
    async with agent:
        await agent.ainvoke({"messages": [("user", "To Rome, please")]}, THREAD)
        snapshots = [snapshot async for snapshot in agent.aget_state_history(THREAD)]
        print("where it has been:", *map(in_words, snapshots), sep="\n  ")
        assert len(snapshots) == 7
        assert looked_up == ["weather", "train"]

        snapshot = next(snapshot for snapshot in snapshots if snapshot.next == ("tools",))
        request = snapshot.values["messages"][-1]
        edited = request.model_copy(update={"tool_calls": [{**request.tool_calls[0], "args": {"subject": "flight"}}]})
        changed = await agent.aupdate_state(snapshot.config, {"messages": [edited]})
        result = await agent.ainvoke(None, changed)
        print("with a flight:", result["messages"][-1].text)
        assert result["messages"][-1].text == "It takes 3 hours."
        assert looked_up == ["weather", "train", "flight"]

        first = await agent.aget_state(snapshots[0].config)
        print("what it said at first:", first.values["messages"][-1].text)
        assert first.values["messages"][-1].text == "It takes 19 hours."


if __name__ == "__main__":
    for backend in ("asyncio", "trio"):
        with tempfile.TemporaryDirectory() as directory:
            anyio.run(main, f"sqlite:///{Path(directory) / 'agent.db'}", backend=backend)
