"""An agent as a graph compiled by LangGraph, for code that checks `isinstance(x, Pregel)`."""

import copy
import inspect
import pickle
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import langgraph.prebuilt
import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.cache.memory import InMemoryCache
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer, _msgpack_ext_hook_to_json
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.errors import GraphRecursionError, InvalidUpdateError
from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode as LangGraphToolNode
from langgraph.prebuilt import create_react_agent as langgraph_agent
from langgraph.pregel import Pregel
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, RetryPolicy, interrupt
from typing_extensions import TypedDict

import callboard
from callboard import CallPolicy, Limit, ToolNode, create_react_agent, tool_call
from callboard.testing import Recorder, ScriptedModel, calls

from ._graphs import Desk, busy, chain, ids
from ._savers import AT, QUESTION, contents, scripted, shape

pytestmark = [
    pytest.mark.real_clock,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of LangGraph's own agent
]


class Context(TypedDict):
    user: str


def make_agent(*replies: Any, **options: Any) -> Any:
    return scripted(replies or [busy(), "done"], Desk().tools(), **options)


def test_it_is_what_langgraph_asks_for() -> None:
    """Servers and libraries check `isinstance`, and use the name, the schemas and the nodes."""
    agent = make_agent(name="clerk", context_schema=Context)
    graph, builder = agent.as_graph(), agent.builder
    assert isinstance(graph, (Pregel, CompiledStateGraph))
    assert isinstance(builder, StateGraph)
    assert graph.name == "clerk"
    assert builder.compile().name == "LangGraph"
    assert list(graph.nodes) == ["__start__", "agent", "tools"]
    assert graph.get_context_jsonschema() == agent.get_context_jsonschema()
    assert graph.get_input_jsonschema() == agent.get_input_jsonschema()
    assert graph.get_graph().to_json() == agent.get_graph().to_json()


SHOWN = ["input_channels", "output_channels", "stream_channels", "stream_channels_asis", "stream_channels_list"]
SHOWN += ["stream_mode", "stream_eager", "step_timeout", "interrupt_before_nodes", "trigger_to_nodes"]


def test_attributes_and_drawings_are_those_of_langgraphs_agent() -> None:
    options: Any = {"tools": Desk().tools(), "interrupt_before": ["tools"]}
    agent, their_agent = create_react_agent(ScriptedModel([]), **options), langgraph_agent(ScriptedModel([]), **options)
    assert {name: getattr(agent, name) for name in SHOWN} == {name: getattr(their_agent, name) for name in SHOWN}
    assert agent.get_graph().draw_mermaid() == their_agent.get_graph().draw_mermaid()
    assert "__interrupt = before" in agent.get_graph().draw_mermaid()
    with pytest.raises(AttributeError, match="output_channels of an agent cannot be set: give stream_mode= or"):
        agent.output_channels = ["messages"]  # type: ignore[attr-defined]


async def test_breakpoints_can_be_set_on_an_agent() -> None:
    agent = make_agent(calls("work"), "done", checkpointer="memory")
    agent.interrupt_before_nodes = ["tools"]
    await agent.ainvoke(QUESTION, AT)
    assert (await agent.aget_state(AT)).next == ("tools",)
    agent.interrupt_before_nodes, agent.interrupt_after_nodes = [], "*"
    await agent.ainvoke(None, AT)
    assert (await agent.aget_state(AT)).next == ("agent",)


@pytest.mark.parametrize("origin", ["as_graph", "copy", "builder"])
async def test_the_agent_runs_in_it_and_keeps_its_journal_in_its_saver(origin: str) -> None:
    saver, store = InMemorySaver(), InMemoryStore()
    model, desk = ScriptedModel([busy(), "done"]), Desk()
    agent: Any = create_react_agent(
        model, desk.tools(), checkpointer=saver if origin == "as_graph" else None, store=store
    )
    graph: Any = {
        "as_graph": lambda: agent.as_graph(),
        "copy": lambda: agent.as_graph().copy(update={"checkpointer": saver, "store": store}),
        "builder": lambda: agent.builder.compile(checkpointer=saver, store=store),
    }[origin]()
    open_ids = ids(await graph.ainvoke(QUESTION, AT))
    state = await graph.aget_state(AT)
    assert state.next == ("tools", "tools")
    assert shape(state.values) == ["human:go", "ai:", "tool:did x"]
    await graph.ainvoke(Command(resume={open_ids["b"]: "no"}), AT)
    updates = [chunk async for chunk in graph.astream(Command(resume={open_ids["a"]: "yes"}), AT)]
    snapshots = [snapshot async for snapshot in graph.aget_state_history(AT)]
    await graph.aupdate_state(AT, say("more"))
    assert [list(chunk) for chunk in updates][-1] == ["agent"]
    assert shape(snapshots[0].values)[-1] == "ai:done"
    assert shape((await graph.aget_state(AT)).values["messages"])[-1] == "human:more"
    assert desk.log.count("work x") == 1
    assert list(saver.list(AT))


