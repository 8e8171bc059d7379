"""Results of the calls of a run without a checkpointer, which are recorded together when their batch has ended."""

import threading
from typing import Annotated, Any

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph._internal._constants import CONFIG_KEY_SEND
from langgraph.types import Command, interrupt

from callboard import AgentState, CallEvent, create_react_agent, observe
from callboard.conversations._thread import Thread
from callboard.exceptions import RunDeadlineExceededError
from callboard.testing import Recorder, ScriptedModel, calls

from ._savers import QUESTION

pytestmark = pytest.mark.real_clock


def results_in(values: dict[str, Any]) -> dict[str, ToolMessage]:
    return {str(message.name): message for message in values["messages"] if isinstance(message, ToolMessage)}


async def test_a_result_is_kept_when_the_budget_of_the_run_ends_other_calls(recorder: Recorder) -> None:
    model = ScriptedModel([calls("quick", "stuck")])
    agent = create_react_agent(model, [recorder.tool("quick"), recorder.tool("stuck", hang=True)], version="v1")
    states = list[Any]()
    with pytest.raises(RunDeadlineExceededError):
        async for values in agent.astream(QUESTION, stream_mode="values", budget=0.3):
            states.append(values)
    results = results_in(states[-1])
    assert (results["quick"].status, results["stuck"].status) == ("success", "error")


async def test_a_result_is_kept_when_another_call_asks_a_person(recorder: Recorder) -> None:
    @tool
    def asking() -> str:
        """Ask."""
        return str(interrupt("sure?"))

    agent = create_react_agent(ScriptedModel([calls("quick", "asking")]), [recorder.tool("quick"), asking])
    values = await agent.ainvoke(QUESTION)
    assert [question.value for question in values["__interrupt__"]] == ["sure?"]
    assert list(results_in(values)) == ["quick"]


class Seen(AgentState):
    seen: Annotated[list[str], lambda one, other: [*one, *other]]


async def test_what_a_call_sends_to_the_state_is_kept_with_its_result(recorder: Recorder) -> None:
    @tool
    def sending(config: RunnableConfig) -> str:
        """Write to the state while the call runs."""
        config["configurable"][CONFIG_KEY_SEND]([("seen", ["sent"])])
        return "done"

    model = ScriptedModel([calls("sending", "quick"), "done"])
    agent = create_react_agent(model, [sending, recorder.tool("quick")], state_schema=Seen)
    values = await agent.ainvoke(QUESTION)
    assert values["seen"] == ["sent"]
    assert list(results_in(values)) == ["sending", "quick"]


@pytest.mark.parametrize("with_command", [False, True])
async def test_each_message_has_an_id_when_it_is_recorded(with_command: bool) -> None:
    """The reducer of LangGraph would give it one, too, but walks the whole conversation for that."""
    thread = Thread(create_react_agent(ScriptedModel(["done"]), [])._runner.plan.schema)
    messages = [ToolMessage("", tool_call_id=str(number)) for number in range(4)]
    messages[1].id = "own"
    outputs: list[Any] = [*messages[:3], Command(update={"messages": messages[3:]})] if with_command else messages
    thread.record_results(["a", "b", "c", "d"], outputs)
    assert [record.output for record in thread.records.values()] == outputs
    ids = [message.id for message in messages]
    assert (None not in ids, len({*ids}), ids[1]) == (True, 4, "own")


async def test_observers_of_calls_see_results_with_their_ids(recorder: Recorder) -> None:
    result_ids: list[Any] = []

    def on(event: CallEvent) -> None:
        if event.phase == "ended":
            result_ids.append(event.result.id)

    agent = create_react_agent(
        ScriptedModel([calls("one", "two"), "done"]), [recorder.tool("one"), recorder.tool("two")]
    )
    with observe(on):
        values = await agent.ainvoke(QUESTION)
    assert {*result_ids} == {result.id for result in results_in(values).values()}
    assert None not in result_ids


async def test_the_results_of_a_large_batch_are_recorded_in_another_thread(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise 8: to record thousands of results takes longer than other tasks of the event loop should wait."""
    threads = list[int]()
    original = Thread.record_results

    def record_thread(self: Thread, *results: Any) -> None:
        threads.append(threading.get_ident())
        original(self, *results)

    monkeypatch.setattr(Thread, "record_results", record_thread)
    batch = calls(*["quick"] * 1001)
    agent = create_react_agent(ScriptedModel([calls("quick"), batch, "done"]), [recorder.tool("quick")])
    messages = (await agent.ainvoke(QUESTION))["messages"]
    assert [thread == threading.get_ident() for thread in threads] == [True, False]
    assert [message.tool_call_id for message in messages if isinstance(message, ToolMessage)][1:] == [
        call["id"] for call in messages[3].tool_calls
    ]
