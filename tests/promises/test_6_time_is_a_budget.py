"""Promise 6: time is a budget that queue and attempts share, and that a tool can read."""

import math
import random
import re
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import ToolMessage
from langchain_core.tools import StructuredTool

from callboard import CallPolicy, CallTimeoutError, DeadlineExceededError, Limit, Rate, ToolNode, cleanup, remaining
from callboard.extend import waiting
from callboard.middleware import Retry
from callboard.testing import Recorder
from tests.helpers import ask, ending_of, make, make_sync


class Stopwatch:
    """Seconds since the object was created."""

    def __init__(self) -> None:
        self._start = anyio.current_time()

    @property
    def seconds(self) -> float:
        return anyio.current_time() - self._start


async def test_a_timeout_becomes_a_message_that_says_so() -> None:
    node = ToolNode([Recorder().tool("stuck", hang=True)], timeout=2.5)
    watch = Stopwatch()
    [message] = await node.ainvoke(ask("stuck"))
    assert watch.seconds == pytest.approx(2.5)
    assert message.content == "Error: Tool 'stuck' did not finish within its timeout of 2.5 s."
    assert (message.status, message.name, message.tool_call_id) == ("error", "stuck", "call_1")
    assert message.additional_kwargs == {"callboard": {"ended": "timeout"}}


async def test_each_tool_has_its_own_timeout() -> None:
    rec = Recorder()
    node = ToolNode(
        [rec.tool(name, seconds=10) for name in ("one", "three", "twenty")],
        timeout=3,
        policies={"one": CallPolicy(timeout=1), "twenty": CallPolicy(timeout=20)},
    )
    watch = Stopwatch()
    messages = await node.ainvoke(ask("one", "three", "twenty"))
    assert [ending_of(message) for message in messages] == ["timeout", "timeout", None]
    assert sorted(rec.times("cancelled")) == pytest.approx([1, 3])
    assert watch.seconds == pytest.approx(10)


@given(seconds=st.floats(0.1, 100), timeout=st.floats(0.1, 100))
async def test_a_body_ends_by_itself_or_exactly_at_its_timeout(seconds: float, timeout: float) -> None:
    node = ToolNode([Recorder().tool("slow", seconds=seconds)], timeout=timeout)
    watch = Stopwatch()
    [message] = await node.ainvoke(ask("slow"))
    if abs(seconds - timeout) > 1e-6:
        assert ending_of(message) == (None if seconds < timeout else "timeout")
    assert watch.seconds == pytest.approx(min(seconds, timeout))


async def test_a_timeout_starts_with_the_body_and_not_in_the_queue() -> None:
    rec = Recorder()
    policy = CallPolicy(timeout=3, limit=Limit(concurrency=1))
    node = ToolNode([rec.tool("slow", seconds=2)], policies={"slow": policy})
    messages = await node.ainvoke(ask(*["slow"] * 5))
    assert [message.status for message in messages] == ["success"] * 5
    assert rec.times("started") == pytest.approx([0, 2, 4, 6, 8])


async def test_each_attempt_has_the_whole_timeout() -> None:
    rec = Recorder()

    async def retry(request: object, execute: Callable[[object], Awaitable[ToolMessage]]) -> ToolMessage:
        try:
            return await execute(request)
        except CallTimeoutError:
            await anyio.sleep(1)
            return await execute(request)

    node = ToolNode(
        [rec.tool("stuck", hang=True)], timeout=2, awrap_tool_call=retry, handle_tool_errors=(CallTimeoutError,)
    )
    watch = Stopwatch()
    [message] = await node.ainvoke(ask("stuck"))
    assert ending_of(message) == "timeout"
    # The handler above is for CallTimeoutError, so `execute` returns a message and no further attempt is made.
    assert watch.seconds == pytest.approx(2)
    node = ToolNode([rec.tool("stuck", hang=True)], timeout=2, awrap_tool_call=retry)
    watch = Stopwatch()
    [message] = await node.ainvoke(ask("stuck"))
    assert ending_of(message) == "timeout"
    assert watch.seconds == pytest.approx(5)


async def test_the_queue_and_the_attempt_share_the_budget() -> None:
    rec = Recorder()
    policy = CallPolicy(budget=5, limit=Limit(concurrency=1))
    node = ToolNode([rec.tool("slow", seconds=2)], policies={"slow": policy})
    watch = Stopwatch()
    messages = await node.ainvoke(ask(*["slow"] * 5))
    assert [ending_of(message) for message in messages] == [None, None, *["deadline"] * 3]
    assert watch.seconds == pytest.approx(5)
    assert rec.times("started") == pytest.approx([0, 2, 4])
    texts = [message.content for message in messages[2:]]
    assert texts == [
        "Error: Tool 'slow' was given up: its budget of 5 s was spent while it ran.",
        *["Error: Tool 'slow' was given up: its budget of 5 s was spent before it could start."] * 2,
    ]
    assert messages[2].additional_kwargs == {"callboard": {"ended": "deadline"}}


