"""Promise 1: when a call of a node returns, raises or is cancelled, all tasks and bodies that it started have ended.

One readable example for each cause; `tests/explore` checks the promise for any mix of behaviours, limits and moments.
"""

import asyncio
import threading
import time
import warnings
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest
import sniffio
from langchain_core.messages import ToolMessage
from langchain_core.tools import StructuredTool

from callboard import AbandonedThreadWarning, CallPolicy, Limit, Rate, Statistics, ToolNode, cleanup
from callboard.testing import Recorder
from tests.helpers import ask, ending_of, live_tasks, make, make_sync

IDLE = Statistics(running=0, waiting=0, abandoned_threads=0)


# Ways to cancel a body that sleeps without end: `await how(node, messages)` returns when the cancellation is over.


async def by_a_neighbour(node: ToolNode, name: str) -> None:
    with pytest.raises(ValueError, match="boom"):
        await node.ainvoke(ask(name, "boom"))


async def by_the_caller(node: ToolNode, name: str) -> None:
    with anyio.move_on_after(1) as scope:
        await node.ainvoke(ask(name))
    assert scope.cancelled_caught


async def by_its_timeout(node: ToolNode, name: str) -> None:
    [message] = await node.ainvoke(ask(name))
    assert ending_of(message) == "timeout"


async def by_its_budget(node: ToolNode, name: str) -> None:
    [message] = await node.ainvoke(ask(name))
    assert ending_of(message) == "deadline"


async def by_a_native_cancel(node: ToolNode, name: str) -> None:
    task = asyncio.ensure_future(node.ainvoke(ask(name)))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def by_a_native_timeout(node: ToolNode, name: str) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await node.ainvoke(ask(name))


ON_BOTH = [by_a_neighbour, by_the_caller, by_its_timeout, by_its_budget]
ON_ASYNCIO = [*ON_BOTH, by_a_native_cancel, by_a_native_timeout]
How = Callable[[ToolNode, str], Awaitable[None]]


def policy_for(cancel: How, grace: float | None = None) -> CallPolicy:
    """A policy under which the way `cancel` works; all calls are cancelled after one second."""
    return CallPolicy(
        timeout=1 if cancel is by_its_timeout else None, budget=1 if cancel is by_its_budget else None, grace=grace
    )


async def seconds_of(ends: Awaitable[None]) -> float:
    """Return how long it takes on the clock of the event loop."""
    start = anyio.current_time()
    await ends
    return anyio.current_time() - start


def node_for(rec: Recorder, body: StructuredTool, cancel: How, grace: float | None = None) -> ToolNode:
    boom = rec.tool("boom", seconds=1, raises=ValueError("boom"))
    return ToolNode([body, boom], policies={body.name: policy_for(cancel, grace)})


async def assert_ended(
    cancel: How, seconds: float, grace: float | None = None, *, tolerance: float = 0.2, cleaned: int = 0, **body: object
) -> Recorder:
    """Cancel a body that sleeps without end, and check when it has ended and that nothing of it is left."""
    rec = Recorder()
    node = node_for(rec, rec.tool("stuck", hang=True, **body), cancel, grace)
    before = live_tasks()
    assert await seconds_of(cancel(node, "stuck")) == pytest.approx(seconds, abs=tolerance)
    assert rec.count("cleaned up") == cleaned
    assert (live_tasks(), rec.running, node.statistics()) == (before, 0, IDLE)
    return rec


@pytest.mark.parametrize("cancel", ON_BOTH)
async def test_a_cancelled_call_leaves_no_task_behind(cancel: How) -> None:
    rec = await assert_ended(cancel, 1, tolerance=1e-6)
    assert rec.count("cancelled") == 1


async def test_bodies_that_wait_in_a_queue_never_start_after_the_end() -> None:
    rec = Recorder()
    tools = [rec.tool("slow", seconds=2), rec.tool("boom", seconds=1, raises=ValueError("boom"))]
    node = ToolNode(tools, policies={"slow": CallPolicy(limit=Limit(concurrency=2))})
    with pytest.raises(ValueError, match="boom"):
        await node.ainvoke(ask(*["slow"] * 10, "boom"))
    await anyio.sleep(100)
    assert rec.count("started", "slow") == 2
    assert node.statistics() == IDLE
    assert len(await node.ainvoke(ask("slow", "slow"))) == 2


