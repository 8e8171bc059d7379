"""Promise 3: errors arrive unwrapped with their traceback; several errors arrive in one group."""

import asyncio
import pickle
import traceback
import weakref
from collections.abc import Awaitable, Callable
from copy import copy

import anyio
import pytest
from langchain_core.messages import ToolMessage
from langgraph.errors import GraphBubbleUp

from callboard import CallPolicy, CallRejectedError, CallTimeoutError, DeadlineExceededError, Limit, ToolNode, cleanup
from callboard.testing import Recorder
from tests.helpers import BrokenError, ask, make, make_sync


def frames(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


async def deep() -> None:
    raise BrokenError("from the depth")


async def test_an_error_is_the_same_object_with_the_frames_of_the_tool() -> None:
    errors: list[BrokenError] = []

    async def boom() -> None:
        await anyio.sleep(1)
        try:
            await deep()
        except BrokenError as error:
            errors.append(error)
            raise

    rec = Recorder()
    node = ToolNode([make(boom), rec.tool("stuck", hang=True)])
    with pytest.raises(BrokenError) as caught:
        await node.ainvoke(ask("stuck", "boom", "stuck"))
    assert type(caught.value) is BrokenError
    assert caught.value is errors[0]
    assert frames(caught.value)[-2:] == ["boom", "deep"]
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)
    assert caught.value.__notes__ == ["In tool 'boom' (call 'call_2')."]


async def test_an_error_that_has_a_cause_keeps_it() -> None:
    async def boom() -> None:
        try:
            await deep()
        except BrokenError as error:
            raise LookupError("outer") from error

    with pytest.raises(LookupError, match="outer") as caught:
        await ToolNode([make(boom)]).ainvoke(ask("boom"))
    assert isinstance(caught.value.__cause__, BrokenError)


@pytest.mark.real_clock
async def test_an_error_arrives_bare_out_of_a_sync_tool_a_sync_wrapper_and_invoke() -> None:
    error = BrokenError("in a thread")

    def in_thread() -> None:
        raise error

    async def boom() -> None:
        raise error

    def through(request: object, execute: Callable[[object], ToolMessage]) -> ToolMessage:
        return execute(request)

    nodes = [
        ToolNode([make_sync(in_thread, "boom")]),
        ToolNode([make(boom)], wrap_tool_call=through),
        ToolNode([make(boom)]),
    ]
    for node in nodes:
        error.__traceback__ = None
        with anyio.fail_after(10), pytest.raises(BrokenError) as caught:
            if node is nodes[-1]:
                await anyio.to_thread.run_sync(node.invoke, ask("boom"))
            await node.ainvoke(ask("boom"))
        assert caught.value is error
        assert frames(error)[-1] == ("in_thread" if node is nodes[0] else "boom")


async def test_an_error_arrives_bare_through_nested_nodes_and_middleware() -> None:
    error = BrokenError("deep down")

    async def boom() -> None:
        await anyio.sleep(1)
        raise error

    async def through(request: object, execute: Callable[[object], Awaitable[ToolMessage]]) -> ToolMessage:
        return await execute(request)

    inner = ToolNode([make(boom)], awrap_tool_call=through)

    async def outer() -> object:
        return await inner.ainvoke(ask("boom"))

    node = ToolNode([make(outer), Recorder().tool("stuck", hang=True)], awrap_tool_call=through)
    with pytest.raises(BrokenError) as caught:
        await node.ainvoke(ask("outer", "stuck"))
    assert caught.value is error


async def test_an_error_of_the_clean_up_is_a_note_on_the_first() -> None:
    async def untidy() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with cleanup():
                await anyio.sleep(0.2)
            raise BrokenError("while cleaning up")

    rec = Recorder()
    node = ToolNode([make(untidy), rec.tool("boom", seconds=1, raises=ValueError("first"))])
    with pytest.raises(ValueError, match="first") as caught:
        await node.ainvoke(ask("untidy", "boom"))
    location, note = caught.value.__notes__
    assert location == "In tool 'boom' (call 'call_2')."
    assert "'untidy'" in note
    assert "'call_1'" in note
    assert "while cleaning up" in note


async def test_with_finish_two_errors_are_a_group() -> None:
    first, second = BrokenError("first"), LookupError("second")
    rec = Recorder()
    node = ToolNode(
        [
            rec.tool("late", seconds=2, raises=second),
            rec.tool("early", seconds=1, raises=first),
            rec.tool("slow", seconds=3),
        ],
        on_error="finish",
    )
    start = anyio.current_time()
    with pytest.raises(ExceptionGroup) as caught:
        await node.ainvoke(ask("late", "slow", "early"))
    assert caught.value.exceptions == (first, second)
    assert "[BrokenError('first'), LookupError('second')]" in repr(caught.value)
    assert repr(pickle.loads(pickle.dumps(caught.value))) == repr(copy(caught.value)) == repr(caught.value)
    assert str(caught.value).startswith("2 of 3 tool calls failed")
    assert anyio.current_time() - start == pytest.approx(3)
    assert rec.count("finished", "slow") == 1


