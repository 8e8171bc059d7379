"""Promise 8: during long work of callboard itself, other tasks of the event loop get their turns."""

import gc
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from datetime import date
from operator import attrgetter
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import pytest
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.tools import StructuredTool

from callboard import DuplicateCallIdWarning, Statistics, ToolNode, msg_content_output
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

    async def take_turns(self, call_count: int = MANY) -> None:
        """Make turns until this many calls have begun."""
        while self.count < call_count:
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


@pytest.mark.parametrize("call_count", [1, 40, 500])
async def test_a_batch_that_is_cancelled_while_it_starts_starts_no_more(call_count: int) -> None:
    begun = Begun()
    node = begun.node()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(node.ainvoke, [calls(*["wait"] * MANY)])
        await begun.take_turns(call_count)
        tasks.cancel_scope.cancel()
    after = begun.count
    assert call_count <= after < call_count + 100
    assert begun.ended == after
    await anyio.sleep(100)
    assert begun.count == after
    assert node.statistics() == IDLE


@pytest.mark.real_clock
async def test_a_call_that_fails_while_others_start_ends_the_batch_there() -> None:
    begun = Begun()

    async def boom() -> None:
        raise ValueError("boom")

    tools = [*begun.node().tools_by_name.values(), StructuredTool.from_function(coroutine=boom, description="Fails.")]
    with pytest.raises(ValueError, match="boom"):
        await ToolNode(tools).ainvoke([calls("wait", "boom", *["wait"] * MANY)])
    assert begun.count == begun.ended < 100


LONGEST = 0.02
"""Seconds that a task may wait for its turn while callboard works."""
ATTEMPTS = 5
"""Number of measurements; on a busy machine, the system may keep the event loop waiting in some of them."""


