"""Promise 5 in LangGraph's graphs: all questions of a batch, answered by call, through LangGraph's checkpoints."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.messages import AnyMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.errors import UnknownInterruptError
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode as LangGraphToolNode
from langgraph.prebuilt import create_react_agent as langgraph_react_agent
from langgraph.types import Command, RetryPolicy, Send, interrupt
from typing_extensions import TypedDict

from callboard import ToolNode, tool_call
from callboard.testing import ScriptedModel, calls
from tests.agent._savers import copy_of
from tests.helpers import BrokenError, make
from tests.promises._asking import Asking, asks


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    notes: Annotated[list[str], lambda old, new: [*old, *new]]


def starting(*questions: tuple[str, int]) -> dict[str, Any]:
    return {"messages": [HumanMessage("go", id="h-1"), asks(*questions)]}


def results(state: Any) -> list[str]:
    return [message.content for message in state["messages"] if isinstance(message, ToolMessage)]


def graph_of(node: Any, saver: Any, **options: Any) -> Any:
    builder: Any = StateGraph(State)
    # A node function that uses a tool node gets a name other than "tools".
    name = "tools" if isinstance(node, LangGraphToolNode) else "work"
    builder.add_node(name, node, **options)
    builder.add_edge(START, name)
    return builder.compile(checkpointer=saver)


def graphs_of(node: Any, **options: Any) -> Callable[[Any], Any]:
    return lambda saver: graph_of(node, saver, **options)


def asking_graphs() -> tuple[Asking, Callable[[Any], Any]]:
    asking = Asking()
    return asking, graphs_of(ToolNode([asking.tool()]))


def asking_graph() -> tuple[Asking, Any]:
    asking, build = asking_graphs()
    return asking, build(InMemorySaver())


def boom(asking: Asking, times: int = 1) -> StructuredTool:
    """Return a tool that fails so many times."""

    async def boom() -> str:
        asking.runs["boom"] += 1
        await asyncio.sleep(0.05)
        if asking.runs["boom"] <= times:
            raise BrokenError("no")
        return "no boom"

    return make(boom)


CONFIG: Any = {"configurable": {"thread_id": "t"}}


@contextmanager
def sync_runner(saver: Any) -> Iterator[Callable[..., Any]]:
    def run(build: Callable[[Any], Any], value: Any, **conf: Any) -> Any:
        return build(saver).invoke(value, {"configurable": {"thread_id": "t", **conf}})

    yield run


@contextmanager
def async_runner(make: Callable[[], Any]) -> Iterator[Callable[..., Any]]:
    def run(build: Callable[[Any], Any], value: Any, **conf: Any) -> Any:
        async def main() -> Any:
            async with make() as saver:
                return await build(saver).ainvoke(value, {"configurable": {"thread_id": "t", **conf}})

        return asyncio.run(asyncio.wait_for(main(), 20))

    yield run


class _Same:
    """An async context manager around an existing saver."""

    def __init__(self, saver: Any) -> None:
        self._saver = saver

    async def __aenter__(self) -> Any:
        return self._saver

    async def __aexit__(self, *_: object) -> None:
        pass


Run = Callable[..., Any]


@pytest.fixture(params=["memory invoke", "memory ainvoke", "sqlite invoke", "aiosqlite ainvoke"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Run]:
    """Runs a graph once: with a saver in memory, or on a file that each async run opens anew."""
    path = tmp_path / "checkpoints.db"
    if request.param == "memory invoke":
        with sync_runner(InMemorySaver()) as runner:
            yield runner
    elif request.param == "memory ainvoke":
        saver = InMemorySaver()
        with async_runner(lambda: _Same(saver)) as runner:
            yield runner
    elif request.param == "sqlite invoke":
        connection = sqlite3.connect(path, check_same_thread=False)
        with sync_runner(SqliteSaver(connection)) as runner:
            yield runner
        connection.close()
    else:
        with async_runner(lambda: AsyncSqliteSaver.from_conn_string(str(path))) as runner:
            yield runner


@pytest.fixture
def quick() -> Iterator[Run]:
    """Runs a graph with a saver in memory."""
    with sync_runner(InMemorySaver()) as runner:
        yield runner


def both(node_function: Callable[..., Any]) -> Any:
    """A node for `invoke` and `ainvoke`, because LangGraph needs a sync function for `invoke`."""

    def sync(state: State, config: RunnableConfig) -> Any:
        return asyncio.run(node_function(state, config))

    return RunnableLambda(sync, afunc=node_function)


def ids(state: Any) -> dict[Any, str]:
    return {question.value: question.id for question in state.get("__interrupt__", ())}


@pytest.mark.parametrize("sync", [False, True], ids=["async tools", "sync tools"])
def test_answers_by_id_one_after_the_other(run: Run, sync: bool) -> None:
    asking = Asking()
    node = ToolNode([asking.tool(sync=sync)])
    build = graphs_of(node)
    state = run(build, starting(("a", 1), ("b", 2), ("plain", 0), ("c", 1)))
    question_ids = ids(state)
    assert list(question_ids) == ["a?0", "b?0", "c?0"]
    assert len(set(question_ids.values())) == 3
    state = run(build, Command(resume={question_ids["c?0"]: "C"}))
    assert ids(state) == {"a?0": question_ids["a?0"], "b?0": question_ids["b?0"]}
    assert asking.runs == {"a": 1, "b": 1, "plain": 1, "c": 2}
    state = run(build, Command(resume={question_ids["b?0"]: 1}))
    assert list(ids(state)) == ["a?0", "b?1"]
    state = run(build, Command(resume={question_ids["a?0"]: "A"}))
    assert list(ids(state)) == ["b?1"]
    state = run(build, Command(resume=2))
    assert results(state) == ["a got ['A']", "b got [1, 2]", "plain got []", "c got ['C']"]
    assert asking.runs == {"a": 2, "b": 3, "plain": 1, "c": 2}
    assert ids(state) == {}


def test_the_timing_of_the_calls_does_not_change_who_gets_the_answer(quick: Run) -> None:
    """Promise 5: LangGraph hands answers out in order of arrival, and so may give them to the wrong call."""
    asking = Asking()
    first = graphs_of(ToolNode([asking.tool(seconds=lambda name: {"a": 0.0, "b": 0.1}[name])]))
    second = graphs_of(ToolNode([asking.tool(seconds=lambda name: {"a": 0.1, "b": 0.0}[name])]))
    question_ids = ids(quick(first, starting(("a", 2), ("b", 2))))
    question_ids = ids(quick(second, Command(resume={question_ids["a?0"]: "A", question_ids["b?0"]: "B"})))
    state = quick(first, Command(resume={question_ids["a?1"]: "AA", question_ids["b?1"]: "BB"}))
    assert results(state) == ["a got ['A', 'AA']", "b got ['B', 'BB']"]


def test_an_id_that_is_not_open_changes_nothing(quick: Run) -> None:
    asking, build = asking_graphs()
    question_ids = ids(quick(build, starting(("a", 1), ("b", 1))))
    state = quick(build, Command(resume={"f" * 32: "x"}))
    assert ids(state) == question_ids
    assert asking.runs == {"a": 1, "b": 1}


def test_a_plain_answer_to_two_questions_is_refused_by_langgraph(quick: Run) -> None:
    asking, build = asking_graphs()
    question_ids = ids(quick(build, starting(("a", 1), ("b", 1))))
    with pytest.raises(RuntimeError, match="multiple pending interrupts"):
        quick(build, Command(resume="x"))
    assert asking.runs == {"a": 1, "b": 1}
    state = quick(build, Command(resume={i: value for value, i in question_ids.items()}))
    assert results(state) == ["a got ['a?0']", "b got ['b?0']"]


def test_strict_resume_knows_our_questions(run: Run) -> None:
    asking = Asking()
    node = ToolNode([asking.tool()])
    strict = {"__pregel_strict_resume": True}
    build = graphs_of(node)
    question_ids = ids(run(build, starting(("a", 1), ("b", 2)), **strict))
    for wrong in ({"f" * 32: "x"}, {question_ids["a?0"]: "A", "f" * 32: "x"}, {}, "plain"):
        with pytest.raises(UnknownInterruptError):
            run(build, Command(resume=wrong), **strict)
    state = run(build, Command(resume={question_ids["b?0"]: 1}), **strict)
    with pytest.raises(UnknownInterruptError):
        run(build, Command(resume={question_ids["b?0"]: "again"}), **strict)
    answers = {question_ids["a?0"]: "A", ids(state)["b?1"]: 2}
    state = run(build, Command(resume=answers), **strict)
    assert results(state) == ["a got ['A']", "b got [1, 2]"]
    assert asking.runs == {"a": 2, "b": 3}


def test_a_resume_without_an_answer_asks_the_same_again(run: Run) -> None:
    asking, build = asking_graphs()
    question_ids = ids(run(build, starting(("a", 1), ("plain", 0), ("b", 1))))
    assert ids(run(build, None)) == question_ids
    assert asking.runs == {"a": 1, "plain": 1, "b": 1}


def around(node: ToolNode, log: Counter[str], *, before: bool, after: bool) -> Callable[..., Any]:
    """A node function that runs a batch and asks questions itself."""

    async def work(state: State, config: RunnableConfig) -> Any:
        log["node"] += 1
        notes = [f"before: {interrupt('before?')}"] if before else []
        output = await node.ainvoke(state, config)
        notes += [f"after: {interrupt('after?')}"] if after else []
        return {**output, "notes": notes}

    return work


@pytest.mark.parametrize("quiet", [False, True], ids=["asking batch", "quiet batch"])
@pytest.mark.parametrize(("before", "after"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("resume_form", ["plain", "by id"])
def test_questions_of_the_node_around_a_batch(
    resume_form: str, before: bool, after: bool, quiet: bool, tmp_path: Path
) -> None:
    asking, log = Asking(), Counter[str]()
    node = around(ToolNode([asking.tool()]), log, before=before, after=after)
    number = 0 if quiet else 1
    saver_path = str(tmp_path / "c.db")
    with async_runner(lambda: AsyncSqliteSaver.from_conn_string(saver_path)) as run:
        build = graphs_of(node)

        def answer(state: Any, question: str) -> Any:
            assert list(ids(state)) == [question]
            resume: Any = f"to {question}"
            return run(build, Command(resume=resume if resume_form == "plain" else {ids(state)[question]: resume}))

        state = run(build, starting(("a", number), ("plain", 0), ("b", number)))
        if before:
            assert asking.runs == {}
            state = answer(state, "before?")
        if not quiet:
            question_ids = ids(state)
            assert list(question_ids) == ["a?0", "b?0"]
            state = run(build, Command(resume={question_ids["b?0"]: "B"}))
            state = answer(state, "a?0")
        if after:
            state = answer(state, "after?")
    expected = ["a got []", "plain got []", "b got []"]
    if not quiet:
        expected = ["a got ['to a?0']", "plain got []", "b got ['B']"]
    assert results(state) == expected
    assert state["notes"] == [
        f"{when}: to {when}?" for when, is_asked in (("before", before), ("after", after)) if is_asked
    ]
    assert asking.runs == {"a": number + 1, "plain": 1, "b": number + 1}


def test_questions_of_two_batches_with_the_same_ids_in_one_node(run: Run) -> None:
    extra_calls = [tool_call("ask", "z", who="b2")]
    asking = Asking()
    node = ToolNode([asking.tool()])

    async def work(state: State, config: RunnableConfig) -> Any:
        contents: list[str] = []
        for query in "12":
            tool_calls = [tool_call("ask", "x", who=f"a{query}"), tool_call("ask", "y", who=f"p{query}", questions=0)]
            batch = calls(*tool_calls, *extra_calls[: query == "2"])
            contents += [message.content for message in await node.ainvoke([batch], config)]
        return {"notes": contents}

    build = graphs_of(both(work))
    assert list(ids(run(build, {"messages": [HumanMessage("go")]}))) == ["a1?0"]
    question_ids = ids(run(build, Command(resume="one")))
    assert list(question_ids) == ["a2?0", "b2?0"]
    assert ids(run(build, Command(resume={question_ids["b2?0"]: "B"}))) == {"a2?0": question_ids["a2?0"]}
    state = run(build, Command(resume="two"))
    assert state["notes"] == ["a1 got ['one']", "p1 got []", "a2 got ['two']", "p2 got []", "b2 got ['B']"]
    assert asking.runs == {"a1": 2, "p1": 1, "a2": 2, "p2": 1, "b2": 2}


def test_a_retried_node_runs_what_failed_and_nothing_else(run: Run) -> None:
    asking = Asking()
    node = ToolNode([asking.tool(), boom(asking, times=2)])
    policy = RetryPolicy(initial_interval=0.01, jitter=False, max_attempts=3, retry_on=BrokenError)
    message = calls(*asks(("plain", 0), ("a", 1)).tool_calls, tool_call("boom", "id-x"))
    build = graphs_of(node, retry_policy=policy)
    state = run(build, {"messages": [message]})
    assert list(ids(state)) == ["a?0"]
    assert asking.runs == {"plain": 1, "a": 1, "boom": 3}
    state = run(build, Command(resume="A"))
    assert results(state) == ["plain got []", "a got ['A']", "no boom"]
    assert asking.runs == {"plain": 1, "a": 2, "boom": 3}


@pytest.mark.parametrize("nested", [False, True])
def test_after_a_kill_unfinished_calls_run_and_open_questions_are_asked(nested: bool) -> None:
    """Promise 10: the next process continues from the data that was stored while a call was running."""
    asking, saver, saver_copies = Asking(), InMemorySaver(), list[InMemorySaver]()

    async def deadly() -> str:
        asking.runs["deadly"] += 1
        if not saver_copies:
            await asyncio.sleep(0.3)  # until the results of the others are stored
            saver_copies.append(copy_of(saver))
        return "alive"

    node = ToolNode([asking.tool(), make(deadly)])
    build = graphs_of(graph_of(node, None) if nested else node)
    message = calls(*asks(("p", 0), ("a", 1)).tool_calls, tool_call("deadly", "id-x"), *asks(("q", 0)).tool_calls)
    build(saver).invoke({"messages": [message]}, CONFIG)
    state = build(saver_copies[0]).invoke(None, CONFIG)
    assert list(ids(state)) == ["a?0"]
    assert asking.runs == {"p": 1, "a": 1, "q": 1, "deadly": 2}
    state = build(saver_copies[0]).invoke(Command(resume="A"), CONFIG)
    assert results(state) == ["p got []", "a got ['A']", "alive", "q got []"]
    assert asking.runs == {"p": 1, "a": 2, "q": 1, "deadly": 2}


def subgraph_tool(log: Counter[str], *, sync: bool = False) -> StructuredTool:
    """A tool that runs a compiled graph with two nodes, the second of which asks, and then asks itself."""

    def first(state: State) -> Any:
        log["first"] += 1
        return {"notes": ["first"]}

    def second(state: State) -> Any:
        log["second"] += 1
        return {"notes": [f"second: {interrupt('inner?')}"]}

    builder: Any = StateGraph(State)
    builder.add_node("first", first)
    builder.add_node("second", second)
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    inner = builder.compile()

    async def delegate(who: str) -> str:
        state = await inner.ainvoke({"notes": [who]})
        return f"{state['notes']} {interrupt(f'{who}?')}"

    def sync_delegate(who: str) -> str:
        state = inner.invoke({"notes": [who]})
        return f"{state['notes']} {interrupt(f'{who}?')}"

    body: Any = {"func": sync_delegate} if sync else {"coroutine": delegate}
    return StructuredTool.from_function(**body, name="delegate", description="Runs a graph.")


def skip_if_saver_has_no_such_calls(request: pytest.FixtureRequest, *, sync: bool) -> None:
    """Skip savers without async methods below an async tool, and savers without sync ones below a sync tool."""
    kind = request.node.callspec.params["run"]
    if kind == ("aiosqlite ainvoke" if sync else "sqlite invoke"):
        pytest.skip(f"the saver of {kind!r} has no such calls")


@pytest.mark.parametrize("sync", [False, True], ids=["async tool", "sync tool"])
def test_a_graph_as_a_tool_asks_through_the_call(run: Run, sync: bool, request: pytest.FixtureRequest) -> None:
    skip_if_saver_has_no_such_calls(request, sync=sync)
    log = Counter[str]()
    node = ToolNode([subgraph_tool(log, sync=sync)])
    message = calls(tool_call("delegate", "id-x", who="x"), tool_call("delegate", "id-y", who="y"))
    build = graphs_of(node)
    state = run(build, {"messages": [message]})
    questions = state["__interrupt__"]
    assert [question.value for question in questions] == ["inner?", "inner?"]
    assert questions[0].id != questions[1].id
    state = run(build, Command(resume={questions[1].id: "Y inside"}))
    question_ids = ids(state)
    assert list(question_ids) == ["inner?", "y?"]
    state = run(build, Command(resume={question_ids["inner?"]: "X inside", question_ids["y?"]: "Y"}))
    state = run(build, Command(resume={ids(state)["x?"]: "X"}))
    assert results(state) == ["['x', 'first', 'second: X inside'] X", "['y', 'first', 'second: Y inside'] Y"]
    assert log["first"] == 2
    assert log["second"] == 4


def test_a_command_for_the_parent_from_a_graph_in_a_tool(run: Run, request: pytest.FixtureRequest) -> None:
    """Promises 4 and 5: the parent of a graph in a tool is the tool node's graph, as in LangGraph."""
    skip_if_saver_has_no_such_calls(request, sync=False)

    def leave(state: State) -> Any:
        answer = interrupt("leave?")
        return Command(graph=Command.PARENT, goto="elsewhere", update={"notes": [f"left: {answer}"]})

    builder: Any = StateGraph(State)
    builder.add_node("leave", leave)
    builder.add_edge(START, "leave")
    inner = builder.compile()

    async def delegate() -> str:
        """Run a graph."""
        await inner.ainvoke({"notes": []})
        raise AssertionError("the graph has left")

    outer_builder: Any = StateGraph(State)
    outer_builder.add_node("tools", ToolNode([delegate]))
    outer_builder.add_node("elsewhere", lambda state: {"notes": ["elsewhere"]})
    outer_builder.add_edge(START, "tools")

    def build(saver: Any) -> Any:
        return outer_builder.compile(checkpointer=saver)

    state = run(build, {"messages": [calls("delegate")]})
    assert list(ids(state)) == ["leave?"]
    state = run(build, Command(resume="yes"))
    assert state["notes"] == ["left: yes", "elsewhere"]