async def test_what_it_is_set_up_with_goes_for_the_agent() -> None:
    stores: list[Any] = []

    def prompt(state: Any, *, store: BaseStore) -> Any:
        stores.append(store)
        return state["messages"]

    store = InMemoryStore()
    agent = scripted([calls("work"), "done"], Desk().tools(), prompt=prompt)
    graph: Any = agent.builder.compile("memory", interrupt_before=["tools"], name="desk")
    graph.store = store
    bound = graph.with_config(AT)
    await bound.ainvoke(QUESTION)
    assert (await bound.aget_state({})).next == ("tools",)
    await bound.ainvoke(None)
    assert (stores, bound.name) == ([store, store], "desk")
    configured = make_agent("done", checkpointer="memory").with_config(AT).as_graph()
    await configured.ainvoke(QUESTION)
    assert (await configured.aget_state({})).next == ()


def test_a_setting_that_nobody_would_hear_of_is_refused() -> None:
    """Promise 13: the error names an alternative."""
    agent = make_agent()
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
        getattr(make_agent().builder, method)(*arguments)


@pytest.mark.backends("asyncio")
async def test_it_is_a_node_of_another_graph_as_the_agent_is() -> None:
    desk, model = Desk(), ScriptedModel([busy(), "done"])
    saver = InMemorySaver()
    graph = chain(("worker", create_react_agent(model, desk.tools()).as_graph()), saver=saver)
    open_ids = ids(await graph.ainvoke(QUESTION, AT))
    inside = (await graph.aget_state(AT, subgraphs=True)).tasks[0].state
    result = await graph.ainvoke(Command(resume={open_ids["a"]: "yes", open_ids["b"]: "no"}), AT)
    assert [question.value for question in inside.interrupts] == ["a", "b"]
    assert shape(result)[-1] == "ai:done"
    assert desk.log.count("work x") == 1


async def test_a_saver_that_shows_dicts_serves_to_look_at_a_thread() -> None:
    """LangGraph's server reads threads in this way: it shows the stored data without importing classes."""
    saver = InMemorySaver()
    viewing_saver = InMemorySaver(
        serde=JsonPlusSerializer(__unpack_ext_hook__=lambda *read: _msgpack_ext_hook_to_json(*read))
    )
    viewing_saver.storage, viewing_saver.writes, viewing_saver.blobs = saver.storage, saver.writes, saver.blobs
    graph = make_agent(checkpointer=saver).as_graph()
    await graph.ainvoke(QUESTION, AT)
    state = await graph.copy({"checkpointer": viewing_saver}).aget_state(AT)
    assert [task.name for task in state.tasks] == ["tools"] * 3
    assert [question.value for question in state.interrupts] == ["a", "b"]


@pytest.mark.backends("trio")
@pytest.mark.parametrize("kind", ["agent", "graph"])
async def test_events_on_trio_are_refused_in_a_sentence(kind: str) -> None:
    """LangChain's events need asyncio, and failed on trio with "no running event loop"."""
    agent = make_agent("done")
    events = (agent if kind == "agent" else agent.as_graph()).astream_events(QUESTION, version="v2")
    with pytest.raises(RuntimeError, match=r"needs asyncio; on trio, read agent.astream\(stream_mode="):
        await anext(events)


# Attributes of agents and tool nodes that libraries read and set, as on LangGraph's objects.


def remember(what: str, runtime: Any) -> str:
    """Write into the store."""
    runtime.store.put(("all",), "it", {"what": what})
    return "done"


async def fail(path: str) -> str:
    """Fail."""
    raise ValueError(path)


def agent_of(maker: Any, tools: Any, **options: Any) -> Any:
    return maker(ScriptedModel([calls(tool_call("remember", what="x")), "end"], loop=True), tools, **options)


