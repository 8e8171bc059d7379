"""An agent as a graph compiled by LangGraph, for code that checks `isinstance(x, Pregel)`."""

from typing import Any

import anyio
import pytest
from langgraph.cache.memory import InMemoryCache
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer, _msgpack_ext_hook_to_json
from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command
from typing_extensions import TypedDict

from callboard import create_react_agent
from callboard.testing import ScriptedModel, calls

from ._graphs import AT, QUESTION, WAIT, Desk, busy, chain, ids
from ._savers import shape

pytestmark = pytest.mark.real_clock


class Context(TypedDict):
    user: str


def made(*replies: Any, **options: Any) -> Any:
    return create_react_agent(ScriptedModel(replies or [busy(), "done"]), Desk().tools(), **options)


def test_it_is_what_langgraph_asks_for() -> None:
    """Servers and libraries check `isinstance`, and use the name, the schemas and the nodes."""
    agent = made(name="clerk", context_schema=Context)
    graph, builder = agent.as_graph(), agent.builder

    assert isinstance(graph, (Pregel, CompiledStateGraph))
    assert isinstance(builder, StateGraph)
    assert graph.name == "clerk"
    assert builder.compile().name == "LangGraph"
    assert list(graph.nodes) == ["__start__", "agent", "tools"]
    assert graph.get_context_jsonschema() == agent.get_context_jsonschema()
    assert graph.get_input_jsonschema() == agent.get_input_jsonschema()
    assert graph.get_graph().to_json() == agent.get_graph().to_json()


@pytest.mark.parametrize("way", ["as_graph", "copy", "builder"])
async def test_the_agent_runs_in_it_and_keeps_its_journal_in_its_saver(way: str) -> None:
    """Promises 5 and 10: questions, answers, state and history work, and finished calls do not run again."""
    saver, store = InMemorySaver(), InMemoryStore()
    model, desk = ScriptedModel([busy(), "done"]), Desk()
    agent: Any = create_react_agent(model, desk.tools(), checkpointer=saver if way == "as_graph" else None, store=store)
    graph: Any = {
        "as_graph": lambda: agent.as_graph(),
        "copy": lambda: agent.as_graph().copy(update={"checkpointer": saver, "store": store}),
        "builder": lambda: agent.builder.compile(checkpointer=saver, store=store),
    }[way]()
    with anyio.fail_after(WAIT):
        open_ids = ids(await graph.ainvoke(QUESTION, AT))
        state = await graph.aget_state(AT)
        assert state.next == ("tools", "tools")
        assert shape(state.values["messages"]) == ["human:go", "ai:", "tool:did x"]

        await graph.ainvoke(Command(resume={open_ids["b"]: "no"}), AT)
        updates = [chunk async for chunk in graph.astream(Command(resume={open_ids["a"]: "yes"}), AT)]
        places = [place async for place in graph.aget_state_history(AT)]
        await graph.aupdate_state(AT, {"messages": [("user", "more")]})

        assert [list(chunk) for chunk in updates][-1] == ["agent"]
        assert shape(places[0].values["messages"])[-1] == "ai:done"
        assert shape((await graph.aget_state(AT)).values["messages"])[-1] == "human:more"
        assert desk.log.count("work x") == 1
        assert list(saver.list(AT))


def test_sync_code_has_the_same_doors() -> None:
    """The sync methods `invoke`, `stream`, `get_state`, history and updates work, too."""
    graph = made(checkpointer=InMemorySaver()).as_graph()
    open_ids = ids(graph.invoke(QUESTION, AT))
    answers = {open_ids["a"]: "yes", open_ids["b"]: "no"}
    *_, last = graph.stream(Command(resume=answers), AT, stream_mode="values")
    graph.update_state(AT, {"messages": [("user", "more")]})

    assert shape(last["messages"])[-1] == "ai:done"
    assert shape(graph.get_state(AT).values["messages"])[-1] == "human:more"
    assert len(list(graph.get_state_history(AT))) > 2


async def test_what_it_is_set_up_with_goes_for_the_agent() -> None:
    """Stops, config, name and store of the graph apply to the agent, whichever way they were set."""
    seen: list[Any] = []

    def prompt(state: Any, *, store: BaseStore) -> Any:
        seen.append(store)
        return state["messages"]

    store = InMemoryStore()
    agent = create_react_agent(ScriptedModel([calls("work"), "done"]), Desk().tools(), prompt=prompt)
    graph: Any = agent.builder.compile("memory", interrupt_before=["tools"], name="desk")
    graph.store = store
    bound = graph.with_config(AT)
    with anyio.fail_after(WAIT):
        await bound.ainvoke(QUESTION)
        assert (await bound.aget_state({})).next == ("tools",)
        await bound.ainvoke(None)

    assert (seen, bound.name) == ([store, store], "desk")


