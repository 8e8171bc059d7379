"""A scenario is a function from a namespace to a `Case`; `outcome` runs a case in one drive mode."""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.runtime import Runtime
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict

from ._dump import dump
from ._prebuilt import candidate, reference

SYNC, ASYNC, GRAPH_SYNC, GRAPH_ASYNC = "invoke", "ainvoke", "graph invoke", "graph ainvoke"
MODES = (ASYNC, SYNC, GRAPH_ASYNC, GRAPH_SYNC)
DIRECT_MODES = (ASYNC, SYNC)
ASYNC_MODES = (ASYNC, GRAPH_ASYNC)
SYNC_MODES = (SYNC, GRAPH_SYNC)
GRAPH_MODES = (GRAPH_ASYNC, GRAPH_SYNC)


QUESTION = {"messages": [HumanMessage("q", id="h")]}
THREAD: Any = {"configurable": {"thread_id": "1"}}
versions = pytest.mark.parametrize("version", ["v1", "v2"])


@tool
def double(x: int) -> int:
    """Double."""
    return 2 * x


@tool
def ask(what: str) -> str:
    """Ask a person."""
    return f"{what}: {interrupt(what)}"


@tool(return_direct=True)
def final(x: int) -> str:
    """The last word."""
    return f"final {x}"


@tool
def fails(x: int) -> str:
    """Fail."""
    raise ValueError("bad")


@tool
def cheer(tool_call_id: Annotated[str, InjectedToolCallId]) -> Any:
    """Cheer."""
    return Command(update={"mood": "good", "messages": [ToolMessage("ok", tool_call_id=tool_call_id, id="t")]})


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    foo: str
    count: int


MessageList = Annotated[list[AnyMessage], add_messages]


@dataclass
class Case:
    """The object to run, its input, and its environment."""

    node: Any
    input: Any
    state: Any = State
    """Schema of the graph around the node."""
    send: bool = False
    """In a graph, pass the input to the node with Send, from a graph whose state is `seed`."""
    seed: Any = field(default_factory=dict)
    parent: bool = False
    """In a graph, put that graph as a node into a parent graph, next to a node named "other"."""
    store: Any = None
    context: Any = None
    config: dict[str, Any] = field(default_factory=dict)
    own_runtime: bool = False
    """An agent makes its own runtime, so the config has none."""
    log: list[Any] = field(default_factory=list)
    """Events that tools, wrappers, models and callbacks recorded; part of the outcome."""


Scenario = Callable[[Any], Case]


def call(name: str, args: dict[str, Any] | None = None, id: str = "call-1") -> dict[str, Any]:
    return {"name": name, "args": args or {}, "id": id, "type": "tool_call"}


def turn(n: int, *calls: dict[str, Any]) -> AIMessage:
    """Return the n-th reply of a model, which requests calls."""
    return AIMessage("", tool_calls=list(calls), id=f"ai-{n}")


def asks(*calls: dict[str, Any], text: str = "") -> AIMessage:
    return AIMessage(text, tool_calls=list(calls), id="ai-1")


def wants(name: str, args: dict[str, Any] | None = None, **state: Any) -> dict[str, Any]:
    """Return a state in which the model asks for one call."""
    return {"messages": [asks(call(name, args))], **state}


def outcome(scenario: Scenario, ns: Any, mode: str) -> Any:
    """Return the outcome of a scenario under `ns` as plain data: a value or an error, and its log."""
    log: list[Any] = []
    try:
        case = scenario(ns)
        log = case.log
        value = _drive(case, mode)
    except Exception as error:  # the outcome under comparison
        value = error
    return {"value": dump(value), "log": dump(log)}


