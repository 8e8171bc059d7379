"""`Supervise`: LangChain's own agent with callboard's supervision around each tool call.

`create_agent` runs on asyncio only, and LangChain starts threads around every middleware, so the clock is real.
"""

import asyncio
import contextvars
import subprocess
import sys
import threading
from functools import partial
from typing import Annotated, Any

import anyio
import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    AgentState,
    HumanInTheLoopMiddleware,
    ToolErrorMiddleware,
    ToolRetryMiddleware,
    hook_config,
)
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from callboard import (
    AbandonedThreadWarning,
    CallContext,
    CallEvent,
    CallPolicy,
    CallTimeoutError,
    InjectedState,
    Limit,
    ToolRuntime,
    observe,
    progress,
    remaining,
    tool_call,
)
from callboard.middleware import Retry, Supervise, note
from callboard.testing import Recorder, ScriptedModel, calls
from tests import helpers
from tests.engines._fake import FakeEngine
from tests.helpers import contents, make, make_sync

pytestmark = [pytest.mark.backends("asyncio"), pytest.mark.real_clock]

WAIT = 10
GO = {"messages": [("user", "go")]}
THREAD: RunnableConfig = {"configurable": {"thread_id": "1"}}

both_doors = pytest.mark.parametrize("door", ["ainvoke", "invoke"])
sync_too = pytest.mark.parametrize("door", ["ainvoke", pytest.param("invoke", marks=pytest.mark.exhaustive)])
"""For promises that have a like with `both_doors`: sync code is tested in the exhaustive run."""


def agent_of(tools: list[Any], *middleware: AgentMiddleware, asks: Any, **options: Any) -> Any:
    """Return an agent whose model calls tools once and then ends."""
    return create_agent(ScriptedModel([calls(*asks), "done"]), tools, middleware=middleware, **options)


async def run(agent: Any, door: str = "ainvoke", input: Any = None, config: RunnableConfig | None = None) -> Any:
    if door == "ainvoke":
        return await agent.ainvoke(input or GO, config)
    return await anyio.to_thread.run_sync(agent.invoke, input or GO, config)


def agent_with_thread(tools: list[Any], *middleware: AgentMiddleware, asks: Any) -> Any:
    """Return an agent that keeps its conversation, so that its questions can be answered."""
    return agent_of(tools, *middleware, asks=asks, checkpointer=InMemorySaver())


async def resume_with(agent: Any, door: str, answer: Any) -> Any:
    return await run(agent, door, Command(resume=answer), THREAD)


def tool_of(door: str, recorder: Recorder, name: str, **options: Any) -> BaseTool:
    return recorder.tool(name, **options) if door == "ainvoke" else recorder.sync_tool(name, **options)


def answers(state: Any) -> list[ToolMessage]:
    return [message for message in state["messages"] if isinstance(message, ToolMessage)]


def endings(state: Any) -> list[str | None]:
    return [helpers.ending_of(message) for message in answers(state)]


@both_doors
async def test_a_slow_call_times_out_and_its_neighbours_finish(recorder: Recorder, door: str) -> None:
    """Promise 2 in LangChain's agent: each call has a message, and the model continues."""
    tools = [tool_of(door, recorder, "fast"), tool_of(door, recorder, "slow", seconds=0.45)]
    supervise = Supervise(timeout=30.0, policies={"slow": CallPolicy(timeout=0.4)})
    state = await run(agent_of(tools, supervise, asks=["fast", "slow", "fast"]), door)
    assert endings(state) == [None, "timeout", None]
    assert [message.status for message in answers(state)] == ["success", "error", "success"]
    assert answers(state)[1].content == "Error: Tool 'slow' did not finish within its timeout of 0.4 s."
    assert state["messages"][-1].content == "done"


VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


