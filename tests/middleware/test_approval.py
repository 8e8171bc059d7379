"""`RequireApproval`: a call that nobody approved does not run, whatever happens between question and answer."""

import hashlib
import json
import random
from datetime import date
from decimal import Decimal
from typing import Annotated, Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import StructuredTool, tool
from langgraph.errors import is_invalid_resume
from langgraph.types import interrupt
from pydantic import BaseModel, ValidationError, model_validator

from callboard import CallEvent, CallsInterrupted, InjectedState, ToolNode, ToolRuntime, observe, tool_call
from callboard.middleware import RequireApproval, Retry
from callboard.middleware._approval import compute_call_digest
from callboard.testing import Recorder, calls

WAIT = 1000
ACCEPT = {"type": "accept", "args": None}
IGNORE = {"type": "ignore", "args": None}
ALL_ALLOWED = {"allow_accept": True, "allow_edit": True, "allow_respond": True, "allow_ignore": True}


def edit(**args: Any) -> dict[str, Any]:
    return {"type": "edit", "args": {"action": "delete", "args": args}}


def deletes(*queries: str, message_id: str = "ai-1") -> AIMessage:
    """Return a tool call for each query. Its id is its position, so another query may get the same id."""
    message = calls(*(tool_call("delete", f"id-{position}", query=query) for position, query in enumerate(queries)))
    message.id = message_id
    return message


def node_of(recorder: Recorder, middleware: RequireApproval | None = None, *outside: Any) -> ToolNode:
    return ToolNode(
        [recorder.tool("delete"), recorder.tool("look")], middleware=[*outside, middleware or RequireApproval()]
    )


async def run_to_questions(node: ToolNode, inputs: Any, **options: Any) -> CallsInterrupted:
    with anyio.fail_after(WAIT), pytest.raises(CallsInterrupted) as caught:
        await node.ainvoke(inputs, **options)
    return caught.value


async def run_to_end(node: ToolNode, inputs: Any, **options: Any) -> list[ToolMessage]:
    with anyio.fail_after(WAIT):
        result = await node.ainvoke(inputs, **options)
    return result["messages"] if isinstance(result, dict) else result


async def run_with_answer(node: ToolNode, inputs: Any, answer: Any) -> ToolMessage:
    waiting = await run_to_questions(node, inputs)
    (message,) = await run_to_end(node, inputs, ledger=waiting.ledger, resume=answer)
    return message


async def run_to_refusal(node: ToolNode, inputs: Any, **options: Any) -> str:
    with anyio.fail_after(WAIT), pytest.raises(ValidationError) as caught:
        await node.ainvoke(inputs, **options)
    assert is_invalid_resume(caught.value)
    return str(caught.value)


def queries_in(waiting: CallsInterrupted) -> list[Any]:
    return [question.value[0]["action_request"]["args"]["query"] for question in waiting.interrupts]


async def test_the_question_is_a_human_interrupt_with_a_digest_and_nothing_runs(recorder: Recorder) -> None:
    """The question has the form that LangChain's agent inbox expects: a list with one request."""
    waiting = await run_to_questions(node_of(recorder), [deletes("a")])

    (question,) = waiting.interrupts
    assert question.value == [
        {
            "action_request": {"action": "delete", "args": {"query": "a"}},
            "config": ALL_ALLOWED,
            "description": "Tool execution requires approval\n\nTool: delete\nArgs: {'query': 'a'}",
            "digest": compute_call_digest(recorder.tool("delete"), {"query": "a"}),
        }
    ]
    assert recorder.lines == []


@pytest.mark.parametrize("described", [None, lambda request: f"Args: {request.tool_call['args']['query']}"])
async def test_a_description_shows_characters_that_are_not_visible(described: Any) -> None:
    """A person would approve another file name than the one that is shown."""
    middleware = RequireApproval(description=described)
    (question,) = (
        await run_to_questions(node_of(Recorder(), middleware), [deletes("cat\u202egpj\u3164.exe")])
    ).interrupts
    assert "cat\\u202egpj\\u3164.exe" in question.value[0]["description"]


