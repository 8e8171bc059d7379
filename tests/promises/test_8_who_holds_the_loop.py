"""Promise 8: code that blocks the event loop is named, and not the calls that suffer from it."""

import gc
import inspect
import sys
import time
import warnings
from collections.abc import Awaitable, Callable

import anyio
import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import StructuredTool

from callboard import CallEvent, CallTimeoutError, LoopBlockedWarning, ToolNode, observe
from callboard._loops import _watchdog
from callboard.testing import calls, no_orphans
from tests.helpers import make

pytestmark = [pytest.mark.real_clock, pytest.mark.usefixtures("nothing_told")]


async def blocking() -> str:
    await anyio.sleep(0.01)
    time.sleep(0.8)
    return "blocked"


async def ready() -> str:
    await anyio.sleep(0.05)
    return "ready"


async def slow() -> str:
    await anyio.sleep(100)
    return "slow"


def line_of(fn: Callable[..., object], text: str) -> str:
    lines, first = inspect.getsourcelines(fn)
    [number] = [number for number, line in enumerate(lines, first) if text in line]
    return f"{__file__}:{number}, {fn.__name__}()"


async def test_a_tool_that_blocks_the_loop_is_named_once() -> None:
    """Promise 8: the warning says how long and where, because such code is hard to find."""
    node = ToolNode([make(blocking)])
    with pytest.warns(LoopBlockedWarning) as caught_warnings:
        for _ in range(2):
            await node.ainvoke([calls("blocking")])
    [warning] = caught_warnings
    assert "tool 'blocking' (call 'call_1') held the event loop for " in str(warning.message)
    assert line_of(blocking, "time.sleep") in str(warning.message)


async def test_a_timeout_says_who_held_the_loop() -> None:
    node = ToolNode([make(blocking), make(slow)], timeout=0.3, handle_tool_errors=(CallTimeoutError,))
    with pytest.warns(LoopBlockedWarning):
        messages = await node.ainvoke([calls("blocking", "slow")])
    assert [message.name for message in messages] == ["blocking", "slow"]
    assert "did not finish within its timeout of 0.3 s. Meanwhile tool 'blocking'" in messages[1].content


@pytest.mark.backends("asyncio")
async def test_what_was_ready_when_the_loop_was_held_is_in_time() -> None:
    """Promise 6: a result that was ready while the loop was blocked counts, although the timeout has passed."""
    node = ToolNode([make(blocking), make(ready)], timeout=0.3)
    with pytest.warns(LoopBlockedWarning):
        messages = await node.ainvoke([calls("blocking", "ready")])
    assert messages[1].content == "ready"


async def test_a_middleware_that_blocks_the_loop_is_named() -> None:
    async def sleepy(request: object, execute: Callable[[object], Awaitable[ToolMessage]]) -> ToolMessage:
        time.sleep(0.8)
        return await execute(request)

    with pytest.warns(LoopBlockedWarning, match="the middleware around tool 'ready'.*sleepy"):
        await ToolNode([make(ready)], middleware=[sleepy]).ainvoke([calls("ready")])


async def test_an_observer_that_blocks_the_loop_is_named() -> None:
    def nosy(event: CallEvent) -> None:
        if event.phase == "started":
            time.sleep(0.8)

    with pytest.warns(LoopBlockedWarning) as caught_warnings, observe(nosy):
        await ToolNode([make(ready)]).ainvoke([calls("ready")])
    [warning] = caught_warnings
    text = str(warning.message)
    assert text.startswith(f"the observer {nosy.__qualname__} held the event loop for ")
    assert line_of(nosy, "time.sleep") in text
    assert "let a thread do what takes long" in text
    assert "tool" not in text.split(" at ", maxsplit=1)[0]


async def test_what_does_not_block_the_loop_is_not_named() -> None:
    async def busy() -> str:
        end = time.monotonic() + 0.6
        while time.monotonic() < end:
            await anyio.sleep(0)
        return "busy"

    def in_thread() -> str:
        time.sleep(0.6)
        return "slept"

    tools = [make(busy), StructuredTool.from_function(in_thread, description="Blocks its thread."), make(ready)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        messages = await ToolNode(tools).ainvoke([calls("busy", "in_thread", "ready")])
    assert [message.content for message in messages] == ["busy", "slept", "ready"]


async def test_what_holds_the_loop_very_long_is_logged_before_it_ends(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise 8: the blocking may never end, and then no warning after its end would come."""
    monkeypatch.setattr(_watchdog, "_LOG_AFTER", 0.4)
    has_records: list[bool] = []

    async def holds() -> str:
        end = time.monotonic() + 20
        while not caplog.records and time.monotonic() < end:
            time.sleep(0.02)
        has_records.append(bool(caplog.records))
        return "at last"

    with pytest.warns(LoopBlockedWarning):
        await ToolNode([make(holds)]).ainvoke([calls("holds")])
    assert has_records == [True]
    assert "tool 'holds'" in caplog.text
    assert "and still does" in caplog.text


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="a collection begins between two instructions")
async def test_no_garbage_is_collected_while_frames_of_other_threads_are_read() -> None:
    """CPython 3.11 may crash or hang if garbage is collected at that moment (python/cpython#106883)."""
    collected: set[str] = set()
    readers = {"current_frames", "check", "_find_user_frame", "_find_blockage", "_is_idle"}

    def note(phase: str, info: object) -> None:
        collected.add(sys._getframe(1).f_code.co_name)

    async def busy() -> str:
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            pass
        return "done"

    threshold = gc.get_threshold()
    gc.callbacks.append(note)
    gc.set_threshold(1)
    try:
        with anyio.fail_after(30), pytest.warns(LoopBlockedWarning), no_orphans():
            await ToolNode([make(busy)]).ainvoke([calls("busy")])
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(note)

    assert gc.isenabled()
    assert collected
    assert not collected & readers
