"""A call goes on in the background: the agent works on, and its model reads the result in a message of its own."""

import asyncio
import gc
import threading
import time
import warnings
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import anyio
import pytest
import sniffio
import trio
from anyio import wait_all_tasks_blocked
from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from callboard import (
    CallPolicy,
    Limit,
    ToolNode,
    background_tools,
    cleanup,
    create_agent,
    create_react_agent,
    progress,
    tool_call,
)
from callboard.exceptions import (
    DrainingError,
    DuplicateCallIdWarning,
    ForegroundCallWarning,
    LoopError,
    OpenCallsError,
    StorageError,
)
from callboard.guards import Sanitize
from callboard.middleware import LoopGuard, RequireApproval, Retry, Supervise
from callboard.testing import ScriptedModel, calls
from tests.helpers import watch_loop

from ._savers import AGENTS, AT, FAR, QUESTION, Recording, agent_with, complaint, copy_of, forge

pytestmark = pytest.mark.real_clock
WAIT = 30
BACKGROUND = {"build": CallPolicy(background=True)}


class Build:
    """Tool `build` that waits until the test lets it go on."""

    def __init__(self) -> None:
        self.begun, self.open, self.ended = anyio.Event(), anyio.Event(), anyio.Event()
        self.times = 0

    async def build(self) -> str:
        """Build."""
        self.times += 1
        self.begun.set()
        await self.open.wait()
        self.ended.set()
        return "built"


async def decide() -> str:
    """Ask a person."""
    return str(interrupt("which?"))


def make_function(build: Build) -> Callable[[], Awaitable[str]]:
    """Return the tool as a function, to which a policy can be attached."""

    async def build_it() -> str:
        """Build."""
        return await build.build()

    build_it.__name__ = "build"
    return build_it


def agent_of(make: Any, model: ScriptedModel, tools: list[Any], saver: Any, **options: Any) -> Any:
    """Return an agent whose tools run in the background."""
    names = [tool.__name__ for tool in tools if getattr(tool, "__name__", "decide") != "decide"]
    policy = CallPolicy(background=options.pop("background", True), limit=options.pop("call_limit", None))
    return agent_with(make, model, tools, dict.fromkeys(names, policy), checkpointer=saver, **options)


def results_in(messages: list[BaseMessage]) -> list[str]:
    """Return the results of background calls in a conversation, without the names of the calls."""
    return [message.text.partition("]\n")[2] for message in messages if is_result(message)]


def is_result(message: BaseMessage) -> bool:
    return isinstance(message, HumanMessage) and "background" in message.additional_kwargs.get("callboard", {})


def kinds(messages: list[BaseMessage]) -> list[str]:
    return ["result" if is_result(message) else message.type for message in messages]


async def until_asked(model: ScriptedModel, requests: int) -> None:
    while len(model.requests) < requests:
        await anyio.sleep(0.005)


def ended_tasks() -> dict[int, str]:
    """Return the names of the ended tasks that are in memory, by their numbers."""
    gc.collect()
    tasks = [thing for thing in gc.get_objects() if isinstance(thing, (asyncio.Task, trio.lowlevel.Task))]
    coroutines: list[Any] = [task.coro if isinstance(task, trio.lowlevel.Task) else task.get_coro() for task in tasks]
    return {id(coroutine): coroutine.__qualname__ for coroutine in coroutines if coroutine.cr_frame is None}


def living_tasks() -> int:
    is_trio = sniffio.current_async_library() == "trio"
    return trio.lowlevel.current_statistics().tasks_living if is_trio else len(asyncio.all_tasks())


async def run_in_background(agent: Any, model: ScriptedModel, build: Build) -> list[BaseMessage]:
    """Run the agent, let its call end when the model has been asked again, and return the conversation."""
    run = await agent.start(QUESTION, AT)
    await until_asked(model, 2)
    build.open.set()
    return list((await run.result())["messages"])


@AGENTS
@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_the_agent_works_on_and_reads_the_result_when_it_is_there(make: Any, version: Any) -> None:
    build = Build()
    model = ScriptedModel([calls("build"), "it is being built", "it is built"])
    async with agent_of(make, model, [build.build], InMemorySaver()) as agent:
        run = await agent.start(QUESTION, AT, stream_mode="updates", version=version)
        await until_asked(model, 2)
        assert not run.is_over
        build.open.set()
        result = await run.result()

    messages = (result.value if version == "v2" else result)["messages"]
    assert kinds(messages) == ["human", "ai", "tool", "ai", "result", "ai"]
    assert "goes on in the background" in messages[2].text
    assert results_in(messages) == ["built"]
    assert build.times == 1
    assert all(complaint(request) is None for request in model.requests)


@AGENTS
async def test_a_call_that_ends_in_time_has_an_ordinary_result(make: Any) -> None:
    build = Build()
    build.open.set()
    model = ScriptedModel([calls("build", "build"), "done"])
    agent = agent_of(make, model, [build.build], InMemorySaver(), background=60.0)
    state = await agent.ainvoke(QUESTION, AT)
    assert [message.text for message in state["messages"][2:]] == ["built", "built", "done"]


