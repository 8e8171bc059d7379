"""Promise 8: the event loop is never blocked; sync code runs in threads with its caller's context variables."""

import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Self

import anyio
import anyio.lowlevel
import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool

from callboard import Limit, Statistics, ToolNode
from callboard.guards import Results, Sanitize, Text
from callboard.testing import Recorder
from tests.helpers import ask, make, make_sync

pytestmark = pytest.mark.real_clock

IDLE = Statistics(running=0, waiting=0, abandoned_threads=0)
user: ContextVar[str] = ContextVar("user", default="nobody")


class Ticks:
    """Counts the turns of the event loop while the block runs."""

    def __init__(self) -> None:
        self.count = 0

    async def __aenter__(self) -> Self:
        self.count = 0
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._tick)
        return self

    async def _tick(self) -> None:
        while True:
            await anyio.sleep(0.005)
            self.count += 1

    async def __aexit__(self, *exc: object) -> None:
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(*exc)


turns = Ticks()


def block_for_turns(number: int) -> None:
    """Block the thread until the event loop has made some turns, or for five seconds if it cannot."""
    begin, deadline = turns.count, time.monotonic() + 5.0
    while turns.count < begin + number and time.monotonic() < deadline:
        time.sleep(0.005)


class Counter:
    """Counts the threads that are inside the block at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.running = self.peak = 0

    def __enter__(self) -> None:
        with self._lock:
            self.running += 1
            self.peak = max(self.peak, self.running)

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self.running -= 1


class Subclass(BaseTool):
    name: str = "blocking"
    description: str = "Blocks."

    def _run(self) -> str:
        block_for_turns(10)
        return str(threading.get_ident())


def blocking() -> str:
    """Block."""
    block_for_turns(10)
    return str(threading.get_ident())


@pytest.mark.parametrize("tool", [make_sync(blocking), Subclass(), blocking], ids=["tool", "class", "function"])
async def test_the_loop_goes_round_while_sync_tools_block(tool: object) -> None:
    node = ToolNode([tool])
    async with turns:
        messages = await node.ainvoke(ask("blocking", "blocking"))
    assert turns.count >= 10
    threads = {message.content for message in messages}
    assert len(threads) == 2  # at the same time, in two threads
    assert str(threading.get_ident()) not in threads


async def test_the_loop_goes_round_while_a_sync_wrapper_blocks() -> None:
    threads: dict[str, object] = {}

    async def quick() -> str:
        threads["body"] = threading.current_thread()
        return "quick"

    def slow_wrapper(request: object, execute: Callable[[object], ToolMessage]) -> ToolMessage:
        threads["wrapper"] = threading.current_thread()
        block_for_turns(5)
        message = execute(request)
        block_for_turns(5)
        return message

    node = ToolNode([make(quick)], wrap_tool_call=slow_wrapper)
    async with turns:
        messages = await node.ainvoke(ask("quick", "quick", "quick"))
    assert turns.count >= 10
    assert [message.content for message in messages] == ["quick"] * 3
    assert threads["body"] is threading.current_thread()
    assert threads["wrapper"] is not threading.current_thread()


@pytest.mark.parametrize("sync", [True, False], ids=["sync tool", "async tool"])
async def test_what_a_sync_wrapper_sets_reaches_the_body_below_it(sync: bool) -> None:
    def whoami() -> str:
        return user.get()

    async def whoami_async() -> str:
        return user.get()

    def wrapper(request: object, execute: Callable[[object], ToolMessage]) -> ToolMessage:
        assert user.get() == "ada"
        user.set("wrapper")
        return execute(request)

    tool = make_sync(whoami) if sync else make(whoami_async, "whoami")
    token = user.set("ada")
    try:
        with anyio.fail_after(10):
            [message] = await ToolNode([tool], wrap_tool_call=wrapper).ainvoke(ask("whoami"))
        assert message.content == "wrapper"
        assert user.get() == "ada"
    finally:
        user.reset(token)


@pytest.mark.filterwarnings("ignore::callboard.exceptions.LoopBlockedWarning")  # threads start late on a busy machine
@pytest.mark.parametrize("limit", [Limit(concurrency=100), None], ids=["of the node", "of the run"])
async def test_many_sync_tools_run_a_hundred_at_once(limit: Limit | None) -> None:
    """Promises 7 and 8: `max_concurrency` of a run determines the threads, even above the node's own number."""
    counter = Counter()
    together = threading.Barrier(100)  # on a slow machine, too, the first hundred run at the same time

    def work(query: str) -> None:
        with counter:
            if int(query) < 100:
                together.wait(timeout=30)
            time.sleep(0.01)

    node = ToolNode([make_sync(work)], limit=limit)
    async with Ticks() as ticks:
        requests = ask(*[("work", {"query": str(n)}) for n in range(400)])
        messages = await node.ainvoke(requests, None if limit else {"max_concurrency": 100})
    assert [message.status for message in messages] == ["success"] * 400
    assert counter.peak == 100
    assert ticks.count >= 5
    assert node.statistics() == IDLE


