"""One interrupt at a time behaves as in LangGraph; for several at once see promise 5."""

from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from ._dump import dump
from ._harness import THREAD, State, asks, call
from ._model import ReplayModel
from ._prebuilt import candidate, reference


@tool
def ask(question: str) -> str:
    """Ask a person."""
    return f"{question} {interrupt({'question': question})}"


@tool
def ask_twice(question: str) -> str:
    """Ask a person twice."""
    return f"{interrupt('first')} {interrupt('second')}"


@tool
def fine(x: int) -> int:
    """Needs nobody."""
    return x


def in_graph(*calls: Any, **options: Any) -> Any:
    def build(ns: Any) -> Any:
        builder: Any = StateGraph(State)
        builder.add_node("tools", ns.ToolNode([ask, ask_twice, fine], **options))
        builder.add_edge(START, "tools")
        return builder.compile(checkpointer=InMemorySaver()), {"messages": [asks(*calls)]}

    return build


def in_agent(*calls: Any, version: str) -> Any:
    def build(ns: Any) -> Any:
        tools, model = [ask, ask_twice, fine], ReplayModel(asks(*calls), "done")
        agent = ns.create_react_agent(model, tools, checkpointer=InMemorySaver(), version=version)
        return agent, {"messages": [HumanMessage("q", id="h")]}

    return build


def passes(request: Any, execute: Any) -> Any:
    return execute(request)


def asks_itself(request: Any, execute: Any) -> Any:
    answer = interrupt({"run": request.tool_call["name"]})
    return execute(request.override(tool_call={**request.tool_call, "args": {"x": answer}}))


ASK = call("ask", {"question": "ok?"})
ASKS: dict[str, tuple[list[Any], list[Any]]] = {
    "one question": ([ASK], ["yes"]),
    "two questions of one call": ([call("ask_twice", {"question": ""})], ["a", "b"]),
    "a question beside a result": ([call("fine", {"x": 1}, "1"), {**ASK, "id": "2"}], ["yes"]),
    "an answer that is a dict": ([ASK], [{"type": "accept"}]),
    "an answer that is false": ([ASK], [False]),
}
MADE: dict[str, tuple[Any, list[Any]]] = {
    **{
        f"{label} of a node, {handled}": (in_graph(*calls, handle_tool_errors=handled), answers)
        for label, (calls, answers) in ASKS.items()
        for handled in (True, False)
    },
    **{
        f"{label} of an agent {version}": (in_agent(*calls, version=version), answers)
        for label, (calls, answers) in ASKS.items()
        for version in ("v1", "v2")
    },
    "a wrapper": (in_graph(ASK, wrap_tool_call=passes, handle_tool_errors=True), ["yes"]),
    "a wrapper that asks": (in_graph(call("fine", {"x": 1}), wrap_tool_call=asks_itself, handle_tool_errors=True), [5]),
}


@pytest.mark.parametrize("label", MADE)
def test_a_person_is_asked_and_the_run_goes_on_alike_with(label: str) -> None:
    make, answers = MADE[label]

    def play(ns: Any) -> Any:
        graph, payload = make(ns)
        results = [graph.invoke(payload, THREAD)]
        results += [graph.invoke(Command(resume=answer), THREAD) for answer in answers]
        return dump([results, graph.get_state(THREAD).values])

    expected = play(reference())
    assert "__interrupt__" in str(expected)
    assert play(candidate()) == expected
