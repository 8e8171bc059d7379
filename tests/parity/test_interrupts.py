"""One interrupt at a time behaves as in LangGraph; for several at once see `test_differences.py`."""

from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from ._dump import dump
from ._harness import State, asks, call
from ._model import ReplayModel
from ._prebuilt import candidate, reference

CONFIG = {"configurable": {"thread_id": "1"}}


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


def in_graph(ns: Any, *calls: Any, **options: Any) -> tuple[Any, Any]:
    builder: Any = StateGraph(State)
    builder.add_node("tools", ns.ToolNode([ask, ask_twice, fine], **options))
    builder.add_edge(START, "tools")
    return builder.compile(checkpointer=InMemorySaver()), {"messages": [asks(*calls)]}


def in_agent(ns: Any, version: str, *calls: Any) -> tuple[Any, Any]:
    model = ReplayModel(asks(*calls), "done")
    made = ns.create_react_agent(model, [ask, ask_twice, fine], checkpointer=InMemorySaver(), version=version)
    return made, {"messages": [HumanMessage("q", id="h")]}


def played(graph: Any, payload: Any, *answers: Any) -> Any:
    """Return the results of the run, and of the resume with each answer."""
    results = [graph.invoke(payload, CONFIG)]
    results += [graph.invoke(Command(resume=answer), CONFIG) for answer in answers]
    return dump([results, graph.get_state(CONFIG).values])


ASKS = {
    "one question": ([call("ask", {"question": "ok?"})], ["yes"]),
    "two questions of one call": ([call("ask_twice", {"question": ""})], ["a", "b"]),
    "a question beside a result": ([call("fine", {"x": 1}, "1"), call("ask", {"question": "ok?"}, "2")], ["yes"]),
    "an answer that is a dict": ([call("ask", {"question": "ok?"})], [{"type": "accept"}]),
    "an answer that is false": ([call("ask", {"question": "ok?"})], [False]),
}


@pytest.mark.parametrize("handled", [True, False])
@pytest.mark.parametrize("label", ASKS)
def test_the_node_asks_and_goes_on_with(label: str, handled: bool) -> None:
    calls, answers = ASKS[label]

    def play(ns: Any) -> Any:
        return played(*in_graph(ns, *calls, handle_tool_errors=handled), *answers)

    expected = play(reference())

    assert "__interrupt__" in str(expected)
    assert play(candidate()) == expected


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("label", ASKS)
def test_the_agent_asks_and_goes_on_with(label: str, version: str) -> None:
    calls, answers = ASKS[label]

    def play(ns: Any) -> Any:
        return played(*in_agent(ns, version, *calls), *answers)

    expected = play(reference())

    assert "__interrupt__" in str(expected)
    assert play(candidate()) == expected


def test_a_wrapper_does_not_swallow_a_question() -> None:
    def play(ns: Any) -> Any:
        def wrap(request: Any, execute: Any) -> Any:
            return execute(request)

        calls, answers = ASKS["one question"]
        return played(*in_graph(ns, *calls, wrap_tool_call=wrap, handle_tool_errors=True), *answers)

    assert play(candidate()) == play(reference())


def test_a_wrapper_may_ask_itself() -> None:
    def play(ns: Any) -> Any:
        def wrap(request: Any, execute: Any) -> Any:
            answer = interrupt({"run": request.tool_call["name"]})
            return execute(request.override(tool_call={**request.tool_call, "args": {"x": answer}}))

        graph, payload = in_graph(ns, call("fine", {"x": 1}), wrap_tool_call=wrap, handle_tool_errors=True)
        return played(graph, payload, 5)

    assert play(candidate()) == play(reference())