async def test_a_client_is_told_what_an_answer_looks_like() -> None:
    """LangGraph's `response_schema`, which a client may show as a form, has the allowed answers and no others."""
    middleware = RequireApproval(
        allow=["accept", "ignore"], description=lambda request: f"Delete {request.tool_call['args']['query']}?"
    )
    node = node_of(Recorder(), middleware)
    waiting = await run_to_questions(node, [deletes("a")])

    schema, [question] = waiting.interrupts[0].response_schema, waiting.interrupts[0].value
    assert str(waiting) == f"calls wait for answers by id: {waiting.interrupts[0].id} (delete: accept/ignore)"
    assert repr(waiting) == f"CallsInterrupted({str(waiting)!r})"
    assert schema is not None
    assert set(schema["discriminator"]["mapping"]) == {"accept", "ignore"}
    assert question["config"] == {**ALL_ALLOWED, "allow_edit": False, "allow_respond": False}
    assert question["description"] == "Delete a?"
    text = await run_to_refusal(node, [deletes("a")], ledger=waiting.ledger, resume="yes")
    assert """Answer with {"type": "accept"} or {"type": "ignore"}; got 'yes'""" in text


@pytest.mark.parametrize(
    ("answer", "form", "mistake"),
    [
        ({"type": "edit"}, '{"type": "edit", "args": {"args": {...}}}', "args: Field required"),
        ({"type": "edit", "args": 5}, '{"type": "edit", "args": {"args": {...}}}', "valid dictionary"),
        ({"type": "response", "args": 5}, '{"type": "response", "args": "text"}', "valid string"),
    ],
)
async def test_an_answer_with_a_wrong_part_is_refused_with_its_form(answer: Any, form: str, mistake: str) -> None:
    """The right kind of answer is the hint: its form says what is missing."""
    node = node_of(Recorder(), RequireApproval())
    waiting = await run_to_questions(node, [deletes("a")])
    text = await run_to_refusal(node, [deletes("a")], ledger=waiting.ledger, resume=answer)
    assert f"Answer with {form}; got {answer!r} (" in text
    assert mistake in text


def only_a(request: Any) -> bool:
    return bool(request.tool_call["args"]["query"] == "a")


@pytest.mark.parametrize(
    ("middleware", "expected"),
    [
        (RequireApproval(), ["delete a", "delete b", "look a"]),
        (RequireApproval(["delete"]), ["delete a", "delete b"]),
        (RequireApproval({"delete", "look"}, when=only_a), ["delete a", "look a"]),
        (RequireApproval({"delete": True, "look": False}), ["delete a", "delete b"]),
        (RequireApproval({"delete": only_a, "look": only_a}, when=lambda r: r.tool.name == "look"), ["look a"]),
        (RequireApproval({"look": ALL_ALLOWED}), ["look a"]),
        (RequireApproval([]), []),
    ],
    ids=["every tool", "names", "when", "bools", "predicates", "config", "nothing"],
)
async def test_only_chosen_calls_are_asked_about(
    recorder: Recorder, middleware: RequireApproval, expected: list[str]
) -> None:
    batch = [
        tool_call("delete", "1", query="a"),
        tool_call("delete", "2", query="b"),
        tool_call("look", "3", query="a"),
    ]

    try:
        await run_to_end(node_of(recorder, middleware), batch)
        questions: list[str] = []
    except CallsInterrupted as waiting:
        requests = [question.value[0]["action_request"] for question in waiting.interrupts]
        questions = [f"{request['action']} {request['args']['query']}" for request in requests]

    assert questions == expected
    assert recorder.count("started") == 3 - len(expected)


