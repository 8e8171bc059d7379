"""The input of a run is captured on its span in each form that callers may use."""

from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from callboard.telemetry._capture import conversation

ASKED = [{"role": "user", "parts": [{"type": "text", "content": "What is tea?"}]}]


@pytest.mark.parametrize(
    "messages",
    [
        "What is tea?",
        ("user", "What is tea?"),
        HumanMessage("What is tea?"),
        {"role": "user", "content": "What is tea?"},
        ["What is tea?"],
        [("user", "What is tea?")],
        [{"role": "user", "content": "What is tea?"}],
        (HumanMessage("What is tea?"),),
    ],
    ids=repr,
)
def test_a_message_is_read_in_every_form_that_an_agent_takes(messages: Any) -> None:
    """LangGraph's reducer accepts all of these forms."""
    assert conversation({"messages": messages}) == ASKED


@pytest.mark.parametrize(
    "value", [None, {}, {"messages": None}, {"messages": [object(), 3]}, {"messages": object()}, 3]
)
def test_what_is_no_message_is_left_out(value: Any) -> None:
    """A state may contain anything under `messages`, and a span must not fail for it."""
    assert conversation(value) == []
