"""`ToolNode.running()` and `ToolNode.cancel()`: what runs can be seen, and each call can be ended alone."""

import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from anyio.abc import TaskGroup
from anyio.from_thread import check_cancelled
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import ToolMessage

from callboard import (
    Actor,
    CallEvent,
    CallPolicy,
    Limit,
    LiveCall,
    ToolNode,
    cleanup,
    handler,
    observe,
    progress,
    tool_call,
)
from callboard.exceptions import CallCancelledError
from callboard.middleware import Cache, CircuitBreaker, Fallback, Retry, Value
from callboard.testing import Recorder
from tests.helpers import contents, ending_of, live_tasks, make, make_sync, until

WAIT = 1_000.0
BEGUN = (
    "Error: Tool 'fetch' was cancelled by the application before it had a result: too long. Whether it had its effect "
    "is unknown. Find out before you call it again."
)
NOT_BEGUN = "Error: Tool 'fetch' was cancelled by the application before it started: not needed. It did not run."


def fetch_calls(count: int) -> list[Any]:
    return [tool_call("fetch", f"c{n}", query=str(n)) for n in range(count)]


class Run:
    """Run of a node in a task of its own, with its messages once it has ended."""

    def __init__(self, node: ToolNode, requests: list[Any]) -> None:
        self.node = node
        self.requests = requests
        self.messages: list[ToolMessage] = []
        self.error: Exception | None = None

    async def __call__(self) -> None:
        try:
            self.messages = (await self.node.ainvoke(self.requests))["messages"]
        except Exception as error:
            self.error = error

    @asynccontextmanager
    async def begun(self, seconds: float = 5) -> AsyncIterator[TaskGroup]:
        """Let it run for so many seconds before the block, which waits for its end."""
        async with anyio.create_task_group() as group:
            group.start_soon(self)
            await anyio.sleep(seconds)
            yield group

    @property
    def contents(self) -> list[Any]:
        assert self.error is None
        return contents(self.messages)


async def test_the_running_calls_say_where_they_are_and_for_how_long() -> None:
    """A person who decides what to end has to see which call hangs, and where."""

    async def fetch(query: str) -> str:
        progress(f"page {query}")
        await anyio.sleep(100)
        return query

    node = ToolNode([make(fetch)], policies={"fetch": CallPolicy(limit=Limit(concurrency=1))})
    assert node.running() == []
    run = Run(node, fetch_calls(2))
    async with run.begun(30):
        first, second = node.running()
        assert (first.seconds, second.seconds) == (pytest.approx(30, abs=1), pytest.approx(30, abs=1))
        assert first == LiveCall(
            tool="fetch",
            call_id="c0",
            thread_id=None,
            place="running",
            attempt=1,
            seconds=first.seconds,
            progress="page 0",
        )
        assert (second.place, second.attempt, second.limit) == ("waiting", 0, "tool 'fetch'")
    assert run.contents == ["0", "1"]
    assert node.running() == []


async def test_a_call_in_the_pause_before_a_retry_is_between_its_attempts() -> None:
    """It waits for no limit, and its body does not run."""

    async def fetch(query: str) -> str:
        raise TimeoutError(query)

    node = ToolNode(
        [make(fetch)], middleware=[Retry(2, initial=10, any_tool=True, rng=Random(0))], handle_tool_errors=True
    )
    run = Run(node, fetch_calls(1))
    async with run.begun(3):
        assert [(call.place, call.attempt, call.limit) for call in node.running()] == [("between", 1, None)]
        assert await node.cancel("c0", "enough")
    assert [ending_of(message) for message in run.messages] == ["cancelled"]


