"""`RequireApproval` in LangGraph's graphs: state that changes, jumps back to the tools, processes that die."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode as LangGraphToolNode
from langgraph.types import Command, Send
from pydantic import ValidationError

from callboard import ToolCallWithContext, ToolNode, tool_call
from callboard.middleware import RequireApproval
from callboard.testing import Recorder, calls

from .test_approval import ACCEPT, IGNORE, deletes, edit

THREAD: Any = {"configurable": {"thread_id": "t"}}


def node_of(recorder: Recorder) -> ToolNode:
    return ToolNode([recorder.tool("delete")], middleware=[RequireApproval()])


def on_asyncio(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on asyncio, which LangGraph's graphs need."""

    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        asyncio.run(asyncio.wait_for(test(**arguments), 20))

    return run


def graph_of(node: Any, **options: Any) -> Any:
    """Build a graph with the given `tools` node and an empty `model` node, whose messages each test provides."""
    builder: Any = StateGraph(MessagesState).add_node("model", lambda _: {}).add_node("tools", node)
    builder.add_edge(START, "model").add_edge("model", "tools")
    return builder.compile(checkpointer=InMemorySaver(), **options)


def starting(*queries: str) -> dict[str, Any]:
    return {"messages": [HumanMessage("go", id="h-1"), deletes(*queries)]}


def questions_in(state: Any) -> dict[str, str]:
    questions = state.get("__interrupt__", ())
    return {question.value[0]["action_request"]["args"]["query"]: question.id for question in questions}


def results(state: Any) -> list[str]:
    return [message.content for message in state["messages"] if isinstance(message, ToolMessage)]


@on_asyncio
async def test_a_graph_is_resumed_by_id_in_portions_and_plainly() -> None:
    """Promise 5: answers come through LangGraph's checkpoints. An invalid answer can be corrected there, too."""
    recorder = Recorder()
    graph = graph_of(node_of(recorder))
    question_ids = questions_in(await graph.ainvoke(starting("a", "b", "c"), THREAD))
    assert list(question_ids) == ["a", "b", "c"]
    open_ids = questions_in(await graph.ainvoke(Command(resume={question_ids["c"]: [edit(query="z")]}), THREAD))
    assert open_ids == {"a": question_ids["a"], "b": question_ids["b"]}
    with pytest.raises(ValidationError, match="Answer with"):
        await graph.ainvoke(Command(resume={question_ids["a"]: "yes"}), THREAD)
    assert questions_in(await graph.ainvoke(None, THREAD)) == open_ids
    open_ids = questions_in(await graph.ainvoke(Command(resume={question_ids["a"]: [IGNORE]}), THREAD))
    assert open_ids == {"b": question_ids["b"]}
    state = await graph.ainvoke(Command(resume=ACCEPT), THREAD)
    assert results(state)[1:] == ["b", "z"]
    assert recorder.order == ["delete(z)", "delete(b)"]


@pytest.mark.parametrize("resume_kind", ["plain", "by id"])
@pytest.mark.parametrize("answer", [ACCEPT, edit(query="z")], ids=["accept", "edit"])
@on_asyncio
async def test_the_state_was_changed_between_the_question_and_the_answer(resume_kind: str, answer: Any) -> None:
    """`update_state` changes the arguments under the same message and call ids, so the old answer does not apply."""
    recorder = Recorder()
    graph = graph_of(node_of(recorder))
    question_ids = questions_in(await graph.ainvoke(starting("a"), THREAD))
    await graph.aupdate_state(THREAD, {"messages": [deletes("everything")]}, as_node="model")

    resume = answer if resume_kind == "plain" else {question_ids["a"]: answer}
    state = await graph.ainvoke(Command(resume=resume), THREAD)

    assert list(questions_in(state)) == ["everything"]
    assert recorder.lines == []
    state = await graph.ainvoke(Command(resume={questions_in(state)["everything"]: IGNORE}), THREAD)
    assert questions_in(state) == {}
    assert recorder.lines == []


LATER = "LangGraph keeps a plain answer until the next checkpoint, and offers it to every later run"


@pytest.mark.parametrize("later", [False, pytest.param(True, marks=pytest.mark.xfail(reason=LATER))])
@on_asyncio
async def test_an_answer_that_came_before_the_question_is_none(later: bool) -> None:
    """A plain resume past a static breakpoint is no answer to a later question, also not in a run without an answer."""
    recorder = Recorder()
    graph = graph_of(node_of(recorder), interrupt_before=["tools"])
    await graph.ainvoke(starting("a"), THREAD)
    state = await graph.ainvoke(Command(resume=ACCEPT), THREAD)
    if later:
        state = await graph.ainvoke(None, THREAD)
    assert list(questions_in(state)) == ["a"]
    assert recorder.lines == []


def jumping(node: Any, route: Callable[[Any], Any]) -> Any:
    """Build a graph whose hook goes back to the tools once, like a middleware with `jump_to="tools"`."""
    builder: Any = StateGraph(MessagesState).add_node("tools", node).add_node("hook", lambda _: {})
    jumps = ["once"]

    def again(state: Any) -> Any:
        return route(state) if jumps and jumps.pop() else END

    builder.add_conditional_edges(START, route, ["tools"])
    builder.add_edge("tools", "hook")
    builder.add_conditional_edges("hook", again, ["tools", END])
    return builder.compile(checkpointer=InMemorySaver())


