"""Task: a person approves a dangerous call; the conversation is in SQLite, and another process goes on with it."""

import tempfile
from pathlib import Path

import anyio
from langgraph.types import Command

from callboard import ToolNode, create_react_agent
from callboard.middleware import RequireApproval
from callboard.testing import ScriptedModel, calls


async def main():
    deleted = []

    async def delete(path: str) -> str:
        """Delete a file."""
        deleted.append(path)
        return f"{path} deleted"

    def agent(replies):
        tools = ToolNode([delete], timeout=30.0, middleware=[RequireApproval(["delete"])])
        return create_react_agent(ScriptedModel(replies), tools, checkpointer=f"sqlite:///{database}")

    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "agent.db"
        config = {"configurable": {"thread_id": "ann"}}

        async with agent([calls(("delete", {"path": "old.txt"}))]) as first:
            paused_state = await first.ainvoke({"messages": [("user", "Delete old.txt.")]}, config)
        [question] = paused_state["__interrupt__"]
        assert question.value[0]["action_request"] == {"action": "delete", "args": {"path": "old.txt"}}
        assert deleted == []

        async with agent(["It is gone."]) as second:
            state = await second.ainvoke(Command(resume={question.id: {"type": "accept"}}), config)
        assert deleted == ["old.txt"]
        assert [message.content for message in state["messages"][2:]] == ["old.txt deleted", "It is gone."]

        async with agent(["You asked me to delete old.txt."]) as third:
            state = await third.ainvoke({"messages": [("user", "What did I ask?")]}, config)
        assert len(state["messages"]) == 6


if __name__ == "__main__":
    anyio.run(main)
    anyio.run(main, backend="trio")
