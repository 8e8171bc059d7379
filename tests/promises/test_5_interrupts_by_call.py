"""Promise 5 outside a graph: all questions of a batch come together, and each answer reaches its call."""

import pickle
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.errors import GraphInterrupt, UnknownInterruptError, is_invalid_resume
from langgraph.types import Interrupt, interrupt
from pydantic import ValidationError

from callboard import CallsInterrupted, ToolNode, tool_call
from callboard.testing import Recorder, calls
from tests.helpers import BrokenError
from tests.promises._asking import Asking, asks


async def run_to_questions(node: ToolNode, inputs: Any, **options: Any) -> CallsInterrupted:
    with pytest.raises(CallsInterrupted) as caught:
        await node.ainvoke(inputs, **options)
    return caught.value


def ids(waiting: CallsInterrupted) -> dict[Any, str]:
    return {question.value: question.id for question in waiting.interrupts}


def texts(messages: Any) -> list[str]:
    return [message.content for message in messages]


async def test_all_questions_come_together_each_with_an_id_of_its_own_and_so_may_the_answers() -> None:
    asking, rec = Asking(), Recorder()
    node = ToolNode([asking.tool(), rec.tool("plain", seconds=1)])
    inputs = [calls(*asks(("a", 1), ("b", 1)).tool_calls, tool_call("plain", "id-p"))]
    waiting = await run_to_questions(node, inputs)
    assert isinstance(waiting, GraphInterrupt)
    assert [question.value for question in waiting.interrupts] == ["a?0", "b?0"]
    assert waiting.args[0] == waiting.interrupts
    question_ids = ids(waiting)
    assert len(set(question_ids.values())) == 2
    messages = await node.ainvoke(
        inputs, ledger=waiting.ledger, resume={question_ids["b?0"]: "B", question_ids["a?0"]: "A"}
    )
    assert texts(messages) == ["a got ['A']", "b got ['B']", "plain"]
    assert asking.runs == {"a": 2, "b": 2}
    assert (rec.count("started", "plain"), rec.count("finished", "plain")) == (1, 1)


async def test_without_an_answer_nothing_runs_and_the_same_questions_come_again() -> None:
    asking = Asking()
    node = ToolNode([asking.tool()])
    inputs = [asks(("a", 1), ("b", 2))]
    waiting = await run_to_questions(node, inputs)
    for nothing in ({}, {"resume": {}}):  # as in LangGraph, an empty dict contains no answers
        second_waiting = await run_to_questions(node, inputs, ledger=waiting.ledger, **nothing)
        assert second_waiting.interrupts == waiting.interrupts
    assert asking.runs == {"a": 1, "b": 1}
    anew = await run_to_questions(node, inputs)
    assert anew.interrupts == waiting.interrupts
    assert asking.runs == {"a": 2, "b": 2}


@pytest.mark.parametrize("answer", [None, False, 0, "", [], {}, {"a": 1}, ["x"]], ids=repr)
async def test_any_value_is_an_answer_by_id(answer: Any) -> None:
    asking = Asking()
    node = ToolNode([asking.tool()])
    inputs = [asks(("a", 1), ("b", 1))]
    waiting = await run_to_questions(node, inputs)
    answers = dict.fromkeys(ids(waiting).values(), answer)
    messages = await node.ainvoke(inputs, ledger=waiting.ledger, resume=answers)
    assert texts(messages) == [f"a got [{answer!r}]", f"b got [{answer!r}]"]


@pytest.mark.parametrize("answer", [False, 0, "", [], {"a": 1}, {"ok": True, "note": "x"}], ids=repr)
async def test_a_plain_answer_goes_to_the_only_question(answer: Any) -> None:
    asking = Asking()
    node = ToolNode([asking.tool()])
    waiting = await run_to_questions(node, [asks(("a", 1))])
    messages = await node.ainvoke([asks(("a", 1))], ledger=waiting.ledger, resume=answer)
    assert texts(messages) == [f"a got [{answer!r}]"]


