"""Intended differences: where a promise of callboard contradicts LangGraph's behaviour."""

import asyncio
import os
import threading
from typing import Any

import anyio
import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import ParentCommand
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from callboard.testing import ScriptedModel, calls

from ._harness import State, asks, call, wants
from ._model import ReplayModel
from ._prebuilt import candidate

pytestmark = pytest.mark.skipif(
    os.environ.get("CALLBOARD_PARITY") == "reference", reason="LangGraph does not keep these promises"
)

CONFIG: Any = {"configurable": {"thread_id": "1"}}


@tool
def double(x: int) -> int:
    """Double."""
    return 2 * x


def contents(result: Any) -> list[Any]:
    return [message.content for message in result["messages"] if isinstance(message, ToolMessage)]


def unanswered() -> list[Any]:
    return [HumanMessage("q", id="h"), asks(call("double", {"x": 1}, "lost")), HumanMessage("and?", id="h2")]


def test_a_history_with_an_unanswered_call_is_repaired_before_the_model_sees_it() -> None:
    """LangGraph raises ValueError (INVALID_CHAT_HISTORY)."""
    log: list[Any] = []
    agent = candidate().create_react_agent(ReplayModel("done", log=log), [double])

    result = agent.invoke({"messages": unanswered()})

    assert [message_type for message_type, *_ in log[0][1]] == ["human", "ai", "tool", "human"]
    assert [m.tool_call_id for m in result["messages"] if isinstance(m, ToolMessage)] == ["lost"]
    assert result["messages"][-1].content == "done"


def test_a_repaired_call_is_not_run() -> None:
    """LangGraph raises; callboard adds an answer for the call, and does not run it, because the user has moved on."""
    ran: list[int] = []

    def count(x: int) -> str:
        ran.append(x)
        return "ran"

    made = StructuredTool.from_function(func=count, name="double", description="d")
    candidate().create_react_agent(ReplayModel("done"), [made]).invoke({"messages": unanswered()})

    assert ran == []


def test_two_tools_with_one_name_are_refused() -> None:
    """LangGraph silently keeps the last one."""
    twin = StructuredTool.from_function(func=lambda: "twin", name="double", description="d")

    with pytest.raises(ValueError, match="double"):
        candidate().ToolNode([double, twin])


@tool
def ask(question: str) -> str:
    """Ask a person."""
    return f"{question}: {interrupt(question)}"


def asking(*questions: str) -> tuple[Any, Any]:
    builder: Any = StateGraph(State)
    builder.add_node("tools", candidate().ToolNode([ask, double]))
    builder.add_edge(START, "tools")
    calls = [call("ask", {"question": question}, question) for question in questions]
    return builder.compile(checkpointer=InMemorySaver()), {"messages": [asks(*calls)]}


def test_all_questions_of_a_batch_surface_together() -> None:
    """LangGraph shows only the first question at each resume."""
    graph, payload = asking("a", "b", "c")

    result = graph.invoke(payload, CONFIG)

    assert [pending.value for pending in result["__interrupt__"]] == ["a", "b", "c"]
    assert len({pending.id for pending in result["__interrupt__"]}) == 3


def test_an_answer_by_id_reaches_the_call_that_asked() -> None:
    """LangGraph hands out answers in the order in which the calls happen to ask."""
    graph, payload = asking("a", "b")
    pending = {found.value: found.id for found in graph.invoke(payload, CONFIG)["__interrupt__"]}

    result = graph.invoke(Command(resume={pending["b"]: "B", pending["a"]: "A"}), CONFIG)

    assert contents(result) == ["a: A", "b: B"]


def test_a_subset_of_the_questions_can_be_answered() -> None:
    """In LangGraph the second question is not known yet at this point."""
    graph, payload = asking("a", "b")
    pending = {found.value: found.id for found in graph.invoke(payload, CONFIG)["__interrupt__"]}

    left = graph.invoke(Command(resume={pending["b"]: "B"}), CONFIG)
    result = graph.invoke(Command(resume={pending["a"]: "A"}), CONFIG)

    assert [found.value for found in left["__interrupt__"]] == ["a"]
    assert contents(result) == ["a: A", "b: B"]


def test_a_finished_call_does_not_run_again_when_its_neighbour_is_answered() -> None:
    """LangGraph runs every call of the batch again at each resume."""
    ran: list[str] = []

    @tool
    def once() -> str:
        """Count."""
        ran.append("once")
        return "counted"

    builder: Any = StateGraph(State)
    builder.add_node("tools", candidate().ToolNode([ask, once]))
    builder.add_edge(START, "tools")
    graph = builder.compile(checkpointer=InMemorySaver())
    graph.invoke({"messages": [asks(call("once", id="1"), call("ask", {"question": "a"}, "2"))]}, CONFIG)

    result = graph.invoke(Command(resume="A"), CONFIG)

    assert ran == ["once"]
    assert contents(result) == ["counted", "a: A"]


