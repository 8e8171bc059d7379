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


def tool_of(name: str, function: Callable[[int], Any]) -> BaseTool:
    """A tool that creates a span itself, as instrumented clients do."""

    def run(x: int) -> Any:
        with PROVIDER.get_tracer("user").start_as_current_span(f"span of {name}"):
            return function(x)

    async def arun(x: int) -> Any:
        with PROVIDER.get_tracer("user").start_as_current_span(f"span of {name}"):
            return function(x)

    return StructuredTool.from_function(func=run, coroutine=arun, name=name, description=f"{name} a number.")


def double(x: int) -> str:
    return str(2 * x)


def fail(x: int) -> str:
    raise ValueError(f"{x} is bad")


def ask(x: int) -> str:
    return str(interrupt(f"{x}?"))


def asks_for_two() -> Any:
    return calls(("double", {"x": 1}), ("fail", {"x": 2}))


DOUBLE_ONE = calls(("double", {"x": 1}))


def work_of(
    ns: Any,
    version: str,
    script: Sequence[Any],
    *given: Any,
    tools: Any = (double,),
    stream_mode: Any = None,
    fails: bool = False,
    **options: Any,
) -> Work:
    """Return the work of an agent with a scripted model; a text is a message of the user."""
    node_tools = [tool_of(item.__name__, item) for item in tools] if isinstance(tools, tuple) else tools
    model = options.pop("model", None) or ScriptedModel(script)
    runner = ns.create_react_agent(model, node_tools, version=version, **options)
    messages = [{"messages": [("user", item)]} if isinstance(item, str) else item for item in given]
    return Work(runner, messages, stream_mode=stream_mode, fails=fails)


def hooks_and_response(ns: Any, version: str) -> Work:
    """Hooks before and after the model, two calls of which one fails, and a structured response."""

    def before(state: Any) -> Any:
        return {"llm_input_messages": state["messages"]}

    def after(state: Any) -> Any:
        return {}

    return work_of(
        ns,
        version,
        [asks_for_two(), "It is warm.", calls(("Weather", {"degrees": 20}))],
        "How warm?",
        tools=ns.ToolNode([tool_of("double", double), tool_of("fail", fail)], handle_tool_errors=True),
        prompt="Be kind.",
        pre_model_hook=before,
        post_model_hook=RunnableLambda(after, name="after") if version == "v2" else None,  # v1: KeyError in LangGraph
        response_format=Weather,
        name="weatherman",
    )


def plain(ns: Any, version: str) -> Work:
    """Two turns of a thread without a name; the second turn continues from the checkpoint of the first."""
    script = [calls(("double", {"x": 1}), ("double", {"x": 2})), "2 and 4.", "Bye."]
    return work_of(ns, version, script, "Double.", "Bye.", checkpointer=InMemorySaver())


def made_prompt(ns: Any, version: str) -> Work:
    """A prompt that is a function."""
    return work_of(ns, version, [DOUBLE_ONE, "2."], "Double.", prompt=lambda state: state["messages"])


def chosen_model(ns: Any, version: str) -> Work:
    """A model that a function chooses at each step."""
    tools = [tool_of("double", double)]
    model = ScriptedModel([DOUBLE_ONE, "2."]).bind_tools(tools)
    return work_of(ns, version, [], "Double.", tools=tools, model=lambda state, runtime: model)


def asked(ns: Any, version: str) -> Work:
    """A call that asks a question and gets its answer."""
    script, saver = [calls(("ask", {"x": 1})), "Yes."], InMemorySaver()
    return work_of(ns, version, script, "Ask.", Command(resume="yes"), tools=(ask,), checkpointer=saver)


def stopped(ns: Any, version: str) -> Work:
    """A run that stops before its tools and is continued."""
    options: Any = {"checkpointer": InMemorySaver(), "interrupt_before": ["tools"]}
    return work_of(ns, version, [DOUBLE_ONE, "2."], "Double.", None, **options)


def failed(ns: Any, version: str) -> Work:
    """An error without a handler."""
    tools = ns.ToolNode([tool_of("fail", fail)], handle_tool_errors=False)
    return work_of(ns, version, [calls(("fail", {"x": 1}))], "Fail.", tools=tools, fails=True)


def delegate_to(inner: Any) -> BaseTool:
    inner_input = {"messages": [("user", "Double.")]}

    def run(x: int) -> str:
        return inner.invoke(inner_input)["messages"][-1].text

    async def arun(x: int) -> str:
        return (await inner.ainvoke(inner_input))["messages"][-1].text

    return StructuredTool.from_function(func=run, coroutine=arun, name="delegate", description="Delegate.")


def nested(ns: Any, version: str) -> Work:
    """An agent that is a tool of another agent."""
    inner = work_of(ns, version, [DOUBLE_ONE, "2."], name="inner").runner
    script = [calls(("delegate", {"x": 1})), "Done."]
    return work_of(ns, version, script, "Go.", tools=[delegate_to(inner)], name="outer")


def nested_asked(ns: Any, version: str) -> Work:
    """A question of an agent that is a tool of another agent."""
    inner = work_of(ns, version, [calls(("ask", {"x": 1})), "Yes."], tools=(ask,), name="inner").runner
    script, options = [calls(("delegate", {"x": 1})), "Done."], {"checkpointer": InMemorySaver(), "name": "outer"}
    return work_of(ns, version, script, "Go.", Command(resume="yes"), tools=[delegate_to(inner)], **options)


def streamed(ns: Any, version: str, stream_mode: Any = "updates") -> Work:
    """A run whose steps are streamed."""
    return work_of(ns, version, [DOUBLE_ONE, "2 it is."], "Double.", stream_mode=stream_mode)


def tokens(ns: Any, version: str) -> Work:
    """A run whose tokens are streamed."""
    return streamed(ns, version, ["messages", "values"])


def in_graph(ns: Any, version: str) -> Work:
    """An agent that is a node of a graph."""
    builder: Any = StateGraph(MessagesState)
    builder.add_node("helper", streamed(ns, version).runner)
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
    runner = ns.create_react_agent(model, [tool], version=version)
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
    for agent_input in work.given:
        with suppress(ValueError) if work.fails else nullcontext():
            if work.stream_mode is None:
                work.runner.invoke(agent_input, config)
            else:
                list(work.runner.stream(agent_input, config, stream_mode=work.stream_mode))


async def _ado(work: Work, config: Any) -> None:
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(_ado_all, work, config)
            if work.cancel_after is not None:
                await work.cancel_after.wait()
                group.cancel_scope.cancel()


async def _ado_all(work: Work, config: Any) -> None:
    for agent_input in work.given:
        with suppress(ValueError) if work.fails else nullcontext():
            if work.stream_mode is None:
                await work.runner.ainvoke(agent_input, config)
            else:
                async for _ in work.runner.astream(agent_input, config, stream_mode=work.stream_mode):
                    pass
