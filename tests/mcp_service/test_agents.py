"""Agents served as tools: a message in, its answer out; the client's user answers the agent's questions."""

from typing import Any

import anyio
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

from callboard import create_react_agent, progress
from callboard.testing import ScriptedModel, calls

from ._clients import DECLINED, Person, client_of, fill_in, in_both_eras, text_in, tools_of

pytestmark = pytest.mark.real_clock  # LangGraph calls its own checkpointers in a thread

BOOKING = [calls(("book", {"hotel": "Minerva"})), AIMessage("It is booked.")]


async def book(hotel: str) -> str:
    """Book a hotel."""
    progress("looks for a room", done=1, total=2)
    return f"{hotel}: {interrupt(f'Book {hotel}?')}"


def clerk(*script: Any, **options: Any) -> Any:
    """Return an agent with a scripted model."""
    return create_react_agent(ScriptedModel([*script]), [book], name="the clerk", **options)


async def test_an_agent_is_one_tool_that_takes_a_message() -> None:
    """The tool's name is valid in the protocol; the client's model chooses by its description."""
    async with client_of(clerk(), "legacy", description="Books hotels.") as client:
        [listed_tool] = (await client.list_tools()).tools

    assert (listed_tool.name, listed_tool.description) == ("the_clerk", "Books hotels.")
    assert listed_tool.input_schema["required"] == ["message"]
    assert set(listed_tool.input_schema["properties"]) == {"message"}
    threaded_tool = (await tools_of(clerk(checkpointer=InMemorySaver())))["the_clerk"]
    assert set(threaded_tool.input_schema["properties"]) == {"message", "thread_id"}


@in_both_eras
async def test_the_answer_of_the_agent_is_the_result(era: str) -> None:
    """Questions of the agent's tools are asked during the call, and each step is a progress report."""
    steps: list[str | None] = []

    async def hear(done: float, total: float | None, message: str | None) -> None:
        steps.append(message)

    person = Person(fill_in(answer="yes"))
    agent = clerk(*BOOKING, checkpointer=InMemorySaver())
    async with client_of(agent, era, elicitation_callback=person) as client:
        result = await client.call_tool("the_clerk", {"message": "Book!"}, progress_callback=hear)

    assert (text_in(result), (result.structured_content or {})["answer"]) == ("It is booked.", "It is booked.")
    assert [form.message for form in person.received_forms] == ["Book Minerva?"]
    assert {"agent: calls book", "tools", "agent"} >= {step for step in steps if step and "book:" not in step} - {
        "waits for a person"
    }
    assert steps[-1] == "agent"


@in_both_eras
async def test_a_conversation_goes_on_by_its_thread(era: str) -> None:
    """The answer of an agent with a checkpointer names its thread. Without a thread each message starts a new one."""
    model = ScriptedModel([AIMessage("Hello."), AIMessage("Again."), AIMessage("Who?")])
    agent = create_react_agent(model, [], name="clerk", checkpointer=InMemorySaver())
    async with client_of(agent, era) as client:
        first = await client.call_tool("clerk", {"message": "Hi"})
        thread = (first.structured_content or {})["thread_id"]
        second_result = await client.call_tool("clerk", {"message": "Me", "thread_id": thread})
        new_thread_result = await client.call_tool("clerk", {"message": "Me"})
    state = await agent.aget_state({"configurable": {"thread_id": thread}})

    assert second_result.structured_content == {"answer": "Again.", "thread_id": thread}
    assert (new_thread_result.structured_content or {})["thread_id"] != thread
    human_texts = [message.content for message in state.values["messages"] if isinstance(message, HumanMessage)]
    assert human_texts == ["Hi", "Me"]


async def test_an_agent_without_a_name_is_a_tool_named_agent() -> None:
    """LangGraph's default name, kept for compatibility, would tell a client nothing."""
    agent = create_react_agent(ScriptedModel([AIMessage("Hello.")]), [])
    async with client_of(agent, "legacy") as client:
        [tool] = (await client.list_tools()).tools
        result = await client.call_tool("agent", {"message": "Hi"})

    assert (tool.name, tool.description) == ("agent", "Ask the agent 'agent'.")
    assert (result.structured_content or {})["answer"] == "Hello."


@pytest.fixture
def savers(monkeypatch: pytest.MonkeyPatch) -> list[InMemorySaver]:
    """Yield the checkpointers that are created for agents without one."""
    created_savers: list[InMemorySaver] = []

    class Noted(InMemorySaver):
        def __init__(self) -> None:
            super().__init__()
            created_savers.append(self)

    monkeypatch.setattr("callboard_actors.mcp_service._offers.InMemorySaver", Noted)
    return created_savers


async def test_what_an_agent_without_a_checkpointer_keeps_goes_with_the_call(savers: list[InMemorySaver]) -> None:
    """A server runs for months, so the state is dropped whether a call succeeds, is refused or fails."""
    agent = clerk(*BOOKING, BOOKING[0], BOOKING[0], OSError("no line"))
    async with client_of(agent, "legacy", elicitation_callback=Person(fill_in(answer="yes"), DECLINED)) as client:
        well = await client.call_tool("the_clerk", {"message": "Book!"})
        refused = await client.call_tool("the_clerk", {"message": "Book!"})
    async with client_of(agent, "legacy") as client:
        unable = await client.call_tool("the_clerk", {"message": "Book!"})
        failed = await client.call_tool("the_clerk", {"message": "Book!"})

    assert [item.is_error for item in (well, refused, unable, failed)] == [False, True, True, True]
    assert "no line" in text_in(failed)
    assert [dict(item.storage) for item in savers] == [{}, {}]


async def test_an_agent_without_a_checkpointer_does_not_ask_a_client_of_2026(savers: list[InMemorySaver]) -> None:
    """Between the question and the answer, no request holds the run; the model reads what to change."""
    async with client_of(clerk(*BOOKING), "2026-07-28", elicitation_callback=Person()) as client:
        result = await client.call_tool("the_clerk", {"message": "Book!"})

    assert result.is_error
    assert "the agent has no checkpointer" in text_in(result)
    assert not savers[0].storage


@pytest.mark.parametrize(
    ("era", "when"), [("legacy", "it runs"), ("legacy", "a person is asked"), ("2026-07-28", "it runs")]
)
async def test_a_run_that_is_cancelled_leaves_nothing_behind(era: str, when: str, savers: list[InMemorySaver]) -> None:
    """A cancelled run has no reader, so its thread of conversation goes."""
    waits = anyio.Event()

    async def wait() -> str:
        """Wait."""
        waits.set()
        await anyio.sleep_forever()
        return ""

    async def think(*_: object) -> Any:
        waits.set()
        await anyio.sleep_forever()

    first = calls("wait") if when == "it runs" else BOOKING[0]
    agent = create_react_agent(ScriptedModel([first]), [wait, book], name="clerk")
    async with client_of(agent, era, elicitation_callback=think) as client:
        async with anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "clerk", {"message": "Go!"})
            await waits.wait()
            group.cancel_scope.cancel()
        while savers[0].storage:
            await anyio.sleep(0.01)


@in_both_eras
@pytest.mark.parametrize(
    "arguments", [{}, {"message": 3}, {"message": "Hi", "thread_id": "1"}, {"message": "Hi", "x": 1}]
)
async def test_a_wrong_argument_is_told_to_the_model_of_the_client(era: str, arguments: dict[str, Any]) -> None:
    """Wrong arguments are refused without asking the agent's own model."""
    async with client_of(clerk(), era) as client:
        result = await client.call_tool("the_clerk", arguments)

    assert result.is_error
    assert text_in(result).startswith("The agent takes")