async def test_one_answer_for_two_questions_is_an_error_of_langgraphs_type_too() -> None:
    node = ToolNode([Asking().tool()])
    inputs = [asks(("a", 1), ("b", 1))]
    waiting = await run_to_questions(node, inputs)
    with pytest.raises(UnknownInterruptError) as caught:
        await node.ainvoke(inputs, ledger=waiting.ledger, resume={"a": "yes", "f" * 32: "yes"})
    assert isinstance(caught.value, RuntimeError)
    reread_error = pickle.loads(pickle.dumps(caught.value))
    assert (reread_error.reason, reread_error.pending_ids, str(reread_error)) == (
        "ambiguous",
        caught.value.pending_ids,
        str(caught.value),
    )


async def test_calls_that_share_an_id_have_questions_of_their_own() -> None:
    asking = Asking()
    node = ToolNode([asking.tool()])
    inputs = [calls(tool_call("ask", "same", who="a"), tool_call("ask", "same", who="b"))]
    with pytest.warns(UserWarning, match="same"):
        waiting = await run_to_questions(node, inputs)
        question_ids = ids(waiting)
        waiting = await run_to_questions(node, inputs, ledger=waiting.ledger, resume={question_ids["b?0"]: "B"})
        messages = await node.ainvoke(inputs, ledger=waiting.ledger, resume={question_ids["a?0"]: "A"})
    assert texts(messages) == ["a got ['A']", "b got ['B']"]


async def test_a_wrong_answer_harms_nobody_and_may_be_given_again() -> None:
    asking = Asking()
    node = ToolNode([asking.tool(), asking.decide()])
    inputs = [calls(*asks(("a", 1)).tool_calls, tool_call("decide", "id-d"), *asks(("b", 1)).tool_calls)]
    waiting = await run_to_questions(node, inputs)
    question_ids, ledger = ids(waiting), waiting.ledger
    answers = {question_ids["a?0"]: "A", question_ids["approve?"]: "perhaps"}
    with pytest.raises(ValidationError) as wrong:
        await node.ainvoke(inputs, ledger=ledger, resume=answers)
    assert is_invalid_resume(wrong.value)
    waiting = await run_to_questions(node, inputs, ledger=ledger, resume={question_ids["approve?"]: {"approve": True}})
    assert [question.id for question in waiting.interrupts] == [question_ids["b?0"]]
    messages = await node.ainvoke(inputs, ledger=waiting.ledger, resume="B")
    assert texts(messages) == ["a got ['A']", "approved True", "b got ['B']"]
    assert asking.runs == {"a": 2, "b": 2, "decide": 3}


async def test_answers_that_fit_no_question_are_refused_before_anything_runs() -> None:
    asking = Asking()
    node = ToolNode([asking.tool()])
    inputs = [asks(("a", 1), ("b", 1))]
    waiting = await run_to_questions(node, inputs)
    question_ids = ids(waiting)
    runs = asking.runs.copy()

    async def run_to_refusal(ledger: Any, resume: Any) -> UnknownInterruptError:
        with pytest.raises(UnknownInterruptError) as caught:
            await node.ainvoke(inputs, ledger=ledger, resume=resume)
        return caught.value

    error = await run_to_refusal(waiting.ledger, {"f" * 32: "x"})
    assert (error.reason, error.interrupt_ids) == ("not_pending", ("f" * 32,))
    assert set(error.pending_ids) == set(question_ids.values())
    error = await run_to_refusal(waiting.ledger, {question_ids["a?0"]: "A", "f" * 32: "x"})
    assert error.interrupt_ids == ("f" * 32,)
    assert (await run_to_refusal(waiting.ledger, "both")).reason == "ambiguous"
    assert (await run_to_refusal(None, {question_ids["a?0"]: "A"})).reason == "not_pending"
    assert (await run_to_refusal(None, "A")).reason == "not_pending"
    assert asking.runs == runs
    waiting = await run_to_questions(node, inputs, ledger=waiting.ledger, resume={question_ids["a?0"]: "A"})
    error = await run_to_refusal(waiting.ledger, {question_ids["a?0"]: "again"})
    assert error.interrupt_ids == (question_ids["a?0"],)


async def test_a_ledger_of_other_calls_is_refused() -> None:
    asking = Asking()
    node = ToolNode([asking.tool()])
    waiting = await run_to_questions(node, [asks(("a", 1))])
    with pytest.raises(ValueError, match="id-b"):
        await node.ainvoke([asks(("b", 1))], ledger=waiting.ledger, resume="A")
    assert asking.runs == {"a": 1}