def test_a_fork_runs_everything_again() -> None:
    asking, graph = asking_graph()
    question_ids = ids(graph.invoke(starting(("a", 1), ("p", 0), ("b", 1)), CONFIG))
    graph.invoke(Command(resume={question_ids["a?0"]: "A"}), CONFIG)
    graph.invoke(Command(resume={question_ids["b?0"]: "B"}), CONFIG)
    runs = asking.runs.copy()
    before = next(state for state in graph.get_state_history(CONFIG) if state.next == ("tools",))
    fork = graph.update_state(before.config, {"notes": ["forked"]}, as_node="__start__")
    state = graph.invoke(None, fork)
    forked = ids(state)
    assert list(forked) == ["a?0", "b?0"]
    assert not set(forked.values()) & set(question_ids.values())
    assert asking.runs - runs == {"a": 1, "p": 1, "b": 1}
    state = graph.invoke(Command(resume={forked["a?0"]: "AA", forked["b?0"]: "BB"}), CONFIG)
    assert results(state) == ["a got ['AA']", "p got []", "b got ['BB']"]
    assert state["notes"] == ["forked"]


# Shapes of graphs: each returns a function that builds the graph, and the graph's input


def in_a_subgraph(asking: Asking) -> tuple[Callable[[Any], Any], Any]:
    return graphs_of(graph_of(ToolNode([asking.tool()]), None)), starting(*IN_TURN)


