"""`Retry`: exact times under the virtual clock."""

import email.utils
import random
import time
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from langchain_core.messages import ToolMessage
from langgraph.types import interrupt

from callboard import (
    CallEvent,
    CallPolicy,
    CallsInterrupted,
    DeadlineExceededError,
    Limit,
    ToolNode,
    observe,
    tool_call,
)
from callboard.extend import retry_after
from callboard.middleware import Retry
from callboard.testing import Recorder
from tests.helpers import contents

WAIT = 1000
AGAIN = CallPolicy(idempotent=True)


class Full(random.Random):
    """Random source that always gives the longest pause."""

    def uniform(self, a: float, b: float) -> float:
        return b


def node_of(recorder: Recorder, retry: Retry, policy: CallPolicy = AGAIN, **behaviour: Any) -> ToolNode:
    return ToolNode([recorder.tool("work", **behaviour)], middleware=[retry], policies={"work": policy})


async def test_pauses_double_up_to_the_longest(recorder: Recorder) -> None:
    retry = Retry(6, initial=1, maximum=5, rng=Full())
    result = await node_of(recorder, retry, raises=ValueError("no"), times=5).ainvoke([tool_call("work", "1")])
    assert contents(result) == ["work"]
    assert recorder.times("started") == pytest.approx([0, 1, 3, 7, 12, 17])


async def test_pauses_stay_at_the_longest_where_their_double_is_larger_than_any_float(recorder: Recorder) -> None:
    retry = Retry(1_100, initial=1, maximum=5, rng=Full())
    result = await node_of(recorder, retry, raises=ValueError("no"), times=1_050).ainvoke([tool_call("work", "1")])
    assert contents(result) == ["work"]
    assert recorder.times("started")[-1] == pytest.approx(1 + 2 + 4 + 1_047 * 5)


async def test_the_jitter_is_full_and_comes_from_the_seed() -> None:
    """The pause is a random share of the full one, and reproducible with the same seed."""
    recorder, expected = Recorder(), random.Random(7)
    retry = Retry(4, initial=10, rng=random.Random(7))
    await node_of(recorder, retry, raises=ValueError("no"), times=3).ainvoke([tool_call("work", "1")])
    moments = [0.0]
    for longest in (10, 20, 30):
        moments.append(moments[-1] + expected.uniform(0, longest))
    assert recorder.times("started") == pytest.approx(moments)


async def test_the_last_error_stands_when_attempts_run_out() -> None:
    recorder, error = Recorder(), ValueError("no")
    with pytest.raises(ValueError, match="no") as caught:
        await node_of(recorder, Retry(3), raises=error).ainvoke([tool_call("work", "1")])
    assert caught.value is error
    assert recorder.count("started") == 3


@pytest.mark.filterwarnings("ignore::callboard.exceptions.IdleMiddlewareWarning")
async def test_a_tool_that_is_not_idempotent_is_not_run_again() -> None:
    """The first attempt may have had its effect, so a repetition must be allowed explicitly."""
    recorder, anyway = Recorder(), Recorder()
    with pytest.raises(ValueError, match="no"):
        await node_of(recorder, Retry(3), CallPolicy(), raises=ValueError("no")).ainvoke([tool_call("work", "1")])
    node = node_of(anyway, Retry(3, any_tool=True), CallPolicy(), raises=ValueError("no"), times=1)
    await node.ainvoke([tool_call("work", "1")])
    assert (recorder.count("started"), anyway.count("started")) == (1, 2)


@pytest.mark.filterwarnings("ignore::callboard.exceptions.IdleMiddlewareWarning")
async def test_a_rejected_call_is_tried_again_whatever_its_tool(recorder: Recorder) -> None:
    """The body of a rejected call never ran, so a retry is safe for any tool."""
    policy = CallPolicy(limit=Limit(concurrency=1, queue=0))
    node = node_of(recorder, Retry(5, initial=4, rng=Full()), policy, seconds=1)
    result = await node.ainvoke([tool_call("work", "1", query="a"), tool_call("work", "2", query="b")])
    assert contents(result) == ["a", "b"]
    assert recorder.times("started") == pytest.approx([0, 4])


