"""Three agents at a help desk: one hands over to another, and this one gives a part of the work to a third.

The front desk and the billing agent are nodes of a LangGraph graph, and a command moves the conversation from one to
the other. The clerk is a tool of the billing agent. It must ask a person before it pays money: the question of the
innermost agent is shown by the graph, and the answer reaches that agent. Finished calls do not run again.
"""

import asyncio
from collections import Counter
from typing import Annotated

from langchain_core.messages import ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from callboard import InjectedState, create_react_agent, tool_call
from callboard.testing import ScriptedModel, calls

ran: Counter[str] = Counter()


@tool
async def look_up(invoice: str) -> str:
    """Look an invoice up."""
    ran[f"look up {invoice}"] += 1
    return f"invoice {invoice}: 250, paid twice"


@tool
async def refund(invoice: str, amount: int) -> str:
    """Pay money back, once a person agrees."""
    agreed = interrupt(f"Refund {amount} for invoice {invoice}?")
    ran[f"refund {invoice}"] += 1
    return f"{amount} refunded" if agreed == "yes" else "the refund was declined"


@tool
async def to_billing(
    state: Annotated[dict, InjectedState], tool_call_id: Annotated[str, InjectedToolCallId]
) -> Command:
    """Hand the customer over to billing."""
    done = ToolMessage("Handed over to billing.", tool_call_id=tool_call_id)
    return Command(goto="billing", graph=Command.PARENT, update={"messages": [*state["messages"], done]})


front_model = ScriptedModel([calls("to_billing")])
front = create_react_agent(front_model, [to_billing], name="front")

clerk_model = ScriptedModel(
    [calls(tool_call("look_up", invoice="7"), tool_call("refund", invoice="7", amount=250)), "Invoice 7 is settled."]
)
clerk = create_react_agent(clerk_model, [look_up, refund], name="clerk")


@tool
async def ask_clerk(task: str) -> str:
    """Have the clerk do something about an invoice."""
    result = await clerk.ainvoke({"messages": [("user", task)]})
    return str(result["messages"][-1].content)


billing_model = ScriptedModel(
    [calls(tool_call("ask_clerk", task="Invoice 7 was paid twice."), tool_call("look_up", invoice="8")), "Done."]
)
billing = create_react_agent(billing_model, [ask_clerk, look_up], name="billing")


async def main() -> None:
    builder = StateGraph(MessagesState)
    builder.add_node("front", front, destinations=("billing",))
    builder.add_node("billing", billing)
    builder.add_edge(START, "front")
    desk = builder.compile(checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": "customer-1"}}

    paused = await desk.ainvoke({"messages": [("user", "I paid invoice 7 twice.")]}, thread)
    (question,) = paused["__interrupt__"]
    print("asked:", question.value)
    assert question.value == "Refund 250 for invoice 7?"
    assert ran == {"look up 7": 1, "look up 8": 1}

    done = await desk.ainvoke(Command(resume={question.id: "yes"}), thread)
    for message in done["messages"]:
        print(f"{message.name or message.type}: {message.text or [call['name'] for call in message.tool_calls]}")
    assert [message.name for message in done["messages"] if message.type == "ai"] == ["front", "billing", "billing"]
    assert [message.text for message in done["messages"] if message.type == "tool"] == [
        "Handed over to billing.",
        "Invoice 7 is settled.",
        "invoice 8: 250, paid twice",
    ]
    assert ran == {"look up 7": 1, "look up 8": 1, "refund 7": 1}
    assert [len(model.requests) for model in (front_model, billing_model, clerk_model)] == [1, 2, 2]


if __name__ == "__main__":
    asyncio.run(main())