async def test_waiting_for_the_rate_is_part_of_the_budget() -> None:
    rec = Recorder()
    policy = CallPolicy(budget=2.5, limit=Limit(rate=Rate(1, per=1.0)))
    node = ToolNode([rec.tool("quick")], policies={"quick": policy})
    messages = await node.ainvoke(ask(*["quick"] * 5))
    assert [ending_of(message) for message in messages] == [None, None, None, "deadline", "deadline"]
    assert rec.times("started") == pytest.approx([0, 1, 2])


@pytest.mark.parametrize("started", [True, False])
async def test_the_deadline_error_knows_whether_the_body_started(started: bool) -> None:
    rec = Recorder()
    node = ToolNode(
        [rec.tool("first", hang=True), rec.tool("other", hang=True)],
        policies={"other": CallPolicy(budget=2)},
        limit=Limit(concurrency=2 if started else 1),
        handle_tool_errors=False,
    )
    with pytest.raises(DeadlineExceededError) as caught:
        await node.ainvoke(ask("first", "other"))
    assert caught.value.started is started
    assert (caught.value.budget, caught.value.call_id) == (2, "call_2")
    assert rec.count("started", "other") == int(started)


@pytest.mark.filterwarnings("ignore:.*timeout is never over:callboard.CallboardWarning")
async def test_the_nearer_of_timeout_and_budget_ends_a_call() -> None:
    rec = Recorder()
    policies = {"a": CallPolicy(timeout=1, budget=3), "b": CallPolicy(timeout=3, budget=1)}
    node = ToolNode([rec.tool("a", hang=True), rec.tool("b", hang=True)], policies=policies)
    messages = await node.ainvoke(ask("a", "b"))
    assert [ending_of(message) for message in messages] == ["timeout", "deadline"]
    assert rec.times("cancelled") == pytest.approx([1, 1])


@pytest.mark.filterwarnings("ignore:.*timeout is never over:callboard.CallboardWarning")
async def test_remaining_tells_an_async_tool_what_is_left() -> None:
    remaining_times: list[tuple[str, float]] = []

    def looker(name: str) -> StructuredTool:
        async def body() -> None:
            remaining_times.append((name, remaining()))
            await anyio.sleep(1)
            remaining_times.append((name, remaining()))

        return make(body, name)

    node = ToolNode(
        [looker(name) for name in ("free", "timed", "budget", "both")],
        policies={
            "timed": CallPolicy(timeout=4),
            "budget": CallPolicy(budget=5),
            "both": CallPolicy(timeout=7, budget=6.5),
        },
        limit=Limit(concurrency=1),
    )
    # Each call waits one second for the call before it.
    await node.ainvoke(ask("free", "timed", "budget", "both"))
    times_by_name = {name: [s for n, s in remaining_times if n == name] for name in ("free", "timed", "budget", "both")}
    assert times_by_name["timed"] == pytest.approx([4, 3])
    assert times_by_name["budget"] == pytest.approx([3, 2])
    assert times_by_name["both"] == pytest.approx([3.5, 2.5])


async def test_remaining_knows_the_deadlines_of_the_scopes_around_the_node() -> None:
    remaining_times: list[float] = []

    async def look() -> None:
        remaining_times.append(remaining())

    with anyio.fail_after(30):
        await ToolNode([make(look)]).ainvoke(ask("look"))
        await ToolNode([make(look)], timeout=50).ainvoke(ask("look"))
        await ToolNode([make(look)], timeout=20).ainvoke(ask("look"))
    assert remaining_times == pytest.approx([30, 30, 20])


async def test_remaining_without_a_call_or_an_end_is_infinite() -> None:
    assert remaining() == math.inf
    with anyio.fail_after(5):
        assert remaining() == pytest.approx(5)


async def test_an_outer_timeout_ends_the_inner_node_and_everything_in_it() -> None:
    rec = Recorder()
    inner = ToolNode([rec.tool("stuck", hang=True, cleanup=0.5, shield=cleanup)], timeout=100)

    async def outer() -> object:
        return await inner.ainvoke(ask("stuck", "stuck"))

    node = ToolNode([make(outer)], timeout=2)
    watch = Stopwatch()
    [message] = await node.ainvoke(ask("outer"))
    assert ending_of(message) == "timeout"
    assert "'outer'" in message.content
    assert watch.seconds == pytest.approx(2.5)
    assert (rec.count("cleaned up"), rec.running) == (2, 0)