async def test_no_attempt_is_made_that_the_budget_has_no_time_for(recorder: Recorder) -> None:
    """Promise 6: if the pause exceeds the budget, the error comes at once instead of at the end of the budget."""
    retry = Retry(9, initial=4, factor=1, rng=Full())
    policy = CallPolicy(idempotent=True, budget=10)
    with pytest.raises(ValueError, match="no"):
        await node_of(recorder, retry, policy, raises=ValueError("no")).ainvoke([tool_call("work", "1")])
    assert recorder.times("started") == pytest.approx([0, 4, 8])


async def test_the_budget_ends_an_attempt_in_the_middle(recorder: Recorder) -> None:
    policy = CallPolicy(idempotent=True, budget=10, timeout=4)
    node = ToolNode(
        [recorder.tool("work", hang=True)],
        middleware=[Retry(9, initial=0.5, factor=1, rng=Full())],
        policies={"work": policy},
        handle_tool_errors=False,
    )

    with anyio.fail_after(WAIT) as scope, pytest.raises(DeadlineExceededError):
        started = anyio.current_time()
        await node.ainvoke([tool_call("work", "1")])

    assert anyio.current_time() - started == pytest.approx(10)
    assert recorder.times("started") == pytest.approx([0, 4.5, 9])
    assert not scope.cancel_called


async def test_the_place_is_free_during_the_pause(recorder: Recorder) -> None:
    """Promise 7: a second call runs during the pause."""
    policy = CallPolicy(idempotent=True, limit=Limit(concurrency=1))
    node = node_of(recorder, Retry(initial=10, rng=Full()), policy, seconds=1, raises=ValueError("no"), times=1)
    await node.ainvoke([tool_call("work", "1", query="a"), tool_call("work", "2", query="b")])
    assert recorder.order == ["work(a)", "work(b)", "work(a)"]
    assert recorder.times("started") == pytest.approx([0, 1, 11])
    assert recorder.peak == 1


def notes_in(events: list[CallEvent]) -> list[tuple[float, str, dict[str, object]]]:
    began = events[0].time
    return [(event.time - began, event.note, dict(event.facts)) for event in events if event.phase == "noted"]


async def test_observers_are_told_of_every_pause() -> None:
    """The note has the begin, the attempt, the reason and the length of the pause."""
    recorder, rng = Recorder(), random.Random(7)
    pauses = [rng.uniform(0, longest) for longest in (4, 8)]
    events: list[CallEvent] = []
    node = node_of(recorder, Retry(5, initial=4, rng=random.Random(7)), seconds=1, raises=ValueError("x"), times=2)

    with observe(events.append):
        await node.ainvoke([tool_call("work", "1", query="secret")])

    first, second = ({"attempt": n, "pause": pytest.approx(pauses[n - 1]), "error": "ValueError"} for n in (1, 2))
    assert notes_in(events) == [(pytest.approx(1), "retry", first), (pytest.approx(2 + pauses[0]), "retry", second)]
    assert recorder.times("started") == pytest.approx([0, 1 + pauses[0], 2 + sum(pauses)])
    assert [event.attempt for event in events if event.phase == "started"] == [1, 2, 3]


@pytest.mark.parametrize(
    ("retry", "policy"),
    [
        (Retry(1), AGAIN),
        (Retry(3), CallPolicy()),
        (Retry(3, on=KeyError), AGAIN),
        (Retry(3, initial=4, rng=Full()), CallPolicy(idempotent=True, budget=3)),
    ],
    ids=["attempts", "policy", "error", "budget"],
)
@pytest.mark.filterwarnings("ignore::callboard.exceptions.IdleMiddlewareWarning")
async def test_nobody_is_told_of_a_pause_that_is_not_made(retry: Retry, policy: CallPolicy) -> None:
    recorder, events = Recorder(), list[CallEvent]()
    with observe(events.append), pytest.raises(ValueError, match="no"):
        await node_of(recorder, retry, policy, raises=ValueError("no")).ainvoke([tool_call("work", "1")])
    assert notes_in(events) == []
    assert recorder.times("started") == [0]


class ServerBusyError(Exception):
    def __init__(self, seconds: float) -> None:
        self.retry_after = seconds