async def test_one_call_ends_with_its_grace_and_the_others_go_on() -> None:
    """An hour of work must not be lost because one of its calls hangs."""
    closed: list[str] = []

    async def fetch(query: str) -> str:
        try:
            await anyio.sleep(60)
            return query
        finally:
            with cleanup():
                await anyio.sleep(2)
                closed.append(query)

    node = ToolNode([make(fetch)], on_error="cancel", handle_tool_errors=False)
    run, before = Run(node, fetch_calls(3)), live_tasks()
    async with run.begun():
        with anyio.fail_after(WAIT):
            assert await node.cancel("c1", "too long")
        assert closed == ["1"]
        assert [call.call_id for call in node.running()] == ["c0", "c2"]
    assert run.contents == ["0", BEGUN, "2"]
    message = run.messages[1]
    assert (message.status, message.tool_call_id) == ("error", "c1")
    assert message.additional_kwargs == {"callboard": {"ended": "cancelled", "reason": "too long", "started": True}}
    assert live_tasks() == before


async def test_a_waiting_call_that_is_cancelled_never_begins() -> None:
    """Its place in the queue is free for the next call."""
    recorder = Recorder()
    node = ToolNode([recorder.tool("fetch", seconds=10.0)], limit=Limit(concurrency=1))
    run = Run(node, fetch_calls(3))
    async with run.begun():
        assert await node.cancel("c1", "not needed")
    assert run.contents == ["0", NOT_BEGUN, "2"]
    assert recorder.count("started") == 2
    assert run.messages[1].additional_kwargs["callboard"]["started"] is False


async def test_an_idempotent_call_may_be_made_again() -> None:
    """Its model need not find out whether the call had its effect."""
    fetch = Recorder().tool("fetch", seconds=60.0)
    node = ToolNode([fetch], policies={"fetch": CallPolicy(idempotent=True)})
    run = Run(node, fetch_calls(1))
    async with run.begun():
        assert await node.cancel("c0")
    assert run.contents == ["Error: Tool 'fetch' was cancelled by the application before it had a result."]


async def test_a_call_that_has_ended_or_never_was_is_not_cancelled() -> None:
    """A call may end at the moment in which a person decides: that is no error."""
    node = ToolNode([Recorder().tool("fetch", seconds=10.0)])
    run = Run(node, fetch_calls(1))
    async with run.begun():
        assert not await node.cancel("c9", "too long")
        await anyio.sleep(10)
        assert not await node.cancel("c0", "too long")
    assert run.contents == ["0"]


async def test_a_body_that_finishes_in_spite_of_its_cancellation_keeps_its_result() -> None:
    """The effect has happened, and the model should know it."""

    async def fetch(query: str) -> str:
        with cleanup():
            await anyio.sleep(3)
        return query

    node = ToolNode([make(fetch)])
    run = Run(node, fetch_calls(1))
    async with run.begun(1):
        with anyio.CancelScope(shield=True):
            assert not await node.cancel("c0", "too long")
    assert run.contents == ["0"]


async def test_an_error_of_the_clean_up_does_not_hide_the_cancellation() -> None:
    """The error is kept as its cause, for observers."""
    errors: list[BaseException | None] = []

    async def fetch(query: str) -> str:
        try:
            await anyio.sleep(60)
        finally:
            raise RuntimeError("the connection is gone")

    def keep_error(event: CallEvent) -> None:
        if event.phase == "ended":
            errors.append(event.error)

    for handling in (True, False):
        node = ToolNode([make(fetch)], handle_tool_errors=handling)
        run = Run(node, fetch_calls(1))
        with observe(keep_error):
            async with run.begun():
                assert await node.cancel("c0", "too long")
        assert run.contents == [BEGUN]
    assert [type(error) for error in errors] == [CallCancelledError] * 2


async def test_observers_see_one_end_with_the_reason() -> None:
    """A trace has to tell a cancelled call from a slow one."""
    events: list[CallEvent] = []
    node = ToolNode([Recorder().tool("fetch", seconds=60.0)])
    run = Run(node, fetch_calls(1))
    with observe(events.append):
        async with run.begun():
            assert await node.cancel("c0", "too long")
    (end,) = [event for event in events if event.phase == "ended"]
    assert isinstance(end.error, CallCancelledError)
    assert (end.error.reason, end.error.started, end.result) == ("too long", True, run.messages[0])