def one_task_a_call(asking: Asking) -> tuple[Callable[[Any], Any], Any]:
    """A graph may have one task for each call, as in LangGraph's agents."""
    builder: Any = StateGraph(State)
    builder.add_node("tools", ToolNode([asking.tool()]))
    builder.add_conditional_edges(
        START, lambda state: [Send("tools", [call]) for call in state["messages"][-1].tool_calls], ["tools"]
    )
    return lambda saver: builder.compile(checkpointer=saver), starting(*IN_TURN)


def in_langgraphs_agent(asking: Asking, version: Any) -> tuple[Callable[[Any], Any], Any]:
    """The model has a second reply only: a third request would be an error."""
    model, node = ScriptedModel([asks(*IN_TURN), "done"]), ToolNode([asking.tool()])

    def build(saver: Any) -> Any:
        return langgraph_react_agent(model, node, checkpointer=saver, version=version)

    return build, {"messages": [HumanMessage("go")]}


SHAPES: dict[str, Callable[[Asking], tuple[Callable[[Any], Any], Any]]] = {
    "a subgraph": in_a_subgraph,
    "one task a call": one_task_a_call,
    "LangGraph's agent v1": partial(in_langgraphs_agent, version="v1"),
    "LangGraph's agent v2": partial(in_langgraphs_agent, version="v2"),
}
IN_TURN = ("a", 2), ("p", 0), ("b", 1)