def calls_in(state: Any) -> Any:
    return next(message.tool_calls for message in reversed(state["messages"]) if isinstance(message, AIMessage))


def with_context(state: Any) -> list[Send]:
    context: Any = {"__type": "tool_call_with_context", "state": state}
    return [Send("tools", ToolCallWithContext(tool_call=call, **context)) for call in calls_in(state)]


def bare(state: Any) -> list[Send]:
    return [Send("tools", [call]) for call in calls_in(state)]


@pytest.mark.parametrize(
    "route", [lambda _: "tools", with_context, bare], ids=["whole state", "call with context", "list of calls"]
)
@pytest.mark.parametrize(
    "answer", [IGNORE, {"type": "response", "args": "x"}, ACCEPT], ids=lambda one: str(one["type"])
)
@on_asyncio
async def test_a_jump_back_to_the_tools_runs_no_call_that_has_its_message(route: Any, answer: Any) -> None:
    """Promise 9: it would bypass LangChain's approval (langchain-ai/langchain issue 40491)."""
    recorder = Recorder()
    graph = jumping(node_of(recorder), route)
    await graph.ainvoke(starting("a"), THREAD)
    state = await graph.ainvoke(Command(resume=answer), THREAD)
    assert questions_in(state) == {}
    assert len(results(state)) == 1
    assert recorder.count("started") == (1 if answer is ACCEPT else 0)


@on_asyncio
async def test_a_rejected_call_that_is_sent_again_on_its_own_does_not_run_unasked() -> None:
    """A node that cannot see the earlier rejection asks a person again before the call runs."""
    recorder = Recorder()
    graph = jumping(node_of(recorder), bare)
    await graph.ainvoke(starting("a"), THREAD)
    await graph.ainvoke(Command(resume=IGNORE), THREAD)
    await graph.ainvoke(None, THREAD)
    assert recorder.lines == []


@on_asyncio
async def test_an_approval_outlives_a_failure_beside_it_and_what_finished_stays_finished() -> None:
    """Promise 10: when one call fails, the batch has a finished, a cancelled, a declined and an open call."""
    recorder, hang = Recorder(), [True]

    async def delete(query: str) -> str:
        ran.append(query)
        if query == "slow" and hang.pop():
            await asyncio.sleep(60)
        return query

    async def fail() -> str:
        await asyncio.sleep(0.3)
        raise ConnectionError("lost")

    ran: list[str] = []
    tools = [StructuredTool.from_function(coroutine=fn, description=".") for fn in (delete, fail)]
    node = ToolNode([*tools, recorder.tool("look")], middleware=[RequireApproval(["delete"])])
    graph = graph_of(node)
    queries = ["quick", "slow", "declined", "open"]
    message = calls(*(tool_call("delete", query, query=query) for query in queries), tool_call("fail", "f"))
    message.id = "ai-1"
    with pytest.raises(ConnectionError):
        await graph.ainvoke({"messages": [message]}, THREAD)
    (task,) = (await graph.aget_state(THREAD)).tasks
    assert task.interrupts == ()
    with pytest.raises(ConnectionError):
        await graph.ainvoke(None, THREAD)
    # The questions were asked and stored, and are raised once no call fails.
    tools[1].coroutine = _fine
    question_ids = questions_in(await graph.ainvoke(None, THREAD))
    assert list(question_ids) == queries
    assert ran == []
    answers = {question_ids["quick"]: ACCEPT, question_ids["declined"]: IGNORE, question_ids["slow"]: ACCEPT}
    with pytest.raises(asyncio.TimeoutError):
        async with asyncio.timeout(0.5):
            await graph.ainvoke(Command(resume=answers), THREAD)
    assert ran == ["quick", "slow"]
    hang.append(False)
    state = await graph.ainvoke(None, THREAD)
    if set(questions_in(state)) != {"open"}:  # an answer that was not stored has to be given again
        missing_answers = {question_id: ACCEPT for query, question_id in questions_in(state).items() if query == "slow"}
        state = await graph.ainvoke(Command(resume=missing_answers), THREAD)
    assert list(questions_in(state)) == ["open"]
    assert sorted(ran) == ["quick", "slow", "slow"]
    state = await graph.ainvoke(Command(resume=IGNORE), THREAD)
    assert [text.partition(" ")[0] for text in results(state)] == ["quick", "slow", "User", "User", "fine"]
    assert sorted(ran) == ["quick", "slow", "slow"]


async def _fine() -> str:
    return "fine"


@on_asyncio
async def test_in_langgraphs_own_node() -> None:
    """In LangGraph's own node the middleware is an async wrapper. LangGraph assigns the answers to the calls."""
    recorder = Recorder()
    middleware = RequireApproval()
    wrapped: Any = middleware.awrap_tool_call
    graph = graph_of(LangGraphToolNode([recorder.tool("delete")], awrap_tool_call=wrapped))
    assert list(questions_in(await graph.ainvoke(starting("a"), THREAD))) == ["a"]
    assert recorder.lines == []
    state = await graph.ainvoke(Command(resume=[ACCEPT]), THREAD)
    assert results(state) == ["a"]
    assert recorder.order == ["delete(a)"]
