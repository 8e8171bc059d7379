"""The runtime without LangChain: `Batch`, `SupervisedCall` and `Attempt`; its promises are in `tests/promises`."""

import asyncio
import copy
import pickle
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

import anyio
import pytest

from callboard import CallEvent, CallPolicy, Limit, observe
from callboard._calls._attempt import Attempt
from callboard._calls._batch import Batch
from callboard._calls._call import BatchContext, SupervisedCall, create_batch_context
from callboard._calls._limits import Limiter
from callboard._records._policies import ToolCallLike
from callboard.exceptions import (
    CallCancelledError,
    CallError,
    CallRejectedError,
    CallTimeoutError,
    CircuitOpenError,
    DeadlineExceededError,
)

Body = Callable[[], Awaitable[object]]


class Scripted(SupervisedCall[object]):
    """Call that runs a function of the test."""

    def __init__(
        self,
        call: ToolCallLike,
        policy: CallPolicy,
        limiters: Sequence[Limiter],
        batch: BatchContext,
        script: Callable[[SupervisedCall[object]], Coroutine[Any, Any, object]],
    ) -> None:
        super().__init__(batch, call, policy, limiters)
        self._script = script

    def run(self) -> Coroutine[Any, Any, object]:
        return self._script(self)


def one_call(
    body: Body, *, timeout: float | None = None, limiters: Sequence[Limiter] = (), call_id: str = "c1"
) -> SupervisedCall[object]:
    """A call that runs its body once."""

    async def act(attempt: Attempt) -> object:
        return await body()

    call: ToolCallLike = {"name": "work", "args": {}, "id": call_id}
    policy = CallPolicy(timeout=timeout)
    return Scripted(call, policy, limiters, create_batch_context(), lambda call: call.attempt(None, act))


async def run(*calls: SupervisedCall[object]) -> None:
    await Batch(calls, on_error="cancel").run()


def sleeping(seconds: float, error: BaseException | None = None) -> Body:
    async def body() -> None:
        await anyio.sleep(seconds)
        if error is not None:
            raise error

    return body


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


@pytest.mark.parametrize("ending", ["cancel", "error", "timeout"])
async def test_every_call_that_starts_is_told_to_end(ending: str) -> None:
    """Observers see one `attempt_ended` for each `started` and one `ended` for each call, whatever happens."""
    events: list[CallEvent] = []
    with observe(events.append):
        calls = [one_call(sleeping(9), timeout=1 if ending == "timeout" else None, call_id=str(n)) for n in range(3)]
        if ending == "error":
            calls.append(one_call(sleeping(1, error=ValueError("boom")), call_id="3"))
        with anyio.move_on_after(1 if ending == "cancel" else 60):
            with pytest.raises((CallTimeoutError, ValueError)) if ending != "cancel" else anyio.CancelScope():
                await run(*calls)
    for phase in ("started", "attempt_ended", "ended"):
        assert sorted(event.call_id for event in events if event.phase == phase) == [call.id for call in calls]
    assert all(event.error is not None for event in events if event.phase == "ended")


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
        CallTimeoutError("work", "1", 2.0, idle=True, blocking_code="tool 'x' held the event loop for 1.0 s at y"),
        DeadlineExceededError("work", "1", 3.0, started=True),
        CallRejectedError("work", None, "full"),
        CircuitOpenError("work", "1", 4.5, partly=True),
        CallCancelledError("work", "1"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_a_call_can_be_copied_and_pickled(error: CallError) -> None:
    """An error may cross a process boundary, or be handed to several callers."""
    for duplicate in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(duplicate) is type(error)
        assert str(duplicate) == str(error)
        assert vars(duplicate) == vars(error)