async def test_a_server_that_says_when_is_obeyed(recorder: Recorder) -> None:
    """A server tells all callers the same `Retry-After`, so each waits for a random time more."""
    node = node_of(recorder, Retry(initial=1, rng=Full()), raises=ServerBusyError(7), times=1)
    await node.ainvoke([tool_call("work", "1")])
    assert recorder.times("started") == pytest.approx([0, 8])


@pytest.mark.parametrize(
    ("header", "least", "greatest"),
    [
        ("3", 3, 3),
        (email.utils.formatdate(0, usegmt=True), 0, 0),
        ("-5", 0, 0),
        ("soon", 0, 0),
        (None, 0, 0),
        ("in an hour", 3000, 3601),
        ("Fri, 31 Dec 99999999999999999999 23:59:59 GMT", 0, 0),
        ("Fri, 31 Dec 9999 23:59:59 +99999999999999", 0, 0),
    ],
    ids=["seconds", "past", "negative", "word", "none", "date", "year with many digits", "zone with many digits"],
)
def test_the_header_is_read_in_all_its_forms(header: str | None, least: float, greatest: float) -> None:
    """RFC 9110 allows seconds or a date. An invalid header must not replace the error of the call by its own."""
    if header == "in an hour":  # from now: a long run of tests begins the test much later than it makes this table
        header = email.utils.formatdate(time.time() + 3600, usegmt=True)
    error = ValueError("503")
    error.response = SimpleNamespace(headers={"Retry-After": header} if header else {})  # type: ignore[attr-defined]
    assert least <= retry_after(error) <= greatest


def test_the_header_is_found_in_a_plain_mapping_of_small_letters() -> None:
    """HTTP/2 and 3 have names in small letters only, and not every client has a mapping of its own."""
    error = ValueError("429")
    error.response = SimpleNamespace(headers={"retry-after": "3"})  # type: ignore[attr-defined]
    assert retry_after(error) == 3


@pytest.mark.parametrize(
    ("on", "attempts"),
    [(KeyError, 1), ((KeyError, ValueError), 2), (lambda error: "no" in str(error), 2), (lambda _: False, 1)],
)
async def test_only_chosen_errors_are_worth_another_attempt(recorder: Recorder, on: Any, attempts: int) -> None:
    with pytest.raises(ValueError, match="no"):
        await node_of(recorder, Retry(2, on=on), raises=ValueError("no")).ainvoke([tool_call("work", "1")])
    assert recorder.count("started") == attempts


async def test_a_message_may_be_a_failure_too(recorder: Recorder) -> None:
    """After the last attempt, the last message is the result. Notes leave out its text, which is a result."""

    def busy(message: ToolMessage) -> bool:
        return "busy" in str(message.content)

    events: list[CallEvent] = []
    node = node_of(recorder, Retry(3, initial=4, on_message=busy, rng=Full()), returns="busy")
    with observe(events.append):
        result = await node.ainvoke([tool_call("work", "1")])
    assert contents(result) == ["busy"]
    assert recorder.count("started") == 3
    first, second = ({"attempt": n, "pause": pause, "error": "error message"} for n, pause in ((1, 4), (2, 8)))
    assert notes_in(events) == [(0, "retry", first), (4, "retry", second)]


async def test_an_interrupt_is_not_tried_again() -> None:
    """Promise 4: an interrupt is no error."""
    questions: list[str] = []

    async def ask() -> str:
        """Ask."""
        questions.append("asked")
        return str(interrupt("sure?"))

    node = ToolNode([ask], middleware=[Retry(any_tool=True)])
    with pytest.raises(CallsInterrupted):
        await node.ainvoke([tool_call("ask", "1")])

    assert questions == ["asked"]


async def test_a_server_that_asks_for_thousands_of_years_is_not_waited_for(recorder: Recorder) -> None:
    """A call without a budget would wait almost forever."""
    error = OSError("busy")
    error.response = SimpleNamespace(headers={"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"})  # type: ignore[attr-defined]
    began = anyio.current_time()
    with anyio.fail_after(1e12):  # longer than the requested wait, so that the budget does not refuse it
        node = node_of(recorder, Retry(3), raises=error)
        with pytest.raises(OSError, match="busy"):
            await node.ainvoke([tool_call("work", "1")])
    assert anyio.current_time() - began < 1