def test_a_sync_wrapper_runs_in_a_thread_under_async_code() -> None:
    """LangGraph runs the wrapper on the event loop and blocks every other call."""
    seen: list[int] = []

    def wrap(request: Any, execute: Any) -> Any:
        seen.append(threading.get_ident())
        return execute(request)

    async def run() -> Any:
        node = candidate().ToolNode([double], wrap_tool_call=wrap)
        return threading.get_ident(), await node.ainvoke(wants("double", {"x": 1}))

    loop_thread, result = asyncio.run(run())

    assert contents(result) == ["2"]
    assert seen
    assert loop_thread not in seen


def test_a_node_runs_without_a_graph_and_without_a_config() -> None:
    """LangGraph raises, because only a graph provides the runtime that its node needs."""
    node = candidate().ToolNode([double])

    assert contents(node.invoke(wants("double", {"x": 1}))) == ["2"]
    assert contents(asyncio.run(node.ainvoke([call("double", {"x": 2})]))) == ["4"]


def test_no_call_outlives_the_error_of_its_neighbour() -> None:
    """LangGraph raises the first error and leaves the other calls running."""
    events: list[str] = []

    async def run() -> None:
        started = asyncio.Event()

        @tool
        async def forever() -> str:
            """Wait."""
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                events.append("ended")
            return "never"

        @tool
        async def fails() -> str:
            """Fail."""
            await started.wait()
            raise ValueError("bad")

        node = candidate().ToolNode([forever, fails])
        with pytest.raises(ValueError, match="bad"):
            await node.ainvoke({"messages": [asks(call("forever", id="1"), call("fails", id="2"))]})
        events.append("returned")

    asyncio.run(asyncio.wait_for(run(), 20))

    assert events == ["ended", "returned"]


def test_max_concurrency_holds_on_the_async_path() -> None:
    """LangGraph applies the limit in threads only."""
    running, peak = 0, 0

    @tool
    async def work(x: int) -> int:
        """Work."""
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        for _ in range(5):
            await asyncio.sleep(0)
        running -= 1
        return x

    calls = [call("work", {"x": n}, f"c{n}") for n in range(8)]
    result = asyncio.run(candidate().ToolNode([work]).ainvoke({"messages": [asks(*calls)]}, {"max_concurrency": 2}))

    assert contents(result) == [str(n) for n in range(8)]
    assert peak <= 2


def test_an_async_tool_runs_from_sync_code() -> None:
    """LangGraph raises NotImplementedError, because its sync path is a separate implementation."""

    @tool
    async def later(x: int) -> int:
        """Later."""
        await asyncio.sleep(0)
        return x

    assert contents(candidate().ToolNode([later]).invoke(wants("later", {"x": 1}))) == ["1"]


def test_an_async_wrapper_wraps_from_sync_code_too() -> None:
    """LangGraph's sync path skips the wrapper silently, so the call runs unguarded."""

    async def refuse(request: Any, execute: Any) -> Any:
        return ToolMessage("refused", tool_call_id=request.tool_call["id"])

    node = candidate().ToolNode([double], awrap_tool_call=refuse)

    assert contents(node.invoke(wants("double", {"x": 1}))) == ["refused"]


def test_one_body_runs_when_a_tool_has_both_and_the_caller_is_sync() -> None:
    """LangGraph runs the sync body; callboard may run either body, but only one of them and only once."""
    ran: list[str] = []

    def body(x: int) -> str:
        ran.append("sync")
        return str(x)

    async def abody(x: int) -> str:
        ran.append("async")
        return str(x)

    made = StructuredTool.from_function(body, abody, name="body", description="d")

    assert contents(candidate().ToolNode([made]).invoke(wants("body", {"x": 1}))) == ["1"]
    assert len(ran) == 1


def test_sync_code_inside_a_running_loop_can_invoke_a_node() -> None:
    """LangGraph can do this, too, but not with async tools."""

    @tool
    async def later(x: int) -> int:
        """Later."""
        return x

    async def run() -> Any:
        return (
            candidate()
            .ToolNode([later, double])
            .invoke({"messages": [asks(call("later", {"x": 1}, "1"), call("double", {"x": 1}, "2"))]})
        )

    assert contents(asyncio.run(run())) == ["1", "2"]


def test_an_agent_with_an_async_prompt_runs_from_sync_code() -> None:
    """LangGraph raises TypeError: no sync function was provided."""

    async def prompt(state: Any) -> Any:
        return state["messages"]

    agent = candidate().create_react_agent(ReplayModel("done"), [double], prompt=prompt)

    assert agent.invoke({"messages": [HumanMessage("q")]})["messages"][-1].content == "done"