async def test_middleware_neither_repeats_nor_replaces_nor_stores_it() -> None:
    """A person has decided about this call; a service has not failed."""
    recorder = Recorder()
    node = ToolNode(
        [recorder.tool("fetch", seconds=10.0)],
        middleware=[
            Fallback({"fetch": Value("instead")}),
            Cache(["fetch"], ttl=WAIT),
            CircuitBreaker(minimum=1),
            Retry(3, any_tool=True),
        ],
    )
    run = Run(node, fetch_calls(1))
    async with run.begun():
        assert await node.cancel("c0", "too long")
        assert recorder.count("started") == 1
    assert run.contents == [BEGUN]
    second_run = Run(node, fetch_calls(1))
    await second_run()
    assert second_run.contents == ["0"]  # the breaker is closed, and the cache is empty
    assert recorder.count("started") == 2


async def test_a_middleware_that_hides_a_cancellation_starts_no_further_attempt() -> None:
    """Promise 1: no body starts after its call was cancelled."""
    recorder = Recorder()

    async def insist(request: Any, call_next: Any) -> Any:
        try:
            return await call_next(request)
        except BaseException:
            with anyio.CancelScope(shield=True):
                return await call_next(request)

    node = ToolNode([recorder.tool("fetch", seconds=60.0)], middleware=[insist])
    run = Run(node, fetch_calls(1))
    async with run.begun():
        assert await node.cancel("c0", "too long")
    assert run.contents == [BEGUN]
    assert recorder.count("started") == 1


async def test_calls_inside_the_call_end_with_it() -> None:
    """A tool may run a node of its own, or an agent."""
    recorder = Recorder()
    inner = ToolNode([recorder.tool("fetch", seconds=60.0)])

    async def research(query: str) -> str:
        return str(await inner.ainvoke(fetch_calls(2)))

    outer = ToolNode([make(research)])
    run = Run(outer, [tool_call("research", "r", query="tea")])
    async with run.begun():
        assert len(inner.running()) == 2
        assert await outer.cancel("r")
        assert (inner.running(), recorder.running) == ([], 0)
    assert [ending_of(message) for message in run.messages] == ["cancelled"]


async def test_a_call_inside_another_can_be_cancelled_alone() -> None:
    """The outer call goes on with the message of the inner one."""
    inner = ToolNode([Recorder().tool("fetch", seconds=60.0)])

    async def research(query: str) -> str:
        return ", ".join(contents(await inner.ainvoke(fetch_calls(2))))

    run = Run(ToolNode([make(research)]), [tool_call("research", "r", query="tea")])
    async with run.begun():
        assert await inner.cancel("c0", "too long")
    assert run.contents == [f"{BEGUN}, 1"]


async def test_a_call_of_a_handler_of_an_actor_ends_alone() -> None:
    """The actor goes on with the next call."""

    class Shop(Actor):
        @handler
        async def fetch(self, query: str) -> str:
            """Fetch."""
            if query == "0":
                await anyio.sleep(500)
            return query

    node = ToolNode([Shop()])
    async with node:
        run = Run(node, fetch_calls(2))
        async with run.begun():
            with anyio.fail_after(WAIT):
                assert await node.cancel("c0", "too long")
        assert run.contents == [BEGUN, "1"]


async def test_cancel_all_at_once_and_twice() -> None:
    """Each caller waits for the end of the call."""
    node = ToolNode([Recorder().tool("fetch", seconds=60.0)])
    run, answers = Run(node, fetch_calls(3)), list[bool]()

    async def cancel(call_id: str) -> None:
        answers.append(await node.cancel(call_id))

    async with run.begun():
        async with anyio.create_task_group() as cancelling:
            for call in node.running() * 2:
                assert call.call_id is not None
                cancelling.start_soon(cancel, call.call_id)
        assert (answers, node.running()) == ([True] * 6, [])
    assert [ending_of(message) for message in run.messages] == ["cancelled"] * 3