async def test_no_body_starts_in_a_scope_that_was_cancelled_before() -> None:
    started: list[str] = []

    async def send_mail() -> str:
        started.append("mail")
        return "sent"

    node = ToolNode([make(send_mail)])
    with anyio.CancelScope() as scope:
        scope.cancel()
        await node.ainvoke(ask("send_mail", "send_mail"))
    assert started == []
    assert node.statistics() == IDLE


@pytest.mark.parametrize("cancel", [by_a_neighbour, by_the_caller])
@pytest.mark.parametrize("shield", [nullcontext, cleanup])
async def test_middleware_that_survives_the_cancel_cannot_start_a_body(
    cancel: How, shield: Callable[[], AbstractContextManager[object]]
) -> None:
    rec = Recorder()

    async def stubborn(request: object, execute: Callable[[object], Awaitable[ToolMessage]]) -> ToolMessage:
        try:
            return await execute(request)
        finally:
            if request.tool_call["name"] == "stuck":
                with shield():
                    await execute(request)

    boom = rec.tool("boom", seconds=1, raises=ValueError("boom"))
    node = ToolNode([rec.tool("stuck", seconds=3), boom], awrap_tool_call=stubborn)
    before = live_tasks()
    await cancel(node, "stuck")
    assert rec.count("started", "stuck") == 1
    assert (live_tasks(), rec.running, node.statistics()) == (before, 0, IDLE)


@pytest.mark.backends("asyncio")
@pytest.mark.parametrize("cancel", ON_ASYNCIO)
async def test_a_plain_finally_completes_on_asyncio(cancel: How) -> None:
    """Promise 1: asyncio delivers a cancellation once, so `finally: await client.aclose()` completes."""
    await assert_ended(cancel, 1.2, tolerance=1e-6, cleanup=0.2, cleaned=1)


@pytest.mark.parametrize("cancel", ON_BOTH)
async def test_a_clean_up_inside_cleanup_completes(cancel: How) -> None:
    await assert_ended(cancel, 1.2, tolerance=1e-6, cleanup=0.2, shield=cleanup, cleaned=1)


@pytest.mark.parametrize("cancel", ON_BOTH)
@pytest.mark.parametrize("grace", [None, 0.5, 30.0])
async def test_a_clean_up_that_never_ends_is_cut_off_when_the_grace_is_over(cancel: How, grace: float | None) -> None:
    """Promise 1: the grace is that of the tool's policy, else the node's, else 5 seconds."""
    await assert_ended(cancel, 1 + (5 if grace is None else grace), grace, cleanup=1000, shield=cleanup)


@pytest.mark.backends("asyncio")
@pytest.mark.parametrize("cancel", ON_ASYNCIO)
async def test_a_plain_finally_that_never_ends_is_cut_off_on_asyncio(cancel: How) -> None:
    await assert_ended(cancel, 3, 2.0, cleanup=1000)


async def test_each_tool_has_its_own_grace() -> None:
    rec = Recorder()
    tools = [rec.tool(name, hang=True, cleanup=3, shield=cleanup) for name in ("patient", "hasty", "plain")]
    policies = {"patient": CallPolicy(grace=10), "hasty": CallPolicy(grace=1)}
    node = ToolNode(tools, policies=policies, grace=2)
    start = anyio.current_time()
    with anyio.move_on_after(1):
        await node.ainvoke(ask("patient", "hasty", "plain"))
    assert [event.tool for event in rec.events if event.kind == "cleaned up"] == ["patient"]
    assert anyio.current_time() - start == pytest.approx(4)
    assert rec.running == 0


