"""The runtime without LangChain: `Batch`, `SupervisedCall` and `Attempt`."""

import asyncio
import copy
import pickle
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard._calls._batch import Batch
from callboard._calls._batch_context import BatchContext, batch_context
from callboard._calls._call import Attempt, SupervisedCall
from callboard._calls._limits import Gate, Limiter
from callboard._calls._observers import observe
from callboard._calls._thread_pool import ThreadPermits
from callboard._records._events import CallEvent
from callboard._records._policies import CallPolicy, Limit, OnError, Rate, ToolCallLike
from callboard.exceptions import (
    AbandonedThreadWarning,
    CallCancelledError,
    CallError,
    CallRejectedError,
    CallTimeoutError,
    CircuitOpenError,
    DeadlineExceededError,
)

Body = Callable[[], Awaitable[object]]


PLAIN = CallPolicy()


class Signal(Exception):
    """An exception that does not count as a failure."""


class Scripted(SupervisedCall[object]):
    """Call that runs a function of the test."""

    def __init__(
        self,
        call: ToolCallLike,
        policy: CallPolicy,
        limiters: Sequence[Limiter],
        around: BatchContext,
        script: Callable[[SupervisedCall[object]], Coroutine[Any, Any, object]],
    ) -> None:
        super().__init__(call, policy, limiters, around)
        self._script = script

    def run(self) -> Coroutine[Any, Any, object]:
        return self._script(self)


def one_call(
    body: Body, *, name: str = "work", policy: CallPolicy = PLAIN, limiters: Sequence[Limiter] = (), call_id: str = "c1"
) -> SupervisedCall[object]:
    """A call that runs its body once, within its budget."""

    async def act(attempt: Attempt) -> object:
        return await body()

    async def once(call: SupervisedCall[object]) -> object:
        return await call.within_budget(lambda: call.attempt(None, act))

    return Scripted({"name": name, "args": {}, "id": call_id}, policy, limiters, batch_context(), once)


async def run(*calls: SupervisedCall[object], on_error: OnError = "cancel") -> None:
    await Batch(calls, on_error=on_error, is_signal=lambda error: isinstance(error, Signal)).run()


def sleeping(seconds: float, result: object = None, error: BaseException | None = None) -> Body:
    async def body() -> object:
        await anyio.sleep(seconds)
        if error is not None:
            raise error
        return result

    return body


async def test_each_call_keeps_its_result() -> None:
    await run()  # an empty batch ends at once
    calls = [one_call(sleeping(3 - n, n)) for n in range(3)]
    await run(*calls)
    assert [call.result for call in calls] == [0, 1, 2]
    assert all(call.ended and call.error is None for call in calls)


async def test_a_batch_is_closed_when_it_has_ended() -> None:
    started: list[str] = []

    async def act(attempt: Attempt) -> None:
        started.append("body")

    call = one_call(lambda: act(None))  # type: ignore[arg-type]
    await run(call)
    with suppress(asyncio.CancelledError), anyio.CancelScope() as scope:
        scope.cancel()
        await call.attempt(None, act)
    assert started == ["body"]


async def test_a_failure_cancels_the_others_and_is_raised_bare() -> None:
    error = ValueError("boom")
    calls = [one_call(sleeping(5)), one_call(sleeping(1, error=error)), one_call(sleeping(0, "early"))]
    with pytest.raises(ValueError, match="boom") as caught:
        await run(*calls)
    assert caught.value is error
    assert [call.ended for call in calls] == [False, True, True]
    assert calls[2].result == "early"


async def test_a_signal_is_no_failure() -> None:
    signal = Signal("question")
    calls = [one_call(sleeping(1, error=signal)), one_call(sleeping(2, "done"))]
    await run(*calls)
    assert (calls[0].error, calls[1].result) == (signal, "done")


async def test_with_finish_all_errors_come_together() -> None:
    errors = [ValueError("late"), LookupError("early")]
    calls = [one_call(sleeping(2, error=errors[0])), one_call(sleeping(1, error=errors[1]))]
    with pytest.raises(ExceptionGroup) as caught:
        await run(*calls, on_error="finish")
    assert caught.value.exceptions == (errors[1], errors[0])


