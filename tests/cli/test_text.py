"""Display of text from untrusted sources."""

import json
import math
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage
from langgraph.types import Interrupt

from callboard._cli._grid import call_label
from callboard._cli._run_command import accept_all, describe_question
from callboard._cli._shown_text import as_json, escape_name, one_line
from callboard.questions import approval_in, free_answer, printable

JOINERS = "\u200c\u200d"
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.text())
def test_nothing_that_is_shown_can_act(text: str) -> None:
    printed = printable(text)

    assert {unicodedata.category(char) for char in printed if char not in f"\n\t{JOINERS}"}.isdisjoint(
        {"Cc", "Cf", "Cs"}
    )
    printed.encode()


@pytest.mark.parametrize("hidden", "\u200b\u202e\u2066\u3164\u034f\u180e\ufe0f\u200d\U000e0041\ud83d")
def test_a_character_that_is_not_visible_is_shown_by_its_number(hidden: str) -> None:
    """A person would approve another file name than the one that is shown."""
    assert printable(f"cat{hidden}gpj.exe") == f"cat{json.dumps(hidden)[1:-1]}gpj.exe"
    assert printable(needed := "é 👩\u200d🚒 ❤\ufe0f क्\u200dष\u00a0!") == needed


@given(VALUES)
def test_json_stays_what_it_was_when_it_is_made_fit_to_be_shown(value: object) -> None:
    """Escaping must not change a value: an argument that the person did not edit stays the same."""
    assert json.loads(printable(as_json(value))) == value


@given(st.text(), st.integers(1, 50))
def test_one_line_is_one_line_and_no_longer_than_asked_for(text: str, length: int) -> None:
    line = one_line(text, length)

    assert len(line) <= length
    assert len(line.splitlines()) <= 1


@given(st.text())
def test_a_name_is_one_line_and_tells_what_is_in_it(name: str) -> None:
    """A line break in a name could forge the line of another thread or call."""
    assert len(escape_name(name).splitlines()) <= 1
    assert not set(escape_name(name)) & set("\n\t\r\x1b")
    assert escape_name("a\nb") == "a\\nb" != escape_name("a b")
    assert call_label("pay\n done", {"to\nme": 1}, 80) == "pay\\n done(to\\nme=1)"


def test_a_call_is_written_as_python_would() -> None:
    """A call without known arguments is shown as the tool's name."""
    assert call_label("fetch", {"url": "x", "n": 1}, 80) == "fetch(url='x', n=1)"
    assert call_label("fetch", {}, 80) == "fetch()"
    assert call_label("fetch", None, 80) == "fetch"
    assert call_label("fetch", {"url": "x" * 99}, 12) == "fetch(ur…x')"


def test_json_has_messages_and_what_is_inside_of_them() -> None:
    """Values without a JSON form are converted."""
    decoded = json.loads(as_json({"messages": [AIMessage("hi")], "odd": object}))

    assert decoded["messages"][0]["content"] == "hi"


def test_numbers_that_json_does_not_have_are_texts() -> None:
    """`NaN` is no JSON: other programs refuse the whole output of `callboard run --json`."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    value = {"mean": math.nan, "bounds": [-math.inf, math.inf], "text": "NaN é"}
    told = json.loads(as_json(value, indent=2), parse_constant=refuse)
    assert told == {"mean": "NaN", "bounds": ["-Infinity", "Infinity"], "text": "NaN é"}


REQUEST = {"action_request": {"action": "pay", "args": {"amount": 3}}, "description": None}
ALL = {"allow_accept": True, "allow_edit": True, "allow_respond": True, "allow_ignore": True}


def test_an_answer_has_the_form_of_its_question() -> None:
    request = {**REQUEST, "config": ALL}
    langchain_request = {
        "action_requests": [{"name": "pay", "args": {"amount": 3}}, {"name": "tell", "args": {}}],
        "review_configs": [
            {"action_name": "pay", "allowed_decisions": ["approve", "edit", "reject"]},
            {"action_name": "tell", "allowed_decisions": ["respond"]},
        ],
    }
    edit = ("edit", {"amount": 4})

    single, several, batch = approval_in(request), approval_in([request]), approval_in(langchain_request)
    assert single is not None
    assert several is not None
    assert batch is not None
    changed = {"type": "edit", "args": {"action": "pay", "args": {"amount": 4}}}
    assert single.encode([edit]) == changed
    assert several.encode([edit]) == [changed]
    assert single.encode([("respond", "paid")]) == {"type": "response", "args": "paid"}
    assert [action.allowed for action in batch.actions] == [["accept", "edit", "ignore"], ["respond"]]
    assert batch.encode([edit, ("respond", "told")]) == {
        "decisions": [
            {"type": "edit", "edited_action": {"name": "pay", "args": {"amount": 4}}},
            {"type": "respond", "message": "told"},
        ]
    }
    assert batch.encode([("ignore", None), ("ignore", "no")]) == {
        "decisions": [{"type": "reject"}, {"type": "reject", "message": "no"}]
    }
    assert accept_all(Interrupt(langchain_request, id="1")) is None
    assert accept_all(Interrupt([request], id="1")) == [{"type": "accept", "args": None}]


def test_an_approval_of_a_single_call_has_the_answers_of_its_schema() -> None:
    """The value of the question does not say which answers LangChain's middleware accepts."""
    value = {"type": "tool_approval", "tool_call_id": "1", "name": "pay", "args": {"amount": 3}, "description": "Pay?"}
    question = Interrupt(value, id="1")
    bare, first_approval = approval_in(value), approval_in(question)
    assert bare is not None
    assert first_approval is not None
    assert bare.actions == first_approval.actions
    assert [*first_approval.actions[0].allowed] == ["accept", "edit", "respond", "ignore"]
    edited = {"type": "edit", "edited_action": {"name": "pay", "args": {"amount": 4}}}
    assert first_approval.encode([("edit", {"amount": 4})]) == edited
    assert accept_all(question) == {"type": "approve"}

    def allows(*decisions: str) -> dict[str, Any]:
        return {name: {"properties": {"type": {"const": name}}} for name in decisions}

    object.__setattr__(
        question, "response_schema", {"$defs": {**allows("reject", "respond"), "Args": {"type": "object"}}}
    )
    second_approval = approval_in(question)
    assert second_approval is not None
    assert [*second_approval.actions[0].allowed] == ["respond", "ignore"]
    assert accept_all(question) is None
    object.__setattr__(question, "response_schema", allows("approve")["approve"])
    assert accept_all(question) == {"type": "approve"}


def test_what_only_looks_like_an_approval_is_a_free_question() -> None:
    """A question that only resembles an approval is shown as it is and never accepted automatically."""
    for value in ({"action_request": "pay"}, [REQUEST], [], "pay?", {"action_requests": []}, None, 3):
        assert approval_in(value) is None
        assert accept_all(Interrupt(value, id="1")) is None
        assert describe_question(value)


def test_a_typed_answer_is_json_or_text() -> None:
    question = Interrupt("How many?", id="1")
    assert free_answer("3", question) == 3
    assert free_answer('{"a": [1]}', question) == {"a": [1]}
    assert free_answer("three", question) == "three"

    wants_text = Interrupt("Which?", id="1")
    object.__setattr__(wants_text, "response_schema", {"type": "string"})
    assert free_answer("3", wants_text) == "3"