@sync_too
async def test_a_tool_has_its_context_and_can_ask_what_is_left(door: str) -> None:
    """Context variables and `remaining()` pass through LangChain's threads and callboard's."""

    def ask() -> str:
        return f"{VARIABLE.get()}, {0 < remaining() <= 30}"

    async def ask_async() -> str:
        return ask()

    tools = [make_sync(ask), make(ask_async)] if door == "ainvoke" else [make_sync(ask)]
    token = VARIABLE.set("outside")
    try:
        state = await run(
            agent_of(tools, Supervise(timeout=30.0), asks=[asked_tool.name for asked_tool in tools]), door
        )
    finally:
        VARIABLE.reset(token)

    assert set(contents(state)) == {"outside, True"}


async def test_errors_are_handled_as_in_a_tool_node() -> None:
    """A timeout is a message unless no error is handled."""
    for handling in (True, (ValueError,)):
        supervise = Supervise(timeout=0.05, handle_tool_errors=handling)
        agent = agent_of([Recorder().tool("slow", hang=True)], supervise, asks=["slow"])
        assert endings(await run(agent)) == ["timeout"]
    boom = Recorder().tool("boom", raises=ValueError("no"))
    agent = agent_of([boom], Supervise(handle_tool_errors="!"), asks=["boom"])
    assert contents(await run(agent)) == ["!"]
    supervise = Supervise(timeout=0.05, handle_tool_errors=False)
    with pytest.raises(CallTimeoutError, match="'slow' did not finish"):
        await run(agent_of([Recorder().tool("slow", hang=True)], supervise, asks=["slow"]))


async def test_a_limit_holds_across_runs_threads_and_loops(recorder: Recorder) -> None:
    """Promise 7: one object is one limit, although one agent runs async here and the other sync in a thread."""
    supervise = Supervise(limit=Limit(concurrency=1))
    async_agent = agent_of([recorder.tool("work", seconds=0.05)], supervise, asks=["work"] * 4)
    sync_agent = agent_of([recorder.sync_tool("work", seconds=0.05)], supervise, asks=["work"] * 4)
    async with anyio.create_task_group() as group:
        group.start_soon(run, async_agent)
        group.start_soon(run, sync_agent, "invoke")
    assert recorder.count("finished") == 8
    assert recorder.peak == 1


async def test_statistics_tell_what_runs_and_waits(recorder: Recorder) -> None:
    """`Supervise` has the same `statistics` as `ToolNode`."""
    supervise = Supervise(limit=Limit(concurrency=2))
    agent = agent_of([recorder.tool("work", hang=True)], supervise, asks=["work"] * 3)

    task = asyncio.create_task(agent.ainvoke(GO))
    await recorder.wait_for("started", 2)
    while (now := supervise.statistics()).waiting == 0:
        await anyio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])

    assert (now.running, now.waiting, now.abandoned_threads) == (2, 1, 0)
    after = supervise.statistics()
    assert (after.running, after.waiting, after.abandoned_threads) == (0, 0, 0)


async def test_one_call_is_cancelled_and_its_siblings_and_the_run_go_on() -> None:
    """`Supervise` has the same `running` and `cancel` as `ToolNode`, with the conversation of each call."""
    opened = anyio.Event()

    @tool
    async def work() -> str:
        """Work."""
        await opened.wait()
        return "worked"

    supervise = Supervise()
    task = asyncio.create_task(agent_of([work], supervise, asks=["work"] * 2).ainvoke(GO, THREAD))
    while len(live_calls := [call for call in supervise.running() if call.place == "running"]) < 2:
        await anyio.sleep(0.01)
    assert {(call.tool, call.thread_id) for call in live_calls} == {("work", "1")}
    assert not await supervise.cancel(live_calls[0].call_id, thread_id="2")
    assert await supervise.cancel(live_calls[0].call_id, "nobody needs it", thread_id="1")
    opened.set()
    state = await task

    assert supervise.running() == []
    [cancelled] = [text for text in contents(state) if text != "worked"]
    assert "nobody needs it" in cancelled


@tool("fetch")
async def fetch_host(host: str, state: Annotated[dict[str, Any], InjectedState]) -> str:
    """Fetch."""
    return host


