"""Promise 6: an attempt may have an idle timeout besides its timeout; each sign of life restarts it."""

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import ToolMessage

from callboard import (
    AbandonedThreadWarning,
    CallPolicy,
    CallTimeoutError,
    Limit,
    LoopBlockedWarning,
    ToolNode,
    progress,
    remaining,
)
from callboard.extend import run_on_asyncio
from callboard.middleware import Retry
from callboard.testing import Recorder, calls
from tests.helpers import ask, ending_of, make, make_sync

WAIT = 1000
pytestmark = pytest.mark.hangs_after(WAIT)


def silent(idle_timeout: float, **options: object) -> dict[str, CallPolicy]:
    return {"work": CallPolicy(idle_timeout=idle_timeout, **options)}  # type: ignore[arg-type]


def working(*pauses: float, then: str = "done") -> Callable[[], Awaitable[str]]:
    """A tool that reports progress after each of these pauses except the last."""

    async def work() -> str:
        for pause in pauses[:-1]:
            await anyio.sleep(pause)
            progress()
        await anyio.sleep(pauses[-1])
        return then

    return work


async def test_an_attempt_without_a_sign_of_life_is_given_up() -> None:
    node = ToolNode([make(working(100), "work")], policies=silent(2.5))
    since = anyio.current_time()
    [message] = await node.ainvoke(ask("work"))
    assert anyio.current_time() - since == pytest.approx(2.5)
    assert message.content == "Error: Tool 'work' was given up: it gave no sign of life for 2.5 s."
    assert message.status == "error"
    assert message.additional_kwargs == {"callboard": {"ended": "timeout", "idle": True}}


async def test_without_handling_the_error_says_that_it_was_idle() -> None:
    node = ToolNode([make(working(100), "work")], policies=silent(2), handle_tool_errors=False)
    with pytest.raises(CallTimeoutError, match="no sign of life for 2 s") as caught:
        await node.ainvoke(ask("work"))
    error = caught.value
    assert (error.tool, error.call_id, error.timeout, error.idle, error.blocking_code) == (
        "work",
        "call_1",
        2,
        True,
        None,
    )


@pytest.mark.parametrize(
    ("timeout", "expected"), [(None, "done"), (5.5, "Error: Tool 'work' did not finish within its timeout of 5.5 s.")]
)
async def test_progress_keeps_an_attempt_alive_up_to_the_timeout_of_its_node(
    timeout: float | None, expected: str
) -> None:
    """Promise 6: a crawl may take an hour, as long as it reports progress now and then."""
    node = ToolNode([make(working(*[0.9] * 1000), "work")], timeout=timeout, policies=silent(1))
    [message] = await node.ainvoke(ask("work"))
    assert message.content == expected


@given(
    pauses=st.lists(st.floats(0.1, 20), min_size=1, max_size=6),
    timeout=st.none() | st.floats(0.1, 60),
    idle_timeout=st.floats(0.1, 20),
)
async def test_it_ends_by_itself_or_at_the_earlier_end(
    pauses: list[float], timeout: float | None, idle_timeout: float
) -> None:
    end, idle_at, now = sum(pauses), math.inf, 0.0
    for pause in pauses:
        if pause > idle_timeout:
            idle_at = now + idle_timeout
            break
        now += pause
    expected = min((end, 0, None), (timeout or math.inf, 1, "timeout"), (idle_at, 2, "idle"))
    distinct = sorted([end, timeout or math.inf, idle_at])
    if distinct[1] - distinct[0] < 1e-6 or any(abs(pause - idle_timeout) < 1e-6 for pause in pauses):
        return
    node = ToolNode([make(working(*pauses), "work")], policies=silent(idle_timeout, timeout=timeout))
    since = anyio.current_time()
    [message] = await node.ainvoke(ask("work"))
    assert anyio.current_time() - since == pytest.approx(expected[0])
    facts = message.additional_kwargs.get("callboard", {})
    assert (facts.get("ended"), facts.get("idle", False)) == (expected[2] and "timeout", expected[2] == "idle")