@pytest.mark.real_clock
@pytest.mark.filterwarnings("ignore:.*timeout is never over:callboard.CallboardWarning")
async def test_remaining_tells_a_sync_tool_what_is_left() -> None:
    remaining_times: list[float] = []

    async def leaf() -> None:
        remaining_times.append(remaining())

    inner = ToolNode([make(leaf)])

    def outer() -> str:
        remaining_times.append(remaining())
        inner.invoke(ask("leaf"))
        return "done"

    node = ToolNode([make_sync(outer)], policies={"outer": CallPolicy(timeout=30, budget=20)})
    free = ToolNode([make_sync(outer)])
    await node.ainvoke(ask("outer"))
    await free.ainvoke(ask("outer"))
    assert 19 < remaining_times[0] <= 20.1  # a loop may round its time to milliseconds
    assert 19 < remaining_times[1] <= 20.1  # a loop may round its time to milliseconds
    assert remaining_times[2:] == [math.inf, math.inf]


@pytest.mark.parametrize("policy", [CallPolicy(timeout=1), CallPolicy(budget=1)], ids=["timeout", "budget"])
@pytest.mark.parametrize("in_a_group", [False, True], ids=["bare", "in a task group"])
async def test_a_clean_up_that_raises_is_the_cause_of_the_timeout(in_a_group: bool, policy: CallPolicy) -> None:
    async def untidy_part() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise ValueError("while cleaning up")

    async def untidy() -> None:
        if not in_a_group:
            await untidy_part()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(untidy_part)
            tasks.start_soon(anyio.sleep_forever)

    node = ToolNode([make(untidy)], policies={"untidy": policy}, handle_tool_errors=False)
    with pytest.raises(CallTimeoutError if policy.timeout else DeadlineExceededError) as caught:
        await node.ainvoke(ask("untidy"))
    cause = caught.value.__cause__
    assert isinstance(cause, ExceptionGroup if in_a_group else ValueError)
    assert not isinstance(cause, ExceptionGroup) or cause.subgroup(ValueError) is not None


async def test_a_timeout_error_of_the_tool_itself_is_no_timeout_of_the_call() -> None:
    async def client() -> None:
        with anyio.fail_after(1):
            await anyio.sleep_forever()

    node = ToolNode([make(client)], timeout=5)
    with anyio.fail_after(60), pytest.raises(TimeoutError) as caught:
        await node.ainvoke(ask("client"))
    assert not isinstance(caught.value, CallTimeoutError)


@pytest.mark.parametrize("keyword", ["timeout", "budget", "idle_timeout"])
def test_a_time_that_is_no_duration_is_refused_and_named(keyword: str) -> None:
    for value in (0, -1, -0.5, math.nan, "2", True, [1]):
        kind = ValueError if type(value) in (int, float) else TypeError
        with pytest.raises(kind, match=rf"CallPolicy\({keyword}=\.\.\.\).*{re.escape(repr(value))}"):
            CallPolicy(**{keyword: value})
        if keyword == "timeout":
            with pytest.raises(kind, match=rf"timeout=.*{re.escape(repr(value))}"):
                ToolNode([Recorder().tool("a")], timeout=value)


@pytest.mark.parametrize("when", ["before", "after", "instead"])
async def test_a_middleware_that_hangs_ends_with_the_timeout_of_its_call(when: str) -> None:
    rec = Recorder()

    async def hangs(request: object, execute: Callable[[object], Awaitable[ToolMessage]]) -> ToolMessage:
        if when == "after":
            await execute(request)
        await anyio.sleep_forever()
        return await execute(request)

    node = ToolNode([rec.tool("work", seconds=1.5)], timeout=2, middleware=[hangs])
    watch = Stopwatch()
    [message] = await node.ainvoke(ask("work"))
    assert watch.seconds == pytest.approx(3.5 if when == "after" else 2)
    assert ending_of(message) == "timeout"
    assert message.content.endswith("its timeout of 2 s: the middleware around it took longer.")
    assert rec.count("started") == (1 if when == "after" else 0)
    assert rec.running == 0


async def test_attempts_and_queues_are_no_time_of_the_middleware_around_them() -> None:
    rec = Recorder()

    async def three_times(request: object, execute: Callable[[object], Awaitable[ToolMessage]]) -> ToolMessage:
        for _ in range(2):
            await execute(request)
            await anyio.sleep(1.5)
        return await execute(request)

    policy = CallPolicy(timeout=2, limit=Limit(concurrency=1))
    node = ToolNode([rec.tool("work", seconds=1.5)], policies={"work": policy}, middleware=[three_times])
    messages = await node.ainvoke(ask(*["work"] * 3))
    assert [message.status for message in messages] == ["success"] * 3


