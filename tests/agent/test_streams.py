"""Streams: every mode on every loop while the run goes on, and the end of runs whose reader has left.

That the chunks are LangGraph's, one by one, stands in `tests/parity/test_agent_streams.py`.
"""

import asyncio
import gc
import threading
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import anyio
import pytest
from langchain_core.messages import BaseMessage
from langchain_core.tools import StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.prebuilt import create_react_agent as langgraphs
from langgraph.types import Command, StreamWriter, interrupt

from callboard import AgentStatePydantic, ToolRuntime, cleanup, create_react_agent, tool_call
from callboard.testing import Recorder, ScriptedModel, calls
from tests.helpers import live_tasks

from ._graphs import Desk, chain, delegate
from ._savers import AT, QUESTION, scripted

pytestmark = pytest.mark.real_clock


versions = pytest.mark.parametrize("version", ["v1", "v2"])


def agent_with(*tools: Any, requested: Any = None, **options: Any) -> Any:
    """An agent whose model calls each tool once and ends."""
    names = requested or [tool.name for tool in tools]
    return scripted([calls(*names), "all is done"], list(tools), **options)


async def read(agent: Any, mode: Any, agent_input: Any = QUESTION, config: Any = None, **options: Any) -> list[Any]:
    return [chunk async for chunk in agent.astream(agent_input, config, stream_mode=mode, **options)]


def by_config() -> str:
    get_stream_writer()({"from": "a tool"})
    return "ok"


async def by_config_async() -> str:
    return by_config()


def by_runtime(runtime: ToolRuntime) -> str:
    runtime.stream_writer({"from": "a tool"})
    return "ok"


async def by_runtime_async(runtime: ToolRuntime) -> str:
    return by_runtime(runtime)


WRITERS: dict[str, dict[str, Any]] = {
    "config": {"coroutine": by_config_async},
    "runtime": {"coroutine": by_runtime_async},
    "thread": {"func": by_config},
    "runtime in thread": {"func": by_runtime},
}


@versions
@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("has_saver", [False, True], ids=["in memory", "kept"])
async def test_what_a_tool_writes_is_the_agents_own(kind: str, has_saver: bool, version: Any) -> None:
    """This also holds with `subgraphs=True`, because a call is not a subgraph; without a reader, nothing is written."""
    saver = InMemorySaver() if has_saver else None
    writer = StructuredTool.from_function(**WRITERS[kind], name="write", description="Write.")
    agent = scripted([calls("write"), "done"], [writer], loop=True, version=version, checkpointer=saver)
    assert await read(agent, "custom", config=AT) == [{"from": "a tool"}]
    assert await read(agent, "custom", config=AT, subgraphs=True) == [((), {"from": "a tool"})]
    assert (await agent.ainvoke(QUESTION, AT))["messages"][-1].content == "done"


async def test_hooks_and_prompts_write_to_the_stream() -> None:
    def before(state: Any) -> Any:
        get_stream_writer()("before")
        return {}

    def prompt(state: Any, *, writer: StreamWriter) -> Any:
        writer("prompt")
        return state["messages"]

    async def after(state: Any, *, writer: StreamWriter) -> Any:
        writer("after")
        return {}

    agent = scripted(["done"], [], prompt=prompt, pre_model_hook=before, post_model_hook=after)
    assert await read(agent, "custom", subgraphs=True) == [((), "before"), ((), "prompt"), ((), "after")]


MODES = ["values", "updates", "messages", "tasks", "checkpoints", ["updates", "messages", "tasks", "values"]]


@pytest.mark.parametrize("mode", MODES, ids=str)
async def test_a_step_begins_when_the_reader_has_taken_the_chunks_before_it_and_asks_for_more(mode: Any) -> None:
    """A reader that stops at the chunk with the model's calls keeps them from running, as in LangGraph."""

    def agent_of(create: Any) -> tuple[Any, Callable[[], tuple[int, int]]]:
        ran, model = [], ScriptedModel([calls("work"), "done"])

        @tool
        def work() -> None:
            """Work."""
            ran.append("work")

        agent = create(model, [work], checkpointer=InMemorySaver())
        return agent, lambda: (len(model.requests), len(ran))

    their_agent, progress = agent_of(langgraphs_agent)
    expected = [progress() for _ in their_agent.stream(QUESTION, AT, stream_mode=mode)]
    our_agent, progress = agent_of(create_react_agent)
    begun = []
    async for _ in our_agent.astream(QUESTION, AT, stream_mode=mode):
        await anyio.wait_all_tasks_blocked()
        begun.append(progress())
    assert begun == expected


