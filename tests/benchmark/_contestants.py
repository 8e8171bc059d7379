"""The same calls, run by callboard, by LangGraph, and by minimal code."""

import warnings
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import anyio
import langgraph.prebuilt
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolCall, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.runtime import DEFAULT_RUNTIME

Work = Callable[[], Awaitable[object]]


async def look_up(query: str, limit: int = 10) -> str:
    """Look something up."""
    return f"{query} {limit}"


RUNTIME = {"__pregel_runtime": DEFAULT_RUNTIME}
"""Runtime that a graph provides, and without which LangGraph's ToolNode does not run."""

LOOK_UP = StructuredTool.from_function(coroutine=look_up)


def asking(name: str, argument: str, values: Sequence[object]) -> AIMessage:
    """Return a message that requests a call with each of the values."""
    calls = [
        ToolCall(name=name, args={argument: value}, id=f"call_{number}", type="tool_call")
        for number, value in enumerate(values)
    ]
    return AIMessage(content="", id="reply", tool_calls=calls)


def queries(count: int, name: str = "look_up") -> AIMessage:
    return asking(name, "query", [f"query {number}" for number in range(count)])


def direct(node: Any, message: AIMessage) -> Work:
    return lambda: node.ainvoke({"messages": [message]}, {"configurable": RUNTIME})


def in_graph(node: Any, message: AIMessage) -> Work:
    graph = StateGraph(MessagesState)
    graph.add_node("tools", node)
    graph.add_edge(START, "tools")
    graph.add_edge("tools", END)
    compiled = graph.compile()
    return lambda: compiled.ainvoke({"messages": [message]})


def as_node(run_batch: Work) -> Callable[[object], Awaitable[object]]:
    """Return a node of a graph that does a piece of work, whose result is a list of messages."""

    async def node(state: object) -> object:
        return {"messages": await run_batch()}

    return node


def langgraph_agent(model: BaseChatModel, version: Literal["v1", "v2"] = "v2", saver: Any = None) -> Any:
    """Return LangGraph's agent with the tool `look_up`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # langgraph.prebuilt marks its agent as deprecated
        return langgraph.prebuilt.create_react_agent(model, [LOOK_UP], checkpointer=saver, version=version)


def floor(tool: BaseTool, body: Callable[..., Awaitable[str]], message: AIMessage) -> Work:
    """Run a task, the validation of the arguments and a ToolMessage for each call, and nothing else."""
    schema: Any = tool.args_schema
    fields = tuple(schema.model_fields)

    async def run() -> list[ToolMessage]:
        results: list[Any] = [None] * len(message.tool_calls)

        async def one(index: int, call: ToolCall) -> None:
            arguments = schema.model_validate(call["args"])
            content = await body(**{name: getattr(arguments, name) for name in fields})
            results[index] = ToolMessage(content=content, name=call["name"], tool_call_id=call["id"])

        async with anyio.create_task_group() as group:
            for index, call in enumerate(message.tool_calls):
                group.start_soon(one, index, call)
        return results

    return run
