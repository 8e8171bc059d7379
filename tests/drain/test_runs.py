"""Drained and closed nodes and agents: running calls finish or are ended, and unknown outcomes are reported."""

import logging
import threading
from contextlib import aclosing
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver

from callboard import CallPolicy, Drained, DrainingError, Limit, ToolNode, UnknownCall, create_react_agent, tool_call
from callboard.testing import Recorder, ScriptedModel, calls
from tests.helpers import make, until

from ._runs import CONFIG, GO, WAIT, Fallen


async def test_a_drained_node_lets_its_calls_finish_and_begins_no_other() -> None:
    """A later call fails at once, so its caller can try another process."""
    recorder, outcomes = Recorder(), Fallen()
    node = ToolNode([recorder.tool("slow", seconds=2)])
    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            group.start_soon(outcomes.run, node.ainvoke, [calls("slow", "slow")])
            await until(lambda: recorder.running == 2)
            group.start_soon(outcomes.run, node.drain, 10)
            await until(lambda: node._setup.in_flight.is_draining)
            with pytest.raises(
                DrainingError, match=r"'tools' is being drained: it begins nothing new\. Try another process, or open"
            ):
                await node.ainvoke([calls("slow")])
    assert [len(result) if isinstance(result, list) else result for result in outcomes.results] == [
        2,
        Drained(finished=1),
    ]
    assert recorder.count("started") == 2
    assert outcomes.errors == []


