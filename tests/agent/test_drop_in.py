"""Behaviour that code written for `langgraph.prebuilt` expects; each test compares with LangGraph's agent."""

import inspect
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import langgraph.prebuilt
import pytest
from langchain_core.messages import BaseMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.errors import GraphRecursionError, InvalidUpdateError
from langgraph.types import Command, interrupt

import callboard
from callboard.testing import ScriptedModel, calls

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SIDES = [langgraph.prebuilt, callboard]
AT: Any = {"configurable": {"thread_id": "1"}}


def say(text: str) -> Any:
    return {"messages": [HumanMessage(text)]}


QUESTION: Any = say("go")


def double(x: int) -> int:
    """Double."""
    return 2 * x


def agent(side: Any, *replies: Any, **options: Any) -> Any:
    return side.create_react_agent(ScriptedModel(list(replies)), [double], **options)


def texts(messages: list[BaseMessage]) -> list[str]:
    return [message.text for message in messages]


@pytest.mark.parametrize("bound", [False, True])
def test_a_recursion_limit_holds_also_if_it_is_the_default_of_langchain(bound: bool) -> None:
    """When LangChain merges configs, it treats the limit 25 as unset; the agent must not."""

    def asked(side: Any, limit: int) -> Any:
        model = ScriptedModel([calls(("double", {"x": 1}))], loop=True)
        endless = side.create_react_agent(model, [double])
        try:
            if bound:
                return texts(endless.with_config(recursion_limit=limit).invoke(QUESTION)["messages"])
            return texts(endless.invoke(QUESTION, {"recursion_limit": limit})["messages"])
        except GraphRecursionError:
            return len(model.requests)

    assert asked(callboard, 25) == 13
    for limit in (24, 25, 26):
        assert asked(callboard, limit) == asked(langgraph.prebuilt, limit)


@pytest.mark.parametrize("side", SIDES, ids=["langgraph", "callboard"])
def test_an_agent_is_made_a_tool_by_its_schema(side: Any) -> None:
    """`as_tool` and similar methods ask a Runnable for its input and output types."""
    one = agent(side, "hi", name="clerk")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # LangChain's method is in beta
        tool = one.as_tool(name="ask_clerk", description="Ask.", arg_types={"messages": list})

    assert texts(tool.invoke(QUESTION)["messages"]) == ["go", "hi"]
    assert "messages" in str((one | (lambda state: state)).get_input_jsonschema())
    assert "messages" in one.get_output_schema().model_fields
    assert list(one.get_subgraphs()) == []


@pytest.mark.parametrize("side", SIDES, ids=["langgraph", "callboard"])
@pytest.mark.parametrize("kept", [True, False])
def test_a_command_may_begin_a_conversation(side: Any, kept: bool) -> None:
    """The update of a `Command` is treated as input."""
    one = agent(side, "hi", checkpointer=InMemorySaver() if kept else None)

    assert texts(one.invoke(Command(update=QUESTION), AT)["messages"]) == ["go", "hi"]


def test_a_command_that_goes_nowhere_is_refused_and_changes_nothing() -> None:
    """LangGraph only logs that it ignores the update; callboard raises and leaves the thread unchanged."""
    one = agent(callboard, "hi", checkpointer=InMemorySaver())
    one.invoke(QUESTION, AT)

    with pytest.raises(InvalidUpdateError, match="Node nope does not exist; there are agent, tools"):
        one.invoke(Command(update=QUESTION, goto="nope"), AT)

    assert texts(one.get_state(AT).values["messages"]) == ["go", "hi"]


def test_a_model_that_is_chosen_has_to_be_one() -> None:
    """The error names the function that chose the model."""
    one = callboard.create_react_agent(lambda state, runtime: 3, [])  # type: ignore[arg-type,return-value]

    with pytest.raises(TypeError, match="has to return a chat model for the state, got 3"):
        one.invoke(QUESTION)


def test_the_drawing_is_that_of_langgraph() -> None:
    """The drawing shows the names of the tools."""
    ours, theirs = (agent(side, "hi").get_graph().draw_mermaid() for side in SIDES)

    assert ours == theirs
    assert "double" in ours


@pytest.mark.parametrize("side", SIDES, ids=["langgraph", "callboard"])
def test_the_nodes_of_an_agent_can_be_looked_at(side: Any) -> None:
    """The agent's own nodes are functions, and the tools node is a `ToolNode`."""
    one = agent(side, "hi")

    assert list(one.nodes) == ["__start__", "agent", "tools"]
    assert inspect.isroutine(one.nodes["agent"].bound.func)
    assert list(one.nodes["tools"].bound.tools_by_name) == ["double"]


