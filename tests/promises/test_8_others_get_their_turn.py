"""Promise 8 where callboard itself has much to do: the other tasks of the event loop get their turns."""

import anyio
import anyio.lowlevel
import pytest
from langchain_core.tools import StructuredTool

from callboard import Statistics, ToolNode
from callboard.testing import calls

IDLE = Statistics(running=0, waiting=0, abandoned_threads=0)
MANY = 1000


class Begun:
    """A tool that waits for ever, how often it began, and how often between two turns of another task."""

    def __init__(self) -> None:
        self.count = self.ended = 0
        self.between_turns: list[int] = []

    async def wait(self) -> None:
        self.count += 1
        try:
            await anyio.sleep_forever()
        finally:
            self.ended += 1

    async def take_turns(self, most: int = MANY) -> None:
        """Take turns until so many have begun."""
        while self.count < most:
            before = self.count
            await anyio.lowlevel.checkpoint()
            self.between_turns.append(self.count - before)

    def node(self) -> ToolNode:
        return ToolNode([StructuredTool.from_function(coroutine=self.wait, name="wait", description="Waits.")])


async def test_many_calls_start_in_portions() -> None:
    """Promise 8: a few milliseconds' work at a time, however many calls there are."""
    begun = Begun()
    with anyio.fail_after(600):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(begun.node().ainvoke, [calls(*["wait"] * MANY)])
            await begun.take_turns()
            tasks.cancel_scope.cancel()
    assert max(begun.between_turns) <= 100


@pytest.mark.parametrize("most", [1, 40, 500])
async def test_a_batch_that_is_cancelled_while_it_starts_starts_no_more(most: int) -> None:
    """Promise 1: those that have begun end before the caller goes on, the others never begin."""
    begun = Begun()
    node = begun.node()
    with anyio.fail_after(600):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(node.ainvoke, [calls(*["wait"] * MANY)])
            await begun.take_turns(most)
            tasks.cancel_scope.cancel()
        after = begun.count
        assert most <= after < most + 100
        assert begun.ended == after
        await anyio.sleep(100)
    assert begun.count == after
    assert node.statistics() == IDLE


async def test_a_call_that_fails_while_others_start_ends_the_batch_there() -> None:
    """Promises 1 and 3: its error arrives bare, and those that have not begun never do."""
    begun = Begun()

    async def boom() -> None:
        raise ValueError("boom")

    tools = [*begun.node().tools_by_name.values(), StructuredTool.from_function(coroutine=boom, description="Fails.")]
    with anyio.fail_after(600), pytest.raises(ValueError, match="boom"):
        await ToolNode(tools).ainvoke([calls("wait", "boom", *["wait"] * MANY)])
    assert begun.count == begun.ended < 100


class Counted(dict[str, object]):
    """A tool call that says how often it has been looked at."""

    looks = 0

    def __getitem__(self, key: str) -> object:
        Counted.looks += 1
        return super().__getitem__(key)


@pytest.mark.parametrize("form", ["message", "calls"])
async def test_very_many_calls_are_read_in_portions(form: str) -> None:
    """Promise 8: before the first of them starts, there is much to look at."""
    begun = Begun()
    node = begun.node()
    reply = calls(*["wait"] * 20 * MANY)
    # Past the message's validation, which would make plain dicts of them.
    reply.tool_calls = [Counted(call) for call in reply.tool_calls]
    looks: list[int] = []

    async def watch() -> None:
        while not begun.count:
            before = Counted.looks
            await anyio.lowlevel.checkpoint()
            looks.append(Counted.looks - before)

    with anyio.fail_after(600):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(node.ainvoke, [reply] if form == "message" else reply.tool_calls)
            await watch()
            tasks.cancel_scope.cancel()
    # A thousand calls at a time, some values of each; trio may give one task two turns before it is the other's.
    assert max(looks) <= 15 * MANY < sum(looks) / 3


async def test_large_arguments_are_weighed_in_portions() -> None:
    """Promise 8: a hundred thousand values are as much as a thousand calls."""
    turns = 0
    over = False

    async def take_turns() -> None:
        nonlocal turns
        while not over:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async def read(values: list[int]) -> int:
        nonlocal over
        over = True
        return len(values)

    node = ToolNode([StructuredTool.from_function(coroutine=read, description="Reads.")])
    with anyio.fail_after(600):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take_turns)
            [message] = await node.ainvoke([calls(("read", {"values": list(range(90_000))}))])
    assert message.content == "90000"
    assert turns >= 50
