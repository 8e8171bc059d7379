"""Promise 11: the same behaviour on every loop, from sync code, in graphs and in agents."""

import asyncio
import contextvars
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import anyio
import pytest
from langchain_core.messages import AnyMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolCallId, ToolException, tool
from langgraph.errors import GraphInterrupt
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import create_react_agent as langgraph_react_agent
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from callboard import CallPolicy, InjectedState, Limit, ToolNode, ToolRuntime, cleanup, create_react_agent, remaining
from callboard.testing import ScriptedModel, backend, backend_names, calls

pytestmark = pytest.mark.filterwarnings("ignore::langgraph.warnings.LangGraphDeprecatedSinceV10")

SECONDS = 20
"""Time limit of one run in seconds; all runs take less than one."""

Run = Callable[[ToolNode, Any], list[ToolMessage]]
somebody: contextvars.ContextVar[str] = contextvars.ContextVar("somebody", default="nobody")


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]


def tool_messages(value: Any) -> list[ToolMessage]:
    """Return the tool messages in the result of each environment; raise its interrupts."""
    if isinstance(value, dict) and value.get("__interrupt__"):
        raise GraphInterrupt(tuple(value["__interrupt__"]))
    messages: list[ToolMessage] = []
    for item in value if isinstance(value, list) else [value]:
        update = item.update if isinstance(item, Command) else item
        messages += [m for m in update["messages"] if isinstance(m, ToolMessage)]
    return messages


def starting(message: Any) -> dict[str, Any]:
    return {"messages": [HumanMessage("go", id="h-1"), message]}


