"""Streams: every mode on every loop while the run goes on, and the end of runs whose reader has left.

That the chunks are LangGraph's, one by one, stands in `tests/parity/test_agent_streams.py`.
"""

import gc
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import anyio
import pytest
from langchain_core.messages import AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, StreamWriter, interrupt
from pydantic import BaseModel

from callboard import AgentStatePydantic, CallPolicy, ToolNode, ToolRuntime, cleanup, create_react_agent
from callboard.testing import Recorder, ScriptedModel, calls
from tests.helpers import live_tasks

pytestmark = pytest.mark.real_clock

WAIT = 10
QUESTION = {"messages": [("user", "go")]}
THREAD: RunnableConfig = {"configurable": {"thread_id": "1"}}

versions = pytest.mark.parametrize("version", ["v1", "v2"])


def agent_with(*tools: Any, asked: Any = None, **options: Any) -> Any:
    """An agent whose model calls each tool once and ends."""
    names = asked or [tool.name for tool in tools]
    return create_react_agent(ScriptedModel([calls(*names), "all is done"]), list(tools), **options)


async def read(agent: Any, mode: Any, given: Any = QUESTION, config: Any = None, **options: Any) -> list[Any]:
    with anyio.fail_after(WAIT):
        return [chunk async for chunk in agent.astream(given, config, stream_mode=mode, **options)]


# The modes.


@versions
async def test_values_are_the_whole_state_after_each_step(version: Any) -> None:
    """The first value is the state with the input."""
    chunks = await read(agent_with(Recorder().tool("work"), version=version), "values")

    assert [len(chunk["messages"]) for chunk in chunks] == [1, 2, 3, 4]


@versions
async def test_updates_are_what_each_task_wrote(version: Any) -> None:
    """In v2 each call is a task of its own; in v1 the batch is one task."""
    recorder = Recorder()
    tools = [recorder.tool("slow", seconds=0.05), recorder.tool("fast")]

    chunks = await read(agent_with(*tools, version=version), "updates")

    seen = [(node, [m.content for m in update["messages"]]) for chunk in chunks for node, update in chunk.items()]
    batch = [("tools", ["slow", "fast"])] if version == "v1" else [("tools", ["fast"]), ("tools", ["slow"])]
    assert seen == [("agent", [""]), *batch, ("agent", ["all is done"])]


async def test_without_a_mode_a_stream_has_updates() -> None:
    """Updates are the default mode, as in LangGraph."""
    chunks = await read(agent_with(Recorder().tool("work")), None)

    assert [list(chunk) for chunk in chunks] == [["agent"], ["tools"], ["agent"]]


@versions
async def test_messages_are_tokens_and_results_with_their_place(version: Any) -> None:
    """The model's tokens come one by one, and each chunk names its node and its step."""
    chunks = await read(agent_with(Recorder().tool("work"), version=version), "messages", config={"tags": ["mine"]})

    words = [m.content for m, _ in chunks if isinstance(m, AIMessageChunk) and m.content]
    places = [(m.type, about["langgraph_node"], about["langgraph_step"]) for m, about in chunks if m.content]
    assert words == ["all", " is", " done"]
    assert places == [("tool", "tools", 2), *[("AIMessageChunk", "agent", 3)] * 3]
    assert all(about["tags"] == ["mine"] for message, about in chunks if isinstance(message, AIMessageChunk))
    assert all(about["langgraph_checkpoint_ns"].startswith(about["langgraph_node"] + ":") for _, about in chunks)


@versions
async def test_messages_of_a_named_agent_are_told_once(version: Any) -> None:
    """A streamed message is not repeated when its node ends, nor are messages of the history."""
    history = {"messages": [("user", "a"), ("ai", "b"), ("user", "c")]}
    agent = create_react_agent(ScriptedModel(["one two"]), [], name="clerk", version=version)

    chunks = await read(agent, "messages", history)

    assert [message.content for message, _ in chunks] == ["one", " two"]