async def test_a_cancelled_batch_ends_as_before_although_one_of_its_calls_was_cancelled() -> None:
    """Promise 4: the cancellation of the caller passes through."""

    async def fetch(query: str) -> str:
        try:
            await anyio.sleep(60)
        finally:
            with cleanup():
                await anyio.sleep(3)
        return query

    node, before = ToolNode([make(fetch)]), live_tasks()
    run, answers = Run(node, fetch_calls(2)), list[bool]()

    async def cancel() -> None:
        answers.append(await node.cancel("c0"))

    async with anyio.create_task_group() as outer:
        with anyio.CancelScope() as scope:
            async with run.begun():
                outer.start_soon(cancel)
                await anyio.sleep(1)
                scope.cancel()
        assert scope.cancelled_caught
    assert (run.messages, node.running(), answers) == ([], [], [False])
    assert live_tasks() == before


async def test_a_tool_may_cancel_another_call_of_its_batch() -> None:
    """A tool that finds what its neighbours search makes them stop."""

    async def stop(query: str) -> str:
        return str(await node.cancel("c0", "too long"))

    node = ToolNode([make(stop), Recorder().tool("fetch", seconds=60.0)])
    run = Run(node, [*fetch_calls(1), tool_call("stop", "s", query="")])
    with anyio.fail_after(WAIT):
        await run()
    assert run.contents == [BEGUN, "True"]


async def test_a_tool_may_cancel_its_own_call() -> None:
    """It must not wait for itself for ever."""

    async def fetch(query: str) -> str:
        await node.cancel("c0", "too long")
        return query

    node = ToolNode([make(fetch)])
    run = Run(node, fetch_calls(1))
    with anyio.fail_after(WAIT):
        await run()
    assert run.contents == [BEGUN]


async def test_a_reader_of_results_may_cancel_calls_that_wait_for_it() -> None:
    """A call that waits for the reader cannot end before the reader goes on."""
    recorder, read_contents, begun = Recorder(), list[Any](), list[str]()

    async def note_begin(request: Any, call_next: Any) -> Any:
        begun.append(request.tool_call["id"])
        return await call_next(request)

    node = ToolNode([recorder.tool("fetch")], middleware=[note_begin])
    with anyio.fail_after(WAIT):
        async for message in node.as_completed(fetch_calls(3), window=1):
            assert isinstance(message, ToolMessage)
            read_contents.append(message.content)
            if len(read_contents) == 1:
                assert await node.cancel("c2", "not needed")
    assert read_contents == ["0", "1", NOT_BEGUN]
    assert recorder.count("started") == 2
    assert begun == ["c0", "c1"]


CALL = LiveCall(tool="fetch", call_id="c0", thread_id=None, place="running", attempt=1, seconds=0.0)


@pytest.mark.parametrize("call_id", [None, 3, CALL])
async def test_an_id_is_a_text(call_id: Any) -> None:
    """The record of a call is no id."""
    with pytest.raises(TypeError, match=r"cancel\(call_id=...\) is a text, got"):
        await ToolNode([Recorder().tool("fetch")]).cancel(call_id)


async def test_an_id_of_several_threads_needs_the_thread() -> None:
    """Models repeat their ids in other conversations, and the wrong call must not end."""
    node = ToolNode([Recorder().tool("fetch", seconds=60.0)])
    contents_by_thread: dict[str, Any] = {}

    async def run(thread: str) -> None:
        config: Any = {"configurable": {"thread_id": thread}}
        contents_by_thread[thread] = contents(await node.ainvoke(fetch_calls(1), config))

    async with anyio.create_task_group() as group:
        for thread in ("a", "b"):
            group.start_soon(run, thread)
        await anyio.sleep(5)
        assert {call.thread_id for call in node.running()} == {"a", "b"}
        with pytest.raises(ValueError, match="several threads"):
            await node.cancel("c0", "too long")
        assert not await node.cancel("c0", thread_id="c")
        assert await node.cancel("c0", "too long", thread_id="b")
    assert contents_by_thread == {"a": ["0"], "b": [BEGUN]}