async def test_a_key_that_cannot_be_made_of_wrong_arguments_is_the_models_affair() -> None:
    """The key function gets what the model wrote, so its error about wrong arguments becomes a message."""

    policy = CallPolicy(limit=Limit(concurrency=1, key=lambda call: call["args"]["host"]))
    agent = agent_of([fetch_host], Supervise(policies={"fetch": policy}), asks=["fetch", ("fetch", {"host": "a.org"})])

    state = await run(agent)

    assert [message.status for message in answers(state)] == ["error", "success"]
    assert "host: Field required" in contents(state)[0]
    assert "messages" not in contents(state)[0], "what LangGraph injects is not the model's"


async def test_a_call_whose_error_a_middleware_replaced_by_another_attempt_ends_without_error() -> None:
    async def with_host(request: Any, call_next: Any) -> Any:
        message = await call_next(request)
        assert message.status == "error"
        return await call_next(request.override(tool_call={**request.tool_call, "args": {"host": "a.org"}}))

    limit = Limit(concurrency=1, key=lambda call: call["args"]["host"])
    supervise = Supervise(limit=limit, middleware=[with_host])
    events: list[CallEvent] = []
    with observe(events.append):
        state = await run(agent_of([fetch_host], supervise, asks=["fetch"]))
    assert contents(state) == ["a.org"]
    assert [(event.phase, event.error) for event in events if event.phase == "ended"] == [("ended", None)]


@pytest.mark.parametrize("name", ["fetch", "made_up"])
async def test_a_key_function_that_fails_on_its_own_account_is_raised(name: str) -> None:
    def key(call: Any) -> str:
        raise LookupError("no key")

    agent = agent_of([Recorder().tool("fetch")], Supervise(limit=Limit(concurrency=1, key=key)), asks=[name])

    with pytest.raises(LookupError, match="no key"):
        await run(agent)


@both_doors
@pytest.mark.parametrize("source", ["config", "state", "context"])
async def test_each_user_of_an_agent_has_places_of_their_own(door: str, source: str) -> None:
    """The user is known from the config, the state or the context, not from an argument."""
    inside, users = threading.Barrier(2), []

    def by_user(call: Any, context: CallContext) -> Any:
        sources = {"config": context.config["configurable"], "state": context.state, "context": context.context}
        return sources[source]["user"]

    @tool
    def work(user: Annotated[str, InjectedState("user")]) -> str:
        """Work."""
        inside.wait(WAIT)
        users.append(user)
        inside.wait(WAIT)
        return user

    class State(AgentState[Any]):
        user: str

    def ask_twice(messages: Any) -> Any:
        return calls("work", "work") if messages[-1].type == "human" else "done"

    supervise = Supervise(limit=Limit(concurrency=1, key=by_user))
    agent: Any = create_agent(
        ScriptedModel([ask_twice], loop=True), [work], middleware=[supervise], state_schema=State, context_schema=dict
    )

    async def run_for(user: str) -> None:
        inputs, config = {**GO, "user": user}, {"configurable": {"user": user}}
        if door == "ainvoke":
            await agent.ainvoke(inputs, config, context={"user": user})
        else:
            await anyio.to_thread.run_sync(partial(agent.invoke, inputs, config, context={"user": user}))

    async with anyio.create_task_group() as group:
        group.start_soon(run_for, "Ann")
        group.start_soon(run_for, "Bob")

    assert [set(users[:2]), set(users[2:])] == [{"Ann", "Bob"}] * 2


@sync_too
async def test_a_thread_that_outlives_its_timeout_is_counted_and_named(recorder: Recorder, door: str) -> None:
    """Promise 1: LangChain runs sync tools of async agents in uncounted threads. `Supervise` counts and names them."""
    release = threading.Event()
    supervise = Supervise(timeout=0.4, limit=Limit(concurrency=1))
    agent = agent_of([recorder.sync_tool("stuck", release=release)], supervise, asks=["stuck"])
    try:
        with pytest.warns(AbandonedThreadWarning, match=r"tool 'stuck' \(call 'call_1'\)"):
            state = await run(agent, door)
        assert endings(state) == ["timeout"]
        assert supervise.statistics().abandoned_threads == 1
        # The thread's place is held as long as the thread lives.
        waiting = asyncio.create_task(run(agent_of([recorder.tool("next")], supervise, asks=["next"])))
        while supervise.statistics().waiting == 0:
            await anyio.sleep(0.01)
        assert recorder.count("started", "next") == 0
    finally:
        release.set()
    await waiting

    assert recorder.count("finished", "next") == 1
    assert supervise.statistics().abandoned_threads == 0


