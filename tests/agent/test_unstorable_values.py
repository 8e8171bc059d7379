"""Values that a database cannot store: none of them makes a finished call run again, or a rejected one run."""

from typing import Any

import pytest
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.tools import tool
from langgraph.types import Command

from callboard import Agent, StorageError, create_agent, create_react_agent
from callboard.testing import Recorder, ScriptedModel, calls

from ._savers import AT, QUESTION, complaint

pytestmark = pytest.mark.real_clock  # databases work in threads
AGENTS = pytest.mark.parametrize("make", [create_react_agent, create_agent])
DURABILITIES = pytest.mark.parametrize("durability", ["sync", "async", "exit"])
AT_ONCE = pytest.mark.parametrize("durability", ["sync", "async"])
BIG = 2**64


async def answer(agent: Agent, decisions: list[Any], durability: Any) -> Any:
    """Answer the open question of the agent's thread with decisions."""
    [question] = (await agent.aget_state(AT)).interrupts
    return await agent.ainvoke(Command(resume={question.id: {"decisions": decisions}}), AT, durability=durability)


@AT_ONCE
async def test_a_call_that_a_person_rejected_never_runs_though_the_answer_cannot_be_stored(
    saver: Any, durability: Any
) -> None:
    """The end of the question's step was stored without its result, and the calls ran as the model had written them."""
    ran: list[str] = []

    def delete(path: str) -> str:
        """Delete a file."""
        ran.append("delete")
        return "deleted"

    def pay(amount: int) -> str:
        """Pay."""
        ran.append(f"pay {amount}")
        return "paid"

    agent = create_agent(
        ScriptedModel([calls(("delete", {"path": "/"}), ("pay", {"amount": 5})), "done"]),
        [delete, pay],
        middleware=[HumanInTheLoopMiddleware({"delete": True, "pay": True})],
        checkpointer=saver,
    )
    await agent.ainvoke(QUESTION, AT, durability=durability)
    reject = {"type": "reject", "message": "never"}
    edits = [{"type": "edit", "edited_action": {"name": "pay", "args": {"amount": amount}}} for amount in (BIG, 2)]
    with pytest.raises(StorageError, match=r"amount'\] is an integer of 65 bits, and 64 are the most"):
        await answer(agent, [reject, edits[0]], durability)
    state = await agent.ainvoke(None, AT, durability=durability)
    assert ran == []
    assert "__interrupt__" in state

    await answer(agent, [reject, edits[1]], durability)
    assert ran == ["pay 2"]


@AGENTS
@DURABILITIES
async def test_a_call_whose_artifact_cannot_be_stored_runs_once(saver: Any, make: Any, durability: Any) -> None:
    """Each `invoke(None)` charged again."""
    charged: list[str] = []

    @tool(response_format="content_and_artifact")
    def charge(order: str) -> tuple[str, object]:
        """Charge."""
        charged.append(order)
        return "charged", {"receipt": [object()]}

    model = ScriptedModel([calls(("charge", {"order": "8"})), "done"])
    agent = make(model, [charge], checkpointer=saver)
    state = await agent.ainvoke(QUESTION, AT, durability=durability)
    await agent.ainvoke(None, AT, durability=durability)

    assert charged == ["8"]
    assert "artifact['receipt'][0] is a value of the type object" in state["messages"][2].text
    assert state["messages"][3].text == "done"


@AGENTS
@DURABILITIES
@pytest.mark.parametrize("value", [BIG, -BIG, [{"deep": BIG}]])
async def test_a_call_with_arguments_that_cannot_be_stored_is_answered_with_an_error(
    saver: Any, make: Any, durability: Any, value: Any
) -> None:
    """An integer beyond 64 bits is legal JSON. The thread stood before the tools, without the reply, for ever."""
    added: list[Any] = []

    def add(n: Any) -> str:
        """Add a number."""
        added.append(n)
        return "added"

    model = ScriptedModel([calls(("add", {"n": value}), ("add", {"n": 2**64 - 1})), "done"])
    agent = make(model, [add], checkpointer=saver)
    state = await agent.ainvoke(QUESTION, AT, durability=durability)

    refused, done = state["messages"][2:4]
    assert "an integer of 65 bits" in refused.text
    assert done.text == "added"
    assert added == [2**64 - 1]
    assert state["messages"][-1].text == "done"
    assert complaint(state["messages"]) is None


@AT_ONCE
async def test_a_reply_that_cannot_be_stored_is_an_error_and_its_model_is_asked_again(
    saver: Any, durability: Any
) -> None:
    """A model of one's own may put anything into a reply."""
    odd = calls(("add", {"query": "tea"}))
    odd.response_metadata = {"client": object()}
    recorder = Recorder()
    agent = create_react_agent(ScriptedModel([odd, "done"]), [recorder.tool("add")], checkpointer=saver)
    with pytest.raises(StorageError, match=r"response_metadata\['client'\] is a value of the type object"):
        await agent.ainvoke(QUESTION, AT, durability=durability)
    state = await agent.ainvoke(None, AT, durability=durability)
    assert state["messages"][-1].text == "done"
    assert recorder.count("started") <= 1


@AGENTS
async def test_without_a_database_a_tool_gets_integers_of_any_size(make: Any) -> None:
    """As in LangGraph: only a database has a largest integer."""
    added: list[Any] = []

    def add(n: Any) -> str:
        """Add a number."""
        added.append(n)
        return "added"

    state = await make(ScriptedModel([calls(("add", {"n": BIG})), "done"]), [add]).ainvoke(QUESTION)
    assert added == [BIG]
    assert state["messages"][-1].text == "done"
