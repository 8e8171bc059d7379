"""What is sent to a node of the agent survives what happens to a thread; what nobody could run is refused early."""

from typing import Any

import anyio
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import InvalidUpdateError
from langgraph.prebuilt import create_react_agent as langgraph_agent
from langgraph.types import Command, Send, interrupt

import callboard
from callboard.testing import ScriptedModel, tool_call

AT: Any = {"configurable": {"thread_id": "1"}}
QUESTION: Any = {"messages": [("user", "go")]}
WAIT = 60


class Works:
    """Tools, and what ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.fails = False
        self.look: Any = None
        self.seen: list[Any] = []

    def tools(self) -> list[Any]:
        @tool
        async def work(name: str) -> str:
            """Work."""
            self.ran.append(name)
            if self.look is not None:
                self.seen.append(await self.look())
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


def sent(text: str) -> Send:
    return Send("agent", {"messages": [HumanMessage(text)]})


def texts(result: Any) -> list[str]:
    return [message.content for message in result["messages"]]


def agent_of(works: Works, *replies: Any, saver: Any = None, **options: Any) -> Any:
    options.setdefault("version", "v2")
    tools = callboard.ToolNode(works.tools(), handle_tool_errors=False)
    return callboard.create_react_agent(
        ScriptedModel(list(replies)), tools, checkpointer=saver or InMemorySaver(), **options
    )


versions = pytest.mark.parametrize("version", ["v1", "v2"])


@versions
async def test_what_finished_beside_a_failure_does_not_run_again(version: Any) -> None:
    """Also among the calls of one send."""
    works = Works()
    works.fails = True
    agent = agent_of(works, "hi", "end", version=version)
    sends = [to_tools(tool_call("work", "a", name="a")), to_tools(tool_call("fail", "c", name="c"))]

    with anyio.fail_after(WAIT):
        await agent.ainvoke(QUESTION, AT)
        with pytest.raises(RuntimeError, match="c"):
            await agent.ainvoke(Command(goto=sends), AT)
        assert (await agent.aget_state(AT)).next == ("tools",)
        works.fails = False
        result = await agent.ainvoke(None, AT)

    assert texts(result) == ["go", "hi", "a", "c", "end"]
    assert works.ran == ["a", "c", "c"]


@versions
async def test_questions_of_several_calls_of_one_send_are_answered_one_by_one(version: Any) -> None:
    """A finished sibling does not run again; the send beside it neither."""
    works = Works()
    agent = agent_of(works, "hi", "end", version=version)
    asking = to_tools(
        tool_call("ask", "q1", name="x"), tool_call("work", "w", name="w"), tool_call("ask", "q2", name="y")
    )
    with anyio.fail_after(WAIT):
        await agent.ainvoke(QUESTION, AT)
        result = await agent.ainvoke(Command(goto=[asking, to_tools(tool_call("work", "v", name="v"))]), AT)
        ids = {one.value: one.id for one in result["__interrupt__"]}
        assert sorted(ids) == ["x", "y"]
        await agent.ainvoke(Command(resume={ids["y"]: "no"}), AT)
        result = await agent.ainvoke(Command(resume={ids["x"]: "yes"}), AT)

    assert texts(result) == ["go", "hi", "x: yes", "w", "y: no", "v", "end"]
    assert works.ran.count("w") == works.ran.count("v") == 1


@versions
async def test_whoever_looks_meanwhile_sees_what_was_sent(version: Any) -> None:
    """The journal has it before it runs: another process could go on."""
    works, saver = Works(), InMemorySaver()
    agent = agent_of(works, "hi", "end", "end", saver=saver, version=version)
    works.look = lambda: agent_of(Works(), saver=saver, version=version).aget_state(AT)

    with anyio.fail_after(WAIT):
        await agent.ainvoke(QUESTION, AT)
        await agent.ainvoke(Command(goto=[to_tools(tool_call("work", "a", name="a")), sent("b")]), AT)

    assert [state.next for state in works.seen] == [("tools", "agent")]


@versions
async def test_another_process_goes_on_with_what_was_sent(version: Any) -> None:
    """From the checkpoint that a stop leaves; the same payload reaches the same node."""
    works, saver = Works(), InMemorySaver()
    sends = [to_tools(tool_call("work", "a", name="a")), sent("other")]
    model = ScriptedModel(["reply", "end"])
    with anyio.fail_after(WAIT):
        first = agent_of(works, "hi", saver=saver, version=version)
        await first.ainvoke(QUESTION, AT)
        await first.ainvoke(Command(update=QUESTION), AT)  # nothing is asked for by that alone
        stopped = await first.aupdate_state(AT, None, as_node="__copy__")
        stopped = None
        assert stopped is None
        again = callboard.create_react_agent(model, works.tools(), checkpointer=saver, version=version)
        result = await again.ainvoke(Command(goto=sends), AT)

    assert "a" in texts(result)
    assert texts({"messages": model.requests[0]}) == ["other"]


async def test_langgraph_goes_on_with_what_was_sent() -> None:
    """What stands in the checkpoint are its own sends, and what has finished it does not run again."""
    works, saver = Works(), InMemorySaver()
    agent = agent_of(works, "hi", saver=saver)
    sends = [to_tools(tool_call("work", "w", name="w")), to_tools(tool_call("ask", "q", name="x"))]
    with anyio.fail_after(WAIT):
        await agent.ainvoke(QUESTION, AT)
        result = await agent.ainvoke(Command(goto=sends), AT)
    theirs = langgraph_agent(_Says(), works.tools(), checkpointer=saver, version="v2")
    state = theirs.get_state(AT)

    assert [one.value for one in result["__interrupt__"]] == ["x"]
    assert [(task.name, [one.value for one in task.interrupts]) for task in state.tasks] == [
        ("tools", []),
        ("tools", ["x"]),
    ]
    assert works.ran == ["w", "x"]


class _Says(ScriptedModel):
    def __init__(self) -> None:
        super().__init__(["end"])


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
    """LangGraph passes over a node that is not there, and breaks in the middle of the others."""
    send, error, match = BAD[kind]
    agent = agent_of(Works(), "hi")
    with anyio.fail_after(WAIT):
        await agent.ainvoke(QUESTION, AT)
        with pytest.raises(error, match=match):
            await agent.ainvoke(Command(update=QUESTION, goto=[send]), AT)

        state = await agent.aget_state(AT)
    assert (texts(state.values), state.next) == (["go", "hi"], ())
