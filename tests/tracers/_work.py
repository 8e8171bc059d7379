"""The traced work: each piece is done by LangGraph's agent or by callboard's, by any of its methods."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import anyio
import trio
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from opentelemetry.sdk.trace import TracerProvider
from pydantic import BaseModel

from callboard.testing import ScriptedModel, calls

THREAD = "thread-1"

PROVIDER = TracerProvider()
"""Provider for spans of tools and tracers. It is not the global one, with which callboard would trace itself."""


class Weather(BaseModel):
    """What the weather is."""

    degrees: int


@dataclass(frozen=True)
class Work:
    """A runnable, and the inputs of its consecutive runs."""

    runner: Any
    given: Sequence[Any]
    stream_mode: Any = None
    """Stream mode; without it the work is invoked."""
    fails: bool = False
    cancel_after: anyio.Event | None = None


def tool_of(name: str, work: Callable[[int], Any]) -> BaseTool:
    """A tool that creates a span itself, as instrumented clients do."""

    def run(x: int) -> Any:
        with PROVIDER.get_tracer("user").start_as_current_span(f"span of {name}"):
            return work(x)

    async def arun(x: int) -> Any:
        with PROVIDER.get_tracer("user").start_as_current_span(f"span of {name}"):
            return work(x)

    return StructuredTool.from_function(func=run, coroutine=arun, name=name, description=f"{name} a number.")


def double(x: int) -> str:
    return str(2 * x)


def fail(x: int) -> str:
    raise ValueError(f"{x} is bad")


def ask(x: int) -> str:
    return str(interrupt(f"{x}?"))


def agent(ns: Any, model: Any, tools: Any, **options: Any) -> Any:
    return ns.create_react_agent(model, tools, **options)


def asks_for_two() -> Any:
    return calls(("double", {"x": 1}), ("fail", {"x": 2}))


def hooks_and_response(ns: Any, version: str) -> Work:
    """Hooks before and after the model, two calls of which one fails, and a structured response."""
    model = ScriptedModel([asks_for_two(), "It is warm.", calls(("Weather", {"degrees": 20}))])
    tools = ns.ToolNode([tool_of("double", double), tool_of("fail", fail)], handle_tool_errors=True)

    def before(state: Any) -> Any:
        return {"llm_input_messages": state["messages"]}

    def after(state: Any) -> Any:
        return {}

    runner = agent(
        ns,
        model,
        tools,
        prompt="Be kind.",
        pre_model_hook=before,
        post_model_hook=RunnableLambda(after, name="after") if version == "v2" else None,  # v1: KeyError in LangGraph
        response_format=Weather,
        version=version,
        name="weatherman",
    )
    return Work(runner, [{"messages": [("user", "How warm?")]}])


def plain(ns: Any, version: str) -> Work:
    """Two turns of a thread without a name; the second turn continues from the checkpoint of the first."""
    model = ScriptedModel([calls(("double", {"x": 1}), ("double", {"x": 2})), "2 and 4.", "Bye."])
    runner = agent(ns, model, [tool_of("double", double)], checkpointer=InMemorySaver(), version=version)
    return Work(runner, [{"messages": [("user", "Double.")]}, {"messages": [("user", "Bye.")]}])


def made_prompt(ns: Any, version: str) -> Work:
    """A prompt that is a function."""
    model = ScriptedModel([calls(("double", {"x": 1})), "2."])
    runner = agent(ns, model, [tool_of("double", double)], prompt=lambda state: state["messages"], version=version)
    return Work(runner, [{"messages": [("user", "Double.")]}])


def chosen_model(ns: Any, version: str) -> Work:
    """A model that a function chooses at each step."""
    tools = [tool_of("double", double)]
    model = ScriptedModel([calls(("double", {"x": 1})), "2."]).bind_tools(tools)
    runner = agent(ns, lambda state, runtime: model, tools, version=version)
    return Work(runner, [{"messages": [("user", "Double.")]}])


def asked(ns: Any, version: str) -> Work:
    """A call that asks a question and gets its answer."""
    model = ScriptedModel([calls(("ask", {"x": 1})), "Yes."])
    runner = agent(ns, model, [tool_of("ask", ask)], checkpointer=InMemorySaver(), version=version)
    return Work(runner, [{"messages": [("user", "Ask.")]}, Command(resume="yes")])


def stopped(ns: Any, version: str) -> Work:
    """A run that stops before its tools and is continued."""
    model = ScriptedModel([calls(("double", {"x": 1})), "2."])
    runner = agent(
        ns,
        model,
        [tool_of("double", double)],
        checkpointer=InMemorySaver(),
        interrupt_before=["tools"],
        version=version,
    )
    return Work(runner, [{"messages": [("user", "Double.")]}, None])


def failed(ns: Any, version: str) -> Work:
    """An error without a handler."""
    model = ScriptedModel([calls(("fail", {"x": 1}))])
    tools = ns.ToolNode([tool_of("fail", fail)], handle_tool_errors=False)
    return Work(agent(ns, model, tools, version=version), [{"messages": [("user", "Fail.")]}], fails=True)


def delegate_to(inner: Any) -> BaseTool:
    given = {"messages": [("user", "Double.")]}

    def run(x: int) -> str:
        return inner.invoke(given)["messages"][-1].text

    async def arun(x: int) -> str:
        return (await inner.ainvoke(given))["messages"][-1].text

    return StructuredTool.from_function(func=run, coroutine=arun, name="delegate", description="Delegate.")


def nested(ns: Any, version: str) -> Work:
    """An agent that is a tool of another agent."""
    inner_model = ScriptedModel([calls(("double", {"x": 1})), "2."])
    inner = agent(ns, inner_model, [tool_of("double", double)], version=version, name="inner")
    model = ScriptedModel([calls(("delegate", {"x": 1})), "Done."])
    return Work(
        agent(ns, model, [delegate_to(inner)], version=version, name="outer"), [{"messages": [("user", "Go.")]}]
    )


def nested_asked(ns: Any, version: str) -> Work:
    """A question of an agent that is a tool of another agent."""
    inner_model = ScriptedModel([calls(("ask", {"x": 1})), "Yes."])
    inner = agent(ns, inner_model, [tool_of("ask", ask)], version=version, name="inner")
    model = ScriptedModel([calls(("delegate", {"x": 1})), "Done."])
    runner = agent(ns, model, [delegate_to(inner)], checkpointer=InMemorySaver(), version=version, name="outer")
    return Work(runner, [{"messages": [("user", "Go.")]}, Command(resume="yes")])


def streamed(ns: Any, version: str) -> Work:
    """A run whose steps are streamed."""
    model = ScriptedModel([calls(("double", {"x": 1})), "2 it is."])
    runner = agent(ns, model, [tool_of("double", double)], version=version)
    return Work(runner, [{"messages": [("user", "Double.")]}], stream_mode="updates")


def tokens(ns: Any, version: str) -> Work:
    """A run whose tokens are streamed."""
    work = streamed(ns, version)
    return Work(work.runner, work.given, stream_mode=["messages", "values"])


def in_graph(ns: Any, version: str) -> Work:
    """An agent that is a node of a graph."""
    inner = streamed(ns, version).runner
    builder: Any = StateGraph(MessagesState)
    builder.add_node("helper", inner)
    builder.add_edge(START, "helper")
    return Work(builder.compile(), [{"messages": [("user", "Double.")]}])


def node_in_graph(ns: Any, version: str) -> Work:
    """A tool node in a graph."""
    builder: Any = StateGraph(MessagesState)
    tools = ns.ToolNode([tool_of("double", double), tool_of("fail", fail)], handle_tool_errors=True)
    builder.add_node("tools", tools)
    builder.add_edge(START, "tools")
    reply = asks_for_two()
    reply.id = "ai-1"
    for index, call in enumerate(reply.tool_calls):
        call["id"] = f"call-{index}"
    return Work(builder.compile(), [{"messages": [reply]}])


def cancelled(ns: Any, version: str) -> Work:
    """A run that is cancelled while a tool works."""
    model = ScriptedModel([calls(("wait", {"x": 1}))])
    begun = anyio.Event()

    async def wait(x: int) -> str:
        begun.set()
        await anyio.sleep_forever()
        return ""

    tool = StructuredTool.from_function(coroutine=wait, name="wait", description="Wait.")
    runner = agent(ns, model, [tool], version=version)
    return Work(runner, [{"messages": [("user", "Wait.")]}], cancel_after=begun)


ALL_DOORS = ("sync", "asyncio", "trio")
DOORS: dict[Callable[[Any, str], Work], tuple[str, ...]] = {
    hooks_and_response: ALL_DOORS,
    plain: ALL_DOORS,
    made_prompt: ALL_DOORS,
    chosen_model: ALL_DOORS,
    asked: ALL_DOORS,
    stopped: ALL_DOORS,
    failed: ALL_DOORS,
    nested: ALL_DOORS,
    nested_asked: ALL_DOORS,
    streamed: ALL_DOORS,
    tokens: ALL_DOORS,
    in_graph: ("sync", "asyncio"),
    node_in_graph: ("sync", "asyncio"),
    cancelled: ("asyncio", "trio"),
}
"""All work, and the methods to run it; LangGraph's graphs need asyncio, and only async code is cancelled."""