class Counting(BaseTool):
    """Stateful tool that has only `_run`."""

    name: str = "counting"
    description: str = "Count."
    count: int = 0

    def _run(self) -> str:
        self.count += 1
        return f"{self.count} {threading.current_thread().name}"


async def test_a_sync_tool_keeps_its_state() -> None:
    """The thread runs the tool object itself, not a copy."""
    counting = Counting()
    state = await run(agent_of([counting], Supervise(limit=Limit(concurrency=1)), asks=["counting"] * 2))
    assert counting.count == 2
    assert all("worker thread" in content or "callboard worker" in content for content in contents(state))


async def test_a_sync_tool_of_an_async_agent_gets_what_it_asks_for() -> None:
    """LangGraph's injection, config and call id still work."""

    @tool
    def curious(
        query: str,
        runtime: ToolRuntime,
        state: Annotated[dict[str, Any], InjectedState],
        call_id: Annotated[str, InjectedToolCallId],
        config: RunnableConfig,
    ) -> str:
        """Look around."""
        thread = config["configurable"]["thread_id"]
        return f"{query} {runtime.tool_call_id} {len(state['messages'])} {call_id} {thread}"

    agent = agent_with_thread([curious], Supervise(), asks=[("curious", {"query": "tea"})])
    assert contents(await run(agent, "ainvoke", None, THREAD)) == ["tea call_1 2 call_1 1"]


async def test_sync_tools_run_at_once() -> None:
    """There are as many threads as in a `ToolNode`, independent of the event loop's executor."""
    all_forty = threading.Barrier(40)

    def meet() -> str:
        all_forty.wait(30)
        return "met"

    state = await run(agent_of([make_sync(meet)], Supervise(), asks=["meet"] * 40))

    assert contents(state) == ["met"] * 40


async def test_readers_of_the_agents_stream_hear_of_progress() -> None:
    """Progress from a thread of LangChain's agent is reported in the event loop of the call."""

    def work() -> str:
        progress("half way", done=1, total=2)
        return "done"

    def agent() -> Any:
        return agent_of([make_sync(work)], Supervise(), asks=["work"])

    [chunk] = await anyio.to_thread.run_sync(lambda: list(agent().stream(GO, stream_mode="custom")))
    assert [streamed async for streamed in agent().astream(GO, stream_mode="custom")] == [chunk]
    assert (chunk["tool"], chunk["message"], chunk["done"], chunk["total"]) == ("work", "half way", 1, 2)


def asking(log: list[str]) -> BaseTool:
    def ask(query: str) -> str:
        log.append(f"asks {query}")
        answer = interrupt(f"sure, {query}?")
        log.append(f"did {query}")
        return f"{query}: {answer}"

    return make_sync(ask)


@both_doors
async def test_interrupts_surface_together_and_finished_calls_stay_finished(recorder: Recorder, door: str) -> None:
    """Promises 4 and 5: on resume, LangGraph runs the batch again, and finished calls do not repeat."""
    log: list[str] = []
    supervise = Supervise(timeout=30.0, limit=Limit(concurrency=2))
    asks = [("ask", {"query": "a"}), "fine", ("ask", {"query": "b"})]
    agent = agent_with_thread([asking(log), tool_of(door, recorder, "fine")], supervise, asks=asks)
    paused = await run(agent, door, None, THREAD)
    question_ids = {question.value: question.id for question in paused["__interrupt__"]}
    paused = await resume_with(agent, door, {question_ids["sure, b?"]: "no"})
    state = await resume_with(agent, door, {question_ids["sure, a?"]: "yes"})

    assert question_ids.keys() == {"sure, a?", "sure, b?"}
    assert [question.value for question in paused["__interrupt__"]] == ["sure, a?"]
    assert contents(state) == ["a: yes", "fine", "b: no"]
    assert recorder.count("started") == 1
    assert sorted(entry for entry in log if entry.startswith("did")) == ["did a", "did b"]