async def test_the_config_of_the_agent_is_that_of_its_graph() -> None:
    """A config bound with `with_config` before `as_graph` is the config of the graph."""
    graph = made("done", checkpointer="memory").with_config(AT).as_graph()
    with anyio.fail_after(WAIT):
        await graph.ainvoke(QUESTION)
        assert (await graph.aget_state({})).next == ()


def test_a_setting_that_nobody_would_hear_of_is_refused() -> None:
    """Promise 13: the error names an alternative."""
    agent = made()
    with pytest.raises(ValueError, match="has no cache: give its ToolNode"):
        agent.builder.compile(cache=InMemoryCache())
    with pytest.raises(ValueError, match="has no step_timeout: give the agent a budget="):
        agent.as_graph().copy(update={"step_timeout": 3.0})
    graph = agent.as_graph()
    graph.step_timeout = 3.0
    with pytest.raises(ValueError, match="step_timeout"):
        graph.stream(QUESTION)


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("add_node", ("other", lambda state: state)),
        ("add_edge", ("agent", "tools")),
        ("add_conditional_edges", ("agent", lambda _: "tools")),
        ("add_sequence", ([lambda state: state],)),
        ("set_entry_point", ("tools",)),
        ("set_finish_point", ("tools",)),
        ("set_node_defaults", ()),
    ],
)
def test_its_nodes_and_edges_cannot_be_changed(method: str, arguments: Any) -> None:
    """Promise 13: the agent would ignore such changes."""
    with pytest.raises(TypeError, match="The nodes and edges of an agent are its own"):
        getattr(made().builder, method)(*arguments)


@pytest.mark.backends("asyncio")
async def test_it_is_a_node_of_another_graph_as_the_agent_is() -> None:
    """Its journal is in the saver of the surrounding graph, and that graph shows its state."""
    desk, model = Desk(), ScriptedModel([busy(), "done"])
    saver = InMemorySaver()
    graph = chain(("worker", create_react_agent(model, desk.tools()).as_graph()), saver=saver)
    with anyio.fail_after(WAIT):
        open_ids = ids(await graph.ainvoke(QUESTION, AT))
        inside = (await graph.aget_state(AT, subgraphs=True)).tasks[0].state
        result = await graph.ainvoke(Command(resume={open_ids["a"]: "yes", open_ids["b"]: "no"}), AT)

    assert [question.value for question in inside.interrupts] == ["a", "b"]
    assert shape(result["messages"])[-1] == "ai:done"
    assert desk.log.count("work x") == 1


async def test_a_saver_that_shows_dicts_serves_to_look_at_a_thread() -> None:
    """LangGraph's server reads threads in this way: it shows the stored data without importing classes."""
    saver = InMemorySaver()
    shown = InMemorySaver(serde=JsonPlusSerializer(__unpack_ext_hook__=lambda *read: _msgpack_ext_hook_to_json(*read)))
    shown.storage, shown.writes, shown.blobs = saver.storage, saver.writes, saver.blobs
    graph = made(checkpointer=saver).as_graph()
    with anyio.fail_after(WAIT):
        await graph.ainvoke(QUESTION, AT)
        state = await graph.copy({"checkpointer": shown}).aget_state(AT)

    assert [task.name for task in state.tasks] == ["tools"] * 3
    assert [question.value for question in state.interrupts] == ["a", "b"]


@pytest.mark.backends("asyncio")
async def test_its_events_are_the_agents() -> None:
    """The events of version 2, which servers read, are those of the agent."""
    graph = made("done", name="clerk").as_graph()
    with anyio.fail_after(WAIT):
        events = [(event["event"], event["name"]) async for event in graph.astream_events(QUESTION, version="v2")]

    assert events[0] == ("on_chain_start", "clerk")
    assert events[-1] == ("on_chain_end", "clerk")
    assert ("on_chat_model_end", "ScriptedModel") in events


@pytest.mark.backends("trio")
@pytest.mark.parametrize("kind", ["agent", "graph"])
async def test_events_on_trio_are_refused_in_a_sentence(kind: str) -> None:
    """LangChain's events need asyncio, and failed on trio with "no running event loop"."""
    agent = made("done")
    events = (agent if kind == "agent" else agent.as_graph()).astream_events(QUESTION, version="v2")
    with pytest.raises(RuntimeError, match=r"needs asyncio; on trio, read agent.astream\(stream_mode="):
        await anext(events)
