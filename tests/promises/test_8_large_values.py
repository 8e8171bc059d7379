"""Promise 8 with very large arguments or results: middleware processes them in threads, and the event loop goes on."""

import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, StructuredTool
from pydantic import BaseModel, field_validator

from callboard import CallEvent, CallsInterrupted, ToolCallRequest, ToolNode, observe
from callboard.guards import Detector, Redact, RepairArguments
from callboard.guards._sanitize import _text
from callboard.middleware import Cache, RequireApproval
from callboard.middleware._cache import _cache
from callboard.middleware._cache._cache import _encode_canonically
from callboard.testing import calls

pytestmark = pytest.mark.real_clock

LARGE = [str(number) for number in range(20_000)]
TURNS = 5


class Onlooker:
    """A function for middleware that records its thread, and whether the event loop went on meanwhile."""

    def __init__(self) -> None:
        self.turns = 0
        self.in_loop = self.in_thread = 0
        self._loop = threading.get_ident()

    async def take_turns(self) -> None:
        while True:
            await anyio.sleep(0.001)
            self.turns += 1

    def look(self) -> None:
        """In a thread, wait for the event loop, which makes turns unless it is blocked."""
        if threading.get_ident() == self._loop:
            self.in_loop += 1
            return
        self.in_thread += 1
        enough, end = self.turns + TURNS, time.monotonic() + 20
        while self.in_thread == 1 and self.turns < enough:
            assert time.monotonic() < end, "the loop is held"
            time.sleep(0.001)


async def outcome(tool: BaseTool, middleware: object, args: dict[str, Any], onlooker: Onlooker) -> ToolMessage:
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(onlooker.take_turns)
            [message] = await ToolNode([tool], middleware=[middleware]).ainvoke([calls((tool.name, args))])
            tasks.cancel_scope.cancel()
    assert isinstance(message, ToolMessage)
    return message


def counting(onlooker: Onlooker) -> BaseTool:
    class Count(BaseModel):
        numbers: list[int]
        label: str

        @field_validator("label", mode="before")
        @classmethod
        def look_at_label(cls, label: object) -> object:
            onlooker.look()
            return label

    async def count(numbers: list[int], label: str) -> str:
        return f"{len(numbers)} {label}"

    return StructuredTool.from_function(coroutine=count, description="Counts.", args_schema=Count)


async def test_large_arguments_are_not_repaired_and_cost_the_event_loop_nothing() -> None:
    """Promise 8: their only validation is that of the tool itself."""
    onlooker = Onlooker()
    message = await outcome(counting(onlooker), RepairArguments(), {"numbers": LARGE, "label": 1}, onlooker)
    assert message.status == "error"
    assert (onlooker.in_thread, onlooker.in_loop) == (0, 1)


async def test_small_arguments_are_repaired_at_once() -> None:
    """Promise 8: a thread would take longer than the repair."""
    onlooker = Onlooker()
    message = await outcome(counting(onlooker), RepairArguments(), {"numbers": "[1, 2]", "label": "n"}, onlooker)
    assert message.content.startswith("2 n")
    assert not onlooker.in_thread


def nosy(onlooker: Onlooker) -> Detector:
    def find(text: str) -> Iterator[tuple[int, int]]:
        onlooker.look()
        return (match.span() for match in re.finditer("secret-[0-9]+", text))

    return Detector("word", find)


async def echo(values: list[str]) -> str:
    return values[0]


@pytest.mark.parametrize("reveal", [[], ["echo"]], ids=["hidden", "revealed"])
async def test_large_arguments_are_redacted_in_a_thread(reveal: list[str]) -> None:
    onlooker = Onlooker()
    tool = StructuredTool.from_function(coroutine=echo, description="Echoes.")
    middleware = Redact([nosy(onlooker)], reveal=reveal)
    message = await outcome(tool, middleware, {"values": ["secret-1", *LARGE[:2000]]}, onlooker)
    assert message.content.startswith("<word:")
    assert onlooker.in_thread >= 2000
    assert onlooker.in_loop <= 2  # the short result


