"""One batch of tool calls: a slow one times out, a queue keeps order, every call gets its message."""

import anyio
from langchain_core.tools import tool

from callboard import CallPolicy, Limit, ToolNode, tool_call

running = peak = 0


@tool
async def search(query: str) -> str:
    """Search, never more than two at a time."""
    global running, peak
    running += 1
    peak = max(peak, running)
    await anyio.sleep(0.05)
    running -= 1
    return f"results for {query}"


@tool
async def slow_report(topic: str) -> str:
    """Write a report that takes an hour."""
    await anyio.sleep(3600)
    return topic


async def main() -> None:
    node = ToolNode(
        [search, slow_report],
        timeout=0.3,
        policies={"search": CallPolicy(timeout=5.0, limit=Limit(concurrency=2, queue=3))},
    )
    requested = [tool_call("search", f"s{n}", query=f"tea {n}") for n in range(6)]
    requested.append(tool_call("slow_report", "r0", topic="tea"))

    messages = (await node.ainvoke(requested))["messages"]

    for message in messages:
        print(f"{message.tool_call_id}  {message.status:7}  {message.content}")
    ended = {m.tool_call_id: m.additional_kwargs.get("callboard", {}).get("ended") for m in messages}
    assert [m.tool_call_id for m in messages] == [call["id"] for call in requested]
    assert ended["r0"] == "timeout"
    assert ended["s5"] == "rejected", "two run, three wait, and the sixth finds no place"
    assert [m.status for m in messages[:5]] == ["success"] * 5
    assert peak == 2
    assert node.statistics().running == 0


if __name__ == "__main__":
    anyio.run(main)