async def test_without_a_block_the_run_waits_for_the_call() -> None:
    build = Build()
    model = ScriptedModel([calls("build"), "meanwhile", "done"])
    agent = create_react_agent(model, ToolNode([build.build], policies=BACKGROUND), checkpointer=InMemorySaver())

    async def let_go() -> None:
        await until_asked(model, 2)
        build.open.set()

    async with anyio.create_task_group() as group:
        group.start_soon(let_go)
        state = await agent.ainvoke(QUESTION, AT)
    assert results_in(state["messages"]) == ["built"]


@AGENTS
async def test_a_call_in_the_background_keeps_no_ended_task_in_memory(make: Any) -> None:
    """The task of its step has a copy of the step's data, and a call may go on for hours."""
    build = Build()
    model = ScriptedModel([calls("build"), "it is being built", "it is built"])
    earlier_tasks = ended_tasks()
    async with agent_of(make, model, [build.build], InMemorySaver()) as agent:
        run = await agent.start(QUESTION, AT)
        await until_asked(model, 2)
        await wait_all_tasks_blocked()
        names = [name for number, name in ended_tasks().items() if number not in earlier_tasks]
        build.open.set()
        await run.result()
    assert names == []


@AGENTS
async def test_a_run_that_waits_for_a_background_call_has_one_task(make: Any) -> None:
    """Very many runs may wait for hours, and each task takes a few kilobytes."""
    build = Build()
    model = ScriptedModel([lambda messages: "built" if len(messages) > 1 else calls("build")], loop=True)
    async with agent_of(make, model, [build.build], InMemorySaver()) as agent:
        tasks_before, of_run, of_call = living_tasks(), 1, 2
        for number in range(3):
            await agent.start(QUESTION, {"configurable": {"thread_id": str(number)}})
        await until_asked(model, 6)
        with anyio.fail_after(WAIT):
            while living_tasks() != tasks_before + 3 * (of_run + of_call):
                await anyio.sleep(0.005)
        build.open.set()


@AGENTS
async def test_a_message_of_a_person_is_read_while_the_run_waits_for_a_background_call(make: Any) -> None:
    build = Build()
    model = ScriptedModel([calls("build"), "it is being built", "soon", "it is built"])
    async with agent_of(make, model, [build.build], InMemorySaver()) as agent:
        run = await agent.start(QUESTION, AT)
        await until_asked(model, 2)
        assert await agent.say("when?", AT) is run
        await until_asked(model, 3)
        build.open.set()
        messages = (await run.result())["messages"]

    assert kinds(messages) == ["human", "ai", "tool", "ai", "human", "ai", "result", "ai"]


@AGENTS
async def test_the_result_of_a_call_that_outlives_its_run_is_read_by_the_next_run(make: Any) -> None:
    build = Build()

    model = ScriptedModel([calls("build", "decide"), "done", "done"])
    async with agent_of(make, model, [build.build, decide], InMemorySaver()) as agent:
        run = await agent.start(QUESTION, AT)
        assert "__interrupt__" in await run.result()
        build.open.set()
        await build.ended.wait()
        messages = (await agent.ainvoke(Command(resume="this"), AT))["messages"]

    assert results_in(messages) == ["built"]
    assert complaint(messages) is None


@AGENTS
@pytest.mark.parametrize(
    ("fail", "text"),
    [
        (lambda: (_ for _ in ()).throw(ConnectionError("lost")), "lost"),
        (lambda: interrupt("may I?"), "asked a person"),
        (lambda: Command(update={"messages": [ToolMessage("ok", tool_call_id="call_1")], "other": 1}), "command"),
        (lambda: "half \ud800", "half"),
    ],
)
async def test_each_end_of_a_background_call_becomes_one_message(make: Any, fail: Callable[[], Any], text: str) -> None:
    build = Build()

    async def work() -> Any:
        """Work."""
        await build.build()
        return fail()

    model = ScriptedModel([calls("work"), "meanwhile", "done"])
    async with agent_of(make, model, [work], InMemorySaver()) as agent:
        messages = await run_in_background(agent, model, build)

    (result,) = results_in(messages)
    assert text in result
    assert complaint(messages) is None


@AGENTS
async def test_each_background_call_has_a_name_of_its_own(make: Any) -> None:
    """Models reuse the ids of calls; a name that was given twice would lose a result."""

    async def build() -> str:
        """Build."""
        turns = len(model.requests)
        while len(model.requests) == turns:  # the model works on meanwhile
            await anyio.sleep(0.005)
        return "built"

    two_builds = [tool_call("build", "same"), tool_call("build", "same")]
    model = ScriptedModel([two_builds, "meanwhile", "more", two_builds, "meanwhile", *["done"] * 4])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DuplicateCallIdWarning)
        async with agent_of(make, model, [build], InMemorySaver()) as agent:
            messages = (await agent.ainvoke(QUESTION, AT))["messages"]
            messages = (await agent.ainvoke(QUESTION, AT))["messages"]

    answers = [message for message in messages if isinstance(message, ToolMessage)]
    handles = [answer.additional_kwargs["callboard"]["background"] for answer in answers]
    assert sorted(handles[:2]) == ["bg-same", "bg-same-2"]
    assert sorted(handles[2:]) == ["bg-same-3", "bg-same-4"]
    assert results_in(messages) == ["built"] * 4


