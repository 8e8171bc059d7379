"""Attributes of agents and tool nodes that libraries read and set, as on LangGraph's objects."""

import copy
import pickle
from typing import Any

import anyio
import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import ToolNode as LangGraphToolNode
from langgraph.prebuilt import create_react_agent as langgraph_agent
from langgraph.store.memory import InMemoryStore
from langgraph.types import RetryPolicy
from typing_extensions import TypedDict

from callboard import CallPolicy, Limit, ToolNode, create_react_agent
from callboard.testing import ScriptedModel, calls, tool_call

pytestmark = [
    pytest.mark.real_clock,
    pytest.mark.filterwarnings("ignore:create_react_agent has been moved"),
]

WAIT = 20
GO: Any = {"messages": [HumanMessage("go")]}


class Context(TypedDict):
    user: str


def remember(what: str, runtime: Any) -> str:
    """Write into the store."""
    runtime.store.put(("all",), "it", {"what": what})
    return "done"


async def fail(path: str) -> str:
    """Fail."""
    raise ValueError(path)


def agent_of(maker: Any, tools: Any, **options: Any) -> Any:
    return maker(ScriptedModel([calls(tool_call("remember", what="x")), "end"], loop=True), tools, **options)


@pytest.mark.parametrize(
    "name", ["context_schema", "cache", "cache_policy", "debug", "retry_policy", "store", "name", "config"]
)
def test_an_agent_has_the_attributes_of_a_graph(name: str) -> None:
    """Servers and libraries read the attributes of a compiled graph."""
    options: Any = {"context_schema": Context, "store": InMemoryStore(), "name": "helper", "debug": True}
    ours, theirs = (agent_of(maker, [remember], **options) for maker in (create_react_agent, langgraph_agent))
    assert getattr(ours, name) == getattr(theirs, name)


def test_an_agent_lists_its_channels_and_is_valid() -> None:
    """The channels are listed by key, as for LangGraph's agent."""
    ours, theirs = (agent_of(maker, [remember]) for maker in (create_react_agent, langgraph_agent))
    assert {"messages", "remaining_steps"} <= ours.channels.keys() & theirs.channels.keys()
    assert ours.validate() is ours
    with pytest.raises(ValueError, match="No cache is set for this graph"):
        ours.clear_cache()
    with pytest.raises(ValueError, match="No cache is set for this graph"):
        theirs.clear_cache()


async def test_a_store_that_is_set_is_what_tools_get() -> None:
    """Servers set their own store on a loaded agent; a copy with another store leaves the first agent unchanged."""
    first, second = InMemoryStore(), InMemoryStore()
    agent = agent_of(create_react_agent, [remember])
    agent.store = first
    other = agent.copy(update={"store": second, "checkpointer": InMemorySaver(), "name": "other", "debug": False})
    with anyio.fail_after(WAIT):
        await agent.ainvoke(GO)
        assert (first.get(("all",), "it") is not None, second.get(("all",), "it")) == (True, None)
        await other.ainvoke(GO, {"configurable": {"thread_id": "1"}})
    assert second.get(("all",), "it") is not None
    assert (agent.checkpointer, agent.name, other.name) == (None, "LangGraph", "other")


def test_what_an_agent_cannot_have_is_an_error() -> None:
    """Settings that the agent would ignore, such as a retry policy of a graph, are refused."""
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
    ours, theirs = (cls([peek, remember], **options) for cls in (ToolNode, LangGraphToolNode))
    for name in ("_tools_by_name", "_handle_tool_errors", "_messages_key", "_injected_args"):
        mine, other = getattr(ours, name), getattr(theirs, name)
        if name == "_tools_by_name":
            mine, other = list(mine), list(other)
        assert mine == other
        with pytest.raises(AttributeError):
            setattr(ours, name, other)


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda node: pickle.loads(pickle.dumps(node))])
async def test_a_copy_of_a_node_works_with_limits_of_its_own(how: Any) -> None:
    """Limits hold locks and threads, so copies make new ones; attributes of subclasses are kept."""
    limit, policies = Limit(concurrency=2), {"fail": CallPolicy(timeout=4.0, limit=Limit(concurrency=1))}
    node = Counted([fail], handle_tool_errors=True, timeout=3.0, middleware=[passing], limit=limit, policies=policies)
    node.label = "mine"
    other = how(node)
    assert (type(other), other.label, list(other.tools_by_name)) == (Counted, "mine", ["fail"])
    assert other._setup.supervision is not node._setup.supervision
    assert other._setup.supervision.default.timeout == 3.0
    with anyio.fail_after(WAIT):
        result = await other.ainvoke({"messages": [calls(tool_call("fail", path="/"))]})
    assert "ValueError('/')" in result["messages"][0].content
    assert other.statistics().running == 0


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

    theirs = LangGraphToolNode([fail], handle_tool_errors=explain, awrap_tool_call=wrap)
    model = ScriptedModel([calls(tool_call("fail", path="/")), "end"])
    agent = create_react_agent(model, theirs, version=version)
    with anyio.fail_after(WAIT):
        state = await agent.ainvoke(GO)
    assert [message.content for message in state["messages"] if isinstance(message, ToolMessage)] == ["explained /"]
    assert wrapped == ["fail"]
    assert isinstance(agent.tools, ToolNode)


async def test_langgraphs_own_default_for_errors_stays_the_default() -> None:
    """Errors of tools are raised, and errors of arguments become messages for the model."""
    agent = create_react_agent(
        ScriptedModel([calls(tool_call("fail", wrong=1)), calls(tool_call("fail", path="/"))]),
        LangGraphToolNode([fail]),
    )
    with anyio.fail_after(WAIT), pytest.raises(ValueError, match=r"^/\nIn tool 'fail' \(call 'call_2'\)\.$"):
        await agent.ainvoke(GO)


def test_a_subclass_of_langgraphs_node_is_refused_with_a_remedy() -> None:
    """Methods that the subclass overrides would not be called."""

    class Guard(LangGraphToolNode):
        def _run_one(self, call: Any, input_type: Any, tool_runtime: Any) -> Any:
            return None

    with pytest.raises(TypeError, match=r"Guard overrides _run_one .* derive it from callboard\.ToolNode"):
        create_react_agent(ScriptedModel(["end"]), Guard([fail]))
