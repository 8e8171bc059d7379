"""Time budget of a whole run: when it is spent, each call gets its message, the state is kept, and nothing goes on."""

import math
import pickle
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from langchain_core.messages import BaseMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from callboard import CallPolicy, Limit, ToolNode, create_react_agent, remaining
from callboard.exceptions import AbandonedThreadWarning, RunDeadlineExceededError
from callboard.testing import Recorder, ScriptedModel, calls
from tests.helpers import make, make_sync

from ._graphs import asking, chain, delegate
from ._savers import AT, QUESTION, SAVERS, complaint, saver_of, scripted, shape

pytestmark = pytest.mark.real_clock

WAIT = 15
BUDGET = 0.3
"""Seconds: enough to reach the calls, and too few for a call that hangs."""
SPENT = f"Error: The run was given up: its budget of {BUDGET} s was spent."


async def run_out(
    agent: Any, config: Any = AT, agent_input: Any = QUESTION, **options: Any
) -> RunDeadlineExceededError:
    """Run until the budget is spent, and check that the run ends soon afterwards."""
    with anyio.fail_after(5), pytest.raises(RunDeadlineExceededError) as caught:
        await agent.ainvoke(agent_input, config, **{"budget": BUDGET, **options})
    return caught.value


async def spend_budget(tool_names: Sequence[str], tools: Any, config: Any = AT) -> list[BaseMessage]:
    """Spend the budget of a run whose model requests some calls; return the messages of its thread."""
    agent = scripted([calls(*tool_names)], tools, checkpointer=InMemorySaver())
    await run_out(agent, config)
    return list((await agent.aget_state(AT)).values["messages"])


def quick_and_stuck(recorder: Recorder) -> list[Any]:
    """Return a tool that finishes at once, and one that never does."""
    return [recorder.tool("quick"), recorder.tool("stuck", hang=True)]


def endings(messages: list[BaseMessage]) -> list[str]:
    """Return how each call ended: "deadline", or the status of a different message."""
    results = [message for message in messages if isinstance(message, ToolMessage)]
    return [result.additional_kwargs.get("callboard", {}).get("ended", result.status) for result in results]


async def test_spent_while_the_model_answers_the_thread_stands_before_the_model() -> None:
    slow, quick = ScriptedModel(["late"], delay=60), ScriptedModel(["here"])
    saver = InMemorySaver()
    await run_out(create_react_agent(slow, [], checkpointer=saver))
    agent = create_react_agent(quick, [], checkpointer=saver)
    state = await agent.aget_state(AT)
    result = await agent.ainvoke(None, AT)
    assert state.next == ("agent",)
    assert shape(result) == ["human:go", "ai:here"]


async def test_calls_that_run_get_their_message_and_finished_neighbours_keep_theirs() -> None:
    """Promise 2: the history is valid for providers."""
    recorder = Recorder()
    messages = await spend_budget(["quick", "stuck", "quick", "stuck"], quick_and_stuck(recorder))
    assert shape(messages)[2:] == ["tool:quick", f"tool:{SPENT}", "tool:quick", f"tool:{SPENT}"]
    assert endings(messages) == ["success", "deadline", "success", "deadline"]
    assert [message.status for message in messages if isinstance(message, ToolMessage)] == ["success", "error"] * 2
    assert complaint(messages) is None
    assert recorder.running == 0


@pytest.mark.parametrize("bound", ["limit", "max_concurrency"])
async def test_calls_in_a_queue_get_their_message_and_never_start(bound: str) -> None:
    """The time in a queue is part of the run's budget."""
    recorder = Recorder()
    policies = {"stuck": CallPolicy(limit=Limit(concurrency=1))} if bound == "limit" else None
    node = ToolNode([recorder.tool("stuck", hang=True)], policies=policies, grace=0.1)
    messages = await spend_budget(["stuck"] * 3, node, {**AT, "max_concurrency": 1} if policies is None else AT)
    assert recorder.count("started") == 1
    assert endings(messages) == ["deadline"] * 3
    assert (node.statistics().running, node.statistics().waiting) == (0, 0)


async def test_a_sync_call_that_cannot_be_stopped_is_named_and_its_late_result_dropped() -> None:
    """The abandoned thread does not delay the conversation."""
    recorder, release = Recorder(), threading.Event()
    node = ToolNode([recorder.sync_tool("deaf", release=release)], grace=0.1)
    agent = scripted([calls("deaf"), "done"], node, checkpointer=InMemorySaver())
    try:
        with pytest.warns(AbandonedThreadWarning, match="deaf"):
            await run_out(agent)
        assert node.statistics().abandoned_threads == 1
    finally:
        release.set()
    while node.statistics().abandoned_threads:
        await anyio.sleep(0.001)
    result = await agent.ainvoke(None, AT)
    assert shape(result) == ["human:go", "ai:", f"tool:{SPENT}", "ai:done"]