@sync_too
async def test_a_middleware_cannot_swallow_an_interrupt(door: str) -> None:
    """Promise 4: an interrupt passes through middleware that catches everything."""

    async def swallow(request: Any, call_next: Any) -> Any:
        for _ in range(2):
            try:
                return await call_next(request)
            except Exception:
                continue
        return ToolMessage("swallowed", tool_call_id=request.tool_call["id"])

    log: list[str] = []
    agent = agent_with_thread([asking(log)], Supervise(middleware=[swallow]), asks=[("ask", {"query": "a"})])
    paused = await run(agent, door, None, THREAD)
    asked_once = list(log)
    state = await resume_with(agent, door, "yes")

    assert len(paused["__interrupt__"]) == 1
    assert asked_once == ["asks a"]
    assert contents(state) == ["a: yes"]


@both_doors
@pytest.mark.parametrize("position", ["inside", "outside", "around the turn"])
async def test_langchains_human_in_the_loop_works_on_either_side(recorder: Recorder, door: str, position: str) -> None:
    """LangChain's approval of single calls works before and after `Supervise`, and that of a turn before all tools."""
    whole_turn = position == "around the turn"
    human = HumanInTheLoopMiddleware({"work": True}, interrupt_mode="batched" if whole_turn else "per_call")
    supervise = Supervise(timeout=30.0)
    tools = [tool_of(door, recorder, "work"), tool_of(door, recorder, "free")]
    middleware = [supervise, human] if position == "inside" else [human, supervise]
    agent = agent_with_thread(tools, *middleware, asks=["work", "free", "work"])
    questions = (await run(agent, door, None, THREAD))["__interrupt__"]
    approve, reject = {"type": "approve"}, {"type": "reject", "message": "no"}
    if whole_turn:
        resume: Any = {"decisions": [approve, reject]}
    else:
        question_ids = {question.value["tool_call_id"]: question.id for question in questions}
        resume = {question_ids["call_1"]: approve, question_ids["call_3"]: reject}
    state = await resume_with(agent, door, resume)

    assert sorted(message.status for message in answers(state)) == ["error", "success", "success"]
    assert sorted(recorder.order) == ["free", "work"]