@pytest.mark.parametrize("cancel", ON_BOTH)
@pytest.mark.parametrize("inner", [nullcontext, cleanup], ids=["alone", "nested"])
async def test_no_cancellation_enters_a_clean_up_that_has_begun(
    inner: Callable[[], AbstractContextManager[object]], cancel: How
) -> None:
    """Promise 1: nested clean-ups are one clean-up, which ends with the outer block."""
    steps: list[str] = []

    async def stuck() -> None:
        with cleanup():
            with inner():
                await anyio.sleep(2)
            await anyio.sleep(1)
            steps.append("cleaned up")
        await anyio.sleep(0)
        steps.append("went on")

    node = node_for(Recorder(), make(stuck), cancel)
    assert await seconds_of(cancel(node, "stuck")) == pytest.approx(3)
    assert steps == ["cleaned up"]
    assert node.statistics() == IDLE


@pytest.mark.parametrize("cancel", ON_BOTH)
async def test_no_cancellation_enters_a_clean_up_that_follows_another_one(cancel: How) -> None:
    """Promise 1: a cancellation that waits for the end of one clean-up waits for the next one, too."""
    steps: list[str] = []

    async def stuck() -> None:
        with cleanup():
            await anyio.sleep(2)
            steps.append("first")
        with cleanup():
            await anyio.sleep(1)
            steps.append("second")
        await anyio.sleep(1)
        steps.append("went on")

    node = node_for(Recorder(), make(stuck), cancel)
    assert await seconds_of(cancel(node, "stuck")) == pytest.approx(3)
    assert steps == ["first", "second"]
    assert node.statistics() == IDLE