def answer_in_turn(asking: Asking, run: Callable[[Any], Any], graph_input: Any) -> Any:
    """Answer b by its id, and both questions of a plainly; finished and unanswered calls must not run again."""
    question_ids = ids(run(graph_input))
    assert sorted(question_ids) == ["a?0", "b?0"]
    assert ids(run(Command(resume={question_ids["b?0"]: "B"}))) == {"a?0": question_ids["a?0"]}
    assert list(ids(run(Command(resume=1)))) == ["a?1"]
    state = run(Command(resume=2))
    assert sorted(results(state)) == ["a got [1, 2]", "b got ['B']", "p got []"]
    assert asking.runs == {"a": 3, "p": 1, "b": 2}
    return state


@pytest.mark.filterwarnings("ignore::langgraph.warnings.LangGraphDeprecatedSinceV10")
@pytest.mark.parametrize("shape", SHAPES)
def test_answers_in_turn_in_a_graph_of_any_shape(run: Run, shape: str) -> None:
    asking = Asking()
    build, graph_input = SHAPES[shape](asking)
    state = answer_in_turn(asking, partial(run, build), graph_input)
    assert "agent" not in shape or state["messages"][-1].content == "done"


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_answers_in_turn_with_any_durability(durability: Any) -> None:
    asking, graph = asking_graph()
    answer_in_turn(
        asking, lambda graph_input: graph.invoke(graph_input, CONFIG, durability=durability), starting(*IN_TURN)
    )