async def test_a_command_of_a_tool_reaches_the_graph() -> None:
    async def rename(call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        return Command(update={"messages": [ToolMessage("renamed", tool_call_id=call_id)]})

    assert contents(await run(agent_of([make(rename)], Supervise(timeout=30.0), asks=["rename"]))) == ["renamed"]


async def test_a_cancelled_agent_leaves_nothing_behind(recorder: Recorder) -> None:
    """Promise 1: LangGraph cancels its tasks, and each task waits for the clean-up of its call."""
    supervise = Supervise(timeout=30.0)
    agent = agent_of([recorder.tool("work", hang=True, cleanup=0.05)], supervise, asks=["work"] * 3)
    await cancel_run(agent, recorder, started=3)
    assert recorder.count("cleaned up") == 3
    assert recorder.running == supervise.statistics().running == 0


async def cancel_run(agent: Any, recorder: Recorder, started: int = 1) -> None:
    """Cancel a run whose calls have started, and wait for its end."""
    task = asyncio.create_task(agent.ainvoke(GO))
    await recorder.wait_for("started", started)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_a_call_that_ignores_cancellation_is_ended_when_its_grace_is_over(recorder: Recorder) -> None:
    """LangGraph alone would wait forever for a call that ignores its cancellation."""
    supervise = Supervise(grace=0.1)
    agent = agent_of([recorder.tool("stubborn", hang=True, ignores_cancel=1)], supervise, asks=["stubborn"])
    await cancel_run(agent, recorder)
    assert recorder.running == 0


async def test_a_middleware_cannot_swallow_the_cancellation_of_the_agent(recorder: Recorder) -> None:
    """No tool starts after LangGraph cancelled the task, even if a middleware catches the cancellation."""

    async def stubborn(request: Any, call_next: Any) -> Any:
        for _ in range(3):
            try:
                return await call_next(request)
            except BaseException:  # the mistake under test
                continue
        return ToolMessage("gave up", tool_call_id=request.tool_call["id"])

    agent = agent_of([recorder.tool("work", hang=True)], Supervise(middleware=[stubborn]), asks=["work"])
    await cancel_run(agent, recorder)
    assert recorder.count("started") == 1


@both_doors
async def test_an_error_is_raised_bare_and_ends_its_neighbours_first(recorder: Recorder, door: str) -> None:
    """Promise 3: the error is raised unwrapped. It ends the run by the agent's own rule."""
    error = ValueError("no")
    tools: list[Any] = [tool_of(door, recorder, "boom", raises=error, seconds=0.1)]
    if door == "ainvoke":
        tools.append(recorder.tool("slow", hang=True, cleanup=0.05))
    agent = agent_of(tools, Supervise(timeout=30.0), asks=[asked_tool.name for asked_tool in tools])

    with pytest.raises(ValueError, match="no") as caught:
        await run(agent, door)

    assert caught.value is error
    assert recorder.running == 0
    assert recorder.count("cleaned up") == (door == "ainvoke")


@both_doors
async def test_a_middleware_of_ours_works_beside_langchains_middleware(recorder: Recorder, door: str) -> None:
    """`Retry` is inside `Supervise`, LangChain's error handler around it, and LangChain's retry inside an attempt."""
    flaky = tool_of(door, recorder, "flaky", raises=ConnectionError("lost"), times=3)
    broken = tool_of(door, recorder, "broken", raises=ValueError("no"))
    once_more: Any = {"max_retries": 1, "initial_delay": 0.0, "on_failure": "error", "jitter": False}
    agent = agent_of(
        [flaky, broken],
        ToolErrorMiddleware(lambda error, request: f"{type(error).__name__} in {request.tool_call['name']}"),
        Supervise(timeout=30.0, middleware=[Retry(2, initial=0.0, on=ConnectionError, any_tool=True)]),
        ToolRetryMiddleware(retry_on=(ConnectionError,), **once_more),
        asks=["flaky", "broken"],
    )
    events: list[CallEvent] = []

    with observe(events.append):
        state = await run(agent, door)

    assert contents(state) == ["flaky", "ValueError in broken"]
    assert recorder.count("started", "flaky") == 4
    assert [event.phase for event in events if event.tool == "flaky"].count("started") == 2, "two attempts, of two each"
    assert [(event.tool, event.note) for event in events if event.phase == "noted"] == [("flaky", "retry")]


async def test_langchains_retry_shares_the_timeout_of_the_attempt_that_it_is_in(recorder: Recorder) -> None:
    """Middleware after `Supervise` in the agent's list is part of one attempt."""
    tools, retry = [recorder.tool("broken", raises=ValueError("no"))], ToolRetryMiddleware(initial_delay=WAIT)
    agent = agent_of(tools, Supervise(timeout=0.4), retry, asks=["broken"])
    assert endings(await run(agent)) == ["timeout"]
    assert recorder.count("started") == 1


def brings(brought: BaseTool) -> AgentMiddleware:
    """Return middleware that runs a tool unknown to the agent, for sync and async calls."""

    class Brings(AgentMiddleware):
        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            return handler(request.override(tool=brought))

        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            return await handler(request.override(tool=brought))

    return Brings()


@both_doors
@pytest.mark.parametrize("position", ["inside", "outside"])
async def test_a_tool_that_other_middleware_brings_is_supervised(door: str, position: str) -> None:
    """The model calls a tool that only a middleware has, and the policy for its name applies."""
    bringing = brings(tool_of(door, Recorder(), "brought", seconds=0.45))
    supervise = Supervise(policies={"brought": CallPolicy(timeout=0.4)}, missing="ignore")
    middleware = [bringing, supervise] if position == "outside" else [supervise, bringing]
    state = await run(agent_of([Recorder().tool("other")], *middleware, asks=["brought"]), door)
    assert endings(state) == ["timeout"]


async def test_agents_with_different_decorated_tools_share_an_object() -> None:
    """A policy that a decorator sets belongs to its tool, and the other agent does not need the tool."""

    @tool
    @CallPolicy(timeout=1.0)
    async def first() -> str:
        """Do the first."""
        return "one"

    @tool
    @CallPolicy(timeout=1.0)
    async def second() -> str:
        """Do the second."""
        return "two"

    supervise = Supervise()
    for item, result in ((first, "one"), (second, "two"), (first, "one")):
        state = await run(agent_of([item], supervise, asks=[item.name]))
        assert [message.text for message in answers(state)] == [result]


@sync_too
async def test_an_unknown_tool_is_answered_as_the_agent_answers(door: str) -> None:
    """LangGraph itself answers a call of an unknown tool, after all middleware."""
    state = await run(agent_of([Recorder().tool("known")], Supervise(timeout=30.0), asks=["unkown"]), door)
    assert contents(state) == ["Error: unkown is not a valid tool, try one of [known]."]


async def test_the_tools_of_middleware_are_tools_of_the_agent() -> None:
    class Offers:
        tools = (Recorder().tool("extra"),)

        async def awrap_tool_call(self, request: Any, call_next: Any) -> Any:
            return await call_next(request)

    model = ScriptedModel([calls("extra"), "done"])
    agent = create_agent(model, [Recorder().tool("own")], middleware=[Supervise(middleware=[Offers()])])

    assert contents(await run(agent)) == ["extra"]
    assert set(model.requested_tools[0]) == {"own", "extra"}


@sync_too
async def test_observers_see_calls_and_what_is_noted_in_them(door: str) -> None:
    """Spans depend on these events. `note` works in tools, too."""

    def work() -> str:
        note("halfway", share=0.5)
        return "done"

    events: list[CallEvent] = []
    with observe(events.append):
        await run(agent_of([make_sync(work)], Supervise(), asks=["work"]), door)

    assert [event.phase for event in events] == ["begun", "queued", "started", "noted", "attempt_ended", "ended"]
    assert {(event.tool, event.call_id) for event in events} == {("work", "call_1")}
    assert events[3].facts == {"share": 0.5}


class Rejects(AgentMiddleware):
    """Middleware that answers the first call of a turn instead of its tool."""

    def after_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        reply = state["messages"][-1]
        if not reply.tool_calls:
            return None
        return {"messages": [ToolMessage("rejected", tool_call_id=reply.tool_calls[0]["id"], status="error")]}


class JumpsToTools(AgentMiddleware):
    """Middleware that jumps to the tools once, with a turn that includes answered calls."""

    jumped = False

    @hook_config(can_jump_to=["tools"])
    def after_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        if self.jumped:
            return None
        self.jumped = True
        return {"jump_to": "tools"}


@both_doors
@pytest.mark.parametrize("with_us", [False, True], ids=["LangChain alone", "Supervise"])
async def test_a_rejected_call_cannot_be_run_by_a_jump(recorder: Recorder, door: str, with_us: bool) -> None:
    """Promise 9: an answered call never runs again. Without `Supervise` it runs and gets two messages."""
    events: list[CallEvent] = []
    tools = [tool_of(door, recorder, "danger"), tool_of(door, recorder, "fine")]
    agent = agent_of(tools, JumpsToTools(), Rejects(), *[Supervise()] * with_us, asks=["danger", "fine"])
    with observe(events.append):
        state = await run(agent, door)

    assert recorder.count("started", "danger") == (0 if with_us else 1)
    assert contents(state) == (["rejected", "fine"] if with_us else ["rejected", "danger", "fine"])
    if with_us:
        assert answers(state)[0].status == "error"
        phases = [(event.phase, event.note) for event in events if event.tool == "danger"]
        assert phases == [("begun", ""), ("noted", "answered"), ("ended", "")]


@sync_too
async def test_an_answer_of_an_earlier_turn_is_no_answer(recorder: Recorder, door: str) -> None:
    """Some models reuse call ids in every turn, so answers of earlier turns do not count."""
    turns = [calls(tool_call("work", "same", query=query)) for query in "12"]
    model = ScriptedModel([*turns, "."])
    agent = create_agent(model, [tool_of(door, recorder, "work")], middleware=[Supervise()])
    state = await run(agent, door)
    assert contents(state) == ["1", "2"]


async def test_calls_that_share_an_id_all_run(recorder: Recorder) -> None:
    asks = [tool_call("work", "same", query=query) for query in "12"]
    agent = agent_of([recorder.tool("work")], Supervise(limit=Limit(concurrency=1)), asks=asks)
    state = await run(agent)
    assert sorted(contents(state)) == ["1", "2"]


@both_doors
async def test_a_policy_for_no_tool_ends_the_first_run_before_anything_runs(recorder: Recorder, door: str) -> None:
    """The tools are known only in a run, and a second agent may lack a tool of the first. A typo in a policy must not
    silently remove a timeout, so no call runs.
    """
    supervise = Supervise(policies={"serach": CallPolicy()})
    expected = r"policies=...\): there is no tool 'serach', only \['other', 'search'\]; did you mean 'search'\?"
    tools = [tool_of(door, recorder, "search"), tool_of(door, recorder, "other")]

    for _ in range(2):
        with pytest.raises(ValueError, match=expected):
            await run(agent_of(tools, supervise, asks=["search", "other"]), door)
    assert recorder.order == []
    shared = Supervise(policies={"search": CallPolicy()})
    await run(agent_of(tools, shared, asks=["search"]), door)
    with pytest.raises(ValueError, match="no tool 'search'"):
        await run(agent_of([Recorder().tool("more")], shared, asks=["more"]), door)


async def test_a_middleware_that_misses_a_tool_ends_the_first_run() -> None:
    """The same error is raised by a `ToolNode` when it is built."""

    class Needs:
        def check_tools(self, names: Any) -> None:
            if "archive" not in names:
                raise ValueError(f"Needs: there is no tool 'archive', only {sorted(names)}")

        async def awrap_tool_call(self, request: Any, call_next: Any) -> Any:
            return await call_next(request)

    agent = agent_of([Recorder().tool("search")], Supervise(middleware=[Needs()]), asks=["search"])

    with pytest.raises(ValueError, match=r"no tool 'archive', only \['search'\]"):
        await run(agent)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"timeout": 0}, ValueError, r"Supervise\(timeout=...\) must be more than 0 seconds, got 0"),
        ({"grace": "1"}, TypeError, r"Supervise\(grace=...\) is a number of seconds"),
        ({"limit": 3}, TypeError, r"Supervise\(limit=...\) takes a Limit"),
        ({"policies": {"a": 3}}, TypeError, r"policies\['a'\] takes a CallPolicy"),
        ({"middleware": [3]}, TypeError, "A middleware is a function"),
        ({"handle_tool_errors": 3}, ValueError, "Received: 3"),
    ],
    ids=str,
)
def test_a_wrong_option_is_refused_by_name(options: Any, error: type[Exception], message: str) -> None:
    """The options are checked as in `ToolNode`, and the error names the wrong one."""
    with pytest.raises(error, match=message):
        Supervise(**options)


def in_a_fresh_process(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def test_importing_the_middleware_does_not_import_langchain() -> None:
    """LangChain is an optional dependency and slow to import."""
    done = in_a_fresh_process("import sys, callboard.middleware; sys.exit('langchain' in sys.modules)")
    assert done.returncode == 0, done.stderr


@pytest.mark.exhaustive
def test_without_langchain_the_error_names_the_extra() -> None:
    done = in_a_fresh_process("import sys; sys.modules['langchain'] = None\nfrom callboard.middleware import Supervise")
    assert "ImportError: Supervise is for LangChain's create_agent: pip install 'langchain<2,>=" in done.stderr
    assert in_a_fresh_process("import sys; sys.modules['langchain'] = None\nimport callboard.middleware").stderr == ""


def test_a_policy_that_would_have_a_body_run_elsewhere_is_refused() -> None:
    """LangChain's agent runs tool bodies itself, so a policy with an engine would have no effect."""
    with pytest.raises(ValueError, match=r"'slow' has runs_in, and LangChain's agent runs the bodies"):
        Supervise(policies={"slow": CallPolicy(runs_in=FakeEngine())})