@pytest.mark.backends("asyncio")
async def test_a_second_cancel_does_not_disturb_the_clean_up() -> None:
    rec = Recorder()
    node = ToolNode([rec.tool("stuck", hang=True, cleanup=2)])
    before = live_tasks()
    task = asyncio.ensure_future(node.ainvoke(ask("stuck", "stuck")))
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.sleep(0.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert rec.count("cleaned up") == 2
    assert (live_tasks(), rec.running) == (before, 0)


async def test_an_unshielded_second_cancel_waits_for_the_clean_up_too() -> None:
    rec = Recorder()
    node = ToolNode([rec.tool("stuck", hang=True, cleanup=2, shield=cleanup)])
    before = live_tasks()
    with anyio.move_on_after(2), anyio.move_on_after(1):
        await node.ainvoke(ask("stuck"))
    assert rec.count("cleaned up") == 1
    assert (live_tasks(), rec.running) == (before, 0)


@pytest.mark.backends("asyncio")
@pytest.mark.parametrize("cancel", ON_ASYNCIO)
async def test_a_body_that_ignores_cancellations_is_cancelled_until_it_ends(cancel: How) -> None:
    """Promise 1: a body may swallow several cancellations beyond its grace, and is cancelled again until it ends."""
    rec = await assert_ended(cancel, 3, 2.0, tolerance=0.5, ignores_cancel=3)
    assert rec.count("cancelled") == 4


@pytest.mark.parametrize("error", [KeyboardInterrupt("stop"), SystemExit(3)], ids=["Ctrl-C", "exit"])
@pytest.mark.parametrize("on_error", ["cancel", "finish"])
async def test_an_exit_out_of_a_tool_ends_everything_and_arrives(error: BaseException, on_error: str) -> None:
    """Promise 1: `KeyboardInterrupt` and `SystemExit` cancel the other calls, whatever `on_error` is."""

    async def leave() -> None:
        await anyio.sleep(1)
        raise error

    rec = Recorder()
    node = ToolNode(
        [make(leave), rec.tool("stuck", hang=True, cleanup=0.2, shield=cleanup)],
        on_error=on_error,
        handle_tool_errors=True,
    )
    before = live_tasks()
    with pytest.raises(type(error)) as caught:
        await node.ainvoke(ask("leave", "stuck"))
    assert caught.value is error
    assert rec.count("cleaned up") == 1
    assert (live_tasks(), rec.running, node.statistics()) == (before, 0, IDLE)


@pytest.mark.parametrize("cancels", [1, 3, 0])
async def test_a_tool_that_cancels_itself_ends_alone(cancels: int) -> None:
    async def confused() -> None:
        if cancels and sniffio.current_async_library() == "asyncio":
            for _ in range(cancels):
                asyncio.current_task().cancel()
        await anyio.sleep(1)
        raise asyncio.CancelledError

    rec = Recorder()
    node = ToolNode([make(confused), rec.tool("slow", seconds=2)])
    first, second = await node.ainvoke(ask("confused", "slow"))
    assert (first.status, ending_of(first), second.content) == ("error", "cancelled", "slow")


@pytest.mark.parametrize("cancel", [by_a_neighbour, by_the_caller])
async def test_a_value_returned_instead_of_the_cancellation_changes_nothing(cancel: How) -> None:
    async def stuck() -> str:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            return "what cancellation?"

    node = node_for(Recorder(), make(stuck), cancel)
    before = live_tasks()
    await cancel(node, "stuck")
    assert (live_tasks(), node.statistics()) == (before, IDLE)


async def late_result() -> str:
    try:
        await anyio.sleep_forever()
    except anyio.get_cancelled_exc_class():
        return "a result"


async def shielded_result() -> str:
    with cleanup():
        await anyio.sleep(2)
    return "a result"


@pytest.mark.parametrize("body", [late_result, shielded_result])
async def test_a_value_returned_within_the_grace_of_a_timeout_is_the_result(body: Callable[[], Awaitable[str]]) -> None:
    """Promise 1: nor does a timeout that was held back to the end of the body hit the middleware that follows."""

    async def slowly(request: object, execute: Callable[[object], Awaitable[ToolMessage]]) -> ToolMessage:
        message = await execute(request)
        await anyio.sleep(0.9)
        return message

    node = ToolNode([make(body, "stuck")], timeout=1, awrap_tool_call=slowly)
    [message] = await node.ainvoke(ask("stuck"))
    assert (message.content, message.status) == ("a result", "success")


async def test_a_scope_of_the_middleware_can_end_an_attempt() -> None:
    rec = Recorder()

    async def impatient(request: object, execute: Callable[[object], Awaitable[ToolMessage]]) -> ToolMessage:
        with anyio.move_on_after(1) as scope:
            return await execute(request)
        assert scope.cancelled_caught
        await anyio.sleep(1)
        return ToolMessage("given up", tool_call_id=request.tool_call["id"])

    node = ToolNode([rec.tool("stuck", hang=True, cleanup=0.2, shield=cleanup)], awrap_tool_call=impatient)
    [message] = await node.ainvoke(ask("stuck"))
    assert message.content == "given up"
    assert rec.count("cleaned up") == 1
    assert (rec.running, node.statistics()) == (0, IDLE)


@pytest.mark.backends("asyncio")
async def test_a_native_timeout_of_the_middleware_can_end_an_attempt() -> None:
    rec = Recorder()

    async def impatient(request: object, execute: Callable[[object], Awaitable[ToolMessage]]) -> ToolMessage:
        try:
            async with asyncio.timeout(1):
                return await execute(request)
        except TimeoutError:
            return ToolMessage("given up", tool_call_id=request.tool_call["id"])

    node = ToolNode([rec.tool("stuck", hang=True)], awrap_tool_call=impatient)
    [message] = await node.ainvoke(ask("stuck"))
    assert message.content == "given up"
    assert (rec.running, node.statistics()) == (0, IDLE)


@pytest.fixture
def release() -> object:
    """An event that is set at the end of the test, because some threads end only then."""
    event = threading.Event()
    yield event
    event.set()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await anyio.sleep(0.005)


@pytest.mark.real_clock
async def test_a_thread_that_goes_on_is_counted_and_named_in_a_warning(release: threading.Event) -> None:
    rec = Recorder()
    node = ToolNode([rec.sync_tool("stuck", release=release)], timeout=0.4)
    with pytest.warns(AbandonedThreadWarning, match=r"'stuck'.*'call_1'"):
        start = anyio.current_time()
        result = await node.ainvoke(ask("stuck"))
    assert 0.4 <= anyio.current_time() - start < 2
    assert ending_of(result[0]) == "timeout"
    assert node.statistics() == Statistics(running=0, waiting=0, abandoned_threads=1)
    message_copy = result[0].model_copy(deep=True)
    release.set()
    await until(lambda: node.statistics() == IDLE)
    assert rec.count("finished") == 1
    assert result == [message_copy]


@pytest.mark.real_clock
@pytest.mark.parametrize("cancel", [by_a_neighbour, by_the_caller])
async def test_a_thread_does_not_hold_the_caller_up(cancel: How, release: threading.Event) -> None:
    rec = Recorder()
    node = ToolNode([rec.sync_tool("stuck", release=release), rec.tool("boom", seconds=0.4, raises=ValueError("boom"))])
    before = live_tasks()
    with pytest.warns(AbandonedThreadWarning, match="'stuck'"):
        await cancel(node, "stuck")
    assert live_tasks() == before
    assert node.statistics().abandoned_threads == 1
    release.set()
    await until(lambda: node.statistics() == IDLE)


@pytest.mark.real_clock
@pytest.mark.exhaustive
async def test_an_abandoned_thread_holds_its_place_until_it_ends(release: threading.Event) -> None:
    """Promises 1 and 7: otherwise a limit of one could mean two running threads."""
    rec = Recorder()
    policy = CallPolicy(timeout=0.4, limit=Limit(concurrency=1))
    node = ToolNode([rec.sync_tool("stuck", release=release)], policies={"stuck": policy})
    with pytest.warns(AbandonedThreadWarning):
        await node.ainvoke(ask("stuck"))
    messages: list[ToolMessage] = []

    async def again() -> None:
        messages.extend(await node.ainvoke(ask("stuck")))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(again)
        await until(lambda: node.statistics().waiting == 1)
        await anyio.sleep(0.6)  # longer than the timeout of an attempt, which excludes the queue
        assert rec.count("started") == 1
        assert node.statistics() == Statistics(running=0, waiting=1, abandoned_threads=1)
        release.set()
    assert [message.status for message in messages] == ["success"]
    assert rec.peak == 1
    assert node.statistics() == IDLE


@pytest.mark.filterwarnings("ignore::callboard.exceptions.LoopBlockedWarning")  # threads start late on a busy machine
@pytest.mark.real_clock
async def test_when_all_threads_are_lost_sync_calls_are_rejected(release: threading.Event) -> None:
    rec = Recorder()
    tools = [rec.sync_tool("stuck", release=release), rec.sync_tool("quick"), rec.tool("other")]
    node = ToolNode(tools, policies={"stuck": CallPolicy(timeout=1.0)})
    with pytest.warns(AbandonedThreadWarning):
        # When the first forty threads are lost, the last five calls are waiting for a thread.
        messages = await node.ainvoke(ask(*["stuck"] * 40, *["quick"] * 5))
    assert [ending_of(message) for message in messages] == ["timeout"] * 40 + ["rejected"] * 5
    assert node.statistics() == Statistics(running=0, waiting=0, abandoned_threads=40)
    lost, fine = await node.ainvoke(ask("quick", "other"))
    assert (ending_of(lost), fine.content) == ("rejected", "other")
    assert "40 worker threads" in lost.content
    release.set()
    await until(lambda: node.statistics() == IDLE)
    [message] = await node.ainvoke(ask("quick"))
    assert message.content == "quick"


@pytest.mark.real_clock
@pytest.mark.exhaustive
async def test_a_call_that_comes_to_lost_threads_out_of_another_queue_is_rejected_too(release: threading.Event) -> None:
    """Promise 1: a call may wait for another limit while the threads are lost."""
    rec = Recorder()
    tools = [rec.sync_tool("stuck", release=release), rec.sync_tool("quick")]
    slowly = CallPolicy(limit=Limit(rate=Rate(1, per=3.0)))
    node = ToolNode(tools, policies={"stuck": CallPolicy(timeout=0.6), "quick": slowly})
    await node.ainvoke(ask("quick"))  # the next call waits for three seconds
    with pytest.warns(AbandonedThreadWarning):
        messages = await node.ainvoke(ask(*["stuck"] * 40, "quick"))
    assert [ending_of(message) for message in messages] == ["timeout"] * 40 + ["rejected"]


@pytest.mark.real_clock
async def test_a_thread_that_asks_whether_it_is_cancelled_is_not_abandoned() -> None:
    """Promise 1: `anyio.from_thread.check_cancelled()` ends the thread, so there is no warning."""
    ends: list[str] = []

    def polite() -> str:
        try:
            while True:
                anyio.from_thread.check_cancelled()
                time.sleep(0.005)
        finally:
            ends.append("left")

    node = ToolNode([make_sync(polite)], timeout=0.4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        [message] = await node.ainvoke(ask("polite"))
    assert ending_of(message) == "timeout"
    assert ends == ["left"]
    assert node.statistics() == IDLE


@pytest.mark.real_clock
async def test_a_sync_wrapper_that_goes_on_is_named_in_a_warning(release: threading.Event) -> None:
    rec = Recorder()
    after: list[BaseException] = []

    def stubborn(request: object, execute: Callable[[object], ToolMessage]) -> ToolMessage:
        release.wait()
        try:
            return execute(request)
        except BaseException as error:
            after.append(error)
            raise

    node = ToolNode([rec.tool("quick")], wrap_tool_call=stubborn, policies={"quick": CallPolicy(budget=0.1)})
    with pytest.warns(AbandonedThreadWarning, match="stubborn"):
        [message] = await node.ainvoke(ask("quick"))
    assert ending_of(message) == "deadline"
    release.set()
    await until(lambda: bool(after))
    assert rec.events == []


@pytest.mark.real_clock
async def test_a_thread_that_never_began_is_not_abandoned() -> None:
    quick = Recorder().sync_tool("quick", seconds=0.001)
    node = ToolNode([quick], policies={"quick": CallPolicy(limit=Limit(concurrency=10))})
    for steps in range(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(node.ainvoke, ask(*["quick"] * 20))
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
    with anyio.fail_after(5):
        await until(lambda: node.statistics() == IDLE)
        assert len(await node.ainvoke(ask(*["quick"] * 20))) == 20


async def test_a_node_within_a_tool_has_no_more_grace_than_the_tool() -> None:
    """Promise 1: the inner node's own grace of five seconds would let a body outlive the tool's grace."""
    end_times: list[float] = []

    async def stubborn() -> str:
        try:
            await anyio.sleep(100)
        except anyio.get_cancelled_exc_class():
            await anyio.sleep(3)
        finally:
            end_times.append(anyio.current_time())
        return "too late"

    async def outer() -> str:
        return str(await ToolNode([make(stubborn)]).ainvoke(ask("stubborn")))

    node = ToolNode([make(outer)], policies={"outer": CallPolicy(timeout=1, grace=0.5)})
    start = anyio.current_time()
    [message] = await node.ainvoke(ask("outer"))
    assert message.additional_kwargs["callboard"]["ended"] == "timeout"
    assert end_times[0] - start <= 1.5 + 0.1


async def test_a_stream_within_a_tool_has_no_more_grace_than_the_tool() -> None:
    """Promise 1: the calls of a stream run in a task beside its reader, and must not outlive the reader."""
    end_times: list[float] = []

    async def slow() -> str:
        try:
            await anyio.sleep(100)
        finally:
            try:
                with cleanup():
                    await anyio.sleep(3)
            finally:
                end_times.append(anyio.current_time())
        return "too late"

    async def outer() -> None:
        async for _ in ToolNode([make(slow)]).as_completed(ask("slow")):
            pass

    node = ToolNode([make(outer)], policies={"outer": CallPolicy(timeout=1, grace=0.5)})
    before = live_tasks()
    [message] = await node.ainvoke(ask("outer"))
    assert ending_of(message) == "timeout"
    assert len(end_times) == 1
    assert live_tasks() == before
