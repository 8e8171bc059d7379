"""`Send` to a node of the agent: sent input survives stops and crashes, and an impossible send is refused early."""

import copy
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import InvalidUpdateError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState
from langgraph.prebuilt import create_react_agent as langgraph_agent
from langgraph.types import Command, Send, interrupt

import callboard
from callboard import tool_call
from callboard.testing import ScriptedModel, calls
from tests.helpers import UNKNOWN

from ._savers import AT, QUESTION, contents

pytestmark = [
    pytest.mark.real_clock,
    pytest.mark.filterwarnings("ignore::langgraph.warnings.LangGraphDeprecationWarning"),
]


class Works:
    """Tools, and the record of their executions."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.fails = False
        self.look: Any = None
        self.looks: list[Any] = []

    def tools(self) -> list[Any]:
        @tool
        async def work(name: str) -> str:
            """Work."""
            self.ran.append(name)
            if self.look is not None:
                self.looks.append(await self.look())
            return name

        @tool
        async def ask(name: str) -> str:
            """Ask."""
            self.ran.append(name)
            return f"{name}: {interrupt(name)}"

        @tool
        async def fail(name: str) -> str:
            """Fail while it is told to."""
            self.ran.append(name)
            if self.fails:
                raise RuntimeError(name)
            return name

        return [work, ask, fail]


def to_tools(*calls: Any) -> Send:
    return Send("tools", list(calls))


def send_text(text: str) -> Send:
    return Send("agent", {"messages": [HumanMessage(text)]})


def agent_of(works: Works, *replies: Any, saver: Any = None, on_unknown: Any = None, **options: Any) -> Any:
    options.setdefault("version", "v2")
    tools = callboard.ToolNode(works.tools(), handle_tool_errors=False, on_unknown=on_unknown)
    return callboard.create_react_agent(
        ScriptedModel(list(replies)), tools, checkpointer=saver or InMemorySaver(), **options
    )


versions = pytest.mark.parametrize("version", ["v1", "v2"])


@versions
async def test_what_finished_beside_a_failure_does_not_run_again(version: Any) -> None:
    works = Works()
    works.fails = True
    agent = agent_of(works, "hi", "end", version=version)
    sends = [to_tools(tool_call("work", "a", name="a")), to_tools(tool_call("fail", "c", name="c"))]
    await agent.ainvoke(QUESTION, AT)
    with pytest.raises(RuntimeError, match="c"):
        await agent.ainvoke(Command(goto=sends), AT)
    assert (await agent.aget_state(AT)).next == ("tools",)
    works.fails = False
    result = await agent.ainvoke(None, AT)
    assert contents(result) == ["go", "hi", "a", "c", "end"]
    assert works.ran == ["a", "c", "c"]


@versions
@pytest.mark.parametrize("schema", [callboard.AgentState, callboard.AgentStatePydantic])
async def test_a_sent_call_gets_the_state_that_other_calls_get(schema: Any, version: Any) -> None:
    """A tool that is written for a model of the state would fail on a dict."""
    states: list[Any] = []

    @tool
    async def look(state: Annotated[Any, InjectedState]) -> str:
        """Look."""
        states.append((type(state), sorted(dict(state))))
        return "seen"

    model = ScriptedModel([calls(("look", {})), "hi", "end"])
    agent = callboard.create_react_agent(
        model, [look], state_schema=schema, checkpointer=InMemorySaver(), version=version
    )
    await agent.ainvoke(QUESTION, AT)
    await agent.ainvoke(Command(goto=to_tools(tool_call("look", "2"))), AT)
    assert states == [states[0]] * 2


@pytest.mark.backends("asyncio")
async def test_a_node_in_an_agent_that_was_sent_reads_the_state_of_the_agent() -> None:
    """The graph around sends the agent an input of its own."""
    conversations: list[Any] = []

    @tool
    async def look(messages: Annotated[Any, InjectedState("messages")]) -> str:
        """Look."""
        conversations.append([message.content for message in messages])
        return "seen"

    @tool
    async def nest(config: RunnableConfig) -> str:
        """Run another node."""
        (message,) = (await callboard.ToolNode([look]).ainvoke([tool_call("look", "2")], config))["messages"]
        return str(message.content)

    outer: Any = StateGraph(MessagesState)
    outer.add_node("agent", callboard.create_react_agent(ScriptedModel([calls(("nest", {})), "end"]), [nest]))
    outer.add_conditional_edges(START, lambda _: [send_text("own")], ["agent"])
    result = await outer.compile().ainvoke({"messages": [("user", "around")]})
    assert contents(result)[-2:] == ["seen", "end"]
    assert conversations == [["own", ""]]


@versions
async def test_another_process_goes_on_with_what_was_sent(version: Any) -> None:
    works, saver = Works(), InMemorySaver()
    model = ScriptedModel(["reply", "end"])
    sends = [to_tools(tool_call("ask", "q", name="x")), send_text("other")]
    first = agent_of(works, "hi", "heard", saver=saver, version=version)
    await first.ainvoke(QUESTION, AT)
    await first.ainvoke(Command(goto=sends), AT)
    next_agent = callboard.create_react_agent(model, works.tools(), checkpointer=saver, version=version)
    assert (await next_agent.aget_state(AT)).next == ("tools",)
    result = await next_agent.ainvoke(Command(resume="yes"), AT)
    assert contents(result) == ["go", "hi", "x: yes", "heard", "reply"]
    assert len(model.requests) == 1


@pytest.mark.backends("asyncio")
@pytest.mark.parametrize("stops", [True, False], ids=["before", "in the middle"])
async def test_we_go_on_with_what_langgraph_has_sent(stops: bool) -> None:
    """callboard runs LangGraph's sends beside the next node; finished calls of an interrupted step do not run again."""
    works, saver, model = Works(), InMemorySaver(), ScriptedModel(["one", "two", "three"])
    sends = [to_tools(tool_call("work", "w", name="w")), to_tools(tool_call("ask", "q", name="x"))]
    reply = AIMessage("", tool_calls=[tool_call("spread", "s")])
    tools = [*works.tools(), spreading(sends)]
    their_agent = langgraph_agent(ScriptedModel([reply, "one"]), tools, checkpointer=saver, version="v2")
    our_agent = callboard.create_react_agent(model, tools, checkpointer=saver)
    await their_agent.ainvoke(QUESTION, AT, interrupt_before=["agent"])
    await their_agent.ainvoke(None, AT, interrupt_before=["agent"])
    if not stops:
        await their_agent.ainvoke(None, AT)
        assert sorted(works.ran) == ["w", "x"]
    else:
        assert (await our_agent.aget_state(AT)).next == ("tools", "tools", "agent")
        await our_agent.ainvoke(None, AT)
    result = await our_agent.ainvoke(Command(resume="yes"), AT)
    assert contents(result)[:3] == ["go", "", "spread"]
    assert sorted(contents(result)[3:6]) == ["one", "w", "x: yes"]
    assert sorted(works.ran) == ["w", "x", "x"]