def test_an_agent_has_the_attributes_and_channels_of_a_graph() -> None:
    options: Any = {"context_schema": Context, "store": InMemoryStore(), "name": "helper", "debug": True}
    our_agent, their_agent = (agent_of(maker, [remember], **options) for maker in (create_react_agent, langgraph_agent))
    for name in ("context_schema", "cache", "cache_policy", "debug", "retry_policy", "store", "name", "config"):
        assert getattr(our_agent, name) == getattr(their_agent, name)
    assert {"messages", "remaining_steps"} <= our_agent.channels.keys() & their_agent.channels.keys()
    assert our_agent.validate() is our_agent
    for either_agent in (our_agent, their_agent):
        with pytest.raises(ValueError, match="No cache is set for this graph"):
            either_agent.clear_cache()


async def test_a_store_that_is_set_is_what_tools_get() -> None:
    """Servers set their own store on a loaded agent; a copy with another store leaves the first agent unchanged."""
    first, second = InMemoryStore(), InMemoryStore()
    agent = agent_of(create_react_agent, [remember])
    agent.store = first
    agent_copy = agent.copy(update={"store": second, "checkpointer": InMemorySaver(), "name": "other", "debug": False})
    await agent.ainvoke(QUESTION)
    assert (first.get(("all",), "it") is not None, second.get(("all",), "it")) == (True, None)
    await agent_copy.ainvoke(QUESTION, AT)
    assert second.get(("all",), "it") is not None
    assert (agent.checkpointer, agent.name, agent_copy.name) == (None, "LangGraph", "other")


def test_what_an_agent_cannot_have_is_an_error() -> None:
    agent = agent_of(create_react_agent, [remember])
    with pytest.raises(AttributeError, match="retry_policy"):
        agent.retry_policy = [RetryPolicy()]
    with pytest.raises(AttributeError, match="cache"):
        agent.cache = object()
    with pytest.raises(TypeError, match="got 'nodes'"):
        agent.copy(update={"nodes": {}})
    with pytest.raises(TypeError, match="A store is"):
        agent.store = object()


def test_a_node_has_what_langgraphs_node_has() -> None:
    """langgraph-supervisor and deepagents read these; setting them has no effect, so it is refused."""

    @tool
    def peek(state: Any) -> str:
        """Look."""
        return str(state)

    options: Any = {"handle_tool_errors": "no", "messages_key": "history"}
    our_node, their_node = (cls([peek, remember], **options) for cls in (ToolNode, LangGraphToolNode))
    for name in ("_tools_by_name", "_handle_tool_errors", "_messages_key", "_injected_args"):
        our_value, their_value = getattr(our_node, name), getattr(their_node, name)
        if name == "_tools_by_name":
            our_value, their_value = list(our_value), list(their_value)
        assert our_value == their_value
        with pytest.raises(AttributeError):
            setattr(our_node, name, their_value)


@pytest.mark.parametrize("copy_node", [copy.copy, copy.deepcopy, lambda node: pickle.loads(pickle.dumps(node))])
async def test_a_copy_of_a_node_works_with_limits_of_its_own(copy_node: Any) -> None:
    """Limits hold locks and threads, so copies make new ones; attributes of subclasses are kept."""
    limit, policies = Limit(concurrency=2), {"fail": CallPolicy(timeout=4.0, limit=Limit(concurrency=1))}
    node = Counted([fail], handle_tool_errors=True, timeout=3.0, middleware=[passing], limit=limit, policies=policies)
    node.label = "mine"
    node_copy = copy_node(node)
    assert (type(node_copy), node_copy.label, list(node_copy.tools_by_name)) == (Counted, "mine", ["fail"])
    assert node_copy._setup.supervision is not node._setup.supervision
    assert node_copy._setup.supervision.default.timeout == 3.0
    result = await node_copy.ainvoke({"messages": [calls(tool_call("fail", path="/"))]})
    assert "ValueError('/')" in result["messages"][0].content
    assert node_copy.statistics().running == 0


async def passing(request: Any, call_next: Any) -> Any:
    """Change nothing."""
    return await call_next(request)


class Counted(ToolNode):
    """A node class at module level, so that it can be pickled."""

    label = ""


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_an_agent_takes_langgraphs_own_node(version: Any) -> None:
    """The agent takes over the node's tools, names, error handling and wrappers, and supervises the calls."""
    wrapped: list[str] = []

    async def wrap(request: Any, execute: Any) -> Any:
        wrapped.append(request.tool_call["name"])
        return await execute(request)

    def explain(error: ValueError) -> str:
        return f"explained {error}"

    their_node = LangGraphToolNode([fail], handle_tool_errors=explain, awrap_tool_call=wrap)
    model = ScriptedModel([calls(tool_call("fail", path="/")), "end"])
    agent = create_react_agent(model, their_node, version=version)
    state = await agent.ainvoke(QUESTION)
    assert [message.content for message in state["messages"] if isinstance(message, ToolMessage)] == ["explained /"]
    assert wrapped == ["fail"]
    assert isinstance(agent.tools, ToolNode)