async def test_calls_that_do_not_finish_in_time_are_ended_with_their_grace_and_told_by_id(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Calls that had not begun and idempotent ones are not unknown; one log line lists the others."""
    caplog.set_level(logging.WARNING, "callboard")
    recorder, outcomes = Recorder(), Fallen()
    tools = [recorder.tool("pay", hang=True), recorder.tool("look", hang=True), recorder.tool("quick")]
    limit = Limit(concurrency=1)
    node = ToolNode(tools, policies={"pay": CallPolicy(limit=limit), "look": CallPolicy(idempotent=True)})
    request = calls("pay", "pay", "look", "quick")
    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            group.start_soon(outcomes.run, node.ainvoke, [request])
            await until(lambda: recorder.running == 2)
            report = await node.drain(1)
    assert report == Drained(ended=1, unknown=(UnknownCall(tool="pay", call_id=request.tool_calls[0]["id"]),))
    assert report.exit_code == 4
    assert [error.begun for error in outcomes.errors] == [True]
    assert recorder.running == 0
    [line] = [record.getMessage() for record in caplog.records]
    assert line == f"the node 'tools' was drained: {report}"
    assert request.tool_calls[0]["id"] in line


async def test_a_run_that_still_prepares_its_calls_is_ended_before_any_call_begins() -> None:
    """A large batch is prepared in portions: a drain may end it in between, when it has no task to cancel yet."""
    recorder, outcomes = Recorder(), Fallen()
    node = ToolNode([recorder.tool("quick")])
    messages = [calls(*["quick"] * 900)]
    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            group.start_soon(outcomes.run, node.ainvoke, messages)
            while not node._setup.in_flight._operations:
                await anyio.lowlevel.checkpoint()
            report = await node.drain(0)
    assert report == Drained(ended=1)
    assert [error.begun for error in outcomes.errors] == [True]
    assert recorder.count("started") == 0


async def test_what_has_finished_in_a_run_that_is_ended_is_in_its_ledger() -> None:
    """A finished result must not be lost because a concurrent call was ended."""
    recorder, outcomes, ledger = Recorder(), Fallen(), dict[str, Any]()
    node = ToolNode([recorder.tool("stuck", hang=True), recorder.tool("quick")])
    messages = [calls("stuck", "quick")]
    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:

            async def run() -> None:
                await node.ainvoke(messages, ledger=ledger)

            group.start_soon(outcomes.run, run)
            await until(lambda: recorder.count("finished") == 1)
            await node.drain(0)
    assert recorder.count("started", "quick") == 1
    second_node = ToolNode([recorder.tool("stuck"), recorder.tool("quick")])
    await second_node.ainvoke(messages, ledger=ledger)
    assert recorder.count("started", "quick") == 1
    assert recorder.count("started", "stuck") == 2


async def test_calls_of_a_tool_that_runs_its_own_node_still_begin() -> None:
    recorder, outcomes = Recorder(), Fallen()

    async def outer() -> str:
        """Ask for another call when it is drained."""
        await anyio.sleep(2)
        [message] = await node.ainvoke([calls("inner")])
        return str(message.content)

    node = ToolNode([outer, recorder.tool("inner", returns="found")])
    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            group.start_soon(outcomes.run, node.ainvoke, [calls("outer")])
            await until(lambda: node.statistics().running == 1)
            report = await node.drain(10)
    assert report == Drained(finished=1)
    assert [message.content for message in outcomes.results[0]] == ["found"]


@pytest.mark.real_clock
async def test_a_drained_agent_takes_its_runs_to_their_end() -> None:
    recorder, outcomes = Recorder(), Fallen()
    model = ScriptedModel([calls("slow"), calls("slow"), "done"])
    agent = create_react_agent(model, [recorder.tool("slow", seconds=0.2)], checkpointer=InMemorySaver())
    async with anyio.create_task_group() as group:
        group.start_soon(outcomes.run, agent.ainvoke, GO, CONFIG)
        await until(lambda: recorder.running == 1)
        group.start_soon(outcomes.run, agent.drain)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(DrainingError, match="the agent 'LangGraph' is being drained") as refused:
            await agent.ainvoke(GO, {"configurable": {"thread_id": "other"}})
    assert not refused.value.begun
    assert outcomes.results[0]["messages"][-1].content == "done"
    assert outcomes.results[1] == Drained(finished=1)


@pytest.mark.real_clock
@pytest.mark.parametrize(
    ("policy", "begun_again"), [(CallPolicy(on_unknown="fail"), 0), (CallPolicy(on_unknown="rerun"), 1)]
)
async def test_a_run_that_was_ended_goes_on_elsewhere_and_its_journal_knows_what_is_unknown(
    policy: CallPolicy, begun_again: int
) -> None:
    recorder, outcomes, saver = Recorder(), Fallen(), InMemorySaver()
    request = calls("pay", "quick")

    def agent(model: ScriptedModel, **options: Any) -> Any:
        tools = [recorder.tool("pay", **options), recorder.tool("quick")]
        return create_react_agent(model, ToolNode(tools, policies={"pay": policy}), checkpointer=saver)

    first = agent(ScriptedModel([request]), hang=True)
    async with anyio.create_task_group() as group:
        group.start_soon(outcomes.run, first.ainvoke, GO, CONFIG)
        await until(lambda: recorder.count("finished") == 1)
        report = await first.drain(0.05)
    result = await agent(ScriptedModel(["done"])).ainvoke(None, CONFIG)

    [pay, _] = request.tool_calls
    assert report == Drained(ended=1, unknown=(UnknownCall(tool="pay", call_id=pay["id"], thread_id="t"),))
    assert [error.begun for error in outcomes.errors] == [True]
    assert recorder.count("started", "quick") == 1
    assert recorder.count("started", "pay") == 1 + begun_again
    assert result["messages"][-1].content == "done"


@pytest.mark.real_clock
async def test_a_run_that_waits_for_its_model_is_ended_and_nothing_of_it_is_unknown() -> None:
    """The run continues later by calling the model again."""
    outcomes, saver = Fallen(), InMemorySaver()
    agent = create_react_agent(ScriptedModel(["late"], delay=60), [], checkpointer=saver)
    async with anyio.create_task_group() as group:
        group.start_soon(outcomes.run, agent.ainvoke, GO, CONFIG)
        await until(lambda: agent._runner.in_flight._operations)
        report = await agent.drain(0.1)
    result = await create_react_agent(ScriptedModel(["here"]), [], checkpointer=saver).ainvoke(None, CONFIG)
    assert report == Drained(ended=1)
    assert report.exit_code == 3
    assert result["messages"][-1].content == "here"


@pytest.mark.parametrize("on_error", ["finish", "cancel"])
async def test_the_unknown_calls_of_a_drain_are_in_each_report(on_error: Any) -> None:
    """Also if a second drain hurries the first one, and if the run ends with the error of a failed call."""

    async def pay(clean_up: float) -> str:
        """Pay, with a clean-up of so many seconds."""
        try:
            await anyio.sleep(WAIT)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(clean_up)
        return "paid"

    async def fail() -> str:
        """Fail, after the other calls have begun."""
        raise ValueError("no such account")

    node = ToolNode([make(pay), make(fail)], handle_tool_errors=False, on_error=on_error)
    batch = [tool_call("pay", "quick", clean_up=0), tool_call("pay", "slow", clean_up=1)]
    if on_error == "finish":
        batch.append(tool_call("fail", "failed"))
    reports: list[Drained] = []

    async def drain(after: float) -> None:
        await anyio.sleep(after)
        reports.append(await node.drain(timeout=0))

    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            group.start_soon(drain, 0.1)
            group.start_soon(drain, 0.5)
            with pytest.raises(ValueError if on_error == "finish" else DrainingError):
                await node.ainvoke(batch)
    assert [(report.ended, [call.call_id for call in report.unknown]) for report in reports] == [
        (1, ["quick", "slow"])
    ] * 2


@pytest.mark.real_clock
async def test_a_run_that_sync_code_has_started_is_waited_for_and_ended_too() -> None:
    """The run is in another event loop, which the drain has to reach."""
    recorder = Recorder()
    node = ToolNode([recorder.tool("slow", seconds=0.3), recorder.tool("stuck", hang=True)], grace=0.1)
    results: list[Any] = []

    def run(name: str) -> None:
        try:
            results.append(node.invoke([calls(name)])[0].content)
        except DrainingError as error:
            results.append(error.begun)

    async with anyio.create_task_group() as group:
        for name in ("slow", "stuck"):
            group.start_soon(anyio.to_thread.run_sync, run, name)
        await until(lambda: recorder.count("started") == 2)
        report = await node.drain(1)
    assert (report.finished, report.ended, [call.tool for call in report.unknown]) == (1, 1, ["stuck"])
    assert sorted(map(str, results)) == ["True", "ok"] or results[-1] is True


@pytest.mark.real_clock
@pytest.mark.parametrize("reads_on", [True, False])
async def test_a_stream_that_is_ended_says_so_to_its_reader_whether_it_reads_on_or_stands_still(reads_on: bool) -> None:
    """A reader that has stopped reading does not block the drain."""
    recorder = Recorder()
    model = ScriptedModel([calls("stuck")])
    agent = create_react_agent(model, [recorder.tool("stuck", hang=True)], checkpointer=InMemorySaver())
    reports: list[Drained] = []
    async with anyio.create_task_group() as group:

        async def drain() -> None:
            await recorder.wait_for("started")
            reports.append(await agent.drain(0.1))

        async with aclosing(agent.astream(GO, CONFIG, stream_mode="tools")) as stream:
            assert (await anext(stream))["event"] == "tool-started"
            group.start_soon(drain)
            if not reads_on:
                await until(lambda: reports)
            with pytest.raises(DrainingError) as ended:
                async for chunk in stream:
                    assert chunk["event"] == "tool-error"
    assert ended.value.begun
    assert [(report.ended, len(report.unknown)) for report in reports] == [(1, 1)]


async def test_several_inputs_of_a_drained_agent_are_refused_one_by_one() -> None:
    agent = create_react_agent(ScriptedModel(["no"]), [])
    await agent.drain()

    results = await agent.abatch([GO, GO], return_exceptions=True)
    assert [isinstance(result, DrainingError) and not result.begun for result in results] == [True, True]


@given(
    runs=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 40), st.booleans()), min_size=1, max_size=8),
    drained_at=st.integers(0, 30),
    timeout=st.integers(0, 30),
)
async def test_whenever_it_comes_a_drain_accounts_for_each_run_once(
    runs: list[tuple[int, int, bool]], drained_at: int, timeout: int
) -> None:
    recorder, outcomes = Recorder(), Fallen()
    tools = [recorder.tool(name, seconds=float) for name in ("once", "again")]
    node = ToolNode(tools, policies={"again": CallPolicy(idempotent=True)})
    reports: list[Drained] = []

    async def run(begins: int, seconds: int, may_repeat: bool) -> None:
        await anyio.sleep(begins)
        request = calls(("again" if may_repeat else "once", {"query": str(seconds)}))
        await outcomes.run(node.ainvoke, [request])

    async def drain() -> None:
        await anyio.sleep(drained_at + 0.5)
        reports.append(await node.drain(timeout))
        assert recorder.running == 0

    with anyio.fail_after(1000):
        async with anyio.create_task_group() as group:
            group.start_soon(drain)
            for planned_run in runs:
                group.start_soon(run, *planned_run)

    end = drained_at + 0.5 + timeout
    before = [planned_run for planned_run in runs if planned_run[0] <= drained_at]
    waited_for = [planned_run for planned_run in before if planned_run[0] + planned_run[1] > drained_at + 0.5]
    ended = [planned_run for planned_run in waited_for if planned_run[0] + planned_run[1] > end]
    assert reports[0].finished == len(waited_for) - len(ended)
    assert reports[0].ended == len(ended)
    assert len(reports[0].unknown) == sum(not repeatable for _, _, repeatable in ended)
    assert [error.begun for error in outcomes.errors].count(True) == len(ended)
    assert [error.begun for error in outcomes.errors].count(False) == len(runs) - len(before)
    assert len(outcomes.results) == len(before) - len(ended)


@pytest.mark.parametrize("timeout", [-1, float("nan")])
async def test_a_timeout_out_of_range_is_refused_and_nothing_is_drained(timeout: float) -> None:
    node = ToolNode([Recorder().tool("quick")])

    with pytest.raises(ValueError, match=r"drain\(timeout=...\) must be 0 or more seconds"):
        await node.drain(timeout)
    with pytest.raises(TypeError, match="is a number of seconds, got None"):
        await node.drain(None)  # type: ignore[arg-type]
    assert len(await node.ainvoke([calls("quick")])) == 1


@pytest.mark.real_clock
async def test_an_agent_that_is_closed_waits_for_its_runs_and_may_be_used_again() -> None:
    """`aclose` must not take the database from running calls."""
    recorder, outcomes = Recorder(), Fallen()
    model = ScriptedModel([calls("slow"), "done", "again"])
    agent = create_react_agent(model, [recorder.tool("slow", seconds=0.2)], checkpointer="sqlite:///:memory:")
    async with anyio.create_task_group() as group:
        group.start_soon(outcomes.run, agent.ainvoke, GO, CONFIG)
        await until(lambda: recorder.running == 1)
        await agent.aclose()

        assert [state["messages"][-1].content for state in outcomes.results] == ["done"]
    result = await agent.ainvoke(GO, {"configurable": {"thread_id": "other"}})
    await agent.aclose()
    assert result["messages"][-1].content == "again"


@pytest.mark.real_clock
async def test_a_block_of_an_agent_that_is_left_waits_for_its_runs_and_one_that_is_entered_begins_again() -> None:
    """Actors and databases are closed after the runs; entering the block again starts new ones."""
    recorder, outcomes = Recorder(), Fallen()
    model = ScriptedModel([calls("slow"), "done", "again"])
    agent = create_react_agent(model, [recorder.tool("slow", seconds=0.2)])
    async with anyio.create_task_group() as group:
        async with agent:
            group.start_soon(outcomes.run, agent.ainvoke, GO)
            await until(lambda: recorder.running == 1)
        assert recorder.running == 0
    await agent.drain()
    with pytest.raises(DrainingError):
        await agent.ainvoke(GO)
    async with agent:
        result = await agent.ainvoke(GO)
    assert result["messages"][-1].content == "again"
    assert len(outcomes.results) == 1


@pytest.mark.real_clock
def test_sync_code_closes_an_agent_when_the_runs_of_other_threads_have_ended() -> None:
    """Code without an event loop has a synchronous method to close an agent."""
    recorder = Recorder()
    model = ScriptedModel([calls("slow"), "done"])
    agent = create_react_agent(model, [recorder.tool("slow", seconds=0.3)], checkpointer="sqlite:///:memory:")
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(agent.invoke(GO, CONFIG)))
    thread.start()
    while not recorder.running:
        threading.Event().wait(0.01)
    agent.close()
    assert recorder.running == 0
    thread.join(5)
    assert results[0]["messages"][-1].content == "done"


@pytest.mark.real_clock
async def test_sync_code_that_would_wait_for_a_run_of_the_loop_it_blocks_is_told_so() -> None:
    """A run cannot end while synchronous code blocks its event loop and waits for it."""
    recorder, outcomes = Recorder(), Fallen()
    agent = create_react_agent(ScriptedModel([calls("slow"), "done"]), [recorder.tool("slow", seconds=0.1)])
    async with anyio.create_task_group() as group:
        group.start_soon(outcomes.run, agent.ainvoke, GO)
        await until(lambda: recorder.running == 1)
        with pytest.raises(RuntimeError, match="in the event loop that waits for this: await it there"):
            agent.close()
    assert len(outcomes.results) == 1