@pytest.mark.parametrize("side", SIDES, ids=["langgraph", "callboard"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_place_where_input_was_received_takes_it_in_again(side: Any, number: int) -> None:
    """With `None` the original input is taken again; other input replaces it."""
    one = agent(side, "a", "b", "c", "d", checkpointer=InMemorySaver())
    one.invoke(QUESTION, AT)
    one.invoke(say("more"), AT)
    received = [place for place in one.get_state_history(AT) if place.next == ("__start__",)][::-1][number]
    before = texts(received.values.get("messages", []))

    assert texts(received.tasks[0].result["messages"]) == ["go" if number == 0 else "more"]
    again = one.invoke(None, received.config)
    other = one.invoke(say("other"), received.config)

    assert texts(again["messages"]) == [*before, "go" if number == 0 else "more", "c"]
    assert texts(other["messages"]) == [*before, "other", "d"]


def ask(what: str) -> str:
    """Ask."""
    return f"{what}: {interrupt(what)}"


@pytest.mark.parametrize("side", SIDES, ids=["langgraph", "callboard"])
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_the_place_where_a_question_was_asked_still_has_it_when_it_was_answered(side: Any, version: Any) -> None:
    """The past state shows the question with its result; the present state shows open questions only."""
    model = ScriptedModel([calls(("ask", {"what": "tea?"})), "done"])
    one = side.create_react_agent(model, [ask], checkpointer=InMemorySaver(), version=version)
    one.invoke(QUESTION, AT)
    one.invoke(Command(resume="yes"), AT)

    (place,) = [place for place in one.get_state_history(AT) if place.interrupts]
    for seen in (place, one.get_state(place.config)):
        assert [question.value for question in seen.tasks[0].interrupts] == ["tea?"]
        assert texts(seen.tasks[0].result["messages"]) == ["tea?: yes"]
    assert one.get_state(AT).interrupts == ()


@pytest.mark.parametrize("side", SIDES, ids=["langgraph", "callboard"])
def test_what_a_user_says_of_a_run_is_kept_with_its_checkpoints(side: Any) -> None:
    """Threads can be found by their metadata and configurable values."""
    saver = InMemorySaver()
    one = agent(side, "hi", checkpointer=saver)
    one.invoke(QUESTION, {"configurable": {"thread_id": "1", "user_id": "bob"}, "metadata": {"tier": 1}})

    metadata = one.get_state(AT).metadata
    assert (metadata["tier"], metadata["user_id"], metadata["source"]) == (1, "bob", "loop")
    assert list(saver.list(None, filter={"user_id": "bob"}))
    assert {place.metadata["tier"] for place in one.get_state_history(AT, filter={"tier": 1})} == {1}
    assert not list(one.get_state_history(AT, filter={"tier": 2}))


@pytest.fixture
async def saver_of_this_loop(tmp_path: Path) -> AsyncIterator[AsyncSqliteSaver]:
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "db")) as saver:
        yield saver


@pytest.mark.backends("asyncio")
@pytest.mark.real_clock
async def test_a_sync_call_on_the_loop_of_its_saver_is_refused_and_does_not_hang(
    saver_of_this_loop: AsyncSqliteSaver,
) -> None:
    """Such a call would deadlock: it blocks the loop that its own saver needs."""
    one = agent(callboard, "hi", checkpointer=saver_of_this_loop)

    with anyio.fail_after(60):
        await one.ainvoke(QUESTION, AT)
        for call in (lambda: one.get_state(AT), lambda: one.invoke(QUESTION, AT), lambda: list(one.stream(None, AT))):
            with pytest.raises(Exception, match="Await the agent's async method instead"):
                call()
        assert texts((await one.aget_state(AT)).values["messages"]) == ["go", "hi"]


@pytest.mark.real_clock
async def test_several_conversations_run_at_once_on_any_loop() -> None:
    """`abatch` runs as many inputs at a time as the config says, and returns the results in order."""
    running: list[int] = []
    most: list[int] = []

    async def slow(n: int) -> str:
        """Wait."""
        running.append(n)
        most.append(len(running))
        await anyio.sleep(0.02)
        running.remove(n)
        return str(n)

    node = callboard.ToolNode([slow])
    batches = [[callboard.testing.tool_call("slow", "1", n=n)] for n in range(5)]
    with anyio.fail_after(60):
        outputs = await node.abatch(batches, {"max_concurrency": 2})

    assert [message.content for output in outputs for message in output["messages"]] == list("01234")
    assert max(most) == 2
    with anyio.fail_after(60):
        results = await agent(callboard, "a", "b").abatch([QUESTION, QUESTION])
    assert sorted(texts(result["messages"])[-1] for result in results) == ["a", "b"]


@pytest.mark.real_clock
async def test_an_error_of_one_conversation_ends_the_others_or_takes_its_place() -> None:
    """`return_exceptions` decides whether an error cancels the other runs or is returned in its place."""
    inputs = [[], [callboard.testing.tool_call("double", "1", x=2)]]
    node = callboard.ToolNode([double])

    with anyio.fail_after(60):
        with pytest.raises(ValueError, match="No message found"):
            await node.abatch(inputs)
        error, output = await node.abatch(inputs, return_exceptions=True)

    assert isinstance(error, ValueError)
    assert output["messages"][0].content == "4"


@pytest.mark.parametrize("number", range(1, 7))
def test_steps_of_a_fork_are_numbered_as_in_langgraph(number: int) -> None:
    """The numbers are the same for every starting place, with `None` and with new input."""

    def steps(side: Any, given: Any) -> list[int]:
        one = agent(side, *"abcdef", checkpointer=InMemorySaver())
        one.invoke(QUESTION, AT)
        one.invoke(say("more"), AT)
        places = list(one.get_state_history(AT))
        if number >= len(places):
            return []
        one.invoke(given, places[number].config)
        return [place.metadata["step"] for place in one.get_state_history(AT)][:2]

    assert steps(callboard, say("other")) == steps(langgraph.prebuilt, say("other"))
    assert steps(callboard, None) == steps(langgraph.prebuilt, None)
