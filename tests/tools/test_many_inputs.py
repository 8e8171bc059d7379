"""`abatch` and `abatch_as_completed` of nodes and agents: LangChain's methods, on asyncio and on trio."""

from contextlib import aclosing
from typing import Any

import anyio
import pytest
from langchain_core.runnables import RunnableConfig, RunnableLambda

from callboard import ToolNode, create_react_agent, tool_call
from callboard.testing import Recorder, ScriptedModel, calls
from tests.helpers import live_tasks

WAIT = 1_000.0


def node_of(recorder: Recorder) -> ToolNode:
    """Return a node with a tool whose call takes as many seconds as its query says, and one that fails."""
    return ToolNode([recorder.tool("slow", seconds=float), recorder.tool("boom", seconds=20, raises=OSError("no"))])


def inputs(*queries: object) -> list[Any]:
    return [[tool_call("slow" if query != "boom" else "boom", "1", query=str(query))] for query in queries]


def content(output: Any) -> Any:
    return output["messages"][0].content if isinstance(output, dict) else output


async def test_each_output_comes_with_its_index_when_its_run_has_ended() -> None:
    node, start = node_of(Recorder()), anyio.current_time()

    with anyio.fail_after(WAIT):
        outputs = [
            (index, content(output), round(anyio.current_time() - start))
            async for index, output in node.abatch_as_completed(inputs(30, 10, 20))
        ]

    assert outputs == [(1, "10", 10), (2, "20", 20), (0, "30", 30)]


async def test_no_input_is_no_output() -> None:
    node = node_of(Recorder())

    assert await node.abatch([]) == []
    assert [output async for output in node.abatch_as_completed([])] == []


async def test_an_error_cancels_the_other_runs_and_comes_after_the_ready_outputs() -> None:
    recorder, indexes = Recorder(), list[int]()

    with anyio.fail_after(WAIT), pytest.raises(OSError, match="no"):
        async for index, _ in node_of(recorder).abatch_as_completed(inputs(500, "boom", 10)):
            indexes.append(index)

    assert indexes == [2]
    assert recorder.running == 0


async def test_errors_stand_in_place_of_outputs_if_the_caller_says_so() -> None:
    with anyio.fail_after(WAIT):
        outputs = [
            (index, content(output))
            async for index, output in node_of(Recorder()).abatch_as_completed(
                inputs(30, "boom", 10), return_exceptions=True
            )
        ]

    assert [index for index, _ in outputs] == [2, 1, 0]
    assert isinstance(outputs[1][1], OSError)


async def test_max_concurrency_bounds_the_runs_and_the_outputs_that_nobody_has_read() -> None:
    recorder, read_count = Recorder(), 0
    results = node_of(recorder).abatch_as_completed(inputs(*[1] * 8), {"max_concurrency": 2})

    with anyio.fail_after(WAIT):
        async with aclosing(results):
            for read_count in range(1, 4):
                await anext(results)
                await anyio.sleep(10)
                assert recorder.count("finished") == read_count + 2
            async for _ in results:
                read_count += 1
    assert read_count == 8
    assert recorder.peak == 2


async def test_inputs_begin_in_their_order() -> None:
    recorder = Recorder()

    with anyio.fail_after(WAIT):
        outputs = await node_of(recorder).abatch(inputs(*range(1, 9)), {"max_concurrency": 1})

    assert [*map(content, outputs)] == [*map(str, range(1, 9))]
    assert recorder.order == [f"slow({n})" for n in range(1, 9)]


async def test_each_input_may_have_a_config_of_its_own() -> None:
    tags_by_query: dict[str, Any] = {}

    async def tagged(query: str, config: RunnableConfig) -> str:
        """Tell the tags of the run."""
        tags_by_query[query] = config["tags"]
        return query

    requests = [[tool_call("tagged", "1", query=query)] for query in "ab"]
    configs: Any = [{"tags": ["one"]}, {"tags": ["two"]}]
    with anyio.fail_after(WAIT):
        async for _ in ToolNode([tagged]).abatch_as_completed(requests, configs):
            pass

    assert tags_by_query == {"a": ["one"], "b": ["two"]}


async def test_a_reader_that_stops_leaves_nothing_behind() -> None:
    recorder, before = Recorder(), live_tasks()

    with anyio.fail_after(WAIT):
        async with aclosing(node_of(recorder).abatch_as_completed(inputs(10, 500, 600))) as outputs:
            async for _ in outputs:
                break

    assert recorder.running == 0
    assert live_tasks() == before


@pytest.mark.parametrize("concurrency", [0, -1])
async def test_a_number_of_runs_that_makes_no_sense_is_refused(concurrency: int) -> None:
    node = node_of(Recorder())
    config: RunnableConfig = {"max_concurrency": concurrency}

    with pytest.raises(ValueError, match="max_concurrency"):
        await node.abatch(inputs(1), config)
    with pytest.raises(ValueError, match="max_concurrency"):
        [output async for output in node.abatch_as_completed(inputs(1), config)]


@pytest.mark.real_clock
async def test_conversations_of_an_agent_come_as_they_end() -> None:
    recorder = Recorder()

    def respond(messages: Any) -> Any:
        last = messages[-1]
        return calls(tool_call("slow", query=last.content)) if last.type == "human" else last.content

    slow = recorder.tool("slow", seconds=lambda query: {"b": 0.0}.get(query, 0.2))
    agent = create_react_agent(ScriptedModel([respond], loop=True), [slow])
    requests = [{"messages": [("user", name)]} for name in "ab"]
    contents = [(index, output["messages"][-1].content) async for index, output in agent.abatch_as_completed(requests)]

    assert contents == [(1, "b"), (0, "a")]


@pytest.mark.real_clock
def test_the_sync_method_of_langchain_gives_the_same() -> None:
    node = ToolNode([Recorder().tool("slow", seconds=float)])

    pairs = node.batch_as_completed(inputs(0.2, 0.0))

    assert [(index, content(output)) for index, output in pairs] == [(1, "0.0"), (0, "0.2")]


@pytest.mark.backends("asyncio")
async def test_langchains_own_method_has_the_same_form() -> None:
    """Code that reads the outputs of another Runnable reads those of a node."""
    node = node_of(Recorder())
    runnable = RunnableLambda(node.ainvoke)

    node_outputs = [(index, content(output)) async for index, output in node.abatch_as_completed(inputs(2, 1))]
    runnable_outputs = [(index, content(output)) async for index, output in runnable.abatch_as_completed(inputs(2, 1))]

    assert node_outputs == runnable_outputs == [(1, "1"), (0, "2")]