def test_a_subclass_of_langgraphs_node_is_refused_with_a_remedy() -> None:
    """Methods that the subclass overrides would not be called."""

    class Guard(LangGraphToolNode):
        def _run_one(self, call: Any, input_type: Any, tool_runtime: Any) -> Any:
            return None

    with pytest.raises(TypeError, match=r"Guard overrides _run_one .* derive it from callboard\.ToolNode"):
        scripted(["end"], Guard([fail]))


# Behaviour that code written for `langgraph.prebuilt` expects; each test compares with LangGraph's agent.


SIDES = [langgraph.prebuilt, callboard]


def say(text: str) -> Any:
    """Return an input with a message: LangGraph does not convert the tuples in a command."""
    return {"messages": [HumanMessage(text)]}


def double(x: int) -> int:
    """Double."""
    return 2 * x


def agent(side: Any, *replies: Any, **options: Any) -> Any:
    return side.create_react_agent(ScriptedModel(list(replies)), [double], **options)


@pytest.mark.parametrize("bound", [False, True])
def test_a_recursion_limit_holds_also_if_it_is_the_default_of_langchain(bound: bool) -> None:
    """When LangChain merges configs, it treats the limit 25 as unset; the agent must not."""

    def outcome_of(side: Any, limit: int) -> Any:
        model = ScriptedModel([calls(("double", {"x": 1}))], loop=True)
        endless = side.create_react_agent(model, [double])
        try:
            if bound:
                return contents(endless.with_config(recursion_limit=limit).invoke(say("go"))["messages"])
            return contents(endless.invoke(say("go"), {"recursion_limit": limit})["messages"])
        except GraphRecursionError:
            return len(model.requests)

    assert outcome_of(callboard, 25) == 13
    for limit in (24, 25):
        assert outcome_of(callboard, limit) == outcome_of(langgraph.prebuilt, limit)


@pytest.mark.parametrize("side", SIDES, ids=["langgraph", "callboard"])
def test_an_agent_is_made_a_tool_by_its_schema_and_its_nodes_can_be_looked_at(side: Any) -> None:
    """`as_tool` and similar methods ask a Runnable for its input and output types."""
    new_agent = agent(side, "hi", name="clerk")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # LangChain's method is in beta
        tool = new_agent.as_tool(name="ask_clerk", description="Ask.", arg_types={"messages": list})
    assert contents(tool.invoke(say("go"))["messages"]) == ["go", "hi"]
    assert "messages" in str((new_agent | (lambda state: state)).get_input_jsonschema())
    assert "messages" in new_agent.get_output_schema().model_fields
    assert list(new_agent.get_subgraphs()) == []
    assert list(new_agent.nodes) == ["__start__", "agent", "tools"]
    assert inspect.isroutine(new_agent.nodes["agent"].bound.func)
    assert list(new_agent.nodes["tools"].bound.tools_by_name) == ["double"]


def test_a_command_that_goes_nowhere_is_refused_and_changes_nothing() -> None:
    """LangGraph only logs that it ignores the update; callboard raises and leaves the thread unchanged."""
    new_agent = agent(callboard, "hi", checkpointer=InMemorySaver())
    new_agent.invoke(say("go"), AT)
    with pytest.raises(InvalidUpdateError, match="Node nope does not exist; there are agent, tools"):
        new_agent.invoke(Command(update=say("go"), goto="nope"), AT)
    assert contents(new_agent.get_state(AT).values) == ["go", "hi"]


def test_a_model_that_is_chosen_has_to_be_one() -> None:
    new_agent = callboard.create_react_agent(lambda state, runtime: 3, [])  # type: ignore[arg-type,return-value]

    with pytest.raises(TypeError, match="has to return a chat model for the state, got 3"):
        new_agent.invoke(say("go"))


