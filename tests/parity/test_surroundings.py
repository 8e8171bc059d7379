"""Configs, streams and checkpoints of agents within graphs and tools, those of LangGraph's and LangChain's agents."""

import re
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent as langchain_agent
from langchain.agents.middleware import AgentMiddleware, before_model
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langchain_core.tracers import BaseTracer
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, push_message
from langgraph.prebuilt import InjectedState, ToolRuntime
from langgraph.prebuilt import create_react_agent as langgraph_agent
from langgraph.types import Command, TracePolicy, omit_payload

from callboard import create_agent, create_react_agent, tool_call
from callboard.testing import ScriptedModel, calls

pytestmark = [pytest.mark.real_clock, pytest.mark.backends("asyncio")]

PAIRS = {"react": (langgraph_agent, create_react_agent), "create_agent": (langchain_agent, create_agent)}
pairs = pytest.mark.parametrize(("theirs", "ours"), PAIRS.values(), ids=PAIRS)
QUESTION: Any = {"messages": [HumanMessage("q", id="h")]}
THREAD: Any = {"configurable": {"thread_id": "1", "user": "ann"}, "metadata": {"mine": 1}}
ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

Program = Callable[[Any], Awaitable[list[Any]]]


async def check(program: Program, theirs: Any, ours: Any) -> list[Any]:
    """Run a program with both agents, compare what it returns, and return that."""
    expected, result = [plain(await program(create), {}) for create in (theirs, ours)]
    assert result == expected
    return result  # type: ignore[no-any-return]


def plain(value: Any, ids: dict[str, str]) -> Any:
    """Return a value in words, with ids numbered in the order of their appearance."""
    if isinstance(value, BaseMessage):
        return f"{value.type}:{value.content}"
    if isinstance(value, dict):
        return {plain(key, ids): plain(value[key], ids) for key in sorted(value)}
    if isinstance(value, (list, tuple)):
        return [plain(item, ids) for item in value]
    return ID.sub(lambda match: ids.setdefault(match[0], str(len(ids))), value) if isinstance(value, str) else value


def looking(records: list[Any]) -> Any:
    """Return a tool that records its surroundings."""

    @tool
    async def look(config: RunnableConfig, state: Annotated[Any, InjectedState], runtime: ToolRuntime) -> str:
        """Look around."""
        about = {name: config["metadata"].get(name) for name in ("checkpoint_ns", "thread_id", "user", "mine")}
        assert runtime.execution_info is not None
        first = runtime.execution_info.node_first_attempt_time
        records.append([about, config["configurable"]["checkpoint_map"], sorted(state or ()), type(first)])
        return "ok"

    return look


def asking(create: Any, *tools: Any, **options: Any) -> Any:
    """Return an agent whose model calls each tool, and ends."""
    script = [calls(*[tool_call(tool.name, str(number)) for number, tool in enumerate(tools)]), "done"]
    return create(ScriptedModel(script), [*tools], **options)


def graph_of(**nodes: Any) -> Any:
    builder: Any = StateGraph(MessagesState)
    for name, node in nodes.items():
        builder.add_node(name, node)
    return builder.add_edge(START, next(iter(nodes))).compile(checkpointer=InMemorySaver())


@pytest.mark.parametrize("surrounding", ["alone", "node", "function", "tool"])
@pairs
async def test_a_tool_has_the_same_surroundings(theirs: Any, ours: Any, surrounding: str) -> None:
    async def program(create: Any) -> list[Any]:
        records: list[Any] = []
        saver = InMemorySaver() if surrounding == "alone" else None
        agent = asking(create, looking(records), name="inner", checkpointer=saver)

        async def work(state: Any) -> Any:
            return await agent.ainvoke(state)

        @tool
        async def delegate() -> str:
            """Run the agent."""
            await work(QUESTION)
            return "ok"

        outer = {
            "alone": lambda: agent,
            "node": lambda: graph_of(inner=agent),
            "function": lambda: graph_of(inner=work),
            "tool": lambda: asking(create, delegate, checkpointer=InMemorySaver()),
        }[surrounding]()
        await outer.ainvoke(QUESTION, THREAD)
        return records

    assert await check(program, theirs, ours)


async def test_the_state_of_a_tool_has_the_messages_that_a_hook_wrote_for_the_model() -> None:
    async def program(create: Any) -> list[Any]:
        records: list[Any] = []
        await asking(create, looking(records), pre_model_hook=lambda state: {"llm_input_messages": state["messages"]},
                     checkpointer=InMemorySaver()).ainvoke(QUESTION, THREAD)  # fmt: skip
        return records

    ((_, _, state, _),) = await check(program, langgraph_agent, create_react_agent)
    assert state == ["llm_input_messages", "messages", "remaining_steps"]