def writing(kind: str) -> StructuredTool:
    async def by_config() -> str:
        get_stream_writer()({"from": kind})
        return kind

    async def by_runtime(runtime: ToolRuntime) -> str:
        runtime.stream_writer({"from": kind})
        return kind

    def in_thread() -> str:
        get_stream_writer()({"from": kind})
        return kind

    def in_thread_by_runtime(runtime: ToolRuntime) -> str:
        runtime.stream_writer({"from": kind})
        return kind

    fn: Any = {
        "config": by_config,
        "runtime": by_runtime,
        "thread": in_thread,
        "runtime_in_thread": in_thread_by_runtime,
    }[kind]
    if kind.endswith("thread"):
        return StructuredTool.from_function(func=fn, name=kind, description=kind)
    return StructuredTool.from_function(coroutine=fn, name=kind, description=kind)


WRITERS = ["config", "runtime", "thread", "runtime_in_thread"]


@versions
@pytest.mark.parametrize("kind", WRITERS)
async def test_tools_write_to_the_stream(kind: str, version: Any) -> None:
    """Tools on the event loop and in threads can use both of LangGraph's ways to write."""
    assert await read(agent_with(writing(kind), version=version), "custom") == [{"from": kind}]


@versions
@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("kept", [False, True], ids=["in memory", "kept"])
async def test_what_a_tool_writes_is_the_agents_own(kind: str, kept: bool, version: Any) -> None:
    """This also holds with `subgraphs=True`, because a call is not a subgraph."""
    agent = agent_with(writing(kind), version=version, checkpointer=InMemorySaver() if kept else None)

    assert await read(agent, "custom", config=THREAD, subgraphs=True) == [((), {"from": kind})]


async def test_hooks_and_prompts_write_to_the_stream() -> None:
    """Code in any node can write to the stream, under the agent's namespace."""

    def before(state: Any) -> Any:
        get_stream_writer()("before")
        return {}

    def prompt(state: Any, *, writer: StreamWriter) -> Any:
        writer("prompt")
        return state["messages"]

    async def after(state: Any, *, writer: StreamWriter) -> Any:
        writer("after")
        return {}

    agent = create_react_agent(ScriptedModel(["done"]), [], prompt=prompt, pre_model_hook=before, post_model_hook=after)

    assert await read(agent, "custom", subgraphs=True) == [((), "before"), ((), "prompt"), ((), "after")]


async def test_without_a_reader_a_writer_writes_nowhere() -> None:
    """A tool need not know whether the stream has a reader."""
    agent = agent_with(writing("config"))

    with anyio.fail_after(WAIT):
        result = await agent.ainvoke(QUESTION)

    assert result["messages"][-1].content == "all is done"


@versions
async def test_tasks_begin_and_end_in_pairs(version: Any) -> None:
    """The end of a task has the id of its beginning, and the task's writes."""
    recorder = Recorder()
    agent = agent_with(recorder.tool("a"), recorder.tool("b"), version=version)

    chunks = await read(agent, "tasks")

    begun = [chunk["id"] for chunk in chunks if "input" in chunk]
    ended = [chunk["id"] for chunk in chunks if "result" in chunk]
    assert sorted(begun) == sorted(ended)
    assert len(set(begun)) == (3 if version == "v1" else 4)


async def test_each_call_is_told_as_what_langgraph_sends() -> None:
    """In v2 the task input is the call with the state that it came from."""
    chunks = await read(agent_with(Recorder().tool("work")), "tasks")

    [sent] = [chunk["input"] for chunk in chunks if chunk["name"] == "tools" and "input" in chunk]
    assert sent["__type"] == "tool_call_with_context"
    assert sent["tool_call"]["name"] == "work"
    assert len(sent["state"]["messages"]) == 2


@versions
async def test_a_task_that_failed_says_so_before_its_error_is_raised(version: Any) -> None:
    """The chunk contains the error, for readers that show tasks."""
    error = ValueError("no")
    agent = agent_with(Recorder().tool("work", raises=error), version=version)
    chunks: list[Any] = []

    with anyio.fail_after(WAIT), pytest.raises(ValueError, match="no"):
        async for chunk in agent.astream(QUESTION, stream_mode="tasks"):
            chunks.append(chunk)  # noqa: PERF401 (earlier chunks must survive the error)

    assert chunks[-1]["name"] == "tools"
    assert chunks[-1]["error"] is error


