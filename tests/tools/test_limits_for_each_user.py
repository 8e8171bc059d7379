"""Keys of limits that read config, state and context, so that each user has a separate limit."""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

import anyio
import pytest
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool, tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import Send

from callboard import (
    AgentState,
    CallContext,
    CallPolicy,
    InjectedState,
    Limit,
    ToolCallWithContext,
    ToolNode,
    create_react_agent,
    tool_call,
)
from callboard.testing import Recorder, ScriptedModel, calls
from tests.helpers import ending_of

WAIT = 30
USERS = ("Ann", "Bob")


def by_config(call: Any, context: CallContext) -> str:
    return str(context.config["configurable"]["user"])


def by_state(call: Any, context: CallContext) -> str:
    state = context.state
    return str(state["user"] if isinstance(state, dict) else state.user)


def by_context(call: Any, context: CallContext) -> str:
    return str(context.context["user"])


class Asked(NamedTuple):
    """One way to run calls on behalf of a user."""

    runnable: Any
    input: Any
    options: dict[str, Any]

    async def aloud(self, config: RunnableConfig) -> Any:
        return await self.runnable.ainvoke(self.input, config, **self.options)

    def softly(self, config: RunnableConfig) -> Any:
        return self.runnable.invoke(self.input, config, **self.options)


def two_calls(user: str) -> list[Any]:
    return [tool_call("work", f"{user}{number}", query=user) for number in range(2)]


def runtime_of(user: str) -> Any:
    return {"runtime": Runtime(context={"user": user})}


def tool_calls(node: ToolNode, user: str) -> Asked:
    return Asked(node, two_calls(user), runtime_of(user))


def a_state(node: ToolNode, user: str) -> Asked:
    return Asked(node, {"messages": [calls(*two_calls(user))], "user": user}, runtime_of(user))


class State(MessagesState):
    user: str


def a_graph(node: ToolNode, user: str) -> Asked:
    builder = StateGraph(State, context_schema=dict)
    builder.add_node("tools", node)
    builder.add_edge(START, "tools")
    builder.add_edge("tools", END)
    state = {"messages": [calls(*two_calls(user))], "user": user}
    return Asked(builder.compile(), state, {"context": {"user": user}})


def a_graph_that_sends(node: ToolNode, user: str) -> Asked:
    """Return a graph that sends each call with its own state. The graph's own state names no user."""
    builder = StateGraph(State, context_schema=dict)
    builder.add_node("tools", node)
    builder.add_edge("tools", END)
    sends = [
        Send("tools", ToolCallWithContext(tool_call=call, __type="tool_call_with_context", state={"user": user}))
        for call in two_calls(user)
    ]
    builder.add_conditional_edges(START, lambda _: sends, ["tools"])
    return Asked(builder.compile(), {"messages": [], "user": "nobody"}, {"context": {"user": user}})


class Conversation(AgentState):
    user: str


def speak(messages: Sequence[BaseMessage]) -> Any:
    """Request two calls for the current user, then end."""
    last = messages[-1]
    return calls(*two_calls(str(last.content))) if isinstance(last, HumanMessage) else "done"


def an_agent(node: ToolNode, user: str, version: Any = "v2") -> Asked:
    agent = create_react_agent(
        ScriptedModel([speak], loop=True), node, state_schema=Conversation, context_schema=dict, version=version
    )
    return Asked(agent, {"messages": [("user", user)], "user": user}, {"context": {"user": user}})


class Streamed(NamedTuple):
    """Agent run in streaming mode, where each call has its own config."""

    agent: Any

    async def ainvoke(self, *args: Any, **options: Any) -> None:
        async for _ in self.agent.astream(*args, **options):
            pass

    def invoke(self, *args: Any, **options: Any) -> None:
        for _ in self.agent.stream(*args, **options):
            pass


def a_watched_agent(node: ToolNode, user: str) -> Asked:
    agent = an_agent(node, user)
    return agent._replace(runnable=Streamed(agent.runnable))


Way = Callable[[ToolNode, str], Asked]
KEYS = [by_config, by_state, by_context]
ANYWHERE: list[Way] = [a_state, an_agent, partial(an_agent, version="v1"), a_watched_agent]
IN_LANGGRAPH: list[Way] = [a_graph, a_graph_that_sends]
KINDS = [(way, key) for way in ANYWHERE for key in KEYS] + [(tool_calls, by_config), (tool_calls, by_context)]
KINDS_IN_LANGGRAPH = [(way, key) for way in IN_LANGGRAPH for key in KEYS]


def name_of(subject: Any) -> str:
    return getattr(subject, "__name__", "an_agent_v1")


def config_of(user: str) -> RunnableConfig:
    return {"configurable": {"user": user}}


class Meeting:
    """Sync and async tool in which two calls must overlap. It records the users whose calls overlapped."""

    def __init__(self) -> None:
        self.meetings: list[tuple[str, ...]] = []
        self._barrier = threading.Barrier(2, self._note)
        self._inside: list[str] = []
        self._all_are_inside = anyio.Event()

    def tool(self) -> BaseTool:
        return StructuredTool.from_function(self._meet, self._ameet, name="work", description="Work.")

    def _note(self) -> None:
        self.meetings.append(tuple(sorted(self._inside)))
        self._inside.clear()

    def _meet(self, query: str) -> str:
        self._inside.append(query)
        self._barrier.wait(WAIT)
        return query

    async def _ameet(self, query: str) -> str:
        self._inside.append(query)
        meeting_event = self._all_are_inside
        if len(self._inside) == 2:
            self._note()
            self._all_are_inside = anyio.Event()
            meeting_event.set()
        await meeting_event.wait()
        return query


