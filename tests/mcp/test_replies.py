"""HTTP responses that answer their request, by the id in the message."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard_actors.mcp._http import stray

NUMBERS = st.integers(0, 2**40)


def message(**parts: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **parts}).encode()


@given(NUMBERS, st.booleans())
def test_an_answer_with_the_same_id_is_one_also_as_text(number: int, as_text: bool) -> None:
    """Some servers send the id as text, and the SDK accepts this."""
    request = message(id=number, method="tools/call")
    assert stray(request, message(id=str(number) if as_text else number, result={})) is None


@given(NUMBERS, NUMBERS | st.text(alphabet="abc", max_size=3) | st.none() | st.booleans() | st.lists(NUMBERS))
def test_one_with_another_id_never_is(number: int, other: Any) -> None:
    """Any other id, whatever its type, is refused."""
    if isinstance(other, bool) or other != number:
        assert stray(message(id=number, method="tools/call"), message(id=other, result={})) is not None


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (message(method="notifications/initialized"), message(id=7, result={})),
        (message(id=1, method="tools/call"), b"not json"),
        (message(id=1, method="tools/call"), b"[" * 5000),
        (message(id=1, method="tools/call"), b"[]"),
        (message(id=1, method="tools/call"), b'{"detail": "no"}'),
        (message(id=1, method="tools/call"), message(id=2, result="x" * 70_000)),
    ],
)
def test_what_is_for_others_to_judge_is_left_to_them(request_: bytes, answer: bytes) -> None:
    """Messages without an id, invalid messages and messages too large to parse twice are passed on."""
    assert stray(request_, answer) is None
