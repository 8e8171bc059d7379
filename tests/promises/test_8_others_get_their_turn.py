"""Promise 8: during long work of callboard itself, other tasks of the event loop get their turns."""

from copy import deepcopy
from datetime import date
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import StructuredTool

from callboard import Statistics, ToolNode
from callboard._langgraph._vocabulary import msg_content_output
from callboard.testing import calls

IDLE = Statistics(running=0, waiting=0, abandoned_threads=0)
MANY = 1000


class Begun:
    """A tool that waits without end; it records its starts, and the starts between two turns of another task."""

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
        """Make turns until this many calls have begun."""
        while self.count < most:
            before = self.count
            await anyio.lowlevel.checkpoint()
            self.between_turns.append(self.count - before)

    def node(self) -> ToolNode:
        return ToolNode([StructuredTool.from_function(coroutine=self.wait, name="wait", description="Waits.")])


async def test_many_calls_start_in_portions() -> None:
    begun = Begun()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(begun.node().ainvoke, [calls(*["wait"] * MANY)])
        await begun.take_turns()
        tasks.cancel_scope.cancel()
    assert max(begun.between_turns) <= 100


@pytest.mark.parametrize("most", [1, 40, 500])
async def test_a_batch_that_is_cancelled_while_it_starts_starts_no_more(most: int) -> None:
    begun = Begun()
    node = begun.node()
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
    begun = Begun()

    async def boom() -> None:
        raise ValueError("boom")

    tools = [*begun.node().tools_by_name.values(), StructuredTool.from_function(coroutine=boom, description="Fails.")]
    with pytest.raises(ValueError, match="boom"):
        await ToolNode(tools).ainvoke([calls("wait", "boom", *["wait"] * MANY)])
    assert begun.count == begun.ended < 100


class Counted(dict[str, object]):
    """A tool call that counts how often it is read."""

    looks = 0

    def __getitem__(self, key: str) -> object:
        Counted.looks += 1
        return super().__getitem__(key)


@pytest.mark.parametrize("form", ["message", pytest.param("calls", marks=pytest.mark.exhaustive)])
async def test_very_many_calls_are_read_in_portions(form: str) -> None:
    begun = Begun()
    node = begun.node()
    reply = calls(*["wait"] * 20 * MANY)
    # Bypass the message's validation, which would turn the calls into plain dicts.
    reply.tool_calls = [Counted(call) for call in reply.tool_calls]
    looks: list[int] = []

    async def watch() -> None:
        while not begun.count:
            before = Counted.looks
            await anyio.lowlevel.checkpoint()
            looks.append(Counted.looks - before)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(node.ainvoke, [reply] if form == "message" else reply.tool_calls)
        await watch()
        tasks.cancel_scope.cancel()
    # A thousand calls at a time, some values of each; trio may give one task two turns in a row.
    assert max(looks) <= 15 * MANY < sum(looks) / 3


async def test_large_arguments_are_weighed_in_portions() -> None:
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
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take_turns)
        [message] = await node.ainvoke([calls(("read", {"values": list(range(90_000))}))])
    assert message.content == "90000"
    assert turns >= 50


ROWS = [{"id": number, "name": f"row {number}", "tags": ["a", None]} for number in range(20_000)]
NAMES = [f"file {number}" for number in range(50_000)]
BLOCKS = [{"type": "text", "text": name} for name in NAMES]


@pytest.mark.parametrize(
    ("result", "turns"),
    [
        pytest.param(ROWS, 40, id="json"),
        pytest.param({"rows": ROWS, "at": date(2026, 1, 2)}, 40, id="no-json"),
        pytest.param({"text": "é" * 5_000_000}, 10, id="a-text"),
        pytest.param(NAMES, 40, id="texts"),
        pytest.param([ToolMessage([*NAMES], tool_call_id="call_1")], 10, id="a-message"),
    ],
)
@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_a_large_result_is_written_in_portions(result: Any, turns: int, sync: bool) -> None:
    """Promise 8: formatting a text of megabytes takes tens of milliseconds, so it is interrupted for other tasks."""
    taken = 0
    result = deepcopy(result)
    is_message = isinstance(result, list) and isinstance(result[0], ToolMessage)
    expected = msg_content_output(result[0].content if is_message else result)

    def fetch() -> Any:
        nonlocal taken
        taken = 0
        return result

    async def afetch() -> Any:
        return fetch()

    async def take_turns() -> None:
        nonlocal taken
        while True:
            await anyio.lowlevel.checkpoint()
            taken += 1

    tool = StructuredTool.from_function(
        fetch if sync else None, None if sync else afetch, name="fetch", description="Fetches."
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take_turns)
        [message] = await ToolNode([tool]).ainvoke([calls("fetch")])
        assert taken >= turns
        assert message.content == expected
        tasks.cancel_scope.cancel()


async def test_many_blocks_stay_what_they_are() -> None:
    async def fetch() -> list[dict[str, str]]:
        return BLOCKS

    [message] = await ToolNode([StructuredTool.from_function(coroutine=fetch, description="Fetches.")]).ainvoke(
        [calls("fetch")]
    )
    assert message.content == BLOCKS
    assert not any(mine is its for mine, its in zip(message.content, BLOCKS, strict=True))