def spreading(sends: list[Send]) -> Any:
    @tool
    def spread(tool_call_id: Annotated[str, InjectedToolCallId]) -> Any:
        """Spread."""
        return Command(update={"messages": [ToolMessage("spread", tool_call_id=tool_call_id)]}, goto=sends)

    return spread


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "no such node": (Send("tool", [tool_call("work", "a", name="a")]), InvalidUpdateError, "did you mean 'tools'"),
    "the end": (Send("__end__", {}), InvalidUpdateError, "Node __end__ does not exist"),
    "messages": (
        Send("tools", [AIMessage("", tool_calls=[tool_call("work", "a", name="a")])]),
        InvalidUpdateError,
        "a state",
    ),
    "no calls": (Send("tools", {"messages": []}), ValueError, "No message found"),
    "a timeout": (Send("agent", QUESTION, timeout=3), InvalidUpdateError, "timeout"),
}


@pytest.mark.parametrize("kind", BAD)
async def test_a_send_that_cannot_run_is_refused_before_anything_changes(kind: str) -> None:
    """LangGraph ignores a send to a missing node, and fails in the middle of a run for the other kinds."""
    send, error, match = BAD[kind]
    agent = agent_of(Works(), "hi")
    await agent.ainvoke(QUESTION, AT)
    with pytest.raises(error, match=match):
        await agent.ainvoke(Command(update=QUESTION, goto=[send]), AT)

    state = await agent.aget_state(AT)
    assert (contents(state.values), state.next) == (["go", "hi"], ())


@versions
@pytest.mark.parametrize("on_unknown", [None, "rerun"])
async def test_a_killed_process_loses_nothing_that_was_sent(version: Any, on_unknown: Any) -> None:
    works, saver, killed_saver = Works(), InMemorySaver(), InMemorySaver()
    options: Any = {"version": version, "on_unknown": on_unknown}
    agent = agent_of(works, "hi", "end", "end", saver=saver, version=version)

    async def copy_stores() -> None:
        if len(works.ran) == 2:
            killed_saver.storage, killed_saver.writes, killed_saver.blobs = copy.deepcopy(
                (saver.storage, saver.writes, saver.blobs)
            )

    works.look = copy_stores
    after = Works()
    await agent.ainvoke(QUESTION, AT)
    sends = [to_tools(tool_call("work", name, name=name)) for name in "ab"]
    await agent.ainvoke(Command(goto=[*sends, send_text("other")]), AT, durability="sync")
    next_agent = agent_of(after, AIMessage("reply", id="r"), AIMessage("end", id="e"), saver=killed_saver, **options)
    state = await next_agent.aget_state(AT)
    result = await next_agent.ainvoke(None, AT)
    assert state.next == ("tools", "agent")
    assert after.ran == (["b"] if on_unknown else [])
    assert contents(result) == ["go", "hi", "a", "b" if on_unknown else UNKNOWN, "reply", "end"]
