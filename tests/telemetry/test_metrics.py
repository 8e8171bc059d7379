"""`Metrics`: each metric with its unit, attributes and buckets."""

import threading
from collections import Counter
from typing import Any

import anyio
import pytest
from langchain_core.messages import AIMessage
from opentelemetry.sdk.metrics import MeterProvider

import callboard.telemetry._names as names
from callboard import CallPolicy, Limit, ToolNode, create_react_agent
from callboard.middleware import Retry, note
from callboard.telemetry._metrics import _Calls
from callboard.testing import Recorder, calls, tool_call

from ._events import event
from ._measured import Seen
from ._traces import PaidModel

WAIT = 1000


@pytest.fixture
def seen() -> Seen:
    return Seen()


async def asked(node: ToolNode, *requested: Any) -> None:
    with anyio.fail_after(WAIT):
        await node.ainvoke(list(requested))


async def test_the_duration_of_a_call_has_the_conventions_attributes_and_buckets(seen: Seen) -> None:
    node = ToolNode([Recorder().tool("work", seconds=3)])
    with seen.metrics.on():
        await asked(node, tool_call("work", "call_1"))
    [(attributes, point)] = seen.points(names.TOOL_DURATION)
    assert attributes == {names.TOOL_NAME: "work", names.TOOL_TYPE: "function"}
    assert (point.count, point.sum) == (1, pytest.approx(3))
    assert point.explicit_bounds == tuple(0.01 * 2**n for n in range(14))
    assert seen.all()[names.TOOL_DURATION].unit == "s"


async def test_timeouts_rejections_and_waits_are_counted(seen: Seen) -> None:
    policies = {"slow": CallPolicy(timeout=2, limit=Limit(concurrency=1, queue=1))}
    node = ToolNode([Recorder().tool("slow", seconds=5)], policies=policies)
    with seen.metrics.on():
        await asked(node, *(tool_call("slow", str(n)) for n in range(3)))

    errors = {attributes[names.ERROR_TYPE]: point.count for attributes, point in seen.points(names.TOOL_DURATION)}
    assert errors == {"timeout": 2, "rejected": 1}
    assert seen.points(names.TIMEOUTS) == [({names.TOOL_NAME: "slow"}, 2)]
    assert seen.points(names.REJECTIONS) == [({names.TOOL_NAME: "slow"}, 1)]
    [(_, waits)] = seen.points(names.QUEUE_WAIT_METRIC)
    assert (waits.count, waits.sum) == (3, pytest.approx(2))


async def test_errors_that_became_messages_count_as_failures(seen: Seen) -> None:
    """A panel of error rates would show 0 for a tool that always fails."""
    tools = [Recorder().tool("broken", raises=OSError("no"))]
    with seen.metrics.on():
        await asked(ToolNode(tools, handle_tool_errors=True), tool_call("broken", "1"), tool_call("unknown", "2"))
    errors = {attributes[names.ERROR_TYPE] for attributes, _ in seen.points(names.TOOL_DURATION)}
    assert errors == {"OSError", "LookupError"}


async def test_what_runs_and_what_waits_is_seen_while_it_does_and_gone_after(seen: Seen) -> None:
    node = ToolNode([Recorder().tool("work", seconds=4)], limit=Limit(concurrency=2))
    work = {names.TOOL_NAME: "work"}

    with seen.metrics.on():
        async with anyio.create_task_group() as group:
            group.start_soon(asked, node, *(tool_call("work", str(n)) for n in range(5)))
            await anyio.sleep(1)
            assert seen.points(names.IN_FLIGHT) == [(work, 2)]
            assert seen.points(names.QUEUE_LENGTH) == [(work, 3)]

    assert seen.points(names.IN_FLIGHT) == [(work, 0)]
    assert seen.points(names.QUEUE_LENGTH) == [(work, 0)]


async def test_retries_and_abandoned_threads_are_counted(seen: Seen) -> None:

    async def stuck() -> str:
        """Note what a lost thread leads to."""
        note("abandoned")
        return ""

    tools = [Recorder().tool("flaky", raises=OSError("no"), times=2), stuck]
    node = ToolNode(tools, middleware=[Retry(attempts=3, any_tool=True)], handle_tool_errors=True)
    with seen.metrics.on():
        await asked(node, tool_call("flaky", "call_1"), tool_call("stuck", "two"))

    assert seen.points(names.RETRIES) == [({names.TOOL_NAME: "flaky"}, 2)]
    assert seen.points(names.ABANDONED) == [({names.TOOL_NAME: "stuck"}, 1)]
    assert all(names.ERROR_TYPE not in attributes for attributes, _ in seen.points(names.TOOL_DURATION))


@pytest.mark.real_clock
async def test_a_run_has_its_duration_its_calls_and_its_requests(seen: Seen) -> None:
    usage: Any = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}
    reply = AIMessage("", tool_calls=calls("work", "work").tool_calls, usage_metadata=usage)
    agent = create_react_agent(PaidModel([reply, "done"]), [Recorder().tool("work", seconds=0.01)], name="bot")

    with seen.metrics.on(), anyio.fail_after(WAIT):
        await agent.ainvoke({"messages": [("user", "go")]})

    [(attributes, point)] = seen.points(names.AGENT_DURATION)
    assert attributes == {names.AGENT_NAME: "bot", names.REQUEST_MODEL: "gpt-x"}
    assert point.sum >= 0.01
    assert [point.sum for _, point in seen.points(names.AGENT_TOOL_CALLS)] == [2]
    assert [point.sum for _, point in seen.points(names.AGENT_INFERENCE_CALLS)] == [2]
    used = {"input_tokens": 3, "output_tokens": 4, "cache_read.input_tokens": 0}
    for kind, tokens in used.items():
        [(attributes, spent)] = seen.points(f"gen_ai.client.inference.usage.{kind}")
        assert (attributes["gen_ai.token.modality"], spent) == ("unknown", tokens)
    for kind in ("input_tokens", "output_tokens"):
        points = seen.points(f"gen_ai.client.inference.operation.{kind}")
        assert [(point.sum, point.count) for _, point in points] == [(used[kind], 2)]
    assert sum(point.count for _, point in seen.points("gen_ai.client.inference.duration")) == 2
    assert seen.points(names.TOOL_DURATION)[0][0][names.AGENT_NAME] == "bot"


async def test_names_that_a_model_made_up_are_one_time_series(seen: Seen) -> None:
    """A model can invent any number of tool names, so they share one time series."""
    node = ToolNode([Recorder().tool("work")])
    with seen.metrics.on():
        await asked(node, *(tool_call(f"invented_{n}", str(n)) for n in range(50)))
    [(attributes, point)] = seen.points(names.TOOL_DURATION)
    assert (attributes[names.TOOL_NAME], point.count) == ("_OTHER", 50)


def test_attempts_of_several_threads_are_all_counted() -> None:
    """Without a lock, an interrupted read-modify-write in one thread would lose another thread's count."""
    observer = _Calls(MeterProvider().get_meter("test"))
    observer(event("begun", 1))
    observer(event("begun", 2))
    other = threading.Thread(target=observer, args=(event("started", 2, attempt=1),))

    class Interrupted(Counter[str]):
        def __getitem__(self, key: str) -> int:
            found = super().__getitem__(key)
            if other.ident is None:
                other.start()
                other.join(0.2)  # with the lock, the other thread waits until this one has written
            return found

    observer._running = Interrupted()
    observer(event("started", 1, attempt=1))
    other.join(WAIT)

    assert observer._running.total() == 2
