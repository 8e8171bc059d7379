"""A run with a budget of one second: then its calls are cancelled, and the conversation continues without them.

One of two searches has finished by then and keeps its result; the other gets an error message with the reason.
The stored conversation is complete, so the next message can be answered.
"""

import anyio
from langchain_core.messages import BaseMessage

from callboard import RunDeadlineExceededError, create_react_agent
from callboard.testing import ScriptedModel, calls

THREAD = {"configurable": {"thread_id": "search"}}


async def search(where: str, seconds: float) -> str:
    """Search, which takes its time."""
    await anyio.sleep(seconds)
    return f"found in {where}"


def think(messages: list[BaseMessage]) -> BaseMessage | str:
    """Return the reply of a model: two searches first, then an answer from the available results."""
    if len(messages) == 1:
        return calls(("search", {"where": "index", "seconds": 0}), ("search", {"where": "archive", "seconds": 3600}))
    return "The index has it; the archive was too slow."


async def main() -> None:
    agent = create_react_agent(ScriptedModel([think], loop=True), [search], checkpointer="memory", budget=1.0)
    with anyio.fail_after(30):
        try:
            await agent.ainvoke({"messages": [("user", "Find it")]}, THREAD)
        except RunDeadlineExceededError as error:
            print(error)

    state = await agent.aget_state(THREAD)
    quick, slow = state.values["messages"][2:]
    print("what the model will read:", quick.text, slow.text, sep="\n  ")
    assert quick.text == "found in index"
    assert slow.additional_kwargs["callboard"]["ended"] == "deadline"
    assert state.next == ("agent",)

    result = await agent.ainvoke({"messages": [("user", "Well?")]}, THREAD, budget=60)
    print(result["messages"][-1].text)
    assert [message.type for message in result["messages"]] == ["human", "ai", "tool", "tool", "human", "ai"]


if __name__ == "__main__":
    for backend in ("asyncio", "trio"):
        anyio.run(main, backend=backend)