@pytest.mark.parametrize("is_nested", [True, False], ids=["in a graph", "alone"])
@pairs
async def test_checkpoints_in_a_stream_name_those_before_and_around(theirs: Any, ours: Any, is_nested: bool) -> None:
    async def program(create: Any) -> list[Any]:
        agent = create(
            ScriptedModel(["hi", "hi"]), [], name="inner", checkpointer=None if is_nested else InMemorySaver()
        )
        result: list[Any] = []
        for runner in [graph_of(inner=agent)] if is_nested else [agent, agent]:
            async for ns, chunk in runner.astream(QUESTION, THREAD, stream_mode="checkpoints", subgraphs=True):
                result.append([ns, chunk["config"], chunk["parent_config"], chunk["metadata"]["parents"]])
        return result

    assert any(parents for *_, parents in await check(program, theirs, ours)) == is_nested


@pytest.mark.parametrize("pusher", ["tool", "hook"])
@pairs
async def test_a_pushed_message_is_streamed_in_the_same_form(theirs: Any, ours: Any, pusher: str) -> None:
    def push(caller: str) -> None:
        if caller == pusher:
            push_message(AIMessage("pushed", id="p"))

    @tool
    async def work() -> str:
        """Work."""
        push("tool")
        return "ok"

    async def program(create: Any) -> list[Any]:
        def hook(state: Any, runtime: Any = None) -> Any:
            push("hook")
            return {}

        is_react = create in PAIRS["react"]
        options: dict[str, Any] = {"pre_model_hook": hook} if is_react else {"middleware": [before_model(hook)]}
        stream = asking(create, work, **options).astream(QUESTION, stream_mode=["updates", "values", "tasks"])
        return [chunk async for chunk in stream]

    assert "ai:pushed" in str(await check(program, theirs, ours))


@pairs
async def test_a_handover_is_streamed_with_the_graphs_inside(theirs: Any, ours: Any) -> None:
    @tool
    def to_b(state: Annotated[Any, InjectedState], runtime: ToolRuntime) -> Command[Any]:
        """Hand over."""
        answer = ToolMessage("over", id="t", tool_call_id=runtime.tool_call_id)
        return Command(goto="b", graph=Command.PARENT, update={"messages": [*state["messages"], answer]})

    async def program(create: Any) -> list[Any]:
        graph = graph_of(a=asking(create, to_b, name="a"), b=create(ScriptedModel(["end"]), [], name="b"))
        stream = graph.astream(QUESTION, THREAD, stream_mode=["updates", "values", "tasks"], subgraphs=True)
        return [chunk async for chunk in stream]

    assert "ai:end" in str(await check(program, theirs, ours))


@pairs
async def test_an_agent_in_a_function_has_the_same_stream_events(theirs: Any, ours: Any) -> None:
    async def program(create: Any) -> list[Any]:
        agent = asking(create, looking([]), name="inner")

        async def work(state: Any) -> Any:
            return await agent.ainvoke(state)

        events = graph_of(f=work).astream_events(QUESTION, THREAD, version="v2")
        kinds = ("on_chain_stream", "on_tool_start", "on_tool_end")
        return [
            (event["event"], event["name"], event["data"].get("chunk"))
            async for event in events
            if event["event"] in kinds
        ]

    assert await check(program, theirs, ours)


class Rewriting(AgentMiddleware[Any, Any, Any]):
    trace_policy = TracePolicy(process_inputs=omit_payload)

    def before_model(self, state: Any, runtime: Any) -> Any:
        return {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), *state["messages"]]}


class Tracer(BaseTracer):
    def __init__(self) -> None:
        super().__init__()
        self.recorded: list[Any] = []

    def _persist_run(self, run: Any) -> None:
        self.recorded += [
            [child.name, child.inputs, child.outputs] for child in run.child_runs if "Rewriting" in child.name
        ]


async def test_what_a_trace_policy_leaves_out_is_left_out_for_tracers_alone() -> None:
    """Without the messages of the input, a stream would show all messages of the output as new."""

    async def program(create: Any) -> list[Any]:
        tracer, agent = Tracer(), create(ScriptedModel(["done"]), [], middleware=[Rewriting()])
        question = {"messages": [HumanMessage("q", id="h"), AIMessage("old", id="old"), HumanMessage("q", id="i")]}
        stream = agent.astream(question, {"callbacks": [tracer]}, stream_mode="messages")
        return [[message async for message, _ in stream], tracer.recorded]

    messages, recorded = await check(program, langchain_agent, create_agent)
    assert messages == ["remove:", "AIMessageChunk:done"]
    assert [inputs for _, inputs, _ in recorded] == [{}]