@pytest.mark.real_clock
@pytest.mark.parametrize(("way", "key"), KINDS, ids=name_of)
async def test_two_users_of_one_node_have_places_of_their_own(way: Way, key: Any) -> None:
    """Promise 7: the user is not an argument, which the model could forge. Calls of different users overlap."""
    meeting = Meeting()
    node = ToolNode([meeting.tool()], limit=Limit(concurrency=1, key=key))
    async with anyio.create_task_group() as tasks:
        for user in USERS:
            tasks.start_soon(way(node, user).aloud, config_of(user))
    assert meeting.meetings == [USERS, USERS]


@pytest.mark.real_clock
@pytest.mark.backends("asyncio")
@pytest.mark.parametrize(("way", "key"), KINDS_IN_LANGGRAPH, ids=name_of)
async def test_two_users_of_one_graph_have_places_of_their_own(way: Way, key: Any) -> None:
    """Promise 7: this includes calls sent with their own state, as LangGraph's agent does."""
    await test_two_users_of_one_node_have_places_of_their_own(way, key)


@pytest.mark.parametrize(("way", "key"), [*KINDS, *KINDS_IN_LANGGRAPH], ids=name_of)
def test_by_the_sync_door_too_users_have_places_of_their_own(way: Way, key: Any) -> None:
    """Promise 7: `invoke` borrows an event loop, and the config of the run must reach it."""
    meeting = Meeting()
    node = ToolNode([meeting.tool()], limit=Limit(concurrency=1, key=key))
    runs = [threading.Thread(target=way(node, user).softly, args=[config_of(user)], daemon=True) for user in USERS]
    for run in runs:
        run.start()
    for run in runs:
        run.join(WAIT)
    assert meeting.meetings == [USERS, USERS]


async def context_of_key(node_of: Callable[[Limit], ToolNode], *arguments: Any, **options: Any) -> CallContext:
    """Return what a key function sees of a run."""
    contexts: list[CallContext] = []

    def key(call: Any, context: CallContext) -> None:
        contexts.append(context)

    with anyio.fail_after(WAIT):
        await node_of(Limit(concurrency=1, key=key)).ainvoke(*arguments, **options)
    (context,) = contexts
    return context


async def test_without_a_graph_a_key_sees_the_config_and_messages_where_they_are_the_state() -> None:
    """A call by itself has neither state nor context, but the key function gets a complete config."""
    messages = [calls("work")]
    for node_input, state in (([tool_call("work", "1")], None), (messages, messages)):
        context = await context_of_key(lambda limit: ToolNode([Recorder().tool("work")], limit=limit), node_input)
        assert (context.config["configurable"].get("user"), context.state, context.context) == (None, state, None)
        assert {"configurable", "metadata", "tags"} <= context.config.keys()


async def test_a_key_sees_what_a_middleware_has_made_of_the_runtime() -> None:
    """Promise 7: the key is computed after middleware, from what the tool will get, not from what the model wrote."""
    work = Recorder().tool("work")

    async def on_behalf(request: Any, call_next: Any) -> Any:
        runtime = request.runtime
        request.runtime.config["configurable"]["user"] = "Bob"
        runtime.state, runtime.context = {"user": "Bob"}, "of Bob"
        return await call_next(request)

    context = await context_of_key(
        lambda limit: ToolNode([work], policies={"work": CallPolicy(limit=limit)}, middleware=[on_behalf]),
        {"messages": [calls("work")], "user": "Ann"},
        config_of("Ann"),
    )
    actual = (context.config["configurable"]["user"], context.state, context.context)
    assert actual == ("Bob", {"user": "Bob"}, "of Bob")


async def test_a_key_sees_what_a_subclass_of_the_node_has_made_of_the_config() -> None:
    """The override changes the config of the run, and the key function sees the change."""

    class Tenants(ToolNode):
        async def ainvoke(self, input: Any, config: Any = None, **options: Any) -> Any:
            return await super().ainvoke(input, {**(config or {}), **config_of("Bob")}, **options)

    work, state = Recorder().tool("work"), {"messages": [calls("work")]}
    context = await context_of_key(lambda limit: Tenants([work], limit=limit), state, config_of("Ann"))
    assert context.config["configurable"]["user"] == "Bob"


async def test_a_rejection_does_not_tell_the_model_whose_queue_is_full() -> None:
    """Promise 9: the key may be a user's name or more confidential, so the message leaves it out."""
    rec = Recorder()
    node = ToolNode([rec.tool("work", seconds=1)], limit=Limit(concurrency=1, queue=0, key=by_config))
    with anyio.fail_after(WAIT):
        result = await node.ainvoke([tool_call("work", "1"), tool_call("work", "2")], config_of("Ann"))
    first, second = result["messages"]
    assert [ending_of(first), ending_of(second)] == [None, "rejected"]
    assert "the queue of node 'tools' for calls like this one is full: 1 of 1 run" in second.content
    assert "Ann" not in second.content


async def test_a_key_that_stumbles_over_wrong_arguments_is_the_models_affair() -> None:
    """Promise 9: the message describes the wrong arguments and reveals nothing of state and config."""

    @tool
    async def fetch(host: str, state: Annotated[dict[str, Any], InjectedState]) -> str:
        """Fetch."""
        return host

    def by_host(call: Any, context: CallContext) -> Any:
        return context.config["configurable"]["user"], call["args"]["host"]

    node = ToolNode([fetch], policies={"fetch": CallPolicy(limit=Limit(concurrency=1, key=by_host))})
    with anyio.fail_after(WAIT):
        result = await node.ainvoke({"messages": [calls("fetch")], "secret": "canary"}, config_of("Ann"))
    (message,) = result["messages"]
    assert (message.status, "host" in message.content) == ("error", True)
    assert "canary" not in message.content
    assert "Ann" not in message.content