@versions
async def test_tool_events_tell_of_each_call(version: Any) -> None:
    recorder = Recorder()
    tools = [recorder.tool("slow", seconds=0.05), recorder.tool("fast")]
    chunks = await read(agent_with(*tools, version=version), "tools")

    events = [(chunk["event"], chunk["tool_call_id"]) for chunk in chunks]
    assert sorted(events[:2]) == [("tool-started", "call_1"), ("tool-started", "call_2")]
    assert events[2:] == [("tool-finished", "call_2"), ("tool-finished", "call_1")]


KNOWN = "only .*'checkpoints', 'custom'"
UNKNOWN: list[tuple[dict[str, Any], str]] = [
    ({"stream_mode": "value"}, f"no stream mode 'value', {KNOWN}"),
    ({"stream_mode": ["updates", "nonsense"]}, f"no stream mode 'nonsense', {KNOWN}"),
    ({"stream_mode": ("tokens",)}, f"no stream mode 'tokens', {KNOWN}"),
    ({"output_keys": "nonsense"}, "nonsense"),
    ({"output_keys": ["messages", "nonsense"]}, "nonsense"),
]


@pytest.mark.parametrize(("options", "reason"), UNKNOWN, ids=repr)
async def test_an_unknown_mode_or_key_is_refused(options: dict[str, Any], reason: str) -> None:
    model = ScriptedModel(["hi"])
    agent = create_react_agent(model, [])
    with pytest.raises(ValueError, match=reason):
        await agent.ainvoke(QUESTION, **options)
    with pytest.raises(ValueError, match=reason):
        [chunk async for chunk in agent.astream(QUESTION, **options)]
    assert model.requests == []


class Settled(AgentStatePydantic):
    mood: str = "calm"


async def test_parts_have_the_state_as_its_schema_says() -> None:
    agent = scripted(["hi"], [], loop=True, state_schema=Settled)
    parts = await read(agent, "values", version="v2")
    output = await agent.ainvoke(QUESTION, version="v2")
    assert all(isinstance(part["data"], Settled) for part in parts)
    assert isinstance(output.value, Settled)


@tool
def ask(query: str = "") -> str:
    """Ask."""
    return str(interrupt(query or "sure?"))


@pytest.mark.parametrize("mode", ["updates", "values"])
async def test_all_questions_of_version_1_come_as_chunks(mode: str) -> None:
    """LangGraph's v1 streams the first question only."""
    model = ScriptedModel([calls(("ask", {"query": "a"}), "work", ("ask", {"query": "b"}))])
    agent = create_react_agent(model, [ask, Recorder().tool("work")], checkpointer=InMemorySaver(), version="v1")
    chunks = await read(agent, mode, config=AT)
    assert [question.value for chunk in chunks for question in chunk.get("__interrupt__", ())] == ["a", "b"]


@versions
async def test_a_resumed_stream_tells_only_what_is_new(version: Any) -> None:
    recorder = Recorder()
    agent = agent_with(ask, recorder.tool("work"), checkpointer=InMemorySaver(), version=version)
    await read(agent, "updates", config=AT)
    chunks = await read(agent, "updates", Command(resume="yes"), AT)

    fresh = [chunk for chunk in chunks if "__metadata__" not in chunk]
    contents = [m.content for chunk in fresh for update in chunk.values() for m in update["messages"]]
    assert contents == (["yes", "work", "all is done"] if version == "v1" else ["yes", "all is done"])
    assert len(chunks) - len(fresh) == (0 if version == "v1" else 1)
    assert recorder.count("started") == 1


async def test_a_question_is_told_while_its_neighbours_run() -> None:
    recorder = Recorder()
    agent = agent_with(ask, recorder.tool("stuck", hang=True))
    async with aclosing(agent.astream(QUESTION, stream_mode="updates")) as stream:
        async for chunk in stream:
            if "__interrupt__" in chunk:
                break
    assert recorder.count("finished") == 0


@pytest.mark.parametrize("mode", ["updates", "values", "messages", "tasks", "tools"])
async def test_chunks_arrive_while_the_run_goes_on(mode: str) -> None:
    recorder = Recorder()
    release = anyio.Event()

    @tool
    async def waits() -> str:
        """Wait."""
        await release.wait()
        return "waited"

    agent = agent_with(recorder.tool("work", returns="work's result"), waits)
    async for chunk in agent.astream(QUESTION, stream_mode=mode):
        if "work's result" in repr(chunk) or (mode == "values" and len(chunk["messages"]) == 2):
            release.set()
    assert release.is_set()


