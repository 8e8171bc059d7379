"""Tools that use trio's own API: channels, limits, and clean-up that survives a timeout."""

import trio
from langchain_core.tools import tool

from callboard import CallPolicy, Limit, ToolNode, cleanup, tool_call

closed: list[str] = []
peak = running = 0


class Connection:
    """Connection that needs some time to close."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def aclose(self) -> None:
        await trio.sleep(0.05)
        closed.append(self.name)


@tool
async def download(name: str, seconds: float) -> str:
    """Download something over a connection of its own."""
    global running, peak
    running += 1
    peak = max(peak, running)
    connection = Connection(name)
    try:
        await trio.sleep(seconds)
        return f"{name} downloaded"
    finally:
        running -= 1
        # On trio a cancelled task is cancelled at every checkpoint; `cleanup` prevents this during the grace.
        with cleanup():
            await connection.aclose()


@tool
async def count_to(limit: int) -> int:
    """Count with a producer and a consumer, in a nursery and over a memory channel."""
    send, receive = trio.open_memory_channel[int](0)

    async def produce() -> None:
        async with send:
            for number in range(limit):
                await send.send(number + 1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(produce)
        return max([number async for number in receive])


async def main() -> None:
    node = ToolNode(
        [download, count_to],
        policies={"download": CallPolicy(timeout=0.5, limit=Limit(concurrency=2), grace=1.0)},
    )
    requested = [
        tool_call("download", "d1", name="one", seconds=0.05),
        tool_call("download", "d2", name="endless", seconds=3600),
        tool_call("download", "d3", name="three", seconds=0.05),
        tool_call("count_to", "c1", limit=5),
    ]
    messages = (await node.ainvoke(requested))["messages"]

    for message in messages:
        print(f"{message.tool_call_id}  {message.status:7}  {message.content}")
    assert [m.status for m in messages] == ["success", "error", "success", "success"]
    assert messages[1].additional_kwargs["callboard"]["ended"] == "timeout"
    assert messages[3].content == "5"
    assert sorted(closed) == ["endless", "one", "three"], "the call that timed out was closed too"
    assert peak == 2

    # A cancelled caller: every tool has ended, and cleaned up, before the scope is left.
    closed.clear()
    with trio.move_on_after(0.1) as scope:
        await node.ainvoke([tool_call("download", "d4", name="late", seconds=3600)])
    assert scope.cancelled_caught
    assert closed == ["late"]
    assert running == 0


if __name__ == "__main__":
    trio.run(main)