@given(
    st.integers(1, 6),
    st.sampled_from([None, Limit(concurrency=1), Limit(concurrency=2), Limit(concurrency=2, queue=2)]),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 30)), max_size=8),
)
async def test_exactly_the_cancelled_calls_end_so_whatever_the_order(
    count: int, limit: Limit | None, cancellations: list[tuple[int, int]]
) -> None:
    """No body begins after its `cancel()` has returned, and every permit is free at the end."""
    recorder, late = Recorder(), list[str]()
    cancelled = set[str]()

    async def fetch(query: str) -> str:
        if f"c{query}" in cancelled:
            late.append(query)
        await anyio.sleep(10)
        return query

    node = ToolNode([make(fetch), recorder.tool("other")], limit=limit)
    run = Run(node, fetch_calls(count))

    async def cancel(number: int, after: int) -> None:
        await anyio.sleep(after)
        if await node.cancel(f"c{number}"):
            cancelled.add(f"c{number}")

    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            for cancellation in cancellations:
                group.start_soon(cancel, *cancellation)
        ends = {message.tool_call_id: ending_of(message) for message in run.messages}
        assert {call_id for call_id, end in ends.items() if end == "cancelled"} == cancelled
        assert all(end in (None, "cancelled", "rejected") for end in ends.values())
        assert len(ends) == count
        assert late == []
        second_run = Run(node, [tool_call("other", f"o{n}", query=str(n)) for n in range(2)])
        await second_run()
        assert second_run.contents == ["0", "1"]
    assert node.statistics().waiting == 0


@pytest.mark.real_clock
async def test_a_sync_tool_is_given_up_as_after_a_timeout() -> None:
    """A thread cannot be stopped; one that asks for its cancellation ends."""
    began = threading.Event()

    def fetch(query: str) -> str:
        began.set()
        while True:
            time.sleep(0.01)
            check_cancelled()

    node = ToolNode([make_sync(fetch)])
    run = Run(node, fetch_calls(1))
    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await until(began.is_set)
        assert await node.cancel("c0", "too long")
    assert run.contents == [BEGUN]
    assert node.statistics().abandoned_threads == 0


@pytest.mark.real_clock
@pytest.mark.parametrize("other_backend", ["asyncio", "trio"])
async def test_another_thread_with_its_own_loop_may_see_and_cancel_calls(other_backend: str) -> None:
    """A web handler often runs in another event loop than the agent."""
    node = ToolNode([Recorder().tool("fetch", seconds=60.0)])
    run = Run(node, fetch_calls(2))

    def elsewhere() -> None:
        assert [call.call_id for call in node.running()] == ["c0", "c1"]
        assert anyio.run(node.cancel, "c0", "too long", backend=other_backend)
        assert [call.call_id for call in node.running()] == ["c1"]
        assert anyio.run(node.cancel, "c1", "too long", backend=other_backend)

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await until(lambda: len(node.running()) == 2)
        await wait_all_tasks_blocked()
        await anyio.to_thread.run_sync(elsewhere)
    assert run.contents == [BEGUN, BEGUN]


async def test_a_thread_whose_id_is_a_number_is_found_by_the_number() -> None:
    """A config may have the number, too: both name the same conversation."""
    recorder = Recorder()
    node = ToolNode([recorder.tool("fetch", seconds=100)])
    config: Any = {"configurable": {"thread_id": 7}}

    async with anyio.create_task_group() as group:
        group.start_soon(node.ainvoke, fetch_calls(1), config)
        await anyio.sleep(5)
        number: Any = 7
        assert await node.cancel("c0", "too long", thread_id=number)