@pytest.mark.hangs_after(1000)
async def test_with_finish_an_exit_does_not_wait_for_the_others() -> None:
    """Promise 1: an exit such as `SystemExit` cancels the other calls, because the program is about to end."""
    calls = [one_call(sleeping(1, error=SystemExit(3))), one_call(sleeping(100))]
    start = anyio.current_time()
    with pytest.raises(SystemExit):
        await run(*calls, on_error="finish")
    assert anyio.current_time() - start == pytest.approx(1)


async def test_a_timeout_a_deadline_and_a_rejection_are_errors_of_their_calls() -> None:
    limiter = Limiter(Limit(concurrency=1, queue=0), "the queue")
    calls = [
        one_call(sleeping(9), name="timeout", policy=CallPolicy(timeout=1)),
        one_call(sleeping(9), name="deadline", policy=CallPolicy(budget=2)),
        one_call(sleeping(1), name="fine", limiters=[limiter]),
        one_call(sleeping(1), name="rejected", limiters=[limiter]),
    ]
    with pytest.raises(ExceptionGroup) as caught:
        await run(*calls, on_error="finish")
    errors = caught.value.exceptions
    assert [type(error) for error in errors] == [CallRejectedError, CallTimeoutError, DeadlineExceededError]
    assert [(error.tool, error.ended) for error in errors] == [(error.ended,) * 2 for error in errors]
    assert [call.ended for call in calls] == [True] * 4
    assert not any(call.running or call.waiting for call in calls)


async def test_a_body_that_cancels_itself_ends_with_an_error_of_its_own() -> None:
    """Promise 1: asyncio's cancellation, which may cross a bridge to trio, is an error of the call alone."""
    call = one_call(sleeping(1, error=asyncio.CancelledError()))
    with pytest.raises(CallCancelledError):
        await run(call)


async def test_attempts_of_one_call_are_counted_and_take_their_places_anew() -> None:
    """Promise 7: a place at a limit belongs to an attempt, so each attempt of a call takes a new place."""
    limiter = Limiter(Limit(concurrency=1), "the queue")
    seen: list[CallEvent] = []

    async def fail(attempt: Attempt) -> None:
        await anyio.sleep(1)
        raise ValueError("no")

    async def thrice(call: SupervisedCall[object]) -> object:
        for _ in range(2):
            with pytest.raises(ValueError, match="no"):
                await call.attempt(None, fail)
            await anyio.sleep(1)
        return "done"

    with observe(seen.append):
        call = Scripted({"name": "w", "args": {}, "id": "c1"}, CallPolicy(), [limiter], batch_context(), thrice)
        other = one_call(sleeping(1), call_id="c2", limiters=[limiter])
        await run(call, other)
    ours = [(event.phase, event.attempt, round(event.queue_wait, 3)) for event in seen if event.call_id == "c1"]
    first = [("begun", 0, 0), ("queued", 0, 0), ("started", 1, 0), ("attempt_ended", 1, 0)]
    assert ours == [*first, ("queued", 1, 0), ("started", 2, 0), ("attempt_ended", 2, 0), ("ended", 2, 0)]
    waited = [event.queue_wait for event in seen if event.call_id == "c2" and event.phase == "started"]
    assert waited == pytest.approx([1])


@pytest.mark.parametrize("how", ["cancel", "error", "timeout"])
async def test_every_call_that_starts_is_told_to_end(how: str) -> None:
    """Observers see one `attempt_ended` for each `started` and one `ended` for each call, whatever happens."""
    seen: list[CallEvent] = []
    policy = CallPolicy(timeout=1 if how == "timeout" else None)
    with observe(seen.append):
        calls = [one_call(sleeping(9), policy=policy, call_id=str(n)) for n in range(3)]
        if how == "error":
            calls.append(one_call(sleeping(1, error=ValueError("boom")), call_id="3"))
        with anyio.move_on_after(1 if how == "cancel" else 60):
            with pytest.raises((CallTimeoutError, ValueError)) if how != "cancel" else anyio.CancelScope():
                await run(*calls)
    for phase in ("started", "attempt_ended", "ended"):
        assert sorted(event.call_id for event in seen if event.phase == phase) == [call.id for call in calls]
    assert all(event.error is not None for event in seen if event.phase == "ended")