async def test_large_values_are_hidden_in_a_thread() -> None:
    """Promise 8: a value that a user wrote may be as large."""
    onlooker = Onlooker()
    redact = Redact([nosy(onlooker)])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(onlooker.take_turns)
        hidden = await redact.hide(["secret-1", *LARGE[:2000]])
        tasks.cancel_scope.cancel()
    assert hidden[0].startswith("<word:")
    assert (await redact.restore(hidden))[0] == "secret-1"
    assert not onlooker.in_loop


async def test_a_person_is_asked_about_large_arguments_in_a_thread() -> None:
    onlooker = Onlooker()

    def describe(request: ToolCallRequest) -> str:
        onlooker.look()
        return f"{len(request.tool_call['args']['values'])} values"

    tool = StructuredTool.from_function(coroutine=echo, description="Echoes.")
    node = ToolNode([tool], middleware=[RequireApproval(description=describe)])
    reply = calls(("echo", {"values": LARGE}))
    notes: list[tuple[str, int]] = []

    def note(event: CallEvent) -> None:
        if event.phase == "noted":
            notes.append((event.note or "", threading.get_ident()))

    with observe(note):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(onlooker.take_turns)
            with pytest.raises(CallsInterrupted) as caught:
                await node.ainvoke([reply])
            [question] = caught.value.interrupts
            assert question.value[0]["description"] == "20000 values"
            [message] = await node.ainvoke(
                [reply], ledger=caught.value.ledger, resume={question.id: [{"type": "accept", "args": None}]}
            )
            tasks.cancel_scope.cancel()
    assert message.content == "0"
    assert onlooker.in_thread
    assert not onlooker.in_loop
    assert {thread for _, thread in notes} == {threading.get_ident()}, "observers are told in the loop's thread"


async def test_the_key_of_large_arguments_is_made_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise 8: computing the key of the cache must not take longer than the call."""
    threads: list[bool] = []
    loop_thread = threading.get_ident()

    def record_thread(args: Any) -> str | None:
        threads.append(threading.get_ident() != loop_thread)
        return _encode_canonically(args)

    monkeypatch.setattr(_cache, "_encode_canonically", record_thread)
    tool = StructuredTool.from_function(coroutine=echo, description="Echoes.")
    node = ToolNode([tool], middleware=[Cache(["echo"])])
    first = await node.ainvoke([calls(("echo", {"values": LARGE}))])
    second = await node.ainvoke([calls(("echo", {"values": LARGE}))])
    assert [message.content for message in (*first, *second)] == ["0", "0"]
    assert threads == [True, True]


def turns_while(action: Callable[[], object]) -> int:
    """Return how often another thread makes a turn meanwhile."""
    done = threading.Event()
    threading.Thread(target=lambda: (action(), done.set()), daemon=True).start()
    turns, end = 0, time.monotonic() + 60
    while not done.is_set():
        assert time.monotonic() < end
        time.sleep(0)
        turns += 1
    return turns


def test_escape_sequences_are_removed_piece_by_piece() -> None:
    """Promise 8: a single search through a large text would block all other threads, including the event loop's."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0001)
    try:
        assert turns_while(lambda: _text._strip_escape_sequences("x" * 10_000_000)) > 10
    finally:
        sys.setswitchinterval(before)


PARTS = [*"\x1b][\\\x07\x9c\x9d\x9bPm \n\x90", "1;", "ab", "\x1b]0;", "\x1b\\"]


@given(parts=st.lists(st.sampled_from(PARTS), max_size=60))
def test_pieces_change_nothing(parts: list[str]) -> None:
    text = "".join(parts)
    expected = _text._strip_escape_sequences(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_text, "_PIECE_CHARS", 3)
        assert _text._strip_escape_sequences(text) == expected