@given(
    pauses=st.lists(st.sampled_from([0.0, 0.001, 0.03, 0.049, 0.051, 0.3]), max_size=40),
    timeout=st.none() | st.floats(0.4, 3),
)
async def test_where_signs_come_often_it_ends_a_moment_late_and_never_early(
    pauses: list[float], timeout: float | None
) -> None:
    """Promise 6: frequent reports must be cheap, and must not end the attempt early."""
    node = ToolNode([make(working(*pauses, 100), "work")], policies=silent(0.4, timeout=timeout))
    since = anyio.current_time()
    [message] = await node.ainvoke(ask("work"))
    took = anyio.current_time() - since
    earliest = sum(pauses) + 0.4
    if timeout is not None and timeout < earliest:
        assert took == pytest.approx(timeout)
        assert "idle" not in message.additional_kwargs["callboard"]
    else:
        assert earliest - 1e-6 <= took <= min(earliest + 0.05, timeout or math.inf) + 1e-6
        assert ending_of(message) == "timeout"


async def test_the_idle_timeout_begins_with_the_body_and_anew_with_each_attempt() -> None:
    rec = Recorder()
    policy = CallPolicy(idle_timeout=3, limit=Limit(concurrency=1), idempotent=True)
    retry = Retry(attempts=2, initial=0.0)
    node = ToolNode([rec.tool("work", seconds=4)], policies={"work": policy}, middleware=[retry])
    messages = await node.ainvoke(ask("work", "work"))
    assert [ending_of(message) for message in messages] == ["timeout", "timeout"]
    assert sorted(rec.times("cancelled")) == pytest.approx([3, 6, 9, 12])


async def test_remaining_counts_the_idle_timeout() -> None:
    remaining_times: list[float] = []

    async def work() -> str:
        remaining_times.append(remaining())
        await anyio.sleep(3)
        remaining_times.append(remaining())
        progress()
        remaining_times.append(remaining())
        await anyio.sleep(4)
        progress()
        remaining_times.append(remaining())
        return "done"

    await ToolNode([make(work)], policies=silent(5, timeout=10)).ainvoke(ask("work"))
    assert remaining_times == pytest.approx([5, 2, 5, 3])


async def test_progress_in_a_clean_up_puts_nothing_off() -> None:
    async def work() -> str:
        try:
            await anyio.sleep(100)
        finally:
            progress("closing")
        return "late"

    [message] = await ToolNode([make(work)], policies=silent(2, timeout=10)).ainvoke(ask("work"))
    assert "no sign of life for 2 s" in message.content


async def test_the_work_of_calls_within_counts_for_those_around() -> None:
    rec = Recorder()
    slow = ToolNode([make(working(*[3] * 5), "steady"), rec.tool("short", seconds=3)])

    async def middle() -> str:
        await slow.ainvoke(ask("steady"))  # reports progress every 3 seconds
        for _ in range(4):
            await slow.ainvoke(ask("short"))  # inner calls begin and end every 3 seconds
        await anyio.sleep(100)
        return "never"

    inner = ToolNode([make(middle)])

    async def work() -> str:
        await inner.ainvoke(ask("middle"))
        return "never"

    since = anyio.current_time()
    [message] = await ToolNode([make(work)], policies=silent(4)).ainvoke(ask("work"))
    assert anyio.current_time() - since == pytest.approx(15 + 12 + 4)
    assert "Tool 'work' was given up: it gave no sign of life for 4 s" in message.content
    assert rec.running == 0


async def test_an_idle_call_within_ends_alone() -> None:
    inner = ToolNode([make(working(100), "work")], policies=silent(3))

    async def outer() -> str:
        [message] = await inner.ainvoke(ask("work"))
        await anyio.sleep(3.5)
        return str(message.content)

    [message] = await ToolNode([make(outer)], policies={"outer": CallPolicy(idle_timeout=4)}).ainvoke(ask("outer"))
    assert message.content == "Error: Tool 'work' was given up: it gave no sign of life for 3 s."


async def test_calls_within_read_what_is_left_of_the_silence_around_them() -> None:
    remaining_times: list[float] = []

    async def steady() -> str:
        for _ in range(4):
            remaining_times.append(remaining())
            await anyio.sleep(3)
            progress()
            remaining_times.append(remaining())
        return "done"

    inner = ToolNode([make(steady)])

    async def work() -> str:
        await anyio.sleep(1)
        await inner.ainvoke(ask("steady"))
        return "done"

    await ToolNode([make(work)], policies=silent(4, timeout=12)).ainvoke(ask("work"))
    assert remaining_times[:7] == pytest.approx([4, 4, 4, 4, 4, 2, 2])