@pytest.mark.real_clock
async def test_a_thread_keeps_the_places_of_its_attempt_until_it_ends() -> None:
    release = threading.Event()
    limiter, threads = Limiter(Limit(concurrency=1), "the queue"), ThreadPermits(1)

    async def act(attempt: Attempt) -> object:
        return await attempt.run_in_thread(release.wait)

    async def once(call: SupervisedCall[object]) -> object:
        return await call.attempt(threads, act)

    def call() -> SupervisedCall[object]:
        policy = CallPolicy(timeout=0.4)
        return Scripted({"name": "w", "args": {}, "id": "c1"}, policy, [limiter], batch_context(), once)

    with anyio.fail_after(10):
        with pytest.warns(AbandonedThreadWarning), pytest.raises(CallTimeoutError):
            await run(call())
        assert len(threads.abandoned) == 1
        with pytest.raises(CallRejectedError, match="all 1 worker threads"):
            await run(call())
        release.set()
        while threads.abandoned:
            await anyio.sleep(0.005)
        again = call()
        await run(again)
    assert again.result is True


@pytest.mark.hangs_after(1000)
@given(data=st.data())
async def test_a_gate_is_first_in_first_out_and_loses_no_place(data: st.DataObject) -> None:
    width = data.draw(st.integers(1, 3))
    stays = data.draw(st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=1, max_size=12))
    gate = Gate(Limit(concurrency=width), "the gate")
    entered: list[int] = []
    inside = peak = 0

    async def visit(number: int, stay: float) -> None:
        nonlocal inside, peak
        await gate.enter(loop)
        entered.append(number)
        inside += 1
        peak = max(peak, inside)
        await anyio.sleep(stay)
        inside -= 1
        gate.leave()

    loop = batch_context().loop
    patience = data.draw(st.lists(st.sampled_from([None, 0.25, 0.75]), min_size=len(stays), max_size=len(stays)))

    async def queue_up(number: int) -> None:
        # Only waiting tasks are cancelled; admitted tasks stay for their time.
        if patience[number] is None:
            await visit(number, stays[number])
            return
        with anyio.move_on_after(patience[number]):
            await gate.enter(loop)
            gate.leave()

    async with anyio.create_task_group() as tasks:
        for number in range(len(stays)):
            tasks.start_soon(queue_up, number)
            await anyio.sleep(0.001)
    assert entered == [number for number in range(len(stays)) if patience[number] is None]
    assert peak <= width
    assert gate.idle(loop)


@pytest.mark.hangs_after(10_000)
async def test_a_gate_by_key_is_forgotten_when_nobody_needs_it() -> None:
    """Promise 7: a model may write any number of keys, so gates of unused keys are removed."""
    limiter = Limiter(Limit(concurrency=1, rate=Rate(1, per=1.0), key=lambda call: call["args"]["host"]), "the queue")
    loop = batch_context().loop
    with anyio.fail_after(10_000):
        busy = limiter.gate({"name": "f", "args": {"host": "busy"}, "id": "0"}, loop)
        assert busy.try_enter(loop)  # and keeps its place
        for host in range(1000):
            gate = limiter.gate({"name": "f", "args": {"host": host}, "id": "1"}, loop)
            assert gate.try_enter(loop)
            gate.leave()
            await anyio.sleep(1)
    assert limiter.gate({"name": "f", "args": {"host": "busy"}, "id": "0"}, loop) is busy
    assert len(limiter._by_key) <= 128


async def test_a_batch_of_thousands_does_not_recurse() -> None:
    """Places are handed on in a loop: a recursion would exceed Python's limit with thousands of calls."""
    limiter = Limiter(Limit(concurrency=1), "the queue")

    async def nothing() -> None:
        return

    calls = [one_call(nothing, limiters=[limiter]) for _ in range(3 * sys.getrecursionlimit())]
    await run(*calls)
    assert all(call.ended for call in calls)


@pytest.mark.parametrize(
    "error",
    [
        CallTimeoutError("work", "1", 2.0),
        CallTimeoutError("work", "1", 2.0, idle=True, held="tool 'x' held the event loop for 1.0 s at y"),
        DeadlineExceededError("work", "1", 3.0, started=True),
        CallRejectedError("work", None, "full"),
        CircuitOpenError("work", "1", 4.5, partly=True),
        CallCancelledError("work", "1"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_a_call_can_be_copied_and_pickled(error: CallError) -> None:
    """An error may cross a process boundary, or be handed to several callers."""
    for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)
