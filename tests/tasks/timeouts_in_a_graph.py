"""Task: replace LangGraph's ToolNode in a graph, and give each tool a timeout."""

import anyio
from langgraph.graph import START, MessagesState, StateGraph

from callboard import CallPolicy, ToolNode, tools_condition
from callboard.testing import ScriptedModel, calls


async def search(query: str) -> str:
    """Search the web."""
    return f"one page about {query}"


async def crawl(site: str) -> str:
    """Read a whole site."""
    await anyio.sleep(3600)
    return site


async def main():
    model = ScriptedModel([calls(("search", {"query": "tea"}), ("crawl", {"site": "tea.example"})), "Tea is a drink."])

    async def ask(state):
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("agent", ask)
    graph.add_node("tools", ToolNode([search, crawl], timeout=30.0, policies={"crawl": CallPolicy(timeout=0.1)}))
    graph.add_edge(START, "agent")
    graph.add_conditional_edges("agent", tools_condition)
    graph.add_edge("tools", "agent")
    messages = (await graph.compile().ainvoke({"messages": [("user", "What is tea?")]}))["messages"]

    assert [message.type for message in messages] == ["human", "ai", "tool", "tool", "ai"]
    assert messages[2].content == "one page about tea"
    assert messages[3].additional_kwargs["callboard"]["ended"] == "timeout"
    assert messages[-1].content == "Tea is a drink."


if __name__ == "__main__":
    anyio.run(main)