async def test_chunks_from_many_threads_arrive_once() -> None:
    @tool
    def chatter(number: int) -> str:
        """Chatter."""
        write = get_stream_writer()
        for part in range(50):
            write((number, part))
        return "ok"

    model = ScriptedModel([calls(*[("chatter", {"number": number}) for number in range(8)]), "done"])
    chunks = await read(create_react_agent(model, [chatter]), "custom")
    assert sorted(chunks) == [(number, part) for number in range(8) for part in range(50)]
    assert [part for number, part in chunks if number == 3] == list(range(50))


def stuck(recorder: Recorder, *, with_cleanup: bool = False) -> Any:
    """An agent with one call that never ends."""
    cleaned = 0.05 if with_cleanup else 0.0
    tool = recorder.tool("stuck", hang=True, cleanup=cleaned, shield=cleanup)
    return scripted([calls("stuck")], [tool])


Leave = Callable[[Any, Recorder], Awaitable[None]]


async def by_aclose(stream: AsyncGenerator[Any], recorder: Recorder) -> None:
    while "tool-started" not in str(await anext(stream)):
        pass
    await recorder.wait_for("started")
    await stream.aclose()


async def by_an_error_of_the_reader(stream: AsyncGenerator[Any], recorder: Recorder) -> None:
    with pytest.raises(ZeroDivisionError):
        async with aclosing(stream):
            async for chunk in stream:
                if "tool-started" in str(chunk):
                    await recorder.wait_for("started")
                    raise ZeroDivisionError


async def by_cancelling_the_reader(stream: AsyncGenerator[Any], recorder: Recorder) -> None:
    async def reader() -> None:
        async for _ in stream:
            pass

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reader)
        await recorder.wait_for("started")
        tasks.cancel_scope.cancel()


async def by_a_timeout_of_the_reader(stream: AsyncGenerator[Any], recorder: Recorder) -> None:
    with anyio.move_on_after(0.2) as scope:
        async for _ in stream:
            pass
    assert scope.cancelled_caught


WAYS = [by_aclose, by_an_error_of_the_reader, by_cancelling_the_reader, by_a_timeout_of_the_reader]


@pytest.mark.parametrize("leave", WAYS)
@pytest.mark.parametrize("mode", ["tools", ["messages", "tools", "custom"]], ids=["tools", "several"])
async def test_a_stream_that_is_left_has_ended_its_run(leave: Leave, mode: Any) -> None:
    recorder, before = Recorder(), live_tasks()
    await leave(stuck(recorder, with_cleanup=True).astream(QUESTION, stream_mode=mode), recorder)
    assert recorder.lines == ["stuck started", "stuck cancelled", "stuck cleaned up"]
    assert recorder.running == 0
    assert live_tasks() <= before


@pytest.mark.filterwarnings("ignore:Async generator .* was garbage collected:ResourceWarning")
async def test_a_stream_that_is_forgotten_ends_its_run() -> None:
    """The event loop's hook closes the generator; trio warns about such code, for good reason."""
    recorder, before = Recorder(), live_tasks()

    async def forget() -> None:
        async for _ in stuck(recorder).astream(QUESTION, stream_mode="tools"):
            await recorder.wait_for("started")
            break

    await forget()
    gc.collect()
    await recorder.wait_for("cancelled")
    while not live_tasks() <= before:
        await anyio.sleep(0.001)
    assert recorder.running == 0


@pytest.mark.backends("asyncio")
async def test_the_end_of_a_stream_in_a_forgotten_cycle_is_no_error_of_the_event_loop() -> None:
    """The collector closes all generators of a cycle at once; LangChain's run of `astream_events` is such a cycle."""
    recorder, before, errors = Recorder(), live_tasks(), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))

    async def forget() -> None:
        stream = stuck(recorder).astream(QUESTION, stream_mode="tools")
        cycle: list[Any] = [stream]
        cycle.append(cycle)
        await anext(stream)
        await recorder.wait_for("started")

    await forget()
    gc.collect()
    await recorder.wait_for("cancelled")
    while not live_tasks() <= before:
        await anyio.sleep(0.001)
    gc.collect()  # of tasks whose errors nobody has read
    await anyio.sleep(0)
    assert errors == []


async def test_a_stream_that_was_never_begun_runs_nothing() -> None:
    model = ScriptedModel(["hi"])
    stream = create_react_agent(model, []).astream(QUESTION)
    await stream.aclose()
    assert model.requests == []