async def test_a_task_that_works_on_behalf_of_a_call_keeps_it_alive() -> None:
    send, receive = anyio.create_memory_object_stream[tuple[Context, anyio.Event]](1)

    async def serve() -> None:
        async for context, served in receive:
            for _ in range(5):
                await anyio.sleep(3)
                context.run(progress)
            served.set()

    async def work() -> str:
        served = anyio.Event()
        await send.send((copy_context(), served))
        await served.wait()
        return "served"

    async with anyio.create_task_group() as group, send, receive:
        group.start_soon(serve)
        [message] = await ToolNode([make(work)], policies=silent(4)).ainvoke(ask("work"))
        group.cancel_scope.cancel()
    assert message.content == "served"


@pytest.mark.real_clock
@pytest.mark.backends("trio")
async def test_code_that_needs_asyncio_keeps_a_call_on_trio_alive() -> None:
    """Promise 6: a sign of life may cross the bridge from a loop in another thread."""

    async def on_asyncio() -> str:
        for _ in range(8):
            await asyncio.sleep(0.1)
            progress()
        return "done"

    async def work() -> str:
        return await run_on_asyncio(on_asyncio)

    [message] = await ToolNode([make(work)], policies=silent(0.4)).ainvoke(ask("work"))
    assert message.content == "done"


@pytest.mark.real_clock
async def test_a_sync_tool_is_kept_alive_from_its_thread() -> None:
    def work() -> str:
        for step in range(8):
            time.sleep(0.1)
            progress(done=step)
        assert 0 < remaining() <= 0.5
        inner.invoke(ask("steady"))  # on another event loop
        return "done"

    inner = ToolNode([make(working(*[0.1] * 8), "steady")])
    [message] = await ToolNode([make_sync(work)], policies=silent(0.4)).ainvoke(ask("work"))
    assert message.content == "done"


@pytest.mark.real_clock
async def test_a_silent_sync_tool_is_given_up_and_its_thread_reports_no_more() -> None:
    """Promise 6: a thread cannot be stopped, but its reports after its call's end are ignored."""
    release, has_reported = threading.Event(), threading.Event()

    def work() -> str:
        release.wait(20)
        progress("far too late")
        has_reported.set()
        return "late"

    inner = ToolNode([make_sync(work)], policies=silent(0.2))

    async def outer() -> str:
        [message] = await inner.ainvoke(ask("work"))
        time_left = remaining()
        release.set()
        await anyio.to_thread.run_sync(has_reported.wait, 20)
        await anyio.sleep(0)
        assert remaining() <= time_left  # a sign of life would have restarted the 30 s
        return str(message.content)

    policies = {"outer": CallPolicy(idle_timeout=30)}
    try:
        with anyio.fail_after(30), pytest.warns(AbandonedThreadWarning):
            [message] = await ToolNode([make(outer)], policies=policies).ainvoke(ask("outer"))
    finally:
        release.set()
    assert message.content == "Error: Tool 'work' was given up: it gave no sign of life for 0.2 s."


@pytest.mark.real_clock
@pytest.mark.usefixtures("nothing_told")
@pytest.mark.parametrize(
    ("sign", "idle_timeout", "blamed"),
    [(0.01, 0.3, True), pytest.param(1.0, 2, False, marks=pytest.mark.exhaustive)],
    ids=["before the hold", "after the hold"],
)
async def test_a_hold_of_the_loop_is_blamed_if_it_came_after_the_last_sign_of_life(
    sign: float, idle_timeout: float, blamed: bool
) -> None:
    """Promise 6: a tool on a blocked event loop could not report progress. After the blocking it could, and did."""

    async def blocking() -> str:
        await anyio.sleep(0.05)
        time.sleep(0.8)
        return "blocked"

    node = ToolNode([make(blocking), make(working(sign, 100), "work")], policies=silent(idle_timeout))
    with pytest.warns(LoopBlockedWarning):
        messages = await node.ainvoke([calls("blocking", "work")])
    beginning, _, ending = messages[1].content.partition(f"gave no sign of life for {idle_timeout} s.")
    assert beginning == "Error: Tool 'work' was given up: it "
    assert ending.startswith(" Meanwhile tool 'blocking' (call 'call_1') held") if blamed else ending == ""


async def test_the_middleware_around_has_no_idle_timeout() -> None:
    async def slow(request: object, execute: Callable[[object], Awaitable[ToolMessage]]) -> ToolMessage:
        await anyio.sleep(50)
        message = await execute(request)
        await anyio.sleep(50)
        return message

    node = ToolNode([make(working(1), "work")], policies=silent(2), middleware=[slow])
    [message] = await node.ainvoke(ask("work"))
    assert message.content == "done"