async def test_a_result_that_a_body_rescues_counts() -> None:
    async def rescuing(query: str = "") -> str:
        """Save what there is."""
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            pass
        return "half of it"

    assert shape(await spend_budget(["rescuing"], [rescuing]))[2:] == ["tool:half of it"]


@pytest.mark.parametrize("handles", [True, False])
async def test_an_error_in_clean_up_is_the_cause_and_not_the_end(handles: bool) -> None:
    async def broken(query: str = "") -> str:
        """Wait."""
        try:
            await anyio.sleep_forever()
        finally:
            raise RuntimeError("the clean-up failed")

    recorder = Recorder()
    node = ToolNode([broken, recorder.tool("stuck", hang=True)], handle_tool_errors=handles)
    agent = scripted([calls("broken", "stuck")], node, checkpointer=InMemorySaver())
    error = await run_out(agent)

    messages = list((await agent.aget_state(AT)).values["messages"])
    assert complaint(messages) is None
    assert endings(messages) == ["error" if handles else "deadline", "deadline"]
    assert handles or isinstance(error.__cause__, RuntimeError)


@pytest.mark.parametrize("hook_name", ["pre_model_hook", "post_model_hook"])
async def test_spent_in_a_hook_the_thread_stands_before_it(hook_name: str) -> None:
    stuck = [True]
    cancelled = threading.Event()

    async def hook(state: Any) -> dict[str, Any]:
        if stuck:
            stuck.clear()
            try:
                await anyio.sleep_forever()
            finally:
                cancelled.set()
        return {}

    options: dict[str, Any] = {hook_name: hook}
    agent = scripted(["here"], [], checkpointer=InMemorySaver(), **options)
    await run_out(agent)
    state = await agent.aget_state(AT)
    result = await agent.ainvoke(None, AT)
    assert cancelled.is_set()
    assert state.next == (hook_name,)
    assert shape(result) == ["human:go", "ai:here"]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("kind", SAVERS)
async def test_the_state_is_kept_and_the_thread_goes_on_with_none(kind: str, durability: Any, tmp_path: Path) -> None:
    recorder = Recorder()
    tools = quick_and_stuck(recorder)
    async with saver_of(kind, tmp_path / "db") as saver:
        first = scripted([calls("quick", "stuck")], tools, checkpointer=saver)
        await run_out(first, durability=durability)
        model = ScriptedModel(["done"])
        second = create_react_agent(model, tools, checkpointer=saver)
        result = await second.ainvoke(None, AT, durability=durability)
    assert shape(result) == ["human:go", "ai:", "tool:quick", f"tool:{SPENT}", "ai:done"]
    assert [message.id for message in model.requests[0]] == [message.id for message in result["messages"][:-1]]
    assert (recorder.count("started", "quick"), recorder.count("started", "stuck")) == (1, 1)


async def test_what_a_person_was_asked_stays_open() -> None:
    recorder = Recorder()
    tools = [asking("may I?"), recorder.tool("stuck", hang=True)]
    agent = scripted([calls("ask", "stuck"), "done"], tools, checkpointer=InMemorySaver())
    await run_out(agent)
    state = await agent.aget_state(AT)
    result = await agent.ainvoke(Command(resume="yes"), AT)
    assert [question.value for question in state.interrupts] == ["may I?"]
    assert shape(result)[2:] == ["tool:yes", f"tool:{SPENT}", "ai:done"]


async def test_without_a_checkpointer_the_error_is_all_there_is() -> None:
    recorder = Recorder()
    agent = scripted([calls("stuck")], [recorder.tool("stuck", hang=True)])
    error = await run_out(agent, None)
    assert isinstance(error, TimeoutError)
    assert error.budget == BUDGET
    assert recorder.running == 0


def looks_at_the_clock(seconds_left: list[float]) -> list[Any]:
    """Return an async tool and a sync one that append the remaining time."""

    async def look(query: str = "") -> None:
        seconds_left.append(remaining())

    def look_in_thread(query: str = "") -> None:
        seconds_left.append(remaining())

    return [make(look), make_sync(look_in_thread)]


