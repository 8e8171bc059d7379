"""callboard's ToolNode in a LangGraph graph: one turn with a command, two questions and finished work.

The graph, the checkpointer, `interrupt` and `Command` are LangGraph's own. The only change is the import
of `ToolNode`. Both questions of the turn are shown together and answered in any order. No finished call runs
again.
"""

import asyncio
from collections import Counter
from typing import Annotated

from langchain_core.messages import ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from callboard import ToolNode, tool_call, tools_condition  # was: from langgraph.prebuilt
from callboard.testing import ScriptedModel, calls

ran: Counter[str] = Counter()


class State(MessagesState):
    destination: str


@tool
async def choose_destination(city: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command:
    """Note where the trip goes: a result that changes the state."""
    ran["choose_destination"] += 1
    answer = ToolMessage(f"destination is {city}", tool_call_id=tool_call_id)
    return Command(update={"destination": city, "messages": [answer]})


@tool
async def book(what: str) -> str:
    """Book something, once a person agrees."""
    agreed = interrupt(f"Book the {what}?")
    ran[f"book {what}"] += 1
    return f"{what} booked" if agreed == "yes" else f"{what} refused"


TOOLS = [choose_destination, book]

model = ScriptedModel(
    [
        calls(
            tool_call("choose_destination", city="Lisbon"),
            tool_call("book", what="flight"),
            tool_call("book", what="hotel"),
        ),
        "All set.",
    ]
).bind_tools(TOOLS)


async def ask_model(state: State) -> dict:
    return {"messages": [await model.ainvoke(state["messages"])]}


async def main() -> None:
    builder = StateGraph(State)
    builder.add_node("model", ask_model)
    builder.add_node("tools", ToolNode(TOOLS, timeout=10.0))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    graph = builder.compile(checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": "trip"}}

    paused = await graph.ainvoke({"messages": [("user", "Plan a trip to Lisbon.")]}, thread)
    question_ids = {question.value: question.id for question in paused["__interrupt__"]}
    print("asked:", *question_ids)
    assert question_ids.keys() == {"Book the flight?", "Book the hotel?"}

    # One answer now, the later question first; the flight stays open.
    paused = await graph.ainvoke(Command(resume={question_ids["Book the hotel?"]: "no"}), thread)
    assert [question.value for question in paused["__interrupt__"]] == ["Book the flight?"]

    done = await graph.ainvoke(Command(resume={question_ids["Book the flight?"]: "yes"}), thread)
    answers = [message.content for message in done["messages"] if isinstance(message, ToolMessage)]
    print("answers:", *answers, sep="\n  ")
    assert answers == ["destination is Lisbon", "flight booked", "hotel refused"]
    assert done["destination"] == "Lisbon"
    assert done["messages"][-1].content == "All set."
    assert ran == {"choose_destination": 1, "book flight": 1, "book hotel": 1}


if __name__ == "__main__":
    asyncio.run(main())