def test_a_sync_stream_that_is_left_has_ended_its_run() -> None:
    recorder = Recorder()
    stream = stuck(recorder, with_cleanup=True).stream(QUESTION, stream_mode="tools")
    next(stream)
    while not recorder.count("started"):
        threading.Event().wait(0.001)
    stream.close()
    assert recorder.lines == ["stuck started", "stuck cancelled", "stuck cleaned up"]


on_asyncio = pytest.mark.backends("asyncio")
"""LangGraph's own graphs run on asyncio only."""


def langgraphs_agent(*args: Any, **options: Any) -> Any:
    """LangGraph's agent, which callboard's replaces."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return langgraphs(*args, **options)


def plain(chunk: Any) -> Any:
    """Return a chunk without ids: messages in words, and only the node of the metadata."""
    if isinstance(chunk, BaseMessage):
        return f"{chunk.type}:{chunk.content}"
    if isinstance(chunk, dict) and "langgraph_node" in chunk:
        return chunk["langgraph_node"]
    if isinstance(chunk, dict):
        return {key: plain(value) for key, value in chunk.items()}
    if isinstance(chunk, (list, tuple)):
        return [plain(item) for item in chunk]
    return chunk.partition(":")[0] if isinstance(chunk, str) and len(chunk) > 36 else chunk


async def read_chunks(stream: AsyncIterator[Any]) -> list[Any]:
    """Return all chunks of a stream, without ids."""
    return [plain(chunk) async for chunk in stream]


def graph_with_call(desk: Desk, make: Any, **options: Any) -> Any:
    """A graph with an agent that makes one call and ends."""
    model = ScriptedModel([calls(tool_call("work", "1", query="x")), "all done"])
    agent = make(model, desk.tools(), name="worker", **options)
    return chain(("before", desk.node("before")), ("worker", agent), ("after", desk.node("after")))


@on_asyncio
@pytest.mark.parametrize("subgraphs", [False, True], ids=["of the graph", "of all"])
@pytest.mark.parametrize("mode", ["values", "updates", "messages", "custom"])
@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_a_graph_tells_of_a_nested_agent_what_it_tells_of_langgraphs(
    mode: str, subgraphs: bool, version: str
) -> None:
    expected, actual = [
        await read_chunks(
            graph_with_call(Desk(), make, version=version).astream(QUESTION, stream_mode=mode, subgraphs=subgraphs)
        )
        for make in (langgraphs_agent, create_react_agent)
    ]
    assert expected or (mode, subgraphs) == ("custom", False)
    assert actual == expected


@on_asyncio
async def test_messages_of_a_nested_agent_are_told_once_though_it_stopped_in_between() -> None:
    """An interrupted run has no result, so its messages are streamed when the agent has ended."""
    desk = Desk()
    reply = calls(tool_call("work", "1", query="x"), tool_call("ask", "2", query="a"))
    agent = scripted([reply, "done"], desk.tools(), name="worker")
    graph = chain(("worker", agent), saver=InMemorySaver())
    before = await read_chunks(graph.astream(QUESTION, AT, stream_mode="messages"))
    after = await read_chunks(graph.astream(Command(resume="yes"), AT, stream_mode="messages"))
    assert before == []
    assert [message for message, _ in after] == ["ai:", "tool:did x", "tool:a: yes", "ai:done"]


def delegating(make: Any, desk: Desk) -> Any:
    """An agent with a tool that runs another agent."""
    inner = make(ScriptedModel([calls(tool_call("work", "2", query="x")), "inner done"]), desk.tools())
    reply = calls(tool_call("inner", "1", query="q"))
    return make(ScriptedModel([reply, "done"]), [delegate(inner, "inner")])


@pytest.mark.parametrize("mode", ["updates", "custom"])
async def test_an_agent_tells_of_an_agent_in_its_call_if_asked_to(mode: str) -> None:
    alone = await read_chunks(delegating(create_react_agent, Desk()).astream(QUESTION, stream_mode=mode))
    everything = await read_chunks(
        delegating(create_react_agent, Desk()).astream(QUESTION, stream_mode=mode, subgraphs=True)
    )

    inner = [payload for namespace, payload in everything if namespace]
    assert {tuple(namespace) for namespace, _ in everything if namespace} == {("tools",)}
    assert [payload for namespace, payload in everything if not namespace] == alone
    if mode == "updates":
        assert [list(payload) for payload in inner] == [["agent"], ["tools"], ["agent"]]
        assert [list(payload) for payload in alone] == [["agent"], ["tools"], ["agent"]]
    else:
        assert (alone, inner) == ([], ["at work on x"])
