"""Parsing of the messages of a server process, however its pipe splits them."""

import json
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.message import SessionMessage

from callboard_actors._util._value_counter import ValueCounter
from callboard_actors.mcp._lines import MessageSizes
from callboard_actors.mcp._link import Link
from callboard_actors.mcp._stdio import _Child

from ._asked import WAIT


@dataclass
class Pipe:
    """Output of a process in several parts."""

    parts: list[bytes]

    async def receive(self, _: int = 0) -> bytes:
        await anyio.lowlevel.checkpoint()
        if not self.parts:
            raise anyio.EndOfStream
        return self.parts.pop(0)


@dataclass
class Ended:
    """Process that has written output and ended."""

    stdout: Pipe
    stderr: Pipe = field(default_factory=lambda: Pipe([]))
    stdin: Pipe = field(default_factory=lambda: Pipe([]))
    returncode: int = 0


def message(number: int) -> bytes:
    return b'{"jsonrpc": "2.0", "id": %d, "result": {"text": "\\u00e9\xc3\xa9"}}' % number


lines = st.lists(st.one_of(st.integers(0, 9).map(message), st.sampled_from([b"", b"  ", b"hello", b"{}", b"\xff"])))


def split_at(text: bytes, positions: list[int]) -> list[bytes]:
    """Split the text into parts, none of them empty."""
    edges = sorted({0, len(text), *(position % (len(text) + 1) for position in positions)})
    return [text[begin:end] for begin, end in pairwise(edges)]


async def read(parts: list[bytes], limit: int, values: int = 100) -> tuple[list[Any], Link]:
    link, received = Link(), list[Any]()
    child = _Child(cast("Any", Ended(Pipe(parts))), link, MessageSizes(limit, values))
    into, out_of = anyio.create_memory_object_stream[SessionMessage | Exception](1)
    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group, out_of:
            group.start_soon(child.read_stderr)
            group.start_soon(child.read, into)
            received.extend([session_message async for session_message in out_of])
    return received, link


@given(lines, st.lists(st.integers(0, 10**6), max_size=20))
async def test_where_a_pipe_cuts_is_nothing_that_a_message_shows(written: list[bytes], positions: list[int]) -> None:
    """A part may even end within a character; lines that are no messages are skipped."""
    received, link = await read(split_at(b"".join(line + b"\n" for line in written), positions), 10**6)
    message_lines = [line for line in written if line.startswith(b'{"')]
    assert [session_message.message.id for session_message in received] == [
        json.loads(line)["id"] for line in message_lines
    ]
    assert all(session_message.message.result == {"text": "éé"} for session_message in received)
    assert link.reason.startswith("its process has ended with exit code 0")


@given(st.integers(1, 200), st.sampled_from([b"", b"\n"]), st.lists(st.integers(0, 10**6), max_size=20))
async def test_a_line_is_read_as_far_as_it_may_be_long(excess: int, end: bytes, positions: list[int]) -> None:
    """The limit applies to each line, and messages before a line that is too long are kept."""
    received, link = await read([message(1) + b"\n", *split_at(b"x" * (100 + excess) + end, positions)], 100)
    assert [session_message.message.id for session_message in received] == [1]
    assert link.reason == "it sent a message of more than 100 bytes"


@pytest.mark.parametrize("line", [b'{"jsonrpc":"2.0","id":7,"result":[1]}', b'{"jsonrpc":"2.0","id":7}'])
async def test_an_answer_that_is_no_message_is_an_error_of_who_waits_for_it(line: bytes) -> None:
    """If a malformed answer were skipped, its call would wait for ever."""
    [received], _ = await read([line + b"\n", b'{"id":true}\n{"id":[]}\n'], 100)
    assert received.message.id == 7
    assert received.message.error.message == f"it answered with what is no message of MCP: {line.decode()!r}"


MANY = "it sent a message of more than 100 values; McpBounds(max_values=...) allows more"
VALUES = b"[" + b"{}," * 100 + b"{}]"


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":7,"result":{"structuredContent":' + VALUES + b"}}",
        b'{"jsonrpc": "2.0", "id": 7, "error": {"data": ' + VALUES + b"}}",
        b'{"result":{"structuredContent":' + VALUES + b'},"jsonrpc":"2.0","id":7}',
    ],
)
async def test_an_answer_of_many_values_is_not_parsed_and_ends_its_own_request(line: bytes) -> None:
    """A parser holds the event loop for each value, so millions of small ones would stop the process for seconds."""
    received, link = await read([line + b"\n", message(8) + b"\n"], 10**6)
    assert (received[0].message.id, received[0].message.error.message) == (7, MANY)
    assert received[1].message.id == 8
    assert link.reason.startswith("its process has ended")


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","method":"notifications/message","params":{"data":' + VALUES + b"}}",
        b'{"jsonrpc":"2.0","method":"ping","params":{"data":' + VALUES + b'},"jsonrpc":"2.0","id":7}',
        b"[" + VALUES + b'],"jsonrpc":"2.0","id":7}',
    ],
)
async def test_another_message_of_many_values_ends_the_connection(line: bytes) -> None:
    """No call waits for a notification, and a server could send such ones for ever."""
    received, link = await read([line + b"\n", message(8) + b"\n"], 10**6)
    assert received == []
    assert link.reason == MANY


def count_of(value: object) -> int:
    """Return the number of values in a value; an empty list or object counts as if it had a part."""
    if isinstance(value, dict):
        return 1 + max(1, sum(map(count_of, value.values())))
    return 1 + max(1, sum(map(count_of, value))) if isinstance(value, list) else 1


TEXTS = st.text(st.sampled_from(list('"\\,[{é')))


@given(
    st.recursive(TEXTS | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner)),
    st.lists(st.integers(0, 10**6), max_size=20),
)
def test_values_are_counted_wherever_a_text_is_cut(value: object, positions: list[int]) -> None:
    """Commas and brackets in strings are no values, and a piece may end within a string or an escape."""
    pieces = split_at(json.dumps(value).encode(), positions)
    counter = ValueCounter()
    for piece in pieces:
        counter.add(piece)
    assert counter.count == count_of(value)
