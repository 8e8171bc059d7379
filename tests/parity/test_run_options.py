"""Options of a run besides its input: keywords, and control."""

import asyncio
from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphDrained
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import RunControl, Runtime
from langgraph.store.memory import InMemoryStore

import callboard

from ._harness import QUESTION, THREAD, asks, call, versions, wants
from ._model import ReplayModel
from ._prebuilt import candidate, reference


@tool
async def double(x: int) -> int:
    """Double."""
    return 2 * x


def replies() -> ReplayModel:
    return ReplayModel(asks(call("double", {"x": 2})), "done")


# --- keywords


@pytest.mark.parametrize("door", ["invoke", "ainvoke", "stream", "astream"])
def test_an_unknown_keyword_of_an_agent_is_an_error(door: str) -> None:
    """Promise 13: LangGraph ignores `cofig=` silently, and runs without a config."""
    agent: Any = callboard.create_react_agent(replies(), [double])

    with pytest.raises(TypeError, match="'cofig'"):
        _driven(getattr(agent, door)(QUESTION, cofig=THREAD))


@pytest.mark.parametrize("kind", ["ToolNode", "ValidationNode"])
@pytest.mark.parametrize("door", ["invoke", "ainvoke"])
def test_an_unknown_keyword_of_a_node_is_an_error(door: str, kind: str) -> None:
    """Graphs pass no keywords; LangGraph's nodes refuse them, too, except `ValidationNode` in async code."""
    node = getattr(candidate(), kind)([double])
    with pytest.raises(TypeError, match="'cofig'"):
        _driven(getattr(node, door)(wants("double", {"x": 2}), cofig=THREAD))


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("door", ["invoke", "ainvoke"])
def test_a_node_takes_a_runtime_by_keyword_as_langgraphs_does(door: str) -> None:
    """Tests of tools pass a runtime to a node without a graph."""
    store = InMemoryStore()

    def run(ns: Any) -> Any:
        seen: list[Any] = []

        @tool
        def look(runtime: ns.ToolRuntime) -> str:  # type: ignore[name-defined]
            """Look."""
            seen.append((runtime.context, runtime.store is store))
            return "seen"

        given = Runtime(context="ann", store=store)
        _driven(getattr(ns.ToolNode([look]), door)(wants("look"), runtime=given))
        return seen

    assert run(candidate()) == run(reference()) == [("ann", True)]


@versions
def test_debug_of_one_run_prints_the_same(version: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An earlier version ignored `debug`."""
    shown = []
    for ns in (reference(), candidate()):
        agent = ns.create_react_agent(ReplayModel("done"), [], version=version)
        asyncio.run(agent.ainvoke(QUESTION, debug=True))
        shown.append([line for line in capsys.readouterr().out.splitlines() if "[updates]" in line])

    assert [len(lines) for lines in shown] == [1, 1]


def _driven(made: Any) -> Any:
    if asyncio.iscoroutine(made):
        return asyncio.run(made)
    if hasattr(made, "__anext__"):
        return asyncio.run(_all(made))
    return list(made)


async def _all(chunks: Any) -> list[Any]:
    return [chunk async for chunk in chunks]


# --- control


def drained(ns: Any, version: str, drive: Any) -> Any:
    """Return a run that a tool asks to stop, and the thread's state then and after it has continued."""
    control = RunControl()

    @tool
    async def leave(x: int) -> str:
        """Ask the run to stop."""
        control.request_drain("the machine goes down")
        return "left"

    model = ReplayModel(asks(call("leave", {"x": 1})), "done")
    agent = ns.create_react_agent(model, [leave], version=version, checkpointer=InMemorySaver())
    with pytest.raises(GraphDrained) as raised:
        drive(agent, control)
    stopped = agent.get_state(THREAD)
    asked = len(model.log)
    result = asyncio.run(agent.ainvoke(None, THREAD))
    facts = (str(raised.value), raised.value.reason, stopped.next, asked, len(model.log))
    return facts, [(message.type, message.content) for message in result["messages"]], agent.get_state(THREAD).next


def _ainvoke(agent: Any, control: RunControl) -> Any:
    asyncio.run(agent.ainvoke(QUESTION, THREAD, control=control))


def _invoke(agent: Any, control: RunControl) -> Any:
    agent.invoke(QUESTION, THREAD, control=control)


def _astream(agent: Any, control: RunControl) -> Any:
    asyncio.run(_all(agent.astream(QUESTION, THREAD, control=control)))


@versions
@pytest.mark.parametrize("drive", [_ainvoke, _astream], ids=["ainvoke", "astream"])
def test_a_run_that_is_asked_to_stop_does_so_before_its_next_step_and_can_go_on(version: str, drive: Any) -> None:
    """For servers that shut down: the current step ends, no further step begins, and no result is lost."""
    facts = drained(candidate(), version, drive)

    assert facts == drained(reference(), version, drive)
    assert facts[0] == ("Graph drained: the machine goes down", "the machine goes down", ("agent",), 1, 2)


def test_a_run_from_sync_code_can_be_asked_to_stop() -> None:
    """LangGraph's `invoke` does not run the async tool at all."""
    assert drained(candidate(), "v2", _invoke) == drained(candidate(), "v2", _ainvoke)


@versions
def test_a_run_that_is_asked_to_stop_before_it_begins_keeps_its_input(version: str) -> None:
    """No model is asked, and the thread can be continued; LangGraph makes a step for the input alone."""

    def run(ns: Any) -> Any:
        control, model = RunControl(), replies()
        control.request_drain()
        agent = ns.create_react_agent(model, [double], version=version, checkpointer=InMemorySaver())
        with pytest.raises(GraphDrained, match="shutdown"):
            asyncio.run(agent.ainvoke(QUESTION, THREAD, control=control))
        asked = list(model.log)
        result = asyncio.run(agent.ainvoke(None, THREAD))
        return asked, [(message.type, message.content) for message in result["messages"]]

    assert run(candidate()) == run(reference())
    assert run(candidate())[0] == []


@versions
def test_an_agent_in_a_graph_stops_when_the_graph_is_asked_to(version: str) -> None:
    """The agent uses the control object of the surrounding graph."""

    def run(ns: Any) -> Any:
        control = RunControl()

        @tool
        async def leave(x: int) -> str:
            """Ask the run to stop."""
            control.request_drain()
            return "left"

        model = ReplayModel(asks(call("leave", {"x": 1})), "done")
        builder = StateGraph(MessagesState)
        builder.add_node("worker", ns.create_react_agent(model, [leave], version=version))
        builder.add_edge(START, "worker")
        graph: Any = builder.compile(checkpointer=InMemorySaver())
        with pytest.raises(GraphDrained):
            asyncio.run(graph.ainvoke(QUESTION, THREAD, control=control))
        stopped = graph.get_state(THREAD).next
        result = asyncio.run(graph.ainvoke(None, THREAD))
        return stopped, len(model.log), [(message.type, message.content) for message in result["messages"]]

    assert run(candidate()) == run(reference())