def assert_same(scenario: Scenario, mode: str, *, raises: str | None = None) -> Any:
    """Assert that callboard's outcome equals LangGraph's; `raises` names the error that LangGraph must raise."""
    expected = outcome(scenario, reference(), mode)
    value = expected["value"]
    error = value.get("error") if isinstance(value, dict) else None
    assert error == raises, f"the scenario itself is wrong: {value}"
    actual = outcome(scenario, candidate(), mode)

    assert actual == expected, f"\ncallboard: {actual}\nlanggraph: {expected}"
    return expected


def alike(scenario: Any = None, /, *, modes: Any = MODES, raises: str | None = None) -> Any:
    """Return a test that a scenario has the same outcome with both sides in each mode; as a decorator of the scenario.

    The scenario takes the namespace, and the parameters of the test if there are any.
    """
    if scenario is None:
        return partial(alike, modes=modes, raises=raises)

    return for_each(
        "mode",
        modes,
        scenario,
        lambda mode, arguments: assert_same(partial(scenario, **arguments), mode, raises=raises),
    )


def table_test(scenarios: Mapping[str, Any], *, modes: Any = MODES, by_version: bool = False) -> Any:
    """Return a test of each scenario of a table, by its label; a tuple has the error that LangGraph must raise, too.

    With `by_version`, a scenario takes the namespace and the version of the agent.
    """

    def test(label: str, mode: str, version: str) -> None:
        entry = scenarios[label]
        scenario, raises = entry if isinstance(entry, tuple) else (entry, None)
        assert_same(partial(scenario, version=version) if by_version else scenario, mode, raises=raises)

    for axis, values in (("version", ["v1", "v2"] if by_version else [""]), ("mode", modes), ("label", scenarios)):
        test = pytest.mark.parametrize(axis, values)(test)
    return test


def for_each(axis: str, values: Any, scenario: Any, check: Callable[[str, dict[str, Any]], Any]) -> Any:
    """Return a test that checks a scenario for each value; the other parameters of the test are the scenario's own."""

    def test(**arguments: Any) -> None:
        check(arguments.pop(axis), arguments)

    (_, *parameters), kind = inspect.signature(scenario).parameters.values(), inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(axis, kind), *parameters])
    test.__doc__, test.__signature__ = scenario.__doc__, signature  # type: ignore[attr-defined]
    return pytest.mark.parametrize(axis, values)(test)


def _drive(case: Case, mode: str) -> Any:
    if mode in GRAPH_MODES:
        runner, payload = _graph(case), case.seed if case.send else case.input
        config, extra = case.config, {"context": case.context} if case.context is not None else {}
    else:
        runner, payload, extra = case.node, case.input, {}
        config = case.config if case.own_runtime else _direct_config(case)
    if mode in SYNC_MODES:
        return runner.invoke(payload, config, **extra)
    return asyncio.run(runner.ainvoke(payload, config, **extra))


def _direct_config(case: Case) -> dict[str, Any]:
    runtime = Runtime(context=case.context, store=case.store)
    configurable = {"__pregel_runtime": runtime, **case.config.get("configurable", {})}
    return {**case.config, "configurable": configurable}


def _graph(case: Case) -> Any:
    builder = _builder(case)
    builder.add_node("tools", case.node)
    if case.send:
        payloads = case.input if isinstance(case.input, list) else [case.input]
        packed = [[item] if item.get("type") == "tool_call" else item for item in payloads]
        builder.add_conditional_edges(START, lambda _: [Send("tools", item) for item in packed], ["tools"])
    else:
        builder.add_edge(START, "tools")
    if not case.parent:
        return builder.compile(store=case.store)
    outer = _builder(case)
    outer.add_node("child", builder.compile())
    outer.add_edge(START, "child")
    return outer.compile(store=case.store)


def _builder(case: Case) -> Any:
    """A graph with one more node, "other", which records the state with which it was reached."""
    context_schema = type(case.context) if case.context is not None else None
    builder: Any = StateGraph(case.state, context_schema=context_schema)

    def other(state: Any) -> None:
        case.log.append(("other", state))

    builder.add_node("other", other)
    return builder
