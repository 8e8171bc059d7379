"""`callboard.threads`: the conversations of a database, read by a program that has none of their agents."""

from pathlib import Path
from typing import Any

import anyio
import pytest
from langchain_core.messages import HumanMessage
from pydantic import BaseModel

from callboard import AgentState, create_react_agent
from callboard.middleware import RequireApproval
from callboard.testing import Recorder, ScriptedModel, calls
from callboard.threads import Threads, masked, unanswered_calls

pytestmark = pytest.mark.real_clock
prebuilt: Any = pytest.importorskip("langgraph.prebuilt")


class Trip(BaseModel):
    """A value of a user's own type."""

    city: str


class State(AgentState):
    trip: Trip


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'threads.db'}"


def thread(name: str) -> Any:
    return {"configurable": {"thread_id": name}}


async def test_a_conversation_is_read_without_its_agent(url: str) -> None:
    """What was said, what became of each call, and what it waits for."""
    tools = [Recorder().tool("look_up", returns="sun"), Recorder().tool("pay")]
    model = ScriptedModel([calls("look_up", "pay")])
    async with create_react_agent(model, tools, checkpointer=url, middleware=[RequireApproval(["pay"])]) as agent:
        await agent.ainvoke({"messages": [("user", "Go!")]}, thread("oslo"))
    with Threads(url) as threads:
        names = await threads.names()
        stored, history = await threads.read("oslo"), await threads.history("oslo")
        nobody, nothing = await threads.read("rome"), await threads.history("rome")
    assert (names, nobody, nothing) == (["oslo"], None, [])
    assert stored is not None
    assert (stored.thread_id, stored.turns, len(stored.questions)) == ("oslo", 1, 1)
    look_up, pay = (call["id"] for call in stored.messages[1].tool_calls)  # type: ignore[attr-defined]
    assert [call["id"] for call in unanswered_calls(stored.messages)] == [pay]
    results = [(call["id"], result) for exchange in stored.exchanges() for call, result in exchange.answers_by_call()]
    assert [(call_id, stored.state_of(call_id, result)) for call_id, result in results] == [
        (look_up, "done"),
        (pay, "waits"),
    ]
    assert [len(snapshot.values["messages"]) for snapshot in history] == [2, 1, 0]


async def test_a_result_belongs_to_the_turn_that_asked_for_it(url: str) -> None:
    """Models begin their ids anew in each turn, and one id may be in a reply twice."""
    turns = [calls(("look_up", {"query": query})) for query in ("one", "two")]
    for turn in turns:
        turn.tool_calls[0]["id"] = "1"
    model = ScriptedModel([turns[0], "Done.", turns[1], "Done."])
    look_up = Recorder().tool("look_up")
    async with create_react_agent(model, [look_up], checkpointer=url) as agent:
        for _ in turns:
            with anyio.fail_after(20):
                await agent.ainvoke({"messages": [("user", "Go!")]}, thread("oslo"))
    with Threads(url) as threads:
        stored = await threads.read("oslo")
    assert stored is not None
    results = [result for entry in stored.exchanges() for _, result in entry.answers_by_call()]
    assert [entry and entry.text for entry in results] == ["one", "two"]


async def test_values_of_types_that_nobody_allows_are_shown_as_data(url: str) -> None:
    """To look at a database runs nothing that it names."""
    agent = create_react_agent(ScriptedModel(["Hello."]), [], checkpointer=url, state_schema=State)
    async with agent:
        await agent.ainvoke({"messages": [("user", "hi")], "trip": Trip(city="Oslo")}, thread("1"))
    with Threads(url) as threads:
        stored = await threads.read("1")
        saver = threads.saver_for(agent)
        checkpoint_tuple = await anyio.to_thread.run_sync(saver.get_tuple, thread("1"))
    assert stored is not None
    assert [message.text for message in stored.messages] == ["hi", "Hello."]
    assert stored.other_keys == ["trip"]
    assert checkpoint_tuple is not None
    assert checkpoint_tuple.checkpoint["channel_values"]["trip"] == Trip(city="Oslo")  # whose agent allows it


@pytest.mark.backends("asyncio")
async def test_a_graph_of_langgraphs_keeps_its_conversation_there(url: str) -> None:
    """It awaits its checkpointer, which a saver for sync code does not offer."""
    with pytest.warns(match="create_react_agent has been moved"):
        langgraph_agent = prebuilt.create_react_agent(ScriptedModel(["Hello."]), [])
    with Threads(url) as threads:
        langgraph_agent.checkpointer = threads.saver_for(langgraph_agent)
        await langgraph_agent.ainvoke({"messages": [("user", "hi")]}, thread("1"))
        snapshots = [snapshot async for snapshot in langgraph_agent.aget_state_history(thread("1"))]
        stored = await threads.read("1")
    assert len(snapshots) == 3
    assert stored is not None
    assert isinstance(stored.messages[0], HumanMessage)


def test_a_database_that_keeps_nothing_is_refused() -> None:
    """There would be nothing to look at, ever."""
    with pytest.raises(ValueError, match="'memory' keeps nothing; name a file"):
        Threads("memory")


async def test_a_checkpoint_that_is_not_there_is_an_error(url: str) -> None:
    """`None` would say that there is no such conversation."""
    async with create_react_agent(ScriptedModel(["Hello."]), [], checkpointer=url) as agent:
        await agent.ainvoke({"messages": [("user", "hi")]}, thread("1"))

    with Threads(url) as threads, pytest.raises(ValueError, match="no checkpoint"):
        await threads.read("1", "1f0c6c1e-1d6b-6c3e-8000-000000000000")


def test_a_password_is_masked() -> None:
    """What is shown may be kept."""
    assert masked("postgresql://me:s3cret@host/db") == "postgresql://me:***@host/db"
