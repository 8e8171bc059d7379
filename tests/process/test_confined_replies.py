"""Replies of a confined worker are read as JSON and never unpickled."""

import pickle
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.extend import Body
from callboard_actors._engine._frames import Kind
from callboard_actors._engine._plain_replies import encode_result
from callboard_actors.process import ResultLostError, WorkerCallError, _plain_codec
from callboard_actors.process._plain_codec import decode_plain_reply

from . import _answers as answers
from ._processes import WAIT, confine_here, open_pool

real_clock = pytest.mark.real_clock


@real_clock
async def test_results_are_what_their_annotation_says() -> None:
    """The parent builds the result from JSON by the annotation. Without a usable annotation it is plain data."""
    async with open_pool(workers=2, grace=0, confine=confine_here(reuse=True)) as pool:
        assert await pool.run(answers.point) == answers.Point(1)
        assert await pool.run(answers.place) == answers.Place(name="here", points=[answers.Point(1), answers.Point(2)])
        assert await pool.run(answers.row) == {"when": datetime(2026, 1, 2, tzinfo=UTC), "price": Decimal("1.10")}
        assert await pool.run(answers.by_number) == {1: (2, 3)}
        assert await pool.run(answers.text_as_bytes) == b"text"
        assert await pool.run(answers.nothing) is None
        assert await pool.run(answers.without_annotation) == {"one": [1, 2.5, None, True], "2": ["three"]}
        assert await pool.run(answers.unknown_annotation) == [1]


@real_clock
@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (answers.opaque, "it returned an object of type object, which is no JSON: Unable to serialize unknown type"),
        (answers.picture, "it returned an object of type dict, which is no JSON: .*invalid utf-8"),
        (answers.deep, "it returned an object of type list, which is no JSON: .*depth"),
        (answers.not_a_point, "it cannot be read here: .* validation error for Point"),
    ],
)
async def test_a_result_that_is_no_json_is_lost_and_says_which_type(fn: Callable[[], Any], reason: str) -> None:
    """The call had its effect, so the error says that it finished and names the type of its result."""
    async with open_pool(grace=0, confine=confine_here()) as pool:
        with pytest.raises(ResultLostError, match=reason) as caught:
            await pool.run(fn)

    assert caught.value.ended == "finished"


@real_clock
async def test_pythons_own_exceptions_come_back_with_their_text_and_others_by_name() -> None:
    """The parent never builds an exception class that a worker names: that could run code of the worker's choice."""
    async with open_pool(grace=0, confine=confine_here(reuse=True)) as pool:

        async def caught(name: str) -> Exception:
            with pytest.raises(Exception) as error_info:
                await pool.run(answers.fail, name)
            assert "in fail" in error_info.value.__notes__[0]
            assert "before it" in error_info.value.__notes__[1]
            assert sum(map(len, error_info.value.__notes__)) < 20_000
            return error_info.value

        assert repr(await caught("value")) == """ValueError("('wrong', 1)")"""
        assert repr(await caught("key")) == "KeyError('missing')"
        assert repr(await caught("os")) == """FileNotFoundError("[Errno 2] No such file or directory: '/x'")"""
        assert len(str(await caught("long"))) == 16 * 1024
        for name, type_name, text in [
            ("own", "OwnError", "of mine"),
            ("strange", "StrangeError", ""),
            ("group", "ExceptionGroup", "several (1 sub-exception)"),
            ("unicode", "UnicodeDecodeError", "'utf-8' codec can't decode byte 0xff in position 0: invalid"),
            ("stop", "StopIteration", "1"),
        ]:
            error = await caught(name)
            assert isinstance(error, WorkerCallError)
            assert (error.tool, error.type_name, error.text) == ("fail", type_name, text)
            assert str(error) == f"'fail' has raised {type_name}: {text}"
            assert repr(pickle.loads(pickle.dumps(error))) == repr(error)


_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.exhaustive
@given(value=_PLAIN)
def test_plain_data_comes_back_as_it_was(value: object) -> None:
    """Plain data includes infinities, large integers and every valid text."""
    kind, reply = encode_result(value)
    assert kind is Kind.VALUE
    assert _open_reply(kind, reply) == value


def _open_reply(kind: Kind, reply: bytes, fn: Callable[..., Any] = answers.give) -> Any:
    return decode_plain_reply(kind, reply, Body(fn=fn, args=(), title="give"), output="")