@versions
async def test_a_model_that_failed_says_so_too(version: Any) -> None:
    """The model's node is a task like any other."""
    error = ConnectionError("down")
    agent = create_react_agent(ScriptedModel([error]), [], version=version)
    chunks: list[Any] = []

    with anyio.fail_after(WAIT), pytest.raises(ConnectionError):
        async for chunk in agent.astream(QUESTION, stream_mode="tasks"):
            chunks.append(chunk)  # noqa: PERF401 (earlier chunks must survive the error)

    assert [chunk["error"] for chunk in chunks if "error" in chunk] == [error]


@versions
async def test_checkpoints_are_places_to_go_back_to(version: Any) -> None:
    """Each chunk has the config of a checkpoint, with which `get_state` finds the state."""
    agent = agent_with(Recorder().tool("work"), version=version, checkpointer=InMemorySaver())

    chunks = await read(agent, "checkpoints", config=THREAD)

    nexts = [chunk["next"] for chunk in chunks]
    assert nexts[-4:] == [["agent"], ["tools"], ["agent"], []]
    for chunk in chunks[-4:]:
        state = await agent.aget_state(chunk["config"])
        assert list(state.next) == chunk["next"]
        assert state.values == chunk["values"]
        assert state.metadata == chunk["metadata"]
    assert [chunk["parent_config"] for chunk in chunks[1:]] == [chunk["config"] for chunk in chunks[:-1]]


async def test_without_a_checkpointer_there_are_no_checkpoints() -> None:
    """Without a checkpointer this mode yields nothing, as in LangGraph."""
    assert await read(agent_with(Recorder().tool("work")), "checkpoints") == []


@versions
async def test_debug_has_tasks_and_checkpoints_by_step(version: Any) -> None:
    """Each chunk has its type, the number of the step and the time."""
    agent = agent_with(Recorder().tool("work"), version=version, checkpointer=InMemorySaver())

    chunks = await read(agent, "debug", config=THREAD)

    kinds = [(chunk["type"], chunk["step"]) for chunk in chunks if chunk["step"] > 0]
    step = ["task", "task_result", "checkpoint"]
    assert kinds == [(kind, number) for number in (1, 2, 3) for kind in step]
    assert all(chunk["timestamp"] for chunk in chunks)


@versions
async def test_tool_events_tell_of_each_call(version: Any) -> None:
    """Events from start to end carry the call's id, and are not delayed until the batch ends."""
    recorder = Recorder()
    tools = [recorder.tool("slow", seconds=0.05), recorder.tool("fast")]

    chunks = await read(agent_with(*tools, version=version), "tools")

    events = [(chunk["event"], chunk["tool_call_id"]) for chunk in chunks]
    assert sorted(events[:2]) == [("tool-started", "call_1"), ("tool-started", "call_2")]
    assert events[2:] == [("tool-finished", "call_2"), ("tool-finished", "call_1")]


async def test_a_tool_event_may_have_parts() -> None:
    """`runtime.emit_output_delta` works as in LangGraph."""

    @tool
    async def count(runtime: ToolRuntime) -> str:
        """Count."""
        for number in range(3):
            runtime.emit_output_delta(str(number))
        return "3"

    chunks = await read(agent_with(count), "tools")

    assert [chunk.get("delta") for chunk in chunks] == [None, "0", "1", "2", None]


async def test_a_failed_call_is_told_as_an_event() -> None:
    """The event has the error's text, although the model gets a message."""
    node = ToolNode([Recorder().tool("work", raises=ValueError("no"))], handle_tool_errors=True)
    agent = create_react_agent(ScriptedModel([calls("work"), "done"]), node)

    chunks = await read(agent, "tools")

    assert [chunk["event"] for chunk in chunks] == ["tool-started", "tool-error"]
    assert chunks[-1]["message"] == "no"


# Several modes, the form of chunks, and refused arguments.


@pytest.mark.parametrize("kind", [list, tuple])
async def test_several_modes_come_in_one_stream_with_their_names(kind: Any) -> None:
    """Each chunk is a pair of mode and data, in the order of events."""
    chunks = await read(agent_with(writing("config")), kind(["updates", "custom", "values"]))

    assert [mode for mode, _ in chunks] == [
        "values", "updates", "values", "custom", "updates", "values", "updates", "values"
    ]  # fmt: skip