# Malformed inputs on which LangGraph fails, and for which callboard has clear errors.


def test_an_empty_list_of_messages_is_a_value_error() -> None:
    """LangGraph raises IndexError, out of `messages[-1]`."""
    ns = candidate()

    for refuse in (ns.tools_condition, ns.ToolNode([double]).invoke, ns.ValidationNode([double]).invoke):
        with pytest.raises(ValueError, match=r"(?i)no messages? found"):
            refuse([])


@pytest.mark.parametrize("wrong", [7, "text"])
def test_what_is_no_tool_is_a_type_error(wrong: Any) -> None:
    """LangGraph raises ValueError for the number, and AttributeError for the text."""
    with pytest.raises(TypeError, match=repr(wrong)):
        candidate().ToolNode([wrong])


def test_a_call_without_an_id_has_its_message() -> None:
    """LangGraph runs the call, and then fails because no ToolMessage can be made."""
    nameless = {"name": "double", "args": {"x": 1}, "id": None, "type": "tool_call"}

    (message,) = candidate().ToolNode([double]).invoke([nameless])["messages"]

    assert (message.content, message.tool_call_id) == ("2", "")


def test_a_badly_annotated_handler_is_refused_at_construction() -> None:
    """LangGraph raises this error later, in place of the first error that the handler should have handled."""

    def handler(error: int) -> str:
        return str(error)

    with pytest.raises(ValueError, match="Arbitrary types are not supported"):
        candidate().ToolNode([double], handle_tool_errors=handler)


def test_a_message_for_another_call_is_an_error_of_the_tool() -> None:
    """LangGraph passes the message on, and the model's call has no answer."""

    def foreign() -> ToolMessage:
        """Answer somebody else."""
        return ToolMessage("hello", tool_call_id="another")

    with pytest.raises(ValueError, match="tool_call_id 'another' for the call 'call-1'"):
        candidate().ToolNode([foreign]).invoke(wants("foreign"))


@pytest.mark.parametrize("mode", ["updates", "tasks"])
def test_a_result_has_the_id_of_the_state_as_soon_as_it_is_streamed(mode: Any) -> None:
    """LangGraph's agents stream the result without an id, so a reader cannot find it in the state."""
    agent = candidate().create_react_agent(ReplayModel(asks(call("double", {"x": 1})), "done"), [double])
    streamed: list[Any] = []
    kept: list[Any] = []

    def look_for_results(value: Any) -> None:
        if isinstance(value, ToolMessage):
            streamed.append(value.id)
        elif isinstance(value, dict):
            for part in value.values():
                look_for_results(part)
        elif isinstance(value, (list, tuple)):
            for part in value:
                look_for_results(part)

    for kind, chunk in agent.stream({"messages": [HumanMessage("q")]}, stream_mode=[mode, "values"]):
        if kind == mode:
            look_for_results(chunk)
        else:
            kept = [message.id for message in chunk["messages"] if isinstance(message, ToolMessage)]

    assert set(streamed) == set(kept) != {None}


@pytest.mark.real_clock  # an agent that is built for the first time imports modules in a thread
@pytest.mark.parametrize("slow", ["left", "right"])
async def test_of_several_handoffs_to_the_parent_the_first_of_the_reply_wins(slow: str) -> None:
    """In LangGraph the winner is random."""
    other_is_done = anyio.Event()

    def handoff(name: str) -> Any:
        async def go() -> Command[Any]:
            if name == slow:
                await other_is_done.wait()
            other_is_done.set()
            return Command(graph=Command.PARENT, goto=name, update={"messages": []})

        return StructuredTool.from_function(coroutine=go, name=f"to_{name}", description="d")

    model = ScriptedModel([calls(("to_left", {}), ("to_right", {}))])
    agent = candidate().create_react_agent(model, [handoff("left"), handoff("right")])
    with anyio.fail_after(30), pytest.raises(ParentCommand) as caught:
        await agent.ainvoke({"messages": [HumanMessage("q")]})

    assert caught.value.args[0].goto == "left"


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_a_result_without_a_text_is_told_as_one_of_a_tool_that_has_run() -> None:
    """LangGraph asks the model for a correction, so the model repeats a call that has had its effect."""

    def give() -> Any:
        """Give."""
        return Unprintable()

    [message] = candidate().ToolNode([give], handle_tool_errors=True).invoke(wants("give"))["messages"]

    assert message.status == "error"
    assert "The tool 'give' has run and finished, but its result is lost" in message.content
    assert "Please fix your mistakes" not in message.content