async def test_a_ledger_may_be_used_twice() -> None:
    asking = Asking()
    node = ToolNode([asking.tool()])
    inputs = [asks(("a", 1))]
    waiting = await run_to_questions(node, inputs)
    serde = JsonPlusSerializer()
    copy = serde.loads_typed(serde.dumps_typed(waiting.ledger))
    assert texts(await node.ainvoke(inputs, ledger=waiting.ledger, resume="one")) == ["a got ['one']"]
    assert texts(await node.ainvoke(inputs, ledger=copy, resume="two")) == ["a got ['two']"]


async def test_a_tool_that_asks_in_a_nested_node_asks_through_the_outer_one() -> None:
    asking, rec = Asking(), Recorder()
    inner = ToolNode([asking.tool(), rec.tool("plain")])

    async def outer(name: str) -> str:
        asking.runs[name] += 1
        message = calls(
            tool_call("ask", "in-1", who=f"{name}1"),
            tool_call("plain", "in-2", query=name),
            tool_call("ask", "in-3", who=f"{name}2"),
        )
        return " and ".join(texts(await inner.ainvoke([message])))

    node = ToolNode([StructuredTool.from_function(coroutine=outer, description="Delegates.")])
    inputs = [calls(("outer", {"name": "x"}), ("outer", {"name": "y"}))]
    waiting = await run_to_questions(node, inputs)
    question_ids = ids(waiting)
    assert list(question_ids) == ["x1?0", "x2?0", "y1?0", "y2?0"]
    assert len(set(question_ids.values())) == 4
    answers = {question_ids["x2?0"]: "X2", question_ids["y1?0"]: "Y1"}
    waiting = await run_to_questions(node, inputs, ledger=waiting.ledger, resume=answers)
    assert ids(waiting) == {"x1?0": question_ids["x1?0"], "y2?0": question_ids["y2?0"]}
    answers = {question_ids["x1?0"]: "X1", question_ids["y2?0"]: "Y2"}
    messages = await node.ainvoke(inputs, ledger=waiting.ledger, resume=answers)
    assert texts(messages) == ["x1 got ['X1'] and x and x2 got ['X2']", "y1 got ['Y1'] and y and y2 got ['Y2']"]
    assert asking.ends == {"x1": 1, "x2": 1, "y1": 1, "y2": 1}
    assert rec.count("started", "plain") == 2


async def test_an_own_question_before_and_after_a_nested_batch() -> None:
    asking = Asking()
    inner = ToolNode([asking.tool()])

    async def outer() -> str:
        before = interrupt("before?")
        messages = await inner.ainvoke([asks(("a", 1), ("b", 1))])
        after = interrupt("after?")
        return f"{before} {texts(messages)} {after}"

    node = ToolNode([StructuredTool.from_function(coroutine=outer, description="Asks around.")])
    inputs = [calls("outer")]
    waiting = await run_to_questions(node, inputs)
    waiting = await run_to_questions(node, inputs, ledger=waiting.ledger, resume="first")
    question_ids = ids(waiting)
    assert list(question_ids) == ["a?0", "b?0"]
    waiting = await run_to_questions(node, inputs, ledger=waiting.ledger, resume={question_ids["b?0"]: "B"})
    waiting = await run_to_questions(node, inputs, ledger=waiting.ledger, resume={question_ids["a?0"]: "A"})
    assert list(ids(waiting)) == ["after?"]
    (message,) = await node.ainvoke(inputs, ledger=waiting.ledger, resume="last")
    assert message.content == """first ["a got ['A']", "b got ['B']"] last"""
    assert asking.ends == {"a": 1, "b": 1}


async def test_a_retry_of_the_run_after_an_error_keeps_answers_and_results() -> None:
    asking, rec = Asking(), Recorder()
    node = ToolNode([asking.tool(), rec.tool("boom", seconds=2, raises=BrokenError("no"), times=1)])
    inputs = [calls(*asks(("a", 1), ("b", 2)).tool_calls, tool_call("boom", "id-x"))]
    ledger: dict[str, Any] = {}
    with pytest.raises(BrokenError):
        await node.ainvoke(inputs, ledger=ledger)
    waiting = await run_to_questions(node, inputs, ledger=ledger)
    assert asking.runs == {"a": 1, "b": 1}
    question_ids = ids(waiting)
    answers = {question_ids["a?0"]: "A", question_ids["b?0"]: 1}
    waiting = await run_to_questions(node, inputs, ledger=waiting.ledger, resume=answers)
    messages = await node.ainvoke(inputs, ledger=waiting.ledger, resume=2)
    assert texts(messages) == ["a got ['A']", "b got [1, 2]", "boom"]
    assert rec.count("started", "boom") == 2