async def test_a_list_of_one_mode_names_it_too() -> None:
    """The form of chunks depends on whether a list was passed, and not on its length."""
    chunks = await read(create_react_agent(ScriptedModel(["hi"]), []), ["updates"])

    assert [mode for mode, _ in chunks] == ["updates"]


@pytest.mark.parametrize("mode", ["value", ["updates", "nonsense"], ("tokens",)], ids=repr)
async def test_an_unknown_mode_is_refused(mode: Any) -> None:
    """The error names the unknown mode and the known ones, and nothing runs."""
    model = ScriptedModel(["hi"])
    wrong = {"value", "nonsense", "tokens"} & ({mode} if isinstance(mode, str) else set(mode))

    with pytest.raises(ValueError, match=f"no stream mode '{wrong.pop()}', only .*'checkpoints', 'custom'"):
        await read(create_react_agent(model, []), mode)

    assert model.requests == []


async def test_parts_name_their_mode_and_their_graph() -> None:
    """With `version="v2"` each mode has the same dict, with or without subgraphs."""
    chunks = await read(agent_with(writing("config")), ["custom", "values"], version="v2")

    assert [(part["type"], part["ns"]) for part in chunks] == [
        ("values", ()), ("values", ()), ("custom", ()), ("values", ()), ("values", ())
    ]  # fmt: skip
    assert [part["data"] for part in chunks if part["type"] == "custom"] == [{"from": "config"}]
    assert all(part["interrupts"] == () for part in chunks if part["type"] == "values")


class Settled(AgentStatePydantic):
    mood: str = "calm"


async def test_parts_have_the_state_as_its_schema_says() -> None:
    """The state of a pydantic schema is yielded as an instance."""
    agent = create_react_agent(ScriptedModel(["hi"], loop=True), [], state_schema=Settled)

    parts = await read(agent, "values", version="v2")
    with anyio.fail_after(WAIT):
        output = await agent.ainvoke(QUESTION, version="v2")

    assert all(isinstance(part["data"], Settled) for part in parts)
    assert isinstance(output.value, Settled)


async def test_invoking_with_another_mode_gives_the_chunks() -> None:
    """The result is a list of chunks, in the form that a stream has."""
    with anyio.fail_after(WAIT):
        updates = await agent_with(Recorder().tool("work")).ainvoke(QUESTION, stream_mode="updates")
        pairs = await agent_with(Recorder().tool("work")).ainvoke(QUESTION, stream_mode=["updates", "values"])
        parts = await agent_with(Recorder().tool("work")).ainvoke(QUESTION, stream_mode="updates", version="v2")

    assert [list(chunk) for chunk in updates] == [["agent"], ["tools"], ["agent"]]
    assert [mode for mode, _ in pairs].count("values") == 4
    assert [part["type"] for part in parts] == ["updates"] * 3


@pytest.mark.parametrize("keys", ["messages", ["messages"]], ids=repr)
async def test_output_keys_say_what_chunks_have(keys: Any) -> None:
    """A single key yields its value without the name."""
    agent = create_react_agent(ScriptedModel(["hi"], loop=True), [], state_schema=Settled)

    values = await read(agent, "values", output_keys=keys)
    updates = await read(agent, "updates", output_keys=keys)

    assert all(isinstance(chunk, list) if keys == "messages" else list(chunk) == ["messages"] for chunk in values)
    update = updates[0]["agent"]
    assert [m.content for m in (update if keys == "messages" else update["messages"])] == ["hi"]


@pytest.mark.parametrize("keys", ["nonsense", ["messages", "nonsense"]], ids=repr)
async def test_an_unknown_output_key_is_refused(keys: Any) -> None:
    """Streams and `ainvoke` name the unknown key in their error."""
    agent = create_react_agent(ScriptedModel(["hi"]), [])

    with pytest.raises(ValueError, match="nonsense"):
        await read(agent, "values", output_keys=keys)
    with pytest.raises(ValueError, match="nonsense"):
        await agent.ainvoke(QUESTION, output_keys=keys)


async def test_print_mode_prints_beside_what_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    """Printing does not change the chunks that are yielded."""
    chunks = await read(agent_with(writing("config")), "values", print_mode=["custom", "updates"])
    with anyio.fail_after(WAIT):
        await create_react_agent(ScriptedModel(["hi"]), []).ainvoke(QUESTION, print_mode="values")

    printed = capsys.readouterr().out
    assert len(chunks) == 4
    assert [printed.count(f"[{mode}]") for mode in ("custom", "updates", "values")] == [1, 3, 2]


