"""Bounds of received messages: lines of a bounded length, and JSON texts with a bounded number of values."""

from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import anyio
import anyio.lowlevel
from anyio.abc import AnyByteReceiveStream
from anyio.streams.buffered import BufferedByteReceiveStream

from callboard_actors._util._value_counter import ValueCounter

CLOSED_ERRORS: Final = (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError)
"""Errors of a stream that was closed here or at its other end."""


@dataclass(frozen=True, slots=True)
class MessageSizes:
    """Maximum sizes of one message."""

    max_message: int
    """Maximum number of bytes."""
    max_values: int
    """Maximum number of values: texts, numbers, lists, objects."""


async def lines_of(stream: AnyByteReceiveStream, max_line: int) -> AsyncGenerator[bytes]:
    """Yield the lines of a stream without their ends, until the stream ends or breaks.

    Raise `DelimiterNotFound` for a line of more than `max_line` bytes, even if its end was not received yet.
    """
    buffered = BufferedByteReceiveStream(stream)
    with suppress(anyio.EndOfStream, anyio.IncompleteRead, *CLOSED_ERRORS):
        while True:
            line = await buffered.receive_until(b"\n", max_line + 1)
            if len(line) > max_line:
                raise anyio.DelimiterNotFound(max_line)
            yield line


_PIECE = 64 * 1024
"""Number of bytes that are looked at before other tasks run."""


class TooManyValuesError(Exception):
    """Raised for a JSON text with more values than the limit."""

    def __init__(self, max_values: int) -> None:
        super().__init__(f"it sent a message of more than {max_values} values; McpBounds(max_values=...) allows more")


async def check_values(text: bytes, max_values: int) -> None:
    """Raise `TooManyValuesError` if a JSON text has more than `max_values` values; other tasks run meanwhile."""
    if len(text) <= 2 * max_values:
        return
    counter = ValueCounter()
    for begin in range(0, len(text), _PIECE):
        counter.add(text[begin : begin + _PIECE])
        if counter.count > max_values:
            raise TooManyValuesError(max_values)
        await anyio.lowlevel.checkpoint()