@pytest.mark.parametrize(("resume_form", "questions"), [("plain", 1), ("by id", 1), ("plain", 2)])
def test_a_thread_that_waits_since_langgraphs_own_node(run: Run, resume_form: str, questions: int) -> None:
    asking = Asking()
    langgraph_node, callboard_node = LangGraphToolNode([asking.tool(sync=True)]), ToolNode([asking.tool(sync=True)])
    state = run(graphs_of(langgraph_node), starting(("a", questions)))
    for number in range(questions):
        (question,) = state["__interrupt__"]
        assert question.value == f"a?{number}"
        node = callboard_node if number == questions - 1 else langgraph_node
        state = run(graphs_of(node), Command(resume=number if resume_form == "plain" else {question.id: number}))
    assert results(state) == [f"a got {list(range(questions))}"]


def test_without_a_checkpointer_the_questions_come_and_nothing_is_stored() -> None:
    asking = Asking()
    graph = graph_of(ToolNode([asking.tool()]), None)
    question_ids = ids(graph.invoke(starting(("a", 1), ("b", 1))))
    assert list(question_ids) == ["a?0", "b?0"]


def test_a_finished_batch_leaves_no_resume_slot_for_the_next_one() -> None:
    asking, graph = asking_graph()
    for turn in range(2):
        value = {"messages": [HumanMessage("go"), asks(("a", 1), message_id=f"ai-{turn}")]}
        question_ids = ids(graph.invoke(value, CONFIG))
        assert list(question_ids) == ["a?0"]
        state = graph.invoke(Command(resume=f"A{turn}"), CONFIG)
        assert results(state)[-1] == f"a got ['A{turn}']"
    assert asking.runs == {"a": 4}


def test_a_message_instead_of_an_answer_leaves_the_question_behind() -> None:
    asking, graph = asking_graph()
    graph.invoke(starting(("a", 1), ("p", 0)), CONFIG)
    state = graph.invoke({"messages": [asks(("b", 1), message_id="ai-2")]}, CONFIG)
    assert list(ids(state)) == ["b?0"]
    state = graph.invoke(Command(resume="B"), CONFIG)
    assert results(state) == ["b got ['B']"]
    assert asking.runs["a"] == 1