# Stops and questions.


@tool
def ask(query: str = "") -> str:
    """Ask."""
    return str(interrupt(query or "sure?"))


def interrupts_in(chunks: list[Any]) -> list[Any]:
    return [i.value for chunk in chunks if "__interrupt__" in chunk for i in chunk["__interrupt__"]]


@versions
async def test_questions_come_as_chunks(version: Any) -> None:
    """Updates and values contain all questions, even if other calls have finished since."""
    for mode in ("updates", "values"):
        model = ScriptedModel([calls(("ask", {"query": "a"}), "work", ("ask", {"query": "b"}))])
        agent = create_react_agent(model, [ask, Recorder().tool("work")], checkpointer=InMemorySaver(), version=version)

        assert sorted(interrupts_in(await read(agent, mode, config=THREAD))) == ["a", "b"]


@versions
async def test_tasks_that_wait_say_what_they_asked(version: Any) -> None:
    """The questions are plain dicts, as in LangGraph."""
    chunks = await read(agent_with(ask, version=version), "tasks")

    assert [question["value"] for question in chunks[-1]["interrupts"]] == ["sure?"]
    assert chunks[-1]["result"] == {}


async def test_a_question_is_told_while_its_neighbours_run() -> None:
    """In v2 a question is yielded before the slowest call of the batch has ended."""
    recorder = Recorder()
    agent = agent_with(ask, recorder.tool("stuck", hang=True))

    with anyio.fail_after(WAIT):
        async with aclosing(agent.astream(QUESTION, stream_mode="updates")) as stream:
            async for chunk in stream:
                if "__interrupt__" in chunk:
                    break

    assert recorder.count("finished") == 0


@versions
async def test_a_resumed_stream_tells_only_what_is_new(version: Any) -> None:
    """The stream has the answered call and the reply; a call that had finished is marked as cached."""
    recorder = Recorder()
    agent = agent_with(ask, recorder.tool("work"), checkpointer=InMemorySaver(), version=version)

    await read(agent, "updates", config=THREAD)
    chunks = await read(agent, "updates", Command(resume="yes"), THREAD)

    fresh = [chunk for chunk in chunks if "__metadata__" not in chunk]
    known = [chunk for chunk in chunks if chunk.get("__metadata__") == {"cached": True}]
    contents = [m.content for chunk in fresh for update in chunk.values() for m in update["messages"]]
    assert contents == (["yes", "work", "all is done"] if version == "v1" else ["yes", "all is done"])
    assert len(known) == (0 if version == "v1" else 1)
    assert recorder.count("started") == 1


@pytest.mark.parametrize("option", ["interrupt_before", "interrupt_after"])
async def test_a_stop_at_a_node_is_a_chunk_without_questions(option: str) -> None:
    """The chunk equals LangGraph's."""
    options: dict[str, Any] = {option: ["tools"]}
    agent = agent_with(Recorder().tool("work"), checkpointer=InMemorySaver(), **options)

    assert (await read(agent, "updates", config=THREAD))[-1] == {"__interrupt__": ()}


# While the run goes on.


@pytest.mark.parametrize("mode", ["updates", "values", "messages", "tasks", "tools"])
async def test_chunks_arrive_while_the_run_goes_on(mode: str) -> None:
    """The result of a call is yielded before its neighbour has ended."""
    recorder = Recorder()
    release = anyio.Event()

    @tool
    async def waits() -> str:
        """Wait."""
        await release.wait()
        return "waited"

    agent = agent_with(recorder.tool("work", returns="work's result"), waits)
    with anyio.fail_after(WAIT):
        async for chunk in agent.astream(QUESTION, stream_mode=mode):
            if "work's result" in repr(chunk) or (mode == "values" and len(chunk["messages"]) == 2):
                release.set()

    assert release.is_set()