@AGENTS
async def test_a_call_has_no_name_of_a_call_of_its_reply_that_has_ended(make: Any) -> None:
    """A limit lets the second call begin after the end of the first, whose name no message of the state has yet."""

    async def build() -> str:
        """Build."""
        await anyio.sleep(0.1)  # longer than until the hand-over to the background
        return "built"

    model = ScriptedModel([[tool_call("build", "same")] * 3, *["done"] * 4])
    limit = Limit(concurrency=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DuplicateCallIdWarning)
        async with agent_of(make, model, [build], InMemorySaver(), call_limit=limit) as agent:
            messages = (await agent.ainvoke(QUESTION, AT))["messages"]

    assert results_in(messages) == ["built"] * 3


async def test_a_message_that_a_tool_makes_itself_is_told_under_the_name_of_the_tool() -> None:
    async def build(call_id: Annotated[str, InjectedToolCallId]) -> ToolMessage:
        """Build."""
        await until_asked(model, 2)
        return ToolMessage("built", tool_call_id=call_id)

    model = ScriptedModel([calls("build"), "meanwhile", "done"])
    messages = (await agent_of(create_react_agent, model, [build], InMemorySaver()).ainvoke(QUESTION, AT))["messages"]

    assert "of the tool 'build']" in next(message.text for message in messages if is_result(message))


