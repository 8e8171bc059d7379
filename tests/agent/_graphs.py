"""Helpers for graphs around agents and agents within calls, with a record of events."""

from typing import Annotated, Any

from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState
from langgraph.types import Command, Send, interrupt

from callboard import tool_call
from callboard.testing import calls


class Desk:
    """Tools that record their executions in order."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def tools(self, *extra_tools: Any) -> list[Any]:
        @tool
        async def work(query: str = "") -> str:
            """Work."""
            self.log.append(f"work {query}")
            get_stream_writer()(f"at work on {query}")
            return f"did {query}"

        @tool
        async def ask(query: str = "") -> str:
            """Ask."""
            self.log.append(f"ask {query}")
            answer = interrupt(query)
            self.log.append(f"answered {query}")
            return f"{query}: {answer}"

        return [work, ask, *extra_tools]

    def node(self, name: str) -> Any:
        """Return a node that only records its execution."""

        async def body(state: Any) -> None:
            self.log.append(name)

        return body


def busy(number: str = "") -> AIMessage:
    """A reply with one call that finishes and two that ask."""
    return calls(
        tool_call("work", f"w{number}", query="x"),
        tool_call("ask", f"a{number}", query="a"),
        tool_call("ask", f"b{number}", query="b"),
    )


def chain(*nodes: tuple[str, Any], saver: Any = None, state: Any = MessagesState) -> Any:
    """A graph whose nodes run one after the other."""
    builder = StateGraph(state)
    for before, (name, node) in zip([START, *(name for name, _ in nodes)], nodes, strict=False):
        builder.add_node(name, node)
        builder.add_edge(before, name)
    return builder.compile(checkpointer=saver)


def ids(result: Any) -> dict[str, str]:
    """Return the ids of the open questions, by question."""
    return {question.value: question.id for question in result.get("__interrupt__", ())}


def delegate(agent: Any, name: str, log: list[str] | None = None) -> Any:
    """Return a tool that runs an agent."""

    @tool(name)
    async def body(query: str = "go") -> str:
        """Hand a task on."""
        if log is not None:
            log.append(f"{name} {query}")
        result = await agent.ainvoke({"messages": [("user", query)]})
        return str(result["messages"][-1].content)

    return body


def asking(question: str, name: str = "ask") -> Any:
    """Return a tool that asks one question, and returns the answer."""

    @tool(name)
    async def body() -> str:
        """Ask."""
        return str(interrupt(question))

    return body


def hand_off(to: str, *, send: bool = False) -> Any:
    """Return a tool that hands the conversation to another agent of the surrounding graph."""

    @tool(f"to_{to}")
    async def body(
        state: Annotated[dict[str, Any], InjectedState], tool_call_id: Annotated[str, InjectedToolCallId]
    ) -> Command[Any]:
        """Hand over."""
        update = {"messages": [*state["messages"], ToolMessage(f"over to {to}", tool_call_id=tool_call_id)]}
        if send:
            return Command(goto=[Send(to, update)], graph=Command.PARENT)
        return Command(goto=to, update=update, graph=Command.PARENT)

    return body