async def test_a_slow_reader_loses_nothing() -> None:
    """Chunks are queued for the reader, and the run does not wait."""
    recorder = Recorder()
    agent = agent_with(recorder.tool("work"))
    seen: list[Any] = []

    with anyio.fail_after(WAIT):
        async for chunk in agent.astream(QUESTION, stream_mode="values"):
            await recorder.wait_for("finished")
            seen.append(len(chunk["messages"]))

    assert seen == [1, 2, 3, 4]


async def test_chunks_from_many_threads_arrive_once() -> None:
    """Tools in several threads write at the same time."""

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


async def test_two_streams_of_one_agent_do_not_mix() -> None:
    """Each reader gets only the chunks of its own run."""
    agent = create_react_agent(ScriptedModel([lambda messages: f"to {messages[-1].content}"], loop=True), [])
    seen: dict[str, list[str]] = {"a": [], "b": []}

    async def reader(name: str) -> None:
        async for chunk in agent.astream({"messages": [("user", name)]}, stream_mode="updates"):
            seen[name] += [message.content for message in chunk["agent"]["messages"]]

    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reader, "a")
            tasks.start_soon(reader, "b")

    assert seen == {"a": ["to a"], "b": ["to b"]}


# Streams whose reader leaves.


def stuck(recorder: Recorder, *, with_cleanup: bool = False) -> Any:
    """An agent with one call that never ends."""
    cleaned = 0.05 if with_cleanup else 0.0
    tool = recorder.tool("stuck", hang=True, cleanup=cleaned, shield=cleanup)
    return create_react_agent(ScriptedModel([calls("stuck")]), [tool])


Leave = Callable[[Any, Recorder], Awaitable[None]]


async def by_aclose(stream: AsyncGenerator[Any], recorder: Recorder) -> None:
    await anext(stream)
    await recorder.wait_for("started")
    await stream.aclose()


async def by_break(stream: AsyncGenerator[Any], recorder: Recorder) -> None:
    async with aclosing(stream):
        async for _ in stream:
            await recorder.wait_for("started")
            break


async def by_an_error_of_the_reader(stream: AsyncGenerator[Any], recorder: Recorder) -> None:
    with pytest.raises(ZeroDivisionError):
        async with aclosing(stream):
            async for _ in stream:
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
            await recorder.wait_for("started")
    assert scope.cancelled_caught


WAYS = [by_aclose, by_break, by_an_error_of_the_reader, by_cancelling_the_reader, by_a_timeout_of_the_reader]


@pytest.mark.parametrize("leave", WAYS)
@pytest.mark.parametrize("mode", ["updates", ["messages", "tools", "custom"]], ids=["updates", "several"])
async def test_a_stream_that_is_left_has_ended_its_run(leave: Leave, mode: Any) -> None:
    """When the reader goes on, the call has been cancelled and no task of the run is left."""
    recorder, before = Recorder(), live_tasks()

    with anyio.fail_after(WAIT):
        await leave(stuck(recorder).astream(QUESTION, stream_mode=mode), recorder)

        assert recorder.lines == ["stuck started", "stuck cancelled"]
        assert recorder.running == 0
        assert live_tasks() <= before


@pytest.mark.parametrize("leave", WAYS)
async def test_tools_clean_up_before_a_stream_is_gone(leave: Leave) -> None:
    """The clean-up has the grace of the call."""
    recorder = Recorder()

    with anyio.fail_after(WAIT):
        await leave(stuck(recorder, with_cleanup=True).astream(QUESTION), recorder)

        assert recorder.lines == ["stuck started", "stuck cancelled", "stuck cleaned up"]


@pytest.mark.filterwarnings("ignore:Async generator .* was garbage collected:ResourceWarning")
async def test_a_stream_that_is_forgotten_ends_its_run() -> None:
    """The event loop's hook closes the generator; trio warns about such code, for good reason."""
    recorder, before = Recorder(), live_tasks()

    async def forget() -> None:
        async for _ in stuck(recorder).astream(QUESTION):
            await recorder.wait_for("started")
            break

    with anyio.fail_after(WAIT):
        await forget()
        gc.collect()
        await recorder.wait_for("cancelled")
        while not live_tasks() <= before:
            await anyio.sleep(0.001)

    assert recorder.running == 0


async def test_a_stream_that_was_never_begun_runs_nothing() -> None:
    """A generator starts with its first `anext`."""
    model = ScriptedModel(["hi"])
    stream = create_react_agent(model, []).astream(QUESTION)

    await stream.aclose()

    assert model.requests == []


