"""A log that is too long for a model: it is read once, shown in part, and searched page by page.

Two users request the same log at the same moment, on trio, and again a little later; the tool runs once. The model
gets the beginning of the log, and reads the page with the first error.
"""

from typing import Any

import anyio
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.store.memory import InMemoryStore

from callboard import CallEvent, ToolNode, create_react_agent, observe
from callboard.middleware import Cache, OutputBudget
from callboard.testing import ScriptedModel, calls

LINES = 2_000
TROUBLE = 700
RUNS: list[str] = []


@tool
async def read_log(service: str) -> str:
    """Read the log of a service."""
    RUNS.append(service)
    await anyio.sleep(0.1)
    return "".join(
        f"{number:04} {'disk is full' if number == TROUBLE else 'request served'}\n" for number in range(LINES)
    )


def last_result(messages: list[Any]) -> ToolMessage:
    return next(message for message in reversed(messages) if isinstance(message, ToolMessage))


def read_on(messages: list[Any]) -> Any:
    """Return the call that the text of a shortened result recommends."""
    message = last_result(messages)
    assert "characters left out. Read them with read_output(" in message.content
    output_id = message.additional_kwargs["callboard"]["output_id"]
    return calls(("read_output", {"output_id": output_id, "start": 13_500, "length": 2_000}))


def conclude(messages: list[Any]) -> str:
    disk_lines = [line for line in str(last_result(messages).content).splitlines() if "disk" in line]
    return f"The trouble began at {disk_lines}."


async def main() -> None:
    store = InMemoryStore()
    node = ToolNode([read_log], middleware=[OutputBudget(2_000), Cache({"read_log"}, ttl=60.0)])
    decided: list[str] = []
    answers: list[str] = []

    async def ask(thread: str) -> None:
        model = ScriptedModel([calls(("read_log", {"service": "web"})), read_on, conclude])
        agent = create_react_agent(model, node, store=store)
        config: Any = {"configurable": {"thread_id": thread}}
        state = await agent.ainvoke({"messages": [HumanMessage("What happened?")]}, config)
        longest = max(len(message.content) for message in state["messages"])
        assert longest < 2_300, longest
        answers.append(state["messages"][-1].content)

    def note_decision(event: CallEvent) -> None:
        if event.phase == "noted":
            decided.append(event.note)

    with observe(note_decision):
        async with anyio.create_task_group() as group:
            group.start_soon(ask, "ann")
            group.start_soon(ask, "bob")
        await ask("later")

    lengths = {item.namespace[-1]: len(item.value["text"]) for item in store.search(("callboard", "outputs"))}
    print(answers[0])
    print(f"The tool ran {len(RUNS)} time for {len(answers)} questions: {', '.join(decided)}.")
    print(f"Characters kept, for each conversation by itself: {lengths}")
    assert answers == ["The trouble began at ['0700 disk is full']."] * 3
    assert RUNS == ["web"]
    assert sorted(decided) == ["cache_hit", "cache_miss", "cache_shared", *["output_cut"] * 3]
    assert set(lengths) == {"thread ann", "thread bob", "thread later"}


if __name__ == "__main__":
    anyio.run(main, backend="trio")