@pytest.mark.parametrize("tools", [None, {"delete": lambda _: 1 / 0}], ids=["when", "tools"])
async def test_a_predicate_that_fails_lets_nothing_run(recorder: Recorder, tools: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        await node_of(recorder, RequireApproval(tools, when=lambda _: 1 / 0)).ainvoke([deletes("a")])
    assert recorder.lines == []


async def test_a_tool_that_does_not_exist_is_not_asked_about() -> None:
    """An unknown tool cannot run, so the model reads the list of tools instead."""
    (message,) = await run_to_end(node_of(Recorder()), [calls(tool_call("destroy", "1"))])
    assert message.status == "error"
    assert "delete, look" in message.content


async def test_what_a_client_does_to_the_question_changes_nothing(recorder: Recorder) -> None:
    """A client may modify the question that it received. The call and the rules must not change with it."""
    node = node_of(recorder, RequireApproval(allow=["accept", "ignore"]))
    inputs = [deletes("a")]
    waiting = await run_to_questions(node, inputs)
    waiting.interrupts[0].value[0]["action_request"]["args"]["query"] = "everything"
    waiting.interrupts[0].value[0]["config"]["allow_edit"] = True
    assert "Answer with" in await run_to_refusal(node, inputs, ledger=waiting.ledger, resume=edit(query="z"))
    await run_to_end(node, inputs, ledger=waiting.ledger, resume=ACCEPT)
    assert recorder.order == ["delete(a)"]


REJECTED = (
    "User rejected the tool call for `delete` with id id-0. The tool was not executed. "
    "Do not retry this tool call unless the user explicitly requests it."
)


@pytest.mark.parametrize("wrapped", [False, True], ids=["answer", "list of one"])
@pytest.mark.parametrize(
    ("answer", "content", "status", "ran"),
    [
        (ACCEPT, "a", "success", ["delete(a)"]),
        ({"type": "accept"}, "a", "success", ["delete(a)"]),
        ({"type": "accept", "args": {"action": "delete", "args": {"query": "a"}}}, "a", "success", ["delete(a)"]),
        (edit(query="b"), "b", "success", ["delete(b)"]),
        ({"type": "edit", "args": {"args": {"query": "b"}}}, "b", "success", ["delete(b)"]),
        (edit(), "delete", "success", ["delete"]),
        ({"type": "response", "args": "It is gone."}, "It is gone.", "success", []),
        ({"type": "response", "args": ""}, "", "success", []),
        (IGNORE, REJECTED, "error", []),
        ({"type": "ignore"}, REJECTED, "error", []),
        (
            {"type": "ignore", "args": "not today"},
            "User rejected the tool call for `delete` with reason: not today",
            "error",
            [],
        ),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else "",
)
async def test_every_answer_does_what_it_says(
    recorder: Recorder, answer: Any, content: str, status: str, ran: list[str], wrapped: bool
) -> None:
    """For each kind of answer, the tool runs once or not at all, and the model gets one message."""
    message = await run_with_answer(node_of(recorder), [deletes("a")], [answer] if wrapped else answer)
    assert (message.content, message.status, message.name) == (content, status, "delete")
    assert message.tool_call_id == "id-0"
    assert recorder.order == ran


INVALID = [
    *("yes", None, True, [], {}, [ACCEPT, ACCEPT], [[ACCEPT]]),
    *({"type": "approve"}, {"type": "reject", "message": "no"}, {"type": ["accept"]}, {"type": "Accept"}),
    {"type": "accept", "args": {"action": "delete", "args": {"query": "b"}}},
    {"type": "accept", "args": {"action": "look", "args": {"query": "a"}}},
    *({"type": "accept", "args": "a"}, {"type": "edit"}, {"type": "edit", "args": None}),
    {"type": "edit", "args": {"action": "delete"}},
    {"type": "edit", "args": {"action": "delete", "args": None}},
    {"type": "edit", "args": {"action": "delete", "args": {"query": ["a"]}}},
    {"type": "edit", "args": {"action": "look", "args": {"query": "a"}}},
    {"type": "edit", "args": {"action": "destroy", "args": {"query": "a"}}},
    *({"type": "response"}, {"type": "response", "args": None}, {"type": "response", "args": {"text": "gone"}}),
    {"type": "ignore", "args": 1},
]


@pytest.mark.parametrize("handles", [False, True], ids=["", "all errors handled"])
@pytest.mark.parametrize("answer", INVALID, ids=json.dumps)
async def test_an_invalid_answer_loses_nothing(recorder: Recorder, answer: Any, handles: bool) -> None:
    """Promise 5: an invalid answer runs nothing and keeps the other answers, and it may be corrected."""
    node = ToolNode([recorder.tool("delete")], middleware=[RequireApproval()], handle_tool_errors=handles)
    inputs = [deletes("a", "b")]
    waiting = await run_to_questions(node, inputs)
    first, second = waiting.interrupts

    await run_to_refusal(node, inputs, ledger=waiting.ledger, resume={first.id: answer, second.id: ACCEPT})

    assert recorder.order == ["delete(b)"]
    messages = await run_to_end(node, inputs, ledger=waiting.ledger, resume={first.id: ACCEPT})
    assert [message.content for message in messages] == ["a", "b"]
    assert recorder.order == ["delete(b)", "delete(a)"]


@pytest.mark.parametrize("allowed", ["accept", "edit", "response", "ignore"])
async def test_an_answer_that_is_not_allowed_is_none(recorder: Recorder, allowed: str) -> None:
    """Each kind of answer is tried against rules that allow only the other kinds."""
    answers: dict[str, Any] = {
        "accept": ACCEPT,
        "edit": edit(query="b"),
        "response": {"type": "response", "args": "gone"},
        "ignore": IGNORE,
    }
    node = node_of(recorder, RequireApproval(allow=[allowed]))  # type: ignore[list-item]
    inputs = [deletes("a")]
    waiting = await run_to_questions(node, inputs)

    for kind in answers.keys() - {allowed}:
        assert "Answer with" in await run_to_refusal(node, inputs, ledger=waiting.ledger, resume=answers[kind])
    assert recorder.lines == []
    (message,) = await run_to_end(node, inputs, ledger=waiting.ledger, resume=answers[allowed])
    assert message.tool_call_id == "id-0"


async def test_an_edit_may_name_another_tool_where_that_is_allowed(recorder: Recorder) -> None:
    """The other tool's schema and policy apply. Tools outside the node are refused."""

    @tool
    async def archive(path: str) -> str:
        """Move a file away."""
        return f"archived {path}"

    node = ToolNode([recorder.tool("delete"), archive], middleware=[RequireApproval(other_tools=True)])
    inputs = [deletes("a")]
    waiting = await run_to_questions(node, inputs)

    def to(name: str, **args: Any) -> Any:
        return {"type": "edit", "args": {"action": name, "args": args}}

    assert "'destroy'" in await run_to_refusal(node, inputs, ledger=waiting.ledger, resume=to("destroy"))
    assert "path" in await run_to_refusal(node, inputs, ledger=waiting.ledger, resume=to("archive", query="a"))
    (message,) = await run_to_end(node, inputs, ledger=waiting.ledger, resume=to("archive", path="a"))
    assert (message.content, message.name, message.tool_call_id) == ("archived a", "archive", "id-0")
    assert recorder.lines == []


async def test_an_edit_may_not_name_a_tool_whose_own_rule_allows_no_edit(recorder: Recorder) -> None:
    """The person would write a call that nobody may write."""
    ruled: Any = {"look": True, "delete": {**ALL_ALLOWED, "allow_edit": False}}
    node = node_of(recorder, RequireApproval(ruled, other_tools=True))
    inputs = [calls(("look", {"query": "a"}))]
    waiting = await run_to_questions(node, inputs)
    to_delete = {"type": "edit", "args": {"action": "delete", "args": {"query": "a"}}}

    assert "only to one of ['look']" in await run_to_refusal(node, inputs, ledger=waiting.ledger, resume=to_delete)


async def test_nobody_is_asked_about_arguments_that_the_tool_refuses(recorder: Recorder) -> None:
    """An approval would have no effect. The model reads the tool's own error at once."""
    worded = recorder.tool("look")
    worded.handle_validation_error = "Name one."
    node = ToolNode([recorder.tool("delete"), worded], middleware=[RequireApproval()])
    message, own_error = await run_to_end(node, [calls(("delete", {"query": ["a"]}), ("look", {"query": ["a"]}))])

    assert "query: Input should be a valid string" in message.content
    assert (own_error.content, own_error.status) == ("Name one.", "error")


async def test_a_validator_that_needs_injected_values_is_not_believed_before_they_are_there() -> None:
    """The person is asked, since the call may be valid. Without injected arguments its error is that of the call."""

    class Moved(BaseModel):
        path: str

        @model_validator(mode="before")
        @classmethod
        def below_root(cls, values: dict[str, Any]) -> dict[str, Any]:
            return {**values, "path": values["root"] + values["path"]}

    class MovedInState(Moved):
        root: Annotated[str, InjectedState("root")]

    async def move(path: str, root: str = "") -> str:
        """Move a file."""
        return path

    def node_with(schema: type[BaseModel]) -> ToolNode:
        return ToolNode(
            [StructuredTool.from_function(coroutine=move, args_schema=schema)], middleware=[RequireApproval()]
        )

    inputs = {"messages": [calls(("move", {"path": "a"}))], "root": "/"}
    waiting = await run_to_questions(node_with(MovedInState), inputs)
    (message,) = await run_to_end(node_with(MovedInState), inputs, ledger=waiting.ledger, resume=ACCEPT)
    assert message.content == "/a"
    with pytest.raises(KeyError, match="root"):
        await node_with(Moved).ainvoke(inputs)


async def test_an_edit_reaches_the_tool_whose_schema_is_json_as_it_is() -> None:
    """As in LangChain, raw JSON schemas are not used for validation, so the edited arguments pass unchanged."""
    received_args: list[Any] = []

    async def delete(**args: Any) -> str:
        received_args.append(args)
        return "gone"

    schema = {"title": "delete", "type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    delete_tool = StructuredTool(name="delete", description="Deletes.", args_schema=schema, coroutine=delete)
    node = ToolNode([delete_tool], middleware=[RequireApproval()])

    message = await run_with_answer(node, [calls(tool_call("delete", "1", path="a"))], edit(path="b"))

    assert message.content == "gone"
    assert received_args == [{"path": "b"}]


async def test_observers_are_told_what_was_decided_and_no_argument() -> None:
    """Promise 9: observers get one word for each decision, without arguments."""
    events: list[CallEvent] = []
    node, inputs = node_of(Recorder()), [deletes("secret-0", "secret-1", "secret-2", "secret-3")]
    with observe(events.append):
        waiting = await run_to_questions(node, inputs)
        decisions = [ACCEPT, edit(query="secret-4"), {"type": "response", "args": "secret-5"}, IGNORE]
        answers = {question.id: answer for question, answer in zip(waiting.interrupts, decisions, strict=True)}
        await run_to_end(node, inputs, ledger=waiting.ledger, resume=answers)

    noted = [(event.call_id, event.note) for event in events if event.phase == "noted"]
    decided = ["approved", "edited", "answered", "declined"]
    assert noted[:4] == [(f"id-{position}", "approval_asked") for position in range(4)]
    assert sorted(noted[4:]) == [(f"id-{position}", word) for position, word in enumerate(decided)]
    assert "secret" not in repr([event.facts for event in events])


@pytest.mark.parametrize("answer", [ACCEPT, edit(query="b"), {"type": "response", "args": "x"}, IGNORE, "nonsense"])
async def test_an_answer_does_not_count_for_arguments_that_were_changed_since(recorder: Recorder, answer: Any) -> None:
    """The history was edited under the same ids and ledger, so the person is asked about the new arguments."""
    node = node_of(recorder)
    waiting = await run_to_questions(node, [deletes("a")])

    second_waiting = await run_to_questions(node, [deletes("everything")], ledger=waiting.ledger, resume=answer)

    assert queries_in(second_waiting) == ["everything"]
    assert second_waiting.interrupts[0].id != waiting.interrupts[0].id
    assert recorder.lines == []
    (message,) = await run_to_end(node, [deletes("everything")], ledger=second_waiting.ledger, resume=ACCEPT)
    assert message.content == "everything"
    assert recorder.order == ["delete(everything)"]


async def test_an_answer_counts_again_for_what_it_was_given_to(recorder: Recorder) -> None:
    """Arguments that were changed and then changed back have their old approval."""
    node = node_of(recorder)
    waiting = await run_to_questions(node, [deletes("a")])
    waiting = await run_to_questions(node, [deletes("b")], ledger=waiting.ledger, resume=ACCEPT)
    (message,) = await run_to_end(node, [deletes("a")], ledger=waiting.ledger, resume=IGNORE)
    assert (message.content, recorder.order) == ("a", ["delete(a)"])


async def test_an_answer_to_the_tools_own_question_is_no_approval() -> None:
    """An answer to the tool's question and an approval keep separate positions when the arguments change."""
    answers: list[str] = []

    async def delete(query: str) -> str:
        """Delete."""
        answers.append(f"{query}: {interrupt(f'really {query}?')}")
        return answers[-1]

    node = ToolNode([delete], middleware=[RequireApproval()])
    waiting = await run_to_questions(node, [deletes("a")])
    waiting = await run_to_questions(node, [deletes("a")], ledger=waiting.ledger, resume=ACCEPT)
    assert waiting.interrupts[0].value == "really a?"
    waiting = await run_to_questions(node, [deletes("b")], ledger=waiting.ledger, resume=ACCEPT)
    assert queries_in(waiting) == ["b"]
    waiting = await run_to_questions(node, [deletes("b")], ledger=waiting.ledger, resume=ACCEPT)
    assert waiting.interrupts[0].value == "really b?"

    (message,) = await run_to_end(node, [deletes("b")], ledger=waiting.ledger, resume="yes")

    assert message.content == "b: yes"
    assert answers == ["b: yes"]


async def test_a_call_that_was_rejected_does_not_run_because_nobody_would_ask_now() -> None:
    """Promise 9: a rejection holds even if `when` returns another value after the answer."""
    recorder, ask = Recorder(), [True, False]
    node = node_of(recorder, RequireApproval(when=lambda _: ask.pop(0)))
    message = await run_with_answer(node, [deletes("a")], IGNORE)
    assert message.status == "error"
    assert recorder.lines == []


async def delete(query: str) -> str:
    """Delete."""
    return query


async def delete_all(query: str) -> str:
    """Delete."""
    return query


DELETE = StructuredTool.from_function(coroutine=delete)
DELETE_ALL = StructuredTool.from_function(coroutine=delete_all, name="delete")

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def shuffle_keys(value: Any, rng: random.Random) -> Any:
    """Return an equal value with its keys in another order."""
    if isinstance(value, list):
        return [shuffle_keys(item, rng) for item in value]
    if isinstance(value, dict):
        return {key: shuffle_keys(value[key], rng) for key in rng.sample(list(value), len(value))}
    return value


ARGUMENTS = st.dictionaries(st.text(), JSON, max_size=4)


@given(one=ARGUMENTS, other=ARGUMENTS, seed=st.integers())
def test_the_digest_is_of_what_the_arguments_say_and_not_of_how(
    one: dict[str, Any], other: dict[str, Any], seed: int
) -> None:
    """The order of keys and a round trip through JSON do not change the digest. Other arguments have another one."""
    digest = compute_call_digest(DELETE, one)
    assert compute_call_digest(DELETE, shuffle_keys(one, random.Random(seed))) == digest
    assert compute_call_digest(DELETE, json.loads(json.dumps(one))) == digest
    is_same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (compute_call_digest(DELETE, other) == digest) is is_same


def test_the_digest_is_the_published_one() -> None:
    """Another program can compute the digest with a hash function and JSON only."""
    runs = "langchain_core.tools.structured.StructuredTool " + DELETE.coroutine.__module__ + ".delete"
    canonical = '{"args":{"a":[1,null],"b":"\\u00e4"},"name":"delete","runs":"' + runs + '"}'
    assert compute_call_digest(DELETE, {"b": "ä", "a": [1, None]}) == hashlib.sha256(canonical.encode()).hexdigest()


@pytest.mark.parametrize(
    ("value", "equal_value", "other_value"),
    [
        ({"b", "a", "c"}, {"c", "b", "a"}, ["a", "b", "c"]),
        ({"b", "a"}, frozenset({"a", "b"}), {"%set": ["a", "b"]}),
        (date(2026, 1, 2), date(2026, 1, 2), "2026-01-02"),
        ((1, 2), [1, 2], (2, 1)),
        (b"x", bytearray(b"x"), "x"),
        (b"x", b"x", {"%bytes": "78"}),
        ({1: "a"}, {1: "a"}, {"1": "a"}),
        ({1: "a"}, {1: "a"}, {"%int:1": "a"}),
        ({None: "a"}, {None: "a"}, {"null": "a"}),
        ({"%": 1}, {"%": 1}, {"%%": 1}),
        (1, 1, True),
        (1, 1, "1"),
        (Decimal("1"), Decimal("1"), "1"),
        ("\u00e9", "\u00e9", "e\u0301"),
        ([b"x"], (b"x",), ["x"]),
    ],
)
def test_what_means_something_else_has_another_digest(value: Any, equal_value: Any, other_value: Any) -> None:
    """Values that JSON does not distinguish must not share an approval: middleware may insert any object."""
    assert compute_call_digest(DELETE, {"x": value}) == compute_call_digest(DELETE, {"x": equal_value})
    assert compute_call_digest(DELETE, {"x": value}) != compute_call_digest(DELETE, {"x": other_value})


async def test_an_approval_of_one_tool_is_none_of_another_with_its_name() -> None:
    """The outer middleware replaces the tool that the person was asked about by another one of the same name."""
    recorder, bodies = Recorder(), [DELETE, DELETE_ALL]

    async def swap(request: Any, call_next: Any) -> Any:
        return await call_next(request.override(tool=bodies.pop(0)))

    node = node_of(recorder, None, swap)
    waiting = await run_to_questions(node, [deletes("a")])
    second_waiting = await run_to_questions(node, [deletes("a")], ledger=waiting.ledger, resume=ACCEPT)

    assert DELETE.name == DELETE_ALL.name
    assert second_waiting.interrupts[0].value[0]["digest"] != waiting.interrupts[0].value[0]["digest"]


async def test_the_person_sees_nothing_that_the_model_forged() -> None:
    """Injected state is taken from the graph, and neither the model nor an edit can forge it."""
    deletions: list[str] = []

    @tool
    async def delete(path: str, user: Annotated[str, InjectedState("user")], runtime: ToolRuntime) -> str:
        """Delete."""
        deletions.append(f"{user}:{path}")
        return "deleted"

    tools_to_approve: list[Any] = []
    approval = RequireApproval(
        when=lambda request: not tools_to_approve.append(request.tool_call["args"]),
        description=lambda request: str(request.tool_call["args"]),
    )
    node = ToolNode([delete], middleware=[approval])
    forged = {"path": "a", "user": "root", "runtime": "forged"}
    state = {"messages": [calls(tool_call("delete", "1", **forged))], "user": "ann"}
    waiting = await run_to_questions(node, state)
    (request,) = waiting.interrupts[0].value
    assert request["action_request"]["args"] == {"path": "a"}
    assert request["digest"] == compute_call_digest(delete, {"path": "a"})
    assert request["description"] == "{'path': 'a'}"
    with pytest.raises(ValidationError, match="by the agent"):
        await node.ainvoke(state, ledger=waiting.ledger, resume=edit(path="a", user="root"))
    await run_to_end(node, state, ledger=waiting.ledger, resume=ACCEPT)

    assert deletions == ["ann:a"]
    assert tools_to_approve == [{"path": "a"}] * 3


async def test_an_argument_of_which_there_is_no_digest_does_not_run() -> None:
    """Without a digest nobody could tell whether the person saw this argument."""

    async def opaque(request: Any, call_next: Any) -> Any:
        return await call_next(request.override(tool_call={**request.tool_call, "args": {"query": object()}}))

    @tool
    async def delete(query: Any) -> str:
        """Delete."""
        ran.append(query)
        return "gone"

    ran: list[Any] = []
    with pytest.raises(ValueError, match="object"):
        await ToolNode([delete], middleware=[opaque, RequireApproval()]).ainvoke([deletes("a")])

    assert ran == []


DECISIONS = {
    "accept": ACCEPT,
    "edit": edit(query="edited"),
    "response": {"type": "response", "args": "x"},
    "ignore": IGNORE,
}
PORTIONS = st.lists(st.tuples(st.sampled_from(sorted(DECISIONS)), st.integers(0, 2)), min_size=1, max_size=5)


@pytest.mark.backends("asyncio")
@given(said=PORTIONS, seed=st.integers(0, 99))
async def test_any_decisions_in_any_order_and_portions_run_what_was_approved_once(
    said: list[tuple[str, int]], seed: int
) -> None:
    """Promise 5: the number of each call is the resume in which its answer comes."""
    recorder, rng = Recorder(), random.Random(seed)
    node = node_of(recorder)
    inputs = [deletes(*(f"q{position}" for position in range(len(said))))]
    waiting = await run_to_questions(node, inputs)
    question_ids = [question.id for question in waiting.interrupts]
    messages: list[ToolMessage] = []
    for portion in sorted({turn for _, turn in said}):
        chosen = [position for position, (_, turn) in enumerate(said) if turn == portion]
        answers = {question_ids[position]: DECISIONS[said[position][0]] for position in rng.sample(chosen, len(chosen))}
        try:
            messages = await run_to_end(node, inputs, ledger=waiting.ledger, resume=answers)
        except CallsInterrupted as error:
            waiting = error

    assert [message.tool_call_id for message in messages] == [f"id-{position}" for position in range(len(said))]
    ran = {"accept": "delete(q{})", "edit": "delete(edited)"}
    expected = [ran[decision].format(position) for position, (decision, _) in enumerate(said) if decision in ran]
    assert sorted(recorder.order) == sorted(expected)


async def test_an_approved_tool_asks_questions_of_its_own() -> None:
    """The tool's questions come one after the other, and the approval is not requested again."""
    runs: list[str] = []

    async def delete(query: str) -> str:
        """Delete."""
        runs.append(query)
        return f"{query} {interrupt('sure?')} {interrupt('quite sure?')}"

    node, inputs = ToolNode([delete], middleware=[RequireApproval()]), [deletes("a", "b")]
    waiting = await run_to_questions(node, inputs)
    first, second = waiting.interrupts
    question_ids = {first.id, second.id}
    for answer, expected in ((ACCEPT, "sure?"), ("yes", "quite sure?")):
        waiting = await run_to_questions(node, inputs, ledger=waiting.ledger, resume={waiting.interrupts[0].id: answer})
        assert waiting.interrupts[0].value == expected
        question_ids.add(waiting.interrupts[0].id)
    answers = {waiting.interrupts[0].id: "very", second.id: IGNORE}
    messages = await run_to_end(node, inputs, ledger=waiting.ledger, resume=answers)

    assert messages[0].content == "a yes very"
    assert messages[1].status == "error"
    assert runs == ["a", "a", "a"]
    assert len(question_ids) == 4


async def test_attempts_inside_are_approved_together_and_each_approval_is_a_question(recorder: Recorder) -> None:
    """Both approvals are needed, and one rejection is enough to stop the call."""
    node = ToolNode(
        [recorder.tool("delete", raises=ConnectionError("lost"), times=2)],
        middleware=[RequireApproval(), RequireApproval(description="Second"), Retry(3, any_tool=True)],
    )
    for answer, status in ((ACCEPT, "success"), (IGNORE, "error")):
        waiting = await run_to_questions(node, [deletes("a")])
        waiting = await run_to_questions(node, [deletes("a")], ledger=waiting.ledger, resume=ACCEPT)
        assert waiting.interrupts[0].value[0]["description"] == "Second"
        (message,) = await run_to_end(node, [deletes("a")], ledger=waiting.ledger, resume=answer)
        assert message.status == status

    assert recorder.count("started") == 3


@pytest.mark.parametrize("history", ["list", "state"])
async def test_a_node_that_is_run_again_with_the_whole_history_runs_nothing(recorder: Recorder, history: str) -> None:
    """Promise 9: also without a graph, answered calls of the history do not run again."""
    node, request = node_of(recorder), deletes("a", "b")
    waiting = await run_to_questions(node, [request])
    answers = dict(zip([question.id for question in waiting.interrupts], [IGNORE, ACCEPT], strict=True))
    messages = await run_to_end(node, [request], ledger=waiting.ledger, resume=answers)
    whole_history = [request, *messages]
    second_result = await node.ainvoke(whole_history if history == "list" else {"messages": whole_history})
    assert (second_result if history == "list" else second_result["messages"]) == []
    assert recorder.order == ["delete(b)"]