@AGENTS
@pytest.mark.parametrize("block", [True, False], ids=["block", "no block"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
async def test_an_error_for_the_program_ends_the_run_of_a_background_call(make: Any, block: bool, error: Any) -> None:
    """On trio, Ctrl-C is raised in the code that runs: a call that kept it to itself would let the program go on."""

    async def build() -> str:
        """Build."""
        await anyio.sleep(0.01)
        raise error

    model = ScriptedModel([calls("build"), "meanwhile", "I see."])
    agent = agent_of(make, model, [build], InMemorySaver())
    async with agent if block else nullcontext():
        with pytest.raises(error):
            await agent.ainvoke(QUESTION, AT)
    messages = (await agent.ainvoke(None, AT))["messages"]

    assert results_in(messages) == [f"Error: {error.__name__}"]


async def test_an_error_for_the_program_is_raised_at_the_end_of_a_block_without_a_run() -> None:
    finished = anyio.Event()

    async def build() -> str:
        """Build."""
        await finished.wait()
        raise KeyboardInterrupt

    model = ScriptedModel([calls("build"), calls("decide")])
    agent = agent_of(create_react_agent, model, [build, decide], InMemorySaver())
    with pytest.raises(KeyboardInterrupt):
        async with agent:
            assert "__interrupt__" in await agent.ainvoke(QUESTION, AT)
            finished.set()


@AGENTS
async def test_a_call_of_a_killed_process_has_a_result_if_its_step_had_not_ended(make: Any) -> None:
    """The conversation has the answer to the call only when the step ends, and the run looks for lost calls before."""
    build, saver, may_end = Build(), InMemorySaver(), anyio.Event()

    async def work() -> str:
        """Work."""
        await may_end.wait()
        return "worked"

    tools = [CallPolicy(background=True)(make_function(build)), work]
    model = ScriptedModel([calls("build", "work"), "meanwhile", "done"])
    async with make(model, tools, checkpointer=saver) as agent:
        run = await agent.start(QUESTION, AT)
        while "goes on in the background" not in str(dict(saver.writes)):
            await anyio.sleep(0.005)
        later = copy_of(saver)
        build.open.set()
        may_end.set()
        await run.result()

    async with make(ScriptedModel(["I see", "done"]), tools, checkpointer=later) as agent:
        messages = (await agent.ainvoke(None, AT))["messages"]

    (result,) = results_in(messages)
    assert "unknown" in result
    assert build.times == 1


class Drain:
    """Drain of an agent in the event loop of another thread; `agent` is set before it is needed."""

    def __init__(self) -> None:
        self.agent: Any = None
        self._has_begun = threading.Event()

    async def begin(self) -> None:
        """Begin the drain, once and only if there is an agent; return when it has begun."""
        if self.agent is not None and not self._has_begun.is_set():
            threading.Thread(target=anyio.run, args=(self._drain,)).start()
            assert await anyio.to_thread.run_sync(self._has_begun.wait, WAIT)

    async def _drain(self) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self.agent.drain)
            await wait_all_tasks_blocked()
            self._has_begun.set()


class DrainedSaver(InMemorySaver):
    """Saver with the data of another one; when it reads a thread, a drain begins."""

    def __init__(self, stored: InMemorySaver, drain: Drain) -> None:
        super().__init__()
        self.storage, self.writes, self.blobs = stored.storage, stored.writes, stored.blobs
        self.drain = drain

    async def aget_tuple(self, config: Any) -> Any:
        await self.drain.begin()
        return await super().aget_tuple(config)


class DrainedHandler(AsyncCallbackHandler):
    """Callback handler: when a run, or one of its nodes, is about to start, a drain begins."""

    raise_error = True

    def __init__(self, drain: Drain, node: str | None = None) -> None:
        self.drain = drain
        self.node = node

    async def on_chain_start(self, *args: Any, **options: Any) -> None:
        if self.node in (None, options["name"]):
            await self.drain.begin()


async def kill_with_call(make: Any, tool: Any, build: Build) -> InMemorySaver:
    """Return the database of an agent that was killed while its call was in the background."""
    saver, model = InMemorySaver(), ScriptedModel([calls("build"), "meanwhile", "done"])
    async with make(model, [tool], checkpointer=saver) as agent:
        run = await agent.start(QUESTION, AT)
        await until_asked(model, 2)
        while (await agent.aget_state(AT)).next:
            await anyio.sleep(0.005)
        later = copy_of(saver)
        build.open.set()
        await run.result()
    return later


@AGENTS
async def test_a_call_of_a_killed_process_is_told_as_unknown_once(make: Any) -> None:
    build = Build()
    tool = CallPolicy(background=True)(make_function(build))
    saver = await kill_with_call(make, tool, build)
    async with make(ScriptedModel(["I see", "done", "more"]), [tool], checkpointer=saver) as agent:
        await agent.ainvoke(None, AT)
        messages = (await agent.ainvoke(QUESTION, AT))["messages"]

    (result,) = results_in(messages)
    assert "unknown" in result
    assert build.times == 1


@AGENTS
async def test_an_idempotent_call_of_a_killed_process_runs_again(make: Any) -> None:
    build = Build()
    tool = CallPolicy(background=True, idempotent=True)(make_function(build))
    saver = await kill_with_call(make, tool, build)
    async with make(ScriptedModel(["I see", "done", "more"]), [tool], checkpointer=saver) as agent:
        messages = (await agent.ainvoke(None, AT))["messages"]

    assert results_in(messages) == ["built"]
    assert build.times == 2


@AGENTS
@pytest.mark.parametrize("begins_at_read", [True, False])
async def test_a_run_that_a_drain_keeps_from_repeating_a_lost_call_ends_as_drained(
    make: Any, begins_at_read: bool
) -> None:
    """A run that ends without an error has no call that is open."""
    build, drain = Build(), Drain()
    tool = CallPolicy(background=True, idempotent=True)(make_function(build))
    saver = await kill_with_call(make, tool, build)
    saver = DrainedSaver(saver, drain) if begins_at_read else saver
    agent = drain.agent = make(ScriptedModel(["I see", "done"]), [tool], checkpointer=saver)
    with pytest.raises(DrainingError):
        await agent.ainvoke(None, {**AT, "callbacks": [DrainedHandler(drain)]})
    assert build.times == 1

    async with agent:
        messages = (await agent.ainvoke(None, AT))["messages"]
    assert results_in(messages) == ["built"]
    assert build.times == 2


@AGENTS
async def test_a_run_that_is_drained_tells_of_a_lost_call_that_may_not_be_repeated(make: Any) -> None:
    """The run may work on within the time of the drain, and needs no call for this."""
    build, drain = Build(), Drain()
    tool = CallPolicy(background=True)(make_function(build))
    saver = DrainedSaver(await kill_with_call(make, tool, build), drain)
    agent = drain.agent = make(ScriptedModel(["I see", "done"]), [tool], checkpointer=saver)
    messages = (await agent.ainvoke(None, AT))["messages"]
    (result,) = results_in(messages)
    assert "unknown" in result
    assert build.times == 1


async def prepare_restart(make: Any, build: Build) -> Any:
    """Return a builder of agents with the database of one that was killed while its call was in the background."""
    tool = CallPolicy(background=True, on_unknown="ask")(make_function(build))
    later = await kill_with_call(make, tool, build)
    return lambda model: make(model, [tool], checkpointer=later)


@AGENTS
@pytest.mark.parametrize(
    ("answer", "result", "times"),
    [
        ({"type": "accept"}, "built", 2),
        ({"type": "response", "args": "it was built"}, "it was built", 1),
        ({"type": "ignore"}, "Error: this call was begun, and did not come to its end", 1),
    ],
)
async def test_a_person_decides_about_a_call_of_a_killed_process(
    make: Any, answer: Any, result: str, times: int
) -> None:
    build = Build()
    restart = await prepare_restart(make, build)
    model = ScriptedModel(["I see", "done"])
    async with restart(model) as agent:
        [question] = (await agent.ainvoke(None, AT))["__interrupt__"]
        assert question.value[0]["action_request"] == {"action": "build", "args": {}}
        for _ in range(2):  # it stays open until it is answered, also in other processes
            async with restart(model) as other_agent:
                assert (await other_agent.ainvoke(None, AT))["__interrupt__"] == [question]
                state = await other_agent.aget_state(AT)
                assert (state.interrupts, state.next) == ((question,), ("tools",))
        with pytest.raises(OpenCallsError):
            await agent.say("hello", AT, start=True)
        assert model.requests == []
        messages = (await agent.ainvoke(Command(resume={question.id: answer}), AT))["messages"]
        assert (await agent.aget_state(AT)).interrupts == ()
        later_messages = (await agent.ainvoke(QUESTION, AT))["messages"]

    assert [text[: len(result)] for text in results_in(messages)] == [result]
    assert len(results_in(later_messages)) == 1
    assert build.times == times
    assert all(complaint(request) is None for request in model.requests)


@AGENTS
async def test_a_person_is_asked_again_about_a_lost_call_that_a_drain_has_kept_from_running(make: Any) -> None:
    build, drain = Build(), Drain()
    tool = CallPolicy(background=True, on_unknown="ask")(make_function(build))
    saver = DrainedSaver(await kill_with_call(make, tool, build), drain)
    agent = make(ScriptedModel(["I see", "done"]), [tool], checkpointer=saver)
    [question] = (await agent.ainvoke(None, AT))["__interrupt__"]
    drain.agent = agent
    with pytest.raises(DrainingError):
        await agent.ainvoke(Command(resume={question.id: {"type": "accept"}}), AT)
    assert build.times == 1

    async with agent:
        [question] = (await agent.ainvoke(None, AT))["__interrupt__"]
        messages = (await agent.ainvoke(Command(resume={question.id: {"type": "accept"}}), AT))["messages"]
    assert results_in(messages) == ["built"]
    assert build.times == 2


@AGENTS
async def test_new_input_asks_about_a_call_of_a_killed_process_and_new_input_then_gives_the_question_up(
    make: Any,
) -> None:
    build = Build()
    restart = await prepare_restart(make, build)
    model = ScriptedModel(["I see"])
    async with restart(model) as agent:
        result = await agent.ainvoke({"messages": [("user", "hello")]}, AT)
        assert [question.value[0]["action_request"]["action"] for question in result["__interrupt__"]] == ["build"]
        assert model.requests == []
        messages = (await agent.ainvoke({"messages": [("user", "never mind")]}, AT))["messages"]

    assert kinds(messages)[-4:] == ["human", "result", "human", "ai"]
    assert "unknown" in results_in(messages)[0]
    assert build.times == 1
    assert complaint(messages) is None


@AGENTS
async def test_a_drain_ends_a_background_call_and_the_next_run_reads_that_it_is_unknown(make: Any) -> None:
    build, saver = Build(), InMemorySaver()
    model = ScriptedModel([calls("build"), "meanwhile", "done"])
    async with agent_of(make, model, [build.build], saver) as agent:
        run = await agent.start(QUESTION, AT)
        await until_asked(model, 2)
        drained = await agent.drain(0.05)
        with pytest.raises(DrainingError):
            await run.result()
    assert [unknown.tool for unknown in drained.unknown] == ["build"]

    async with agent:
        messages = (await agent.ainvoke(None, AT))["messages"]
    (result,) = results_in(messages)
    assert "unknown" in result


@AGENTS
async def test_a_background_call_that_ends_with_a_result_while_it_is_drained_keeps_it(make: Any) -> None:
    """The result is known, so that the next run must not read that it is unknown."""
    build, saver = Build(), InMemorySaver()

    async def finish() -> str:
        """Build."""
        with cleanup():
            return await build.build()

    model = ScriptedModel([calls("finish"), "meanwhile", "done"])
    async with agent_of(make, model, [finish], saver) as agent:
        run = await agent.start(QUESTION, AT)
        await until_asked(model, 2)
        async with anyio.create_task_group() as group:
            group.start_soon(agent.drain, 0.0)
            with pytest.raises(DrainingError):
                await run.result()
            build.open.set()

    async with agent:
        messages = (await agent.ainvoke(None, AT))["messages"]
    assert results_in(messages) == ["built"]


async def test_a_person_approves_a_background_call_in_the_foreground() -> None:
    build = Build()
    node = ToolNode([build.build], policies=BACKGROUND, middleware=[RequireApproval(["build"])])
    model = ScriptedModel([calls("build"), "meanwhile", "done"])
    async with create_react_agent(model, node, checkpointer=InMemorySaver()) as agent:
        state = await agent.ainvoke(QUESTION, AT)
        assert build.times == 0
        question = state["__interrupt__"][0]
        run = await agent.start(Command(resume={question.id: [{"type": "accept"}]}), AT)
        await until_asked(model, 2)
        build.open.set()
        messages = (await run.result())["messages"]
    assert results_in(messages) == ["built"]


async def test_the_middleware_of_a_call_sees_its_late_result() -> None:
    build, attempts = Build(), 0

    async def work() -> str:
        """Work."""
        nonlocal attempts
        attempts += 1
        await build.build()
        if attempts == 1:
            raise ConnectionError("lost")
        return "bu\u202eilt"

    policies = {"work": CallPolicy(background=True, idempotent=True)}
    node = ToolNode([work], policies=policies, middleware=[Sanitize(), Retry(initial=0.01)])
    model = ScriptedModel([calls("work"), "meanwhile", "done"])
    async with create_react_agent(model, node, checkpointer=InMemorySaver()) as agent:
        messages = await run_in_background(agent, model, build)
    (result,) = results_in(messages)
    assert attempts == 2
    assert result == "built"


@AGENTS
async def test_a_model_looks_at_its_background_calls_and_cancels_one(make: Any) -> None:
    build = Build()

    async def test() -> str:
        """Test."""
        progress("page 3 of 7")
        return await build.build()

    def cancel(messages: list[BaseMessage]) -> Any:
        handle = messages[2].additional_kwargs["callboard"]["background"]
        return calls(("cancel_background_call", {"handle": handle, "reason": "too slow"}), "background_calls")

    unknown = calls(("cancel_background_call", {"handle": "bg-other"}))
    model = ScriptedModel([calls("test"), calls("background_calls"), unknown, cancel, "done", "I see"])
    tools = [test, *background_tools()]
    async with agent_of(make, model, tools, InMemorySaver()) as agent:
        messages = (await (await agent.start(QUESTION, AT)).result())["messages"]

    texts = [message.text for message in messages if isinstance(message, ToolMessage)][1:]
    handle = messages[2].additional_kwargs["callboard"]["background"]
    assert texts[0].startswith(f"- {handle}: test, running, for 0 s: page 3 of 7")
    assert texts[1] == f"Error: there is no background call 'bg-other'; open are: {handle}"
    assert texts[2:] == [f"{handle} was cancelled.", texts[3]]
    (result,) = results_in(messages)
    assert "too slow" in result
    assert complaint(messages) is None


@AGENTS
async def test_a_loop_through_background_calls_is_stopped(make: Any) -> None:
    async def poll() -> str:
        """Poll."""
        return "nothing"

    model = ScriptedModel([calls("poll")], loop=True)
    async with agent_of(make, model, [poll], InMemorySaver(), loop_guard=LoopGuard(nudge=2, refuse=4, stop=8)) as agent:
        with pytest.raises(LoopError):
            await agent.ainvoke(QUESTION, AT)


async def test_a_background_call_elsewhere_ends_with_its_batch_and_one_warning() -> None:
    async def build() -> str:
        """Build."""
        return "built"

    node = ToolNode([build], policies=BACKGROUND)
    with pytest.warns(ForegroundCallWarning, match="background"):
        messages = await node.ainvoke({"messages": [calls("build")]})
    assert [message.text for message in messages["messages"] if isinstance(message, ToolMessage)] == ["built"]
    await node.ainvoke({"messages": [calls("build")]})


@AGENTS
async def test_a_result_keeps_its_artifact_where_a_tool_message_has_it(make: Any, tmp_path: Path) -> None:
    """The program reads the rows there, as it does of a call in the foreground; the model does not."""

    @tool(response_format="content_and_artifact")
    async def query() -> tuple[str, list[int]]:
        """Query."""
        await anyio.sleep(0.01)
        return "2 rows", [1, 2]

    policies = {"query": CallPolicy(background=True)}
    model, url = ScriptedModel([calls("query"), "meanwhile", "done"]), f"sqlite:///{tmp_path / 'db'}"
    async with agent_with(make, model, [query], policies, checkpointer=url) as agent:
        messages = (await agent.ainvoke(QUESTION, AT))["messages"]
        stored = (await agent.aget_state(AT)).values["messages"]

    for conversation in (messages, stored):
        (result,) = filter(is_result, conversation)
        assert (result.text.partition("]\n")[2], result.artifact) == ("2 rows", [1, 2])


async def test_a_result_with_an_artifact_that_no_database_stores_is_told_as_lost(tmp_path: Path) -> None:
    """As in the foreground: the call has its one result."""

    @tool(response_format="content_and_artifact")
    async def query() -> tuple[str, object]:
        """Query."""
        await anyio.sleep(0.01)
        return "2 rows", threading.Lock()

    node = ToolNode([query], policies={"query": CallPolicy(background=True)})
    model = ScriptedModel([calls("query"), "meanwhile", "done"])
    async with create_react_agent(model, node, checkpointer=f"sqlite:///{tmp_path / 'db'}") as agent:
        messages = (await agent.ainvoke(QUESTION, AT))["messages"]

    (result,) = filter(is_result, messages)
    assert "the database cannot store it: artifact is a value of the type _thread.lock. Do not" in result.text
    assert str(tmp_path) not in result.text
    assert result.additional_kwargs["callboard"]["status"] == "error"
    assert result.artifact is None


@pytest.mark.parametrize("is_live", [True, False], ids=["a run waits", "a person is asked"])
async def test_a_result_outlasts_a_moment_in_which_the_database_is_away(is_live: bool) -> None:
    """The model read that the result is lost, because the database cannot store it."""

    class AwaySaver(InMemorySaver):
        def put_writes(self, *args: Any, **kwargs: Any) -> None:
            if is_away.is_set():
                raise StorageError("The database", "is away")
            super().put_writes(*args, **kwargs)

        async def aput_writes(self, *args: Any, **kwargs: Any) -> None:
            self.put_writes(*args, **kwargs)

    async def build() -> str:
        """Build."""
        await is_finished.wait()
        is_away.set()
        return "built"

    def decide() -> str:
        """Decide."""
        return str(interrupt("?"))

    is_finished, is_away = anyio.Event(), threading.Event()
    # The run may ask the model about the result before a write fails: then that reply is lost, and asked for again.
    model = ScriptedModel([calls("build", *([] if is_live else ["decide"])), "meanwhile", "done", "done"])
    async with agent_of(create_react_agent, model, [build, decide], AwaySaver()) as agent:
        run = await agent.start(QUESTION, AT)
        if is_live:
            await until_asked(model, 2)
        else:
            await run.result()
        is_finished.set()
        while not is_away.is_set():
            await anyio.sleep(0.005)
        await anyio.sleep(0.3)
        is_away.clear()
        while agent.running():
            await anyio.sleep(0.005)
        if is_live:
            with pytest.raises(StorageError):
                await run.result()
        messages = (await agent.ainvoke(None if is_live else Command(resume="yes"), AT))["messages"]
    assert results_in(messages) == ["built"]


async def test_a_result_tells_how_its_call_has_ended() -> None:
    """A program that counts timeouts by the message counts those of background calls, too."""

    async def hang() -> None:
        """Hang."""
        await anyio.sleep_forever()

    node = ToolNode([hang], policies={"hang": CallPolicy(background=True, timeout=0.05)})
    async with create_react_agent(
        ScriptedModel([calls("hang"), "meanwhile", "done"]), node, checkpointer=InMemorySaver()
    ) as agent:
        (result,) = filter(is_result, (await agent.ainvoke(QUESTION, AT))["messages"])

    facts = result.additional_kwargs["callboard"]
    assert (facts["ended"], facts["status"], facts["background"]) == ("timeout", "error", result.id)


async def test_a_call_that_begins_during_a_drain_ends_with_its_batch_without_a_warning() -> None:
    """The warning says that the agent has no checkpointer, or is part of a call: neither is true."""

    async def build() -> str:
        """Build."""
        return "built"

    class SlowSaver(InMemorySaver):
        async def aget_tuple(self, config: Any) -> Any:
            is_opening.set()
            while not is_draining.is_set():  # in another thread, on trio
                await anyio.sleep(0.005)
            return await super().aget_tuple(config)

    async def drain() -> None:
        while not is_opening.is_set():
            await anyio.sleep(0.005)
        group.start_soon(agent.drain)
        await wait_all_tasks_blocked()
        is_draining.set()

    is_opening, is_draining = threading.Event(), threading.Event()
    agent = agent_of(create_react_agent, ScriptedModel([calls("build"), "done"]), [build], SlowSaver())
    with warnings.catch_warnings():
        warnings.simplefilter("error", ForegroundCallWarning)
        async with anyio.create_task_group() as group:
            group.start_soon(drain)
            messages = (await agent.ainvoke(QUESTION, AT))["messages"]
    assert kinds(messages) == ["human", "ai", "tool", "ai"]
    assert messages[2].text == "built"


async def test_only_calls_of_tools_go_on_in_the_background() -> None:
    with pytest.raises(ValueError, match="background is for calls of tools"):
        create_agent(ScriptedModel([]), [], model_policy=CallPolicy(background=True))
    with pytest.raises(ValueError, match=r"CallPolicy\(background=...\)"):
        CallPolicy(background=-1.0)
    with pytest.raises(TypeError, match=r"CallPolicy\(background=...\)"):
        CallPolicy(background=False)
    with pytest.warns(ForegroundCallWarning, match="'build'"):
        Supervise(policies={"build": CallPolicy(background=True)})


@AGENTS
async def test_a_run_that_is_drained_before_its_background_call_ends_as_drained(make: Any) -> None:
    """The call did not begin, and the thread goes on later."""
    build, agents = Build(), list[Any]()
    build.open.set()

    async def work() -> str:
        """Work."""
        with anyio.move_on_after(0.05):
            await agents[0].drain()
        return "worked"

    model = ScriptedModel([calls("work"), calls("build"), "done", "done"])
    agents.append(agent_with(make, model, [work, build.build], BACKGROUND, checkpointer=InMemorySaver()))
    with pytest.raises(DrainingError):
        await agents[0].ainvoke(QUESTION, AT)
    assert build.times == 0

    async with agents[0]:
        messages = (await agents[0].ainvoke(None, AT))["messages"]
    assert sum("built" in message.text for message in messages) == build.times == 1


async def test_a_call_that_a_drain_has_refused_can_no_longer_be_cancelled() -> None:
    """Its run ends as drained and the next one runs it, so it must not be reported as cancelled."""
    build, drain, may_end = Build(), Drain(), anyio.Event()

    async def work() -> str:
        """Work."""
        await may_end.wait()
        return "worked"

    build.open.set()
    node = ToolNode([build.build, work], policies=BACKGROUND, on_error="finish")
    model = ScriptedModel([calls("build", "work"), "done", "I see"])
    agent = drain.agent = create_react_agent(model, node, checkpointer=InMemorySaver())
    async with anyio.create_task_group() as group:

        async def run() -> None:
            with pytest.raises(DrainingError):
                await agent.ainvoke(QUESTION, {**AT, "callbacks": [DrainedHandler(drain, "tools")]})

        group.start_soon(run)
        while [call.call_id for call in agent.running()] != ["call_2"]:
            await anyio.sleep(0.005)
        assert not await agent.cancel("call_1", "enough")
        may_end.set()

    async with agent:
        messages = (await agent.ainvoke(None, AT))["messages"]
    assert sum("built" in message.text for message in messages) == build.times == 1


@AGENTS
async def test_a_call_that_was_cancelled_before_a_drain_refuses_it_ends_as_cancelled(make: Any) -> None:
    build, drain, cancelled = Build(), Drain(), list[bool]()

    class Cancel(AsyncCallbackHandler):
        raise_error = True

        async def on_chain_start(self, *args: Any, **options: Any) -> None:
            if options["name"] == "tools":
                await drain.begin()
                cancelled.append(await agent.cancel("call_1", "enough"))

    tool = CallPolicy(background=True)(make_function(build))
    model = ScriptedModel([calls("build"), "done"])
    agent = drain.agent = make(model, [tool], checkpointer=InMemorySaver())
    messages = (await agent.ainvoke(QUESTION, {**AT, "callbacks": [Cancel()]}))["messages"]
    assert cancelled == [True]
    assert kinds(messages) == ["human", "ai", "tool", "ai"]
    assert "enough" in messages[2].text
    assert build.times == 0


MANY = pytest.mark.parametrize("number", [200, pytest.param(2_000, marks=pytest.mark.exhaustive)])


def longest_hold(number: int) -> float:
    """Return the seconds that so many results may hold the loop. One turn of asyncio's loop runs all that ended."""
    return max(0.5, number * 0.001)


def builds(number: int) -> list[Any]:
    return [tool_call("build", f"call-{index}") for index in range(number)]


@MANY
async def test_results_of_one_moment_share_writes_and_a_request_and_leave_the_loop_free(number: int) -> None:
    """One write, and at last one request to the model, for each result would take minutes, and cost a fortune."""
    build, saver = Build(), Recording()
    model = ScriptedModel([builds(number), *["done"] * 10])
    async with agent_of(create_react_agent, model, [build.build], saver) as agent:
        run = await agent.start(QUESTION, AT)
        await until_asked(model, 2)
        writes = saver.commits
        async with watch_loop() as hold:
            build.open.set()
            messages = (await run.result())["messages"]

    assert results_in(messages) == ["built"] * number
    assert len({message.id for message in messages}) == len(messages)
    assert len(model.requests) <= 5
    assert saver.commits - writes <= 30
    assert hold.longest < longest_hold(number)


@MANY
async def test_results_of_one_moment_without_a_live_run_share_an_update_of_their_thread(number: int) -> None:
    """Reading the thread for each of them would hold the event loop for minutes."""
    build, saver = Build(), Recording()

    model = ScriptedModel([[*builds(number), tool_call("decide", "ask")], "done"])
    async with agent_of(create_react_agent, model, [build.build, decide], saver) as agent:
        assert "__interrupt__" in await (await agent.start(QUESTION, AT)).result()
        writes = saver.commits
        async with watch_loop() as hold:
            build.open.set()
            while saver.kinds.count("said") < number:
                await anyio.sleep(0.005)
        assert saver.commits - writes <= 30
        messages = (await agent.ainvoke(Command(resume="this"), AT))["messages"]

    assert results_in(messages) == ["built"] * number
    assert complaint(messages) is None
    assert hold.longest < longest_hold(number)


async def test_a_thread_that_is_busy_elsewhere_is_tried_once_for_all_results() -> None:
    build, reads = Build(), list[str]()

    class Counting(InMemorySaver):
        def get_tuple(self, config: Any) -> Any:
            reads.append(config["configurable"]["thread_id"])
            return super().get_tuple(config)

    saver = Counting()
    model = ScriptedModel([[*builds(50), tool_call("decide", "ask")], "done"])
    async with agent_of(create_react_agent, model, [build.build, decide], saver) as agent:
        assert "__interrupt__" in await (await agent.start(QUESTION, AT)).result()
        forge(saver, AT, {"kind": "hold", "holder": {**FAR, "until": time.time() + 1_000.0}})
        reads.clear()
        build.open.set()
        await anyio.sleep(0.5)  # less than the pause before the results are tried again
        assert 1 <= len(reads) <= 3
        forge(saver, AT, {"kind": "leave"})
    messages = (await agent.ainvoke(Command(resume="this"), AT))["messages"]

    assert results_in(messages) == ["built"] * 50


async def test_a_message_that_comes_while_a_result_is_stored_without_a_run_starts_a_run() -> None:
    build, is_stored, storing = Build(), threading.Event(), threading.Event()

    class Slow(Recording):
        def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
            if build.open.is_set() and not storing.is_set():
                storing.set()
                is_stored.wait(WAIT)
            super().put_writes(config, writes, task_id, task_path)

    model = ScriptedModel([calls("build", "decide"), "done"])
    async with agent_of(create_react_agent, model, [build.build, decide], Slow()) as agent:
        assert "__interrupt__" in await (await agent.start(QUESTION, AT)).result()
        build.open.set()
        while not storing.is_set():
            await anyio.sleep(0.005)

        async def let_go() -> None:
            await anyio.sleep(0.05)
            is_stored.set()

        async with anyio.create_task_group() as group:
            group.start_soon(let_go)
            run = await agent.say("never mind", AT, start=True, give_up=True)
        messages = (await run.result())["messages"]

    assert results_in(messages) == ["built"]
    assert kinds(messages)[-3:] == ["result", "human", "ai"]
