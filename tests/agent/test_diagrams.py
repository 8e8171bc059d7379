"""The systems of the commissioned sequence diagrams: approval, refusal, a changed plan, time travel, a typed answer."""

from typing import Annotated, Any

import anyio
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END
from langgraph.store.memory import InMemoryStore
from pydantic import BaseModel

from callboard import AgentState, InjectedState, InjectedStore, create_react_agent
from callboard.testing import Recorder, ScriptedModel, calls

pytestmark = pytest.mark.real_clock

WAIT = 20
ORDER: Any = {"configurable": {"thread_id": "order-123"}}
QUESTION = {"messages": [HumanMessage("cancel my order")]}


def stopped_before_tools(*replies: Any) -> tuple[Any, Recorder, ScriptedModel]:
    """An agent that stops before its tools, so that a person can inspect each call."""
    recorder, model = Recorder(), ScriptedModel(list(replies))
    tools = [recorder.tool("cancel_order"), recorder.tool("check_stock")]
    return (
        create_react_agent(model, tools, checkpointer=InMemorySaver(), interrupt_before=["tools"]),
        recorder,
        model,
    )


CANCEL = calls(("cancel_order", {"query": "123"}))


async def asked(agent: Any) -> Any:
    """Run until the agent stops, and return its state."""
    await agent.ainvoke(QUESTION, ORDER)
    snapshot = await agent.aget_state(ORDER)
    assert snapshot.next == ("tools",)
    assert [call["name"] for call in snapshot.values["messages"][-1].tool_calls] == ["cancel_order"]
    return snapshot


async def test_an_approved_call_runs_and_the_loop_goes_on() -> None:
    """`invoke(None)` continues without new input."""
    agent, recorder, _ = stopped_before_tools(CANCEL, "cancelled")
    with anyio.fail_after(WAIT):
        await asked(agent)
        result = await agent.ainvoke(None, ORDER)

    assert recorder.order == ["cancel_order(123)"]
    assert result["messages"][-1].content == "cancelled"


@pytest.mark.parametrize("replaces", [True, False], ids=["in its place", "after it"])
async def test_a_refused_call_does_not_run(replaces: bool) -> None:
    """The person replaces the model's message by one without calls, or adds a message in the model's name."""
    agent, recorder, model = stopped_before_tools(CANCEL, "what else?")
    with anyio.fail_after(WAIT):
        snapshot = await asked(agent)
        refusal = AIMessage("refused", id=snapshot.values["messages"][-1].id if replaces else None)
        await agent.aupdate_state(ORDER, {"messages": [refusal]}, as_node="agent")
        assert (await agent.aget_state(ORDER)).next == ()
        result = await agent.ainvoke(None, ORDER)
        more = await agent.ainvoke({"messages": [HumanMessage("well")]}, ORDER)

    assert recorder.count("started") == 0
    assert result["messages"][-1].content == "refused"
    assert more["messages"][-1].content == "what else?"
    assert len(model.requests) == 2


@pytest.mark.parametrize("as_node", [END, "__start__"])
async def test_with_a_further_instruction_the_model_decides_again(as_node: str) -> None:
    """The model reads the new instruction, and its earlier call has not run."""
    agent, recorder, model = stopped_before_tools(CANCEL, calls(("check_stock", {"query": "123"})), "in stock")
    with anyio.fail_after(WAIT):
        await asked(agent)
        await agent.aupdate_state(ORDER, {"messages": [HumanMessage("check the stock first")]}, as_node=as_node)
        assert (await agent.aget_state(ORDER)).next == ("agent",)
        await agent.ainvoke(None, ORDER)
        assert recorder.count("started") == 0
        result = await agent.ainvoke(None, ORDER)

    assert model.requests[1][-1].content == "check the stock first"
    assert isinstance(model.requests[1][-2], ToolMessage)
    assert recorder.order == ["check_stock(123)"]
    assert result["messages"][-1].content == "in stock"


async def test_a_plan_is_changed_before_it_is_carried_out() -> None:
    """The person writes a message in the model's name with other calls and with a new id."""
    agent, recorder, _ = stopped_before_tools(calls("cancel_order", ("check_stock", {"query": "123"})), "checked")
    with anyio.fail_after(WAIT):
        await agent.ainvoke(QUESTION, ORDER)
        planned = (await agent.aget_state(ORDER)).values["messages"][-1].tool_calls
        wanted = [call for call in planned if call["name"] != "cancel_order"]
        await agent.aupdate_state(ORDER, {"messages": [AIMessage("another plan", tool_calls=wanted)]}, as_node="agent")
        assert (await agent.aget_state(ORDER)).next == ("tools",)
        result = await agent.ainvoke(None, ORDER)

    assert recorder.order == ["check_stock(123)"]
    assert result["messages"][-1].content == "checked"


async def test_the_thread_is_kept_and_any_of_its_places_is_one_to_go_back_to() -> None:
    """After two turns of one thread, a new branch starts from the checkpoint at the end of the first."""
    recorder, model = Recorder(), ScriptedModel([calls(("work", {"query": "a"})), "one", "two", "another two"])
    agent = create_react_agent(model, [recorder.tool("work")], checkpointer=InMemorySaver())
    with anyio.fail_after(WAIT):
        await agent.ainvoke(QUESTION, ORDER)
        await agent.ainvoke({"messages": [HumanMessage("and?")]}, ORDER)
        history = [place async for place in agent.aget_state_history(ORDER)]
        first = next(place for place in history if len(place.values.get("messages", ())) == 4 and not place.next)
        result = await agent.ainvoke({"messages": [HumanMessage("or?")]}, first.config)

    assert [message.content for message in result["messages"]][-3:] == ["one", "or?", "another two"]
    assert recorder.count("started") == 1


class Spending(AgentState):
    user: str


async def test_state_and_store_are_injected_into_calls_side_by_side() -> None:
    """The model neither sees the injected arguments nor sets them."""

    @tool
    async def whose(user: Annotated[str, InjectedState("user")]) -> str:
        """Say whose it is."""
        return user

    @tool
    async def known(store: Annotated[Any, InjectedStore()]) -> str:
        """Say what is known."""
        return str((await store.aget(("facts",), "colour")).value["is"])

    store = InMemoryStore()
    store.put(("facts",), "colour", {"is": "blue"})
    model = ScriptedModel([calls("whose", "known"), "done"])
    agent = create_react_agent(model, [whose, known], store=store, state_schema=Spending)
    with anyio.fail_after(WAIT):
        result = await agent.ainvoke({**QUESTION, "user": "ann"})

    answers = [message.content for message in result["messages"] if isinstance(message, ToolMessage)]
    assert answers == ["ann", "blue"]


class Answer(BaseModel):
    city: str
    degrees: int


async def test_the_typed_answer_is_made_once_and_at_the_end() -> None:
    """The structured response is made once after the loop, and never between its steps."""
    recorder = Recorder()
    model = ScriptedModel(
        [calls(("work", {"query": "a"})), "warm", calls(("Answer", {"city": "Paris", "degrees": 20}))]
    )
    agent = create_react_agent(model, [recorder.tool("work")], response_format=Answer)
    with anyio.fail_after(WAIT):
        result = await agent.ainvoke(QUESTION)

    assert result["structured_response"] == Answer(city="Paris", degrees=20)
    assert [message.type for message in result["messages"]] == ["human", "ai", "tool", "ai"]
