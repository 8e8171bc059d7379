"""`ToolNode.as_completed()`: the result of each call as soon as it has ended, with nothing left behind."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import ToolMessage
from langchain_core.tools import InjectedToolCallId
from langgraph.graph import StateGraph
from langgraph.graph.message import MessagesState
from langgraph.types import Command, interrupt

from callboard import CallPolicy, CallsInterrupted, Limit, ToolNode, tool_call
from callboard.exceptions import DrainingError
from callboard.testing import Recorder, calls
from tests.helpers import live_tasks, make

WAIT = 1_000.0


def fetch_calls(*queries: object) -> list[Any]:
    return [tool_call("fetch", f"c{n}", query=str(query)) for n, query in enumerate(queries)]


def slow_fetch(recorder: Recorder, **options: Any) -> Any:
    """Return a tool whose call takes as many seconds as its query says."""
    return recorder.tool("fetch", seconds=float, **options)


async def keep_contents(seen: list[Any], results: AsyncIterator[Any]) -> None:
    """Append the content of each result to `seen`, which has those before an error."""
    with anyio.fail_after(WAIT):
        async for result in results:
            seen.append(result.content)  # noqa: PERF401 (a comprehension would lose those before an error)


async def contents_of(results: AsyncIterator[Any]) -> list[Any]:
    with anyio.fail_after(WAIT):
        return [result.content async for result in results]


FORMS = {
    "state": lambda requests: {"messages": [("user", "go"), calls(*requests)]},
    "messages": lambda requests: [calls(*requests)],
    "calls": lambda requests: requests,
    "call with context": lambda requests: {
        "__type": "tool_call_with_context",
        "tool_call": requests[0],
        "state": {"messages": [calls(*requests)]},
    },
}


@pytest.mark.parametrize("form", FORMS)
async def test_each_message_comes_when_its_call_has_ended_for_each_form_of_input(form: str) -> None:
    """A page is processed while other pages are still on their way."""
    node, start = ToolNode([slow_fetch(Recorder())]), anyio.current_time()
    node_input = FORMS[form](fetch_calls(30, 10, 20))
    expected = ["30"] if form == "call with context" else ["10", "20", "30"]
    contents_and_times: list[tuple[str, float]] = []

    with anyio.fail_after(WAIT):
        async for message in node.as_completed(node_input):
            assert isinstance(message, ToolMessage)
            contents_and_times.append((str(message.content), round(anyio.current_time() - start)))

    assert contents_and_times == [(query, float(query)) for query in expected]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(1, 12))
async def test_they_are_the_messages_of_ainvoke_in_the_order_of_their_ends(seconds: list[int], window: int) -> None:
    """No result is missing or doubled, whatever the durations and the window."""
    node = ToolNode([slow_fetch(Recorder())])
    requests = fetch_calls(*seconds)

    with anyio.fail_after(WAIT):
        expected = (await node.ainvoke(requests))["messages"]
        results: list[Any] = [message async for message in node.as_completed(requests, window=window)]

    assert sorted(map(repr, results)) == sorted(map(repr, expected))
    if window >= len(seconds):
        assert [int(str(message.content)) for message in results] == sorted(seconds)


async def test_commands_and_lists_come_as_their_parts() -> None:
    async def both(tool_call_id: Annotated[str, InjectedToolCallId]) -> list[Any]:
        """Return a message and a command."""
        return [ToolMessage("text", tool_call_id=tool_call_id), Command(update={"pages": 1})]

    node = ToolNode([make(both)])
    with anyio.fail_after(WAIT):
        results = [result async for result in node.as_completed({"messages": [calls(tool_call("both", "1"))]})]

    assert [type(result) for result in results] == [ToolMessage, Command]


async def test_a_reader_that_stops_leaves_nothing_behind() -> None:
    """The calls still have their grace for clean-up, and have ended when the generator is closed."""
    recorder = Recorder()
    node = ToolNode([slow_fetch(recorder, cleanup=2.0, shield=lambda: anyio.CancelScope(shield=True))])
    before = live_tasks()

    with anyio.fail_after(WAIT):
        async with aclosing(node.as_completed(fetch_calls(10, 500, 600))) as results:
            async for _ in results:
                break

        assert recorder.running == 0
    assert recorder.lines[-2:] in (
        ["fetch(500) cleaned up", "fetch(600) cleaned up"],
        ["fetch(600) cleaned up", "fetch(500) cleaned up"],
    )
    assert live_tasks() == before


async def test_a_generator_that_was_never_read_starts_nothing() -> None:
    recorder = Recorder()

    await ToolNode([slow_fetch(recorder)]).as_completed(fetch_calls(1)).aclose()

    assert recorder.lines == []


async def test_a_cancelled_reader_ends_the_calls() -> None:
    recorder = Recorder()
    node = ToolNode([slow_fetch(recorder)])
    before = live_tasks()

    with anyio.move_on_after(15):
        await contents_of(node.as_completed(fetch_calls(10, 500)))

    assert recorder.running == 0
    assert recorder.count("finished") == 1
    assert live_tasks() == before


async def test_an_error_is_raised_after_the_messages_of_the_calls_that_have_ended() -> None:
    recorder = Recorder()
    node = ToolNode([slow_fetch(recorder), recorder.tool("boom", seconds=20, raises=OSError("no"))])
    kept_contents: list[Any] = []

    with pytest.raises(OSError, match="no"):  # bare, as by `ainvoke`
        await keep_contents(kept_contents, node.as_completed([*fetch_calls(10, 500), tool_call("boom", "b")]))

    assert kept_contents == ["10"]
    assert recorder.running == 0


async def test_the_other_calls_finish_first_if_the_node_says_so() -> None:
    recorder = Recorder()
    tools = [slow_fetch(recorder), recorder.tool("boom", raises=OSError("no"))]
    node = ToolNode(tools, on_error="finish")
    kept_contents: list[Any] = []

    with pytest.raises(OSError, match="no"):
        await keep_contents(
            kept_contents, node.as_completed([tool_call("boom", "b"), *fetch_calls(10, 20, 30)], window=1)
        )

    assert kept_contents == ["10", "20", "30"]


async def test_questions_come_after_the_finished_messages_and_a_second_run_begins_with_those() -> None:
    """An answered run is read from the start: its reader needs all results, and no call runs twice."""
    recorder = Recorder()

    async def ask() -> str:
        """Ask."""
        return f"said {interrupt('which?')}"

    node = ToolNode([slow_fetch(recorder), make(ask)])
    requests, kept_contents = [tool_call("ask", "a"), *fetch_calls(10)], list[Any]()
    with pytest.raises(CallsInterrupted) as caught:
        await keep_contents(kept_contents, node.as_completed(requests))

    results = node.as_completed(requests, ledger=caught.value.ledger, resume="tea")

    assert kept_contents == ["10"]
    assert await contents_of(results) == ["10", "said tea"]
    assert recorder.order == ["fetch(10)"]


@pytest.mark.backends("asyncio")
async def test_questions_reach_the_graph_around_a_node_that_reads_results() -> None:
    async def ask() -> str:
        """Ask."""
        return f"said {interrupt('which?')}"

    node = ToolNode([make(ask)])

    async def read(state: MessagesState) -> Any:
        return {"messages": [message async for message in node.as_completed(state)]}

    graph = StateGraph(MessagesState).add_node("read", read).set_entry_point("read").compile()
    with anyio.fail_after(WAIT):
        state = await graph.ainvoke({"messages": [calls(tool_call("ask", "1"))]})

    assert [question.value for question in state["__interrupt__"]] == ["which?"]


async def test_a_slow_reader_slows_the_calls_down() -> None:
    """The results of ten thousand pages would fill the memory."""
    recorder, read_count = Recorder(), 0
    node = ToolNode([slow_fetch(recorder)])

    with anyio.fail_after(WAIT):
        async with aclosing(node.as_completed(fetch_calls(*[1] * 20), window=3)) as results:
            for read_count in range(1, 6):
                await anext(results)
                await anyio.sleep(10)
                assert recorder.count("finished") == read_count + 3
            async for _ in results:
                read_count += 1
    assert read_count == 20


async def test_calls_begin_in_call_order_within_the_window() -> None:
    recorder = Recorder()
    node = ToolNode([slow_fetch(recorder)], policies={"fetch": CallPolicy(limit=Limit(concurrency=2))})

    assert await contents_of(node.as_completed(fetch_calls(*range(1, 9)), window=4)) == [*map(str, range(1, 9))]
    assert recorder.order == [f"fetch({n})" for n in range(1, 9)]
    assert recorder.peak == 2


async def test_a_refused_call_has_a_message_too() -> None:
    node = ToolNode([slow_fetch(Recorder())], max_calls=1)

    requests = [*fetch_calls(1, 2), tool_call("other", "o")]
    messages: list[Any] = [message async for message in node.as_completed(requests)]

    assert sorted((message.tool_call_id, message.status) for message in messages) == [
        ("c0", "success"),
        ("c1", "error"),
        ("o", "error"),
    ]


async def test_a_drain_ends_it_as_it_ends_ainvoke() -> None:
    node = ToolNode([slow_fetch(Recorder())])
    kept_contents: list[Any] = []

    async def read() -> None:
        with pytest.raises(DrainingError):
            await keep_contents(kept_contents, node.as_completed(fetch_calls(1, 500)))

    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await wait_all_tasks_blocked()
            await node.drain(10)
    assert kept_contents == ["1"]


async def test_the_body_of_a_tool_may_read_the_results_of_another_node() -> None:
    inner = ToolNode([slow_fetch(Recorder())])

    async def crawl() -> str:
        """Crawl."""
        return " ".join(await contents_of(inner.as_completed(fetch_calls(20, 10))))

    outer = ToolNode([make(crawl)], timeout=100)
    assert await contents_of(outer.as_completed([tool_call("crawl", "1")])) == ["10 20"]


class Guarded(ToolNode):
    """Node whose override forbids some calls, and marks the results of the others."""

    async def ainvoke(self, input: Any, *args: Any, **options: Any) -> Any:
        call = input["tool_call"]
        if call["args"].get("query") == "5":
            return {"messages": [ToolMessage("forbidden", tool_call_id=call["id"])]}
        output: Any = await super().ainvoke(input, *args, **options)
        for message in output["messages"]:
            message.content += "!"
        return output


class SyncGuarded(ToolNode):
    """Node with the same override for sync code, which async code calls, too."""

    def invoke(self, input: Any, *args: Any, **options: Any) -> Any:
        call = input["tool_call"]
        if call["args"].get("query") == "5":
            return {"messages": [ToolMessage("forbidden", tool_call_id=call["id"])]}
        output: Any = super().invoke(input, *args, **options)
        for message in output["messages"]:
            message.content += "!"
        return output


@pytest.mark.real_clock
@pytest.mark.parametrize("kind", [Guarded, SyncGuarded])
async def test_an_override_runs_around_each_call(kind: type[ToolNode]) -> None:
    """The override may be what forbids a call, or what hides a part of a result."""
    recorder = Recorder()
    node = kind([recorder.tool("fetch", seconds=lambda query: 0.0)])
    requests = fetch_calls(1, 5, 2)

    contents = await contents_of(node.as_completed(requests))

    assert sorted(contents) == ["1!", "2!", "forbidden"]
    assert sorted(recorder.order) == ["fetch(1)", "fetch(2)"]


async def test_a_question_in_an_override_is_that_of_its_call() -> None:
    class Asking(ToolNode):
        async def ainvoke(self, input: Any, *args: Any, **options: Any) -> Any:
            if input["tool_call"]["args"]["query"] == "20":
                assert interrupt("really?") == "yes"
            return await super().ainvoke(input, *args, **options)

    recorder = Recorder()
    node, requests, kept_contents = Asking([slow_fetch(recorder)]), fetch_calls(10, 20), list[Any]()
    with pytest.raises(CallsInterrupted) as caught:
        await keep_contents(kept_contents, node.as_completed(requests))

    assert kept_contents == ["10"]
    assert await contents_of(node.as_completed(requests, ledger=caught.value.ledger, resume="yes")) == ["10", "20"]
    assert recorder.order == ["fetch(10)", "fetch(20)"]


@pytest.mark.parametrize(("window", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)])
async def test_a_window_is_a_number_of_calls(window: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"as_completed\(window=\.\.\.\)"):
        await contents_of(ToolNode([slow_fetch(Recorder())]).as_completed(fetch_calls(1), window=window))


async def test_an_input_without_calls_raises_as_by_ainvoke() -> None:
    with pytest.raises(ValueError, match="No message found in input"):
        await contents_of(ToolNode([slow_fetch(Recorder())]).as_completed({"messages": []}))