def on_loop(name: str, run: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    kind, options = backend(name, real_clock=True)

    async def run_bounded() -> Any:
        with anyio.fail_after(SECONDS):
            return await run(*args)

    return anyio.run(run_bounded, backend=kind, backend_options=options)


def graph_of(node: ToolNode) -> Any:
    builder: Any = StateGraph(State)
    builder.add_node("tools", node)
    builder.add_edge(START, "tools")
    return builder.compile()


def graph_in_graph(node: ToolNode) -> Any:
    builder: Any = StateGraph(State)
    builder.add_node("team", graph_of(node))
    builder.add_edge(START, "team")
    return builder.compile()


def ours(node: ToolNode, message: Any) -> Any:
    return create_react_agent(ScriptedModel([message, "done"]), node)


def theirs(version: Any) -> Callable[[ToolNode, Any], Any]:
    return lambda node, message: langgraph_react_agent(ScriptedModel([message, "done"]), node, version=version)


def agent_in_graph(node: ToolNode, message: Any) -> Any:
    agent = ours(node, message)

    def act(state: State, config: RunnableConfig) -> Any:
        return agent.invoke(state, config)

    builder: Any = StateGraph(State)
    builder.add_node("agent", act)
    builder.add_edge(START, "agent")
    return builder.compile()


def standalone(loop: str) -> Run:
    return lambda node, message: tool_messages(on_loop(loop, node.ainvoke, starting(message)))


def asynchronous(make: Callable[[ToolNode, Any], Any], *, agent: bool, loop: str = "asyncio") -> Run:
    def run(node: ToolNode, message: Any) -> list[ToolMessage]:
        inputs = {"messages": [HumanMessage("go", id="h-1")]} if agent else starting(message)
        return tool_messages(on_loop(loop, make(node, message).ainvoke, inputs))

    return run


def synchronous(make: Callable[[ToolNode, Any], Any], *, agent: bool) -> Run:
    def run(node: ToolNode, message: Any) -> list[ToolMessage]:
        inputs = {"messages": [HumanMessage("go", id="h-1")]} if agent else starting(message)
        return tool_messages(make(node, message).invoke(inputs))

    return run


def inside(loop: str, run: Run) -> Run:
    """Run sync code below a running event loop, which it blocks."""

    def running(node: ToolNode, message: Any) -> list[ToolMessage]:
        async def main() -> Any:
            await anyio.lowlevel.checkpoint()
            return run(node, message)

        return list(on_loop(loop, main))

    return running


def in_a_sync_tool(loop: str) -> Run:
    """Run sync code in a tool's thread, below a node of callboard."""

    def running(node: ToolNode, message: Any) -> list[ToolMessage]:
        messages: list[ToolMessage] = []

        @tool
        def outer() -> str:
            """Run a node."""
            messages.extend(tool_messages(node.invoke(starting(message))))
            return "done"

        on_loop(loop, ToolNode([outer], handle_tool_errors=False).ainvoke, [calls("outer")])
        return messages

    return running


def just_the_node(node: ToolNode, message: Any) -> Any:
    return node


SURROUNDINGS: dict[str, Run] = {
    **{f"ainvoke on {loop}": standalone(loop) for loop in backend_names(real_clock=True)},
    "invoke": synchronous(just_the_node, agent=False),
    **{
        f"invoke inside {loop}": inside(loop, synchronous(just_the_node, agent=False))
        for loop in backend_names(real_clock=True)
    },
    "invoke in a tool on asyncio": in_a_sync_tool("asyncio"),
    "invoke in a tool on trio": in_a_sync_tool("trio"),
    "graph ainvoke": asynchronous(lambda node, _: graph_of(node), agent=False),
    "graph invoke": synchronous(lambda node, _: graph_of(node), agent=False),
    "graph invoke inside asyncio": inside("asyncio", synchronous(lambda node, _: graph_of(node), agent=False)),
    "graph in a graph ainvoke": asynchronous(lambda node, _: graph_in_graph(node), agent=False),
    "graph in a graph invoke": synchronous(lambda node, _: graph_in_graph(node), agent=False),
    "agent ainvoke on asyncio": asynchronous(ours, agent=True),
    "agent ainvoke on trio": asynchronous(ours, agent=True, loop="trio"),
    "agent invoke": synchronous(ours, agent=True),
    "agent invoke inside trio": inside("trio", synchronous(ours, agent=True)),
    "agent in a graph invoke": synchronous(agent_in_graph, agent=True),
    "LangGraph's agent v1 ainvoke": asynchronous(theirs("v1"), agent=True),
    "LangGraph's agent v1 invoke": synchronous(theirs("v1"), agent=True),
    "LangGraph's agent v2 ainvoke": asynchronous(theirs("v2"), agent=True),
    "LangGraph's agent v2 invoke": synchronous(theirs("v2"), agent=True),
}

everywhere = pytest.mark.parametrize("where", SURROUNDINGS)


def fields_of(messages: list[ToolMessage]) -> list[tuple[Any, ...]]:
    """Return the texts that a model reads, and the fields of messages that a program reads."""
    return [
        (m.tool_call_id, m.name, m.content, m.status, m.additional_kwargs.get("callboard", {}).get("ended"), m.artifact)
        for m in messages
    ]


@tool
async def add(a: int, b: int = 1) -> int:
    """Add."""
    await anyio.sleep(0.01)
    return a + b


@tool
def sync_add(a: int, b: int = 1) -> int:
    """Add."""
    time.sleep(0.01)
    return a + b


@tool(response_format="content_and_artifact")
async def chart(title: str) -> tuple[str, dict[str, Any]]:
    """Draw."""
    return f"chart of {title}", {"points": [1, 2]}


@tool
async def refuse() -> str:
    """Refuse."""
    raise ToolException("not today")


@tool
async def boom() -> str:
    """Fail."""
    await anyio.sleep(0.05)
    raise KeyError("boom")


@tool
def sync_boom() -> str:
    """Fail."""
    raise KeyError("sync boom")


@tool
async def hang() -> str:
    """Never end."""
    await anyio.sleep_forever()
    return "never"


@tool
async def busy() -> str:
    """Take a while."""
    await anyio.sleep(0.3)
    return "no longer busy"


@tool
async def peek(
    count: Annotated[list[Any], InjectedState("messages")],
    tool_call_id: Annotated[str, InjectedToolCallId],
    runtime: ToolRuntime,
) -> str:
    """Look at what is injected."""
    return f"{type(count[-1]).__name__} {tool_call_id} {runtime.tool_call_id} {len(runtime.state['messages'])}"


@tool
async def command(tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Update the state."""
    return Command(update={"messages": [ToolMessage("commanded", tool_call_id=tool_call_id)]})


@tool
async def who() -> str:
    """Say who somebody is, and change it."""
    was = somebody.get()
    somebody.set("async tool")
    return was


@tool
def sync_who() -> str:
    """Say who somebody is, and change it."""
    was = somebody.get()
    somebody.set("sync tool")
    return was


@tool
async def left() -> str:
    """Say whether there is an end."""
    return f"{0 < remaining() <= 5}"


@tool
async def ask(question: str) -> str:
    """Ask a person."""
    return f"{interrupt(question)}"


ALL: list[BaseTool] = [
    add,
    sync_add,
    chart,
    refuse,
    boom,
    sync_boom,
    hang,
    busy,
    peek,
    command,
    who,
    sync_who,
    left,
    ask,
]  # type: ignore[list-item]


def node_of(**options: Any) -> ToolNode:
    return ToolNode(ALL, **options)


@everywhere
def test_results_come_in_call_order(where: str) -> None:
    message = calls(
        ("sync_add", {"a": 1, "b": 2}),
        ("add", {"a": 3}),
        ("chart", {"title": "tea"}),
        "nowhere",
        ("add", {"a": 4, "b": 4}),
    )
    messages = fields_of(SURROUNDINGS[where](node_of(), message))
    unknown = f"Error: nowhere is not a valid tool, try one of [{', '.join(tool.name for tool in ALL)}]."
    assert messages == [
        ("call_1", "sync_add", "3", "success", None, None),
        ("call_2", "add", "4", "success", None, None),
        ("call_3", "chart", "chart of tea", "success", None, {"points": [1, 2]}),
        ("call_4", "nowhere", unknown, "error", None, None),
        ("call_5", "add", "8", "success", None, None),
    ]


@everywhere
def test_invalid_arguments_become_the_same_message(where: str) -> None:
    (message,) = SURROUNDINGS[where](node_of(), calls(("add", {"a": "x"})))
    assert message.status == "error"
    assert message.content.startswith("Error invoking tool 'add' with kwargs {'a': 'x'} with error:\n a: ")


@everywhere
def test_errors_become_messages_where_they_are_handled(where: str) -> None:
    messages = fields_of(SURROUNDINGS[where](node_of(handle_tool_errors=True), calls("boom", "sync_boom", "refuse")))
    text = "Error: {}\n Please fix your mistakes."
    assert messages == [
        ("call_1", "boom", text.format("KeyError('boom')"), "error", None, None),
        ("call_2", "sync_boom", text.format("KeyError('sync boom')"), "error", None, None),
        ("call_3", "refuse", text.format("ToolException('not today')"), "error", None, None),
    ]


@everywhere
def test_an_error_that_nobody_handles_arrives_bare_and_ends_the_others(where: str) -> None:
    if where == "LangGraph's agent v2 invoke":
        pytest.skip("each call is a thread of LangGraph's here, and it waits for all of them")
    cleaned: list[str] = []

    @tool
    async def careful() -> str:
        """Clean up."""
        try:
            await anyio.sleep_forever()
        finally:
            with cleanup():
                await anyio.sleep(0.05)
                cleaned.append("yes")
        return "never"

    began = time.monotonic()
    with pytest.raises(KeyError) as caught:
        SURROUNDINGS[where](ToolNode([*ALL, careful]), calls("careful", "boom", "hang"))
    assert type(caught.value) is KeyError
    assert cleaned == ["yes"]
    assert time.monotonic() - began < 5


@everywhere
def test_calls_that_end_without_a_result_get_the_same_messages(where: str) -> None:
    node = node_of(
        policies={
            "hang": CallPolicy(timeout=0.2),
            "busy": CallPolicy(limit=Limit(concurrency=1, queue=0)),
            "ask": CallPolicy(budget=5),
        }
    )
    messages = SURROUNDINGS[where](node, calls("hang", "busy", "busy"))
    assert [(m.status, m.additional_kwargs.get("callboard", {}).get("ended")) for m in messages[:1]] == [
        ("error", "timeout")
    ]
    assert messages[0].content == "Error: Tool 'hang' did not finish within its timeout of 0.2 s."
    # LangGraph's v2 runs each call as a task of its own, so the two messages may come in either order.
    assert sorted((m.status, m.additional_kwargs.get("callboard", {}).get("ended")) for m in messages[1:]) == [
        ("error", "rejected"),
        ("success", None),
    ]


@everywhere
def test_a_call_can_read_what_is_left(where: str) -> None:
    node = node_of(policies={"left": CallPolicy(timeout=5)})
    assert [m.content for m in SURROUNDINGS[where](node, calls("left"))] == ["True"]


@everywhere
def test_the_state_and_the_id_are_injected(where: str) -> None:
    (message,) = SURROUNDINGS[where](node_of(), calls("peek"))
    assert message.content == "AIMessage call_1 call_1 2"


@everywhere
def test_a_command_carries_the_message(where: str) -> None:
    messages = SURROUNDINGS[where](node_of(), calls(("add", {"a": 1}), "command", ("add", {"a": 2})))
    assert [(m.tool_call_id, m.name, m.content) for m in messages] == [
        ("call_1", "add", "2"),
        ("call_2", "command", "commanded"),
        ("call_3", "add", "3"),
    ]


@everywhere
def test_context_variables_go_in_and_do_not_come_out(where: str) -> None:
    token = somebody.set("caller")
    try:
        messages = SURROUNDINGS[where](node_of(), calls("who", "sync_who", "who"))
        assert [m.content for m in messages] == ["caller"] * 3
        assert somebody.get() == "caller"
    finally:
        somebody.reset(token)


@everywhere
def test_all_questions_come_together(where: str) -> None:
    with pytest.raises(GraphInterrupt) as caught:
        SURROUNDINGS[where](
            node_of(), calls(("ask", {"question": "a?"}), ("add", {"a": 1}), ("ask", {"question": "b?"}))
        )
    questions = caught.value.args[0]
    values = [question.value for question in questions]
    if where == "LangGraph's agent v2 invoke":
        values.sort()  # each call is a thread of LangGraph here, which lists questions in the order of arrival
    assert values == ["a?", "b?"]
    assert len({question.id for question in questions}) == 2


@everywhere
def test_a_wrapper_sees_every_call(where: str) -> None:
    call_ids: list[str] = []

    async def wrapper(request: Any, execute: Callable[[Any], Awaitable[Any]]) -> Any:
        call_ids.append(request.tool_call["id"])
        message = await execute(request)
        return message.model_copy(update={"content": f"<{message.content}>"})

    messages = SURROUNDINGS[where](node_of(awrap_tool_call=wrapper), calls(("add", {"a": 1}), ("sync_add", {"a": 2})))
    assert [m.content for m in messages] == ["<2>", "<3>"]
    assert sorted(call_ids) == ["call_1", "call_2"]


@everywhere
def test_a_sync_wrapper_sees_every_call(where: str) -> None:
    def wrapper(request: Any, execute: Callable[[Any], Any]) -> Any:
        message = execute(request)
        return message.model_copy(update={"content": f"<{message.content}>"})

    messages = SURROUNDINGS[where](node_of(wrap_tool_call=wrapper), calls(("add", {"a": 1}), ("sync_add", {"a": 2})))
    assert [m.content for m in messages] == ["<2>", "<3>"]


@everywhere
def test_a_tool_of_asyncio_runs(where: str) -> None:
    class Foreign(BaseTool):
        name: str = "foreign"
        description: str = "Needs asyncio."

        def _run(self) -> str:
            raise NotImplementedError

        async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
            (result,) = await asyncio.gather(asyncio.sleep(0.01, "gathered"))
            return ToolMessage(result, tool_call_id=input["id"], name=self.name)

    (message,) = SURROUNDINGS[where](ToolNode([Foreign()]), calls("foreign"))
    assert message.content == "gathered"


@everywhere
def test_a_nested_sync_run_in_an_async_tool(where: str) -> None:
    """Promise 11: a tool may call sync code that runs another node, although its thread has a running event loop."""
    inner = ToolNode([add, sync_add])

    @tool
    async def nested() -> str:
        """Run a node from sync code."""
        return str([m.content for m in inner.invoke([calls(("add", {"a": 1}), ("sync_add", {"a": 2}))])])

    (message,) = SURROUNDINGS[where](ToolNode([nested]), calls("nested"))
    assert message.content == "['2', '3']"