async def test_tools_see_what_is_left_of_it() -> None:
    seconds_left: list[float] = []
    agent = scripted([calls("look", "look_in_thread"), "done"], looks_at_the_clock(seconds_left), loop=True)
    await agent.ainvoke(QUESTION, budget=WAIT / 2)
    await agent.ainvoke(QUESTION)
    assert all(WAIT / 4 < seconds <= WAIT / 2 for seconds in seconds_left[:2]), seconds_left
    assert all(seconds > WAIT / 2 for seconds in seconds_left[2:]), seconds_left


async def test_the_budget_of_a_call_within_that_of_the_run_ends_the_call_alone() -> None:
    recorder = Recorder()
    node = ToolNode(
        [recorder.tool("stuck", hang=True), recorder.tool("quick")], policies={"stuck": CallPolicy(budget=0.05)}
    )
    agent = scripted([calls("stuck", "quick"), "done"], node)
    result = await agent.ainvoke(QUESTION, budget=10)
    assert endings(result["messages"]) == ["deadline", "success"]
    assert "its budget of 0.05 s was spent while it ran" in result["messages"][2].content
    assert result["messages"][-1].content == "done"


async def test_an_agent_within_a_call_has_no_more_than_the_run_around_it() -> None:
    recorder, seconds_left = Recorder(), list[float]()
    tools = [*looks_at_the_clock(seconds_left), recorder.tool("stuck", hang=True)]
    inner = scripted([calls("look"), calls("stuck")], tools, budget=60)
    messages = await spend_budget(["inner"], [delegate(inner, "inner")])
    assert seconds_left[0] <= BUDGET
    assert (recorder.running, recorder.count("cancelled")) == (0, 1)
    assert shape(messages)[2:] == [f"tool:{SPENT}"]


async def test_a_run_may_have_another_budget_than_its_agent() -> None:
    """The budget of one run may also be none at all, written as `math.inf`."""
    recorder = Recorder()
    tools = [recorder.tool("slow", seconds=0.2)]
    agent = scripted([calls("slow"), "done"], tools, loop=True, budget=0.05)
    with pytest.raises(RunDeadlineExceededError, match=r"0\.05 s"):
        await agent.ainvoke(QUESTION)
    agent = scripted([calls("slow"), "done"], tools, loop=True, budget=0.05)
    longer = await agent.ainvoke(QUESTION, budget=60)
    endless = await agent.ainvoke(QUESTION, budget=math.inf)
    assert longer["messages"][-1].content == endless["messages"][-1].content == "done"


@pytest.mark.parametrize("budget", [0, -1, math.nan, "1"])
async def test_a_budget_that_is_none_is_refused(budget: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="budget"):
        scripted(["hi"], [], budget=budget)
    with pytest.raises((ValueError, TypeError), match="budget") as caught:
        await scripted(["hi"], []).ainvoke(QUESTION, budget=budget)
    assert not isinstance(caught.value, RunDeadlineExceededError)


async def test_a_stream_ends_with_the_error_bare() -> None:
    """A view that follows the updates would otherwise show a call that never ends."""
    recorder = Recorder()
    agent = scripted([calls("quick", "stuck")], quick_and_stuck(recorder))
    chunks: list[Any] = []
    with pytest.raises(RunDeadlineExceededError):
        async for mode, chunk in agent.astream(QUESTION, stream_mode=["updates", "values"], budget=BUDGET):
            chunks.append((mode, chunk))

    updates = [chunk["tools"]["messages"] for mode, chunk in chunks if mode == "updates" and "tools" in chunk]
    assert [text for messages in updates for text in shape(messages)] == ["tool:quick", f"tool:{SPENT}"]
    assert endings([chunk for mode, chunk in chunks if mode == "values"][-1]["messages"]) == ["success", "deadline"]
    assert recorder.running == 0


def test_the_error_travels() -> None:
    error = pickle.loads(pickle.dumps(RunDeadlineExceededError(1.5)))
    assert isinstance(error, RunDeadlineExceededError)
    assert (error.budget, str(error)) == (1.5, "The run was given up: its budget of 1.5 s was spent.")


@pytest.mark.backends("asyncio")
async def test_within_a_graph_the_agent_goes_on_where_its_budget_ended_it() -> None:
    recorder = Recorder()
    tools = quick_and_stuck(recorder)
    model = ScriptedModel([calls("quick", "stuck"), "done"])
    graph = chain(("agent", create_react_agent(model, tools, budget=BUDGET)), saver=InMemorySaver())
    with pytest.raises(RunDeadlineExceededError):
        await graph.ainvoke(QUESTION, AT)
    result = await graph.ainvoke(None, AT)
    assert shape(result) == ["human:go", "ai:", "tool:quick", f"tool:{SPENT}", "ai:done"]
    assert recorder.count("started") == 2
