"""`Recorder`: tools that behave as a test tells them."""

import threading
from collections.abc import Callable
from typing import Any

import anyio
import anyio.to_thread
import pytest
from langchain_core.tools import StructuredTool

from callboard.testing import Recorder


async def run(tool: StructuredTool, query: str = "") -> object:
    """Call the body of an async tool directly: LangChain's own `ainvoke` needs asyncio."""
    assert tool.coroutine is not None
    return await tool.coroutine(query)


def shield_scope() -> anyio.CancelScope:
    """Protect a clean-up from cancellation."""
    return anyio.CancelScope(shield=True)


async def cancel_after(seconds: float, body: Callable[[], object]) -> None:
    with anyio.fail_after(1000), anyio.move_on_after(seconds):
        await body()  # type: ignore[misc]


async def test_a_slow_tool_takes_its_time_and_returns() -> None:
    rec = Recorder()
    assert await run(rec.tool("slow", seconds=10)) == "slow"
    assert await run(rec.tool("echo"), "tea") == "tea"
    assert await run(rec.tool("fixed", returns=[1])) == [1]
    assert rec.lines[:2] == ["slow started", "slow finished"]
    assert rec.times("finished", "slow") == pytest.approx([10])
    assert rec.running == 0


@pytest.mark.backends("asyncio")
async def test_tools_are_langchain_tools_with_one_optional_argument() -> None:
    rec = Recorder()
    slow = rec.tool("slow", seconds=1)
    assert list(slow.args) == ["query"]
    with anyio.fail_after(5):
        assert await slow.ainvoke({"query": "tea"}) == "tea"
        assert await slow.ainvoke({}) == "slow"
    assert rec.sync_tool("quick").invoke({"query": "cake"}) == "cake"
    assert rec.order == ["slow(tea)", "slow", "quick(cake)"]


async def test_peak_and_order_tell_how_calls_overlapped() -> None:
    rec = Recorder()
    slow = rec.tool("slow", seconds=float)
    other_tool = rec.tool("other", seconds=1.5)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for tool, query in ((slow, "1"), (slow, "2"), (other_tool, "2")):
                tasks.start_soon(run, tool, query)
                await anyio.sleep(0.01)
            assert rec.running == 3
        await run(slow, "1")
    assert rec.order == ["slow(1)", "slow(2)", "other(2)", "slow(1)"]
    assert (rec.peak, rec.peak_of("slow"), rec.peak_of(query="2"), rec.peak_of("slow", "1")) == (3, 2, 2, 1)
    assert rec.count("finished") == 4
    assert rec.running == 0
    assert rec.events[0].time == 0


async def test_a_tool_fails_a_number_of_times_and_then_succeeds() -> None:
    """Tests of retries need a tool that fails a number of times first."""
    rec = Recorder()
    flaky = rec.tool("flaky", raises=OSError("busy"), times=2)
    for _ in range(2):
        with pytest.raises(OSError, match="busy"):
            await run(flaky)
    assert await run(flaky) == "flaky"
    assert rec.count("raised") == 2


HANGING: list[tuple[Any, list[str]]] = [
    ({}, ["started", "cancelled"]),
    ({"cleanup": 0.2, "shield": shield_scope}, ["started", "cancelled", "cleaned up"]),
    ({"cleanup": 0.2}, ["started", "cancelled"]),
    ({"ignores_cancel": 1}, ["started", "cancelled", "cancelled"]),
]


async def test_a_hanging_tool_ends_only_by_cancellation() -> None:
    """A body runs until its shielded clean-up ends. An unprotected one is cut short: a grace has to prevent that.

    A cancelled scope delivers its cancellation repeatedly, so a tool that swallows only the first one ends.
    """
    for options, lines in HANGING:
        rec = Recorder()
        stuck = rec.tool("stuck", hang=True, **options)
        start = anyio.current_time()
        await cancel_after(100, lambda stuck=stuck: run(stuck))  # type: ignore[misc]
        assert rec.lines == [f"stuck {line}" for line in lines]
        assert rec.times("cancelled")[0] == pytest.approx(100)
        assert anyio.current_time() - start == pytest.approx(100.2 if "cleaned up" in lines else 100)
        assert rec.running == 0


async def test_a_clean_up_follows_success_and_failure_too() -> None:
    rec = Recorder()
    await run(rec.tool("good", cleanup=1))
    with pytest.raises(ValueError, match="x"):
        await run(rec.tool("bad", cleanup=1, raises=ValueError("x")))
    assert rec.lines[:3] == ["good started", "good finished", "good cleaned up"]
    assert rec.lines[3:] == ["bad started", "bad raised", "bad cleaned up"]


@pytest.mark.backends("asyncio")
async def test_a_stubborn_tool_swallows_a_cancellation_and_goes_on() -> None:
    """Native asyncio delivers a cancellation once, so a tool that swallows it runs to its end."""
    import asyncio

    rec = Recorder()
    task = asyncio.create_task(run(rec.tool("deaf", seconds=10, ignores_cancel=1)))
    await anyio.sleep(4)
    task.cancel()
    with anyio.fail_after(60):
        assert await task == "deaf"
    assert rec.lines == ["deaf started", "deaf cancelled", "deaf finished"]
    assert rec.times("finished") == pytest.approx([14])


@pytest.mark.real_clock
async def test_a_sync_tool_blocks_its_thread_until_it_is_released() -> None:
    """Only the test can release the blocked thread."""
    rec, release = Recorder(), threading.Event()
    blocked = rec.sync_tool("blocked", release=release)
    assert blocked.func is not None
    try:
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                for query in "ab":
                    tasks.start_soon(anyio.to_thread.run_sync, blocked.func, query)
                await rec.wait_for("started", 2)
                assert (rec.running, rec.peak) == (2, 2)
                release.set()
                await rec.wait_for("finished", 2, tool="blocked")
    finally:
        release.set()
    assert rec.running == 0
    assert sorted(rec.order) == ["blocked(a)", "blocked(b)"]


@pytest.mark.real_clock
async def test_a_sync_tool_sleeps_and_fails_in_its_thread() -> None:
    rec = Recorder()
    boom = rec.sync_tool("boom", seconds=0.05, raises=ValueError("x"), times=1)
    assert boom.func is not None
    with pytest.raises(ValueError, match="x"):
        await anyio.to_thread.run_sync(boom.func)
    assert await anyio.to_thread.run_sync(boom.func) == "boom"
    await run(rec.tool("last"))
    times = [event.time for event in rec.events]
    assert times == sorted(times)
    assert 0.1 <= times[-1] < 5