async def test_a_thread_whose_stream_was_left_goes_on() -> None:
    """Finished results are kept, cancelled calls are answered, and the model gets a valid conversation."""
    recorder = Recorder()
    tools = [recorder.tool("work"), recorder.tool("stuck", hang=True)]
    model = ScriptedModel([calls("work", "stuck"), "fine"])
    agent = create_react_agent(model, tools, checkpointer=InMemorySaver())

    with anyio.fail_after(WAIT):
        async with aclosing(agent.astream(QUESTION, THREAD)) as stream:
            async for chunk in stream:
                if "tools" in chunk:
                    break
        result = await agent.ainvoke({"messages": [("user", "never mind")]}, THREAD)

    results = [message for message in result["messages"] if isinstance(message, ToolMessage)]
    assert [message.content for message in results][:1] == ["work"]
    assert len(results) == 2
    assert result["messages"][-1].content == "fine"
    assert recorder.count("started", "work") == 1


async def test_a_model_in_mid_sentence_is_cancelled_too() -> None:
    """The request to the model ends with the stream."""
    before = live_tasks()
    agent = create_react_agent(ScriptedModel(["never said"], delay=60), [])

    with anyio.fail_after(WAIT):
        async with aclosing(agent.astream(QUESTION, stream_mode="values")) as stream:
            async for _ in stream:
                break

        assert live_tasks() <= before


async def test_an_error_comes_after_the_chunks_before_it() -> None:
    """The error arrives once, and not in a group."""
    error = ValueError("no")
    agent = agent_with(Recorder().tool("work", raises=error))
    seen: list[Any] = []

    with anyio.fail_after(WAIT), pytest.raises(ValueError, match="no") as caught:
        async for chunk in agent.astream(QUESTION):
            seen += chunk

    assert seen == ["agent"]
    assert caught.value is error


# Sync code.


def test_sync_code_reads_the_same_chunks() -> None:
    """`stream` yields the chunks that `astream` yields."""
    chunks = list(agent_with(Recorder().tool("work")).stream(QUESTION, stream_mode=["updates", "values"]))

    assert [mode for mode, _ in chunks].count("updates") == 3


def test_a_sync_stream_that_is_left_has_ended_its_run() -> None:
    """The run has ended when `close()` returns."""
    recorder = Recorder()
    stream = stuck(recorder, with_cleanup=True).stream(QUESTION)

    next(stream)
    while not recorder.count("started"):
        threading.Event().wait(0.001)
    stream.close()

    assert recorder.lines == ["stuck started", "stuck cancelled", "stuck cleaned up"]


def test_a_sync_stream_left_by_break_ends_its_run() -> None:
    """After `break`, no reference to the generator is left, so it is closed."""
    recorder = Recorder()

    for _ in stuck(recorder).stream(QUESTION):
        while not recorder.count("started"):
            threading.Event().wait(0.001)
        break

    assert recorder.lines == ["stuck started", "stuck cancelled"]


async def test_a_sync_stream_works_in_the_thread_of_a_loop() -> None:
    """The event loop is blocked meanwhile, as by every sync function."""
    chunks = list(agent_with(Recorder().tool("work")).stream(QUESTION))

    assert [list(chunk) for chunk in chunks] == [["agent"], ["tools"], ["agent"]]


# Graphs inside of tools. LangGraph's graphs run on asyncio only.


def inner_graph() -> Any:
    def say(state: MessagesState) -> Any:
        get_stream_writer()("from inside")
        return {"messages": [("ai", "inner")]}

    builder = StateGraph(MessagesState)
    builder.add_node("say", say)
    builder.add_edge(START, "say")
    return builder.compile()


@tool
async def delegate() -> str:
    """Delegate."""
    result = await inner_graph().ainvoke({"messages": [("user", "hi")]})
    return str(result["messages"][-1].content)


