"""A person approves, edits and declines the calls of one turn, in any order, in a LangGraph graph.

`RequireApproval` asks, only for payments above a limit; the tools ask nothing. A call runs only with the approved
arguments: if the amount changes between question and answer, the person is asked again.
"""

import asyncio

from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command

from callboard import ToolCallRequest, ToolNode, tool_call
from callboard.middleware import RequireApproval
from callboard.testing import calls

paid: list[str] = []


@tool
async def pay(to: str, amount: int) -> str:
    """Pay somebody."""
    paid.append(f"{to} {amount}")
    return f"paid {amount} to {to}"


def is_large(request: ToolCallRequest) -> bool:
    return bool(request.tool_call["args"]["amount"] > 100)


def in_words(request: ToolCallRequest) -> str:
    args = request.tool_call["args"]
    return f"Pay {args['amount']} to {args['to']}?"


async def model(state: MessagesState) -> dict:
    """Stand in for a model; its reply is in the input."""
    return {}


def build() -> StateGraph:
    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_node("tools", ToolNode([pay], middleware=[RequireApproval({"pay": is_large}, description=in_words)]))
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    return builder


def bills(*amounts: tuple[str, int]) -> dict:
    message = calls(*(tool_call("pay", f"call-{to}", to=to, amount=amount) for to, amount in amounts))
    message.id = "bills"
    return {"messages": [message]}


def questions(state: dict) -> dict[str, str]:
    return {question.value[0]["description"]: question.id for question in state.get("__interrupt__", ())}


async def main() -> None:
    graph = build().compile(checkpointer=InMemorySaver())

    thread = {"configurable": {"thread_id": "payday"}}
    paused = await graph.ainvoke(bills(("Ada", 90), ("Bob", 250), ("Cy", 700), ("Di", 900)), thread)
    open_questions = questions(paused)
    print("asked:", *open_questions, sep="\n  ")
    assert list(open_questions) == ["Pay 250 to Bob?", "Pay 700 to Cy?", "Pay 900 to Di?"]
    assert paid == ["Ada 90"]

    less = {"type": "edit", "args": {"action": "pay", "args": {"to": "Cy", "amount": 70}}}
    no = {"type": "ignore", "args": "Di was paid last week"}
    paused = await graph.ainvoke(
        Command(resume={open_questions["Pay 900 to Di?"]: no, open_questions["Pay 700 to Cy?"]: less}), thread
    )
    assert list(questions(paused)) == ["Pay 250 to Bob?"]
    done = await graph.ainvoke(Command(resume={open_questions["Pay 250 to Bob?"]: {"type": "accept"}}), thread)

    answers = [message.content for message in done["messages"] if isinstance(message, ToolMessage)]
    print("answers:", *answers, sep="\n  ")
    assert paid == ["Ada 90", "Cy 70", "Bob 250"]
    assert answers[3] == "User rejected the tool call for `pay` with reason: Di was paid last week"

    # The state changes after the question: the same call with ten times the amount.
    thread = {"configurable": {"thread_id": "changed"}}
    (agreed,) = questions(await graph.ainvoke(bills(("Eve", 200)), thread)).values()
    await graph.aupdate_state(thread, bills(("Eve", 2000)), as_node="model")
    paused = await graph.ainvoke(Command(resume={agreed: {"type": "accept"}}), thread)
    print("asked again:", *questions(paused))
    assert list(questions(paused)) == ["Pay 2000 to Eve?"]
    assert not any(line.startswith("Eve") for line in paid)


if __name__ == "__main__":
    asyncio.run(main())