@pytest.mark.parametrize("large_part", ["result", "argument"])
async def test_the_loop_goes_round_while_a_large_text_is_cleaned(large_part: str) -> None:
    large = "\u200d" * 250_000

    async def read(text: str = "") -> str:
        return large if large_part == "result" else "read"

    sanitize = Sanitize(text=Text(max_chars=10**9), max_size=10**9, results=Results(max_chars=None))
    node = ToolNode([make(read)], middleware=[sanitize])
    async with Ticks() as ticks:
        [message] = await node.ainvoke(ask(("read", {"text": large if large_part == "argument" else ""})))
    assert message.content == ("" if large_part == "result" else "read")
    assert ticks.count >= 5


@pytest.mark.filterwarnings("ignore::callboard.exceptions.LoopBlockedWarning")  # threads start late on a busy machine
async def test_many_sync_wrappers_around_sync_tools_do_not_starve_one_another() -> None:
    """Promise 8: a waiting wrapper must not hold a thread that its tool needs."""
    rec = Recorder()

    def wrapper(request: object, execute: Callable[[object], ToolMessage]) -> ToolMessage:
        return execute(request)

    node = ToolNode([rec.sync_tool("work", seconds=0.001)], wrap_tool_call=wrapper)
    messages = await node.ainvoke(ask(*["work"] * 200))
    assert len(messages) == 200
    assert node.statistics() == IDLE


@pytest.mark.parametrize("kind", ["tool", "wrapper", "body below a wrapper"])
async def test_an_exit_out_of_a_thread_arrives_and_ends_the_others(kind: str) -> None:
    """Promises 1 and 8: `SystemExit` in a worker thread must not cause a deadlock."""
    rec = Recorder()

    def leave() -> None:
        raise SystemExit(3)

    async def leave_the_loop() -> None:
        raise SystemExit(3)

    def wrapper(request: object, execute: Callable[[object], ToolMessage]) -> ToolMessage:
        if kind == "wrapper" and request.tool_call["name"] == "leave":
            raise SystemExit(3)
        return execute(request)

    leaving = make(leave_the_loop, "leave") if kind.startswith("body") else make_sync(leave)
    node = ToolNode([leaving, rec.tool("stuck", hang=True)], wrap_tool_call=None if kind == "tool" else wrapper)
    with pytest.raises(SystemExit):
        await node.ainvoke(ask("leave", "stuck"))
    assert rec.running == 0
    assert node.statistics() == IDLE


async def test_a_sync_wrapper_that_is_cancelled_at_any_step_gives_its_thread_back() -> None:
    async def work() -> str:
        return "done"

    def wrapper(request: object, execute: Callable[[object], ToolMessage]) -> ToolMessage:
        return execute(request)

    node = ToolNode([make(work)], wrap_tool_call=wrapper)
    for steps in range(4):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(node.ainvoke, ask(*["work"] * 260))
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
    with anyio.fail_after(5):
        assert len(await node.ainvoke(ask("work"))) == 1
    assert node.statistics() == IDLE
