"""Names of calls: for any ids that a model writes, no two calls of a batch share a name."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.conversations import _targets
from callboard.conversations._thread import START
from callboard.exceptions import DuplicateCallIdWarning
from callboard.tools._call_record import NODES, keys_of, segment_of
from tests.helpers import examples

pytestmark = pytest.mark.filterwarnings("ignore::callboard.exceptions.DuplicateCallIdWarning")

SEPARATORS = "ab|_#:~%/ 01\x00\n"
UNICODE = ["e\u0301", "\u00e9", "\ufb01", "fi", "K", "\u212a", "\ud800", "\udc00", "\U00010000"]
LONG = ["x" * 127, "x" * 128, "x" * 129, "x" * 128 + "y", "|" * 60, "%7C" * 60]
NAMED = ["", "a", "a|b", "a_b", "a#0", "a#1", "a%7Cb", "a~1", "#", "%", "%61gent", "__start__", "agent", "tools"]

HOSTILE = (
    st.text(SEPARATORS, max_size=4)
    | st.sampled_from([*NAMED, *UNICODE, *LONG])
    | st.text(st.characters(categories=None), max_size=5)
)


def a_call(name: str, call_id: str | None, **args: Any) -> Any:
    return {"type": "tool_call", "name": name, "args": args, "id": call_id}


def calls_with(ids: list[str]) -> list[Any]:
    return [a_call("run", call_id) for call_id in ids]


def test_the_longest_ids_have_short_names_that_differ() -> None:
    """An id may have 10 MB and be a prefix of another id."""
    keys = keys_of(calls_with(["x" * 10_000_000, "x" * 9_999_999 + "y", "x" * 10_000_000 + "y"]))
    assert len(set(keys)) == 3
    assert all(len(key) <= 128 for key in keys)
    assert all(len(segment_of(key, 0)) <= 128 for key in keys)


@examples(3)
@given(ids=st.lists(HOSTILE, max_size=8), numbers=st.tuples(st.integers(0, 12), st.integers(0, 12)))
def test_no_two_calls_share_a_key_or_a_namespace(ids: list[str], numbers: tuple[int, int]) -> None:
    """Questions are identified by namespaces: a shared one would approve two calls with one answer."""
    keys = keys_of(calls_with(ids))
    segments = [segment_of(key, number) for key in keys for number in set(numbers)]
    assert len(set(keys)) == len(ids)
    assert len(set(segments)) == len(ids) * len(set(numbers))
    assert NODES.isdisjoint(keys)


@given(call_id=HOSTILE)
def test_names_are_short_and_every_store_can_keep_them(call_id: str) -> None:
    """A namespace is stored in a database column, and the key in every entry about its call."""
    (key,) = keys_of(calls_with([call_id]))
    segment = segment_of(key, 0)
    assert len(key.encode()) <= 128 * 4
    assert len(segment) <= 128
    assert segment.isascii()
    assert "|" not in segment
    assert segment == "" or segment.isprintable()


READABLE = ["call_8Hq2", "toolu_01A09q90qw90lq917835lq9", "functions.search:0", "chatcmpl-tool-9f2", "same#1"]


def test_the_usual_ids_are_their_own_names_and_namespaces() -> None:
    """Ordinary ids are used as names unchanged, so that entries of earlier versions are found."""
    for call_id in (*READABLE[:-1], "id 1", "a|fc_1", "é"):
        assert keys_of(calls_with([call_id])) == [call_id]
    for call_id in READABLE:
        assert segment_of(call_id, 0) == call_id


def test_a_warning_about_a_long_id_is_short() -> None:
    """The model writes the id, and the warning goes to a log, so the id is cut."""
    with pytest.warns(DuplicateCallIdWarning) as caught:
        keys_of(calls_with(["x" * 10_000_000] * 2))
    assert len(str(caught[0].message)) < 300


def test_the_names_of_nodes_are_known() -> None:
    """An agent stores records of nodes and of calls side by side, so their names must not collide."""
    flow = {
        _targets.AGENT,
        _targets.MODEL,
        _targets.TOOLS,
        _targets.BEFORE,
        _targets.AFTER,
        _targets.RESPONSE,
        _targets.END,
        START,
    }
    assert flow == NODES
    names = [*sorted(NODES), "Name#1.before_agent", "Name.before_model", "Name.after_model", "Name.after_agent"]
    assert not {*names} & {*keys_of(calls_with(names))}
    assert not any("#" in key for key in keys_of(calls_with(names)))