def config_with(handlers: Sequence[Any]) -> dict[str, Any]:
    return {
        "callbacks": list(handlers),
        "configurable": {"thread_id": THREAD},
        "tags": ["a tag"],
        "metadata": {"who": "user", "langfuse_session_id": "session-1"},
    }


def do(work: Work, config: Any, door: str) -> None:
    """Do the work by one of the methods of a runnable; where callboard runs on trio, LangGraph runs on asyncio."""
    if door == "sync":
        _do(work, config)
    elif door == "asyncio":
        asyncio.run(_ado(work, config))
    else:
        trio.run(_ado, work, config)


def _do(work: Work, config: Any) -> None:
    for given in work.given:
        with suppress(ValueError) if work.fails else nullcontext():
            if work.stream_mode is None:
                work.runner.invoke(given, config)
            else:
                list(work.runner.stream(given, config, stream_mode=work.stream_mode))


async def _ado(work: Work, config: Any) -> None:
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(_ado_all, work, config)
            if work.cancel_after is not None:
                await work.cancel_after.wait()
                group.cancel_scope.cancel()


async def _ado_all(work: Work, config: Any) -> None:
    for given in work.given:
        with suppress(ValueError) if work.fails else nullcontext():
            if work.stream_mode is None:
                await work.runner.ainvoke(given, config)
            else:
                async for _ in work.runner.astream(given, config, stream_mode=work.stream_mode):
                    pass