async def test_with_finish_one_error_is_bare_after_the_others_have_finished() -> None:
    error = BrokenError("alone")
    rec = Recorder()
    node = ToolNode([rec.tool("boom", raises=error), rec.tool("slow", seconds=3)], on_error="finish")
    with pytest.raises(BrokenError) as caught:
        await node.ainvoke(ask("boom", "slow"))
    assert caught.value is error
    assert rec.count("finished", "slow") == 1
    assert rec.count("cancelled") == 0


@pytest.mark.parametrize("error", [BrokenError("shared"), ExceptionGroup("mine", [BrokenError("a")])], ids=repr)
async def test_the_same_error_or_group_raised_by_every_call_is_raised_once(error: Exception) -> None:
    """Promise 3: a group that a tool raises is its own, and not taken apart."""
    node = ToolNode([Recorder().tool("boom", seconds=1, raises=error)])
    for times in (1, 3):
        with pytest.raises(type(error)) as caught:
            await node.ainvoke(ask(*["boom"] * times))
        assert caught.value is error


@pytest.mark.parametrize(
    ("policy", "requests", "kind", "text"),
    [
        (CallPolicy(timeout=1), 1, CallTimeoutError, "its timeout of 1 s"),
        (CallPolicy(budget=1), 1, DeadlineExceededError, "its budget of 1 s"),
        (CallPolicy(limit=Limit(concurrency=1, queue=0)), 2, CallRejectedError, "is full"),
    ],
    ids=["timeout", "deadline", "rejected"],
)
async def test_the_end_of_a_call_is_raised_bare_where_nothing_is_handled(
    policy: CallPolicy, requests: int, kind: type[Exception], text: str
) -> None:
    rec = Recorder()
    node = ToolNode([rec.tool("stuck", hang=True)], policies={"stuck": policy}, handle_tool_errors=False)
    with pytest.raises(kind, match=text) as caught:
        await node.ainvoke(ask(*["stuck"] * requests))
    assert type(caught.value) is kind
    assert (caught.value.tool, caught.value.call_id) == ("stuck", f"call_{requests}")
    assert getattr(caught.value, "timeout", policy.timeout) == policy.timeout
    assert isinstance(caught.value, TimeoutError) is (kind is not CallRejectedError)
    assert rec.running == 0


async def test_a_cancellation_is_the_callers_own_and_no_group() -> None:
    node = ToolNode([Recorder().tool("stuck", hang=True)])
    errors: list[BaseException] = []
    with anyio.move_on_after(1):
        try:
            await node.ainvoke(ask("stuck", "stuck", "stuck"))
        except BaseException as error:
            errors.append(error)
            raise
    assert type(errors[0]) is anyio.get_cancelled_exc_class()


@pytest.mark.backends("asyncio")
async def test_the_message_of_a_native_cancel_is_kept() -> None:
    node = ToolNode([Recorder().tool("stuck", hang=True)])
    task = asyncio.ensure_future(node.ainvoke(ask("stuck")))
    await asyncio.sleep(1)
    task.cancel("why")
    with pytest.raises(asyncio.CancelledError, match="why"):
        await task


async def test_an_error_during_the_clean_up_of_a_cancelled_caller_is_not_lost() -> None:
    """Promise 3: as in any `finally`, the error replaces the cancellation, on every event loop."""
    error = BrokenError("while cleaning up")

    async def untidy() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise error

    node = ToolNode([make(untidy)])
    with pytest.raises(BrokenError) as caught:
        with anyio.move_on_after(1):
            await node.ainvoke(ask("untidy"))
    assert caught.value is error


async def test_control_flow_of_one_call_is_raised_bare() -> None:
    """Promise 3: a signal is not an error, so the other calls finish, and the signal is raised without a group."""
    signal = GraphBubbleUp("up")
    rec = Recorder()

    async def bubble() -> None:
        raise signal

    node = ToolNode([make(bubble), rec.tool("slow", seconds=2)], handle_tool_errors=True)
    with pytest.raises(GraphBubbleUp) as caught:
        await node.ainvoke(ask("bubble", "slow"))
    assert caught.value is signal
    assert rec.count("finished", "slow") == 1


@pytest.mark.backends("asyncio")
@pytest.mark.usefixtures("no_collector")
async def test_an_error_that_was_dealt_with_is_freed_without_the_garbage_collector() -> None:
    """Promise 3: the traceback has no reference cycle to its error, which would keep objects alive."""
    refs: list[weakref.ref[BrokenError]] = []

    async def boom() -> None:
        error = BrokenError("short-lived")
        refs.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error

    node = ToolNode([make(boom)])
    try:
        await node.ainvoke(ask("boom"))
    except BrokenError:
        pass
    await asyncio.sleep(1)
    assert refs[0]() is None