@pytest.mark.backends("asyncio")
@versions
async def test_chunks_of_graphs_inside_of_tools_have_their_namespace(version: Any) -> None:
    """With `subgraphs=True`, the namespace is the path of the task that runs the graph."""
    chunks = await read(agent_with(delegate, version=version), ["updates", "custom"], subgraphs=True)

    own = [(mode, payload) for namespace, mode, payload in chunks if namespace == ()]
    inner = [(namespace, mode) for namespace, mode, _ in chunks if namespace != ()]
    assert [mode for mode, _ in own] == ["updates"] * 3
    assert [mode for _, mode in inner] == ["custom", "updates"]
    assert all(len(namespace) == 1 and namespace[0].startswith("tools:") for namespace, _ in inner)


@pytest.mark.backends("asyncio")
async def test_without_subgraphs_their_chunks_stay_inside() -> None:
    """Without `subgraphs`, only the agent's chunks are yielded, and chunks that a graph writes explicitly."""
    chunks = await read(agent_with(delegate), ["updates", "custom"])

    assert [mode for mode, _ in chunks].count("updates") == 3


@pytest.mark.backends("asyncio")
async def test_an_agent_that_a_node_streams_has_the_namespace_of_the_node() -> None:
    """The namespace is the same as for an agent that is invoked, because its thread is the same."""
    agent = create_react_agent(ScriptedModel(["hi"], loop=True), [])
    namespaces: dict[str, list[Any]] = {"ainvoke": [], "astream": []}

    for way, found in namespaces.items():

        async def node(state: MessagesState, way: str = way) -> Any:
            if way == "ainvoke":
                return await agent.ainvoke(state)
            return [chunk async for chunk in agent.astream(state)][-1]

        builder = StateGraph(MessagesState)
        builder.add_node("clerk", node)
        builder.add_edge(START, "clerk")
        found += [namespace for namespace, _ in await read(builder.compile(), "updates", subgraphs=True) if namespace]

    parts = {
        way: [[part.partition(":")[0] for part in namespace] for namespace in found]
        for way, found in namespaces.items()
    }
    assert parts == {"ainvoke": [["clerk"]], "astream": [["clerk"]]}


# Events.


@pytest.mark.backends("asyncio")
async def test_events_are_those_of_a_runnable() -> None:
    """`astream_events` yields events of the agent, its nodes, each token of its model, and its tools."""
    agent = agent_with(Recorder().tool("work"), name="clerk")

    with anyio.fail_after(WAIT):
        events = [event async for event in agent.astream_events(QUESTION, version="v2")]

    kinds = [(event["event"], event["name"]) for event in events]
    tokens = [event["data"]["chunk"].content for event in events if event["event"] == "on_chat_model_stream"]
    assert kinds[0] == ("on_chain_start", "clerk")
    assert kinds[-1] == ("on_chain_end", "clerk")
    assert "".join(tokens) == "all is done"
    for kind in (("on_chain_start", "agent"), ("on_tool_start", "work"), ("on_tool_end", "work")):
        assert kind in kinds
    [finished] = [event for event in events if event["event"] == "on_tool_end"]
    assert finished["data"]["output"].content == "work"


@pytest.mark.backends("asyncio")
async def test_the_last_event_has_the_state() -> None:
    """The last event contains the result of `ainvoke`."""
    agent = create_react_agent(ScriptedModel(["hi"]), [])

    with anyio.fail_after(WAIT):
        events = [event async for event in agent.astream_events(QUESTION, version="v2")]

    output: Any = events[-1]["data"]["output"]
    messages: list[BaseMessage] = output["messages"]
    assert [message.content for message in messages] == ["go", "hi"]


class Answer(BaseModel):
    """The answer."""

    number: int


async def test_a_structured_response_is_the_last_update() -> None:
    """The structured response is the update of a node of its own."""
    model = ScriptedModel(["done", calls(("Answer", {"number": 1}))])

    chunks = await read(create_react_agent(model, [], response_format=Answer), "updates")

    assert chunks[-1] == {"generate_structured_response": {"structured_response": Answer(number=1)}}


async def test_a_timeout_is_a_chunk_like_every_result() -> None:
    """The stream contains the message that the model will read."""
    node = ToolNode([Recorder().tool("slow", hang=True)], policies={"slow": CallPolicy(timeout=0.05)})
    agent = create_react_agent(ScriptedModel([calls("slow"), "done"]), node)

    chunks = await read(agent, "updates")

    [message] = chunks[1]["tools"]["messages"]
    assert message.status == "error"