@pytest.mark.parametrize("side", SIDES, ids=["langgraph", "callboard"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_place_where_input_was_received_takes_it_in_again(side: Any, number: int) -> None:
    new_agent = agent(side, "a", "b", "c", "d", checkpointer=InMemorySaver())
    new_agent.invoke(say("go"), AT)
    new_agent.invoke(say("more"), AT)
    received = [snapshot for snapshot in new_agent.get_state_history(AT) if snapshot.next == ("__start__",)][::-1][
        number
    ]
    before = contents(received.values.get("messages", []))
    assert contents(received.tasks[0].result) == ["go" if number == 0 else "more"]
    repeated = new_agent.invoke(None, received.config)
    forked = new_agent.invoke(say("other"), received.config)
    assert contents(repeated) == [*before, "go" if number == 0 else "more", "c"]
    assert contents(forked) == [*before, "other", "d"]


def ask(what: str) -> str:
    """Ask."""
    return f"{what}: {interrupt(what)}"


@pytest.mark.parametrize("side", SIDES, ids=["langgraph", "callboard"])
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_the_place_where_a_question_was_asked_still_has_it_when_it_was_answered(side: Any, version: Any) -> None:
    model = ScriptedModel([calls(("ask", {"what": "tea?"})), "done"])
    new_agent = side.create_react_agent(model, [ask], checkpointer=InMemorySaver(), version=version)
    new_agent.invoke(say("go"), AT)
    new_agent.invoke(Command(resume="yes"), AT)

    (snapshot,) = [snapshot for snapshot in new_agent.get_state_history(AT) if snapshot.interrupts]
    for reading in (snapshot, new_agent.get_state(snapshot.config)):
        assert [question.value for question in reading.tasks[0].interrupts] == ["tea?"]
        assert contents(reading.tasks[0].result) == ["tea?: yes"]
    assert new_agent.get_state(AT).interrupts == ()


@pytest.mark.parametrize("side", SIDES, ids=["langgraph", "callboard"])
def test_what_a_user_says_of_a_run_is_kept_with_its_checkpoints(side: Any) -> None:
    saver = InMemorySaver()
    new_agent = agent(side, "hi", checkpointer=saver)
    new_agent.invoke(say("go"), {"configurable": {"thread_id": "1", "user_id": "bob"}, "metadata": {"tier": 1}})

    metadata = new_agent.get_state(AT).metadata
    assert (metadata["tier"], metadata["user_id"], metadata["source"]) == (1, "bob", "loop")
    assert list(saver.list(None, filter={"user_id": "bob"}))
    assert {snapshot.metadata["tier"] for snapshot in new_agent.get_state_history(AT, filter={"tier": 1})} == {1}
    assert not list(new_agent.get_state_history(AT, filter={"tier": 2}))


@pytest.fixture
async def saver_of_this_loop(tmp_path: Path) -> AsyncIterator[AsyncSqliteSaver]:
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "db")) as saver:
        yield saver


@pytest.mark.backends("asyncio")
@pytest.mark.real_clock
async def test_a_sync_call_on_the_loop_of_its_saver_is_refused_and_does_not_hang(
    saver_of_this_loop: AsyncSqliteSaver,
) -> None:
    """Such a call would deadlock: it blocks the loop that its own saver needs."""
    new_agent = agent(callboard, "hi", checkpointer=saver_of_this_loop)

    await new_agent.ainvoke(say("go"), AT)
    for call in (
        lambda: new_agent.get_state(AT),
        lambda: new_agent.invoke(say("go"), AT),
        lambda: list(new_agent.stream(None, AT)),
    ):
        with pytest.raises(Exception, match="Await the agent's async method instead"):
            call()
    assert contents((await new_agent.aget_state(AT)).values["messages"]) == ["go", "hi"]


@pytest.mark.real_clock
async def test_several_conversations_run_at_once_on_any_loop() -> None:
    recorder = Recorder()
    node = ToolNode([recorder.tool("slow", seconds=0.02)])
    batches = [[tool_call("slow", "1", query=f"{n}")] for n in range(5)]
    outputs = await node.abatch(batches, {"max_concurrency": 2})
    results = await agent(callboard, "a", "b").abatch([say("go"), say("go")])
    assert [message.content for output in outputs for message in output["messages"]] == list("01234")
    assert recorder.peak == 2
    assert sorted(contents(result)[-1] for result in results) == ["a", "b"]


@pytest.mark.parametrize("number", range(1, 7))
def test_steps_of_a_fork_are_numbered_as_in_langgraph(number: int) -> None:
    def steps(side: Any, agent_input: Any) -> list[int]:
        new_agent = agent(side, *"abcdef", checkpointer=InMemorySaver())
        new_agent.invoke(say("go"), AT)
        new_agent.invoke(say("more"), AT)
        snapshots = list(new_agent.get_state_history(AT))
        if number >= len(snapshots):
            return []
        new_agent.invoke(agent_input, snapshots[number].config)
        return [snapshot.metadata["step"] for snapshot in new_agent.get_state_history(AT)][:2]

    assert steps(callboard, say("other")) == steps(langgraph.prebuilt, say("other"))
    assert steps(callboard, None) == steps(langgraph.prebuilt, None)