class Turns:
    """A task of the event loop that records the longest time between two of its turns."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.is_over = False

    async def take(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        task_status.started()
        # The processor time of all threads of this process: other processes do not count.
        before = time.process_time()
        while not self.is_over:
            await anyio.lowlevel.checkpoint()
            now = time.process_time()
            self.longest = max(self.longest, now - before)
            before = now


async def turns_while(action: Callable[[Turns], Awaitable[object]]) -> Turns:
    """Do the work while another task takes turns; return the measurement in which the task waited the least."""
    measurements: list[Turns] = []
    for _ in range(ATTEMPTS):
        turns = Turns()
        gc.collect()
        gc.disable()  # a full collection of the objects of all tests takes longer
        try:
            with anyio.fail_after(60):
                async with anyio.create_task_group() as tasks:
                    await tasks.start(turns.take)
                    await action(turns)
                    turns.is_over = True
        finally:
            gc.enable()
        measurements.append(turns)
        if turns.longest <= LONGEST:
            break
    return min(measurements, key=attrgetter("longest"))


def half_answered(reply: AIMessage) -> list[BaseMessage]:
    return [reply, *[ToolMessage("", tool_call_id=str(call["id"])) for call in reply.tool_calls[::2]]]


FORMS: dict[str, Callable[[AIMessage], list[Any]]] = {
    "message": lambda reply: [reply],
    "calls": lambda reply: [*reply.tool_calls],
    "calls without a type": lambda reply: [{**call, "id": int(str(call["id"])[5:])} for call in reply.tool_calls],
    "half answered": half_answered,
}


@pytest.mark.real_clock
@pytest.mark.parametrize("form", FORMS)
async def test_other_tasks_get_their_turns_while_very_many_calls_are_read(form: str) -> None:
    node_input = FORMS[form](calls(*["wait"] * 50 * MANY))

    async def work(turns: Turns) -> None:
        begun = Begun()

        async def first_call() -> None:
            while not begun.count:
                await anyio.lowlevel.checkpoint()
            turns.is_over = True
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first_call)
            await begun.node().ainvoke(node_input)

    turns = await turns_while(work)
    assert turns.longest <= LONGEST


@pytest.mark.real_clock
async def test_other_tasks_get_their_turns_while_large_arguments_are_weighed() -> None:
    async def read(values: list[int]) -> int:
        return len(values)

    node = ToolNode([StructuredTool.from_function(coroutine=read, description="Reads.")])
    # Each call stays below the limits, and pydantic validates few values: the others are no argument of the tool.
    reply = calls(*[("read", {"values": [1], "others": list(range(90_000))})] * 10)

    async def work(turns: Turns) -> None:
        messages = await node.ainvoke([reply])
        assert [message.content for message in messages] == ["1"] * 10

    turns = await turns_while(work)
    assert turns.longest <= LONGEST


ROWS = [{"id": number, "name": f"row {number}", "tags": ["a", None]} for number in range(20_000)]
NAMES = [f"file {number}" for number in range(50_000)]
BLOCKS = [{"type": "text", "text": name} for name in NAMES]


@pytest.mark.real_clock
@pytest.mark.parametrize(
    "result",
    [
        pytest.param([*ROWS, *ROWS, *ROWS], id="json"),
        pytest.param({"rows": [*ROWS, *ROWS], "at": date(2026, 1, 2)}, id="no-json"),
        pytest.param({"text": "é" * 16_000_000}, id="a-text"),
        pytest.param(NAMES * 4, id="texts"),
        pytest.param([ToolMessage(NAMES * 4, tool_call_id="call_1")], id="a-message"),
    ],
)
@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_other_tasks_get_their_turns_while_a_large_result_is_written(result: Any, sync: bool) -> None:
    """Promise 8: formatting a text of megabytes takes tens of milliseconds, so it is interrupted for other tasks."""
    is_message = isinstance(result, list) and isinstance(result[0], ToolMessage)
    expected = msg_content_output(result[0].content if is_message else result)

    def fetch() -> Any:
        return [result[0].model_copy()] if is_message else result

    async def afetch() -> Any:
        return fetch()

    tool = StructuredTool.from_function(
        fetch if sync else None, None if sync else afetch, name="fetch", description="Fetches."
    )
    node = ToolNode([tool])

    async def work(turns: Turns) -> None:
        [message] = await node.ainvoke([calls("fetch")])
        assert message.content == expected

    turns = await turns_while(work)
    assert turns.longest <= LONGEST


@pytest.mark.real_clock
async def test_many_blocks_stay_what_they_are() -> None:
    async def fetch() -> list[dict[str, str]]:
        return BLOCKS

    [message] = await ToolNode([StructuredTool.from_function(coroutine=fetch, description="Fetches.")]).ainvoke(
        [calls("fetch")]
    )
    assert message.content == BLOCKS
    assert not any(block is original for block, original in zip(message.content, BLOCKS, strict=True))


@pytest.mark.real_clock
async def test_a_reply_that_is_cancelled_while_it_is_read_starts_no_call() -> None:
    """Promise 1: its thread only computes, and nobody waits for it or is warned of it."""
    begun = Begun()
    node = begun.node()
    reply = calls(*["wait"] * 50 * MANY)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(node.ainvoke, [reply])
        await anyio.sleep(0)
        await anyio.sleep(0)
        tasks.cancel_scope.cancel()
    assert begun.count == 0
    assert node.statistics() == IDLE


@pytest.mark.real_clock
async def test_the_user_is_warned_of_equal_ids_in_a_reply_with_very_many_calls() -> None:
    async def quick() -> str:
        return "done"

    node = ToolNode([StructuredTool.from_function(coroutine=quick, description="Returns.")])
    reply = calls(*["quick"] * (MANY + 1))
    reply.tool_calls[MANY]["id"] = reply.tool_calls[0]["id"]
    with pytest.warns(DuplicateCallIdWarning, match="several calls of one batch have the id"):
        messages = await node.ainvoke([reply])
    assert [message.tool_call_id for message in messages] == [call["id"] for call in reply.tool_calls]


user: ContextVar[str] = ContextVar("user", default="nobody")


@pytest.mark.real_clock
async def test_a_large_result_is_written_with_the_context_variables_of_its_caller() -> None:
    class Greeting:
        def __repr__(self) -> str:
            return f"hello, {user.get()}"

    async def greet() -> list[Any]:
        return [Greeting(), NAMES]

    user.set("ada")
    [message] = await ToolNode([StructuredTool.from_function(coroutine=greet, description="Greets.")]).ainvoke(
        [calls("greet")]
    )
    assert message.content.startswith("[hello, ada, ['file 0', ")
