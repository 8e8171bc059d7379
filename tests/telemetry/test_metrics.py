"""`Metrics`: each metric with its unit, attributes and buckets."""

from typing import Any

import anyio
import pytest
from langchain_core.messages import AIMessage

from callboard import CallPolicy, Limit, ToolNode, create_react_agent, tool_call
from callboard.middleware import Retry, note
from callboard.testing import Recorder, calls

from ._measured import Seen
from ._traces import PaidModel

WAIT = 1000


@pytest.fixture
def seen() -> Seen:
    return Seen()


async def run_calls(node: ToolNode, *requested: Any) -> None:
    with anyio.fail_after(WAIT):
        await node.ainvoke(list(requested))


async def test_the_duration_of_a_call_has_the_conventions_attributes_and_buckets(seen: Seen) -> None:
    node = ToolNode([Recorder().tool("work", seconds=3)])
    with seen.metrics.on():
        await run_calls(node, tool_call("work", "call_1"))
    [(attributes, point)] = seen.points("gen_ai.execute_tool.duration")
    assert attributes == {"gen_ai.tool.name": "work", "gen_ai.tool.type": "function"}
    assert (point.count, point.sum) == (1, pytest.approx(3))
    assert point.explicit_bounds == tuple(0.01 * 2**n for n in range(14))
    assert seen.all()["gen_ai.execute_tool.duration"].unit == "s"


async def test_timeouts_rejections_and_waits_are_counted(seen: Seen) -> None:
    policies = {"slow": CallPolicy(timeout=2, limit=Limit(concurrency=1, queue=1))}
    node = ToolNode([Recorder().tool("slow", seconds=5)], policies=policies)
    with seen.metrics.on():
        await run_calls(node, *(tool_call("slow", str(n)) for n in range(3)))

    errors = {
        attributes["error.type"]: point.count for attributes, point in seen.points("gen_ai.execute_tool.duration")
    }
    assert errors == {"timeout": 2, "rejected": 1}
    assert seen.points("callboard.calls.timed_out") == [({"gen_ai.tool.name": "slow"}, 2)]
    assert seen.points("callboard.calls.rejected") == [({"gen_ai.tool.name": "slow"}, 1)]
    [(_, waits)] = seen.points("callboard.queue.wait")
    assert (waits.count, waits.sum) == (3, pytest.approx(2))


async def test_errors_that_became_messages_count_as_failures(seen: Seen) -> None:
    """A panel of error rates would show 0 for a tool that always fails."""
    tools = [Recorder().tool("broken", raises=OSError("no"))]
    with seen.metrics.on():
        await run_calls(ToolNode(tools, handle_tool_errors=True), tool_call("broken", "1"), tool_call("unknown", "2"))
    errors = {attributes["error.type"] for attributes, _ in seen.points("gen_ai.execute_tool.duration")}
    assert errors == {"OSError", "LookupError"}


async def test_what_runs_and_what_waits_is_seen_while_it_does_and_gone_after(seen: Seen) -> None:
    node = ToolNode([Recorder().tool("work", seconds=4)], limit=Limit(concurrency=2))
    work = {"gen_ai.tool.name": "work"}

    with seen.metrics.on():
        async with anyio.create_task_group() as group:
            group.start_soon(run_calls, node, *(tool_call("work", str(n)) for n in range(5)))
            await anyio.sleep(1)
            assert seen.points("callboard.calls.in_flight") == [(work, 2)]
            assert seen.points("callboard.queue.length") == [(work, 3)]

    assert seen.points("callboard.calls.in_flight") == [(work, 0)]
    assert seen.points("callboard.queue.length") == [(work, 0)]


async def test_retries_and_abandoned_threads_are_counted(seen: Seen) -> None:

    async def stuck() -> str:
        """Note what a lost thread leads to."""
        note("abandoned")
        return ""

    tools = [Recorder().tool("flaky", raises=OSError("no"), times=2), stuck]
    node = ToolNode(tools, middleware=[Retry(attempts=3, any_tool=True)], handle_tool_errors=True)
    with seen.metrics.on():
        await run_calls(node, tool_call("flaky", "call_1"), tool_call("stuck", "two"))

    assert seen.points("callboard.calls.retried") == [({"gen_ai.tool.name": "flaky"}, 2)]
    assert seen.points("callboard.threads.abandoned") == [({"gen_ai.tool.name": "stuck"}, 1)]
    assert all("error.type" not in attributes for attributes, _ in seen.points("gen_ai.execute_tool.duration"))


@pytest.mark.real_clock
async def test_a_run_has_its_duration_its_calls_and_its_requests(seen: Seen) -> None:
    usage: Any = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}
    reply = AIMessage("", tool_calls=calls("work", "work").tool_calls, usage_metadata=usage)
    agent = create_react_agent(PaidModel([reply, "done"]), [Recorder().tool("work", seconds=0.01)], name="bot")

    with seen.metrics.on():
        await agent.ainvoke({"messages": [("user", "go")]})

    [(attributes, point)] = seen.points("gen_ai.invoke_agent.duration")
    assert attributes == {"gen_ai.agent.name": "bot", "gen_ai.request.model": "gpt-x"}
    assert point.sum >= 0.01
    assert [point.sum for _, point in seen.points("gen_ai.invoke_agent.tool_calls")] == [2]
    assert [point.sum for _, point in seen.points("gen_ai.invoke_agent.inference_calls")] == [2]
    used = {"input_tokens": 3, "output_tokens": 4, "cache_read.input_tokens": 0}
    for kind, tokens in used.items():
        [(attributes, spent)] = seen.points(f"gen_ai.client.inference.usage.{kind}")
        assert (attributes["gen_ai.token.modality"], spent) == ("unknown", tokens)
    for kind in ("input_tokens", "output_tokens"):
        points = seen.points(f"gen_ai.client.inference.operation.{kind}")
        assert [(point.sum, point.count) for _, point in points] == [(used[kind], 2)]
    assert sum(point.count for _, point in seen.points("gen_ai.client.inference.duration")) == 2
    assert seen.points("gen_ai.execute_tool.duration")[0][0]["gen_ai.agent.name"] == "bot"


async def test_names_that_a_model_made_up_are_one_time_series(seen: Seen) -> None:
    """A model can invent any number of tool names, so they share one time series."""
    node = ToolNode([Recorder().tool("work")])
    with seen.metrics.on():
        await run_calls(node, *(tool_call(f"invented_{n}", str(n)) for n in range(50)))
    [(attributes, point)] = seen.points("gen_ai.execute_tool.duration")
    assert (attributes["gen_ai.tool.name"], point.count) == ("_OTHER", 50)
