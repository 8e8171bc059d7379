"""Task: a tool with state, one instance for each user; the model cannot choose the user."""

import anyio

from callboard import Actor, ToolNode, child, create_react_agent, handler
from callboard.testing import ScriptedModel, calls


class Notebook(Actor):
    """Notes of one user."""

    async def start(self) -> None:
        self.lines = []

    def snapshot(self) -> list[str]:
        return self.lines

    def restore(self, lines: list[str]) -> None:
        self.lines = lines

    @handler
    async def note(self, text: str) -> str:
        """Write a note, and return all notes."""
        self.lines.append(text)
        return ", ".join(self.lines)


def by_user(call, context):
    return context.config["configurable"]["user_id"]


async def main():
    def write(*texts):
        return [reply for text in texts for reply in (calls(("note", {"text": text})), "Noted.")]

    node = ToolNode([child(Notebook, key=by_user, cap=100, idle=600.0)], timeout=5.0)
    agent = create_react_agent(ScriptedModel(write("tea", "ham", "egg")), node)
    contents = []
    async with agent:
        for user in ("ann", "bob", "ann"):
            state = await agent.ainvoke({"messages": [("user", "Note it.")]}, {"configurable": {"user_id": user}})
            contents.append(state["messages"][2].content)

    assert contents == ["tea", "ham", "tea, egg"]


if __name__ == "__main__":
    anyio.run(main)
    anyio.run(main, backend="trio")