class Bomb:
    """Object that leaves a trace when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return pytest.fail, ("it was unpickled",)


@pytest.mark.parametrize(
    ("kind", "reply"),
    [
        (Kind.VALUE, pickle.dumps(Bomb())),
        (Kind.RAISED, pickle.dumps(Bomb())),
        (Kind.VALUE, b""),
        (Kind.VALUE, b"[" * 1_000_000),
        (Kind.VALUE, b"[" * 10_000 + b"]" * 10_000),
        (Kind.VALUE, b"[" + b"[]," * 5_000_000 + b"[]]"),
        (Kind.VALUE, b'{"a":' * 1_500_000),
        (Kind.VALUE, b"1" * 1_000_000),
        (Kind.VALUE, b"\xff\xfe"),
        (Kind.VALUE, b'"\\ud800"'),
        (Kind.RAISED, b"{}"),
        (Kind.RAISED, b"[]"),
        (Kind.RAISED, b'{"module": "builtins", "type": ["ValueError"], "text": "", "traceback": ""}'),
        (Kind.RAISED, b'{"module": "m", "type": "T", "text": "' + b"x" * 100_000 + b'", "traceback": ""}'),
        (Kind.LOST, b"\xff" * 100_000),
    ],
)
def test_what_no_honest_worker_says_is_an_error_of_its_call(kind: Kind, reply: bytes) -> None:
    """Replies that are deeply nested, long, mistyped or not JSON fail their call with a short error text."""
    with pytest.raises(ResultLostError) as caught:
        _open_reply(kind, reply)

    assert len(str(caught.value)) < 20_000


@pytest.mark.parametrize("type_name", ["SystemExit", "KeyboardInterrupt", "GeneratorExit", "exec", "print", "object"])
def test_no_name_that_a_worker_gives_makes_anything_but_an_error(type_name: str) -> None:
    """Names of classes that end a program, or are no exceptions, are not looked up."""
    reply = f'{{"module": "builtins", "type": "{type_name}", "text": "1", "traceback": ""}}'.encode()

    with pytest.raises(WorkerCallError):
        _open_reply(Kind.RAISED, reply)


def test_many_commas_in_a_text_are_a_text() -> None:
    """The bound counts values, not commas inside of texts."""
    text = 'a,b[c{"' * 400_000

    assert _open_reply(*encode_result(text)) == text


_COMMAS = b"," * 1_000_001
ENDLESS = {
    "escaped quotes": b'\\"' * 4_000_000 + _COMMAS,
    "escaped quotes within a text": b'"' + b'\\"' * 4_000_000 + _COMMAS,
    "backslashes": b"\\" * 8_000_001 + _COMMAS,
    "quotes": b'"' * 8_000_001 + _COMMAS,
    "texts": b'"",' * 4_000_000,
    "a text of commas": b'"' + b"," * 60_000_000 + b'"',
    "errors of validation": b"[" + b"{}," * 400_000 + b"{}]",
}


@real_clock
@pytest.mark.parametrize("reply", ENDLESS.values(), ids=ENDLESS)
async def test_a_reply_that_takes_long_to_read_does_not_hold_the_event_loop(reply: bytes) -> None:
    """A long reply is scanned in a thread, a few times per byte, so the event loop keeps running."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await anyio.sleep(0.001)
            ticks += 1

    opens = partial(_plain_codec.decode_worker_reply, is_plain=True)
    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            group.start_soon(tick)
            await anyio.sleep(0.01)
            before = ticks
            with pytest.raises(ResultLostError) as caught:
                await opens(Kind.VALUE, reply, Body(fn=answers.numbers, args=(), title="give"), output="")
            assert ticks > before
            assert len("".join(traceback.format_exception(caught.value))) < 20_000
            group.cancel_scope.cancel()


def test_an_exception_has_fewer_bytes_than_a_result_may_have() -> None:
    """Exception texts are short. Sixty megabytes of brackets beside them would take gigabytes in the parent."""
    reply = b'{"module": "m", "type": "T", "text": "", "traceback": "", "more": [' + b"[]," * 400_000 + b"[]]}"
    with pytest.raises(ResultLostError, match=r"an exception of .* bytes"):
        _open_reply(Kind.RAISED, reply)