async def test_the_timeout_of_a_middleware_starts_again_after_the_last_of_its_waits() -> None:
    """Promise 6: an attempt that ends does not start the timeout while the middleware waits deliberately beside it."""

    async def pause() -> None:
        with waiting():
            await anyio.sleep(10)

    async def both(request: object, execute: Callable[[object], Awaitable[ToolMessage]]) -> ToolMessage:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pause)
            return await execute(request)

    node = ToolNode([Recorder().tool("work", seconds=1)], timeout=2, middleware=[both])
    with anyio.fail_after(30):
        [message] = await node.ainvoke(ask("work"))
    assert message.status == "success"


async def test_the_timeout_of_a_middleware_starts_again_after_the_answer_for_an_unknown_tool() -> None:
    async def asks_for_others(request: Any, execute: Callable[[object], Awaitable[ToolMessage]]) -> ToolMessage:
        unknown_request = request.override(tool=None, tool_call={**request.tool_call, "name": "nope"})
        for _ in range(4):
            message = await execute(unknown_request)
            await anyio.sleep(1.5)
        return message

    node = ToolNode([Recorder().tool("work")], timeout=2, middleware=[asks_for_others])
    with anyio.fail_after(30):
        [message] = await node.ainvoke(ask("work"))
    assert "nope is not a valid tool" in message.content


async def test_an_error_of_a_middleware_s_clean_up_is_the_cause_of_its_timeout() -> None:
    async def untidy(request: object, execute: Callable[[object], Awaitable[ToolMessage]]) -> ToolMessage:
        try:
            await anyio.sleep_forever()
        finally:
            raise ValueError("while cleaning up")

    node = ToolNode([Recorder().tool("work")], timeout=2, middleware=[untidy], handle_tool_errors=False)
    with anyio.fail_after(30), pytest.raises(CallTimeoutError) as caught:
        await node.ainvoke(ask("work"))
    assert isinstance(caught.value.__cause__, ValueError)


async def test_an_error_of_a_middleware_in_time_is_no_timeout() -> None:
    async def fails(request: object, execute: Callable[[object], Awaitable[ToolMessage]]) -> ToolMessage:
        await execute(request)
        raise ValueError("in time")

    node = ToolNode([Recorder().tool("work")], timeout=2, middleware=[fails], handle_tool_errors=False)
    with anyio.fail_after(30), pytest.raises(ValueError, match="in time"):
        await node.ainvoke(ask("work"))


async def test_a_middleware_reads_how_long_it_may_go_on() -> None:
    read: list[float] = []

    async def reads(request: object, execute: Callable[[object], Awaitable[ToolMessage]]) -> ToolMessage:
        await anyio.sleep(0.5)
        read.append(remaining())
        message = await execute(request)
        read.append(remaining())
        return message

    node = ToolNode([Recorder().tool("work", seconds=1)], timeout=2, middleware=[reads])
    await node.ainvoke(ask("work"))
    assert read == pytest.approx([1.5, 2])


async def test_a_pause_of_retry_may_be_longer_than_the_timeout_of_an_attempt() -> None:
    """Promise 6: a pause of retry is intended, and so is waiting for the result of an equal call."""

    class Longest(random.Random):
        def uniform(self, a: float, b: float) -> float:
            return b

    rec = Recorder()
    retry = Retry(attempts=3, initial=10.0, any_tool=True, rng=Longest())
    node = ToolNode([rec.tool("flaky", raises=ConnectionError("lost"), times=2)], timeout=2, middleware=[retry])
    [message] = await node.ainvoke(ask("flaky"))
    assert message.status == "success"


async def test_where_there_is_a_budget_it_bounds_the_middleware_alone() -> None:
    """Promise 6: with a budget, a middleware may wait longer than an attempt may take."""

    async def waits(request: object, execute: Callable[[object], Awaitable[ToolMessage]]) -> ToolMessage:
        await anyio.sleep(30)
        return await execute(request)

    policy = CallPolicy(timeout=2, budget=60)
    node = ToolNode([Recorder().tool("work")], policies={"work": policy}, middleware=[waits])
    [message] = await node.ainvoke(ask("work"))
    assert message.status == "success"


async def test_a_middleware_that_hangs_over_an_error_message_ends_too() -> None:
    class Stuck:
        async def awrap_tool_call(self, request: object, call_next: Callable[..., Awaitable[ToolMessage]]) -> object:
            return await call_next(request)

        async def aerror_message(self, message: ToolMessage, request: object) -> ToolMessage:
            await anyio.sleep_forever()
            return message

    node = ToolNode([Recorder().tool("stuck", hang=True)], timeout=2, grace=1, middleware=[Stuck()])
    [message] = await node.ainvoke(ask("stuck"))
    assert ending_of(message) == "timeout"