def test_from_sync_code() -> None:
    asking = Asking()
    node = ToolNode([asking.tool()])
    inputs = [asks(("a", 1), ("b", 1))]
    with pytest.raises(CallsInterrupted) as caught:
        node.invoke(inputs)
    question_ids = ids(caught.value)
    messages = node.invoke(
        inputs, ledger=caught.value.ledger, resume={question_ids["b?0"]: "B", question_ids["a?0"]: "A"}
    )
    assert texts(messages) == ["a got ['A']", "b got ['B']"]


@given(data=st.data(), counts=st.lists(st.integers(0, 3), min_size=1, max_size=4))
async def test_any_answers_in_any_order_reach_who_asked_and_bodies_run_no_more_than_they_must(
    data: st.DataObject, counts: list[int]
) -> None:
    """Promise 5: the ledger is stored between the runs, as in a database until a person answers."""
    asking = Asking()
    delays = data.draw(st.lists(st.integers(0, 3), min_size=len(counts), max_size=len(counts)))
    node = ToolNode([asking.tool(seconds=lambda asker: float(delays[int(asker)]))])
    inputs = [asks(*((str(caller), number) for caller, number in enumerate(counts)))]
    serde = JsonPlusSerializer()
    ledger: Any = None
    resume: Any = None
    question_ids: dict[Any, str] = {}
    expected: Counter[str] = Counter({str(caller): 1 for caller in range(len(counts))})
    messages: Any = None
    while messages is None:
        try:
            messages = await node.ainvoke(inputs, ledger=ledger, resume=resume)
        except CallsInterrupted as waiting:
            assert asking.runs == expected
            askers = [question.value.partition("?")[0] for question in waiting.interrupts]
            assert askers == sorted(askers), "not in the order of the calls"
            for question in waiting.interrupts:
                assert question_ids.setdefault(question.value, question.id) == question.id
            ledger = serde.loads_typed(serde.dumps_typed(waiting.ledger))
            open_now: list[Interrupt] = list(waiting.interrupts)
            chosen = data.draw(st.lists(st.sampled_from(range(len(open_now))), min_size=1, unique=True))
            resume = {open_now[index].id: {"to": open_now[index].value, "deep": [None]} for index in chosen}
            expected.update(str(open_now[index].value).partition("?")[0] for index in chosen)
    assert asking.runs == expected == {str(caller): number + 1 for caller, number in enumerate(counts)}
    assert len(set(question_ids.values())) == sum(counts)
    assert texts(messages) == [
        f"{caller} got {[{'to': f'{caller}?{question}', 'deep': [None]} for question in range(number)]}"
        for caller, number in enumerate(counts)
    ]


async def test_two_nested_batches_with_the_same_ids_are_two_batches() -> None:
    asking = Asking()
    inner = ToolNode([asking.tool()])

    async def outer() -> str:
        result_texts: list[str] = []
        for turn in "12":
            batch = calls(tool_call("ask", "x", who=f"a{turn}"), tool_call("ask", "y", who=f"p{turn}", questions=0))
            result_texts += texts(await inner.ainvoke([batch]))
        return " and ".join(result_texts)

    node = ToolNode([StructuredTool.from_function(coroutine=outer, description="Delegates.")])
    waiting = await run_to_questions(node, [calls("outer")])
    first = ids(waiting)
    waiting = await run_to_questions(node, [calls("outer")], ledger=waiting.ledger, resume={first["a1?0"]: "one"})
    second = ids(waiting)
    assert list(second) == ["a2?0"]
    assert second["a2?0"] != first["a1?0"]
    (message,) = await node.ainvoke([calls("outer")], ledger=waiting.ledger, resume={second["a2?0"]: "two"})
    assert message.content == "a1 got ['one'] and p1 got [] and a2 got ['two'] and p2 got []"
    assert (asking.ends, asking.runs["p2"]) == ({"a1": 1, "a2": 1, "p1": 1, "p2": 1}, 1)
