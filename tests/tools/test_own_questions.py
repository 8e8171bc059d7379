"""A tool call that asked a question can continue from that question instead of starting again."""

from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from callboard import CallsInterrupted, ToolNode, can_ask, create_react_agent, earlier_question, tool_call
from callboard.middleware import Retry
from callboard.testing import ScriptedModel, calls

begun: list[object] = []


def wizard() -> str:
    """Ask for a name, and then for a colour."""
    state: Any = earlier_question()
    begun.append(state)
    answers: dict[str, str] = {} if state is None else dict(state["given"])
    if state is not None:
        answers[state["wants"]] = interrupt(state)
    for field in ("name", "colour"):
        if field not in answers:
            interrupt({"wants": field, "given": answers})
    return f"{answers['name']} likes {answers['colour']}"


async def test_a_call_finds_what_it_asked_and_what_it_had_then() -> None:
    """Without stored progress, a call would repeat its work after each answer."""
    begun.clear()
    node, ledger, resume = ToolNode([wizard]), None, None
    for answer in ("Ada", "red"):
        try:
            await node.ainvoke([tool_call("wizard", "1")], ledger=ledger, resume=resume)
        except CallsInterrupted as asked:
            ledger, resume = asked.ledger, {asked.interrupts[0].id: answer}

    [message] = (await node.ainvoke([tool_call("wizard", "1")], ledger=ledger, resume=resume))["messages"]

    assert message.content == "Ada likes red"
    assert begun == [None, {"wants": "name", "given": {}}, {"wants": "colour", "given": {"name": "Ada"}}]


async def test_it_is_found_in_a_thread_of_an_agent_that_another_process_resumes() -> None:
    """The question is in the database, and the resuming process needs nothing else."""
    begun.clear()
    saver, config = InMemorySaver(), {"configurable": {"thread_id": "1"}}
    model = ScriptedModel([calls("wizard"), "Done."])

    def agent() -> Any:
        return create_react_agent(model, [wizard], checkpointer=saver)

    state = await agent().ainvoke({"messages": ["go"]}, config)
    for answer in ("Ada", "red"):
        state = await agent().ainvoke(Command(resume={state["__interrupt__"][0].id: answer}), config)

    assert state["messages"][2].content == "Ada likes red"
    assert begun[1:] == [{"wants": "name", "given": {}}, {"wants": "colour", "given": {"name": "Ada"}}]


async def test_an_attempt_after_the_one_that_took_the_answer_begins_anew() -> None:
    """The failed attempt consumed the stored progress, so the next attempt starts from the beginning."""
    questions: list[object] = []

    def flaky() -> str:
        """Ask, and fail once."""
        questions.append(earlier_question())
        if questions[-1] is not None or len(questions) == 1:
            interrupt("well?")
            raise ConnectionError
        return "at last"

    node = ToolNode([flaky], middleware=[Retry(attempts=2, initial=0.1, any_tool=True)])
    try:
        await node.ainvoke([tool_call("flaky", "1")])
    except CallsInterrupted as asked:
        resume = {asked.interrupts[0].id: "yes"}
        [message] = (await node.ainvoke([tool_call("flaky", "1")], ledger=asked.ledger, resume=resume))["messages"]

    assert (message.content, questions) == ("at last", [None, "well?", None])


async def test_only_a_call_can_ask() -> None:
    """A library that runs without a node gets an early error and can choose another way to ask."""

    def look() -> str:
        """Look."""
        return str(can_ask())

    [message] = (await ToolNode([look]).ainvoke([tool_call("look", "1")]))["messages"]
    assert (message.content, can_ask(), earlier_question()) == ("True", False, None)
