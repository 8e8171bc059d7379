"""Large results are converted to text in parts, and the text equals that of a single conversion."""

import math
import threading
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from datetime import date
from enum import IntEnum
from typing import Any, NamedTuple

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from langchain_core.tools.base import _stringify

from callboard import AbandonedThreadWarning
from callboard._langchain import _large_values
from callboard._langchain._large_values import run_in_worker, write_in_pieces

from .test_unanswered import work_of

PLAIN = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters() | st.sampled_from("'\"\\\n\ud800/é😀"), max_size=60)
)
KEYS = PLAIN.filter(lambda key: not isinstance(key, float) or not math.isnan(key))


class Pair(NamedTuple):
    one: object
    other: object


class Text(str):
    """User-defined subclass of `str`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "a text"


class Colour(IntEnum):
    RED = 1


class Odd(dict[Any, Any]):
    def items(self) -> Any:
        return [("not", "what it has")]


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(inner, max_size=6)
    mappings = st.dictionaries(KEYS, inner, max_size=6)
    return (
        lists
        | lists.map(tuple)
        | mappings
        | mappings.map(OrderedDict)
        | mappings.map(lambda value: defaultdict(int, value))
        | st.tuples(inner, inner).map(lambda pair: Pair(*pair))
    )


JSON = st.recursive(PLAIN | st.just(Text("t'\"")) | st.just(Colour.RED), containers, max_leaves=40)
ODD = (
    st.binary(max_size=60)
    | st.just(date(2026, 1, 2))
    | st.sets(st.text(max_size=5), max_size=6)
    | st.frozensets(st.integers(), max_size=6)
    | st.just(Odd({1: 2}))
    | st.just({(1, 2): 3})
    | st.just(Counter("abc"))
)
ANYTHING = st.recursive(PLAIN | ODD, containers, max_leaves=40)


def text_or_error(write: Callable[[Any], str], value: Any) -> object:
    try:
        return write(value)
    except Exception as error:
        return type(error)


def in_parts(value: Any, part: int) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_large_values, "_PART", part)
        patch.setattr(_large_values, "_PORTION", 2)
        return text_or_error(write_in_pieces, value)


@given(value=JSON, part=st.sampled_from([1, 150, 400, 1000]))
def test_json_in_parts_is_json(value: Any, part: int) -> None:
    """Promise 12: the model reads the same text as from LangChain, including the order and duplicate keys."""
    assert in_parts(value, part) == text_or_error(_stringify, value)


@given(value=ANYTHING, part=st.sampled_from([1, 150, 400, 1000]))
@example(value=date(2026, 1, 2), part=1)
def test_what_is_no_json_is_written_as_str_does(value: Any, part: int) -> None:
    """Promise 12: one value without a JSON form makes the whole text a Python repr."""
    assert in_parts(value, part) == text_or_error(_stringify, value)


@given(value=ANYTHING, kind=st.sampled_from(["list", "dict", "both"]), part=st.sampled_from([1, 150, 400, 1000]))
def test_circles_are_written_as_str_does(value: Any, kind: str, part: int) -> None:
    """Promise 12: a cycle has no JSON form, and Python writes dots where it closes."""
    outer_list: list[Any] = [value]
    inside: dict[str, Any] = {"value": value, "around": outer_list}
    outer_list.append(inside if kind == "both" else outer_list)
    if kind == "dict":
        inside["self"] = (inside, 1)
    assert in_parts([inside, outer_list], part) == text_or_error(_stringify, [inside, outer_list])


def test_what_cannot_be_written_says_so() -> None:
    """Promise 3: the error is the one that the value's own conversion raises."""

    class Mute:
        def __repr__(self) -> str:
            raise LookupError("no words")

    with pytest.raises(LookupError, match="no words"):
        write_in_pieces([Mute()] * 5000)


def test_lists_within_each_other_are_written_in_linear_time() -> None:
    """Promise 8: the thread that writes them shares the interpreter lock with the event loop."""

    def work_of_levels(levels: int) -> int:
        value: object = "x" * 300_000
        for _ in range(levels):
            value = [value]
        return work_of(lambda: write_in_pieces(value))

    assert work_of_levels(200) < 3 * work_of_levels(100)


def test_what_changes_meanwhile_is_written_as_it_is_then() -> None:
    """Promise 2: a tool may return a mapping that other code changes meanwhile, and the call still gets its message."""
    shared: dict[str, Any] = {str(number): number for number in range(10_000)}

    class Other(dict[str, Any]):
        """A value whose conversion adds a key to the mapping, as another thread may do meanwhile."""

        def items(self) -> Any:
            shared["new"] = 1
            return super().items()

    shared["500"] = Other({"a": 1})
    assert write_in_pieces(shared) == _stringify(shared)
    assert "new" in shared


@pytest.mark.real_clock
async def test_a_worker_whose_caller_is_cancelled_works_alone_until_it_ends() -> None:
    """Cancelled calls with large results would otherwise pile up threads."""
    begun, release, waited = anyio.Event(), threading.Event(), list[bool]()
    token = anyio.lowlevel.current_token()

    def convert() -> None:
        anyio.from_thread.run_sync(begun.set, token=token)
        release.wait(30)

    with pytest.warns(AbandonedThreadWarning, match="large values"):
        async with anyio.create_task_group() as group:
            group.start_soon(run_in_worker, convert)
            await begun.wait()
            group.cancel_scope.cancel()
    async with anyio.create_task_group() as group:
        group.start_soon(run_in_worker, lambda: waited.append(release.is_set()))
        await anyio.wait_all_tasks_blocked()
        release.set()
    assert waited == [True]
